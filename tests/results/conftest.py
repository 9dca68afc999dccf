"""A summary and a small document to print: two sizes in both modes, one of them wrong, one skipped, one failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.core.codes import Coded
from bench.core.record import Header
from bench.results.document import Document, Summary


@pytest.fixture
def a_summary() -> Callable[..., Summary]:
    """`a_summary(**overrides)`: 1 MiB of allreduce over MPI, 4 ranks on 2 nodes, isolated, 125 us."""

    def make(**overrides: Any) -> Summary:
        given: dict[str, Any] = {
            "job": "allreduce-mpi",
            "pattern": "allreduce",
            "transport": "mpi",
            "mode": "isolated",
            "dtype": "float32",
            "reduce_op": "sum",
            "root": None,
            "in_place": False,
            "direction": None,
            "group": "world",
            "src": None,
            "dst": None,
            "requested_bytes": 1 << 20,
            "also_requested_bytes": (),
            "payload_bytes": 1 << 20,
            "num_ranks": 4,
            "num_nodes": 2,
            "num_samples": 100,
            "num_effective": 80.5,
            "median_s": 125e-6,
            "ci_low_s": 124e-6,
            "ci_high_s": 126.5e-6,
            "min_s": 120e-6,
            "max_s": 300e-6,
            "p95_s": 150e-6,
            "p99_s": None,
            "last_arriver_s": 110e-6,
            "slowest_rank": None,
            "algbw_bytes_per_s": 8e9,
            "busbw_bytes_per_s": 12e9,
            "bound_bytes_per_s": 12.5e9,
            "bound_name": "NIC",
            "bound_kind": "hard",
            "bound_fraction": 0.96,
            "floor_s": 4e-6,
            "floor_name": "2 messages",
            "verified": True,
            "num_wrong": 0,
            "modelled": False,
            "algorithm": None,
            "topology": "world",
            "cache": "cold",
            "stop_reason": "ci",
            "flags": (),
        }
        return Summary(**(given | overrides))

    return make


@pytest.fixture
def a_document(a_header: Callable[..., Header], a_summary: Callable[..., Summary]) -> Document:
    """One job with everything that a page can show: wrong data, skipped and failed rows, notes."""
    wrong: dict[str, Any] = {
        "verified": False,
        "num_wrong": 3,
        "algbw_bytes_per_s": None,
        "busbw_bytes_per_s": None,
        "bound_fraction": None,
        "flags": ("invalid",),
        "mode": "pipelined",
    }
    rows = (
        a_summary(
            requested_bytes=8,
            also_requested_bytes=(16,),
            payload_bytes=64,
            median_s=5.125e-6,
            ci_low_s=None,
            ci_high_s=None,
            p95_s=None,
            flags=("few-samples",),
        ),
        a_summary(
            requested_bytes=8,
            payload_bytes=64,
            mode="pipelined",
            median_s=2e-6,
            algbw_bytes_per_s=32e6,
            busbw_bytes_per_s=48e6,
            bound_fraction=0.00384,
        ),
        a_summary(flags=("not-converged", "outliers"), slowest_rank=3),
        a_summary(mode="pipelined"),
        a_summary(requested_bytes=1 << 21, payload_bytes=1 << 21),
        a_summary(requested_bytes=1 << 21, payload_bytes=1 << 21, **wrong),
    )
    row = {"job": "allreduce-mpi", "pattern": "allreduce", "transport": "mpi", "mode": "isolated", "group": "world"}
    skipped = tuple(
        row | {"requested_bytes": size, "payload_bytes": size, "reason": "buffers do not fit in memory"}
        for size in (1 << 30, 1 << 31)
    )
    failed = row | {"requested_bytes": 1 << 22, "what": "no progress for 60 s", "rank": 3, "host": "host1"}
    headers = {"allreduce-mpi": a_header(job="allreduce-mpi")}
    return Document("bench.document/1", headers, rows, skipped, (failed,), (Coded.uncoded("one launch"),))
