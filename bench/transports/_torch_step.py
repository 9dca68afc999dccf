"""Run training steps by torch in host memory: the common part of all strategies, and the clocks inside a step.

There are two replicas. One has metered groups of ranks, so that its exchanges can be recorded or left out. The other
has no instruments. The learning rate of measured steps is 0, so the optimizer does its work but all steps are equal.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from bench.core import plugins
from bench.core.record import WrongCode, WrongData
from bench.core.step_plan import StepPlan
from bench.core.strategies import strategy_traits
from bench.core.training_step import GradientCheck, StepStamps, Twin
from bench.core.waiting import sleep_until
from bench.transports._torch_flops import counted_flops
from bench.transports.strategies._blocks import BlockSource
from bench.transports.strategies._groups import Meter, RankGroups
from bench.transports.strategies._replica import Build, ModelSource, Replica
from bench.transports.strategies._timed import TimedSource


class StepTrainer:
    """Trains a model on one rank. All ranks call the same methods in the same order."""

    def __init__(self, torch: Any, rank: int, plan: StepPlan, timeout_s: float) -> None:
        """Build both replicas."""
        self._torch, self._dist, self._rank, self._plan = torch, torch.distributed, rank, plan
        self._delays_s = {segment: delay for (late, segment), delay in plan.delays_s.items() if late == rank}
        self._meter, self._buckets = Meter(), list[tuple[int, float, float]]()
        self._source = self._model_source()
        self._host_inputs, self._host_targets = self._source.batch(plan.num_micro_batches)
        self._inputs, self._targets = torch.empty_like(self._host_inputs), torch.empty_like(self._host_targets)
        self._inputs.copy_(self._host_inputs)
        self._targets.copy_(self._host_targets)
        self._full = self._replica(RankGroups(torch, self._meter, timeout_s))
        self._bare = self._replica(RankGroups(torch, None, timeout_s))
        self._kept = [weight.clone() for weight in self._full.weights()]

    def run(self, twin: Twin, num_steps: int) -> list[StepStamps]:
        """Run steps of one twin back to back, after a barrier."""
        self._dist.barrier()
        if twin is Twin.BARE:
            return [self._bare_step() for _ in range(num_steps)]
        self._meter.exchanges = twin is not Twin.LOCAL
        loads, copies = twin in (Twin.FULL, Twin.LOCAL), twin is not Twin.DEVICE_RESIDENT
        stamps = [self._step(loads, copies) for _ in range(num_steps)]
        if twin is Twin.LOCAL:
            self._meter.exchanges = True
            self.restore()
        return stamps

    def restore(self) -> None:
        """Restore the weights, because results of omitted exchanges are undefined."""
        for weight, kept in zip(self._full.weights(), self._kept, strict=True):
            weight.copy_(kept)

    def check(self) -> GradientCheck:
        """Run one full step and compare its gradients with the closed form."""
        self.run(Twin.FULL, 1)
        return self.check_last()

    def check_last(self) -> GradientCheck:
        """Compare the gradients of the last step, which must have been a full step, with the closed form."""
        digests: dict[str, Any] = {}
        num_wrong, first, before = 0, None, 0
        for held in self._full.held():
            gradient = held.gradient
            digests.setdefault(held.part, hashlib.sha256()).update(gradient.numpy().tobytes())
            if held.expected is not None and self._plan.case.hook == "none":
                wrong = (gradient != held.expected).flatten().nonzero().flatten()
                if len(wrong) and first is None:
                    place = int(wrong[0])
                    got, expected = float(gradient.flatten()[place]), float(held.expected.flatten()[place])
                    facts = {"rank": self._rank, "element": before + place, "got": got, "expected": expected}
                    first = WrongData.of(WrongCode.ELEMENT, **facts)
                num_wrong += len(wrong)
            before += gradient.numel()
        return GradientCheck(num_wrong, first, {part: digest.hexdigest() for part, digest in digests.items()})

    def gradient_error(self) -> float | None:
        """Return the norm of the error of compressed gradients / the norm of the gradients.

        The result is None without compression.
        """
        if self._plan.case.hook == "none":
            return None
        self._meter.lossless = True
        self.run(Twin.FULL, 1)
        exact = [held.gradient.double().clone() for held in self._full.held()]
        self._meter.lossless = False
        self.run(Twin.FULL, 1)
        pairs = zip(self._full.held(), exact, strict=True)
        error = sum(float((held.gradient.double() - mean).square().sum()) for held, mean in pairs)
        return float((error / sum(float(mean.square().sum()) for mean in exact)) ** 0.5)

    def work(self) -> dict[str, float]:
        """Run a step, and return the operations that torch counts in it on this rank.

        The result is empty for layers that sleep, and if a backward pass repeats operations, because the formula of the
        model does not include these.
        """
        if self._plan.model is None or self._plan.case.recompute != "none":
            return {}
        return {"counted_flops": counted_flops(lambda: self.run(Twin.FULL, 1))}

    def device_peaks(self) -> dict[str, int]:
        """Return an empty mapping, because the model is in host memory."""
        return {}

    # -- steps

    def _step(self, loads: bool, copies: bool) -> StepStamps:
        now, data_s, delays, replica = time.perf_counter, self._plan.data_s, self._delays_s, self._full
        self._buckets.clear()
        self._meter.waits.clear()
        began = now()
        if loads:
            sleep_until(began + data_s + delays.get("data", 0.0))
        loaded = now()
        if "host" in delays:
            sleep_until(loaded + delays["host"])
        prepared = now()
        if copies:
            self._copy()
            if "h2d" in delays:
                sleep_until(prepared + delays["h2d"])
        copied = now()
        replica.zero_grad()
        spans = replica.passes(self._source.read(self._inputs), self._targets)
        returned = now()
        replica.update()
        if "optimizer" in delays:
            sleep_until(now() + delays["optimizer"])
        ended = now()
        spent = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
        waits = self._meter.waits
        for name, start, end in (*spans, ("optimizer", returned, ended)):
            spent[name] += end - start - sum(till - since for _, since, till in waits if start <= since < end)
        segments = (
            loaded - began,
            prepared - loaded,
            copied - prepared,
            spent["forward"],
            spent["backward"],
            sum(till - since for _, since, till in waits),
            spent["optimizer"],
        )
        buckets = tuple((size, start - began, end - began) for size, start, end in self._buckets)
        return StepStamps(
            ended - began, segments, buckets, tuple((number, till - since) for number, since, till in waits)
        )

    def _bare_step(self) -> StepStamps:
        """Run a full step, and read the clock only at its beginning and end."""
        data_s, delays, replica = self._plan.data_s, self._delays_s, self._bare
        began = time.perf_counter()
        sleep_until(began + data_s + delays.get("data", 0.0))
        if "host" in delays:
            sleep_until(time.perf_counter() + delays["host"])
        self._copy()
        if "h2d" in delays:
            sleep_until(time.perf_counter() + delays["h2d"])
        replica.zero_grad()
        replica.passes(self._source.read(self._inputs), self._targets)
        replica.update()
        if "optimizer" in delays:
            sleep_until(time.perf_counter() + delays["optimizer"])
        return StepStamps(time.perf_counter() - began)

    def _model_source(self) -> ModelSource:
        """Return the layers or the model of the plan."""
        plan, torch, rank = self._plan, self._torch, self._rank
        inner = strategy_traits(plan.case.strategy).inner
        if plan.model is not None:
            row, _ = plan.grid.place(rank)
            data_rank = row if plan.shares_batch else rank
            return BlockSource(torch, plan.model, data_rank, plan.case.autocast, plan.case.recompute)
        assert plan.timed is not None
        return TimedSource(torch, rank, plan.timed, self._delays_s, inner in ("tensors", "stages", "experts"))

    def _copy(self) -> None:
        self._inputs.copy_(self._host_inputs)
        self._targets.copy_(self._host_targets)

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
                stamp=lambda num_bytes, ready, done: self._buckets.append((num_bytes, ready, done)),
            )
        )
        return replica
