"""Synthetic logs of all pairs of a cluster, as a queue of jobs writes them: one file per pair, two operations in each.

The layout is that of synthetic_nccl.py, with invented figures. A host or pair may be slow, and a pair may fail.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from itertools import combinations
from pathlib import Path

from tests.logs.synthetic_nccl import H100, TITLE, UNITS, footer, head, row

SIZES = (1 << 30, 1 << 32)
OPERATIONS = ("alltoall", "sendrecv")


def log_of_pair(
    hosts: tuple[str, str], rate: float, ranks_per_node: int = 1, fails: str = "", list_hosts: bool = True
) -> str:
    """Two tables of about `rate` GB/s of busbw; none after the operation `fails`, whose table has no row."""
    ranks = 2 * ranks_per_node
    lines: list[str] = []
    for operation in OPERATIONS:
        lines += ["# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807"]
        lines += [f"# Collective test starting: {operation}_perf", head(SIZES, 4), "#", "# Using devices"]
        for rank in range(ranks if list_hosts else 0):
            host = hosts[rank // ranks_per_node]
            lines.append(
                f"#  Rank {rank:2d} Group  0 Pid {3000 + rank} on {host} device {rank:2d} [0x1{rank % 8}] {H100}"
            )
        lines += ["#", TITLE, UNITS]
        if operation == fails:
            break
        factor = (ranks - 1) / ranks if operation == "alltoall" else 1.0
        table = [row(operation, size, ranks, rate=rate / factor) for size in SIZES]
        lines += [*table, *footer(table), f"# Collective test concluded: {operation}_perf", "#"]
    return "\n".join(lines) + "\n"


def write_cluster(
    folder: Path,
    num_hosts: int,
    seed: int = 1,
    slow: Mapping[str, float] | None = None,
    slow_pairs: Mapping[tuple[str, str], float] | None = None,
    failing: Mapping[tuple[str, str], str] | None = None,
    absent: Collection[tuple[str, str]] = (),
    nameless: Collection[tuple[str, str]] = (),
    kinds: tuple[int, ...] = (1,),
) -> list[str]:
    """Logs of all pairs of node01, node02, ...; the names of the hosts.

    `slow`: share of the usual rate by host; `slow_pairs`: by pair. `failing`: the operation that a pair fails in.
    `absent`: pairs without a log; `nameless`: pairs whose log lists no hosts.
    """
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    hosts = [f"node{number:02d}" for number in range(1, num_hosts + 1)]
    for kind in kinds:
        for pair in combinations(hosts, 2):
            share = min((slow or {}).get(host, 1.0) for host in pair) * (slow_pairs or {}).get(pair, 1.0)
            rate = 40.0 * share * rng.lognormvariate(0.0, 0.015)
            text = log_of_pair(pair, rate, kind, (failing or {}).get(pair, ""), pair not in nameless)
            if pair not in absent:
                (folder / f"nccl_N2_G{kind}_{pair[0]}_{pair[1]}.log").write_text(text, encoding="utf-8")
    return hosts
