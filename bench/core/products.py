"""Matrices whose product is known exactly, although their elements look like noise.

Row i and column k of the first factor hold u(i) s(k), row k and column j of the second t(k) v(j), all four noise of odd
and even integers up to 15 of either sign: elements fill the eight significant bits of bfloat16, so that a GPU works as
hard as with any data. Then C(i,j) = u(i) v(j) x sum over k of s(k) t(k), and the last t make that sum SUM, a power of
two: every element of the product is exact in every type here. A tile in another's place, a row of one factor with a
column further on, a block of k left out or taken twice: all give another number.

Every sum on the way is an integer. While k goes by in order the sum of s t is steered: it never is further from zero
than STEERED, so that in any order that keeps neighbours together, and for the lanes of a processor that take every
n-th k, no partial sum comes near 2^24, up to which float32 (in which all products here are summed) counts exactly.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from math import isqrt
from typing import Any

import numpy as np

from bench.core.dtypes import Dtype
from bench.core.payload import encode, noise

TILE = 64  # an order is a whole number of these: fast on every tensor core
SUM = 256  # of s(k) t(k): 15 x 15 x 256 is below what float16 holds
STEERED = 1024
_MOST = 15
DTYPES = ("bfloat16", "float16", "float32", "float64")  # whose products have a meaning and are exact here


def order_of(num_bytes: int, element_bytes: int) -> int:
    """Rows of the largest square matrix of whole tiles that takes no more bytes; one tile at least."""
    return max(TILE, isqrt(num_bytes // element_bytes) // TILE * TILE)


@lru_cache(maxsize=4)
def _vectors(order: int, seed: int) -> tuple[Any, ...]:
    """u, s, t, v: int64, `order` elements each; none is 0."""
    drawn = (_drawn(order, seed * 4 + which) for which in range(4))
    u, s, t, v = drawn
    reached = 0
    tail = order - TILE // 2  # there s is 1, so that t can make up what is left
    for k in range(tail):
        step = int(s[k] * t[k])
        if abs(reached + step) > STEERED - 240:
            t[k] = -t[k]
            step = -step
        reached += step
    s[tail:] = 1
    left = SUM - reached
    for k in range(tail, order):
        rest = order - k - 1
        # As large as needed now, and never 0 nor a residue that the rest could not make up.
        wanted = left if rest == 0 else max(-_MOST * 4, min(_MOST * 4, -(-left // (rest + 1))))
        t[k] = wanted or (1 if left > 0 or rest % 2 else -1)
        left -= int(t[k])
    assert left == 0 and int((s * t).sum()) == SUM
    return u, s, t, v
