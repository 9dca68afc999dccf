"""Training steps by torch on host memory: timed layers, DistributedDataParallel, and stamps of phases and buckets.

Each layer's weight gets a gradient of small whole numbers times (rank mod 7 + 1). Their sum over ranks is exact in
float32 in any order, so the exchanged gradients are compared bit for bit with the closed form.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from bench.core.record import WrongCode, WrongData
from bench.core.training_step import GradientCheck, StepPlan, StepStamps, Twin
from bench.core.waiting import sleep_until

_PERIOD = 7  # the gradient's elements repeat 1, 2, ... 7
_FACTORS = 7  # of the ranks: small, so that sums over ten thousands of ranks are exact in float32
_ELEMENT_BYTES = 4
_READ = 64  # elements of the batch that the layers read


class TimedTrainer:
    """Trains timed layers on one rank. All ranks call the same methods in the same order.

    Two replicas exist: one with our hook, which stamps every bucket or leaves out its exchange, and a bare one without
    a hook. The learning rate is 0, so the optimizer does its work and all steps are equal.
    """

    def __init__(self, torch: Any, rank: int, num_ranks: int, plan: StepPlan) -> None:
        """Build both replicas."""
        self._torch, self._dist = torch, torch.distributed
        self._rank, self._num_ranks, self._plan = rank, num_ranks, plan
        self._delays_s = {segment: delay for (late, segment), delay in plan.delays_s.items() if late == rank}
        self._exchanges = True
        self._buckets: list[list[Any]] = []
        self._host_batch = torch.ones(plan.timed.input_bytes // _ELEMENT_BYTES)
        self._device_batch = torch.ones_like(self._host_batch)
        self._models = {name: self._parallel(name) for name in (Twin.FULL, Twin.BARE)}
        self._optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.0) for name, model in self._models.items()}

    def run(self, twin: Twin, num_steps: int) -> list[StepStamps]:
        """Run steps of one twin back to back, after a barrier."""
        self._dist.barrier()
        if twin is Twin.BARE:
            return [self._bare_step() for _ in range(num_steps)]
        self._exchanges = twin is not Twin.LOCAL
        loads, copies = twin in (Twin.FULL, Twin.LOCAL), twin is not Twin.DEVICE_RESIDENT
        return [self._step(loads, copies) for _ in range(num_steps)]

    def check(self) -> GradientCheck:
        """Run one full step and compare its gradients with the closed form."""
        self.run(Twin.FULL, 1)
        return self.check_last()

    def check_last(self) -> GradientCheck:
        """Compare the gradients of the last step, which must have been a full one, with the closed form."""
        sum_of_ranks = sum(map(_factor, range(self._num_ranks)))
        digest, num_wrong, first = hashlib.sha256(), 0, None
        before = 0
        for number, layer in enumerate(self._layers_of(Twin.FULL)):
            gradient = layer.weight.grad
            expected = self._pattern(number).mul_(sum_of_ranks).div_(self._num_ranks)
            wrong = (gradient != expected).nonzero().flatten()
            if len(wrong) and first is None:
                place = int(wrong[0])
                facts = {"got": float(gradient[place]), "expected": float(expected[place])}
                first = WrongData.of(WrongCode.ELEMENT, rank=self._rank, element=before + place, **facts)
            num_wrong += len(wrong)
            before += gradient.numel()
            digest.update(gradient.numpy().tobytes())
        return GradientCheck(num_wrong, first, digest.hexdigest())

    # -- steps

    def _step(self, loads: bool, copies: bool) -> StepStamps:
        now, timed, delays = time.perf_counter, self._plan.timed, self._delays_s
        self._buckets = []
        began = now()
        if loads:
            sleep_until(began + timed.data_s + delays.get("data", 0.0))
        loaded = now()
        if "host" in delays:
            sleep_until(loaded + delays["host"])
        prepared = now()
        if copies:
            self._device_batch.copy_(self._host_batch)
            if "h2d" in delays:
                sleep_until(prepared + delays["h2d"])
        copied = now()
        self._optimizers[Twin.FULL].zero_grad()
        loss = self._models[Twin.FULL](self._device_batch[:_READ]).sum()
        forwarded = now()
        loss.backward()
        returned = now()
        self._optimizers[Twin.FULL].step()
        if "optimizer" in delays:
            sleep_until(now() + delays["optimizer"])
        ended = now()
        ready = max(bucket[1] for bucket in self._buckets)
        done = min(returned, max(ready, *(bucket[2] for bucket in self._buckets)))
        segments = (
            loaded - began,
            prepared - loaded,
            copied - prepared,
            forwarded - copied,
            ready - forwarded,
            done - ready,
            ended - returned,
        )
        buckets = tuple((size, start - began, end - began) for size, start, end in self._buckets)
        return StepStamps(ended - began, segments, buckets)

    def _bare_step(self) -> StepStamps:
        """Do what a full step does, and read the clock only at its ends."""
        timed, delays = self._plan.timed, self._delays_s
        began = time.perf_counter()
        sleep_until(began + timed.data_s + delays.get("data", 0.0))
        if "host" in delays:
            sleep_until(time.perf_counter() + delays["host"])
        self._device_batch.copy_(self._host_batch)
        if "h2d" in delays:
            sleep_until(time.perf_counter() + delays["h2d"])
        self._optimizers[Twin.BARE].zero_grad()
        self._models[Twin.BARE](self._device_batch[:_READ]).sum().backward()
        self._optimizers[Twin.BARE].step()
        if "optimizer" in delays:
            sleep_until(time.perf_counter() + delays["optimizer"])
        return StepStamps(time.perf_counter() - began)

    # -- the model

    def _layers_of(self, name: Twin) -> Sequence[Any]:
        return list(self._models[name].module)

    def _pattern(self, number: int) -> Any:
        """Return the gradient of rank 0's layer of this number: 1 to 7, beginning elsewhere in each layer."""
        size = self._plan.timed.num_bytes // _ELEMENT_BYTES
        return self._torch.arange(number, number + size, dtype=self._torch.float32).remainder_(_PERIOD).add_(1)

    def _parallel(self, name: Twin) -> Any:
        """Return the layers in DistributedDataParallel, with our hook unless the replica is bare."""
        torch = self._torch
        given = {"bucket_cap_mb": self._plan.bucket_bytes / (1 << 20)} if self._plan.bucket_bytes else {}
        model = torch.nn.parallel.DistributedDataParallel(self._layers(), **given)
        if name is Twin.BARE:
            return model

        model.register_comm_hook(None, lambda _, bucket: self._exchange(bucket.buffer()))
        return model

    def _exchange(self, gradients: Any) -> Any:
        """Start the exchange of a bucket; the local twin returns its own gradients at once."""
        noted = [gradients.numel() * _ELEMENT_BYTES, time.perf_counter(), 0.0]
        self._buckets.append(noted)
        if not self._exchanges:
            noted[2] = noted[1]
            future = self._torch.futures.Future()
            future.set_result(gradients)
            return future
        work = self._dist.all_reduce(gradients, async_op=True)

        def averaged(future: Any) -> Any:
            mean = future.value()[0].div_(self._num_ranks)
            noted[2] = time.perf_counter()
            return mean

        return work.get_future().then(averaged)

    def _layers(self) -> Any:
        torch, timed = self._torch, self._plan.timed
        factor = _factor(self._rank)

        class Work(torch.autograd.Function):  # type: ignore[name-defined,misc]
            """Takes the time of a layer in both directions and gives its weight the known gradient."""

            @staticmethod
            def forward(ctx: Any, values: Any, weight: Any, gradient: Any, extra_s: tuple[float, float]) -> Any:
                ctx.gradient, ctx.extra_s = gradient, extra_s[1]
                sleep_until(time.perf_counter() + timed.forward_s + extra_s[0])
                return values + weight[0]

            @staticmethod
            def backward(ctx: Any, *upstream: Any) -> Any:
                until = time.perf_counter() + timed.backward_s + ctx.extra_s
                gradient = ctx.gradient.clone()
                sleep_until(until)
                return upstream[0], gradient, None, None

        class TimedLayer(torch.nn.Module):  # type: ignore[name-defined,misc]
            def __init__(self, gradient: Any, extra_s: tuple[float, float]) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(timed.num_bytes // _ELEMENT_BYTES))
                self._gradient, self._extra_s = gradient, extra_s

            def forward(self, values: Any) -> Any:
                return Work.apply(values, self.weight, self._gradient, self._extra_s)

        extra_s = self._delays_s.get("forward", 0.0), self._delays_s.get("backward", 0.0)
        late = timed.layers // 2  # one layer has the whole delay
        return torch.nn.Sequential(
            *(
                TimedLayer(self._pattern(number) * factor, extra_s if number == late else (0.0, 0.0))
                for number in range(timed.layers)
            )
        )


def _factor(rank: int) -> int:
    """Return the factor of a rank's gradients."""
    return rank % _FACTORS + 1
