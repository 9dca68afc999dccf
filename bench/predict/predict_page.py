"""The words for predictions: a row for each size and algorithm, what they rest on below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.units import format_bytes, format_rate
from bench.results.grid import NOTHING, Column, render

SCHEMA = "bench.predict/1"
COVERED_SMALL = 0.85  # of published rows below 1 MiB, as `bench validate` counts them
MEANING = (
    "predicted, not measured: the middle and, in brackets, the interval that should hold 9 of 10 measurements; below "
    f"1 MiB it held {COVERED_SMALL:.0%} of the published ones",
    "no middle (-): nobody measured this class of links, or those who did differ too much; links: by the links alone",
)


def seconds(value: float | None) -> str:
    """`12.3 us`, `4.56 ms`, `1.2 s`: three digits."""
    if value is None:
        return NOTHING
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}" if value < 999.5 * factor else f"{value / factor:.0f} {unit}"
    return f"{value * 1e6:.2g} us"


def rate(bytes_per_s: float | None) -> str:
    """`231 GB/s`."""
    return NOTHING if bytes_per_s is None else format_rate(bytes_per_s)


def interval(low: float | None, high: float | None) -> str:
    """`[1.2 ms, 3.4 ms]`; an open end where nothing bounds it."""
    return f"[{seconds(low)}, {seconds(high)}]" if high is not None else f"[{seconds(low)}, ?]"


def world(row: Mapping[str, Any]) -> str:
    """`2 x 8`: nodes and GPUs of each."""
    return f"{row['num_nodes']} x {row['ranks_per_node']}"


COLUMNS = (
    Column("pattern", lambda row: str(row["pattern"]), right=False),
    Column("GPUs", world),
    Column("size", lambda row: format_bytes(row["payload_bytes"])),
    Column("algorithm", lambda row: row["algorithm"] + (" *" if row["best"] else ""), right=False),
    Column("time", lambda row: seconds(row["middle_s"])),
    Column("interval", lambda row: interval(row["low_s"], row["high_s"])),
    Column("busbw", lambda row: rate(row["busbw_bytes_per_s"])),
    Column("links", lambda row: seconds(row["ideal_s"])),
    Column("limited by", lambda row: str(row["bottleneck"]), right=False),
    Column("from", lambda row: str(row["basis"]), right=False),
)


def rendered(form: str, rows: Sequence[Mapping[str, Any]], remarks: Sequence[str]) -> str:
    """Rows of `bench predict` in one of the four formats."""
    shown = COLUMNS if len({row["pattern"] for row in rows}) > 1 else COLUMNS[1:]
    return render(form, SCHEMA, rows, shown, (*MEANING, *remarks), {"modelled": True})
