"""Read the figures in a step's output.

Each reader gets the step's folder. A step with unreadable output has no figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.core.errors import BenchError
from bench.core.units import format_size
from bench.first_contact import process
from bench.first_contact.plan_file import ContactStep
from bench.first_contact.state import StepRecord
from bench.results import collect, table

# Quantities of a row: key of the JSON document -> (name, factor, unit).
_OF_ROW = {
    "median_s": ("time", 1e6, "us"),
    "busbw_bytes_per_s": ("busbw", 1e-9, "GB/s"),
    "bound_fraction": ("of-bound", 1.0, ""),
    "flops_per_s": ("rate", 1e-12, "TFLOP/s"),
}
_LABELS = ("pattern", "mode", "direction", "dtype")


@dataclass(frozen=True, slots=True)
class StepFigure:
    """One figure of a step.

    `low`, `high`: the expected range, if the output of the step states one.
    `source`: the document from which this range comes.
    """

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    source: str | None = None


def figures(step: ContactStep, record: StepRecord, folder: Path) -> list[StepFigure]:
    """Return a step's figures, each named STEP/NAME/QUANTITY. `folder` is the folder of the first contact."""
    own = folder / step.name
    if step.read == "seconds":
        return [] if record.wall_s is None else [StepFigure(f"{step.name}/all/seconds", record.wall_s, "s")]
    try:
        return [*_READERS[step.read](step, own)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ElementTree.ParseError, BenchError):
        return []  # the step's state and its stderr say what went wrong


def machine_figures(step: ContactStep, own: Path) -> Iterator[StepFigure]:
    """Count the findings of `linkbench doctor` by severity."""
    document = _document(own / process.STDOUT)
    found = [finding for machine in document["machines"].values() for finding in machine["findings"]]
    for severity in ("wrong", "doubtful"):
        yield StepFigure(f"{step.name}/findings/{severity}", sum(one["severity"] == severity for one in found))


def row_figures(step: ContactStep, own: Path) -> Iterator[StepFigure]:
    """Read the rows of a pattern's own document (`--format json`)."""
    document = _document(own / process.STDOUT)
    yield from _rows(step.name, document["summaries"])
    yield StepFigure(f"{step.name}/rows/failed", len(document["failures"]))
    yield StepFigure(f"{step.name}/rows/skipped", len(document["skipped"]))


def run_figures(step: ContactStep, own: Path) -> Iterator[StepFigure]:
    """Read the rows of the runs that a step wrote below its folder."""
    for folder in sorted((own / "results").glob("*/")):
        document = table.plain(collect.document(folder))
        yield from _rows(step.name, document["summaries"], ("job", "mode"))
        yield StepFigure(f"{step.name}/rows/failed", len(document["failures"]))
        for each in document["parities"]:
            label = "-".join(
                map(
                    str, (each["tool"], each["pattern"], each["case"], each["mode"], format_size(each["payload_bytes"]))
                )
            )
            yield StepFigure(f"{step.name}/{label}/ours-theirs", each["ratio"])


def line_figures(step: ContactStep, own: Path) -> Iterator[StepFigure]:
    """Read the output of `benchmarks.gpu_copies`. Each line has a figure and its target range."""
    for line in json.loads((own / "lines.json").read_text(encoding="utf-8")):
        if line["ratio"] is not None:
            low, high = line["asked"] or (None, None)
            yield StepFigure(f"{step.name}/{line['figure']}/ratio", line["ratio"], "", low, high, "docs/copies.md")


def test_figures(step: ContactStep, own: Path) -> Iterator[StepFigure]:
    """Count the passed, failed and skipped tests in pytest's JUnit file."""
    suites = ElementTree.parse(own / "junit.xml").getroot().iter("testsuite")
    total, bad, skipped = 0, 0, 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        bad += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    for name, num in (("passed", total - bad - skipped), ("failed", bad), ("skipped", skipped)):
        yield StepFigure(f"{step.name}/tests/{name}", num)


def count_figures(step: ContactStep, own: Path) -> Iterator[StepFigure]:
    """Count the lines of the output that match each regular expression of the plan."""
    lines = [line for name in (process.STDOUT, process.STDERR) for line in process.tail(own / name, 1 << 20)]
    for name, pattern in step.counts.items():
        yield StepFigure(f"{step.name}/{name}/lines", sum(re.search(pattern, line) is not None for line in lines))


def _rows(step: str, summaries: list[dict[str, Any]], labels: Sequence[str] = _LABELS) -> Iterator[StepFigure]:
    for row in summaries:
        words = [str(row[label]) for label in labels if row.get(label)]
        group = row.get("group")
        words += [str(group)] if group and group != "world" else []
        label = "-".join([*words, format_size(int(row["payload_bytes"]))])
        for key, (name, scale, unit) in _OF_ROW.items():
            if row.get(key) is not None:
                yield StepFigure(f"{step}/{label}/{name}", float(row[key]) * scale, unit)
        if row.get("host_median_s") and row.get("median_s") and row.get("mode") == "pipelined":
            yield StepFigure(f"{step}/{label}/events-host", row["median_s"] / row["host_median_s"])
        if row.get("verified") is not None:
            yield StepFigure(f"{step}/{label}/verified", float(row["verified"] is True))


def _document(path: Path) -> Mapping[str, Any]:
    """Return the only JSON document in a program's output. Libraries may have written other text to stdout."""
    text = path.read_text(encoding="utf-8", errors="replace")
    document: Mapping[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return document


def _none(step: ContactStep, own: Path) -> Iterator[StepFigure]:
    yield from ()


_READERS: Mapping[str, Callable[[ContactStep, Path], Iterator[StepFigure]]] = {
    "none": _none,
    "rows": row_figures,
    "lines": line_figures,
    "tests": test_figures,
    "machine": machine_figures,
    "run": run_figures,
    "counts": count_figures,
}
