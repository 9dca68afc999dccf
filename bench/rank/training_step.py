"""Measure a training step, and show where the time of the step goes.

A variant is a training step that leaves out one cause of delay, such as the exchange. A launch alternates blocks of
full steps with blocks of each variant. Two measurements show the cost of a cause: the time that clocks measure inside
the full step, and the time that the variant saves. All ranks run the same blocks, and rank 0 determines the number of
blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.core.case import FACTOR, Case
from bench.core.errors import UsageError
from bench.core.pattern import Pattern, Shape
from bench.core.plugins import names
from bench.core.program import Group
from bench.core.record import Failure, Flag, Record, Samples, Skip, StepSamples, StopReason, WrongCode, WrongData
from bench.core.residual import Residual
from bench.core.step_model import Transformer
from bench.core.step_plan import StepPlan
from bench.core.strategies import grid_of, obeying, strategy_traits
from bench.core.topology import rounds
from bench.core.training_step import SEGMENTS, GradientCheck, StepStamps, StepVariant, TimedLayers, exposed_of
from bench.core.transport import CountsWork, Trainer, Training, Transport
from bench.core.world import World
from bench.rank import interleaved_blocks, sampling
from bench.rank.messages import RankFailure, RankRefusal, RankSkip
from bench.rank.rows import PlannedRow, traffic
from bench.rank.step_model import model_of
from bench.rank.step_usage import StepUsage, together
from bench.rank.step_work import work_of

_LEAST_MAX_S = 2.0  # time limit of each variant: steps are long
_WARM_UP = 3  # steps; torch forms its final buckets after the first
_REPLICAS = 2  # models in memory: the one with a hook and the bare one
_COPIES = 3  # of the gradients in each model: gradients, buckets, and a timed layer's own gradient
_PROFILED_PAIRS, _LEAST_TRACED = 5, 5  # blocks with and without the profiler, and the steps of each


def plan_of(case: Case, world: World) -> StepPlan:
    """Return the plan of the training that the case describes.

    Raises UsageError if the case does not define a training, or if the training does not fit the ranks.
    """
    num_ranks = world.num_ranks
    if (case.timed is None) == (not case.workload):
        raise UsageError.of(RankRefusal.NO_LAYERS)
    if case.timed is not None and (option := _of_models(case)):
        raise UsageError.of(RankRefusal.ONLY_WORKLOAD, option=option)
    model = model_of(case)
    inside = next((one.segment for one in case.inject if one.segment in ("forward", "backward")), None)
    if model is not None and inside:
        raise UsageError.of(RankRefusal.DELAY_INSIDE_MODEL, segment=inside)
    for one in case.inject:
        if one.rank >= num_ranks:
            raise UsageError.of(RankRefusal.NO_SUCH_RANK, rank=one.rank, num_ranks=num_ranks)
    delays: dict[tuple[int, str], float] = {}
    for one in case.inject:
        delays[one.rank, one.segment] = delays.get((one.rank, one.segment), 0.0) + one.delay_s
    ranks = rounds(world, "world", case.order)[0][0].ranks
    grid = grid_of(case.strategy, case.mesh, ranks)
    if grid is None:
        raise UsageError.of(RankRefusal.MESH_WORLD, mesh=case.mesh, num_ranks=num_ranks)
    inner = strategy_traits(case.strategy).inner
    usual = 2 * grid.inner if inner == "stages" else 1
    plan = StepPlan(case, case.timed, model, delays, grid, case.micro_batches or usual)
    _check_division(plan, inner)
    return plan


def needed_bytes(plan: StepPlan) -> int:
    """Return the memory that a rank needs for both replicas of the model, and for one more copy of the weights.

    The function assumes that layers are not divided among ranks.
    """
    num_ranks = len(plan.grid.ranks)
    vectors = {
        "": 0,
        "own": 1,
        "neighbours": 1 + min(2, num_ranks - 1) + 1,  # and their sum
        "all": num_ranks * (plan.case.staleness + 1),
    }[strategy_traits(plan.case.strategy).vectors]
    return _REPLICAS * (plan.weight_bytes + (_COPIES + vectors) * plan.gradient_bytes) + plan.weight_bytes


def refused(case: Case) -> Skip | None:
    """Return why the strategy cannot train with an option of the case, or None if all options fit."""
    traits = strategy_traits(case.strategy)
    for name in sorted({option for known in names("strategy") for option in strategy_traits(known).obeys}):
        if name not in traits.obeys and getattr(case, name) != FACTOR[name].default:
            option, others = FACTOR[name].flags[-1], list(obeying(name))
            return Skip.of(RankSkip.STRATEGY_IGNORES, strategy=case.strategy, option=option, strategies=others)
    return None


def _of_models(case: Case) -> str | None:
    """Return the first option that the case sets although it applies only to models from a workload.

    Return None if there is no such option.
    """
    names_ = ("layers", "resize", "samples", "autocast", "recompute", "trained", "compiled")
    return next((FACTOR[name].flags[-1] for name in names_ if getattr(case, name) != FACTOR[name].default), None)


def _check_division(plan: StepPlan, inner: str) -> None:
    """Raise UsageError if layers or micro-batches cannot be divided among the ranks of a mesh row."""
    num = plan.grid.inner
    if isinstance(plan.model, Residual) and inner in ("tensors", "experts"):
        raise UsageError.of(RankRefusal.NOT_DIVIDED, strategy=plan.case.strategy)
    if isinstance(plan.model, Transformer):
        _check_model(plan.model, inner, num)
    elif plan.timed is not None:
        _check_timed(plan.timed, inner, num)
    if inner == "stages":
        layers = plan.model.num_layers if plan.model else plan.timed.layers if plan.timed else 0
        num_stages = num * plan.case.chunks_per_stage
        if layers < num_stages:
            raise UsageError.of(RankRefusal.TOO_FEW_LAYERS, layers=layers, num_stages=num_stages)
        if plan.num_micro_batches % num:
            raise UsageError.of(RankRefusal.MICRO_BATCHES_UNEVEN, micro_batches=plan.num_micro_batches, num=num)


def _check_model(model: Transformer, inner: str, num: int) -> None:
    """Raise UsageError if the sizes of a model cannot be divided among the ranks of a mesh row."""
    if inner == "experts" and model.experts == 1:
        raise UsageError.of(RankRefusal.NO_EXPERTS)
    divided = {"tensors": ("heads", "kv_heads", "feedforward"), "experts": ("experts",)}.get(inner, ())
    for name in divided:
        if getattr(model, name) % num:
            raise UsageError.of(RankRefusal.SIZE_UNEVEN, name=name, size=getattr(model, name), num=num)


def _check_timed(timed: TimedLayers, inner: str, num: int) -> None:
    """Raise UsageError if the bytes of layers that only sleep cannot be divided among the ranks of a mesh row."""
    if inner == "tensors" and timed.num_bytes % (4 * num):
        raise UsageError.of(RankRefusal.TENSORS_UNEVEN, num_bytes=timed.num_bytes, num=num)
    if inner == "experts" and timed.activation_bytes % (4 * num):
        raise UsageError.of(RankRefusal.TOKENS_UNEVEN, num_bytes=timed.activation_bytes, num=num)


class StepMeasurer:
    """Measures one training step on this rank. Rank 0 returns the record. Other ranks return None."""

    def __init__(
        self,
        case: Case,
        pattern: Pattern,
        transport: Transport,
        plan: StepPlan,
        hosts: tuple[str, ...],
        beat: Callable[[str], None],
        working: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._case, self._transport, self._plan, self._hosts = case, transport, plan, hosts
        self._beat, self._working, self._channel = beat, working, transport.channel
        num_ranks = transport.place.num_ranks
        self._group = Group("world", tuple(range(num_ranks)))
        self._shape = Shape(num_ranks, pattern.payload(plan.gradient_bytes, Shape(num_ranks, 0)))
        self._row = PlannedRow(
            "isolated", self._shape, (plan.gradient_bytes,), (self._group,), max(case.max_s, _LEAST_MAX_S)
        )
        self._counted = traffic(pattern, self._shape, self._group, hosts)
        self._trainer: Trainer | None = None
        self._needed = 0
        self._logged: dict[str, tuple[float, float]] = {}

    def prepare(self, available_bytes: int) -> tuple[Record, ...] | None:
        """Build the model and check one step. Return None if the step can be timed.

        If the step cannot be timed, rank 0 returns a skipped or failed record, and other ranks return no record.
        """
        self._beat("step: building the model")
        transport = self._transport
        if skip := refused(self._case) or self._untrainable():
            return self._ended(skipped=skip)
        needed = needed_bytes(self._plan)
        free = self._channel.share(available_bytes)
        short = next((rank for rank, own in enumerate(free) if own < needed), None)
        if not isinstance(transport, Training):
            return self._ended(skipped=Skip.of(RankSkip.NO_TRAINING, transport=self._case.transport))
        if short is not None:
            facts = {"need_mib": needed >> 20, "free_mib": free[short] >> 20}
            skip = Skip.of(RankSkip.NO_MEMORY, payload_bytes=self._shape.payload_bytes, rank=short, **facts)
            return self._ended(skipped=skip)
        self._needed = needed
        self._usage = StepUsage(self._case.transport, transport.place.local_rank)
        with self._working():
            self._trainer = transport.trainer(self._plan)
        self._beat("step: warm-up")
        for variant in (StepVariant.BARE, StepVariant.FULL):
            self._trainer.run(variant, _WARM_UP)
        self._beat("step: checking the gradients")
        found = self._channel.gather(self._trainer.check())
        logged = self._channel.gather(self._trainer.logged())
        self._logged = _most_apart(logged or [])
        failure = None if found is None else self._failure(found)
        if not self._channel.broadcast(failure is not None):
            return None
        return self._ended(failed=failure) if failure else ()

    def _untrainable(self) -> Skip | None:
        """Return why some rank's library cannot execute the plan, or None if all ranks can execute the plan."""
        transport = self._transport
        own = transport.untrainable(self._plan) if isinstance(transport, Training) else None
        return next((skip for skip in self._channel.share(own) if skip is not None), None)

    def take(self) -> tuple[tuple[Group, Record], ...]:
        """Take the samples of all variants, then check the gradients.

        Sampling ends at a time limit, or earlier if each variant's time relative to the full step is known precisely
        enough. The check covers the last measured full step, and additional steps after the measurement.
        """
        assert self._trainer is not None
        stamps: dict[StepVariant, list[list[StepStamps]]] = {variant: [] for variant in StepVariant}
        with sampling.no_garbage():
            per_block, reason = self._blocks(stamps)
        counting = self._trainer if isinstance(self._trainer, CountsWork) else None
        used = self._channel.gather(self._usage.found(counting.device_peaks() if counting else {}))
        self._beat("step: last check")
        last = self._channel.gather(self._trainer.check_last())
        error, learned = self._trainer.gradient_error(), self._trainer.learned()
        fresh = self._channel.gather(self._trainer.check())
        counted = self._channel.gather(counting.work() if counting else {})
        ratios = self._profiled(per_block) if self._case.trace else ()
        if last is None or fresh is None:
            return ()
        checks = last if _first_wrong(last) else fresh
        record = self._record(stamps, per_block, reason, checks, error)
        assert record.step is not None and used is not None and counted is not None
        work = work_of(self._plan, counted)
        record.step = replace(
            record.step,
            work=work,
            learned=learned,
            profiled_ratios=ratios,
            predicted_bytes=self._needed,
            **together(used),
        )
        return ((self._group, record),)

    def _blocks(self, stamps: dict[StepVariant, list[list[StepStamps]]]) -> tuple[int, str]:
        assert self._trainer is not None
        step_s: float = max(
            self._channel.share(median(one.step_s for one in self._trainer.run(StepVariant.FULL, _WARM_UP)))
        )
        per_block = interleaved_blocks.per_block(self._case, self._row, step_s)
        began, num_blocks, reason = time.monotonic(), 0, None
        while reason is None:
            self._beat(f"step: {num_blocks} blocks of each variant")
            for variant in _order(num_blocks):
                self._usage.begin()
                stamped = self._trainer.run(variant, per_block)
                if variant is StepVariant.FULL:
                    self._usage.end(per_block)
                gathered = self._channel.gather(stamped)
                if gathered is not None:
                    stamps[variant] += [list(of_ranks) for of_ranks in zip(*gathered, strict=True)]
            num_blocks += 1
            slowest = {variant: _slowest(of_variant) for variant, of_variant in stamps.items()}
            pairs = [
                (slowest[variant], slowest[StepVariant.FULL])
                for variant in StepVariant
                if variant is not StepVariant.FULL
            ]
            elapsed_s = time.monotonic() - began
            stop = interleaved_blocks.stop(
                self._case, self._row, pairs, per_block, num_blocks, elapsed_s, len(StepVariant)
            )
            over = self._case.budget_s is not None and elapsed_s > self._case.budget_s
            reason = self._channel.broadcast(stop or (StopReason.MAX_TIME if over else None))
        return per_block, reason

    def _profiled(self, per_block: int) -> tuple[float, ...]:
        """Alternate blocks with and without a profiler. Keep the last trace.

        Return, for each pair of blocks, the ratio of the step time with the profiler to the step time without it.
        """
        assert self._trainer is not None
        self._beat("step: the trace")
        file = Path(self._case.trace) / f"rank{self._transport.place.rank}.json.gz"
        ratios = []
        for _ in range(_PROFILED_PAIRS):
            found = []
            for profiled_into in (None, file):
                num_steps = max(per_block, _LEAST_TRACED)
                stamped = self._channel.share(self._trainer.traced(profiled_into, num_steps))
                found.append(median(_slowest([*zip(*stamped, strict=True)])))
            ratios.append(found[1] / found[0])
        return tuple(ratios)

    # -- records

    def _record(
        self,
        stamps: dict[StepVariant, list[list[StepStamps]]],
        per_block: int,
        reason: str,
        checks: Sequence[GradientCheck],
        error: float | None,
    ) -> Record:
        full, bare, first = stamps[StepVariant.FULL], stamps[StepVariant.BARE], _first_wrong(checks)
        segments = {
            segment: tuple([sample[rank].segments_s[place] for sample in full] for rank in self._group.ranks)
            for place, segment in enumerate(SEGMENTS)
        }
        # If each rank waits only once in a step, in the same group, the shortest wait is the exposed exchange.
        waits_once = all(len(own.waits) == 1 for own in full[0]) and len({own.waits[0][0] for own in full[0]}) == 1
        exposed = [] if waits_once else [exposed_of([own.waits for own in sample]) for sample in full]
        buckets = [*zip(*(sample[0].buckets for sample in full), strict=False)]
        of_step = StepSamples(
            per_block,
            {
                variant: _slowest(of_variant)
                for variant, of_variant in stamps.items()
                if variant not in (StepVariant.FULL, StepVariant.BARE)
            },
            segments,
            self._by_rank(full),
            tuple(int(one[0][0]) for one in buckets),
            tuple(median(start for _, start, _ in one) for one in buckets),
            tuple(median(end for _, _, end in one) for one in buckets),
            tuple([of_ranks[rank] for of_ranks in exposed] for rank in self._group.ranks) if exposed else (),
            gradient_error=error,
            logged_s=self._logged,
        )
        return Record(
            "isolated",
            self._row.requested,
            **self._counted,
            in_place=True,
            verified=first is None,
            num_wrong=sum(check.num_wrong for check in checks),
            first_wrong=first,
            compared="full",
            stop_reason=reason,
            flags=(Flag.WRONG_DATA,) if first else (),
            samples=Samples(_slowest(bare), self._by_rank(bare)),
            step=of_step,
        )

    def _by_rank(self, stamps: list[list[StepStamps]]) -> tuple[list[float], ...]:
        return tuple([sample[rank].step_s for sample in stamps] for rank in self._group.ranks)

    def _failure(self, checks: Sequence[GradientCheck]) -> Failure | None:
        first = _first_wrong(checks)
        if first is None:
            return None
        rank = first.facts["rank"]
        facts = {"num_wrong": sum(check.num_wrong for check in checks), "first": first.text}
        return Failure.of(RankFailure.WRONG_BEFORE_TIMING, rank, self._hosts[rank], **facts)

    def _ended(self, **why: Any) -> tuple[Record, ...]:
        if self._transport.place.rank != 0:
            return ()
        return (Record("isolated", self._row.requested, **self._counted, **why),)


def _first_wrong(checks: Sequence[GradientCheck]) -> WrongData | None:
    """Return the first wrong gradient of any rank.

    If no gradient is wrong, return the first part of the model that differs between ranks although it should be equal.
    """
    for check in checks:
        if check.first is not None:
            return check.first
    known: dict[str, str] = {}
    for rank, check in enumerate(checks):
        for part, digest in check.digests.items():
            if known.setdefault(part, digest) != digest:
                return WrongData.of(WrongCode.UNEQUAL, rank=rank)
    return None


def _most_apart(of_ranks: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Return two times for each segment: by linkbench's clocks and by the library's logger.

    For each segment, the function picks the rank whose two times differ most. The result is empty if the library's
    logger recorded no times on some rank.
    """
    names_ = of_ranks[0] if of_ranks and all(of_ranks) else ()
    return {name: max((own[name] for own in of_ranks), key=lambda pair: abs(pair[0] - pair[1])) for name in names_}


def _order(num_blocks: int) -> list[StepVariant]:
    """Return the order in which a round runs the variants and the full step.

    Every second round runs the variants in the reverse order. The full step (FULL) always comes last.
    """
    variants = [variant for variant in StepVariant if variant is not StepVariant.FULL]
    return [*(variants if num_blocks % 2 == 0 else variants[::-1]), StepVariant.FULL]


def _slowest(stamps: Sequence[Sequence[StepStamps]]) -> list[float]:
    """Return the slowest rank's seconds in each sample."""
    return [max(own.step_s for own in of_ranks) for of_ranks in stamps]
