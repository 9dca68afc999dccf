"""Compare measured training steps with predictions from exchange times that a run measured.

A prediction does not use the measurement of its step. The computation is the time of the timed layers, and buckets are
formed as in torch. A bucket takes as long as an allreduce of its bytes in rows of the same transport and ranks. The
error therefore shows whether steps can be predicted from links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.core.case import Case, from_argv
from bench.core.codes import Code, Coded
from bench.core.record import known
from bench.core.training_step import TimedLayers
from bench.predict.tensors import WeightTensor, filled_buckets
from bench.results.document import Document, Summary, TrainedStep
from bench.results.model import case_of

_ELEMENT_BYTES = 4
_PREDICTED = "ddp"


class StepValidation(Code):
    """Why a measured step has no prediction."""

    STRATEGY = "strategy", "no prediction for {strategy}: only steps of ddp are predicted from rows of allreduce"
    NO_ROWS = (
        "no-rows",
        "no valid row of allreduce over {transport} with {num_ranks} ranks: measure them in the same run",
    )
    NOT_TIMED = "not-timed", "no prediction: the time of the computation is known of timed layers only"


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """The seconds of a predicted step, of its exposed exchange, and of a bucket by its bytes."""

    step_s: float
    exposed_s: float
    bucket_s: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class ValidatedStep:
    """A measured step, and its prediction or the reason why it has none.

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
    """Return each step of one run with its prediction. The allreduces are from another run or from the same run."""
    return tuple(_validated(one, case, links) for one, case in _cases(steps))


def predicted(
    timed: TimedLayers,
    delays_s: Mapping[tuple[int, str], float],
    num_ranks: int,
    bucket_bytes: int,
    seconds: Mapping[int, float],
) -> PredictedStep:
    """Return the step of timed layers.

    `seconds`: the time of an allreduce, by bytes. `bucket_bytes`: 0 for torch's buckets. The exchange of a bucket
    starts when all ranks have its gradients and the previous bucket is done.
    """
    tensors = [WeightTensor(timed.num_bytes // _ELEMENT_BYTES)] * timed.layers
    sizes = filled_buckets(tensors, _ELEMENT_BYTES, bucket_bytes or None, _ELEMENT_BYTES)
    ready = [_ready_s(timed, delays_s, rank) for rank in range(num_ranks)]
    done_s, num_full, bucket_s = 0.0, 0, {}
    for size, number in sizes:
        bucket_s[size] = interpolated(seconds, size)
        for _ in range(number):
            num_full += round(size / timed.num_bytes)
            done_s = max(done_s, *(own[num_full - 1] for own in ready)) + bucket_s[size]
    last_s = max(own[-1] for own in ready)
    update_s = max(delays_s.get((rank, "optimizer"), 0.0) for rank in range(num_ranks))
    return PredictedStep(done_s + update_s, done_s - last_s, bucket_s)


def interpolated(seconds: Mapping[int, float], num_bytes: float) -> float:
    """Return the seconds for a size.

    Between two measured sizes, they are on a straight line of logarithms. Above the largest size, the rate of the
    largest applies; below the smallest size, the time of the smallest.
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
    """Return when a rank has the gradients of each layer, with the last layer first."""
    before = sum(delays_s.get((rank, segment), 0.0) for segment in ("data", "host", "h2d", "forward"))
    at_s, found = timed.data_s + before + timed.layers * timed.forward_s, []
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
    if case.strategy != _PREDICTED:
        return ValidatedStep(one, None, 0, Coded.of(StepValidation.STRATEGY, strategy=case.strategy))
    rows = _rows(links, one.transport, one.num_ranks)
    if not rows:
        facts = {"transport": one.transport, "num_ranks": one.num_ranks}
        return ValidatedStep(one, None, 0, Coded.of(StepValidation.NO_ROWS, **facts))
    seconds = {row.payload_bytes: row.median_s for row in rows if row.median_s is not None}
    delays: dict[tuple[int, str], float] = {}
    for injected in case.inject:
        delays[injected.rank, injected.segment] = delays.get((injected.rank, injected.segment), 0.0) + injected.delay_s
    found = predicted(case.timed, delays, one.num_ranks, case.bucket, seconds)
    return ValidatedStep(one, found, len(rows), None)


def _rows(links: Document, transport: str, num_ranks: int) -> Sequence[Summary]:
    """Return the rows of allreduce among these ranks.

    Back-to-back rows are preferred, because buckets are exchanged back to back.
    """
    rows = [
        row
        for row in links.summaries
        if (row.pattern, row.transport, known(row.num_ranks)) == ("allreduce", transport, num_ranks)
        and row.median_s is not None
        and row.verified is not False
    ]
    return [row for row in rows if row.mode == "pipelined"] or rows
