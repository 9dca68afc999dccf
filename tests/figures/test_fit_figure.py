"""The figure of fitted models: the line over the points, n1/2 marked, and no headline where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.text import Text

from bench.figures import _style, fit
from bench.results import model
from bench.results.document import Document
from tests.facts import holds

Documents = dict[str, Callable[[], Document]]


def fitted(document: Document) -> Document:
    """The document with the models of its curves."""
    return replace(document, fits=model.fits(document.headers, document.summaries))


def texts(figure: Figure) -> list[str]:
    return [found.get_text() for found in figure.findobj(Text) if isinstance(found, Text) and found.get_text()]


def lines(panel: Axes, marker: str) -> list[Line2D]:
    """The drawn lines of a marker; of 'None' the fitted ones."""
    return [line for line in panel.lines if line.get_marker() == marker and np.size(line.get_xdata())]


@pytest.mark.filterwarnings("error")
def test_it_draws_what_was_fitted_and_keeps_to_the_form_of_all_figures(a_document: Document, tmp_path: Path) -> None:
    document = fitted(a_document)
    drawn = fit.draw(document)
    assert bool(drawn) is fit.applies(document) is bool(document.fits)
    for name, figure in drawn:
        png, _ = _style.save(figure, tmp_path / name)
        assert imread(png).shape[1] == 1000
        shown = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
        assert all(float(text.get_fontsize()) >= 9 for text in shown)
        assert not any("^" in text.get_text() for text in shown)


def test_a_document_without_fits_has_no_figure(documents: Documents) -> None:
    document = documents["two_libraries"]()
    assert not fit.applies(replace(document, fits=())) and fit.draw(replace(document, fits=())) == []


def test_each_mode_has_a_figure_and_each_pattern_a_log_log_panel(documents: Documents) -> None:
    drawn = dict(fit.draw(fitted(documents["two_libraries"]())))
    assert list(drawn) == ["fit-isolated", "fit-pipelined"]
    for figure in drawn.values():
        assert [axes.get_title() for axes in figure.axes] == ["allreduce", "allgather", "alltoall", "broadcast"]
        assert all((axes.get_xscale(), axes.get_yscale()) == ("log", "log") for axes in figure.axes)


def test_the_line_lies_on_the_points_and_the_tick_on_the_line_at_latency_times_bandwidth(documents: Documents) -> None:
    document = fitted(documents["modelled_p4d"]())
    [(_, figure), _] = fit.draw(document)
    panel = figure.axes[0]
    of = next(each for each in document.fits if each.pattern == "allreduce" and each.mode == "isolated")
    [points, *_] = lines(panel, "o")
    [model_line, *_] = lines(panel, "None")
    assert np.asarray(points.get_ydata())[[0, -1]] == pytest.approx(
        np.asarray(model_line.get_ydata())[[0, -1]], rel=0.01
    )
    half = lines(panel, "|")[0].get_xydata()
    assert np.asarray(half)[0] == pytest.approx((of.segments[0].half_bytes, 2 * of.segments[0].latency_s))
    assert "15 us, 170 GB/s, n1/2 2.44 MiB" in texts(figure)
    assert any(holds(text, "modelled", "not measured") for text in texts(figure)) and "MODELLED" in texts(figure)


def test_what_does_not_fit_is_dotted_has_no_tick_and_no_headline(documents: Documents) -> None:
    document = fitted(documents["two_libraries"]())
    fits = tuple(replace(each, fits=False, max_residual=0.23, max_residual_bytes=65536) for each in document.fits)
    [(_, figure), _] = fit.draw(replace(document, fits=fits))
    words = texts(figure)
    assert sum(holds(text, "not fit", "23 %", "64 KiB") for text in words) == 8
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
    assert len(lines(panel, "o")) == 1
    assert any(holds(text, "bars:", "lowest", "highest") for text in texts(figure))
    assert not any("launch2" in text or "[" in text for text in texts(figure))


def test_of_several_groups_the_slowest_is_drawn(documents: Documents) -> None:
    document = documents["two_libraries"]()
    slow = tuple(
        replace(row, group="b", median_s=2 * (row.median_s or 0), ci_low_s=None, ci_high_s=None)
        for row in document.summaries
        if row.pattern == "alltoall"
    )
    [(_, figure), _] = fit.draw(fitted(replace(document, summaries=(*document.summaries, *slow))))
    panel = next(axes for axes in figure.axes if "alltoall" in axes.get_title())
    assert holds(panel.get_title(), "alltoall,", "slowest", "2 groups")
    slowest = max(row.median_s or 0 for row in slow if row.job == "alltoall-nccl" and row.mode == "isolated")
    assert max(np.asarray(lines(panel, "o")[0].get_ydata())) == pytest.approx(slowest)
