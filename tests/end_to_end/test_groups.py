"""Groups at once and the same groups one at a time: real processes over MPI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.results import summary
from bench.store import jsonl

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]


@pytest.mark.slow
@pytest.mark.mpi
def test_each_group_has_a_factor_over_mpi(run: Run, mpirun: Start, tmp_path: Path) -> None:
    told = []
    for name, topology in (("once", "groups of 2"), ("turn", "groups of 2 in turn")):
        file = tmp_path / f"{name}.jsonl"
        ran = run(
            *mpirun(4),
            "-m",
            "bench.allreduce",
            "--sizes",
            "8",
            "--mode",
            "isolated",
            "-n",
            "5",
            "-w",
            "1",
            "--topology",
            topology,
            "--job",
            name,
            "--records",
            str(file),
        )
        assert ran.code == 0, ran.err
        (attempt,) = jsonl.read(file).attempts
        assert [(record.group, record.verified) for record in attempt.records] == [("group0", True), ("group1", True)]
        told.append((name, attempt.header, attempt.records))
    both = summary.document(told).sharings
    assert [(one.job, one.group, one.num_groups, one.num_ranks) for one in both] == [
        ("once", "group0", 2, 2),
        ("once", "group1", 2, 2),
    ]
    assert all(one.factor == pytest.approx(one.at_once_s / one.alone_s) and not one.modelled for one in both)
