"""For each job of three or more ranks, show in a table how often each rank was the slowest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from bench.core.record import Header
from bench.page import blocks
from bench.page.markup import Markup, joined
from bench.results import text
from bench.results.document import Document, Summary
from bench.results.table import Column, Table

_MOST = 20  # the most ranks of a job that a table shows
_LEAST_RANKS = 3  # with two ranks, each is the slowest in about half of the samples


@dataclass(frozen=True, slots=True)
class _LateRank:
    """How often one rank was the slowest: in `count` of `of` samples."""

    rank: int
    host: str
    count: int
    of: int


def draw(document: Document) -> Markup:
    """For each job that recorded the slowest ranks, return a table.

    The table lists the ranks that were most often slowest.
    """
    found = []
    for job, rows in groupby(document.summaries, lambda row: row.job):
        ranks = list(_late(document.headers[job], list(rows)))
        if ranks:
            ranks.sort(key=lambda one: -one.count)
            title = f"{job}: in how many samples each rank was the slowest; by chance {text.percent(1 / len(ranks))} %"
            found.append(blocks.table(Table(_COLUMNS, ranks[:_MOST]), title))
    return joined(*found)


_COLUMNS = (
    Column("rank", lambda one: str(one.rank)),
    Column("host", lambda one: one.host, right=False),
    Column("slowest in", lambda one: f"{one.count} of {one.of}", unit="samples"),
    Column("share", lambda one: text.percent(one.count / one.of), unit="(%)"),
)


def _late(header: Header, rows: Sequence[Summary]) -> Iterator[_LateRank]:
    """Yield every rank of a job.

    Rows in which a rank was starved (lacked CPU time) are left out. In a row with a starved rank, the slowest ranks
    only waited for this rank.
    """
    counts: Counter[int] = Counter()
    num_ranks = 0
    for row in rows:
        if (
            row.mode == "isolated"
            and row.group == "world"
            and not row.starved
            and len(row.slowest_counts) >= _LEAST_RANKS
        ):
            num_ranks = len(row.slowest_counts)
            counts.update({rank: number for rank, number in enumerate(row.slowest_counts) if number})
    hosts = [str(rank.get("host") or "") for rank in header.ranks] + [""] * num_ranks
    for rank in range(num_ranks if counts else 0):
        yield _LateRank(rank, hosts[rank], counts[rank], counts.total())
