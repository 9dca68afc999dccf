"""Synthetic documents, as a real run would give them: several patterns, libraries and worlds, seeded noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from matplotlib.figure import Figure

from bench.core import plugins
from bench.core.record import Header, known
from bench.figures import _origin, _style
from bench.results import model
from bench.results.document import Document, Summary
from bench.results.headline import NamedRun

GB = 1e9
SIZES = tuple(1 << power for power in range(4, 31, 4))
FACTORS: dict[str, Callable[[int], float | None]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "pairs": lambda n: 1.0,
    "barrier": lambda n: None,
    "feed": lambda n: None,
}


def launch_name(job: str, launch: int) -> str:
    """The name of a launch of a job, as a run gives it."""
    return f"{job}-launch{launch}" if launch > 1 else job


def header(job: str, pattern: str, transport: str, **overrides: Any) -> Header:
    given: dict[str, Any] = {
        "job": job,
        "case": (pattern, "--transport", transport),
        "pattern": pattern,
        "transport": transport,
        "dtype": "float32",
        "reduce_op": "sum",
        "root": None,
        "direction": None,
        "topology": "world",
        "num_ranks": 16,
        "num_nodes": 2,
        "ranks_per_node": 8,
        "clock": "device",
        "modelled": False,
        "started": "2026-01-02T03:04:05+00:00",
    }
    return Header(**(given | overrides))


def summary(of: Header, mode: str, payload: int, median: float, spread: float = 0.02, **overrides: Any) -> Summary:
    factor = FACTORS[of.pattern](known(of.num_ranks))
    algbw = payload / median if payload else None
    busbw = algbw * factor if algbw and factor else None
    bound = overrides.get("bound_bytes_per_s")
    given: dict[str, Any] = {
        "job": of.job,
        "pattern": of.pattern,
        "transport": of.transport,
        "mode": mode,
        "dtype": of.dtype,
        "reduce_op": of.reduce_op,
        "root": of.root,
        "in_place": False,
        "direction": of.direction,
        "group": "world",
        "src": None,
        "dst": None,
        "requested_bytes": payload,
        "also_requested_bytes": (),
        "payload_bytes": payload,
        "num_ranks": of.num_ranks,
        "num_nodes": of.num_nodes,
        "num_samples": 100,
        "num_effective": 60.0,
        "median_s": median,
        "ci_low_s": median * (1 - spread),
        "ci_high_s": median * (1 + spread),
        "min_s": median * (1 - 4 * spread),
        "max_s": median * (1 + 30 * spread),
        "p95_s": median * (1 + 9 * spread) if mode == "isolated" else None,
        "p99_s": None,
        "last_arriver_s": None,
        "slowest_rank": None,
        "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": busbw,
        "bound_bytes_per_s": None,
        "bound_name": None,
        "bound_kind": None,
        "bound_fraction": busbw / bound if bound and busbw else None,
        "floor_s": None,
        "floor_name": None,
        "verified": None if of.modelled else True,
        "num_wrong": None if of.modelled else 0,
        "modelled": of.modelled,
        "algorithm": None,
        "topology": of.topology,
        "cache": "cold",
        "stop_reason": "ci",
        "flags": ("modelled",) if of.modelled else (),
    }
    return Summary(**(given | overrides))


def sweep(
    of: Header,
    *,
    alpha: float,
    rate: float,
    bound: tuple[float, str, str] | None = None,
    floor: float | None = None,
    sizes: Iterable[int] = SIZES,
    noise: float = 0.02,
    modes: Iterable[str] = ("isolated", "pipelined"),
    **overrides: Any,
) -> list[Summary]:
    """Rows of a library with this latency (s) and rate (bytes/s of busbw); some do not converge."""
    draw = random.Random(f"{of.job}")
    factor = FACTORS[of.pattern](known(of.num_ranks)) or 0.0
    noise = 0.0 if of.modelled else noise
    rows = []
    for payload in sizes:
        for mode in modes:
            seconds = (alpha if mode == "isolated" else alpha / 3) + payload * factor / rate
            seconds *= math.exp(noise * draw.gauss(0, 1))
            flags = ("not-converged",) if noise and draw.random() < 0.1 else ()
            given: dict[str, Any] = {"flags": flags} if flags else {}
            if bound:
                given |= {"bound_bytes_per_s": bound[0], "bound_name": bound[1], "bound_kind": bound[2]}
            if floor:
                given |= {"floor_s": floor, "floor_name": "4 steps of one message", "floor_kind": "links"}
            rows.append(summary(of, mode, payload, seconds, noise * (3 if flags else 1), **(given | overrides)))
    return rows


def document(runs: Iterable[tuple[Header, list[Summary]]], **overrides: Any) -> Document:
    pairs = list(runs)
    headers = {of.job: of for of, _ in pairs}
    rows = tuple(row for _, rows in pairs for row in rows)
    return Document("bench.document/1", headers, rows, **overrides)


NIC = (93.75 * GB, "NIC, 4 x 100 Gbit/s", "hard")
NVLINK = (300 * GB, "NVLink port", "hard")


def two_libraries() -> Document:
    """Two patterns and a barrier over two libraries, 16 ranks on 2 nodes."""
    runs = []
    for pattern, slow in (("allreduce", 1.0), ("alltoall", 0.55)):
        for transport, alpha, rate in (("nccl", 28e-6, 80 * GB), ("mpi_cuda", 14e-6, 41 * GB)):
            of = header(f"{pattern}-{transport}", pattern, transport)
            runs.append((of, sweep(of, alpha=alpha, rate=rate * slow, bound=NIC, floor=9e-6)))
    for transport, alpha in (("nccl", 21e-6), ("mpi_cuda", 8e-6)):
        of = header(f"barrier-{transport}", "barrier", transport)
        runs.append((of, sweep(of, alpha=alpha, rate=GB, sizes=[0], modes=["isolated"])))
    return document(runs)


def modelled_p4d() -> Document:
    """The model on one node (NVLink bound 300 GB/s) and on two (NIC bound 93.75 GB/s)."""
    runs = []
    for nodes, alpha, rate, bound in ((1, 15e-6, 298 * GB, NVLINK), (2, 30e-6, 93 * GB, NIC)):
        for pattern in ("allreduce", "alltoall"):
            of = header(
                f"{pattern}-{nodes}n",
                pattern,
                "model",
                modelled=True,
                clock="virtual",
                instance="p4d.24xlarge",
                num_nodes=nodes,
                num_ranks=8 * nodes,
            )
            runs.append((of, sweep(of, alpha=alpha, rate=rate, bound=bound, floor=alpha)))
    return document(runs)


def pairs_of(num_ranks: int, two_way: bool = False) -> Document:
    """All pairs of ranks on nodes of 4; rank 5's path to the other node is slow."""
    draw = random.Random(7)
    of = header(
        "pairs-nccl",
        "pairs",
        "nccl",
        topology="pairs",
        num_ranks=num_ranks,
        ranks_per_node=4,
        num_nodes=num_ranks // 4,
        direction="two-way" if two_way else "one-way",
    )
    rows = []
    for src in range(num_ranks):
        for dst in range(num_ranks):
            if src == dst or (two_way and dst < src):
                continue
            far = src // 4 != dst // 4
            rate = (11.2 if far else 230) * GB * (0.4 if far and 5 in (src, dst) else 1)
            for payload in (8, 1 << 20, 1 << 28):
                for mode in ("isolated", "pipelined"):
                    seconds = ((18e-6 if far else 9e-6) + payload / rate) * math.exp(0.03 * draw.gauss(0, 1))
                    rows.append(summary(of, mode, payload, seconds, group=f"{src}-{dst}", src=src, dst=dst))
    return document([(of, rows)])


def scaling() -> Document:
    """allreduce and alltoall on 2 to 16 ranks over two libraries."""
    runs = []
    for pattern in ("allreduce", "alltoall"):
        for transport, rate in (("nccl", 230 * GB), ("gloo", 9 * GB)):
            for ranks in (2, 8, 16):
                nodes = max(ranks // 8, 1)
                of = header(f"{pattern}-{transport}-{ranks}", pattern, transport, num_ranks=ranks, num_nodes=nodes)
                real = min(rate, 82 * GB) if nodes > 1 else rate * (1 - 0.03 * math.log2(ranks))
                bound = (NIC if nodes > 1 else NVLINK) if transport == "nccl" else None
                runs.append((of, sweep(of, alpha=6e-6 * math.log2(ranks), rate=real, bound=bound)))
    return document(runs)


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "two_libraries": two_libraries,
    "modelled_p4d": modelled_p4d,
    "pairs_of_8": lambda: pairs_of(8),
    "pairs_of_32_two_way": lambda: pairs_of(32, two_way=True),
    "scaling": scaling,
    "empty": lambda: document([]),
}


@dataclass(frozen=True)
class Drawn:
    """A synthetic document with its fits, and its figures by kind and name, drawn once for all tests."""

    document: Document
    figures: dict[str, dict[str, Figure]]


ONLY = {"scaling": ["scaling"], "pairs_of_8": ["pairs"]}  # other documents have figures of the other kinds

DrawnDocument = Callable[[str], Drawn]


@cache
def _drawn(name: str) -> Drawn:
    document = DOCUMENTS[name]()
    document = replace(document, fits=model.fits(document.headers, document.summaries))
    figures = {}
    for kind in ONLY.get(name, plugins.names("figure")):
        figures[kind] = dict(plugins.load("figure", kind).draw(document))
        for figure in figures[kind].values():
            _style.sign(figure, _origin.of_document(document, NamedRun("results/a-run", cluster="a-cluster")))
            figure.draw_without_rendering()
    return Drawn(document, figures)


@pytest.fixture(params=sorted(DOCUMENTS), scope="module")  # its tests are neighbours, in one worker
def drawn(request: pytest.FixtureRequest) -> Drawn:
    """Each synthetic document in turn, with its figures."""
    return _drawn(request.param)


@pytest.fixture
def drawn_document() -> DrawnDocument:
    """The synthetic document of a name with its figures, which a test does not change."""
    return _drawn


@pytest.fixture
def documents() -> dict[str, Callable[[], Document]]:
    """The makers of synthetic documents by name."""
    return DOCUMENTS
