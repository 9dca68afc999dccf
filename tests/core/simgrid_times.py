"""Seconds of messages begun together, by SimGrid: JSON in (capacity, paths, latency_s, bytes), JSON out.

A process each, since a SimGrid engine lives once in a process.
"""

from __future__ import annotations

import json
import sys

import simgrid  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    """Model CM02: bandwidth shared max-min fairly, no TCP window, no cross-traffic, no correction factors."""
    asked = json.load(sys.stdin)
    options = (
        "network/model:CM02",
        "network/crosstraffic:0",
        "network/TCP-gamma:0",
        "network/weight-S:0",
        "network/optim:Full",
        "contexts/factory:thread",
    )
    engine = simgrid.Engine(["simgrid", *(f"--cfg={each}" for each in options), "--log=root.thres:critical"])
    zone = simgrid.NetZone.create_full_zone("all")
    links = [zone.create_link(f"link{k}", rate).seal() for k, rate in enumerate(asked["capacity"])]
    pairs = []
    for k, path in enumerate(asked["paths"]):  # a pair of hosts for each message: every way is its own
        hosts = [zone.create_host(f"{end}{k}", 1e9).seal() for end in ("from", "to")]
        wire = zone.create_link(f"wire{k}", 1e15).set_latency(asked["latency_s"]).seal()
        route = [simgrid.LinkInRoute(each) for each in (wire, *(links[link] for link in path))]
        zone.add_route(hosts[0].netpoint, hosts[1].netpoint, None, None, route, False)
        pairs.append(hosts)
    zone.seal()
    finished = [0.0] * len(pairs)

    def send(index: int) -> None:
        simgrid.Comm.sendto(*pairs[index], int(asked["bytes"][index]))
        finished[index] = simgrid.Engine.get_clock()

    for index, (source, _) in enumerate(pairs):
        simgrid.Actor.create(f"message{index}", source, send, index)
    engine.run()
    json.dump(finished, sys.stdout)


if __name__ == "__main__":
    main()
