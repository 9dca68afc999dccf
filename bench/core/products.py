"""Matrices with an exactly known product, although their elements look like noise.

The first factor has the elements u(i) s(k) in row i and column k. The second factor has the elements t(k) v(j) in row k
and column j. The values of u, s, t and v are random integers from -15 to 15, except 0. Such elements fill the eight
significant bits of bfloat16, so a GPU needs as much power as with other data. With zeros or few set bits a GPU would
need less power, and a hot GPU would then run faster.

The product is C(i,j) = u(i) v(j) x sum over k of s(k) t(k). The last values of s are chosen to make this sum equal to
SUM, a power of two. Each element of the product is then exact in every type here. The result changes if a tile is in
the wrong place or a row is multiplied by the wrong column. It also changes if a block of k is omitted or added twice.
The values of u and t repeat after PERIOD rows, and PERIOD is a prime number. The first rows of a matrix therefore
determine all other rows, and swapped tiles are detected.

Every partial sum is an integer. The signs of s are chosen so that the sum of s t, added up in order of k, stays between
-STEERED and STEERED. All products here are summed in float32, which represents all integers up to 2^24 exactly. Partial
sums stay far below this limit, even if a GPU adds up ranges of k separately, or if each lane of a processor takes every
n-th k.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bench.core.dtypes import Dtype
from bench.core.payload import Bytes, Tiled

SUM = 256  # the sum of s(k) t(k); 15 x 15 x 256 is below the largest float16
MOST = 15
STEERED = 240
TYPES = ("bfloat16", "float16", "float32", "float64")  # with exact products here
PERIOD = 61  # rows; a prime below the tile of core/sweep.py
_ONES = 8  # elements of each period of t are 1 or -1; there, s can be chosen to reach SUM exactly


class ProductData:
    """The two factors that a rank multiplies, and the rows of their product."""

    def __init__(self, dtype: Dtype, order: int, rank: int, seed: int) -> None:
        u, s, t, v = vectors(order, rank, seed)
        self.factors = (Tiled(_encoded(np.outer(u, s), dtype)), Tiled(_encoded(np.outer(t, v), dtype)))
        self.product = Tiled(_encoded(np.outer(u, SUM * v), dtype))


@lru_cache(maxsize=4)
def vectors(order: int, rank: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return u and t with PERIOD integers, and s and v with `order` integers.

    No integer is 0 or above MOST in absolute value. The sum of s t is SUM.
    """
    noise = np.random.default_rng((order, rank, seed))
    u, s, t, v = (
        noise.integers(1, MOST + 1, num) * noise.choice((-1, 1), num) for num in (PERIOD, order, PERIOD, order)
    )
    t[:_ONES] = np.sign(t[:_ONES])
    reached, tail = 0, order - PERIOD
    for k in range(tail):
        step = int(s[k] * t[k % PERIOD])
        if abs(reached + step) > STEERED:
            s[k], step = -s[k], -step
        reached += step
    of_tail = sorted(range(tail, order), key=lambda k: k % PERIOD < _ONES)  # elements with t = 1 or -1 come last
    missing = SUM - reached - sum(int(s[k] * t[k % PERIOD]) for k in of_tail)
    for k in of_tail:
        before, factor = int(s[k]), int(t[k % PERIOD])
        s[k] = max(-MOST, min(MOST, before + int(missing / factor))) or before
        missing -= (int(s[k]) - before) * factor
    if missing:
        raise AssertionError(f"no product of order {order} for rank {rank} and seed {seed}")
    return u, s, t, v


def _encoded(values: Any, dtype: Dtype) -> Bytes:
    """Return integers of at most eight significant bits as raw elements."""
    if dtype.name == "bfloat16":
        raw = (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        raw = values.astype(dtype.name)
    return np.ascontiguousarray(raw).view(np.uint8).reshape(-1)
