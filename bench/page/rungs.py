"""Draw the rungs of a machine: the best rates of copies, kernels, peers, collectives and steps, with their bounds.

A rung is one of these kinds of transfer: copy, kernel, peer, collective, training step. Rungs are sorted from the
lowest (copies) to the highest (training steps). A rung moves data further than the rung below it, and over another
link. A rung can be slower than the rung below for two reasons: the bound of its link is lower, or software loses time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.core.case_argv import stored_value
from bench.core.codes import Coded
from bench.core.record import Flag, known
from bench.core.units import format_size
from bench.page import blocks, dots
from bench.page.markup import Markup, element
from bench.page.messages import PageCode
from bench.results import curves, looks, text
from bench.results.document import Document, Summary
from bench.results.table import Column, Table
from bench.results.training_rows import TrainedStep

_RUNGS = ("copy", "kernel", "peer", "collective", "step")
_COPIES = ("local_copy", "gpu_baseline", "host_device")
_STEP = "step"
_PEERS = ("peer_copy", "pingpong", "oneway", "pairs", "sendrecv", "bisection", "incast")
_LEAST_SHARE = 0.5  # share of the bound; the bound does not explain a lower rate
_EQUAL = 0.95  # share of the rate of the rung below


@dataclass(frozen=True, slots=True)
class Rung:
    """One dot of the picture: the fastest row of a pattern over a transport."""

    kind: str
    row: Summary

    @property
    def name(self) -> str:
        """The name of the pattern and of its transport."""
        return f"{self.row.pattern} over {self.row.transport}"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the rate, computed from the interval of the time. An unknown interval is None."""
        row = self.row
        if not (row.busbw_bytes_per_s and row.median_s and row.ci_low_s and row.ci_high_s):
            return None
        work = row.busbw_bytes_per_s * row.median_s
        return work / row.ci_high_s, work / row.ci_low_s

    @property
    def reason(self) -> Coded:
        """A text that compares the rate of this rung with its bound."""
        share, bound = self.row.bound_fraction, self.row.bound_name
        if share is None:
            return Coded.of(PageCode.NO_BOUND)
        if self.kind == _STEP:
            return Coded.of(PageCode.IN_STEP, share=share, bound=bound)
        if self.row.bound_kind != "hard":
            return Coded.of(PageCode.OF_REFERENCE, share=share, bound=bound)
        return Coded.of(PageCode.LIMITED if share >= _LEAST_SHARE else PageCode.FAR_BELOW, bound=bound)


def against(rung: Rung, below: Rung) -> Coded:
    """Compare a rung with the rung below it.

    Return why the rung is slower than the rung below it, or that it is not slower. The reason may be the bound of the
    rung's own link, or software. The reason may also be unknown.
    """
    rate, rate_below = rung.row.busbw_bytes_per_s, below.row.busbw_bytes_per_s
    assert rate and rate_below
    ratio, bound_bytes_per_s = rate / rate_below, rung.row.bound_bytes_per_s
    if ratio >= _EQUAL:
        return Coded.of(PageCode.NOT_BELOW, below=below.name)
    if rung.kind == _STEP and rung.reason.code == PageCode.IN_STEP:
        return rung.reason
    if rung.row.bound_kind != "hard" or not bound_bytes_per_s:
        return Coded.of(PageCode.BELOW_UNKNOWN, ratio=ratio, below=below.name)
    facts = {"ratio": ratio, "below": below.name, "bound": rung.row.bound_name}
    if bound_bytes_per_s < rate_below and rate >= _LEAST_SHARE * bound_bytes_per_s:
        return Coded.of(PageCode.LOWER_BOUND, share=bound_bytes_per_s / rate_below, **facts)
    return Coded.of(PageCode.SOFTWARE, **facts)


def _below(found: Sequence[Rung], rung: Rung) -> Rung | None:
    """Return the rung to compare with: the fastest measured rung of the next lower kind.

    If there are rungs over the same transport, only such rungs are considered.
    """
    lower = [one for one in found if _RUNGS.index(one.kind) < _RUNGS.index(rung.kind)]
    nearest = [one for one in lower if one.kind == lower[-1].kind]
    own = [one for one in nearest if one.row.transport == rung.row.transport]
    return max(own or nearest, key=lambda one: one.row.busbw_bytes_per_s or 0.0, default=None)


def rungs(document: Document) -> list[Rung]:
    """Return the fastest pipelined row of each pattern and transport, sorted from the lowest to the highest rung.

    If a case has several launches, only the row of the middle launch is considered.
    """
    rows = [row for row in curves.valid(document, "pipelined") if row.busbw_bytes_per_s]
    rows = [row for row in rows if Flag.ABOVE_BOUND not in row.flags and math.isfinite(row.busbw_bytes_per_s or 0.0)]
    rows = curves.of_middle_launch(document, rows)
    by_kind = curves.by(rows, lambda row: (_kind(document, row), row.pattern, row.transport))
    best = [Rung(kind, max(own, key=lambda row: row.busbw_bytes_per_s or 0.0)) for (kind, *_), own in by_kind.items()]
    return sorted([*best, *_steps(document, rows)], key=lambda rung: _RUNGS.index(rung.kind))


def missing(document: Document) -> list[str]:
    """For each rung that has no row, return the skipped patterns with the reasons."""
    have = {rung.kind for rung in rungs(document)}
    found: dict[str, None] = {}
    left_out = [(row["pattern"], row["reason"]) for row in document.skipped]
    for each in document.unplanned:
        left_out += [(name, each["reason"]) for name in each.get("patterns", ())]
    for pattern, reason in left_out:
        if _kind_of_pattern(pattern) not in have:
            found[f"{_kind_of_pattern(pattern)}: no row of {pattern}: {reason}"] = None
    return list(found)


def _steps(document: Document, rows: Sequence[Summary]) -> list[Rung]:
    """For each transport, return a rung for its training steps.

    The rate of this rung is the rate of the step's fastest gradient bucket. The time of a bucket begins when the bucket
    is ready, and ends at the end of its allreduce. The bound of this rung is the rate of the `allreduce` row with the
    nearest size. This `allreduce` row has the same transport and the same number of ranks as the step. `rows`: the
    valid rows that have a rate.
    """
    found = []
    for one in document.steps:
        [row, *_] = [row for row in document.summaries if row.pattern == _STEP and row.transport == one.transport]
        factor = 2 * (one.num_ranks - 1) / one.num_ranks
        rates = [
            (size * factor / took, size) for size, took in zip(one.bucket_bytes, one.bucket_s, strict=True) if took > 0
        ]
        if one.num_ranks < 2 or not rates:
            continue
        rate, size = max(rates)
        alone = _allreduce(rows, one, size)
        of_bound = None if alone is None else alone.busbw_bytes_per_s
        bound = None if alone is None else f"allreduce of {format_size(alone.payload_bytes)} over {one.transport}"
        row = replace(
            row,
            job=one.job,
            payload_bytes=size,
            busbw_bytes_per_s=rate,
            ci_low_s=None,
            ci_high_s=None,
            bound_name=bound,
            bound_kind="reference",
            bound_bytes_per_s=of_bound,
            bound_fraction=rate / of_bound if of_bound else None,
        )
        found.append(Rung(_STEP, row))
    fastest = {one.row.transport: one for one in sorted(found, key=lambda one: one.row.busbw_bytes_per_s or 0.0)}
    return list(fastest.values())


def _allreduce(rows: Sequence[Summary], step: TrainedStep, num_bytes: int) -> Summary | None:
    """Return the row of `allreduce` with the nearest size.

    The row has the same transport and the same number of ranks as the step.
    """
    of_step = ("allreduce", step.transport, step.num_ranks)
    alike = [row for row in rows if (row.pattern, row.transport, known(row.num_ranks)) == of_step]
    return min(alike, key=lambda row: abs(math.log(row.payload_bytes / num_bytes)), default=None)


def draw(document: Document) -> Markup:
    """Return the picture of the rungs, and a table of their values.

    Return nothing if the run has fewer than two rungs, or if all rungs are training steps.
    """
    found = rungs(document)
    if len(found) < 2 or {rung.kind for rung in found} == {_STEP}:
        return Markup()
    skipped = missing(document)
    columns = (
        Column("rung", lambda rung: rung.kind, right=False),
        Column("what", lambda rung: rung.name, right=False),
        Column("job", lambda rung: rung.row.job, right=False),
        Column("size", lambda rung: format_size(rung.row.payload_bytes)),
        Column("rate", lambda rung: text.gigabytes(rung.row.busbw_bytes_per_s), unit="(GB/s)"),
        Column("ci95", _interval, unit="(GB/s)"),
        Column("bound", lambda rung: text.gigabytes(rung.row.bound_bytes_per_s), unit="(GB/s)"),
        Column("of bound", lambda rung: text.percent(rung.row.bound_fraction), unit="(%)"),
        Column("what limits it", lambda rung: rung.reason.text, right=False),
        Column("against the rung below", lambda rung: _against(found, rung), right=False),
    )
    values = blocks.table(Table(columns, found), "ladder: the fastest row of each pattern and transport")
    absent = element("ul", *(element("li", each) for each in skipped), class_="remarks") if skipped else Markup()
    return element("figure", _picture(found), _legend(), absent, blocks.details("Values", values), class_="wide")


def _against(found: Sequence[Rung], rung: Rung) -> str:
    below = _below(found, rung)
    slower = None if below is None else against(rung, below)
    return text.NOTHING if slower is None or slower.code == rung.reason.code else slower.text


def _interval(rung: Rung) -> str:
    found = rung.interval
    return text.NOTHING if found is None else f"{text.gigabytes(found[0])}..{text.gigabytes(found[1])}"


def _kind(document: Document, row: Summary) -> str:
    if row.pattern in _COPIES or row.pattern == "peer_copy":
        by_kernel = stored_value(document.headers[row.job].case, "engine") == "sm"
        if row.pattern == "peer_copy" and not by_kernel:
            return "peer"
        return "kernel" if by_kernel else "copy"
    return _kind_of_pattern(row.pattern)


def _kind_of_pattern(pattern: str) -> str:
    if pattern in _COPIES:
        return "kernel" if pattern == "gpu_baseline" else "copy"
    return "peer" if pattern in _PEERS else _STEP if pattern == _STEP else "collective"


def _picture(found: Sequence[Rung]) -> Markup:
    picture = dots.DotPicture(
        name="ladder",
        title="The ladder: copy, kernel, peer, collective, step",
        description="Bus bandwidth of each rung and its bound; the table below has every value",
        axis="bus bandwidth (GB/s), logarithmic",
        rows=[_row(rung) for rung in found],
    )
    return dots.draw(picture)


def _row(rung: Rung) -> dots.DotRow:
    row = rung.row
    size = f", {format_size(row.payload_bytes)}" if row.payload_bytes else ""
    share = "" if row.bound_fraction is None else f" ({text.percent(row.bound_fraction)} %)"
    bound = row.bound_bytes_per_s
    return dots.DotRow(
        kind=rung.kind,
        name=rung.name,
        words=f"{text.gigabytes(row.busbw_bytes_per_s)}{share}{size}",
        colour=looks.of_transport(row.transport)[0],
        bytes_per_s=row.busbw_bytes_per_s or 0.0,
        ends=rung.interval,
        limits=(dots.DotLimit(bound, dashed=row.bound_kind != "hard"),) if bound else (),
    )


def _legend() -> Markup:
    items = (
        "dot: the rate of the fastest row; at the right its share of the bound or reference, and its size",
        "upright line: the bound of this row; dashed if it is only a reference, which a row may exceed",
    )
    return element("ul", *(element("li", each) for each in items), class_="remarks")
