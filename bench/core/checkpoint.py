"""Define a burst of checkpoints: what each rank writes, which steps run meanwhile, and which times are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

METHODS = ("file", "dcp", "dcp_async")


@dataclass(frozen=True, slots=True)
class BurstPlan:
    """A burst, in which each rank writes a shard of `shard_bytes` bytes into `folder` while training steps run.

    A step takes `step_s` seconds and ends with an allreduce of `exchange_bytes` bytes. `method` is one of METHODS.
    """

    folder: str
    method: str
    shard_bytes: int
    step_s: float
    exchange_bytes: int
    seed: int


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The time of one step on one rank, and the time of the exchange in this step.

    `began_s` is a time of this rank's clock.
    """

    began_s: float
    step_s: float
    exchange_s: float


@dataclass(frozen=True, slots=True)
class BurstTimes:
    """One rank's burst.

    `write_s`: seconds from the start of the burst until the shard is durable.
    `blocked_s`: seconds until steps resume.
    `steps`: the steps that began after the start of the burst.
    `during`: the number of steps in `steps` that began before the shard was durable.
    """

    write_s: float
    blocked_s: float
    steps: Sequence[TimedStep]
    during: int


@dataclass(frozen=True, slots=True)
class ReadBack:
    """One rank's shard, read from the device.

    `pages`: the number of pages of the shard that were still in the page cache.
    `is_right`: whether the data have the expected checksum.
    """

    read_s: float
    received_bytes: int
    pages: int
    is_right: bool


class Checkpointer(Protocol):
    """Writes checkpoints on one rank. All ranks call the same methods in the same order."""

    def steps(self, num_steps: int) -> list[TimedStep]:
        """Run steps without a checkpoint, after all ranks have met."""

    def burst(self, num_steps: int) -> BurstTimes:
        """Start a checkpoint of new data and run at least `num_steps` steps. Return when the data are durable."""

    def read_back(self) -> ReadBack:
        """Drop the last checkpoint from the page cache, read this rank's shard, compare its checksum, and remove it."""
