"""The operations of a training step as torch counts them, to compare with the formula of the model's sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def counted_flops(step: Callable[[], Any]) -> int:
    """Run a step, and return its FLOP: matrix products, convolutions and attention, forward and backward.

    torch counts attention without regard to masks, and no elementwise operations.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())
