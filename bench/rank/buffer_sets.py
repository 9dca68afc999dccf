"""How many sets of buffers a row rotates through, and what that makes of the caches."""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.pattern import Pattern, Shape

_MOST_SETS = 64
_IN_PLACE_ROOM_BYTES = 64 << 20
_ANY_BATCH = 1 << 30


@dataclass(frozen=True, slots=True)
class BufferSets:
    """Of one pattern on one rank. `cache_bytes`: what must be exceeded, 0 where it is unknown. `num_sharing`: ranks of
    a node that have that cache together. `cold`: is it to be exceeded?"""

    pattern: Pattern
    cache_bytes: int
    num_sharing: int
    cold: bool

    def num(self, shape: Shape, in_place: bool) -> int:
        """Sets to rotate through: those that share a cache together fill it twice when cold.

        An in-place reduction changes its own input, so in pipelined mode every call of a batch needs a set of its own.
        """
        local_bytes = self._in_one_cache(shape)
        if local_bytes == 0:
            return 1
        cold = -(-2 * self.cache_bytes // local_bytes) if self.cold else 1
        own = _IN_PLACE_ROOM_BYTES // shape.payload_bytes if in_place and self.pattern.reduces else 1
        return max(1, min(max(cold, own), _MOST_SETS))

    def most_batch(self, shape: Shape, in_place: bool) -> int:
        """Calls of one pipelined sample: an in-place reduction may use each set once before it is refilled."""
        return self.num(shape, in_place) if in_place and self.pattern.reduces else _ANY_BATCH

    def state(self, shape: Shape, in_place: bool) -> str | None:
        """What they really are: hot where all fit into twice the cache; None where its size is unknown."""
        if not self.cache_bytes:
            return None
        return "cold" if self.num(shape, in_place) * self._in_one_cache(shape) >= 2 * self.cache_bytes else "hot"

    def _in_one_cache(self, shape: Shape) -> int:
        """One set of each rank that shares this rank's cache, bytes."""
        return self._set_bytes(shape) * min(self.num_sharing, shape.num_ranks)

    def _set_bytes(self, shape: Shape) -> int:
        """One rank's part of a set: twice the payload, more where a window of messages has places of its own."""
        members = range(min(2, shape.num_ranks))
        return max(2 * shape.payload_bytes, *(sum(self.pattern.buffers(shape, member)) for member in members))
