"""Report predictions: one row for each size and algorithm, and the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.codes import Coded
from bench.core.units import format_bytes, format_rate
from bench.predict import predict
from bench.predict.from_args import RequestedMachine
from bench.predict.messages import PageNote
from bench.predict.predict import EfficiencyEvidence, Prediction, busbw
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table

_MOST_SOURCES = 5  # the table shows this many sources; JSON has all

SCHEMA = "bench.predict/1"
COVERED_SMALL = (
    0.87  # share of published rows below 1 MiB that are inside their interval, as `linkbench validate` counts
)


def prediction_rows(
    pattern: str,
    sizes: Sequence[int],
    machine: RequestedMachine,
    world: tuple[int, int],
    evidence: EfficiencyEvidence,
    algorithm: str | None,
) -> list[dict[str, Any]]:
    """Return one row for each size and algorithm.

    `world`: the number of nodes, and of GPUs per node.
    `algorithm`: the name of one algorithm, or "all".

    With "all", the result also has rows for algorithms that no library uses. These rows show only bounds. Raises
    UsageError for an unknown algorithm.
    """
    curves = predict.by_algorithm(pattern, sizes, machine.links, *world, evidence)
    if algorithm not in (None, "all"):
        curves = {algorithm: predict.chosen(curves, algorithm, pattern, *world)}
    rows = []
    for size in sizes:
        best = min(curves, key=lambda name: curves[name][size].centre_s)
        rows += [_row(pattern, size, world, curves[name][size], name == best) for name in curves]
    if algorithm == "all":
        bounds = predict.bounds_by_algorithm(pattern, sizes, machine.links, *world)
        for name, seconds in bounds.items():
            if name not in curves:
                rows += [_bound(pattern, size, world, name, seconds[size]) for size in sizes]
    return rows


def _row(pattern: str, size: int, world: tuple[int, int], found: Prediction, best: bool) -> dict[str, Any]:
    num = world[0] * world[1]
    return {
        **_key(pattern, size, world, found.algorithm, best),
        "low_s": found.low_s,
        "middle_s": found.middle_s,
        "high_s": found.high_s,
        "ideal_s": found.ideal_s,
        "busbw_bytes_per_s": busbw(pattern, size, num, found.middle_s),
        "busbw_low_bytes_per_s": busbw(pattern, size, num, found.high_s),
        "busbw_high_bytes_per_s": busbw(pattern, size, num, found.low_s),
        "basis": found.basis,
        "bottleneck": found.bottleneck,
        "link_class": found.link_class,
        "verified": found.verified,
        "rests_on": list(found.rests_on),
        "modelled": True,
    }


def _bound(pattern: str, size: int, world: tuple[int, int], algorithm: str, ideal_s: float) -> dict[str, Any]:
    """Return the row of an algorithm that no library uses.

    The row shows only the time that the links alone need.
    """
    return {
        **_key(pattern, size, world, algorithm, False),
        "low_s": ideal_s,
        "middle_s": None,
        "high_s": None,
        "ideal_s": ideal_s,
        "busbw_bytes_per_s": None,
        "busbw_low_bytes_per_s": None,
        "busbw_high_bytes_per_s": busbw(pattern, size, world[0] * world[1], ideal_s),
        "basis": "bound",
        "bottleneck": "links",
        "link_class": "",
        "verified": True,
        "rests_on": ["the links alone"],
        "modelled": True,
    }


def _key(pattern: str, size: int, world: tuple[int, int], algorithm: str, best: bool) -> dict[str, Any]:
    return {
        "pattern": pattern,
        "num_nodes": world[0],
        "ranks_per_node": world[1],
        "payload_bytes": size,
        "algorithm": algorithm,
        "best": best,
    }


@dataclass(frozen=True)
class PredictReport(Report):
    """A report made of rows of `prediction_rows`, with the machine and the evidence for the rows."""

    rows: Sequence[Mapping[str, Any]]
    machine: str
    left_out: Sequence[Coded]

    def blocks(self) -> Iterable[Block]:
        """Yield the largest row as a heading, then a table of all rows, then an explanation of the columns."""
        columns = _COLUMNS if len({row["pattern"] for row in self.rows}) > 1 else _COLUMNS[1:]
        yield Heading(self._answer())
        yield Table(columns, self.rows)
        notes = self.notes()
        sources = [note for note in notes if note.code == PageNote.RESTS_ON]
        unshown = sources[_MOST_SOURCES:] if len(sources) > _MOST_SOURCES + 1 else []
        shown = [note.text for note in notes if note not in unshown]
        if unshown:
            shown.append(PageNote.MORE_SOURCES.words({"num": len(unshown)}))
        yield Lines(shown)

    def _answer(self) -> str:
        """Return the best algorithm's expected time and rate, at the largest size on the largest number of GPUs."""
        row = max(
            self.rows, key=lambda row: (row["payload_bytes"], row["num_nodes"] * row["ranks_per_node"], row["best"])
        )
        where = f"{row['num_nodes']} x {row['ranks_per_node']} GPUs of {self.machine}"
        figures = f"{_seconds(row['middle_s'])} {_interval(row)}"
        rate = "" if row["busbw_bytes_per_s"] is None else f", {_busbw(row)} of busbw"
        return f"{row['pattern']} of {format_bytes(row['payload_bytes'])} on {where}: {figures}{rate} (predicted)"

    def data(self) -> Mapping[str, Any]:
        """Return the rows and the notes."""
        notes = self.notes()
        return {
            "schema": SCHEMA,
            "rows": list(self.rows),
            "modelled": True,
            "notes": [note.text for note in notes],
            "note_codes": [{"code": note.code, "facts": note.facts} for note in notes],
        }

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield the rows."""
        return self.rows

    def notes(self) -> list[Coded]:
        """Return an explanation of the columns, and the evidence for the figures. Each source is named once."""
        predicted = [row for row in self.rows if row["link_class"]]
        classes = list(dict.fromkeys(row["link_class"] for row in predicted))
        notes = [
            Coded.of(PageNote.PREDICTED, covered_small=COVERED_SMALL),
            Coded.of(PageNote.COLUMNS),
            Coded.of(PageNote.CLUSTER_LINKS, machine=self.machine, classes=classes),
        ]
        for source in dict.fromkeys(source for row in predicted for source in row["rests_on"]):
            notes.append(Coded.of(PageNote.RESTS_ON, source=source))
        if not all(row["verified"] for row in self.rows):
            notes.append(Coded.of(PageNote.ROWS_UNVERIFIED))
        notes += [Coded.of(PageNote.LEFT_OUT, text=note.text, cause=note.code) for note in self.left_out]
        return notes


def _seconds(value: float | None) -> str:
    """Return a time with three digits and its unit: `12.3 us`, `4.56 ms`, `1.2 s`."""
    if value is None:
        return NOTHING
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}" if value < 999.5 * factor else f"{value / factor:.0f} {unit}"
    return f"{value * 1e6:.2g} us"


def _interval(row: Mapping[str, Any]) -> str:
    """Return an interval as text: `[1.2 ms, 3.4 ms]`, with `?` for an end that is unknown."""
    high = "?" if row["high_s"] is None else _seconds(row["high_s"])
    return f"[{_seconds(row['low_s'])}, {high}]"


def _busbw(row: Mapping[str, Any]) -> str:
    rate = row["busbw_bytes_per_s"]
    return NOTHING if rate is None else format_rate(rate)


_COLUMNS = (
    Column("pattern", lambda row: str(row["pattern"]), right=False),
    Column("GPUs", lambda row: f"{row['num_nodes']} x {row['ranks_per_node']}"),
    Column("size", lambda row: format_bytes(row["payload_bytes"])),
    Column("algorithm", lambda row: row["algorithm"] + (" *" if row["best"] else ""), right=False),
    Column("time", lambda row: _seconds(row["middle_s"])),
    Column("interval", _interval),
    Column("busbw", _busbw),
    Column("links", lambda row: _seconds(row["ideal_s"]), leave_out=2),
    Column("limited by", lambda row: str(row["bottleneck"]), right=False, leave_out=3),
    Column("from", lambda row: str(row["basis"]), right=False, leave_out=1),
)
