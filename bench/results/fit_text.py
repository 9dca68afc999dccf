"""The words for fitted models: one sentence for each curve, or a table with a row for each piece of it.

A curve that the model does not describe shows its largest residual and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.core.record import Header
from bench.core.units import format_bytes, format_size
from bench.results import model
from bench.results import text as results_text
from bench.results.document import Fit, Segment
from bench.results.grid import pipes

MEANING = (
    "time = latency + size / bandwidth: least squares on the relative error, in pieces where the curve bends",
    "in brackets 95 % intervals; n1/2: latency x bandwidth, the size that reaches half of the piece's bandwidth",
    "m90: smallest size at which 90 % of the best bandwidth was measured; residual: largest |measured / fitted - 1|",
    "isolated: the latency of one operation; pipelined: what one more call costs, back to back",
)
TITLES = ("mode", "group", "sizes", "latency (us)", "bandwidth (GB/s)", "n1/2", "m90", "residual (%)")
_NUM_LEADING = 3  # the titles of what tells one piece from another


def lines(headers: Mapping[str, Header], fits: Iterable[Fit]) -> list[str]:
    """A sentence for each curve that its model describes, and one for all others, for the fine print of a report."""
    fits = list(fits)
    told = [f"model of {curve_words(headers, fit)}: {_sentence(fit)}" for fit in fits if fit.fits]
    misfits = [curve_words(headers, fit) for fit in fits if not fit.fits]
    if misfits:
        told.append(f"no model of latency and bandwidth fits (bench fit says by how much): {'; '.join(misfits)}")
    return told


def cells(fit: Fit) -> list[tuple[str, ...]]:
    """The cells below TITLES, a row for each piece; a curve that does not fit has one row that says so."""
    if not fit.fits:
        return [
            (fit.mode, fit.group, _sizes(fit.segments), misfit(fit), "", "", "", results_text.percent(fit.max_residual))
        ]
    ninety = format_bytes(fit.ninety_bytes) if fit.ninety_bytes else results_text.NOTHING
    return [
        (
            fit.mode,
            fit.group,
            _sizes([segment]),
            _latency(segment),
            _bandwidth(segment),
            _half(segment),
            ninety if segment is fit.segments[-1] else "",
            results_text.percent(segment.max_residual),
        )
        for segment in fit.segments
    ]


def misfit(fit: Fit) -> str:
    """`does not fit (largest residual 23 % at 64 KiB): no headline`."""
    at = f" at {format_bytes(fit.max_residual_bytes)}" if fit.max_residual_bytes else ""
    return f"does not fit (largest residual {100 * fit.max_residual:.0f} %{at}): no headline"


def table(headers: Mapping[str, Header], fits: Sequence[Fit], remarks: Sequence[str] = ()) -> str:
    """The rows of all curves below a line for each job, as text; `remarks` come last."""
    shown = [row for fit in fits if fit.fits for row in cells(fit)]
    leading = [row[:_NUM_LEADING] for fit in fits for row in cells(fit)]
    widths = [max(map(len, column)) for column in zip(TITLES, *shown, strict=True)]
    widths[:_NUM_LEADING] = [max(map(len, column)) for column in zip(TITLES[:_NUM_LEADING], *leading, strict=True)]
    if all(fit.group == "world" for fit in fits):
        widths[TITLES.index("group")] = 0
    text = [*(f"# {line}" for line in MEANING), "#", f"# {_row(TITLES, widths)}"]
    for job in dict.fromkeys(fit.job for fit in fits):
        of_job = [fit for fit in fits if fit.job == job]
        text.append(f"# {results_text.job_line(job, model.header_of(headers, job))}; {basis(of_job[0])}")
        text += [
            f"  {_row(row if fit.fits else row[: _NUM_LEADING + 1], widths)}" for fit in of_job for row in cells(fit)
        ]
    return "\n".join([*text, *(f"# {remark}" for remark in remarks)]) + "\n"


def markdown(headers: Mapping[str, Header], fits: Sequence[Fit], remarks: Sequence[str] = ()) -> str:
    """The same as one Markdown table, the job in its first column."""
    text = ["# Models", "", *(f"- {line}" for line in MEANING), ""]
    text += [pipes(["job", *TITLES]), pipes([":---"] * (len(TITLES) + 1))]
    text += [pipes([_named(headers, fit), *row]) for fit in fits for row in cells(fit)]
    return "\n".join([*text, "", *(f"- {remark}" for remark in remarks)]).rstrip() + "\n"


def curve_words(headers: Mapping[str, Header], curve: Fit | model.Curve) -> str:
    """`allreduce-mpi-1x2, isolated`: which curve is meant."""
    group = "" if curve.group == "world" else f", group {curve.group}"
    return f"{_named(headers, curve)}, {curve.mode}{group}"


def basis(fit: Fit) -> str:
    """What the intervals speak of: other launches, or other errors around the same curve."""
    if fit.num_launches >= model.LEAST_LAUNCHES:
        return f"intervals over {fit.num_launches} launches"
    return f"intervals over residuals, of {'one launch' if fit.num_launches == 1 else 'two launches'} only"


def _named(headers: Mapping[str, Header], curve: Fit | model.Curve) -> str:
    return f"{curve.job} (modelled)" if model.header_of(headers, curve.job).modelled else curve.job


def _sentence(fit: Fit) -> str:
    pieces = [
        f"{_sizes([piece])}: latency {_latency(piece)} us, bandwidth {_bandwidth(piece)} GB/s, n1/2 {_half(piece)}"
        for piece in fit.segments
    ]
    ninety = f"; m90 {format_bytes(fit.ninety_bytes)}" if fit.ninety_bytes else ""
    return f"{'; '.join(pieces)}{ninety}; largest residual {results_text.percent(fit.max_residual)} %; {basis(fit)}"


def _sizes(segments: Sequence[Segment]) -> str:
    return f"{format_size(segments[0].first_bytes)}..{format_size(segments[-1].last_bytes)}"


def _latency(segment: Segment) -> str:
    """`1.5 [1.3..1.7]`; where zero is in the interval only what it is below."""
    if not segment.latency_low_s:
        return f"<{_us(segment.latency_high_s)}"
    return f"{_us(segment.latency_s)} [{_us(segment.latency_low_s)}..{_us(segment.latency_high_s)}]"


def _bandwidth(segment: Segment) -> str:
    """`11.2 [11.0..11.4]`; where the time may not grow with the size at all only what it is above."""
    if segment.bytes_per_s is None or segment.bytes_per_s_high is None:
        return (
            f">{results_text.gigabytes(segment.bytes_per_s_low)}" if segment.bytes_per_s_low else "no growth with size"
        )
    rates = (segment.bytes_per_s, segment.bytes_per_s_low, segment.bytes_per_s_high)
    return "{} [{}..{}]".format(*map(results_text.gigabytes, rates))


def _half(segment: Segment) -> str:
    if segment.half_bytes is None or segment.half_bytes_low is None or segment.half_bytes_high is None:
        return results_text.NOTHING
    low, high = format_bytes(segment.half_bytes_low), format_bytes(segment.half_bytes_high)
    return f"{format_bytes(segment.half_bytes)} [{low}..{high}]"


def _us(seconds: float | None) -> str:
    return results_text.microseconds(seconds)


def _row(words: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{word:<{width}}" for word, width in zip(words, widths, strict=False) if width).rstrip()
