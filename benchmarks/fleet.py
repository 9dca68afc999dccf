"""Are the hosts at fault named, and no others, from one log for each pair? Simulated clusters of runs of another tool.

    python -m benchmarks.fleet --clusters 1000

Each cluster draws its hosts (3 to 18), operations and ranks per node, noise of 1 to 5 %, perhaps two network tiers, and
a share of jobs that fail or are slow without any fault. Then a fault or none: one or two hosts that are slow with all
their partners, fail or are slow with many, or links. See `bench.diagnose.fleet`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from bench.diagnose.fleet import fleet_of
from bench.diagnose.host_evidence import FleetVerdict, verdict_of
from bench.logs.foreign import OK, TRUNCATED, ForeignRow, ForeignRun

FAULTS = ("none", "slow host", "two slow hosts", "failing host", "host slow with many", "link", "two links")
TOOL = "nccl_tests"


@dataclass
class SimulatedCluster:
    """What is true. `slow`, `failing`: of pairs, the share of the usual rate, and those without figures."""

    hosts: tuple[str, ...]
    fault: str
    operations: tuple[str, ...]
    kinds: tuple[int, ...]  # ranks per node
    noise: float
    stray: float  # share of jobs that fail, or are slow, without a fault
    tiers: float = 1.0  # what pairs in the same half of the hosts reach, of the others
    at_fault: set[str] = field(default_factory=set)
    links: set[tuple[str, ...]] = field(default_factory=set)
    slow: dict[tuple[str, ...], float] = field(default_factory=dict)
    failing: set[tuple[str, ...]] = field(default_factory=set)


def draw(fault: str, seed: int) -> SimulatedCluster:
    """A cluster with a fault, or with none."""
    rng = random.Random(f"{fault}{seed}")
    hosts = tuple(f"node{number:02d}" for number in range(1, rng.randint(5 if "two" in fault else 4, 18) + 1))
    cluster = SimulatedCluster(
        hosts,
        fault,
        tuple(rng.sample(("alltoall", "sendrecv", "allreduce"), rng.randint(1, 3))),
        tuple(rng.sample((1, 2, 4, 8), rng.randint(1, 3))),
        rng.uniform(0.01, 0.05),
        rng.choice((0.0, 0.0, 0.01, 0.02)),
        rng.choice((1.0, 1.0, 1.0, 1.05, 1.15)) if len(hosts) >= 8 else 1.0,
    )
    pairs = list(combinations(hosts, 2))
    if "link" in fault:
        for pair in rng.sample(pairs, 2 if "two" in fault else 1):
            cluster.links.add(pair)
            if rng.random() < 0.3:
                cluster.failing.add(pair)
            else:
                cluster.slow[pair] = rng.uniform(0.4, 0.7)
    elif fault != "none":
        for host in rng.sample(hosts, 2 if "two" in fault else 1):
            cluster.at_fault.add(host)
            mine = [pair for pair in pairs if host in pair]
            if "slow hosts" in fault or fault == "slow host":
                cluster.slow |= dict.fromkeys(mine, rng.uniform(0.4, 0.8))
                continue
            bad = rng.sample(mine, max(min(3, len(mine)), round(rng.uniform(0.5, 1.0) * len(mine))))
            if "failing" in fault:
                cluster.failing |= set(bad)
            else:
                cluster.slow |= {pair: rng.uniform(0.4, 0.7) for pair in bad}
    return cluster


def runs(cluster: SimulatedCluster, seed: int) -> Iterator[tuple[str, ForeignRun]]:
    """The runs of all pairs, each with the name of its file, as a reader would find them."""
    rng = random.Random(f"runs{seed}")
    half = set(cluster.hosts[: len(cluster.hosts) // 2])
    for kind in cluster.kinds:
        usual = {operation: rng.uniform(10e9, 80e9) for operation in cluster.operations}
        for pair in combinations(cluster.hosts, 2):
            stray = rng.random() < cluster.stray
            fails = pair in cluster.failing or (stray and rng.random() < 0.5)
            share = cluster.slow.get(pair, rng.uniform(0.4, 0.8) if stray else 1.0)
            tier = cluster.tiers if (pair[0] in half) == (pair[1] in half) else 1.0
            for operation in cluster.operations:
                rate = usual[operation] * share * tier * rng.lognormvariate(0.0, cluster.noise)
                row = ForeignRow(1 << 33, busbw_bytes_per_s=rate)
                yield (
                    f"logs/g{kind}_{pair[0]}_{pair[1]}.log",
                    ForeignRun(
                        TOOL,
                        pattern=operation,
                        num_ranks=2 * kind,
                        num_nodes=2,
                        status=TRUNCATED if fails else OK,
                        hosts=pair,
                        rows=() if fails else (row,),
                    ),
                )


def judged(fault: str, seed: int) -> tuple[SimulatedCluster, FleetVerdict]:
    """A cluster and the verdict on its runs."""
    cluster = draw(fault, seed)
    return cluster, verdict_of(fleet_of(runs(cluster, seed)))


def is_right(cluster: SimulatedCluster, verdict: FleetVerdict) -> bool:
    """Are all hosts at fault named first, and all links among the pairs that no host explains?"""
    named = [host.host for host in verdict.named]
    pairs = {pair.hosts for pair in verdict.pairs if not pair.explained_by}
    return cluster.at_fault.issubset(named[: len(cluster.at_fault)]) and cluster.links.issubset(pairs)


def falsely_named(cluster: SimulatedCluster, verdict: FleetVerdict) -> set[str]:
    """Hosts that are named (accused or suspected) without a fault."""
    return {host.host for host in verdict.named} - cluster.at_fault


def main() -> None:
    """Print, for each fault, how often it was named, and how often a sound host was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clusters", type=int, default=200, help="of each fault (200)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.monotonic()
    total: Counter[str] = Counter()
    for fault in FAULTS:
        found: Counter[str] = Counter()
        for seed in range(args.seed, args.seed + args.clusters):
            cluster, verdict = judged(fault, seed)
            found["right"] += is_right(cluster, verdict)
            found["false"] += bool(falsely_named(cluster, verdict))
            found["accused"] += any(host.at_fault and host.host not in cluster.at_fault for host in verdict.hosts)
            sound = cluster.links | set(cluster.slow) | cluster.failing
            found["pairs"] += not cluster.stray and any(
                set(pair.hosts) and pair.hosts not in sound for pair in verdict.pairs
            )
        total += found
        print(
            f"{fault:20} {args.clusters:5} clusters: "
            + ", ".join(f"{name} {found[name]}" for name in ("right", "false", "accused", "pairs"))
        )
    num = args.clusters * len(FAULTS)
    print(
        f"all: right {total['right'] / num:.1%}, a sound host named {total['false'] / num:.2%}, "
        f"accused {total['accused'] / num:.2%}"
    )
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
