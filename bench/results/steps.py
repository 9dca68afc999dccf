"""Derive where the time of a training step goes.

Two methods are used: clocks inside the step, and variants of the step. A variant leaves out one cause of delay, for
example the exchange. The variant `bare` is the full step without clocks inside the step. The time of `bare` counts as
the time of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median

from bench.core import plugins
from bench.core.case import FACTOR, FACTORS, Case
from bench.core.case_argv import from_argv
from bench.core.record import Header, Record, Samples, StepSamples, known
from bench.core.step_trace import StepPart
from bench.core.training_step import SEGMENTS, StepTimes, StepVariant, late_segment, parts_of
from bench.results import launches, stats, step_rates
from bench.results.model import case_of
from bench.results.paired_ratio import of_blocks
from bench.results.training_rows import Removal, TrainedStep

# A rank is late if it arrived last in most samples, by at least this share of the step.
_LATE_SAMPLES, _LATE_SHARE = 0.75, 0.05
# The clocks and the variant disagree if their intervals are further apart than this share of the step.
_APART_SHARE = 0.02
# So much of what its logger counts may be DistributedDataParallel's own work around a pass.
_LOGGER_SHARE, _LOGGER_S = 0.1, 2e-3
_MIDDLE = 0.5  # of the samples, by their steps, are averaged: these parts are those of a usual step


def of_record(job: str, header: Header, record: Record) -> list[TrainedStep]:
    """Return the figures of a training step that has correct gradients. Return an empty list for any other row."""
    step, samples = record.step, record.samples
    if step is None or samples is None or record.verified is False or not stats.usable(samples.seconds):
        return []
    case = from_argv(header.case)
    bare_s, full = _bare_and_full(step, samples)
    full_s, step_s = full.seconds, median(bare_s)
    times, middle = _times(step, full.by_rank), _middle_samples(full_s)
    low, high = stats.interval(bare_s) or (None, None)
    clocks = of_blocks(bare_s, full_s, step.samples_per_block)
    removals = _removals(step, full_s, times)
    late_rank, late_s = _late(times, step_s)
    segments = {name: [_mean(own, middle) for own in by_rank] for name, by_rank in step.segments_s.items()}
    return [
        TrainedStep(
            job=case_of(job, header),
            transport=header.transport,
            strategy=case.strategy,
            gradient_bytes=record.payload_bytes,
            num_ranks=known(record.num_ranks),
            step_s=step_s,
            low_s=low,
            high_s=high,
            parts_s={
                part: tuple(fmean(times[sample].parts_s[part][rank] for sample in middle) for rank in range(len(own)))
                for part, own in times[0].parts_s.items()
            },
            exposed_by_removal=removals[StepVariant.LOCAL],
            loader_by_removal=removals[StepVariant.HOST_RESIDENT],
            copies_by_removal=removals[StepVariant.DEVICE_RESIDENT],
            disagree=tuple(variant.value for variant, removal in removals.items() if _apart(removal, step_s)),
            efficiency=median(step.twins_s[StepVariant.LOCAL]) / median(full_s),
            instruments=clocks.value - 1 if clocks else None,
            instruments_low=None if clocks is None or clocks.low is None else clocks.low - 1,
            instruments_high=None if clocks is None or clocks.high is None else clocks.high - 1,
            late_rank=late_rank,
            late_s=late_s,
            late_segment=None if late_rank is None else late_segment(late_rank, segments),
            bucket_bytes=tuple(step.bucket_bytes),
            bucket_s=tuple(done - ready for ready, done in zip(step.bucket_ready_s, step.bucket_done_s, strict=True)),
            num_launches=1,
            rates=step_rates.rates(step, step_s, known(record.num_ranks)),
            options=_options(case),
            gradient_error=step.gradient_error,
            learned=dict(step.learned),
            profiler=median(step.profiled_ratios) - 1 if step.profiled_ratios else None,
        )
    ]


def _bare_and_full(step: StepSamples, samples: Samples) -> tuple[Sequence[float], Samples]:
    """Return two results: the slowest rank's times of steps without clocks, and the samples of steps with clocks."""
    if not step.full_s:  # a file of an earlier version
        return step.twins_s[StepVariant.BARE], samples
    return samples.seconds, Samples([max(of_ranks) for of_ranks in zip(*step.full_s, strict=True)], tuple(step.full_s))


def _options(case: Case) -> dict[str, str]:
    """Return the options of a step that do not have their default values. The strategy is left out."""
    own = plugins.load("pattern", case.pattern).PATTERN.factors | {"order"}
    given = {each.name: each.show(getattr(case, each.name)) for each in FACTORS if each.name in own}
    return {name: text for name, text in given.items() if text != FACTOR[name].show(FACTOR[name].default) and text}


def steps(of_launches: Iterable[TrainedStep]) -> tuple[TrainedStep, ...]:
    """Return one result for each row of each case.

    With three launches or more, the interval covers the variation between launches.
    """
    rows: dict[tuple[object, ...], list[TrainedStep]] = {}
    for one in of_launches:
        rows.setdefault((one.job, one.gradient_bytes), []).append(one)
    return tuple(of_row[0] if len(of_row) == 1 else _merged(of_row) for of_row in rows.values())


def disagrees(record: Record) -> bool:
    """Check whether clocks and variants contradict each other about the cost of a cause of delay."""
    step, samples = record.step, record.samples
    if step is None or samples is None or not stats.usable(samples.seconds):
        return False
    _, full = _bare_and_full(step, samples)
    removals = _removals(step, full.seconds, _times(step, full.by_rank))
    return any(_apart(removal, median(full.seconds)) for removal in removals.values())


def logger_disagrees(step: StepSamples) -> bool:
    """Check whether torch's logger and linkbench's clocks disagree on a pass by more than 10 % and more than 2 ms."""
    return any(abs(own - its) > max(_LOGGER_SHARE * own, _LOGGER_S) for own, its in step.logged_s.values())


def _times(step: StepSamples, by_rank: Sequence[Sequence[float]]) -> list[StepTimes]:
    """Return how each sample's step is divided into parts."""
    found = []
    for sample in range(len(by_rank[0])):
        segments = [{name: step.segments_s[name][rank][sample] for name in SEGMENTS} for rank in range(len(by_rank))]
        exposed_s = [own[sample] for own in step.exposed_s]
        found.append(parts_of([own[sample] for own in by_rank], segments, exposed_s))
    return found


def _middle_samples(seconds: Sequence[float]) -> list[int]:
    """Return the samples whose step time is in the middle half of all step times.

    For these samples, the mean times of the parts add up to the mean time of a step.
    """
    order = sorted(range(len(seconds)), key=lambda sample: seconds[sample])
    left_out = int(len(order) * (1 - _MIDDLE) / 2)
    return order[left_out : len(order) - left_out]


def _mean(seconds: Sequence[float], samples: Sequence[int]) -> float:
    return fmean(seconds[sample] for sample in samples)


def _removals(step: StepSamples, full_s: Sequence[float], times: Sequence[StepTimes]) -> dict[StepVariant, Removal]:
    """Return the measured saving of each variant, and the saving that the clocks inside the step predict.

    All ranks begin a step when the exchange of the previous step ends. The exchange of a step begins when the last rank
    arrives. If one cause of delay is removed, another rank may become the last rank. If another rank arrives even later
    than the delayed rank, removing the cause saves no time.
    """
    num_ranks = len(times[0].step_s)
    exposed = [sample.parts_s["exposed_exchange"][0] for sample in times]
    if step.exposed_s:
        # Ranks wait several times. Without exchanges, the step is as long as that of the rank with most work.
        exposed = [
            max(times[sample].step_s)
            - max(whole - wait for whole, wait in zip(times[sample].step_s, of_ranks, strict=True))
            for sample, of_ranks in enumerate(zip(*step.segments_s["wait"], strict=True))
        ]
    inside = {StepVariant.LOCAL: exposed}
    for variant, segment in ((StepVariant.HOST_RESIDENT, "data"), (StepVariant.DEVICE_RESIDENT, "h2d")):
        saved = []
        for sample in range(len(times)):
            until = [sum(step.segments_s[name][rank][sample] for name in SEGMENTS[:5]) for rank in range(num_ranks)]
            without = [until[rank] - step.segments_s[segment][rank][sample] for rank in range(num_ranks)]
            saved.append(max(until) - max(without))
        inside[variant] = saved
    # The device-resident variant also lacks the loader, so the copies are its difference to the host-resident variant.
    longer = {
        StepVariant.LOCAL: full_s,
        StepVariant.HOST_RESIDENT: full_s,
        StepVariant.DEVICE_RESIDENT: step.twins_s[StepVariant.HOST_RESIDENT],
    }
    return {
        variant: _removal(longer[variant], step.twins_s[variant], step.samples_per_block, seconds)
        for variant, seconds in inside.items()
    }


def _removal(longer: Sequence[float], shorter: Sequence[float], per_block: int, inside: Sequence[float]) -> Removal:
    differences = []
    for first in range(0, min(len(longer), len(shorter)), per_block):
        block = slice(first, first + per_block)
        differences.append(median(longer[block]) - median(shorter[block]))
    low, high = _interval(differences)
    inside_low, inside_high = _interval(inside)
    return Removal(median(differences), low, high, median(inside), inside_low, inside_high)


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the interval of a median, also if values are negative.

    The function `stats.interval` needs positive values, so a constant is added to the values.
    """
    shift = 1.0 + max(map(abs, values))
    found = stats.interval([value + shift for value in values])
    return (None, None) if found is None else (found[0] - shift, found[1] - shift)


def _apart(removal: Removal, step_s: float) -> bool:
    ends = (removal.low_s, removal.high_s, removal.inside_low_s, removal.inside_high_s)
    if None in ends:
        return False
    low, high, inside_low, inside_high = (end or 0.0 for end in ends)
    return max(low - inside_high, inside_low - high) > _APART_SHARE * step_s


def _late(times: Sequence[StepTimes], step_s: float) -> tuple[int | None, float]:
    """Return the rank for which the other ranks wait, and the median wait in seconds.

    This rank must be the last to arrive in most samples. Return (None, 0) if no rank is the last often enough, or if
    the wait is only a small share of the step.
    """
    waits = [sample.parts_s["imbalance"] for sample in times]
    last = [min(range(len(own)), key=lambda rank: own[rank]) for own in waits]
    rank = max(set(last), key=last.count)
    late_s = median(max(own) for own in waits)
    if len(waits[0]) < 2 or last.count(rank) < _LATE_SAMPLES * len(last) or late_s < _LATE_SHARE * step_s:
        return None, 0.0
    return rank, late_s


def _merged(of_row: list[TrainedStep]) -> TrainedStep:
    """Return the medians over the launches of one row.

    The late rank of the merged row is the result that the launches gave most often, possibly none. The merged row names
    a disagreement between clocks and variants only if more than half of the launches found it.
    """
    low, high = launches.interval([one.step_s for one in of_row]) or (None, None)
    lates = [(one.late_rank, one.late_segment) for one in of_row]
    late_rank, late_segment_ = max(set(lates), key=lates.count)
    first = of_row[0]
    instruments = [one.instruments for one in of_row if one.instruments is not None]
    around = launches.interval([1 + value for value in instruments]) if instruments else None
    return replace(
        first,
        step_s=median(one.step_s for one in of_row),
        low_s=low,
        high_s=high,
        parts_s={
            part: tuple(fmean(one.parts_s[part][rank] for one in of_row) for rank in range(first.num_ranks))
            for part in StepPart
        },
        exposed_by_removal=_merged_removal([one.exposed_by_removal for one in of_row]),
        loader_by_removal=_merged_removal([one.loader_by_removal for one in of_row]),
        copies_by_removal=_merged_removal([one.copies_by_removal for one in of_row]),
        disagree=tuple(
            variant.value
            for variant in StepVariant
            if sum(variant.value in one.disagree for one in of_row) > len(of_row) / 2
        ),
        efficiency=median(one.efficiency for one in of_row),
        instruments=median(instruments) if instruments else None,
        instruments_low=around and around[0] - 1,
        instruments_high=around and around[1] - 1,
        late_rank=late_rank,
        late_segment=late_segment_,
        late_s=median(one.late_s for one in of_row),
        bucket_s=tuple(median(took) for took in zip(*(one.bucket_s for one in of_row), strict=False)),
        num_launches=len(of_row),
        rates=step_rates.at_step(first.rates, median(one.step_s for one in of_row)),
    )


def _merged_removal(of_row: list[Removal]) -> Removal:
    low, high = _over_launches([one.seconds for one in of_row])
    inside_low, inside_high = _over_launches([one.inside_s for one in of_row])
    seconds, inside_s = median(one.seconds for one in of_row), median(one.inside_s for one in of_row)
    return Removal(seconds, low, high, inside_s, inside_low, inside_high)


def _over_launches(values: Sequence[float]) -> tuple[float | None, float | None]:
    shift = 1.0 + max(map(abs, values))
    found = launches.interval([value + shift for value in values])
    return (None, None) if found is None else (found[0] - shift, found[1] - shift)
