"""Links are read while copies go over them."""

from __future__ import annotations

import itertools
import time

from bench.controller.hosts import CommandReply, HostCommand
from bench.controller.load import under_load
from bench.core.inventory import Gpu

IDLE = {"gpus": [{"index": 0, "name": "g", "pcie_generation": 1, "pcie_lanes": 16}], "governor": "performance"}


def copying(command: HostCommand, limit_s: float) -> CommandReply:
    assert "bench.host_device" in command.words
    assert {"export CUDA_VISIBLE_DEVICES=0", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"} <= set(command.given.splitlines())
    time.sleep(1.0)  # several looks, also on a busy machine
    return CommandReply(0, "", "")


def test_the_fastest_rate_seen_counts() -> None:
    speeds = itertools.chain([1, 5], itertools.repeat(1))
    look = lambda: [Gpu(0, "g", None, None, next(speeds), 5, 16, 16, under_load=True)]  # noqa: E731
    seen, why = under_load(IDLE, "python", copying, look)
    assert why is None and seen["governor"] == "performance"
    assert (seen["gpus"][0]["pcie_generation"], seen["gpus"][0]["under_load"]) == (5, True)


def test_a_gpu_that_cannot_copy_keeps_its_idle_facts() -> None:
    def fails(command: HostCommand, limit_s: float) -> CommandReply:
        return CommandReply(3, "", "no CuPy\n")

    seen, why = under_load(IDLE, "python", fails, lambda: [Gpu(0, "g", None, None, 5, 5, 16, 16)])
    assert seen["gpus"] == IDLE["gpus"] and why is not None and "gpu0" in why and "no CuPy" in why
