"""Does `explain` accuse healthy clusters, and name the fault of others? Random clusters by the traffic model.

    python -m benchmarks.explain_clusters --clusters 300 --seed 1

Each cluster has a random instance type, number of nodes, ranks per node and pattern. Its curve is what the links leave
to the usual algorithm times 0.78 to 0.95 (an alltoall of several ranks per node: 0.55 to 0.9), with 1 % of noise. A
third uses one or two of eight NICs, a third runs over sockets. Prints how many healthy ones were accused, and of how
many others the fault was among the first three reasons. The rules of `explain` were written with such clusters in mind:
real logs (docs/explain.md) are the better test.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.controller.plan import all_patterns
from bench.core.links import NodeLinks
from bench.core.pattern import Pattern, Shape
from bench.core.world import World
from bench.explain.explain import Page, page
from bench.explain.messages import ResultVerdict
from bench.hardware import catalogue
from bench.hardware.link_traffic import LinkUse, usual_use
from bench.hardware.machine import machine_of
from bench.logs.foreign import ForeignRow, ForeignRun

PATTERNS = ("allreduce", "allgather", "reducescatter", "alltoall", "sendrecv", "broadcast")
FAULTS = {"": (), "nics": ("fewer-nics", "crossed-nics"), "sockets": ("maybe-tcp-sockets", "fewer-nics")}
ACCUSATIONS = ("fewer-nics", "maybe-tcp-sockets", "crossed-nics", "no-nvls")
LOW = (ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW)
SIZES = [1 << power for power in range(10, 34)]
SOCKETS_BYTES_PER_S = 2.5e9
NOISE = 0.01


@dataclass(frozen=True)
class Trial:
    """One cluster: its fault ("" if healthy) and the page about its run."""

    fault: str
    name: str
    page: Page

    @property
    def right(self) -> bool:
        """Was a healthy cluster not accused, and the fault of another one named?"""
        codes = [reason.code for reason in self.page.reasons]
        low = self.page.assessment.verdict in LOW
        if not self.fault:
            return not low and not set(codes) & set(ACCUSATIONS)
        return low and bool(set(codes[:3]) & set(FAULTS[self.fault]))


def trials(seed: int, num: int) -> Iterator[Trial]:
    """`num` clusters."""
    draw, done = random.Random(seed), 0
    while done < num:
        trial = _trial(draw)
        if trial is not None:
            done += 1
            yield trial


def _trial(draw: random.Random) -> Trial | None:
    """One cluster; None if the draw has no fault of that kind or no NICs."""
    instance = catalogue.instance(draw.choice(catalogue.instances()))
    links = instance.links
    nodes, per_node = draw.choice((2, 2, 3, 4, 8, 16)), draw.choice((1, 2, 4, 8))
    pattern, fault = all_patterns()[draw.choice(PATTERNS)], draw.choice(tuple(FAULTS))
    if links.nic_bytes_per_s is None or links.nvlink_nodes > 1 or per_node > links.gpus:
        return None
    world = World(nodes, per_node)
    use, nics = _use(links, world, pattern), _use(links, world, pattern, "nic")
    if use is None or nics is None:
        return None
    peak = use.busbw_bytes_per_s * _efficiency(draw, pattern, per_node)
    if fault == "nics":
        few = replace(links, num_nics=max(1, (links.num_nics or 1) * draw.choice((1, 2)) // 8))
        slow = _use(few, world, pattern)
        if slow is None or slow.busbw_bytes_per_s > 0.5 * use.busbw_bytes_per_s:
            return None
        peak = slow.busbw_bytes_per_s * draw.uniform(0.88, 0.97)
    elif fault == "sockets":
        if (links.num_nics or 1) * links.nic_bytes_per_s < 10 * SOCKETS_BYTES_PER_S:
            return None
        in_use = nics.num_links * nics.rate
        peak = nics.busbw_bytes_per_s * min(SOCKETS_BYTES_PER_S, 0.1 * in_use) / in_use
    hosts = tuple(f"h{node}" for node in range(nodes))
    rows = _curve(draw, pattern, world.num_ranks, peak, 2e-5 * nodes)
    run = ForeignRun(
        "nccl_tests", pattern=pattern.name, num_ranks=world.num_ranks, num_nodes=nodes, hosts=hosts, rows=rows
    )
    name = f"{instance.name}, {nodes} x {per_node}, {pattern.name}"
    return Trial(fault, name, page(run, machine_of(instance.name, (), hosts, per_node), pattern))


def _use(links: NodeLinks, world: World, pattern: Pattern, kind: str = "") -> LinkUse | None:
    return usual_use(links, world, pattern, Shape(world.num_ranks, 1 << 30, mode="pipelined"), kind)


def _efficiency(draw: random.Random, pattern: Pattern, per_node: int) -> float:
    return draw.uniform(0.55, 0.9) if pattern.name == "alltoall" and per_node > 1 else draw.uniform(0.78, 0.95)


def _curve(
    draw: random.Random, pattern: Pattern, num_ranks: int, peak: float, latency_s: float
) -> tuple[ForeignRow, ...]:
    """Rows of all sizes: latency plus bytes over the peak busbw."""
    rows = []
    for size in SIZES:
        factor = pattern.bus_factor(Shape(num_ranks, size)) or 1.0
        seconds = (latency_s + size * factor / peak) * draw.gauss(1, NOISE)
        busbw = size * factor / seconds
        rows.append(
            ForeignRow(size, time_s=seconds, algbw_bytes_per_s=size / seconds, busbw_bytes_per_s=busbw, num_wrong=0)
        )
    return tuple(rows)


def main() -> None:
    """Print the counts, and each cluster that was judged wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    all_, right = Counter[str](), Counter[str]()
    for trial in trials(args.seed, args.clusters):
        kind = trial.fault or "healthy"
        all_[kind] += 1
        right[kind] += trial.right
        if not trial.right:
            print(f"{kind}: {trial.name}: {trial.page.assessment.why.text}")
    for kind, number in sorted(all_.items()):
        print(f"{kind}: {right[kind]} of {number} right ({right[kind] / number:.1%})")


if __name__ == "__main__":
    main()
