"""The words and numbers that every text format shares: rates, marks, bounds, what was skipped and what failed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

from bench.core import hostlist
from bench.core.derived import Conflict, Summary
from bench.core.record import Header
from bench.core.units import format_size

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
# Flags without a mark: nothing about the figure is in doubt.
_REMARKS = {
    "outliers": "with samples far from the median (beyond 10 scaled MAD), which are kept",
    "ranks-not-kept": "of which only the slowest rank's times are in the file",
    "may-overlap": "of rooted operations back to back, which may overlap: a rate, not the time of one",
    "software-bound": "whose time is less than 3 times what the call costs without communication",
    "launch-bound": "whose calls took the host more than 90 % of the time to issue: the device waited for the software",
    "sync-limited": "in which ranks that start apart count for more than 5 %",
    "contradicts": "that contradict another row of this run",
    "through-host": "copied through the host's memory, as their GPUs do not reach each other: not of a peer link",
    "shared_gpu": "of ranks that share a GPU: they show that it works, not how fast",
}
_MOST_STRAGGLERS = 8

# Said in the row itself.
_SAID_ELSEWHERE = ("invalid", "modelled")

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


def floor_lines(summaries: Iterable[Summary]) -> list[str]:
    """What the latency floors of these rows are, a line for each kind."""
    names = dict.fromkeys(row.floor_name for row in summaries if row.floor_s is not None and row.floor_name)
    pings = any(name.startswith("ping-pong") for name in names)
    what = "a reference: a library may do without messages where ranks share memory" if pings else "of the links alone"
    return [f"floor: {', '.join(names)}, {what}"] if names else []


def overhead_lines(headers: Iterable[Header]) -> list[str]:
    """What small messages' times hold beside the message, as measured at start; nothing is subtracted."""
    headers = list(headers)
    software = _range(header.calibration.get("software_s") for header in headers)
    skew = _range(header.calibration.get("sync_skew_p50_s") for header in headers)
    enqueue = _range(header.calibration.get("enqueue_s") for header in headers)
    lines = []
    if enqueue:
        lines.append(f"software: issuing a call takes the host {enqueue} us; a device that is done sooner waits")
    if software:
        lines.append(f"software: {software} us of every time is the call itself, without communication; not subtracted")
    if skew:
        lines.append(f"skew: ranks leave the synchronisation before an isolated call {skew} us apart (median)")
    return lines


def _range(values: Iterable[float | None]) -> str:
    """`0.031` or `0.031 to 0.054` microseconds; '' where all are unknown."""
    known = sorted(value for value in values if value is not None)
    ends = dict.fromkeys(significant(value * 1e6, 2) for value in known[:1] + known[-1:])
    return " to ".join(ends)


def mark_lines(summaries: Sequence[Summary]) -> list[str]:
    """What the marks and the remaining flags of these rows mean, and how many rows of which mode bear them."""
    lines = []
    for flag in [*MARKS, *sorted({flag for row in summaries for flag in row.flags} - set(MARKS))]:
        modes = Counter(row.mode for row in summaries if flag in row.flags)
        if modes and flag not in _SAID_ELSEWHERE:
            mark, meaning = MARKS.get(flag, (" ", f"rows {_REMARKS[flag]}" if flag in _REMARKS else flag))
            counts = ", ".join(f"{number} {mode}" for mode, number in modes.items())
            lines.append(f"{mark} {meaning} ({counts})")
    return lines


def finding_lines(summaries: Sequence[Summary]) -> list[str]:
    """What a reader must know about the rows beyond their figures, a sentence each."""
    lines = []
    invalid = [row for row in summaries if row.verified is False]
    if invalid:
        sizes = ", ".join(dict.fromkeys(format_size(row.payload_bytes) for row in invalid))
        share = f"{len(invalid)} of {len(summaries)} rows"
        lines.append(f"INVALID: {share} received wrong data ({sizes}) and show no figure")
    for row in summaries:
        if row.also_requested_bytes:
            asked = ", ".join(format_size(size) for size in (row.requested_bytes, *row.also_requested_bytes))
            lines.append(f"the sizes {asked} are all {row.payload_bytes} bytes in whole blocks: measured once")
    sampled = [format_size(row.payload_bytes) for row in summaries if row.compared == "sampled"]
    if sampled:
        lines.append(
            f"of the data at {', '.join(dict.fromkeys(sampled))} both edges and every hundredth page are compared"
        )
    lines += _straggler_lines(summaries)
    slowest = Counter(row.slowest_rank for row in summaries if row.slowest_rank is not None)
    judged = sum(row.num_ranks is not None and row.num_ranks > 2 for row in summaries)
    for rank, number in slowest.most_common(3):
        lines.append(f"rank {rank} was the slowest in more than half of the samples in {number} of {judged} rows")
    return list(dict.fromkeys(lines))


def replaces(later: Summary, earlier: Summary) -> bool:
    """Is a row shown in the place of an earlier one of the same job, size, group and mode?"""
    return not later.imported and earlier.verified is not False and later.verified is not False


def repeated_lines(summaries: Iterable[Summary]) -> list[str]:
    """How many rows stand in the place of what an interrupted attempt left."""
    last: dict[tuple[Any, ...], Summary] = {}
    num = 0
    for row in summaries:
        key = (row.job, row.payload_bytes, row.dtype, row.reduce_op, row.group, row.mode)
        num += key in last and replaces(row, last[key])
        last[key] = row
    if not num:
        return []
    again = "1 row was" if num == 1 else f"{num} rows were"
    return [f"{again} measured again (--resume, --retest): the later figures are shown, JSON and CSV keep both"]


def conflict_lines(conflicts: Iterable[Conflict]) -> list[str]:
    """Pairs of rows that can not both be right: of each rule, job and mode the gravest, and the other sizes."""
    alike: dict[tuple[Any, ...], list[Conflict]] = {}
    for conflict in conflicts:  # the gravest first
        alike.setdefault((conflict.rule, conflict.first["job"], conflict.first["mode"]), []).append(conflict)
    lines = []
    for first, *others in alike.values():
        sizes = ", ".join(format_size(size) for size in sorted({other.first["payload_bytes"] for other in others}))
        lines.append(f"CONTRADICTION {first.sentence}{f'; likewise at {sizes}' if sizes else ''}")
    return lines


def _straggler_lines(summaries: Sequence[Summary]) -> list[str]:
    """How often each rank was the slowest of isolated calls, where there are three or more, and how that changed."""
    rows = [row for row in summaries if row.mode == "isolated" and row.group == "world" and len(row.slowest_counts) > 2]
    if not rows:
        return []
    most = max(len(row.slowest_counts) for row in rows)
    counts = [sum(row.slowest_counts[rank] for row in rows if rank < len(row.slowest_counts)) for rank in range(most)]
    ranked = sorted(range(most), key=lambda rank: -counts[rank])[:_MOST_STRAGGLERS]
    shares = ", ".join(f"rank {rank} {100 * counts[rank] / sum(counts):.0f} %" for rank in ranked if counts[rank])
    rotations = sorted(row.rotation for row in rows if row.rotation is not None)
    ends = " to ".join(dict.fromkeys(f"{value:.2f}" for value in rotations[:1] + rotations[-1:]))
    return [f"slowest of an isolated call: {shares}; rotation {ends} (1: always the same rank)"] if shares else []


def skipped_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What was not measured and why; sizes with the same reason together."""
    sizes: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        key = (_what(row), str(row.get("reason", "no reason given")))
        told = row.get("requested_bytes")
        sizes.setdefault(key, {}).update({format_size(told): None} if told else {})
    return [f"skipped {what}{' at ' + ', '.join(at) if at else ''}: {reason}" for (what, reason), at in sizes.items()]


def failure_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What went wrong, where that is known, on which rank and host."""
    lines = []
    for row in rows:
        size = f" at {format_size(row['requested_bytes'])}" if row.get("requested_bytes") else ""
        rank = f" on rank {row['rank']}" if row.get("rank") is not None else ""
        host = f" ({row['host']})" if row.get("host") else ""
        why = str(row.get("what", "for a reason unknown"))
        where = "" if f"rank {row.get('rank')} on {row.get('host')}" in why else f"{rank}{host}"  # it says so itself
        lines.append(f"FAILED {_what(row)}{size}{where}: {why}")
    return list(dict.fromkeys(lines))


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


def _what(row: Mapping[str, Any]) -> str:
    words = str(row.get("pattern") or row.get("job") or "a job")
    if row.get("transport"):
        words += f" over {row['transport']}"
    if row.get("group") not in (None, "", "world"):
        words += f", group {row['group']}"
    return words


def _world(header: Header) -> str:
    return f"{_count(header.num_ranks, 'rank')} on {_count(header.num_nodes, 'node')}"


def _count(number: int | None, word: str) -> str:
    return f"{'an unknown number of' if number is None else number} {word}{'' if number == 1 else 's'}"
