"""What the ranks of a training step train: the options of a case, and what follows from them and the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.core.case import Case
from bench.core.strategies import RankGrid
from bench.core.training_step import TimedLayers


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a trainer trains: layers, delays by (rank, segment), the arrangement of ranks, and all options."""

    case: Case
    timed: TimedLayers
    delays_s: Mapping[tuple[int, str], float]
    grid: RankGrid
    num_micro_batches: int

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients of one rank."""
        return self.timed.layers * self.timed.num_bytes
