"""Run training steps by torch, in host memory or on a GPU. This module is the common part of all strategies.

A rank has two replicas of the model. The first replica has clocks and metered groups of ranks. Metered groups record
the waits for exchanges, and can leave exchanges out. The second replica has neither clocks nor metered groups. The
learning rate of measured steps is 0, so the optimizer does its work, but the weights do not change.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.core import plugins
from bench.core.batch_loader import BatchLoader
from bench.core.record import WrongCode, WrongData
from bench.core.residual import Residual
from bench.core.step_plan import StepPlan
from bench.core.strategies import strategy_traits
from bench.core.training_step import SEGMENTS, GradientCheck, StepStamps, StepVariant, means
from bench.core.waiting import sleep_until
from bench.transports._profile import TorchProfile
from bench.transports._step_place import GpuPlace, HostPlace
from bench.transports._torch_flops import counted_flops
from bench.transports.strategies import _small_problem as small_problem
from bench.transports.strategies._blocks import BlockSource
from bench.transports.strategies._groups import Meter, RankGroups
from bench.transports.strategies._replica import BucketWait, Build, ModelSource, Replica, Span
from bench.transports.strategies._residual import ResidualSource
from bench.transports.strategies._timed import TimedSource

_LOGGED_STEPS = 10  # the logger of DistributedDataParallel records the first ten


@dataclass(frozen=True, slots=True)
class _Marks:
    """The marks of a step. A mark is a point in time on the host or on the GPU.

    `edges`: the marks at the boundaries of the step's segments.
    `spans`: the name, the begin and the end of each part of the passes.
    `waits`: the group, the begin and the end of each wait for an exchange.
    """

    edges: list[Any]
    spans: list[Span]
    waits: list[tuple[int, Any, Any]]


class StepTrainer:
    """Trains a model on one rank. All ranks call the same methods in the same order."""

    def __init__(
        self,
        torch: Any,
        rank: int,
        plan: StepPlan,
        timeout_s: float,
        place: HostPlace | GpuPlace | None = None,
        meet: Callable[[], Any] | None = None,
    ) -> None:
        """Build both replicas of the model at `place`. By default, the replicas are in host memory.

        `meet`: waits for all ranks. The default is torch's barrier.
        """
        self._torch, self._rank, self._plan = torch, rank, plan
        self._place = place or HostPlace(torch)
        self._meet = meet or torch.distributed.barrier
        self._place.begin()
        self._timeout_s = timeout_s
        self._delays_s = {segment: delay for (late, segment), delay in plan.delays_s.items() if late == rank}
        data_s = plan.data_s + self._delays_s.get("data", 0.0)
        self._loader, self._bare_loader = (BatchLoader(data_s, plan.prefetch) for _ in range(2))
        self._first: list[StepStamps] = []  # steps since the build
        self._meter, self._source = Meter(self._place), self._model_source()
        batch = self._source.batch(plan.num_micro_batches)
        self._host_inputs, self._host_targets = map(self._place.staged, batch)
        self._inputs, self._targets = (self._place.put(values.clone()) for values in batch)
        self._groups = RankGroups(torch, self._meter, timeout_s)
        self._full = self._replica(self._groups)
        self._bare = self._replica(RankGroups(torch, None, timeout_s))
        self._kept = [weight.clone() for weight in self._full.weights()]

    def run(self, variant: StepVariant, num_steps: int) -> list[StepStamps]:
        """Run steps of one variant back to back, after a barrier. Return the mean step of each round."""
        self._meet()
        self._place.restart()
        per_round = self._full.round_steps
        if variant is StepVariant.BARE:
            self._bare_loader.resume()
            bare = [self._bare_step() for _ in range(num_steps * per_round)]
            self._bare_loader.pause()
            self._place.end()
            at = self._place.seconds
            return means([StepStamps(at(ended) - at(began)) for began, ended in bare], per_round)
        self._meter.exchanges = variant is not StepVariant.LOCAL
        loads, copies = variant in (StepVariant.FULL, StepVariant.LOCAL), variant is not StepVariant.DEVICE_RESIDENT
        if loads:
            self._loader.resume()
        with self._groups.stepping():
            marked = [self._step(loads, copies) for _ in range(num_steps * per_round)]
        self._place.end()
        stamps = means([self._stamps(one) for one in marked], per_round)
        if len(self._first) < _LOGGED_STEPS:
            self._first += stamps
        if loads:
            self._loader.pause()
        if variant is StepVariant.LOCAL:
            self._meter.exchanges = True
            self.restore()
        return stamps

    def restore(self) -> None:
        """Restore the weights of both replicas. After steps without exchanges, the weights are undefined."""
        for replica in (self._full, self._bare):
            for weight, kept in zip(replica.weights(), self._kept, strict=True):
                weight.copy_(kept)

    def check(self) -> GradientCheck:
        """Run a step of each replica. Compare gradients with their exact values.

        If a strategy changes weights, compare the changed weights.
        """
        for variant, replica in ((StepVariant.BARE, self._bare), (StepVariant.FULL, self._full)):
            replica.probe(True)
            self.run(variant, replica.probe_rounds)
        found = self.check_last()
        for replica in (self._full, self._bare):
            replica.probe(False)
        self.restore()
        return found

    def check_last(self) -> GradientCheck:
        """Compare the gradients of each replica's last step with the closed form.

        Call this method only if the last step of the replica with clocks was a full step.
        """
        digests: dict[str, Any] = {}
        num_wrong, first, before = 0, None, 0
        epsilon = float(self._torch.finfo(self._torch.float32).eps)
        for held in (*self._full.held(), *(replace(one, part=f"bare {one.part}") for one in self._bare.held())):
            gradient = held.gradient
            digests.setdefault(held.part, hashlib.sha256()).update(gradient.cpu().numpy().tobytes())
            if held.expected is not None and self._plan.case.hook == "none":
                rounding = held.rounding(self._plan.num_micro_batches, epsilon)
                right = (gradient - held.expected).abs() <= held.expected.abs() * rounding
                wrong = right.logical_not_().flatten().nonzero().flatten()
                if len(wrong) and first is None:
                    place = int(wrong[0])
                    got, expected = float(gradient.flatten()[place]), float(held.expected.flatten()[place])
                    facts = {"rank": self._rank, "element": before + place, "got": got, "expected": expected}
                    first = WrongData.of(WrongCode.ELEMENT, **facts)
                num_wrong += len(wrong)
            before += gradient.numel()
        return GradientCheck(num_wrong, first, {part: digest.hexdigest() for part, digest in digests.items()})

    def gradient_error(self) -> float | None:
        """Return the relative error of compressed gradients.

        The relative error is the norm of the gradients' error, divided by the norm of the exact gradients. Return None
        if gradients are not compressed.
        """
        if self._plan.case.hook == "none":
            return None
        self._meter.lossless = True
        self.run(StepVariant.FULL, 1)
        exact = [held.gradient.double().clone() for held in self._full.held()]
        self._meter.lossless = False
        self.run(StepVariant.FULL, 1)
        pairs = zip(self._full.held(), exact, strict=True)
        error = sum(float((held.gradient.double() - mean).square().sum()) for held, mean in pairs)
        return float((error / sum(float(mean.square().sum()) for mean in exact)) ** 0.5)

    def traced(self, profiled_into: Path | None, num_steps: int) -> list[StepStamps]:
        """Run full steps. If a file is given, profile the steps, and write the trace of the steps to the file."""
        if profiled_into is None:
            return self.run(StepVariant.FULL, num_steps)
        profile = TorchProfile(profiled_into)
        step, take, numbers = self._step, self._loader.take, count()

        def marked(loads: bool, copies: bool) -> _Marks:
            with profile.range(f"ProfilerStep#{next(numbers)}"):
                return step(loads, copies)

        def loading() -> None:
            with profile.range("data"):
                take()

        self._step, self._loader.take = marked, loading  # type: ignore[method-assign]
        try:
            return self.run(StepVariant.FULL, num_steps)
        finally:
            del self._step, self._loader.take
            profile.close()

    def learned(self) -> dict[str, float]:
        """Train a small problem with the case's method of exchange. Return its losses.

        Return an empty mapping if the case's method exchanges the exact mean gradient.
        """
        case = self._plan.case
        if case.hook == "none" and strategy_traits(case.strategy).exact:
            return {}
        return small_problem.learned(self._torch, case, self._rank, self._plan.grid, self._timeout_s, self._place)

    def logged(self) -> dict[str, tuple[float, float]]:
        """Return, for the forward and for the backward segment, two mean times over the first steps.

        One time is by linkbench's clocks, and the other time is by the library's own logger.
        """
        found = self._full.own_log()
        num = int(found.get("steps", 0))
        if self._plan.num_micro_batches > 1 or not 1 <= num <= len(self._first):
            return {}
        return {
            name: (fmean(one.segments_s[SEGMENTS.index(name)] for one in self._first[:num]), found[name])
            for name in ("forward", "backward")
        }

    def work(self) -> dict[str, float]:
        """Run a step, and return the operations of the step that torch counts on this rank.

        The result is empty for a model whose layers only sleep. The result is empty for compiled layers, because the
        counter does not see their operations. The result is also empty if the backward pass repeats operations, because
        the formula for the model does not count repetitions.
        """
        case = self._plan.case
        if self._plan.model is None or case.recompute != "none" or case.compiled:
            return {}
        return {"counted_flops": counted_flops(lambda: self.run(StepVariant.FULL, 1))}

    def device_peaks(self) -> dict[str, int]:
        """Return the peaks of device memory since the model was built. On a host, the result is empty."""
        return self._place.peaks()

    # -- steps

    def _step(self, loads: bool, copies: bool) -> _Marks:
        mark, replica = self._place.mark, self._full
        self._meter.waits.clear()
        edges = [mark()]
        if loads:
            self._loader.take()
        edges.append(mark())
        self._host_delay()
        edges.append(mark())
        if copies:
            self._copy()
            self._delay("h2d")
        edges.append(mark())
        replica.zero_grad()
        spans = replica.passes(self._source.read(self._inputs), self._targets)
        edges.append(mark())
        replica.update()
        self._delay("optimizer")
        edges.append(mark())
        return _Marks(edges, spans, self._meter.waits[:])

    def _bare_step(self) -> tuple[Any, Any]:
        """Run the work of a full step. Return only the two marks at the begin and the end of the step."""
        replica, began = self._bare, self._place.mark()
        self._bare_loader.take()
        self._host_delay()
        self._copy()
        self._delay("h2d")
        replica.zero_grad()
        replica.passes(self._source.read(self._inputs), self._targets)
        replica.update()
        self._delay("optimizer")
        return began, self._place.mark()

    def _host_delay(self) -> None:
        """Delay this program's thread on the host, even if the model is on a GPU."""
        if "host" in self._delays_s:
            sleep_until(time.perf_counter() + self._delays_s["host"])

    def _delay(self, segment: str) -> None:
        """Add this rank's delay to a segment, on the host or the GPU that runs the segment."""
        if segment in self._delays_s:
            self._place.work_until(self._place.due(self._delays_s[segment]))

    def _stamps(self, marks: _Marks) -> StepStamps:
        """Return the times of all marks of a step. The host or the GPU must already have reached these marks."""
        at = self._place.seconds
        began, loaded, prepared, copied, returned, ended = map(at, marks.edges)
        waits = [(group, at(since), at(till)) for group, since, till in marks.waits]
        spans, buckets = [("optimizer", returned, ended)], list[tuple[int, float, float]]()
        for name, start, end in marks.spans:
            if isinstance(end, BucketWait):
                ready, done = end.seconds(self._place)
                waits.append((end.group, ready, done))
                buckets += [(one.num_bytes, at(one.ready) - began, at(one.done) - began) for one in end.buckets]
                spans.append((name, at(start), done))
            else:
                spans.append((name, at(start), at(end)))
        spent = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
        for name, since, until in spans:
            spent[name] += until - since - sum(till - from_ for _, from_, till in waits if since <= from_ < until)
        segments = (
            loaded - began,
            prepared - loaded,
            copied - prepared,
            spent["forward"],
            spent["backward"],
            sum(till - since for _, since, till in waits),
            spent["optimizer"],
        )
        waited = tuple((number, till - since) for number, since, till in waits)
        return StepStamps(ended - began, segments, tuple(buckets), waited)

    def _model_source(self) -> ModelSource:
        """Return the layers or the model of the plan."""
        plan, torch, rank = self._plan, self._torch, self._rank
        inner = strategy_traits(plan.case.strategy).inner
        if plan.model is not None:
            row, _ = plan.grid.place(rank)
            data_rank = row if plan.shares_batch else rank
            if isinstance(plan.model, Residual):
                return ResidualSource(torch, plan.model, data_rank, plan.case)
            return BlockSource(torch, plan.model, data_rank, plan.case)
        assert plan.timed is not None
        hands_over = inner in ("tensors", "stages", "experts")
        return TimedSource(torch, rank, plan.timed, self._delays_s, hands_over, self._place)

    def _copy(self) -> None:
        self._inputs.copy_(self._host_inputs, non_blocking=True)
        self._targets.copy_(self._host_targets, non_blocking=True)

    def _replica(self, groups: RankGroups) -> Replica:
        """Return a replica for the strategy of the case."""
        plan = self._plan
        strategy = plugins.load("strategy", plan.case.strategy).STRATEGY
        replica: Replica = strategy(
            Build(
                torch=self._torch,
                case=plan.case,
                rank=self._rank,
                grid=plan.grid,
                groups=groups,
                source=self._source,
                learning_rate=0.0,
                num_micro_batches=plan.num_micro_batches,
                place=self._place,
            )
        )
        return replica
