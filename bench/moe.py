"""Every rank sends tokens to the ranks of their experts, and gets the results back, as in a mixture-of-experts layer.

The experts of rank k receive a number of tokens that is proportional to (k+1)^-skew. With `--skew 0` (default), all
ranks get equally many tokens. With a larger skew, rank 0 gets the largest share. The operation consists of two
exchanges. In the dispatch, ranks send tokens to experts. In the combine, the experts' ranks send results back. All
messages of an exchange are posted together. Results are in bfloat16. With an element type of one byte (`-d
float8_e4m3fn`), a token element has 8 bits. The dispatch then has half the bytes of the combine. With all other element
types, dispatch and combine have equal bytes. Tokens for a rank's own experts do not move. The experts take no time.

S is the size of the largest buffer on any rank. A send buffer contains all tokens and results that its rank sends. A
receive buffer contains all tokens and results that its rank receives. Each byte of a buffer crosses the rank's port
once, so the bus factor is 1.

    torchrun --nproc-per-node 8 -m bench.moe -d float8_e4m3fn --sizes 64M --skew 1
    mpirun -n 4 python -m bench.moe --sizes 64K,1M
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache, partial
from itertools import accumulate

from bench.core.pattern import MessagePattern, Shape
from bench.core.program import Exchange, Message, Step

# Unit of the results. Tokens of 8 bits need half of it: 16 bytes, which hold whole elements of every type.
_UNIT_BYTES = 32
_WHOLE = 1000  # weight of the hottest rank


class Moe(MessagePattern):
    """Every rank dispatches tokens to the experts of all ranks, and gets the results back."""

    name = "moe"
    min_ranks = 2
    factors = frozenset({"skew"})

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return S for the largest blocks within the requested size.

        If even the smallest blocks exceed the requested size, return S of the smallest blocks.
        """
        kind = shape.num_ranks, shape.skew, shape.element_bytes
        return _largest_bytes(*kind, _scale(*kind, requested_bytes))

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return two sizes in bytes: all tokens and results that a member sends, and all that the member receives."""
        tokens_out, tokens_in, results_out, results_in = _blocks(shape, member)
        return sum(tokens_out) + sum(results_out), sum(tokens_in) + sum(results_in)

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return two exchanges: the dispatch and the combine.

        In the send buffer and in the receive buffer, the tokens come before the results. Tokens and results are in the
        order of members.
        """
        tokens_out, tokens_in, results_out, results_in = _blocks(shape, member)
        dispatch = Exchange(_messages(tokens_out), _messages(tokens_in))
        after = sum(tokens_out), sum(tokens_in)
        return dispatch, Exchange(_messages(results_out, after[0]), _messages(results_in, after[1]))


@lru_cache(maxsize=64)
def _weights(num_ranks: int, skew: float) -> tuple[int, ...]:
    """Return the load of each rank's experts as an integer, where rank 0 has the load 1000. Each load is at least 1."""
    return tuple(max(1, round(_WHOLE * (k + 1) ** -skew)) for k in range(num_ranks))


@lru_cache(maxsize=1024)
def _scale(num_ranks: int, skew: float, element_bytes: int, most_bytes: int) -> int:
    """Return how many units the blocks of rank 0 have. This number is at least 1.

    This number of units makes S as large as possible without exceeding `most_bytes`.
    """
    scales = range(1, max(2, most_bytes // _UNIT_BYTES + 1))
    largest = partial(_largest_bytes, num_ranks, skew, element_bytes)
    return scales[max(0, bisect_right(scales, most_bytes, key=largest) - 1)]


def _results(num_ranks: int, skew: float, scale: int) -> list[int]:
    """Return, for each rank, how many bytes of results it sends back to each of the other ranks."""
    return [_UNIT_BYTES * max(1, scale * weight // _WHOLE) for weight in _weights(num_ranks, skew)]


def _part(element_bytes: int) -> int:
    """Return the ratio (bytes of a result) / (bytes of its token)."""
    return 2 if element_bytes == 1 else 1


def _largest_bytes(num_ranks: int, skew: float, element_bytes: int, scale: int) -> int:
    results, part = _results(num_ranks, skew, scale), _part(element_bytes)
    others = [(sum(results) - size, (num_ranks - 1) * size) for size in results]
    return max(max(theirs // part + own, own // part + theirs) for theirs, own in others)


def _blocks(shape: Shape, member: int) -> tuple[list[int], ...]:
    """Return four lists with the bytes for each peer: sent tokens, received tokens, sent results, received results."""
    scale = _scale(shape.num_ranks, shape.skew, shape.element_bytes, shape.payload_bytes)
    results, part = _results(shape.num_ranks, shape.skew, scale), _part(shape.element_bytes)
    theirs = [0 if peer == member else size for peer, size in enumerate(results)]
    own = [0 if peer == member else results[member] for peer in range(shape.num_ranks)]
    return [size // part for size in theirs], [size // part for size in own], own, theirs


def _messages(sizes: list[int], first_offset: int = 0) -> tuple[Message, ...]:
    offsets = accumulate(sizes, initial=first_offset)
    return tuple(Message(peer, size, at) for peer, (size, at) in enumerate(zip(sizes, offsets, strict=False)) if size)


PATTERN = Moe()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
