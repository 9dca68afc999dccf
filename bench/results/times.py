"""Compute statistics of one record's samples: median, interval, percentiles, rates, and the slowest rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

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
    """The statistics of a row, in seconds and bytes per second. They come from samples or from another tool's log.

    A statistic is None if it is unknown.
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
    """Return the statistics of linkbench's samples. Invalid samples give no figure and the flag BAD_SAMPLES."""
    taken = samples.seconds
    if not stats.usable(taken):
        return Times(len(taken), flags=(Flag.BAD_SAMPLES,))
    told = stats.describe(taken)
    middle, around = told.median_s, told.interval_s
    flags = {
        Flag.FEW_SAMPLES: around is None and not record.modelled,
        Flag.DRIFT: told.drift is not None and told.drift.significant,
        Flag.WARMUP_RESIDUE: told.warmup_residue > 0,
        Flag.OUTLIERS: told.num_outliers > 0,
    }
    on_host, enqueued = _on_host(samples) if samples.host_s else (None, None)
    flags[Flag.LAUNCH_BOUND] = enqueued is not None and enqueued > _LAUNCH_SHARE
    calls = samples.calls_per_sample
    of_device = header.clock == "device" and record.mode == "pipelined"
    flags[Flag.SHORT_BATCH] = of_device and calls < _FEW_CALLS and calls * middle < _SHORT_S
    moves = record.payload_bytes and record.step is None and header.pattern != flops.PATTERN
    algbw = record.payload_bytes / middle if moves else None
    return Times(
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
        flags=tuple(flag for flag, holds in flags.items() if holds),
        host_median_s=on_host,
        enqueue_fraction=enqueued,
        **_of_ranks(header, record, samples),
        **_soaked(record, samples),
    )


def _on_host(samples: Samples) -> tuple[float | None, float | None]:
    """Return the median time by the hosts' clocks, and the median share of this time that issuing the calls took."""
    shares = [issued / all_ for issued, all_ in zip(samples.enqueue_s, samples.host_s, strict=False) if all_]
    return _middle(samples.host_s), _middle(shares)


def _of_ranks(header: Header, record: Record, samples: Samples) -> dict[str, Any]:
    """Return the statistics of each rank's times. Modelled rows and rows of single copies have none."""
    if not samples.by_rank and not samples.rank_mean_s and not samples.slowest_counts:
        return {}
    shares = RankShares(header, record, samples)
    return {
        "last_arriver_s": shares.last_arriver_s(),
        "slowest_rank": shares.slowest_rank(),
        "slowest_counts": shares.slowest_counts(),
        "rotation": shares.rotation(),
        "compat": shares.compat(),
    }


def _soaked(record: Record, samples: Samples) -> dict[str, Any]:
    """Return two medians of a row with --soak: for the first two seconds of samples, and for the second half."""
    if record.stop_reason != StopReason.SOAKED:
        return {}
    ends_s = np.cumsum(samples.seconds) * samples.calls_per_sample
    num_first = max(1, int(np.searchsorted(ends_s, _BURST_S)))
    first_late = int(np.searchsorted(ends_s, ends_s[-1] / 2))
    return {
        "burst_s": float(median(samples.seconds[:num_first])),
        "sustained_s": float(median(samples.seconds[first_late:])),
    }


def _middle(values: Sequence[float]) -> float | None:
    return float(median(values)) if len(values) else None


def from_reported(header: Header, record: Record) -> Times:
    """Return another tool's statistics under the names that the tool uses."""
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
