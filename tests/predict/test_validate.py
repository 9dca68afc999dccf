"""Validation: a system's own rows never predict it; errors and coverage count each system once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.predict import predict, validate
from bench.predict.predict import EfficiencyEvidence, evidence_of
from bench.predict.predict_page import COVERED_SMALL
from bench.predict.validate import HeldOutRow, summary_of

KNOWN = predict.published()


def row_of(system: str, predicted: float, measured: float = 1.0, high: float = 2.0) -> HeldOutRow:
    return HeldOutRow(
        system, "", "allreduce", "nvswitch", 1, 8, 1 << 30, measured, 0.5, predicted, high, True, 1.5, "published"
    )


@pytest.mark.slow
def test_rows_of_a_system_do_not_change_its_own_predictions() -> None:
    name = "Standard_ND96isr_H100_v5"
    changed = evidence_of(
        replace(each, seconds={size: 3 * seconds for size, seconds in each.seconds.items()})
        if each.system == name
        else each
        for each in KNOWN.rows
    )
    changed = EfficiencyEvidence(changed.rows, changed.curves, KNOWN.copies)
    known_rows, changed_rows = validate.held_out_rows(KNOWN), validate.held_out_rows(changed)
    before = [row.predicted_s for row in known_rows if row.system == name]
    after = [row.predicted_s for row in changed_rows if row.system == name]
    assert before == after and len(before) >= 5
    others = [row.predicted_s for row in changed_rows if row.system == "p5.48xlarge"]
    assert others != [row.predicted_s for row in known_rows if row.system == "p5.48xlarge"]


def test_system_with_many_rows_counts_once() -> None:
    rows = [row_of("many", 2.0)] * 9 + [row_of("one", 1.1), row_of("two", 1.1, high=1.05)]
    found = summary_of(("",), [*rows[:9], rows[9], replace(rows[10], high_s=0.9)])
    assert found.num_systems == 3 and found.num_rows == 11
    assert found.error == pytest.approx(0.1) and found.worst_error == pytest.approx(1.0)
    assert found.baseline_error == pytest.approx(0.5)
    assert found.covered == pytest.approx(2 / 3) and found.covered_low < 2 / 3 < found.covered_high


def test_every_published_row_is_held_out_and_large_ones_are_covered() -> None:
    rows = validate.held_out_rows(KNOWN)
    assert len(rows) == sum(len(each.seconds) for each in KNOWN.rows)
    large = summary_of(("",), [row for row in rows if row.payload_bytes >= validate.LARGE_BYTES])
    # 90 % is promised. With so few systems, only an upper end below 90 % would refute it.
    assert large.covered_high >= predict.CONFIDENCE
    assert large.num_systems >= 14


def test_systems_better_than_the_baseline_are_counted() -> None:
    found = summary_of(
        ("",),
        [row_of("ours", 1.1), row_of("theirs", 1.9), replace(row_of("alone", 1.0), baseline_s=None)],
    )
    assert (found.num_better, found.num_compared) == (1, 2)


def test_printed_coverage_of_small_messages_is_the_validated_one() -> None:
    small = summary_of(("",), [row for row in validate.held_out_rows(KNOWN) if row.payload_bytes < 1 << 20])
    assert small.covered == pytest.approx(COVERED_SMALL, abs=0.005) and small.covered < predict.CONFIDENCE


def test_wilsons_interval() -> None:
    low, high = validate._wilson(0.9, 10)
    z2 = 1.6448536**2
    for end in (low, high):  # at the ends, the share is z standard errors away: (0.9 - p)^2 = z^2 p (1 - p) / n
        assert (0.9 - end) ** 2 == pytest.approx(z2 * end * (1 - end) / 10)
