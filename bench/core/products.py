"""Make matrices that look random, but whose product is known exactly.

The elements of the first factor are `A(i,k) = u(i) s(k)`, and those of the second factor are `B(k,j) = t(k) v(j)`. The
values of u, s, t and v are random integers from -15 to 15, except 0. The elements use all eight significant bits of
bfloat16, so a GPU needs as much power as for typical data. With zeros or with few bits set, a GPU would need less
power, and a GPU that throttles when hot would run faster.

The product is `C(i,j) = u(i) v(j) x sum over k of s(k) t(k)`. The last values of s are chosen so that the sum is the
constant SUM, a power of two. Each element of the product is then exact in every type of TYPES. The product changes if a
tile is in the wrong place, or if a row is multiplied by the wrong column. The product also changes if a block of k is
omitted or added twice. The values of u and t repeat after PERIOD rows, and PERIOD is a prime number. The first rows of
a matrix therefore determine all other rows, and swapped tiles are detected.

Every partial sum is an integer. The signs of s are chosen so that the running sum of s(k) t(k), in order of k, stays
between -STEERED and STEERED. All types of TYPES are summed in float32 or wider, and float32 represents all integers up
to 2^24 exactly. Partial sums stay far below 2^24 in any usual order of summation. For example, a GPU may sum ranges of
k separately, or a lane of a vector unit may sum every n-th k.
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
    """The data of a matrix product on one rank: its two factors, and the expected product.

    Each matrix is stored as one period of rows, which repeats.
    """

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
    """Return integers as raw elements. The integers must have at most eight significant bits."""
    if dtype.name == "bfloat16":
        raw = (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        raw = values.astype(dtype.name)
    return np.ascontiguousarray(raw).view(np.uint8).reshape(-1)
