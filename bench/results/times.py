"""Compute statistics of one record's samples: median, interval, percentiles, rates, and the slowest rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from bench.core.log_traits import log_traits
from bench.core.record import Flag, Header, Record, Samples, StopReason
from bench.results import flops, stats
from bench.results.shares import RankShares

# If issuing calls takes more than this share of a time, the device mostly waited for its host.
_LAUNCH_SHARE = 0.9
_FEW_CALLS, _SHORT_S = 16, 1e-3  # a pipelined sample should last 2 ms (rank/sampling.py)

_BURST_S = 2.0  # the first seconds of a soak, before a device heats up

# Names of a row's statistics. Other tools' statistics use the same names; their mean is `mean_s`.
_TIMES = ("median_s", "ci_low_s", "ci_high_s", "min_s", "max_s", "p95_s", "p99_s")


@dataclass(slots=True)
class Times:
    """The statistics of a row, in seconds and bytes per second.

    The statistics come from samples or from another tool's log. A statistic is None if it is unknown.
    """

    num_samples: int = 0
    num_effective: float | None = None
    seconds: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(_TIMES))
    mean_s: float | None = None
    last_arriver_s: float | None = None
    slowest_rank: int | None = None
    slowest_counts: tuple[int, ...] = ()
    rotation: float | None = None
    compat: Mapping[str, float | None] = field(default_factory=dict)
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    flags: tuple[str, ...] = ()
    host_median_s: float | None = None
    enqueue_fraction: float | None = None
    burst_s: float | None = None
    sustained_s: float | None = None


def from_samples(header: Header, record: Record, samples: Samples) -> Times:
    """Return the statistics of linkbench's samples.

    If samples are invalid, the row gets no figure and the flag BAD_SAMPLES.
    """
    taken = samples.seconds
    if not stats.usable(taken):
        return Times(len(taken), flags=(Flag.BAD_SAMPLES,))
    told = stats.describe(taken)
    middle, around = told.median_s, told.interval_s
    moves = record.payload_bytes and record.step is None and header.pattern != flops.PATTERN
    algbw = record.payload_bytes / middle if moves else None
    times = Times(
        num_samples=len(taken),
        num_effective=told.num_effective,
        seconds={
            "median_s": middle,
            "ci_low_s": around[0] if around else None,
            "ci_high_s": around[1] if around else None,
            "min_s": told.min_s,
            "max_s": told.max_s,
            "p95_s": told.p95_s,
            "p99_s": told.p99_s,
        },
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * record.bus_factor if algbw and record.bus_factor else None,
    )
    if samples.host_s:
        times.host_median_s, times.enqueue_fraction = _on_host(samples)
    if samples.by_rank or samples.rank_mean_s or samples.slowest_counts:  # not modelled, and no single copy
        _add_ranks(times, RankShares(header, record, samples))
    if record.stop_reason == StopReason.SOAKED:
        times.burst_s, times.sustained_s = _soaked(samples)
    times.flags = tuple(_flags(header, record, samples, told, times.enqueue_fraction))
    return times


def _flags(
    header: Header, record: Record, samples: Samples, told: stats.Description, enqueue_fraction: float | None
) -> Iterator[Flag]:
    """Yield the flags of a row that follow from its samples."""
    if told.interval_s is None and not record.modelled:
        yield Flag.FEW_SAMPLES
    if told.drift is not None and told.drift.significant:
        yield Flag.DRIFT
    if told.warmup_residue > 0:
        yield Flag.WARMUP_RESIDUE
    if told.num_outliers > 0:
        yield Flag.OUTLIERS
    if enqueue_fraction is not None and enqueue_fraction > _LAUNCH_SHARE:
        yield Flag.LAUNCH_BOUND
    if header.clock == "device" and record.mode == "pipelined":
        calls = samples.calls_per_sample
        if calls < _FEW_CALLS and calls * told.median_s < _SHORT_S:
            yield Flag.SHORT_BATCH


def _on_host(samples: Samples) -> tuple[float | None, float | None]:
    """Return two medians: the time by the hosts' clocks, and the share of this time for issuing the calls."""
    shares = [issued / all_ for issued, all_ in zip(samples.enqueue_s, samples.host_s, strict=False) if all_]
    return _middle(samples.host_s), _middle(shares)


def _add_ranks(times: Times, shares: RankShares) -> None:
    """Set the statistics of each rank's times."""
    times.last_arriver_s = shares.last_arriver_s()
    times.slowest_rank = shares.slowest_rank()
    times.slowest_counts = shares.slowest_counts()
    times.rotation = shares.rotation()
    times.compat = shares.compat()


def _soaked(samples: Samples) -> tuple[float, float]:
    """Return two medians of a row with --soak: over the samples of the first two seconds, and over the second half."""
    ends_s = np.cumsum(samples.seconds) * samples.calls_per_sample
    num_first = max(1, int(np.searchsorted(ends_s, _BURST_S)))
    first_late = int(np.searchsorted(ends_s, ends_s[-1] / 2))
    return float(median(samples.seconds[:num_first])), float(median(samples.seconds[first_late:]))


def _middle(values: Sequence[float]) -> float | None:
    return float(median(values)) if len(values) else None


def from_reported(header: Header, record: Record) -> Times:
    """Return another tool's statistics under the names that this tool uses."""
    reported, names = record.reported or {}, log_traits(header.transport).statistics
    return Times(
        num_samples=int(reported.get("num_samples", 0)),
        seconds={name: reported.get(name) for name in _TIMES},
        mean_s=reported.get("mean_s"),
        compat={names[name]: value for name, value in reported.items() if name in names},
        algbw_bytes_per_s=reported.get("algbw_bytes_per_s"),
        busbw_bytes_per_s=reported.get("busbw_bytes_per_s"),
        flags=(Flag.IMPORTED if header.imported else Flag.REPORTED,),
    )
