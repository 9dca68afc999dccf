"""Compare measured training steps with predictions. The predictions use exchange times that a run measured.

The measured time of a step is not used to predict this step. The computation is the time of the timed layers. The time
of an exchange is measured without computation, over the same transport and ranks. The error therefore shows whether
steps can be predicted from links.

If a ddp bucket must wait for the previous bucket, its time comes from rows of back-to-back calls. The times of all
other exchanges come from rows of isolated calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.core.case import Case
from bench.core.case_argv import from_argv
from bench.core.codes import Code, Coded
from bench.core.record import known
from bench.core.training_step import TimedLayers
from bench.predict.tensors import WeightTensor, filled_buckets
from bench.results.document import Document
from bench.results.model import case_of
from bench.results.training_rows import TrainedStep

_ELEMENT_BYTES = 4
_PATTERNS = {  # the strategies with a prediction, and the patterns whose rows have the times of their exchanges
    "ddp": ("allreduce",),
    "tensor": ("allreduce",),
    "fsdp2": ("allgather", "reducescatter"),
    "pipeline": ("pingpong",),
}
_SCHEDULES = ("1f1b", "gpipe")
_SENT_SHARE = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}  # share of a bucket's bytes that is sent, by compression


class StepValidation(Code):
    """The reasons why a measured step has no prediction."""

    STRATEGY = "strategy", "no prediction for {strategy}: only steps of {strategies} are predicted"
    NO_ROWS = (
        "no-rows",
        "no valid row of {pattern} over {transport} with {num_ranks} ranks: measure them in the same run",
    )
    NOT_TIMED = "not-timed", "no prediction: the time of the computation is known of timed layers only"
    DELAYED = "delayed", "no prediction: only steps of ddp are predicted with an injected delay"
    SEVERAL_ROWS = "several-rows", "no prediction: a step with {rows} rows of ranks exchanges in more than one group"
    SCHEDULE = "schedule", "no prediction for the schedule {schedule}: only {schedules} are predicted"
    HOOK = "hook", "no prediction for the compression {hook}: only {hooks} are predicted"


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """The duration of an exchange in seconds, for each number of bytes.

    `alone`: the duration in seconds of an exchange after a pause.
    `queued`: the duration in seconds of an exchange that directly follows another exchange, without a pause.
    """

    alone: Mapping[int, float]
    queued: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """The predicted duration of a step, and of its exposed exchange, in seconds.

    `bucket_s`: for each size in bytes, the seconds of a bucket that follows another bucket. `bucket_s` is empty for
    strategies without buckets.
    """

    step_s: float
    exposed_s: float
    bucket_s: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class ValidatedStep:
    """A measured step, and its prediction or the reason why it cannot be predicted.

    `num_rows`: the number of rows that gave bucket times.
    """

    measured: TrainedStep
    predicted: PredictedStep | None
    num_rows: int
    reason: Coded | None

    @property
    def error(self) -> float | None:
        """The signed error of the predicted step."""
        return None if self.predicted is None else self.predicted.step_s / self.measured.step_s - 1


def validated(steps: Document, links: Document) -> tuple[ValidatedStep, ...]:
    """Return each step of a run with its prediction.

    `links`: the run that measured the exchanges, which may be the same run.
    """
    return tuple(_validated(one, case, links) for one, case in _cases(steps))


def predicted(
    timed: TimedLayers,
    delays_s: Mapping[tuple[int, str], float],
    num_ranks: int,
    bucket_bytes: int,
    times: ExchangeTimes,
    num_micro_batches: int = 1,
    sync_each: bool = False,
    sent_share: float = 1.0,
) -> PredictedStep:
    """Predict a ddp step from the times of its layers.

    `times`: the seconds of an allreduce.
    `bucket_bytes`: the bytes of a bucket. 0 means torch's buckets.
    `sent_share`: the share of a bucket's bytes that is sent. The exchange of a bucket starts when all ranks have its
        gradients and the previous bucket is done. Ranks exchange gradients in the last micro-batch, or with `sync_each`
        in every micro-batch.
    """
    tensors = [WeightTensor(timed.num_bytes // _ELEMENT_BYTES)] * timed.layers
    sizes = filled_buckets(tensors, _ELEMENT_BYTES, bucket_bytes or None, _ELEMENT_BYTES)
    alone_s = {size: interpolated(times.alone, size * sent_share) for size, _ in sizes}
    bucket_s = {size: interpolated(times.queued, size * sent_share) for size, _ in sizes}
    buckets = [
        (round(size / timed.num_bytes), alone_s[size], bucket_s[size]) for size, number in sizes for _ in range(number)
    ]
    ranks = range(num_ranks)
    passes = [_ready_s(timed, delays_s, rank) for rank in ranks]
    before = [sum(delays_s.get((rank, name), 0.0) for name in ("data", "host", "h2d")) for rank in ranks]
    if sync_each:
        later_s, later_exposed_s = _exchanged(passes, [0.0] * num_ranks, buckets)
        done_s, exposed_s = _exchanged(passes, before, buckets)
        done_s += (num_micro_batches - 1) * later_s
        exposed_s += (num_micro_batches - 1) * later_exposed_s
    else:
        starts = [before[rank] + (num_micro_batches - 1) * passes[rank][-1] for rank in ranks]
        done_s, exposed_s = _exchanged(passes, starts, buckets)
    update_s = max(delays_s.get((rank, "optimizer"), 0.0) for rank in ranks)
    return PredictedStep(_with_loader(timed, done_s + update_s), exposed_s, bucket_s)


def _exchanged(
    passes: Sequence[Sequence[float]], starts: Sequence[float], buckets: Sequence[tuple[int, float, float]]
) -> tuple[float, float]:
    """Return when the last bucket of a micro-batch is done, and the time from the last gradient to this moment.

    `passes`: for each rank, the times at which its layers have their gradients, measured from the start of the rank.
    `starts`: the start time of each rank.
    `buckets`: for each bucket, three values: its number of layers, its seconds after a pause, and its seconds directly
        after another bucket.
    """
    done_s, num_full = 0.0, 0
    for layers, alone_s, queued_s in buckets:
        num_full += layers
        ready_s = max(start + own[num_full - 1] for start, own in zip(starts, passes, strict=True))
        done_s = done_s + queued_s if done_s > ready_s else ready_s + alone_s
    return done_s, done_s - max(start + own[-1] for start, own in zip(starts, passes, strict=True))


def _of_ddp(case: Case, timed: TimedLayers, num_ranks: int, times: Mapping[str, ExchangeTimes]) -> PredictedStep:
    delays: dict[tuple[int, str], float] = {}
    for injected in case.inject:
        delays[injected.rank, injected.segment] = delays.get((injected.rank, injected.segment), 0.0) + injected.delay_s
    num, share = case.micro_batches or 1, _SENT_SHARE[case.hook]
    return predicted(timed, delays, num_ranks, case.bucket, times["allreduce"], num, bool(case.sync_each), share)


def _of_tensors(case: Case, timed: TimedLayers, num_ranks: int, times: Mapping[str, ExchangeTimes]) -> PredictedStep:
    """Predict a step in which the ranks divide every layer, and allreduce activations once per layer in each pass."""
    layers = (case.micro_batches or 1) * timed.layers
    exposed_s = 2 * layers * interpolated(times["allreduce"].alone, timed.activation_bytes)
    compute_s = layers * (timed.forward_s + timed.backward_s) / num_ranks
    return PredictedStep(_with_loader(timed, compute_s + exposed_s), exposed_s, {})


def _of_shards(case: Case, timed: TimedLayers, num_ranks: int, times: Mapping[str, ExchangeTimes]) -> PredictedStep:
    """Predict a step in which each layer is gathered in both passes, and its gradients are reduce-scattered.

    If the ranks compute on hosts, the passes wait for these exchanges.
    """
    num = case.micro_batches or 1
    gather_s = interpolated(times["allgather"].alone, timed.num_bytes)
    scatter_s = interpolated(times["reducescatter"].alone, timed.num_bytes)
    exposed_s = timed.layers * (2 * num * gather_s + (num if case.sync_each else 1) * scatter_s)
    compute_s = num * timed.layers * (timed.forward_s + timed.backward_s)
    return PredictedStep(_with_loader(timed, compute_s + exposed_s), exposed_s, {})


def _of_stages(case: Case, timed: TimedLayers, num_ranks: int, times: Mapping[str, ExchangeTimes]) -> PredictedStep:
    """Predict a step of a pipeline (Narayanan et al. 2021).

    For m micro-batches and p equal stages, the step takes `(m + p - 1) (f + b + 2 h)`. f and b are the seconds of a
    stage's forward and backward pass, and h is the seconds of a message to the next stage.

    The exposed exchange is the time of the step minus the passes of the longest stage, so it contains the bubble.
    """
    num = case.micro_batches or 2 * num_ranks
    hop_s = interpolated(times["pingpong"].alone, timed.activation_bytes)
    of_stages = [
        timed.layers * (stage + 1) // num_ranks - timed.layers * stage // num_ranks for stage in range(num_ranks)
    ]
    layer_s, longest = timed.forward_s + timed.backward_s, max(of_stages)
    step_s = (timed.layers + (num - 1) * longest) * layer_s + (num + num_ranks - 1) * 2 * hop_s
    return PredictedStep(_with_loader(timed, step_s), step_s - num * longest * layer_s, {})


_PREDICT: Mapping[str, Callable[[Case, TimedLayers, int, Mapping[str, ExchangeTimes]], PredictedStep]] = {
    "ddp": _of_ddp,
    "tensor": _of_tensors,
    "fsdp2": _of_shards,
    "pipeline": _of_stages,
}


def _with_loader(timed: TimedLayers, step_s: float) -> float:
    """Return the duration of a step in seconds, including the delay that its data loader causes.

    A loader that prefetches delays a step only if loading takes longer than the step.
    """
    return max(step_s, timed.data_s) if timed.prefetch else step_s + timed.data_s


def interpolated(seconds: Mapping[int, float], num_bytes: float) -> float:
    """Return the seconds for a size.

    Between two measured sizes, the logarithm of the time is linear in the logarithm of the size. Above the largest
    size, the rate stays constant. Below the smallest size, the time stays constant.
    """
    sizes = sorted(seconds)
    if num_bytes <= sizes[0]:
        return seconds[sizes[0]]
    if num_bytes >= sizes[-1]:
        return seconds[sizes[-1]] * num_bytes / sizes[-1]
    above = next(place for place, size in enumerate(sizes) if size >= num_bytes)
    low, high = sizes[above - 1], sizes[above]
    share = math.log(num_bytes / low) / math.log(high / low)
    return float(seconds[low] * (seconds[high] / seconds[low]) ** share)


def _ready_s(timed: TimedLayers, delays_s: Mapping[tuple[int, str], float], rank: int) -> list[float]:
    """Return when a rank has the gradients of each layer in a micro-batch, with the last layer first."""
    at_s, found = delays_s.get((rank, "forward"), 0.0) + timed.layers * timed.forward_s, []
    for layer in reversed(range(timed.layers)):
        late = delays_s.get((rank, "backward"), 0.0) if layer == timed.layers // 2 else 0.0
        at_s += timed.backward_s + late
        found.append(at_s)
    return found


def _cases(steps: Document) -> Iterator[tuple[TrainedStep, Case]]:
    headers = {case_of(job, header): header for job, header in steps.headers.items()}
    for one in steps.steps:
        yield one, from_argv(headers[one.job].case)


def _validated(one: TrainedStep, case: Case, links: Document) -> ValidatedStep:
    if case.timed is None:
        return ValidatedStep(one, None, 0, Coded.of(StepValidation.NOT_TIMED))
    if reason := _unpredicted(case, one.num_ranks):
        return ValidatedStep(one, None, 0, reason)
    times, num_rows = dict[str, ExchangeTimes](), 0
    for pattern in _PATTERNS[case.strategy]:
        alone, queued = (_seconds(links, pattern, mode, one) for mode in ("isolated", "pipelined"))
        if not alone:
            facts = {"pattern": pattern, "transport": one.transport, "num_ranks": one.num_ranks}
            return ValidatedStep(one, None, 0, Coded.of(StepValidation.NO_ROWS, **facts))
        times[pattern] = ExchangeTimes(alone, queued)
        num_rows += len(queued if case.strategy == "ddp" else alone)
    return ValidatedStep(one, _PREDICT[case.strategy](case, case.timed, one.num_ranks, times), num_rows, None)


def _unpredicted(case: Case, num_ranks: int) -> Coded | None:
    """Return why the steps of a case cannot be predicted; None if they can."""
    if case.strategy not in _PATTERNS:
        return Coded.of(StepValidation.STRATEGY, strategy=case.strategy, strategies=", ".join(_PATTERNS))
    if case.hook not in _SENT_SHARE:
        return Coded.of(StepValidation.HOOK, hook=case.hook, hooks=", ".join(_SENT_SHARE))
    if case.strategy == "ddp":
        return None
    if case.inject:
        return Coded.of(StepValidation.DELAYED)
    if case.mesh and int(case.mesh.partition("x")[0]) > 1:
        return Coded.of(StepValidation.SEVERAL_ROWS, rows=int(case.mesh.partition("x")[0]))
    if case.strategy == "pipeline" and case.pipeline not in _SCHEDULES:
        return Coded.of(StepValidation.SCHEDULE, schedule=case.pipeline, schedules=", ".join(_SCHEDULES))
    return None


def _seconds(links: Document, pattern: str, mode: str, step: TrainedStep) -> dict[int, float]:
    """Return the duration of a pattern on the ranks of a step, in seconds, for each number of bytes.

    Rows of `mode` are preferred.

    Rows of `pingpong` may be from a run with another number of ranks, because `pingpong` always uses two ranks.
    """
    rows = [
        row
        for row in links.summaries
        if (row.pattern, row.transport) == (pattern, step.transport)
        and (pattern == "pingpong" or known(row.num_ranks) == step.num_ranks)
        and row.median_s is not None
        and row.verified is not False
    ]
    preferred = [row for row in rows if row.mode == mode] or rows
    return {row.payload_bytes: row.median_s for row in preferred if row.median_s is not None}
