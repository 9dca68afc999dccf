"""All ranks write a checkpoint at the same time while the steps of a training job run.

The checkpoint may delay the steps. S is the size of one rank's shard. The time t ends when the slowest rank's shard is
on its device (fsync). Each step sleeps for `--step-time` and exchanges `--exchange` bytes. The benchmark reads each
shard back from the device and compares the checksum of the shard.

    torchrun --nproc-per-node 2 -m bench.checkpoint --sizes 64M --step-time 20ms --folder /data
    torchrun --nproc-per-node 2 -m bench.checkpoint --sizes 64M --step-time 20ms --method dcp_async
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape
from bench.core.program import Expected, Step
from bench.core.sweep import round_elements

_WORD_BYTES = 8


class Checkpoint(Pattern):
    """Each rank writes one shard, and all ranks write to the same folder."""

    name = "checkpoint"
    bursts = True
    factors = frozenset({"method", "step_s", "exchange", "folder"})

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return the size of a shard, a whole number of words, in bytes."""
        return max(_WORD_BYTES, round_elements(requested_bytes, _WORD_BYTES))

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return S as the bytes to send, and 0 as the bytes to receive."""
        return shape.payload_bytes, 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return no steps, because the transport's checkpointer writes the shard."""
        return ()

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return nothing, because no rank receives data from another rank."""
        return ()

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return 0, because ranks do not send their shards to each other."""
        return 0.0

    def bus_factor(self, shape: Shape) -> float | None:
        """Return 1, because each rank writes its shard once."""
        return 1.0


PATTERN = Checkpoint()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
