"""All ranks write a checkpoint at once, beside steps of a training job, which stall meanwhile.

S is one rank's shard, t the time until the slowest rank's shard is on its device (fsync). Steps sleep `--step-time`
and exchange `--exchange` bytes. Each shard is read back from the device and compared with its checksum.

    torchrun --nproc-per-node 2 -m bench.checkpoint --sizes 64M --step-time 20ms --folder /data
    torchrun --nproc-per-node 2 -m bench.checkpoint --sizes 64M --step-time 20ms --method dcp_async
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape
from bench.core.program import Expected, Step
from bench.core.sweep import round_elements

_WORD_BYTES = 8


class Checkpoint(Pattern):
    """One shard for each rank; ranks write to the same folder."""

    name = "checkpoint"
    bursts = True
    factors = frozenset({"method", "step_s", "exchange", "folder"})

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Whole words."""
        return max(_WORD_BYTES, round_elements(requested_bytes, _WORD_BYTES))

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """S, the shard."""
        return shape.payload_bytes, 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """None: the transport's checkpointer writes."""
        return ()

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Nothing arrives at another rank."""
        return ()

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Nothing of the shard crosses from rank to rank."""
        return 0.0

    def bus_factor(self, shape: Shape) -> float | None:
        """1: each rank writes its shard once."""
        return 1.0


PATTERN = Checkpoint()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
