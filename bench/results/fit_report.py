"""Report the models that were fitted to a run's curves. Each segment of a curve has a row.

If the model does not describe a curve, the table has no row for this curve. For such a curve, a line states the largest
residual.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.core.record import Header
from bench.core.units import format_bytes, format_size
from bench.results import model, text
from bench.results.document import Document, Fit, Segment
from bench.results.table import NOTHING, Block, Column, Lines, Report, Table

SCHEMA = "bench.fit/1"
MEANING = (
    "time = latency + size / bandwidth: least squares on the relative error, in segments where the curve bends",
    "in brackets: 95 % intervals; n1/2: latency x bandwidth, the size that reaches half of the segment's bandwidth",
    "m90: smallest size at which 90 % of the best bandwidth was measured; residual: largest |measured / fitted - 1|",
    "isolated: the latency of one operation; pipelined: the cost of one more call, back to back",
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment of a fitted curve. Each row of the table shows one segment, below the heading of its job."""

    heading: str
    fit: Fit
    segment: Segment


@dataclass(frozen=True)
class FitReport(Report):
    """The models of a run's curves. `left_out`: the curves that the model does not describe."""

    document: Document
    fits: Sequence[Fit]
    left_out: Sequence[model.Curve]

    def blocks(self) -> Iterable[Block]:
        """Yield an explanation of the figures, the table of segments, and the curves without a model."""
        yield Lines(MEANING)
        yield Table(_COLUMNS, list(self._pieces()), section=lambda piece: piece.heading)
        headers = self.document.headers
        lines = [f"{curve_words(headers, fit)}: {misfit(fit)}" for fit in self.fits if not fit.fits]
        for curve in self.left_out:
            if curve.no_fit is not None:
                lines.append(f"no model of {curve_words(headers, curve)}: {curve.no_fit.text}")
        yield Lines(lines)

    def data(self) -> Mapping[str, Any]:
        """Return the fits with their segments, and the curves without a model."""
        not_fitted = []
        for curve in self.left_out:
            if curve.no_fit is None:
                continue
            row = {name: getattr(curve, name) for name in ("job", "pattern", "transport", "mode", "group")}
            reason = {"reason": curve.no_fit.text, "reason_code": curve.no_fit.code, "facts": curve.no_fit.facts}
            not_fitted.append(row | {"num_sizes": len(curve.points)} | reason)
        return {
            "schema": SCHEMA,
            "fits": [asdict(fit) | self._basis(fit) for fit in self.fits],
            "not_fitted": not_fitted,
            "notes": [note.text for note in self.document.notes],
        }

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Yield one line for each segment.

        If the model does not describe a curve, the curve has one line without latency and bandwidth.
        """
        for fit in self.fits:
            whole = asdict(fit) | self._basis(fit)
            del whole["segments"]
            for segment in fit.segments if fit.fits else fit.segments[:1]:
                piece = asdict(segment) if fit.fits else dict.fromkeys(asdict(segment))
                piece["segment_max_residual"] = piece.pop("max_residual")
                yield whole | piece

    def _pieces(self) -> Iterator[Piece]:
        for job in dict.fromkeys(fit.job for fit in self.fits):
            header = model.header_of(self.document.headers, job)
            for fit in self.fits:
                if fit.job == job and fit.fits:
                    heading = f"{text.job_line(job, header)}; {basis(fit)}"
                    yield from (Piece(heading, fit, segment) for segment in fit.segments)

    def _basis(self, fit: Fit) -> dict[str, Any]:
        over = "launches" if fit.num_launches >= model.LEAST_LAUNCHES else "residuals"
        return {"modelled": model.header_of(self.document.headers, fit.job).modelled, "intervals_over": over}


def curve_words(headers: Mapping[str, Header], curve: Fit | model.Curve) -> str:
    """Return the name of a curve: `allreduce-mpi-1x2, isolated`."""
    group = "" if curve.group == "world" else f", group {curve.group}"
    modelled = " (modelled)" if model.header_of(headers, curve.job).modelled else ""
    return f"{curve.job}{modelled}, {curve.mode}{group}"


def misfit(fit: Fit) -> str:
    """Return the text for a curve that the model does not describe.

    An example of such a text is `does not fit (largest residual 23 % at 64 KiB): no headline`.
    """
    at = f" at {format_bytes(fit.max_residual_bytes)}" if fit.max_residual_bytes else ""
    return f"does not fit (largest residual {100 * fit.max_residual:.0f} %{at}): no headline"


def basis(fit: Fit) -> str:
    """Return a text that says which variation the intervals cover: between launches, or between residuals."""
    if fit.num_launches >= model.LEAST_LAUNCHES:
        return f"intervals over {fit.num_launches} launches"
    return f"intervals over residuals of {'one launch' if fit.num_launches == 1 else 'two launches'} only"


def sizes(segment: Segment) -> str:
    """Return the range of sizes that a segment covers, for example `8..4K`."""
    return f"{format_size(segment.first_bytes)}..{format_size(segment.last_bytes)}"


def latency(segment: Segment) -> str:
    """Return the latency in microseconds with its interval, `1.5 [1.3..1.7]`.

    If the interval contains zero, return only its upper end, such as `<1.7`.
    """
    high = text.microseconds(segment.latency_high_s)
    if not segment.latency_low_s:
        return f"<{high}"
    return f"{text.microseconds(segment.latency_s)} [{text.microseconds(segment.latency_low_s)}..{high}]"


def bandwidth(segment: Segment) -> str:
    """Return the bandwidth in GB/s with its interval, `11.2 [11.0..11.4]`.

    If the time may not depend on the size at all, return only the lower end of the bandwidth.
    """
    if segment.bytes_per_s is None or segment.bytes_per_s_high is None:
        low = segment.bytes_per_s_low
        return f">{text.gigabytes(low)}" if low else "no growth with size"
    rates = (segment.bytes_per_s, segment.bytes_per_s_low, segment.bytes_per_s_high)
    return "{} [{}..{}]".format(*map(text.gigabytes, rates))


def half(segment: Segment) -> str:
    """Return n1/2 with its interval. n1/2 is the size that reaches half of the bandwidth."""
    if segment.half_bytes is None or segment.half_bytes_low is None or segment.half_bytes_high is None:
        return NOTHING
    low, high = format_bytes(segment.half_bytes_low), format_bytes(segment.half_bytes_high)
    return f"{format_bytes(segment.half_bytes)} [{low}..{high}]"


def _ninety(piece: Piece) -> str:
    """Return m90, the smallest measured size with at least 90 % of the best measured bandwidth.

    m90 is shown only in the row of the last segment. The rows of other segments have an empty cell.
    """
    if piece.segment is not piece.fit.segments[-1]:
        return ""
    return format_bytes(piece.fit.ninety_bytes) if piece.fit.ninety_bytes else NOTHING


_COLUMNS = (
    Column("mode", lambda piece: piece.fit.mode, right=False),
    Column("group", lambda piece: "" if piece.fit.group == "world" else piece.fit.group, right=False, optional=True),
    Column("sizes", lambda piece: sizes(piece.segment), right=False),
    Column("latency", lambda piece: latency(piece.segment), unit="(us)", right=False),
    Column("bandwidth", lambda piece: bandwidth(piece.segment), unit="(GB/s)", right=False),
    Column("n1/2", lambda piece: half(piece.segment), right=False, leave_out=1),
    Column("m90", _ninety, right=False, leave_out=3),
    Column("residual", lambda piece: text.percent(piece.segment.max_residual), unit="(%)", leave_out=2),
)
