"""Wait on the host for an exact time."""

from __future__ import annotations

import time

_SPIN_S = 200e-6  # the kernel wakes a sleeping process late, so the last part of a sleep spins


def sleep_until(until_s: float) -> None:
    """Sleep until a time of the performance counter."""
    left = until_s - time.perf_counter() - _SPIN_S
    if left > 0:
        time.sleep(left)
    spin_until(until_s)


def spin_until(until_s: float) -> None:
    """Spin on the CPU until a time of the performance counter."""
    while time.perf_counter() < until_s:
        pass
