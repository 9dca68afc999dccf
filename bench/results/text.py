"""The words and numbers that every text format shares: rates, marks, bounds, and what a run is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase

from bench.core import hostlist
from bench.core.record import Header
from bench.core.units import format_size
from bench.results.document import Summary

NOTHING = "-"

# What a flag means to a reader, and the mark that stands beside a figure for it.
MARKS = {
    "above-bound": ("!", "above a hard bound: the bound, the clock or the data is wrong"),
    "not-converged": ("*", "not converged: the median is known less well than was asked"),
    "few-samples": ("?", "too few independent samples for a 95 % interval"),
    "bad-samples": ("?", "samples that are no times: no figure can be given"),
    "clock-limited": ("?", "one way between two clocks, which are compared too coarsely: the time is not exact"),
    "drift": ("~", "the samples drift: the median depends on when it was taken"),
    "warmup-residue": ("~", "the first samples are still warm-up"),
    "imported": ("m", "imported from another tool's log: a mean without samples, not a median"),
    "reported": ("m", "taken over from another tool's report, by its own statistic (a mean, where a time is shown)"),
}
ISOLATED = "isolated: one operation at a time, each after a synchronisation"
PIPELINED = "pipelined: operations back to back, one completion"
STATISTICS = "times are the slowest rank's; median, 95 % interval of the median within this launch, nearest-rank p95"
IMPORTED = "imported: figures are what the tool printed, a mean of one start; no samples, no interval, no verdict"
WIRE = "wire: bytes per second through one node's NICs and direction, if no switch reduces on the way"
_LIKE = {
    "nccl-tests": "as nccl-tests: mean over ranks (-a 1) of the time of a call, over all calls; one hot buffer",
    "osu": "as OSU: avg, min and max over ranks of each rank's mean; one hot buffer",
}


def like(header: Header) -> str:
    """The tool in whose statistics a run asked to be shown; '' for ours."""
    case = list(header.case)
    return case[case.index("--like") + 1] if "--like" in case[:-1] else ""


def reading(tool: str, imported: bool = False) -> tuple[str, ...]:
    """How the figures are to be read, in sentences."""
    if imported:
        return (IMPORTED,)
    return (_LIKE[tool],) if tool else (ISOLATED, PIPELINED, STATISTICS)


def significant(value: float, digits: int = 4) -> str:
    """A number to so many significant digits without an exponent: 12.34, 1234567, 0.001234."""
    if value == 0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{decimals}f}"


def microseconds(seconds: float | None) -> str:
    """Seconds as microseconds, 4 digits; '-' when unknown."""
    return NOTHING if seconds is None else significant(seconds * 1e6)


def gigabytes(bytes_per_s: float | None) -> str:
    """A rate in GB/s (10^9), 4 digits down to 1, then 3; '-' when unknown."""
    if bytes_per_s is None:
        return NOTHING
    rate = bytes_per_s / 1e9
    return "<0.001" if rate < 0.001 else significant(rate, 4 if rate >= 1 else 3)


def percent(fraction: float | None) -> str:
    """A fraction in percent with one decimal; '-' when unknown."""
    return NOTHING if fraction is None else f"{100 * fraction:.1f}"


def size(summary: Summary) -> str:
    """The payload in binary units; '-' where a log does not tell how much was copied."""
    return NOTHING if summary.imported and not summary.payload_bytes else format_size(summary.payload_bytes)


def time(summary: Summary) -> str:
    """The median in microseconds; the mean of a tool that reports no more (its row has the mark `m`)."""
    return microseconds(summary.mean_s if summary.median_s is None else summary.median_s)


def interval(summary: Summary) -> str:
    """The interval of the median in microseconds, `12.1..12.6`."""
    if summary.ci_low_s is None or summary.ci_high_s is None:
        return NOTHING
    return f"{microseconds(summary.ci_low_s)}..{microseconds(summary.ci_high_s)}"


def wrong(summaries: Iterable[Summary]) -> str:
    """Wrong elements of a line: their number, `modelled` where nothing was moved, N/A where none were checked."""
    rows = list(summaries)
    if any(row.verified is False for row in rows):
        return str(sum(row.num_wrong or 0 for row in rows) or "INVALID")
    if any(row.modelled for row in rows):
        return "modelled"
    return "N/A" if any(row.verified is None for row in rows) else "0"


def marks(summary: Summary) -> str:
    """The marks beside a figure, the gravest first."""
    return _marks(summary.flags)


@lru_cache(maxsize=1024)
def _marks(flags: tuple[str, ...]) -> str:
    return "".join(dict.fromkeys(mark for flag, (mark, _) in MARKS.items() if flag in flags))


@dataclass(frozen=True, slots=True)
class BoundLine:
    """One bound that rows name, with the letter that stands for it and the range of its values."""

    letter: str
    name: str
    kind: str
    low_bytes_per_s: float
    high_bytes_per_s: float

    def __str__(self) -> str:
        values = gigabytes(self.low_bytes_per_s)
        if gigabytes(self.high_bytes_per_s) != values:
            values += f" to {gigabytes(self.high_bytes_per_s)}"
        kind = "hard bound" if self.kind == "hard" else f"{self.kind}, not a limit"
        return f"{values} GB/s of busbw: {self.name} ({kind})"


def letter(index: int) -> str:
    """What stands for the bound that rows name first (0), second, ..."""
    return ascii_lowercase[index % len(ascii_lowercase)]


def bound_lines(summaries: Iterable[Summary]) -> dict[tuple[str, str], BoundLine]:
    """The bounds that rows name, lettered a, b, ... in the order of their appearance, by (name, kind)."""
    rates: dict[tuple[str, str], list[float]] = {}
    for row in summaries:
        if row.bound_name is not None and row.bound_kind is not None and row.bound_bytes_per_s is not None:
            rates.setdefault((row.bound_name, row.bound_kind), []).append(row.bound_bytes_per_s)
    return {
        (name, kind): BoundLine(letter(index), name, kind, min(values), max(values))
        for index, ((name, kind), values) in enumerate(rates.items())
    }


def facts(header: Header) -> list[tuple[str, str]]:
    """(name, value) of what a reader must know of a run before its figures."""
    world = _world(header)
    if header.topology != "world":
        world += f", topology {header.topology}"
    pairs = [
        ("pattern", f"{header.pattern} over {header.transport}, {world}"),
        ("case", " ".join(header.case)),
        ("hosts", hostlist.compress(header.nodes)),
        ("gpus", "" if header.modelled else _gpus(header)),
        ("instance", header.instance or ""),
        ("clock", ", ".join(filter(None, [header.clock, header.started and f"started {header.started}"]))),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
    ]
    return [(name, value) for name, value in pairs if value]


def _gpus(header: Header) -> str:
    """The GPUs of all hosts and their drivers; the one that a rank told of where the driver told none."""
    gpus: Counter[str] = Counter()
    for node in header.nodes.values():
        driver = f", driver {node['gpu_driver']}" if node.get("gpu_driver") else ""
        gpus.update(f"{gpu.get('name') or 'unknown'}{driver}" for gpu in node.get("gpus") or ())
    told = header.facts.get("gpu")
    return "; ".join(f"{number} x {name}" for name, number in gpus.items()) or str(told or "")


def job_line(job: str, header: Header) -> str:
    """One line that tells a job from the others of its run."""
    world = _world(header)
    topology = "" if header.topology == "world" else f", topology {header.topology}"
    kind = ", modelled" if header.modelled else ", imported" if header.imported else ""
    return f"{header.pattern} over {header.transport}, {world}{topology}{kind} [{job}]"


def modelled_line(header: Header) -> str | None:
    """The sentence that a modelled run must carry; None for a measured one."""
    if not header.modelled:
        return None
    where = f" of {header.instance}" if header.instance else ""
    return f"MODELLED: nothing was measured, every figure is arithmetic on the links{where}"


def modes_of(summaries: Iterable[Summary]) -> tuple[str, ...]:
    """The modes that rows have, isolated first."""
    return tuple(sorted({row.mode for row in summaries}))


def _world(header: Header) -> str:
    return f"{count(header.num_ranks, 'rank')} on {count(header.num_nodes, 'node')}"


def count(number: int | None, word: str) -> str:
    """`1 rank`, `2 ranks`, `an unknown number of ranks`."""
    return f"{'an unknown number of' if number is None else number} {word}{'' if number == 1 else 's'}"
