"""Which rows a figure draws, how panels and lines are called, and what is said below: from rows to words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.core.case import FACTORS
from bench.core.record import Flag, Header
from bench.core.units import format_size
from bench.results.document import Document, Summary

_MOST_STAGED = 6


def valid(document: Document, mode: str) -> list[Summary]:
    """The rows of one mode that may be drawn: a time, and data that were not found wrong."""
    return [row for row in document.summaries if row.mode == mode and seconds(row) and row.verified is not False]


def seconds(row: Summary) -> float:
    """The median; of another tool's log its mean, or the time that its rate means. 0 where there is none of them."""
    if row.median_s is not None or not row.imported:
        return row.median_s or 0.0
    if row.mean_s is None and row.algbw_bytes_per_s:
        return (row.payload_bytes or 1) / row.algbw_bytes_per_s
    return row.mean_s or 0.0


def by(rows: Iterable[Summary], key: Callable[[Summary], Any]) -> dict[Any, list[Summary]]:
    """Rows by a key, in the order of their appearance."""
    found: dict[Any, list[Summary]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def slowest_groups(rows: Iterable[Summary]) -> list[Summary]:
    """At each size the row of the slowest group, sizes rising."""
    return [max(of_size, key=seconds) for _, of_size in sorted(by(rows, _payload).items())]


def _payload(row: Summary) -> int:
    return row.payload_bytes


def panel_title(pattern: str, rows: Iterable[Summary]) -> str:
    """The pattern, and of how many groups the slowest is drawn."""
    drawn = list(rows)
    groups = max(len({row.group for row in of_job}) for of_job in by(drawn, lambda row: row.job).values())
    if all(row.num_ranks == 1 and row.busbw_bytes_per_s is None for row in drawn):
        return f"{pattern} of one rank: the overhead of calls, no link"
    return pattern if groups == 1 else f"{pattern}, the slowest of {groups} groups"


def labels(document: Document) -> dict[str, str]:
    """job -> the fewest words that tell it from every other job of the same pattern; alike for alike jobs of others."""
    headers = document.headers
    told = {job: _told(header) for job, header in headers.items()}
    patterns = {header.pattern for header in headers.values()}
    rivals = [[told[job] for job, header in headers.items() if header.pattern == pattern] for pattern in patterns]
    varied = [index for index in range(1, _NUM_TOLD) if any(len({one[index] for one in jobs}) > 1 for jobs in rivals)]
    words = {job: ", ".join(filter(None, (one[0], *(one[index] for index in varied)))) for job, one in told.items()}
    places = {job: [(headers[job].pattern, text, mode) for mode in _modes(headers[job])] for job, text in words.items()}
    num = Counter(place for of_job in places.values() for place in of_job)
    for job, of_job in places.items():
        if any(num[place] > 1 for place in of_job):
            words[job] += f" [{job.removeprefix(headers[job].pattern + '-')}]"
    kinds = {
        job: " (modelled)" * header.modelled + " (imported)" * bool(header.imported) for job, header in headers.items()
    }
    return {job: text + kinds[job] for job, text in words.items()}


def _told(header: Header) -> tuple[str, ...]:
    """What jobs can differ in, in the order in which it is said."""
    topology = "" if header.topology == "world" else header.topology
    return (
        header.transport,
        header.dtype,
        header.reduce_op,
        world(header.num_ranks, header.num_nodes),
        topology,
        header.direction or "",
        *(_option(header, name) for name in _LABELLED),
    )


_LABELLED = [each.flags[-1].removeprefix("--") for each in FACTORS if each.labelled]
_NUM_TOLD = 6 + len(_LABELLED)


def _modes(header: Header) -> list[str]:
    """The modes of a job's rows; each has figures of its own."""
    asked = _option(header, "mode").removeprefix("mode ")
    return asked.split(",") if asked else ["isolated", "pipelined"]


def _option(header: Header, name: str) -> str:
    """`order reverse` where the case says so; nothing for a default."""
    case = list(header.case)
    flag = f"--{name}"
    return f"{name} {case[case.index(flag) + 1]}" if flag in case else ""


def series(labels: Mapping[str, str], row: Summary) -> str:
    """The line that a row stands on: its job's, but for copies through the host's memory, which show no peer link."""
    return labels[row.job] + ", through the host" * (Flag.THROUGH_HOST in row.flags)


def through_host_remark(rows: Iterable[Summary]) -> list[str]:
    """Which pairs are not drawn beside peer links."""
    pairs = [f"{row.src}-{row.dst}" for row in rows if Flag.THROUGH_HOST in row.flags]
    more = ", ..." if len(set(pairs)) > _MOST_STAGED else ""
    named = ", ".join(list(dict.fromkeys(pairs))[:_MOST_STAGED])
    return [f"copied through the host's memory, no peer link: {named}{more}"] if pairs else []


def invalid_remark(document: Document, mode: str) -> list[str]:
    """How many rows of a mode are not drawn because their data were wrong."""
    number = sum(row.mode == mode and row.verified is False for row in document.summaries)
    return [f"INVALID: {number} rows received wrong data and are not drawn"] if number else []


def interval_remark(rows: Iterable[Summary]) -> list[str]:
    """What points and bars are; a model has no spread to speak of."""
    rows = list(rows)
    own = any(not (row.modelled or row.imported) for row in rows)
    words = ["median and its 95 % interval within one launch"] if own else []
    return words + (["imported: what the tool printed, a mean of one start"] if any(r.imported for r in rows) else [])


def algorithm_remark(rows: Iterable[Summary]) -> list[str]:
    """Why a line has a gap (see `_style.points`)."""
    of = by(rows, lambda row: (row.pattern, row.transport, row.topology))
    changes = any(len({row.algorithm for row in alike}) > 1 for alike in of.values())
    return ["no line joins two points where the algorithm changes between them"] if changes else []


def size_words(num_bytes: int) -> str:
    """`8 B`, `256 MiB`: a size in a sentence."""
    text = format_size(num_bytes)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} B"


def world(num_ranks: int | None, num_nodes: int | None) -> str:
    """`16 ranks, 2 nodes`; one node is not said, nor what nobody knows."""
    ranks = "ranks unknown" if num_ranks is None else f"{num_ranks} rank{'' if num_ranks == 1 else 's'}"
    return ranks if num_nodes in (None, 1) else f"{ranks}, {num_nodes} nodes"
