"""What does the thread cost that reads devices while rows are timed?

    python -m benchmarks.device_sampler

Blocks of hashing, which holds no lock of Python's, alternate with and without the thread. Printed are the median ratio
of neighbouring blocks with its interval, and the thread's own share of a CPU. The thread reads once every 20 ms: the
CPUs of this host, as `--soak` does, or something that waits 1 ms and computes about 0.1 ms without Python's lock, as
NVML's calls may.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from statistics import median

from bench.core.device_use import DeviceReading
from bench.probes.cpu_reader import CpuReader
from bench.probes.device_sampler import DeviceReader, DeviceSampler
from bench.results import stats

_BLOCK_S, _PAIRS = 0.5, 40
_DATA = bytes(1 << 16)


class _LikeNvml:
    device = "simulated"

    def read(self) -> DeviceReading:
        time.sleep(0.001)
        for _ in range(2):  # as every call of ctypes, this releases Python's lock
            hashlib.sha256(_DATA).digest()
        return DeviceReading(hz=1e9)

    def counters(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass


def main() -> None:
    """Print a line for each kind of reader."""
    for name, reader in (("CPUs", CpuReader(frozenset(os.sched_getaffinity(0)))), ("like NVML", _LikeNvml())):
        ratios, costs = _compared(reader)
        around = stats.interval(ratios)
        shown = "-" if around is None else f"{around[0]:.4f}..{around[1]:.4f}"
        print(f"{name:10} block with / without {median(ratios):.4f} (95 %: {shown}); its CPU {median(costs):.3%}")


def _compared(reader: DeviceReader) -> tuple[list[float], list[float]]:
    sampler, ratios, costs = DeviceSampler(reader, "here"), [], []
    for pair in range(_PAIRS):
        took: dict[bool, float] = {}
        for sampled in (pair % 2 == 0, pair % 2 == 1):
            if sampled:
                sampler.begin()
            took[sampled] = _hash_s()
            if sampled:
                costs.append(sampler.use().cost or 0.0)
        ratios.append(took[True] / took[False])
    sampler.close()
    return ratios, costs


def _hash_s() -> float:
    """Return the seconds per hash of a block."""
    begin, num = time.perf_counter(), 0
    while time.perf_counter() - begin < _BLOCK_S:
        hashlib.sha256(_DATA).digest()
        num += 1
    return (time.perf_counter() - begin) / num


if __name__ == "__main__":
    main()
