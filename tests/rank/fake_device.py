"""Run a pattern over a transport whose times a device seems to tell: Gloo, on buffers that torch fills and compares.

    python tests/rank/fake_device.py allreduce [options]

FAKE_ENQUEUE: the share of the host's time until a call is issued; FAKE_OOM=RANK:BYTES: timed calls of that rank
with a receive buffer of that size find no memory. The one GPU of the host is told of as throttled after the rows.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.core.inventory import Gpu
from bench.core.program import Group, Step
from bench.core.record import Skip
from bench.core.transport import Buffers, Compiled, Reduction, Timing
from bench.probes import nvml
from bench.rank.main import run_pattern
from bench.transports import _torch, gloo
from bench.transports._device import DeviceBuffers, GuardedBlock, TorchArrays

HOST_FACTOR = 2.0  # what the host sees, by what the device tells


class FakeDevice(gloo.Gloo):
    """Gloo that says of itself what a GPU's transport says."""

    clock = "device"  # type: ignore[assignment]
    num_stirred = 0

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        return None

    def available_bytes(self) -> int:
        return 64 << 20

    def cache_bytes(self) -> int:
        return 1 << 20

    def keep_link_active(self) -> None:
        self.num_stirred += 1
        assert self.num_stirred <= 2, "before the rows, and after them"

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        arrays = TorchArrays(self._torch, "cpu")
        return DeviceBuffers(GuardedBlock(arrays, send_bytes, num_sets), GuardedBlock(arrays, recv_bytes, num_sets))

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        assert isinstance(buffers, DeviceBuffers)
        memory = [(buffers.view("send", k), buffers.view("recv", k)) for k in range(buffers.num_sets)]
        handle = self._handles.get(group.ranks)
        bound = _torch.bound_calls(self._torch, steps, group, handle, self.place.rank, memory, reduction, in_place)
        return Compiled(bound, keep=[buffers])

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        return self._told(compiled, super().time_each(compiled, num_calls))

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        return self._told(compiled, super().time_batch(compiled, num_calls))

    def _told(self, compiled: Compiled | None, timing: Timing) -> Timing:
        victim = os.environ.get("FAKE_OOM")
        if compiled is not None and victim == f"{self.place.rank}:{compiled.keep[0].recv_bytes}":
            raise self._torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.\nMore words.")
        share = float(os.environ["FAKE_ENQUEUE"])
        host_s = tuple(HOST_FACTOR * second for second in timing.seconds)
        return Timing(timing.seconds, timing.loop, host_s, tuple(share * second for second in host_s))


def found(*_: Any, under_load: bool = False) -> nvml.NvmlInventory:
    """What a driver might tell."""
    return nvml.NvmlInventory((Gpu(0, "Fake", 1 << 30, None, 5, 5, 16, 16, under_load=under_load, power_w=90.0),))


def main(words: list[str]) -> Any:
    """The pattern's whole run."""
    nvml.gpus = found  # type: ignore[assignment]
    nvml.conditions = lambda *_: [{"index": 0, "power_w": 700.0, "throttle": ["sw power cap"]}]
    nvml.count_gpus = lambda *_: 0
    gloo.TRANSPORT = FakeDevice
    run_pattern(words[0], words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
