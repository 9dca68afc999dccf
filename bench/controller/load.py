"""Read the PCIe links of this machine's GPUs under load, because idle links report lower rates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.controller import hosts
from bench.core.inventory import Gpu
from bench.probes import nvml

_LOAD_S, _EVERY_S = 150.0, 0.2
# Copying 64 GB takes one second over the fastest link, and less than _LOAD_S over the slowest (one lane of gen 3).
_COPY = ("-m", "bench.host_device", "--sizes", "64M", "--mode", "isolated", "-n", "1000")


def under_load(
    node: Mapping[str, Any],
    python: str,
    ask: Callable[[hosts.HostCommand, float], hosts.CommandReply] = hosts.run_locally,
    look: Callable[[], Sequence[Gpu]] = lambda: nvml.gpus(under_load=True).gpus,
) -> tuple[dict[str, Any], str | None]:
    """Return this machine's facts with the PCIe links under load. Also return the reason if a GPU could not copy data.

    The reason is None if every GPU copied data.

    One child process per GPU copies data. Each link is read several times, because a child process takes some time to
    start copying. The result has the highest rate of each link. If the child of a GPU fails, the result has the facts
    of the idle GPU.
    """
    replies: dict[int, hosts.CommandReply] = {}
    indices = [int(gpu["index"]) for gpu in node.get("gpus") or ()]

    def copy(index: int) -> None:
        only = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(index)}  # NVML's order
        words = hosts.in_rank_environment([python, *_COPY], (), only)
        replies[index] = ask(words, _LOAD_S)

    children = [threading.Thread(target=copy, args=(index,)) for index in indices]
    for child in children:
        child.start()
    best: dict[int, Gpu] = {}
    with nvml.held_open():
        while any(child.is_alive() for child in children):
            for gpu in look():
                seen = best.get(gpu.index)
                if seen is None or _speed(gpu) > _speed(seen):
                    best[gpu.index] = gpu
            time.sleep(_EVERY_S)
    for child in children:
        child.join()
    failed = [index for index in indices if replies[index].exit_code != 0]
    gpus = []
    for index, idle in zip(indices, node.get("gpus") or (), strict=True):
        gpus.append(_plain(best[index]) if index in best and index not in failed else dict(idle))
    why = None
    if failed:
        lines = [line for line in replies[failed[0]].err.splitlines() if line.strip()]
        why = f"gpu{failed[0]} could not copy ({lines[-1] if lines else 'without a message'})"
    return {**node, "gpus": gpus}, why


def _speed(gpu: Gpu) -> tuple[int, int]:
    return gpu.pcie_generation or 0, gpu.pcie_lanes or 0


def _plain(gpu: Gpu) -> dict[str, Any]:
    plain = asdict(gpu)
    return plain | {"nvlinks": list(plain["nvlinks"]), "throttle": list(gpu.throttle)}
