"""The ladder's last rung is the training step, and rungs that a machine cannot measure are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.page import dots, rungs
from bench.page.messages import PageCode
from bench.results.document import Document
from bench.results.summary import DocumentBuilder
from tests.results.test_steps import ARGV, trained

Make = Callable[..., Any]
MIB = 1 << 20


@pytest.fixture
def document(a_header: Make, a_record: Make) -> Document:
    rows = DocumentBuilder()
    step = a_header(pattern="step", transport="gloo", case=ARGV, num_ranks=2)
    rows.add("step-gloo", step, trained(a_record))
    case = ("allreduce", "--transport", "gloo", "--mode", "pipelined")
    allreduce = a_header(pattern="allreduce", transport="gloo", case=case, num_ranks=2)
    rows.add("allreduce-gloo", allreduce, a_record(mode="pipelined", num_ranks=2))
    large = {"payload_bytes": 16 * MIB, "requested_bytes": (16 * MIB,), "rank_bytes": 16.0 * MIB}
    rows.add("allreduce-gloo", allreduce, a_record(mode="pipelined", num_ranks=2, **large))
    found = rows.document({"step-gloo": step, "allreduce-gloo": allreduce})
    left_out: dict[str, Any] = {
        "what": "local_copy, peer_copy cuda_copy",
        "reason": "no NVIDIA GPU was found",
        "code": "no-gpu",
    }
    left_out |= {"patterns": ["local_copy", "peer_copy"]}
    of_step = replace(found.steps[0], bucket_bytes=(MIB, MIB), bucket_s=(0.002, 0.004))
    return replace(found, steps=(of_step,), unplanned=(left_out,))


def test_a_step_is_a_rung_with_the_allreduce_as_its_reference(document: Document) -> None:
    below, step = rungs.rungs(document)
    assert (below.kind, step.kind) == ("collective", "step")
    assert step.row.busbw_bytes_per_s == pytest.approx(MIB / 0.002)
    (alone,) = (row for row in document.summaries if (row.pattern, row.payload_bytes) == ("allreduce", MIB))
    assert below.row.payload_bytes == 16 * MIB  # the fastest; a bucket is compared with a message of its size
    assert (step.row.payload_bytes, step.row.bound_bytes_per_s) == (MIB, alone.busbw_bytes_per_s)
    assert step.reason.code == PageCode.IN_STEP


def test_only_the_fastest_step_is_a_rung_and_steps_alone_are_no_ladder(document: Document) -> None:
    slower = replace(document.steps[0], job="step-late", bucket_s=(0.2, 0.4))
    several = replace(document, steps=(*document.steps, slower))
    [_, fastest] = rungs.rungs(several)
    assert fastest.row.busbw_bytes_per_s == pytest.approx(MIB / 0.002)
    assert fastest.row.job == document.steps[0].job
    alone = replace(several, summaries=tuple(row for row in document.summaries if row.pattern == "step"))
    assert str(rungs.draw(several)) and not str(rungs.draw(alone))


def test_rungs_without_a_row_are_named_with_the_reason(document: Document) -> None:
    kinds = [line.partition(":")[0] for line in rungs.missing(document)]
    assert kinds == ["copy", "peer"]
    assert "NVIDIA" in str(rungs.draw(document))


@pytest.mark.parametrize(
    "rate, bound, kind, code",
    [
        (0.96, 2.0, "hard", PageCode.NOT_BELOW),
        (0.4, 0.5, "hard", PageCode.LOWER_BOUND),
        (0.4, 2.0, "hard", PageCode.SOFTWARE),
        (0.05, 0.5, "hard", PageCode.SOFTWARE),
        (0.4, 0.5, "reference", PageCode.BELOW_UNKNOWN),
        (0.4, None, None, PageCode.BELOW_UNKNOWN),
    ],
)
def test_the_rung_below_is_faster_because_of_a_bound_or_of_software(
    document: Document, rate: float, bound: float | None, kind: str | None, code: PageCode
) -> None:
    (collective, _) = rungs.rungs(document)
    below = rungs.Rung("copy", replace(collective.row, busbw_bytes_per_s=1e9))
    row = replace(
        collective.row,
        busbw_bytes_per_s=rate * 1e9,
        bound_kind=kind,
        bound_bytes_per_s=bound and bound * 1e9,
        bound_name=kind and "NIC",
    )
    found = rungs.against(rungs.Rung("collective", row), below)
    assert found.code == code
    assert found.facts.get("share") == (pytest.approx(0.5) if code == PageCode.LOWER_BOUND else None)


@pytest.mark.parametrize("rate", [1.1999999999999997e-06, 0.0011999999999999997, 119.99999999999999])
def test_an_axis_begins_at_a_power_of_ten_although_the_logarithm_is_rounded_up(rate: float) -> None:
    row = dots.DotRow(kind="", name="", words="", colour="#0072B2", bytes_per_s=rate * 1e9)
    assert "<circle" in dots.draw(dots.DotPicture("one", "", "", "", [row]))


def test_a_rung_of_several_launches_is_that_of_the_middle_launch(a_header: Make, a_record: Make) -> None:
    case = ("allreduce", "--transport", "gloo", "--mode", "pipelined")
    rows, headers = DocumentBuilder(), {}
    for launch, job in enumerate(("a", "a-launch2", "a-launch3"), 1):
        headers[job] = a_header(pattern="allreduce", transport="gloo", case=case, num_ranks=2, launch=launch)
        rows.add(job, headers[job], a_record(mode="pipelined", num_ranks=2))
    found = rows.document(headers)
    rates = (9e9, 2e9, 5e9)
    summaries = [
        replace(row, busbw_bytes_per_s=rate, median_s=1 / rate)
        for row, rate in zip(found.summaries, rates, strict=True)
    ]
    [rung] = rungs.rungs(replace(found, summaries=tuple(summaries)))
    assert rung.row.busbw_bytes_per_s == 5e9
