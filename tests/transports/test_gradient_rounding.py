"""Gradients may differ from the closed form only where a library rounds the shares of ranks before it adds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from bench.transports._torch_step import StepTrainer  # noqa: E402
from bench.transports.strategies._replica import HeldGradient  # noqa: E402


@pytest.mark.parametrize(
    ("num_rounded", "num_units", "num_wrong"),
    [
        (1, 1, 1),  # a pipeline on three ranks, or tensors in one row
        (4, 1, 1),  # division by a power of two rounds nothing
        (3, 0, 0),
        (3, 6, 0),
        (3, 7, 1),  # more than three shares, two additions and one micro-batch can round
        (6, 7, 0),
    ],
)
def test_a_difference_of_the_last_bits_is_wrong_unless_shares_are_rounded(
    num_rounded: int, num_units: int, num_wrong: int
) -> None:
    epsilon = float(torch.finfo(torch.float32).eps)
    gradient = torch.full((4,), 1.0)
    gradient[2] += num_units * epsilon
    held = HeldGradient("all", gradient, torch.full((4,), 1.0), num_rounded)
    plan: Any = SimpleNamespace(case=SimpleNamespace(hook="none"), num_micro_batches=1)
    trainer: Any = SimpleNamespace(
        _torch=torch,
        _rank=0,
        _plan=plan,
        _full=SimpleNamespace(held=lambda: [held]),
        _bare=SimpleNamespace(held=list),
    )
    assert StepTrainer.check_last(trainer).num_wrong == num_wrong
