"""Matrices whose product is known exactly, although their elements look like noise.

Row i and column k of the first factor hold u(i) s(k), row k and column j of the second t(k) v(j), all four noise of
integers up to 15 of either sign: the elements fill the eight significant bits of bfloat16, so that a GPU works as hard
as with other data (zeros or few bits cost it less power, and a hot GPU then runs faster). The product is
C(i,j) = u(i) v(j) x sum over k of s(k) t(k), and the last t make that sum SUM, a power of two: each element is exact in
every type here. A tile in another's place, a row of one factor that meets a column further on, a block of k that is
left out or taken twice: all give other numbers.

Every partial sum is an integer. While k goes by in order, the sum of s t is steered: it is never further from zero than
STEERED. In any order that keeps neighbours together, and also where a processor's lanes take every n-th k, no partial
sum comes near 2^24, up to which float32, in which all products are summed here, counts exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.core.dtypes import Dtype

TILE = 64  # an order is a whole number of these: what tensor cores like, and whole cache lines
SUM = 256  # of s(k) t(k); 15 x 15 x 256 is below the largest float16
MOST = 15
STEERED = 240
TYPES = ("bfloat16", "float16", "float32", "float64")  # whose products are exact here
_TAIL = 48  # of the t that make up the sum; their s are 1

Bytes = npt.NDArray[np.uint8]


def order_of(num_bytes: int, element_bytes: int) -> int:
    """Rows of the largest square matrix of whole tiles that takes no more bytes; one tile at least."""
    return max(TILE, isqrt(num_bytes // element_bytes) // TILE * TILE)


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix with few different rows: row i is `rows[index[i]]`, as raw bytes."""

    rows: Bytes
    index: Any

    def part(self, offset: int, num_bytes: int) -> Bytes:
        """Bytes [offset, offset + num_bytes) of the matrix, row by row."""
        width = self.rows.shape[1]
        first, last = offset // width, -(-(offset + num_bytes) // width)
        whole = self.rows[self.index[first:last]].reshape(-1)
        return whole[offset - first * width : offset - first * width + num_bytes]


class ProductData:
    """The two factors that a rank multiplies, and their product. Offsets and sizes in bytes."""

    def __init__(self, dtype: Dtype, order: int, rank: int, seed: int) -> None:
        u, s, t, v = vectors(order, rank, seed)
        self.first = _rows(u, s, dtype)
        self.second = _rows(t, v, dtype)
        self._product = _rows(u, SUM * v, dtype)
        self._factor_bytes = order * order * dtype.num_bytes

    def sent(self, offset: int, num_bytes: int) -> Bytes:
        """A part of the send buffer: the first factor, then the second."""
        border, end = self._factor_bytes, offset + num_bytes
        parts = []
        if offset < border:
            parts.append(self.first.part(offset, min(end, border) - offset))
        if end > border:
            start = max(offset, border)
            parts.append(self.second.part(start - border, end - start))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def product(self, offset: int, num_bytes: int) -> Bytes:
        """A part of what the product must be."""
        return self._product.part(offset, num_bytes)


@lru_cache(maxsize=4)
def vectors(order: int, rank: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """u, s, t, v: `order` integers from 1 to MOST of either sign, with the sum of s t steered to SUM."""
    noise = np.random.default_rng((order, rank, seed))
    u, s, t, v = (noise.integers(1, MOST + 1, order) * noise.choice((-1, 1), order) for _ in range(4))
    reached, tail = 0, order - _TAIL
    s[tail:] = 1
    for k in range(tail):
        if abs(reached + s[k] * t[k]) > STEERED:
            t[k] = -t[k]
        reached += int(s[k] * t[k])
    missing = SUM - reached - int(t[tail:].sum())
    for k in range(tail, order):
        before = int(t[k])
        t[k] = max(-MOST, min(MOST, before + missing)) or 1
        missing -= int(t[k]) - before
    if int((s * t).sum()) != SUM:
        raise AssertionError(f"no product of order {order} for rank {rank} and seed {seed}")
    return u, s, t, v


def _rows(left: Any, right: Any, dtype: Dtype) -> Rows:
    """The outer product of `left`, integers of at most MOST, and `right`."""
    whole = np.outer(np.arange(-MOST, MOST + 1), right)
    if dtype.name == "bfloat16":
        raw = (whole.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        raw = whole.astype(dtype.name)
    return Rows(np.ascontiguousarray(raw).view(np.uint8), left + MOST)
