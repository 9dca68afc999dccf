"""Predict how long a recorded step takes on another machine.

The recorded exchange times are replaced by predicted times, and the compute time is multiplied by a factor. The
predicted times and the factor are known only as intervals. The recorded steps are replayed with the low end, the middle
and the high end of each interval. Random draws of the errors (predict/draws.py) are interpolated between these replays,
which gives an interval for the predicted step.

If two machines depend on the same assumption, both use the same random draws of its error. Machines are compared draw
by draw, so this error cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, Protocol

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.job.graph import Graph, GraphChange
from bench.job.messages import ElsewhereCode, RefusedJobCode
from bench.job.model import MatchedCollective, TracedJob
from bench.job.network import Network
from bench.job.parts import RankTimeline, timelines_of
from bench.job.what_if import blocking
from bench.predict.candidate import Unknown
from bench.predict.draws import DrawnRange, Draws, range_of
from bench.predict.kernels import Rates
from bench.predict.predict import BASES, EfficiencyEvidence, Prediction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bench.config.site import InstanceTypes

    Floats = NDArray[np.float64]

_MODEL_SPREAD = 1.15  # assumed: the largest deviation of a GPU's real ratio from that of its data sheet's rates
_TRAINING = {"bf16", "fp16", "tf32"}  # the matrix types of training; rates of other types are poor evidence
_ENDS: tuple[Callable[[Prediction], float], ...] = (
    lambda alone: alone.low_s,
    lambda alone: alone.centre_s,
    lambda alone: alone.high_s,
)


@dataclass(frozen=True, slots=True)
class ComputeFactor:
    """The compute time on the other machine, divided by the recorded compute time.

    `basis`: the type of evidence. Its values are:

    `given`: the user gave the factor.
    `assumed`: the factor follows from data sheets.
    `measured`: matrix products were measured on both GPUs.
    `same-gpu`: both machines have the same GPU model.
    `recorded`: the factor is unknown, so the recorded time does not change.

    `gpu`: the GPU model of the other machine; None if unknown.
    """

    low: float
    middle: float
    high: float
    basis: str
    gpu: str | None = None


class OtherNetwork(Protocol):
    """The exchange times on another machine: predicted (`Network`) or measured there (`MeasuredNetwork`)."""

    @property
    def name(self) -> str:
        """The name of the machine, or the name of the run that measured the machine."""
        ...

    def alone(self, one: MatchedCollective, blocks: bool = True) -> Prediction | None:
        """Return the time of one collective in isolation; None if unknown.

        `blocks`: whether a rank waits for the collective immediately after issuing it.
        """
        ...

    def rested(self, one: MatchedCollective, idle_s: float) -> float:
        """Return the collective's time after `idle_s` seconds of idle links, divided by its time without a pause."""
        ...


class RecordedSteps:
    """The steps of a job with all ranks, ready to be replayed.

    Raises UsageError if the traces do not suffice for a prediction.
    """

    def __init__(self, job: TracedJob) -> None:
        """Check that every rank has a trace and that all ranks recorded common steps."""
        if job.missing:
            raise UsageError.of(RefusedJobCode.MISSING_RANKS, num=len(job.missing), num_ranks=job.num_ranks)
        if not job.num_steps:
            raise UsageError.of(RefusedJobCode.NO_COMMON_STEP)
        self.job = job

    @cached_property
    def _timelines(self) -> Mapping[int, RankTimeline]:
        return timelines_of(self.job)

    @cached_property
    def graph(self) -> Graph:
        """The events of all ranks."""
        return Graph(self.job, self._timelines)

    @cached_property
    def blocking(self) -> set[int]:
        """The collectives for which a rank waits before it issues another collective."""
        return blocking(self.job, self._timelines)

    @cached_property
    def recorded_s(self) -> float:
        """The recorded time of a step on its slowest rank: the median over all steps."""
        return median(self.graph.recorded())

    @cached_property
    def replayed_s(self) -> float:
        """The time of a step on its slowest rank in a replay without a change: the median over all steps."""
        return median(self.graph.steps())

    @property
    def gpu(self) -> str | None:
        """The GPU model of the ranks; None if it is unknown or if ranks have different GPUs."""
        names = {trace.device_name for trace in self.job.traces.values()}
        name = names.pop() if len(names) == 1 else None
        return catalogue.gpu_printed(name) if name else None


@dataclass(frozen=True)
class Elsewhere:
    """A job on another machine.

    `network`: the predicted or measured exchange times on the other machine.
    `num_nodes`: the number of nodes of the other machine.
    """

    recorded: RecordedSteps
    network: OtherNetwork
    num_nodes: int
    factor: ComputeFactor

    def step_s(self, draws: Draws) -> Floats:
        """Return the predicted seconds of a step for each random draw of the errors."""
        import numpy as np

        grid = self._grid
        ones = draws.ones
        exchange = 0 * ones if self._longest is None or not self._is_open else self._exchange_place(draws)
        compute = 0 * ones
        if self.factor.low < self.factor.high:
            name = self._compute_unknown
            drawn = draws.between(name, self.factor.low, self.factor.high)
            compute = 2 * np.log(drawn / self.factor.low) / np.log(self.factor.high / self.factor.low) - 1
        steps: Floats = np.zeros(draws.num)
        for (at_exchange, at_compute), seconds in grid.items():
            steps += seconds * _weight(exchange, at_exchange) * _weight(compute, at_compute)
        return steps

    @cached_property
    def range(self) -> DrawnRange:
        """The interval of the step time at level CONFIDENCE, and the median step time."""
        return range_of(self.step_s(Draws()))

    @cached_property
    def exchange_s(self) -> tuple[float, float, float]:
        """The low, middle and high predicted exchange time of a step, on the rank with the longest exchange time."""
        sums = []
        for end in _ENDS:
            by_rank: dict[int, float] = {}
            for index, alone in self.predictions.items():
                for rank in self.recorded.job.collectives[index].parts:
                    by_rank[rank] = by_rank.get(rank, 0.0) + end(alone)
            sums.append(max(by_rank.values(), default=0.0) / self.recorded.job.num_steps)
        return sums[0], sums[1], sums[2]

    @cached_property
    def bases(self) -> list[str]:
        """The types of evidence for the exchange times, the most reliable type first."""
        return sorted({alone.basis for alone in self.predictions.values()}, key=BASES.index)

    @property
    def num_predicted(self) -> int:
        """The number of exchanges with a known time on the other machine."""
        return len(self.predictions)

    @property
    def basis(self) -> str:
        """The types of the evidence for compute and for exchanges, joined by `+`.

        If the exchanges have several types of evidence, the least reliable type is used.
        """
        return "+".join([self.factor.basis, *self.bases[-1:]])

    @cached_property
    def predictions(self) -> Mapping[int, Prediction]:
        """The predicted time of each exchange on the other machine, by index.

        Exchanges of unknown size or type are left out.
        """
        found = {}
        for index, one in enumerate(self.recorded.job.collectives):
            alone = self.network.alone(one, index in self.recorded.blocking)
            if alone is not None:
                found[index] = alone
        return found

    @cached_property
    def unknowns(self) -> Mapping[str, Unknown]:
        """The unknown quantities that widen the interval of the step.

        The keys name the random draws of these quantities.
        """
        found = {}
        if self._longest is not None and self._is_open:
            facts = {"machine": self.network.name, "num_nodes": self.num_nodes}
            links = Coded.of(ElsewhereCode.EXCHANGES, **facts).text
            command = Coded.of(ElsewhereCode.MEASURE_LINKS, **facts).text
            found[self._links_unknown] = Unknown(links, command)
            pool = Coded.of(ElsewhereCode.EFFICIENCY, links=self._longest.link_class).text
            found[f"pool {self._longest.pool}"] = Unknown(pool, command)
        if self.factor.low < self.factor.high:
            facts = {"gpu": self.factor.gpu, "recorded": self.recorded.gpu}
            compute = Coded.of(ElsewhereCode.COMPUTE, **facts).text
            found[self._compute_unknown] = Unknown(compute, Coded.of(ElsewhereCode.MEASURE_COMPUTE, **facts).text)
        return found

    @property
    def _compute_unknown(self) -> str:
        return f"compute {self.recorded.gpu} {self.factor.gpu}"

    @property
    def _links_unknown(self) -> str:
        return f"links {self.network.name}"

    @cached_property
    def _longest(self) -> Prediction | None:
        """The prediction of the longest exchange. The error of this prediction is assumed to apply to all exchanges."""
        return max(self.predictions.values(), key=lambda alone: alone.centre_s, default=None)

    @property
    def _is_open(self) -> bool:
        return self._longest is not None and self._longest.low_s < self._longest.high_s

    def _exchange_place(self, draws: Draws) -> Floats:
        assert self._longest is not None
        return draws.place(draws.error_of(self._links_unknown, self._longest))

    @cached_property
    def _grid(self) -> Mapping[tuple[int, int], float]:
        """The median step time of each replay.

        The key has two positions: one in the interval of the exchange times, and one in the interval of the compute
        time.

        The positions are -1 (low), 0 (middle) and 1 (high).
        """
        factors = {-1: self.factor.low, 0: self.factor.middle, 1: self.factor.high}
        exchanges = (-1, 0, 1) if self._is_open else (0,)
        computes = (-1, 0, 1) if self.factor.low < self.factor.high else (0,)
        return {(end, at): self._replayed(_ENDS[end + 1], factors[at]) for end, at in product(exchanges, computes)}

    def _replayed(self, end: Callable[[Prediction], float], factor: float) -> float:
        job = self.recorded.job

        def alone(index: int, idle_s: float) -> float:
            return end(self.predictions[index]) * self.network.rested(job.collectives[index], idle_s)

        change = GraphChange(compute_factor=factor, alone=alone, in_turn=self.predictions.keys())
        return median(self.recorded.graph.steps(change))


def _weight(place: Floats, at: int) -> Floats:
    """Return the weight of one replay in the linear interpolation between replays, for each draw.

    `place`: the position of each draw in the interval, from -1 (low end) to 1 (high end).
    `at`: the position of the replay: -1 (low end), 0 (middle) or 1 (high end).
    """
    import numpy as np

    weights: Floats = np.clip(1 - np.abs(place - at), 0, None)
    return weights


def on_instance(
    recorded: RecordedSteps,
    site: InstanceTypes,
    instance: str,
    num_nodes: int | None,
    evidence: EfficiencyEvidence,
    rates: Rates,
    compute_factor: float | None = None,
) -> Elsewhere:
    """Return the job on nodes of an instance type.

    Raises UsageError if the nodes cannot have equal numbers of ranks, or if no exchange can be predicted on this
    machine.

    `num_nodes`: the number of nodes. None means the smallest number of nodes with enough GPUs.
    `rates`: the FLOP/s of matrix products in the user's runs.
    """
    job, found = recorded.job, site.instance(instance)
    nodes = num_nodes or -(-job.num_ranks // found.gpus)
    if nodes < 1 or nodes * found.gpus < job.num_ranks or job.num_ranks % nodes:
        facts = {"num_ranks": job.num_ranks, "num_nodes": nodes, "machine": found.name, "num_gpus": found.gpus}
        raise UsageError.of(RefusedJobCode.UNEVEN, **facts)
    per_node = job.num_ranks // nodes
    network = Network(found.name, site.links(found.name, per_node), evidence, job, per_node)
    elsewhere = Elsewhere(recorded, network, nodes, factor_of(recorded.gpu, found.gpu, compute_factor, rates))
    if not elsewhere.num_predicted and network.refusal is not None:
        raise network.refusal
    return elsewhere


def factor_of(own: str | None, gpu: str | None, given: float | None, rates: Rates) -> ComputeFactor:
    """Return the compute time on another GPU, divided by the compute time on the recorded GPU.

    `own`: the recorded GPU model.
    `gpu`: the other GPU model.

    The data sheets give a ratio of matrix rates and a ratio of memory rates. The true ratio is assumed to be between
    these ratios, or within 15 % of one of them. If matrix products were measured on both GPUs, their rates replace the
    matrix rates of the data sheets.
    """
    if given is not None:
        if not given > 0:
            raise UsageError(f"--compute-factor must be above zero, not {given:g}")
        return ComputeFactor(given, given, given, "given", gpu)
    if own is None or gpu is None:
        return ComputeFactor(1.0, 1.0, 1.0, "recorded", gpu)
    if own == gpu:
        return ComputeFactor(1.0, 1.0, 1.0, "same-gpu", gpu)
    ours, theirs = catalogue.gpu(own), catalogue.gpu(gpu)
    common = ours.flops.keys() & theirs.flops.keys()
    kinds = common & _TRAINING or common
    measured = [rates[own, kind] / rates[gpu, kind] for kind in kinds if (own, kind) in rates and (gpu, kind) in rates]
    stated = [] if measured else [ours.flops[kind] / theirs.flops[kind] for kind in kinds]
    if ours.memory_bytes_per_s and theirs.memory_bytes_per_s:
        stated.append(ours.memory_bytes_per_s / theirs.memory_bytes_per_s)
    lows = [*measured, *(ratio / _MODEL_SPREAD for ratio in stated)]
    highs = [*measured, *(ratio * _MODEL_SPREAD for ratio in stated)]
    if not lows:
        return ComputeFactor(1.0, 1.0, 1.0, "recorded", gpu)
    low, high = min(lows), max(highs)
    return ComputeFactor(low, sqrt(low * high), high, "measured" if measured and not stated else "assumed", gpu)
