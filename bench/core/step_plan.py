"""Describe the training that the ranks run: the model, the options and the delays.

The description is derived from a case and its world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.core.case import Case
from bench.core.residual import Residual
from bench.core.step_model import Transformer
from bench.core.strategies import RankGrid, strategy_traits
from bench.core.training_step import TimedLayers

_ELEMENT_BYTES = 4  # of weights and gradients: float32


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a trainer trains.

    The plan has the timed layers or the model, the grid of ranks and all options. The plan also has the added delay of
    each segment on each rank.
    """

    case: Case
    timed: TimedLayers | None
    model: Transformer | Residual | None
    delays_s: Mapping[tuple[int, str], float]
    grid: RankGrid
    num_micro_batches: int

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients of one rank."""
        if self.model is not None:
            return _ELEMENT_BYTES * self.model.trained_parameters
        assert self.timed is not None
        return self.timed.layers * self.timed.num_bytes

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights of one rank, including frozen weights."""
        return self.gradient_bytes if self.model is None else _ELEMENT_BYTES * self.model.parameters

    @property
    def shares_batch(self) -> bool:
        """Whether all ranks in a row of the grid train on the same batch."""
        return strategy_traits(self.case.strategy).inner in ("tensors", "stages")

    @property
    def num_data_ranks(self) -> int:
        """The number of different batches that the ranks together process in one micro-batch."""
        return self.grid.outer if self.shares_batch else len(self.grid.ranks)

    @property
    def prefetch(self) -> int:
        """The number of batches that the loader prepares in advance."""
        return self.timed.prefetch if self.timed else 0

    @property
    def data_s(self) -> float:
        """The loader's time for a batch, in seconds."""
        return self.timed.data_s if self.timed else 0.0
