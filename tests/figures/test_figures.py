"""Every figure draws from every synthetic document, and shows what the methodology asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from bench.core import plugins
from bench.core.record import Flag, Header, known
from bench.figures import _origin, _style, bandwidth, latency, pairs, scaling
from bench.hardware import catalogue
from bench.results import curves
from bench.results import looks as looks_table
from bench.results.compared_rows import Scaling
from bench.results.curves import CurveLabel, CurvePoint
from bench.results.document import Document, Summary
from bench.results.headline import NamedRun
from tests.facts import holds
from tests.figures.conftest import SIZES, Drawn, DrawnDocument, launch_name
from tests.figures.layout import all_texts, clipped, overlapping, series

Documents = dict[str, Callable[[], Document]]


def cells(axes: Axes) -> Any:
    """The values of a map, NaN where it is blank."""
    values: Any = axes.images[0].get_array()
    return np.ma.filled(values, np.nan)


@pytest.mark.filterwarnings("error")
def test_every_figure_draws_what_it_says_applies(drawn: Drawn) -> None:
    for kind, figures in drawn.figures.items():
        assert bool(figures) is plugins.load("figure", kind).applies(drawn.document)


def test_texts_have_nine_points_and_neither_overlap_nor_leave_the_figure(drawn: Drawn) -> None:
    for figures in drawn.figures.values():
        for name, figure in figures.items():
            shown = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
            assert all(float(text.get_fontsize()) >= 9 for text in shown)
            assert not any("^" in text.get_text() for text in shown)  # exponents are set smaller than their base
            assert (name, overlapping(figure), clipped(figure)) == (name, [], [])


def test_a_figure_names_its_kind_machine_cluster_run_and_date(drawn: Drawn) -> None:
    modelled = all(header.modelled for header in drawn.document.headers.values())
    for figures in drawn.figures.values():
        for figure in figures.values():
            [origin] = [text.get_text() for text in figure.texts if text.get_gid() == "origin"]
            assert origin.startswith("MODELLED, not measured | " if modelled else "MEASURED | ")
            assert holds(origin, "ranks", "cluster a-cluster", "run a-run", "2026-01-02")


def test_a_logarithmic_axis_says_so(drawn: Drawn) -> None:
    for figures in drawn.figures.values():
        for axes in (axes for figure in figures.values() for axes in figure.axes):
            for axis in (axes.xaxis, axes.yaxis):
                if axis.get_scale() == "log":
                    assert "logarithmic" in axis.get_label_text()


def test_a_series_has_a_look_of_its_own_which_is_the_same_in_every_figure(drawn: Drawn) -> None:
    looks: dict[str, tuple[str, str, str]] = {}
    for kind, figures in drawn.figures.items():
        for figure in figures.values():
            shown = {label: look for label, look in series(figure).items() if look[0] != looks_table.GREY}
            assert len(set(shown.values())) == len(shown)
            if kind in ("bandwidth", "latency", "fit"):
                assert {**looks, **shown} == {**shown, **looks}
                looks |= shown


def test_a_transport_has_one_colour_and_marker_that_no_machine_has() -> None:
    transports = {looks_table.of_transport(name)[0] for name in plugins.names("transport")}
    machines = {name: looks_table.of_machine(name) for name in catalogue.instances()}
    assert not transports & {colour for colour, _ in machines.values()}
    of_gpu: dict[str, list[tuple[str, str]]] = {}
    for name, look in machines.items():
        of_gpu.setdefault(catalogue.instance(name).gpu, []).append(look)
    assert all(len(set(looks)) == len(looks) for looks in of_gpu.values() if len(looks) <= 8)


def test_files_have_200_dots_per_inch_real_text_and_a_description(
    drawn_document: DrawnDocument, tmp_path: Path
) -> None:
    figure = drawn_document("modelled_p4d").figures["latency"]["latency"]
    png, svg, pdf = _style.save(figure, tmp_path / "plots" / "latency", ["png", "svg", "pdf"])
    pixels = imread(png)
    assert pixels.shape[1] == 2000 and float(np.ptp(pixels)) > 0
    assert pdf.read_bytes().startswith(b"%PDF")
    root = ElementTree.parse(svg).getroot()
    name = "{http://www.w3.org/2000/svg}"
    words = ["".join(each.itertext()) for each in root.iter(f"{name}text")]
    assert "Time of an isolated operation, by size" in words and "time (logarithmic)" in words
    assert root.get("role") == "img" and root.get("aria-labelledby") == "title desc"
    title, description = root.find(f"{name}title"), root.find(f"{name}desc")
    assert title is not None and title.text == "Time of an isolated operation, by size"
    assert description is not None and holds(description.text or "", "MODELLED", "run a-run", "allreduce", "model")


def test_bandwidth_is_log_log_and_names_each_bound_with_its_kind(drawn_document: DrawnDocument) -> None:
    figure = drawn_document("modelled_p4d").figures["bandwidth"]["bandwidth"]
    assert all((axes.get_xscale(), axes.get_yscale()) == ("log", "log") for axes in figure.axes)
    for words in ("NVLink port, 8 ranks: 300 GB/s (hard)", "NIC, 4 x 100 Gbit/s, 16 ranks, 2 nodes: 93.75 GB/s (hard)"):
        assert all_texts(figure).count(words) == 2


def test_a_bound_far_above_the_data_is_inside_the_panel(documents: Documents) -> None:
    document = documents["two_libraries"]()
    slow = [replace(row, busbw_bytes_per_s=1e6) for row in document.summaries if row.busbw_bytes_per_s]
    [(_, figure)] = bandwidth.draw(replace(document, summaries=tuple(slow)))
    assert all(axes.get_ylim()[0] < 1e-3 and axes.get_ylim()[1] > 93.75 for axes in figure.axes)


def test_launches_are_merged_into_their_median_interval_and_spread(documents: Documents) -> None:
    document = documents["two_libraries"]()
    of = document.headers["allreduce-nccl"]
    factors = (1.0, 1.1, 1.3, 0.9, 1.2)
    names = {at: launch_name(of.job, at) for at in range(1, 6)}
    headers = {name: replace(of, job=name, launch=at) for at, name in names.items()}
    own = [row for row in document.summaries if row.job == of.job]
    rows = tuple(
        replace(row, job=job, median_s=(row.median_s or 0) * factor)
        for job, factor in zip(headers, factors, strict=True)
        for row in own
    )
    merged = replace(document, headers=headers, summaries=rows)
    [line] = curves.lines(merged, curves.valid(merged, "isolated")).values()
    [point] = [point for point in line if point.payload_bytes == SIZES[0]]
    once = own[0].median_s or 0
    assert point.seconds == pytest.approx(1.1 * once)
    assert point.spread == pytest.approx((0.9 * once, 1.3 * once))
    for module in (latency, bandwidth):
        [(_, figure)] = module.draw(merged)
        [panel] = figure.axes
        assert len(panel.collections) >= 1 and next(iter(series(figure))) == "nccl"
        assert any(holds(text, "median of up to 5 launches", "slowest launch") for text in all_texts(figure))


def test_what_others_published_is_beside_the_rows_with_its_source(drawn_document: DrawnDocument) -> None:
    figure = drawn_document("two_libraries").figures["published"]["published"]
    looks = series(figure)
    of_others = {label: look for label, look in looks.items() if label.endswith(", published")}
    assert of_others and all(
        look[:2] == looks_table.of_machine(label.removesuffix(", published")) for label, look in of_others.items()
    )
    assert looks["nccl"][:2] == looks_table.of_transport("nccl")
    assert any(text.startswith("dotted, hollow:") and "sources: " in text for text in all_texts(figure))


def test_a_bound_that_changes_with_size_is_one_curve_with_one_name(documents: Documents) -> None:
    document = documents["two_libraries"]()
    rows = tuple(
        replace(row, bound_name="memory copy", bound_kind="reference", bound_bytes_per_s=60e9 + 1e9 * index)
        for index, row in enumerate(row for row in document.summaries if row.job == "allreduce-nccl")
    )
    [(_, figure)] = bandwidth.draw(replace(document, summaries=rows))
    [named] = [text for text in all_texts(figure) if "memory copy" in text]
    assert holds(named, "61 to 73 GB/s", "reference")
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [len(np.asarray(line.get_xdata())) for line in dashed] == [len(SIZES)]


@pytest.mark.parametrize("module", [bandwidth, latency, scaling])
def test_what_is_modelled_says_so_in_title_legend_and_panels(module: object, documents: Documents) -> None:
    [(_, figure)] = module.draw(documents["modelled_p4d"]())  # type: ignore[attr-defined]
    words = all_texts(figure)
    assert words.count("MODELLED") == 2
    assert any(text.startswith("MODELLED, not measured") for text in words)
    assert any(text.startswith("model") and text.endswith("(modelled: ideal links)") for text in words)


def test_what_is_measured_does_not_say_modelled(documents: Documents) -> None:
    [(_, figure)] = bandwidth.draw(documents["two_libraries"]())
    assert not any("modelled" in text.lower() for text in all_texts(figure))


def test_rows_that_did_not_converge_are_hollow(documents: Documents) -> None:
    document = documents["two_libraries"]()
    rows = tuple(replace(row, flags=("not-converged",)) for row in document.summaries)
    for rows_now, hollow in ((rows, True), (tuple(replace(row, flags=()) for row in rows), False)):
        [(_, figure)] = bandwidth.draw(replace(document, summaries=rows_now))
        circles = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "o"]
        drawn = [line for line in circles if np.size(line.get_xdata())]
        assert drawn and all((line.get_markerfacecolor() == "white") is hollow for line in drawn)
        assert ("hollow: not converged" in all_texts(figure)) is hollow


def test_wrong_data_are_not_drawn_but_counted(documents: Documents) -> None:
    document = documents["two_libraries"]()
    wrong = replace(document.summaries[-3], verified=False, busbw_bytes_per_s=None, flags=("invalid",))
    rows = (*document.summaries, replace(wrong, mode="pipelined"))
    [(_, figure)] = bandwidth.draw(replace(document, summaries=rows))
    assert any("INVALID: 1 rows" in text for text in all_texts(figure))
    slow = replace(wrong, mode="isolated", median_s=1e6)
    [(_, figure)] = latency.draw(replace(document, summaries=(*document.summaries, slow)))
    assert all(axes.get_ylim()[1] < 10 for axes in figure.axes)


def test_a_pattern_without_a_size_is_said_below_the_latencies(documents: Documents) -> None:
    [(_, figure)] = latency.draw(documents["two_libraries"]())
    assert any(holds(text, "barrier", "nccl:") for text in all_texts(figure))
    assert "barrier" not in all_texts(figure)


def test_one_way_pairs_leave_the_other_direction_grey_and_two_way_pairs_fill_it(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    one_way = tuple(row for row in document.summaries if (row.src or 0) < (row.dst or 0))
    [(name, figure)] = pairs.draw(replace(document, summaries=one_way))
    rates, times = (cells(axes) for axes in figure.axes[:2])
    assert name == "pairs-pairs-nccl"
    assert np.isnan(rates[5, 0]) and not np.isnan(rates[0, 5])
    assert times[5, 0] == times[0, 5]  # half a round trip holds for both
    assert any(holds(text, "grey:", "measured") for text in all_texts(figure))
    two_way = tuple(replace(row, direction="two-way") for row in one_way)
    [(_, figure)] = pairs.draw(replace(document, summaries=two_way))
    rates = cells(figure.axes[0])
    assert rates[5, 0] == rates[0, 5]
    assert not any("grey" in text for text in all_texts(figure))


def test_pairs_of_a_thousand_ranks_share_cells_in_which_the_worst_pair_shows(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    [(job, head)] = document.headers.items()
    rate = next(row for row in document.summaries if row.mode == "pipelined")
    time = next(row for row in document.summaries if row.mode == "isolated")
    good = [replace(row, src=4, dst=701, busbw_bytes_per_s=10e9, median_s=1e-5) for row in (rate, time)]
    bad = [replace(row, src=5, dst=700, busbw_bytes_per_s=1e9, median_s=1e-4) for row in (rate, time)]
    wide = replace(head, num_ranks=1024, num_nodes=512, ranks_per_node=2)
    for rows in ((*good, *bad), (*bad, *good)):
        [(_, figure)] = pairs.draw(replace(document, headers={job: wide}, summaries=rows))
        rates, times = (cells(axes) for axes in figure.axes[:2])
        assert rates.shape == times.shape == (512, 512)
        assert (rates[2, 350], times[2, 350]) == pytest.approx((1.0, 100.0))
        assert any(holds(text, "cell", "worst", "2 x 2") for text in all_texts(figure))


def test_what_is_slow_is_framed_and_named(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    of = document.headers["pairs-nccl"]
    both = [
        replace(
            row,
            src=a,
            dst=b,
            group=f"{a}-{b}",
            mode="pipelined",
            direction="one-way",
            ci_low_s=row.payload_bytes / rate,
            median_s=row.payload_bytes / rate,
            busbw_bytes_per_s=rate,
        )
        for row in document.summaries[:1]
        for a in range(8)
        for b in range(8)
        if a != b
        for _ in range(2)
        for rate in (5e8 if 6 in (a, b) else 1e9,)
    ]
    hosts = tuple({"host": f"h{rank}", "local_rank": 0} for rank in range(8))
    headers = {of.job: replace(of, direction="one-way", ranks=hosts, clock="host", ranks_per_node=1, num_nodes=8)}
    [(_, figure)] = pairs.draw(replace(document, headers=headers, summaries=tuple(both)))
    frames = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert sorted((patch.get_y(), patch.get_height()) for patch in frames) == [(-0.5, 8), (5.5, 1)]
    assert any(holds(text, "framed", "0.9", "h6") for text in all_texts(figure))


def test_pairs_write_their_values_where_cells_have_room(documents: Documents) -> None:
    [(_, small)] = pairs.draw(documents["pairs_of_8"]())
    [(_, large)] = pairs.draw(documents["pairs_of_32_two_way"]())
    assert len(small.axes[0].texts) == 8 * 7
    assert not large.axes[0].texts


def test_values_of_sixteen_ranks_stay_inside_their_cells(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    [(job, head)] = document.headers.items()
    rate = next(row for row in document.summaries if row.mode == "pipelined")
    rows = tuple(replace(rate, src=a, dst=b, busbw_bytes_per_s=294e9) for a in range(16) for b in range(16) if a != b)
    wide = {job: replace(head, num_ranks=16, num_nodes=2, ranks_per_node=8)}
    [(_, figure)] = pairs.draw(replace(document, headers=wide, summaries=rows))
    figure.draw_without_rendering()
    panel = figure.axes[0]
    cell = panel.get_window_extent().width / 16
    values = [text for text in panel.texts if text.get_gid() != "facts"]
    assert len(values) == 16 * 15
    assert max(text.get_window_extent().width for text in values) < cell


def test_a_map_says_its_median_its_worst_and_its_best_pair(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    rate = next(row for row in document.summaries if row.mode == "pipelined")
    ends = [(a, b) for a in range(8) for b in range(8) if a != b]
    speeds = {(2, 5): 40e9, (6, 1): 90e9}
    rows = tuple(replace(rate, src=a, dst=b, busbw_bytes_per_s=speeds.get((a, b), 50e9)) for a, b in ends)
    [(_, figure)] = pairs.draw(replace(document, summaries=rows))
    figure.draw_without_rendering()
    [facts] = [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "facts"]
    assert facts.split("\n")[0] == "56 pairs" and holds(facts, "40.0 from 2 to 5", "90.0 from 6 to 1")
    assert "median 50.0 GB/s" in str(figure.get_label()) and (overlapping(figure), clipped(figure)) == ([], [])


@pytest.mark.parametrize(
    ("direction", "how"),
    [
        ("d2d", "one-way"),
        ("bidirectional", "per direction"),
        ("bidirectional_sum", "per direction"),
        ("local", "inside"),
    ],
)
def test_a_map_of_another_tool_says_which_way_it_copied(documents: Documents, direction: str, how: str) -> None:
    document = documents["pairs_of_8"]()
    rows = tuple(replace(row, direction=direction) for row in document.summaries)
    [(_, figure)] = pairs.draw(replace(document, summaries=rows))
    assert how in figure.axes[0].get_title()


def test_a_map_has_the_name_of_its_table_or_of_its_job_beside_other_logs(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    [(job, head)] = document.headers.items()
    one = replace(head, imported={"source": "a.txt"}, facts={"matrix": "copies_ce"})
    other = replace(one, job="b-copies_ce", imported={"source": "b.txt"})
    assert curves.map_name(document, head) == f"pairs over {head.transport}"
    assert curves.map_name(replace(document, headers={job: one}), one) == f"{head.transport}, copies_ce"
    both = replace(document, headers={job: one, other.job: other})
    assert curves.map_name(both, other) == f"{head.transport}, b-copies_ce"


def test_panels_name_their_best_point(documents: Documents) -> None:
    document = documents["two_libraries"]()
    for draw, words in ((bandwidth.draw, "up to"), (latency.draw, "from")):
        [(_, figure)] = draw(document)
        for panel in figure.axes:
            assert words in panel.get_title() and panel.get_title().endswith(")")
    lines = curves.lines(document, curves.valid(document, "pipelined"))
    best = max(point.busbw() for points in lines.values() for point in points)
    assert f" {best:.3g} GB/s" in curves.best_rate(lines)


def test_the_best_point_is_measured_and_not_above_its_bound(documents: Documents) -> None:
    document = documents["two_libraries"]()
    lines = curves.lines(document, curves.valid(document, "pipelined"))
    [(first, points), (second, _), *_] = lines.items()

    def flagged(*flags: Flag) -> list[CurvePoint]:
        rows = [replace(point.first, flags=flags, busbw_bytes_per_s=9e14, median_s=1e-9) for point in points]
        return [replace(point, rows=(row,), seconds=1e-9) for point, row in zip(points, rows, strict=True)]

    best = [curves.best_rate({first: points, second: points}), curves.best_time({first: points, second: points})]
    wrong = [
        {second: flagged(Flag.ABOVE_BOUND), first: points},
        {replace(second, modelled=True): flagged(), first: points},
    ]
    assert [[curves.best_rate(each), curves.best_time(each)] for each in wrong] == [best] * 2
    noisy = {second: flagged(Flag.NOT_CONVERGED), first: points}
    assert all(holds(words, "not converged") for words in (curves.best_rate(noisy), curves.best_time(noisy)))
    only = curves.best_rate(
        {replace(second, modelled=True): flagged(Flag.ABOVE_BOUND), replace(first, modelled=True): []}
    )
    assert holds(only, "bound")


def test_the_best_point_names_what_distinguishes_its_curve(documents: Documents) -> None:
    document = documents["two_libraries"]()
    points = next(iter(curves.lines(document, curves.valid(document, "pipelined")).values()))
    small, large = CurveLabel(("mpi", "2 ranks", "size")), CurveLabel(("mpi", "4 ranks", "size"))
    assert "(2 ranks, " in curves.best_rate({small: points, large: points[:1]})
    assert "(mpi, " in curves.best_rate({CurveLabel(("mpi",)): points, large: points[:1]})
    assert "ranks" not in curves.best_rate({small: points})


def test_scaling_names_the_curve_of_its_result_if_there_are_several(documents: Documents) -> None:
    document = documents["scaling"]()
    one = replace(document, summaries=tuple(row for row in document.summaries if row.transport == "nccl"))
    for shown, named in ((one, False), (document, True)):
        [(_, figure), *_] = scaling.draw(shown)
        assert [panel.get_title().endswith("(nccl)") for panel in figure.axes] == [named] * len(figure.axes)
    modelled = tuple(replace(row, modelled=row.transport == "nccl") for row in document.summaries)
    [(_, figure), *_] = scaling.draw(replace(document, summaries=modelled))
    assert not any("nccl" in panel.get_title() for panel in figure.axes)


def test_simultaneous_groups_are_no_smaller_worlds(documents: Documents) -> None:
    document = documents["scaling"]()
    fewest = min(known(row.num_ranks) for row in document.summaries)
    rows = tuple(replace(row, topology="node") if known(row.num_ranks) == fewest else row for row in document.summaries)
    [(_, figure)] = scaling.draw(replace(document, summaries=rows))
    assert all(min(axes.get_xticks()) > fewest for axes in figure.axes)


def test_a_gap_in_a_line_is_explained(documents: Documents) -> None:
    document = documents["two_libraries"]()
    mixed = tuple(
        replace(row, algorithm="tree" if row.payload_bytes < 1 << 16 else "ring") for row in document.summaries
    )
    for figures in (latency, bandwidth):
        [(_, plain)], [(_, broken)] = (figures.draw(each) for each in (document, replace(document, summaries=mixed)))
        assert any(holds(text, "algorithm changes") for text in all_texts(broken))
        assert not any(holds(text, "algorithm changes") for text in all_texts(plain))


def test_scaling_takes_the_largest_size_that_all_worlds_have(documents: Documents) -> None:
    document = documents["scaling"]()
    rows = tuple(row for row in document.summaries if known(row.num_ranks) < 16 or row.payload_bytes <= 1 << 20)
    [(_, figure)] = scaling.draw(replace(document, summaries=rows))
    assert any(text.startswith("allreduce, 1 MiB:") for text in all_texts(figure))
    assert any(holds(text, "bandwidth of the fewest") for text in all_texts(figure))


def test_scaling_needs_more_than_one_world(documents: Documents) -> None:
    assert not scaling.applies(documents["two_libraries"]())
    assert scaling.applies(documents["scaling"]())


def test_efficiencies_of_nodes_and_of_ranks_are_never_joined(documents: Documents) -> None:
    document = documents["modelled_p4d"]()
    assert len(scaling.draw(document)) == 1  # nothing has a reference
    base: dict[str, Any] = dict.fromkeys(field.name for field in fields(Scaling)) | {
        "pattern": "allreduce",
        "transport": "nccl",
        "mode": "pipelined",
        "payload_bytes": 1 << 20,
        "modelled": True,
        "ranks_per_node": 8,
        "bound_fraction": 0.5,
    }
    worlds = [(2, 1, 1.0), (4, 1, 0.9), (16, 2, 1.0), (32, 4, 0.7)]
    rows = tuple(
        Scaling(
            **base
            | {
                "num_ranks": ranks,
                "num_nodes": nodes,
                "efficiency": share,
                "efficiency_low": share - 0.1,
                "factor": "nodes" if nodes > 1 else "ranks per node",
            }
        )
        for ranks, nodes, share in worlds
    )
    [_, (name, figure)] = scaling.draw(replace(document, scalings=rows))
    (panel,) = figure.axes
    drawn = {tuple(np.ravel(line.get_xdata())): line for line in panel.lines if str(line.get_marker()) in "o>"}
    assert name == "scaling-efficiency"
    assert [np.ravel(drawn[ranks].get_ydata()).tolist() for ranks in ((2, 4), (16, 32))] == [[100, 90], [100, 70]]
    for facts in (("nccl,", "one node", "modelled"), ("nccl,", "nodes of 8", "modelled"), ("share of its bound",)):
        assert any(holds(text, *facts) for text in all_texts(figure)), facts


def staged(row: Summary, *pairs: tuple[int, int]) -> Summary:
    """The row as one through the host, where it is of these pairs."""
    return replace(row, flags=("through-host",)) if (row.src, row.dst) in pairs else row


def test_copies_through_the_host_stand_on_no_map_and_no_line_of_peer_links(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    rows = tuple(staged(row, (0, 5), (5, 0)) for row in document.summaries)
    told = replace(document, summaries=rows)
    [(_, figure)] = pairs.draw(told)
    rates = cells(figure.axes[0])
    assert np.isnan(rates[0, 5]) and np.isnan(rates[5, 0]) and not np.isnan(rates[0, 4])
    assert any(": 0-5, 5-0" in text for text in all_texts(figure))
    [(_, figure)] = bandwidth.draw(told)
    assert any(text.endswith("the host") for text in all_texts(figure))
    [(_, figure)] = bandwidth.draw(document)
    assert not any("the host" in text for text in all_texts(figure))


def test_labels_tell_kinds_of_copies_apart(documents: Documents) -> None:
    document = documents["two_libraries"]()
    job, header = next(iter(document.headers.items()))
    of = replace(header, pattern="host_device", transport="cuda_copy")
    cases = {job: of, "other": replace(of, job="other", case=("host_device", "--memory", "pageable"))}
    labels = curves.labels(replace(document, headers=cases))
    assert set(map(str, labels.values())) == {"cuda_copy", "cuda_copy, memory pageable"}


def test_labels_use_no_more_words_than_tell_jobs_apart(documents: Documents) -> None:
    assert set(map(str, curves.labels(documents["two_libraries"]()).values())) == {"nccl", "mpi_cuda"}
    labels = curves.labels(documents["scaling"]()).values()
    assert any(label.settings == ("gloo", "16 ranks", "2 nodes") for label in labels)
    few, many = sorted(set(curves.labels(documents["modelled_p4d"]()).values()), key=lambda label: len(label.settings))
    assert few == CurveLabel(("model", "8 ranks"), modelled=True)
    assert str(many).split(", ") == ["model", "16 ranks", "2 nodes (modelled: ideal links)"]


def test_jobs_that_differ_by_mode_alone_share_a_label_and_copies_name_their_memory_and_engine(
    documents: Documents,
) -> None:
    head = next(iter(documents["two_libraries"]().headers.values()))

    def job(name: str, *more: str) -> Header:
        case = ("host_device", "--transport", "cuda_copy", *more)
        return replace(head, job=name, pattern="host_device", transport="cuda_copy", case=case, direction="h2d")

    jobs = [
        job("a", "--mode", "isolated"),
        job("b", "--mode", "pipelined"),
        job("c", "--mode", "pipelined", "--memory", "pageable"),
        job("d", "--mode", "pipelined", "--engine", "sm"),
    ]
    document = Document("", {each.job: each for each in jobs}, ())
    told = ["cuda_copy", "cuda_copy", "cuda_copy, memory pageable", "cuda_copy, engine sm"]
    assert list(map(str, curves.labels(document).values())) == told
    twice = job("host_device-e")
    both = curves.labels(replace(document, headers={**document.headers, twice.job: twice}))
    assert both[twice.job] == CurveLabel(("cuda_copy",), own_name="e") and str(both["c"]) == told[2]


def test_a_legend_of_long_labels_stays_inside_the_figure(documents: Documents) -> None:
    document = documents["two_libraries"]()
    long = {
        job: replace(each, transport=f"a transport of a very long name that fills its column {job}")
        for job, each in document.headers.items()
    }
    rows = tuple(replace(row, transport=long[row.job].transport) for row in document.summaries)
    [(_, figure)] = bandwidth.draw(replace(document, headers=long, summaries=rows))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_collectives_of_one_rank_are_called_overhead(documents: Documents) -> None:
    document = documents["two_libraries"]()
    rows = [replace(row, num_ranks=1, busbw_bytes_per_s=None) for row in document.summaries]
    assert holds(curves.panel_title("allreduce", rows), "allreduce", "one rank:", "overhead")


def test_pairs_are_coloured_by_their_share_of_pairs_of_their_kind(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    hosts = {row.src for row in document.summaries}
    quick = tuple(
        replace(row, busbw_bytes_per_s=40 * row.busbw_bytes_per_s)
        if row.busbw_bytes_per_s and (row.src or 0) // 4 == (row.dst or 0) // 4
        else row
        for row in document.summaries
    )
    [(_, figure)] = pairs.draw(replace(document, summaries=quick))
    shares = np.asarray(figure.axes[0].images[0].get_array())
    inside, between = shares[0:4, 0:4], shares[0:4, 4:8]
    assert len(hosts) == 8 and 0.8 < np.nanmin(inside) < np.nanmax(inside) < 1.2, "one scale would hide the network"
    assert 0.8 < np.nanmedian(between) < 1.2
    [words] = [text.get_text() for text in figure.texts if "median of its kind" in text.get_text()]
    assert "within a node" in words and "between nodes" in words


def test_a_modelled_curve_has_a_band_of_what_is_expected(documents: Documents) -> None:
    document = documents["modelled_p4d"]()
    [(_, plain)] = bandwidth.draw(document)
    rows = tuple(
        replace(row, expected_busbw_low_bytes_per_s=1e9, expected_busbw_high_bytes_per_s=2e9)
        for row in document.summaries
    )
    [(_, figure)] = bandwidth.draw(replace(document, summaries=rows))
    for axes, before in zip(figure.axes, plain.axes, strict=True):
        assert len(axes.collections) > len(before.collections) and axes.get_ylim()[0] < 1.0
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any("expected" in label for label in labels)
    assert not any("expected" in text.get_text() for text in plain.legends[0].get_texts())


def test_an_origin_is_broken_between_its_parts_and_no_line_begins_or_ends_with_a_bar(documents: Documents) -> None:
    document = documents["two_libraries"]()
    [(_, figure)] = bandwidth.draw(document)
    run = NamedRun(f"results/{'a-long-name-' * 6}", cluster="a-cluster-of-many-hosts")
    _style.sign(figure, _origin.of_document(document, run))
    [origin] = [text.get_text() for text in figure.texts if text.get_gid() == "origin"]
    first, second = origin.split("\n")
    assert all(line == line.strip(" |") for line in (first, second))
    assert [*first.split(" | "), *second.split(" | ")][1:] == _origin.of_document(document, run).parts()


def test_a_legend_of_long_and_short_labels_has_columns(documents: Documents) -> None:
    [(_, figure)] = bandwidth.draw(documents["two_libraries"]())
    long = [
        _style.Look(f"nccl_tests, 16 ranks, 2 nodes [16_p4d_2node_efa_tagoutput-{k}]", "red", "o") for k in range(6)
    ]
    short = [_style.Look(f"machine-{k}, published", "red", "o") for k in range(10)]
    figure.legends.clear()
    _style.finish(figure, "title", "MEASURED", [look.handle() for look in (*long, *short)], [])
    figure.draw_without_rendering()
    [legend] = figure.legends
    columns = {round(text.get_window_extent().x0) for text in legend.get_texts()}
    assert len(columns) >= 2 and clipped(figure) == []


def test_no_marker_looks_like_another() -> None:
    every = (*looks_table.MARKERS, *looks_table.MORE_MARKERS)
    assert len(set(every)) == len(every) and not set(every) & {"p", "h", "H", "8"}  # polygons look like circles


def test_a_scale_of_equal_values_shows_no_fault(documents: Documents) -> None:
    document = documents["pairs_of_8"]()
    same = tuple(replace(row, median_s=1e-5, busbw_bytes_per_s=2e11) for row in document.summaries)
    [(_, figure)] = pairs.draw(replace(document, summaries=same))
    for axes, good in zip(figure.axes, (1.0, 0.0), strict=True):  # the better end of the scale of rates, and of times
        [image] = axes.images
        assert np.nanmean(np.asarray(image.norm(cells(axes)))) == pytest.approx(good)


def test_scaling_leaves_out_a_single_rank_without_bandwidth_and_names_what_is_dotted(documents: Documents) -> None:
    document = documents["scaling"]()
    alone = next(row for row in document.summaries if row.num_ranks == 2 and row.mode == "pipelined")
    rows = tuple(
        replace(row, num_ranks=1, busbw_bytes_per_s=None) if row.num_ranks == alone.num_ranks else row
        for row in document.summaries
    )
    [(_, figure)] = scaling.draw(replace(document, summaries=rows))
    assert all(sorted(axes.get_xticks()) == [8, 16] for axes in figure.axes)
    assert any(holds(text, "bandwidth of the fewest") for text in all_texts(figure))
    timed = tuple(replace(row, busbw_bytes_per_s=None) for row in document.summaries)
    [(_, figure)] = scaling.draw(replace(document, summaries=timed))
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any(holds(text, "time of the fewest") for text in legend) and not any("bound" in text for text in legend)
