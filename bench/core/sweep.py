"""Parse message sizes, round them to possible payloads, and omit some of them to fit a time budget."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from bench.core.errors import UsageError
from bench.core.units import format_size, parse_size

DEFAULT_SIZES = "8:16M:2"
TILE = 64  # matrix orders are multiples of this, for tensor cores and whole cache lines


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes, in bytes, of `begin:end:factor` (default factor 2) or of a list `8,1K,1M`.

    The sizes are sorted and without duplicates.

    A range of sizes always includes its end. For example, the last two sizes of `8:1M:4` are 512K and 1M. Raises
    UsageError for an empty or falling range, a factor below 2, or an invalid size.
    """
    if ":" not in text:
        return tuple(sorted({parse_size(part) for part in text.split(",")}))
    parts = text.split(":")
    if len(parts) > 3:
        raise UsageError(f"sizes {text!r} have {len(parts)} parts: write begin:end:factor, such as 8:128M:2")
    begin, end = parse_size(parts[0]), parse_size(parts[1])
    factor = parts[2] if len(parts) == 3 else "2"
    if not factor.isdecimal() or int(factor) < 2:
        raise UsageError(f"sizes {text!r}: the factor {factor!r} must be a whole number of 2 or more")
    return _to_the_end(begin, end, int(factor))


def _to_the_end(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Return the sizes begin, begin * factor, ... below the end, and then the end itself, in bytes."""
    sizes = geometric(begin, end, factor)
    return sizes if sizes[-1] == end else (*sizes, end)


def geometric(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Return begin, begin * factor, ... up to the end, in bytes. nccl-tests uses the same sizes."""
    if end < begin:
        raise UsageError(f"sizes end ({format_size(end)}) before they begin ({format_size(begin)})")
    sizes = []
    while begin <= end:
        sizes.append(begin)
        begin *= factor
    return tuple(sizes)


def format_sizes(sizes: Sequence[int]) -> str:
    """Return a short text from which `parse_sizes` gets the same sizes."""
    if len(sizes) >= 3:
        factor = sizes[1] // sizes[0]
        if factor >= 2 and _to_the_end(sizes[0], sizes[-1], factor) == tuple(sizes):
            return f"{format_size(sizes[0])}:{format_size(sizes[-1])}:{factor}"
    return ",".join(format_size(size) for size in sizes)


def thin(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most `most` of the sizes, evenly spaced.

    The result includes the first and the last size, so a `most` below 2 counts as 2.
    """
    most = max(most, 2)
    if len(sizes) <= most:
        return tuple(sizes)
    step = (len(sizes) - 1) / (most - 1)
    return tuple(sizes[round(index * step)] for index in range(most))


def round_elements(requested_bytes: int, element_bytes: int) -> int:
    """Return the payload in bytes of an operation on one buffer (allreduce, ...).

    The payload is at least one whole element.
    """
    return max(requested_bytes // element_bytes, 1) * element_bytes


def round_blocks(requested_bytes: int, num_ranks: int) -> int:
    """Return the payload in bytes of an operation on one block per rank.

    A block is a multiple of 16 bytes, at least 16.

    The payload is rounded down as in nccl-tests, but never to 0: `n * 16 * floor(S / 16n)`, with S = `requested_bytes`
    and n = `num_ranks`. The size of every element type in this suite divides 16 bytes.
    """
    return num_ranks * 16 * max(requested_bytes // (16 * num_ranks), 1)


def order_of(num_bytes: int, element_bytes: int) -> int:
    """Return the number of rows of the largest square matrix that fits in `num_bytes`.

    The matrix has only whole tiles, and at least one tile.
    """
    return max(TILE, isqrt(num_bytes // element_bytes) // TILE * TILE)
