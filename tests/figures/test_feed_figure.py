"""The figure of reading rates: a row for each way of reading, the fastest first, with what limits it."""

from __future__ import annotations

from typing import Any

from bench.figures import feed, latency
from bench.results.document import Document
from bench.results.training_rows import Fed
from tests.figures.conftest import document, header, summary
from tests.figures.layout import all_texts, clipped, overlapping, series

GB = 1e9


def fed(job: str, files: str, state: str, rate: float, **more: Any) -> Fed:
    """Passes of 16 MiB at this rate; the disk gives 0.6 GB/s and a core 3 GB/s."""
    seconds = (1 << 24) / rate
    given: dict[str, Any] = {
        "job": job,
        "files": files,
        "read_order": "sequential",
        "state": state,
        "num_workers": 0,
        "direct_io": False,
        "payload_bytes": 1 << 24,
        "record_bytes": 1 << 16,
        "num_records": 256,
        "seconds": seconds,
        "low_s": 0.9 * seconds,
        "high_s": 1.1 * seconds,
        "device_share": 1.0,
        "cpu_s_per_record": 1e-5,
        "disk_bytes_per_s": 0.6 * GB if state == "cold" else None,
        "copy_bytes_per_s": 5 * GB,
        "core_bytes_per_s": 3 * GB,
        "demand_bytes_per_s": None,
        "num_launches": 1,
    } | dict.fromkeys(("batch", "prefetch", "step_s", "busy_s", "wait_s", "predicted_wait_s"))
    return Fed(**given | more)


def feeds() -> Document:
    """Three formats cold and one warm, of which one did not converge."""
    found = [
        fed("feed-raw", "raw", "cold", 0.3 * GB),
        fed("feed-mds", "mds", "cold", 0.5 * GB),
        fed("feed-npy", "npy", "cold", 0.4 * GB, read_order="random", num_workers=4, direct_io=True),
        fed("feed-hot", "raw", "warm", 2.9 * GB),
    ]
    runs = []
    for one in found:
        of = header(one.job, "feed", "storage", num_ranks=1, num_nodes=1)
        flags = ("not-converged",) if one.job == "feed-raw" else ()
        more: dict[str, Any] = {"algbw_bytes_per_s": one.bytes_per_s, "busbw_bytes_per_s": None, "flags": flags}
        runs.append((of, [summary(of, "isolated", one.payload_bytes, one.seconds, **more)]))
    return document(runs, feeds=tuple(found))


def test_rows_are_sorted_by_rate_and_say_what_limits_them() -> None:
    [(name, figure)] = feed.draw(feeds())
    figure.draw_without_rendering()
    cold, warm = figure.axes
    assert name == "feed" and str(figure.get_label()).endswith("mds, cold, 0.5 GB/s; raw, warm, 2.9 GB/s")
    assert [text.get_text() for text in cold.get_yticklabels()] == ["mds", "npy, random, 4 workers, O_DIRECT", "raw"]
    beside = {panel: [text.get_text() for text in panel.texts] for panel in (cold, warm)}
    assert beside[cold] == ["0.5, limited by the disk", "0.4", "0.3"]  # 0.4 is 0.67 of the disk's rate
    assert beside[warm] == ["2.9, limited by the CPU"]
    assert (overlapping(figure), clipped(figure)) == ([], [])


def test_the_legend_has_only_what_is_drawn() -> None:
    [(_, figure)] = feed.draw(feeds())
    assert len(series(figure)) == 4  # converged, not converged, disk, core; no row has a demand
    assert any("logarithmic" in text for text in all_texts(figure))


def with_steps_and_a_link() -> Document:
    """A pass to a GPU that its link limits, and a pass with training steps that wait for the loader."""
    linked = fed("feed-gpu", "raw", "warm", 2.4 * GB, pcie_bytes_per_s=2.5 * GB, core_bytes_per_s=9 * GB)
    loaded = fed("feed-step", "mds", "warm", 0.2 * GB, step_s=0.01, busy_s=0.02, wait_s=0.01, batch=8)
    runs = []
    for one in (linked, loaded):
        of = header(one.job, "feed", "storage", num_ranks=1, num_nodes=1)
        runs.append((of, [summary(of, "isolated", one.payload_bytes, one.seconds, busbw_bytes_per_s=None)]))
    return document(runs, feeds=(linked, loaded))


def test_every_limit_that_a_row_names_is_explained() -> None:
    [(_, figure)] = feed.draw(with_steps_and_a_link())
    [panel] = figure.axes
    assert [one.binds for one in with_steps_and_a_link().feeds] == ["pcie", "loader"]
    assert [text.get_text().split(" limited by ")[1] for text in panel.texts] == ["the GPU's link", "the loader"]
    remarks = " ".join(figure.texts[-1].get_text().split())
    assert all(word in remarks for word in ("GPU's link", "0.7", "5 %", "loader")) and "the GPU's link" in series(
        figure
    )
    [(_, figure)] = feed.draw(feeds())
    assert "link" not in figure.texts[-1].get_text() and "loader" not in figure.texts[-1].get_text()


def test_passes_have_no_curve_by_size() -> None:
    assert not latency.applies(feeds())
    assert not feed.applies(document([])) and feed.draw(document([])) == []
