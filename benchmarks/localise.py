"""Does localisation name the slow part and no other? Simulated clusters with noise, and the cost of a verdict.

    python -m benchmarks.localise --runs 300

A pair's bandwidth is the minimum over its two ends and its link, times lognormal noise of a few percent; now and then a
measurement is much too slow. Each run draws a new cluster, a fault (or none) and noise, and a ladder requests rounds
until it has a verdict. Then follow whole matrices of 1,024 hosts, and ladders there.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.diagnose.ladder import Pairs, next_rounds
from bench.diagnose.localise import STAGES, Diagnosis, PairSamples, Places, localise

SPEED = 0.8  # of a slow part
FAULTS = ("none", "host", "two hosts", "nic", "egress", "ingress", "link", "host and link", "racks", "rack", "many")


@dataclass
class Cluster:
    """The true cluster. Faults: (host, nic) -> (share of the speed when sending, when receiving); links by hosts."""

    places: Places
    ports: dict[tuple[str, str | None], tuple[float, float]] = field(default_factory=dict)
    links: dict[frozenset[str], float] = field(default_factory=dict)
    uplinks: dict[str, float] = field(default_factory=dict)
    across: float = 1.0  # bandwidth of pairs in different racks
    sigma: float = 0.03
    tail: float = 0.02  # share of measurements that are much too slow
    faulty_parts: set[tuple[str, str]] = field(default_factory=set)

    def measure(self, pairs: Pairs, noise: Any) -> list[float]:
        """Bytes per second of pairs that send at the same time."""
        places, rates = self.places, []
        for src, dst in pairs:
            a, b = places.hosts[src], places.hosts[dst]
            if a == b:
                rates.append(50e9 * float(np.exp(noise.normal(0, self.sigma))))
                continue
            ends = [self.ports.get((a, places.nics[src]), (1.0, 1.0))[0]]
            ends += [self.ports.get((b, places.nics[dst]), (1.0, 1.0))[1], self.links.get(frozenset((a, b)), 1.0)]
            if places.racks and places.racks[a] != places.racks[b]:
                shares = [self.uplinks.get(places.racks[host], 1.0) for host in (a, b)]
                ends.append(self.across * min(shares))
            slow = np.exp(-noise.exponential(0.3)) if noise.random() < self.tail else 1.0
            rates.append(12.5e9 * min(ends) * float(np.exp(noise.normal(0, self.sigma))) * slow)
        return rates


def climb(cluster: Cluster, seed: int) -> tuple[Diagnosis, int]:
    """(verdict of a ladder, number of its rounds)."""
    noise = np.random.default_rng(seed)
    rows: list[tuple[int, int, float, int, int]] = []
    step = 0
    while True:
        evidence = PairSamples.of(rows)
        asked = next_rounds(evidence, cluster.places, seed)
        if not asked:
            return localise(evidence, cluster.places), step
        for each in asked:
            rates = cluster.measure(each.pairs, noise)
            stage = STAGES.index(each.stage)
            rows += [(s, d, rate, step, stage) for (s, d), rate in zip(each.pairs, rates, strict=True)]
            step += 1


def draw(fault: str, seed: int, num_hosts: int | None = None) -> Cluster:
    """A random cluster with a fault of this kind."""
    dice = random.Random(f"{fault}-{seed}")
    few = fault in ("link", "host and link")
    num = num_hosts or dice.choice((4, 6, 8, 16) if few else (4, 8, 16, 64) if fault != "many" else (64, 256))
    num = max(num, 16) if fault in ("racks", "rack") else num
    nics = dice.choice((2, 4)) if fault == "nic" else dice.choice((1, 1, 2))
    per_host = nics * dice.choice((1, 2))
    hosts = tuple(f"h{rank // per_host}" for rank in range(num * per_host))
    cards = tuple(f"eth{rank % per_host % nics}" if nics > 1 else None for rank in range(num * per_host))
    racks = {f"h{k}": f"r{k // 4}" for k in range(num)} if fault in ("racks", "rack") else {}
    cluster = Cluster(Places(hosts, cards, racks), across=0.6 if racks else 1.0, sigma=dice.uniform(0.01, 0.04))
    names = list(dict.fromkeys(hosts))
    ports = [port for port in cluster.places.ports()]
    num_bad = {"two hosts": 2 if num > 4 else 1, "many": dice.randint(1, 8), "none": 0, "nic": 0, "link": 0, "rack": 0,
               "racks": dice.randint(0, 1)}.get(fault, 1)  # fmt: skip
    bad = dice.sample(names, num_bad)
    both = (1.0 if fault == "ingress" else SPEED, 1.0 if fault == "egress" else SPEED)
    for host in bad:
        # Traffic that leaves the rack is slower anyway, so a part must be even slower to be visible.
        share = tuple(each * cluster.across if each < 1 else 1.0 for each in both)
        cluster.ports |= {port: share for port in ports if port[0] == host}  # type: ignore[misc]
        cluster.faulty_parts.add(("host", host))
    if fault == "nic":
        host, nic = dice.choice(ports)
        cluster.ports[host, nic] = both
        cluster.faulty_parts.add(("nic", f"{host}:{nic}"))
    if fault in ("link", "host and link"):
        a, b = dice.sample([name for name in names if name not in bad], 2)
        cluster.links[frozenset((a, b))] = SPEED
        cluster.faulty_parts.add(("link", f"{a}-{b}"))
    if fault == "rack":
        rack = dice.choice(sorted(set(racks.values())))
        cluster.uplinks[rack] = SPEED
        cluster.faulty_parts.add(("link", f"uplink of {rack}"))
    return cluster


def named(verdict: Diagnosis) -> set[tuple[str, str]]:
    """(kind, name) of the parts that the verdict calls slow."""
    return {(one.kind, one.name) for one in verdict.accused}


def both_orders(names: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """A link has two names: h1-h2 and h2-h1."""
    return {(kind, "-".join(sorted(name.split("-"))) if kind == "link" else name) for kind, name in names}


def matrix(num_hosts: int, bad: Mapping[int, float], links: Mapping[tuple[int, int], float], repeats: int,
           seed: int) -> tuple[PairSamples, Places]:  # fmt: skip
    """Every pair in both directions, `repeats` times."""
    noise = np.random.default_rng(seed)
    speed = np.ones(num_hosts)
    speed[list(bad)] = list(bad.values())
    columns = []
    for repeat in range(repeats):
        rate = np.minimum.outer(speed, speed)
        for (a, b), share in links.items():
            rate[a, b] = rate[b, a] = share
        slow = np.where(noise.random(rate.shape) < 0.02, np.exp(-noise.exponential(0.3, rate.shape)), 1.0)
        rate = 12.5e9 * rate * np.exp(noise.normal(0, 0.03, rate.shape)) * slow
        src, dst = np.nonzero(~np.eye(num_hosts, dtype=bool))
        columns.append((src, dst, rate[src, dst], np.full(len(src), repeat), np.zeros(len(src), dtype=np.int64)))
    evidence = PairSamples(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    return evidence, Places(tuple(f"h{k}" for k in range(num_hosts)), (None,) * num_hosts)


def runs(num_runs: int, first_seed: int) -> tuple[int, int, int, Counter[str]]:
    """(number of slow parts, number of named ones, runs that accused a healthy part, misses by fault)."""
    parts = hits = false = 0
    missed: Counter[str] = Counter()
    for run in range(num_runs):
        fault = FAULTS[run % len(FAULTS)]
        cluster = draw(fault, first_seed + run)
        verdict, _ = climb(cluster, first_seed + run)
        true_parts, named_parts = both_orders(cluster.faulty_parts), both_orders(named(verdict))
        parts += len(true_parts)
        hits += len(true_parts & named_parts)
        if true_parts - named_parts:
            missed[f"missed: {fault}"] += len(true_parts - named_parts)
        if named_parts - true_parts:
            false += 1
            missed[f"false: {fault} {sorted(named_parts - true_parts)}"] += 1
    return parts, hits, false, missed


def main() -> None:
    """Print recall and false accusations, then seconds at 1,024 hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, metavar="N", help="simulated runs of the ladder (300)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the first run (1)")
    args = parser.parse_args()
    began = time.process_time()
    parts, hits, false, missed = runs(args.runs, args.seed)
    print(f"{args.runs} ladders in {time.process_time() - began:.1f} s: {hits} of {parts} slow parts named "
          f"({100 * hits / parts:.2f} %), others accused in {false} ({100 * false / args.runs:.2f} %)")  # fmt: skip
    for what, count in sorted(missed.items()):
        print(f"    {count} {what}")
    for num_bad in (0, 1, 8):
        cluster = draw("many", 7, 1024)
        cluster.ports, cluster.faulty_parts = {}, set()
        for host in random.Random(num_bad).sample(sorted(set(cluster.places.hosts)), num_bad):
            cluster.ports |= {port: (SPEED, SPEED) for port in cluster.places.ports() if port[0] == host}
            cluster.faulty_parts.add(("host", host))
        began = time.process_time()
        verdict, rounds = climb(cluster, num_bad)
        took = time.process_time() - began
        print(f"ladder, 1024 hosts, {num_bad} bad: {rounds} rounds, {took:.2f} s with the simulation, "
              f"right: {both_orders(named(verdict)) == cluster.faulty_parts}")  # fmt: skip
    for bad, links in (
        ({}, {}),
        ({3: SPEED}, {}),
        ({k * 100: SPEED for k in range(8)}, {(5, 9): SPEED, (17, 900): SPEED}),
    ):
        evidence, places = matrix(1024, bad, links, 3, 1)
        began = time.process_time()
        verdict = localise(evidence, places)
        took = time.process_time() - began
        true_parts = {("host", f"h{k}") for k in bad} | {("link", f"h{a}-h{b}") for a, b in links}
        print(f"matrix, 1024 hosts, {len(evidence)} rows, {len(bad)} bad hosts, {len(links)} bad links: {took:.2f} s, "
              f"right: {both_orders(named(verdict)) == both_orders(true_parts)}")  # fmt: skip


if __name__ == "__main__":
    main()
