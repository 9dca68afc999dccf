"""What runs of `feed` add to "input came late": the supply, the smallest change that is enough, or the command."""

from __future__ import annotations

from typing import Any

import pytest

from bench.core.codes import Coded
from bench.job.messages import CauseCode, ConfirmCode, EvidenceCode
from bench.job.model import Cause, Explained
from bench.job.storage import FeedEvidence, feeds_of_host, storage_evidence, with_storage
from bench.results.training_rows import Fed

NONE = dict.fromkeys(
    ("low_s", "high_s", "demand_bytes_per_s", "batch", "prefetch", "step_s", "busy_s", "wait_s", "predicted_wait_s")
)


def fed(rate: float, num_workers: int = 0, files: str = "raw", **more: Any) -> Fed:
    """A row that reads 100 MB at `rate`, a share of 1 GB/s; the CPU is its least bound."""
    given: dict[str, Any] = {
        "job": f"feed-{files}-{num_workers}",
        "files": files,
        "read_order": "sequential",
        "state": "cold",
        "num_workers": num_workers,
        "direct_io": False,
        "payload_bytes": 100_000_000,
        "record_bytes": 100_000,
        "num_records": 1000,
        "seconds": 0.1 / rate,
        "device_share": 1.0,
        "cpu_s_per_record": 1e-4,
        "disk_bytes_per_s": 3e9,
        "copy_bytes_per_s": 9e9,
        "core_bytes_per_s": 1e9,
        "num_launches": 1,
    }
    return Fed(**{**NONE, "demand_bytes_per_s": 1e9, **given, **more})


def said(*rows: Fed, demand: float | None = None) -> list[tuple[str, dict[str, Any]]]:
    return [(each.code, dict(each.facts)) for each in storage_evidence(FeedEvidence("results/x", rows, demand))]


def test_the_supply_and_the_fewest_workers_that_are_enough_are_told() -> None:
    (supply, better) = said(fed(0.6), fed(0.9, 1), fed(1.3, 4), fed(1.9, 8))
    assert supply[0] == EvidenceCode.STORAGE and supply[1]["headroom"] == pytest.approx(0.6)
    assert (supply[1]["num_workers"], supply[1]["limit"], supply[1]["source"]) == (0, "core", "results/x")
    assert better[0] == EvidenceCode.STORAGE_BETTER and better[1]["headroom"] == pytest.approx(1.3)
    assert (better[1]["num_workers"], better[1]["other_files"]) == (4, False)


def test_another_format_is_named_only_if_workers_do_not_suffice() -> None:
    assert said(fed(0.6), fed(0.7, 4), fed(2.0, 0, "npy"))[1][1]["other_files"]
    assert not said(fed(0.6), fed(1.1, 4), fed(2.0, 0, "npy"))[1][1]["other_files"]
    assert said(fed(0.6), fed(0.7, 4), fed(0.8, 0, "npy"))[1][1]["headroom"] == pytest.approx(0.8)


def test_a_storage_that_is_fast_enough_needs_no_remedy() -> None:
    assert [code for code, _ in said(fed(1.5), fed(3.0, 4))] == [EvidenceCode.STORAGE]


def test_the_users_demand_replaces_that_of_the_rows_and_warm_rows_count_last() -> None:
    assert said(fed(0.6), demand=0.5e9)[0][1]["headroom"] == pytest.approx(1.2)
    assert said(fed(5.0, state="warm"), fed(0.6))[0][1]["headroom"] == pytest.approx(0.6)
    assert said(fed(5.0, state="warm"))[0][1]["headroom"] == pytest.approx(5.0)


def test_without_a_demand_or_a_run_the_command_that_would_tell_is_named() -> None:
    assert [code for code, _ in said(fed(1.0, demand_bytes_per_s=None))] == [EvidenceCode.STORAGE_WITHOUT_DEMAND]
    assert [code for code, _ in said(fed(1.0, step_s=0.1))] == [EvidenceCode.STORAGE_WITHOUT_DEMAND]
    assert [each.code for each in storage_evidence(None)] == [EvidenceCode.STORAGE_UNKNOWN]


def test_only_late_input_gets_the_evidence() -> None:
    causes = tuple(
        Cause(code, 1.0, 0.9, 1.1, 1.0, Coded(code), (), Coded.of(ConfirmCode.INPUT))
        for code in (CauseCode.LATE_INPUT, CauseCode.LATE_RANK)
    )
    job: Any = None
    found = with_storage(Explained(job, (), 1.0, (), (), (), causes, 0.1), FeedEvidence("x", (fed(0.6),)))
    assert [len(cause.evidence) for cause in found.causes] == [1, 0]


def test_the_newest_run_of_one_of_the_jobs_hosts_is_found() -> None:
    runs = [
        ("new", ["other"], (fed(1),)),
        ("empty", ["h1"], ()),
        ("own", ["h1"], (fed(2),)),
        ("old", ["h1"], (fed(3),)),
    ]
    found = feeds_of_host(runs, ["h0", "h1"])
    assert found is not None and found.source == "own"
    assert feeds_of_host(runs, ["h7"]) is None
