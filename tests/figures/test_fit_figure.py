"""The figure of fitted models: the line over the points, n1/2 marked, and no headline where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from bench.core.record import Flag
from bench.figures import fit
from bench.results import looks, model
from bench.results.document import Document
from tests.facts import holds
from tests.figures.conftest import DrawnDocument
from tests.figures.layout import all_texts

Documents = dict[str, Callable[[], Document]]


def fitted(document: Document) -> Document:
    """The document with the models of its curves."""
    return replace(document, fits=model.fits(document.headers, document.summaries))


def lines(panel: Axes, marker: str) -> list[Line2D]:
    """The drawn lines of a marker; of 'None' the fitted ones."""
    return [line for line in panel.lines if line.get_marker() == marker and np.size(line.get_xdata())]


def test_a_document_without_fits_has_no_figure(documents: Documents) -> None:
    document = documents["two_libraries"]()
    assert not fit.applies(replace(document, fits=())) and fit.draw(replace(document, fits=())) == []


def test_each_mode_has_a_figure_and_each_pattern_a_log_log_panel(drawn_document: DrawnDocument) -> None:
    drawn = drawn_document("two_libraries").figures["fit"]
    assert list(drawn) == ["fit-isolated", "fit-pipelined"]
    for figure in drawn.values():
        assert [axes.get_title() for axes in figure.axes] == ["allreduce", "alltoall"]
        assert all((axes.get_xscale(), axes.get_yscale()) == ("log", "log") for axes in figure.axes)


def test_the_line_lies_on_the_points_and_the_tick_on_the_line_at_latency_times_bandwidth(
    drawn_document: DrawnDocument,
) -> None:
    drawn = drawn_document("modelled_p4d")
    document, figure = drawn.document, drawn.figures["fit"]["fit-isolated"]
    panel = figure.axes[0]
    of = next(each for each in document.fits if each.pattern == "allreduce" and each.mode == "isolated")
    [points, *_] = lines(panel, looks.of_transport("model")[1])
    [model_line, *_] = lines(panel, "None")
    assert np.asarray(points.get_ydata())[[0, -1]] == pytest.approx(
        np.asarray(model_line.get_ydata())[[0, -1]], rel=0.01
    )
    half = lines(panel, "|")[0].get_xydata()
    assert np.asarray(half)[0] == pytest.approx((of.segments[0].half_bytes, 2 * of.segments[0].latency_s))
    assert "model, 8 ranks: 15 us, 170 GB/s, n1/2 2.44 MiB" in all_texts(figure)
    assert "MODELLED" in all_texts(figure)
    assert any(text.startswith("MODELLED, not measured") for text in all_texts(figure))


def test_what_does_not_fit_is_dotted_has_no_tick_and_no_headline(drawn_document: DrawnDocument) -> None:
    document = drawn_document("two_libraries").document
    fits = tuple(replace(each, fits=False, max_residual=0.23, max_residual_bytes=65536) for each in document.fits)
    [(_, figure), _] = fit.draw(replace(document, fits=fits))
    words = all_texts(figure)
    assert sum(holds(text, "not fit", "23 %", "64 KiB") for text in words) == 4
    assert not any("GB/s" in text for text in words)
    for panel in figure.axes:
        assert all(line.get_linestyle() == ":" for line in lines(panel, "None")) and not lines(panel, "|")


def test_launches_are_one_curve_with_their_range_as_bars(documents: Documents) -> None:
    document = documents["two_libraries"]()
    of, *_ = document.headers.values()
    headers = {of.job: of, f"{of.job}-launch2": replace(of, launch=2), f"{of.job}-launch3": replace(of, launch=3)}
    own = [row for row in document.summaries if row.job == of.job]
    rows = tuple(
        replace(row, job=job, median_s=(row.median_s or 0) * factor)
        for job, factor in zip(headers, (1.0, 1.1, 1.3), strict=True)
        for row in own
    )
    [(_, figure), _] = fit.draw(fitted(replace(document, headers=headers, summaries=rows)))
    [panel] = figure.axes
    assert len({line.get_color() for line in lines(panel, "o")}) == 1
    assert any(holds(text, "bars:", "lowest", "highest") for text in all_texts(figure))
    assert not any("launch2" in text or "[" in text for text in all_texts(figure))


def test_of_several_groups_the_slowest_is_drawn(documents: Documents) -> None:
    document = documents["two_libraries"]()
    slow = tuple(
        replace(row, group="b", median_s=2 * (row.median_s or 0), ci_low_s=None, ci_high_s=None)
        for row in document.summaries
        if row.pattern == "alltoall"
    )
    [(_, figure), _] = fit.draw(fitted(replace(document, summaries=(*document.summaries, *slow))))
    panel = next(axes for axes in figure.axes if "alltoall" in axes.get_title())
    assert holds(panel.get_title(), "alltoall,", "slowest group")
    slowest = max(row.median_s or 0 for row in slow if row.job == "alltoall-nccl" and row.mode == "isolated")
    assert max(np.asarray(lines(panel, "o")[0].get_ydata())) == pytest.approx(slowest)


def test_a_point_that_did_not_converge_is_hollow(documents: Documents) -> None:
    document = documents["two_libraries"]()
    first = next(row for row in document.summaries if row.pattern == "allreduce" and row.mode == "isolated")
    rows = tuple(
        replace(row, flags=(Flag.NOT_CONVERGED,))
        if row.payload_bytes == first.payload_bytes
        else replace(row, flags=())
        for row in document.summaries
    )
    [(_, figure), _] = fit.draw(fitted(replace(document, summaries=rows)))
    hollow = [
        line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white" and np.size(line.get_xdata())
    ]
    assert {float(x) for line in hollow for x in np.ravel(line.get_xdata())} == {float(first.payload_bytes)}


def test_each_tick_has_its_number_in_the_headline(documents: Documents) -> None:
    document = fitted(documents["two_libraries"]())
    [one, *rest] = [each for each in document.fits if each.mode == "isolated" and each.pattern == "allreduce"]
    [whole] = one.segments
    parts = tuple(
        replace(whole, first_bytes=first, last_bytes=last)
        for first, last in ((16, 1 << 12), (1 << 16, whole.last_bytes))
    )
    [(_, figure)] = fit.draw(replace(document, fits=(replace(one, segments=parts), *rest)))
    ticks = len(lines(figure.axes[0], "|"))
    [legend] = [panel.get_legend() for panel in figure.axes]
    assert legend is not None
    headlines = [text.get_text() for text in legend.get_texts()]
    assert ticks == len(headlines) == sum("n1/2" in words for words in headlines) == 2
    assert [words.partition(":")[0] for words in headlines] == ["nccl", "mpi_cuda"]
