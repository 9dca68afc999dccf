"""Compare the replayed times of a job with the times that its traces recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from bench.core.record import Header, Record, known
from bench.results import launches, stats
from bench.results.compared_rows import Replayed
from bench.results.model import case_of


def of_record(job: str, header: Header, record: Record) -> list[Replayed]:
    """Return the comparison for a row that has a recorded time and correct data.

    Return an empty list for any other row.
    """
    if record.recorded_s is None or record.samples is None or record.verified is False:
        return []
    if not record.recorded_s > 0 or not stats.usable(record.samples.seconds):
        return []
    low, high = stats.interval(record.samples.seconds) or (None, None)
    return [
        Replayed(
            job=case_of(job, header),
            transport=header.transport,
            group=record.group,
            payload_bytes=record.payload_bytes,
            num_ranks=known(record.num_ranks),
            recorded_s=record.recorded_s,
            replayed_s=median(record.samples.seconds),
            low_s=low,
            high_s=high,
            num_launches=1,
        )
    ]


def replays(of_launches: Iterable[Replayed]) -> tuple[Replayed, ...]:
    """Return one comparison for each row of each case.

    If a row has three or more launches, its interval covers the variation between launches.
    """
    rows: dict[tuple[object, ...], list[Replayed]] = {}
    for one in of_launches:
        rows.setdefault((one.job, one.group, one.payload_bytes), []).append(one)
    return tuple(of_row[0] if len(of_row) == 1 else _merged(of_row) for of_row in rows.values())


def _merged(of_row: list[Replayed]) -> Replayed:
    """Merge the comparisons of a row in several launches into one."""
    medians = [one.replayed_s for one in of_row]
    low, high = launches.interval(medians) or (None, None)
    recorded_s, replayed_s = median(one.recorded_s for one in of_row), median(medians)
    return replace(
        of_row[0], recorded_s=recorded_s, replayed_s=replayed_s, low_s=low, high_s=high, num_launches=len(of_row)
    )
