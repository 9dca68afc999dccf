"""Bounds in figures belong to the curves that they limit, and every picture says to which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from bench.figures import bandwidth
from bench.results import curves
from bench.results.bound_curves import BoundCurve, bound_curves
from bench.results.curves import CurveLabel
from bench.results.document import Document, Summary
from tests.figures.conftest import NIC, NVLINK, SIZES, document, header, sweep
from tests.figures.layout import all_texts, clipped, overlapping

GB = 1e9
LARGE = 1 << 20
Documents = dict[str, Callable[[], Document]]


def bounds_of(of: Document) -> list[BoundCurve]:
    """The bounds of the curves of one pattern."""
    return bound_curves(curves.lines(of, curves.valid(of, "pipelined")))


def two_algorithms() -> Document:
    """An allreduce whose tree of small sizes has a low traffic bound, and whose ring has the bound of the NIC."""
    of = header("allreduce-nccl", "allreduce", "nccl")
    rows = [
        replace(row, algorithm="ring", bound_bytes_per_s=NIC[0], bound_name=NIC[1], bound_kind="hard")
        if row.payload_bytes >= LARGE
        else replace(row, algorithm="tree", bound_bytes_per_s=5 * GB, bound_name="NIC as used", bound_kind="traffic")
        for row in sweep(of, alpha=100e-6, rate=80 * GB)
    ]
    return document([(of, rows)])


def two_orders(far: float = 6.25 * GB) -> Document:
    """Two orders of the same ranks, each with its own rate over the same NICs."""
    runs: list[tuple[object, list[Summary]]] = []
    for job, rate, more in (("plain", 12.5 * GB, ()), ("interleaved", far, ("--order", "interleaved"))):
        of = header(f"allreduce-{job}", "allreduce", "nccl", case=("allreduce", "--transport", "nccl", *more))
        runs.append((of, sweep(of, alpha=30e-6, rate=0.98 * rate, bound=(rate, "NIC as used", "traffic"))))
    return document(runs)  # type: ignore[arg-type]


def drawn(of: Document) -> Figure:
    """The figure of bandwidths, laid out."""
    [(_, figure)] = bandwidth.draw(of)
    figure.draw_without_rendering()
    return figure


def test_a_traffic_bound_is_drawn_only_at_the_sizes_of_its_algorithm() -> None:
    [hard, traffic] = bounds_of(two_algorithms())
    assert (hard.kind, hard.sizes, hard.where, hard.whole) == ("hard", SIZES, "", True)
    assert traffic.sizes == tuple(size for size in SIZES if size < LARGE) and not traffic.whole
    assert traffic.where == "up to 64K"
    [panel] = drawn(two_algorithms()).axes
    dashed = next(line for line in panel.lines if line.get_linestyle() == "--")
    assert np.max(dashed.get_xdata()) < LARGE


@pytest.mark.parametrize("make", [two_algorithms, two_orders])
def test_no_curve_lies_above_its_bound(make: Callable[[], Document]) -> None:
    of = make()
    lines = curves.lines(of, curves.valid(of, "pipelined"))
    every = bound_curves(lines)
    for label, points in lines.items():
        own = [bound for bound in every if not bound.whose or bound.whose in str(label)]
        assert own
        for point in points:
            limits = [
                bound.rates[bound.sizes.index(point.payload_bytes)]
                for bound in own
                if point.payload_bytes in bound.sizes
            ]
            assert point.busbw() <= 1.1 * min(limits)


def test_bounds_of_two_cases_with_equal_ranks_are_two_lines_with_names_that_differ() -> None:
    [plain, interleaved] = bounds_of(two_orders())
    assert (max(plain.rates), max(interleaved.rates)) == (12.5, 6.25)
    assert interleaved.whose == "order interleaved" and str(plain) != str(interleaved)
    figure = drawn(two_orders())
    assert {str(plain), str(interleaved)} <= set(all_texts(figure))
    assert (overlapping(figure), clipped(figure)) == ([], [])


def test_equal_bounds_of_two_cases_are_one_line() -> None:
    [both] = bounds_of(two_orders(far=12.5 * GB))
    assert both.whose == "" and both.whole


def test_a_bound_of_some_curves_says_of_which(documents: Documents) -> None:
    of = documents["modelled_p4d"]()
    rows = [row for row in of.summaries if row.pattern == "allreduce"]
    every = bounds_of(replace(of, summaries=tuple(rows)))
    assert [(bound.name, bound.whose) for bound in every] == [(NVLINK[1], "8 ranks"), (NIC[1], "16 ranks, 2 nodes")]


def test_references_measured_twice_are_one_line(documents: Documents) -> None:
    of = documents["two_libraries"]()
    rates = {"nccl": 17.42 * GB, "mpi_cuda": 17.51 * GB}
    rows = tuple(
        replace(row, bound_name="memory copy", bound_kind="reference", bound_bytes_per_s=rates[row.transport])
        for row in of.summaries
        if row.pattern == "allreduce"
    )
    [copy] = bounds_of(replace(of, summaries=rows))
    assert max(copy.rates) == 17.51
    rates["mpi_cuda"] = 30 * GB
    far = tuple(replace(row, bound_bytes_per_s=rates[row.transport]) for row in rows)
    assert [bound.whose for bound in bounds_of(replace(of, summaries=far))] == ["nccl", "mpi_cuda"]


def test_bounds_that_are_left_out_are_counted() -> None:
    runs = []
    for ranks in range(2, 11):
        of = header(f"allreduce-{ranks}", "allreduce", "nccl", num_ranks=ranks, num_nodes=1)
        runs.append((of, sweep(of, alpha=30e-6, rate=ranks * GB, bound=(ranks * GB, "NVLink as used", "traffic"))))
    assert any("not drawn: 3 more bounds" in text for text in all_texts(drawn(document(runs))))


def test_intervals_are_inside_the_panel(documents: Documents) -> None:
    of = documents["two_libraries"]()
    wide = tuple(
        replace(row, ci_low_s=(row.median_s or 0) / 50, ci_high_s=50 * (row.median_s or 0)) for row in of.summaries
    )
    for panel in drawn(replace(of, summaries=wide)).axes:
        low, high = panel.get_ylim()
        ends = [y for bars in panel.collections for path in bars.get_paths() for y in np.asarray(path.vertices)[:, 1]]
        assert low < min(ends) and max(ends) < high


def test_a_bound_is_named_by_settings_and_not_by_the_text_of_a_label() -> None:
    of = two_orders()
    [one, other] = curves.lines(of, curves.valid(of, "pipelined")).values()
    named = {
        CurveLabel(("nccl", "order a (b)"), own_name="log", modelled=True): one,
        CurveLabel(("nccl", "order [c]"), own_name="log", modelled=True): other,
    }
    assert [bound.whose for bound in bound_curves(named)] == ["order a (b)", "order [c]"]
