"""The sentences below a table: what marks mean, what a reader must know, what was skipped and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.core.record import Header
from bench.core.units import format_size
from bench.results.document import Conflict, Summary
from bench.results.text import MARKS, significant

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


def _what(row: Mapping[str, Any]) -> str:
    words = str(row.get("pattern") or row.get("job") or "a job")
    if row.get("transport"):
        words += f" over {row['transport']}"
    if row.get("group") not in (None, "", "world"):
        words += f", group {row['group']}"
    return words
