"""Compute the expected value of every byte from seed, rank and position alone, so that wrong data are detected.

Operations that only copy use noise that depends on the source rank and the position. Blocks that are swapped, shifted
or left from an earlier operation therefore contain wrong values.

For sums, the elements are small integers. If a type has p significand bits, the absolute values of the integers in a
sum add up to at most 2^p. Partial sums are then exact in any order, so results are compared bit by bit.

With n members, the value of element i of member m depends on noise(i) and on the slot `(m + noise(i)) mod n`. For every
element, each member has a different slot. The reduction over all members therefore has a closed form, which takes the
same time to compute for 2000 ranks as for 2.

Noise repeats after a prime number of words. Two swapped blocks are therefore detected if their size is a multiple of 16
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.core.dtypes import Dtype

Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]
_Bools = npt.NDArray[np.bool_]
_Signed = npt.NDArray[np.int64]

PERIOD = 131_071  # words; a prime, see above
_LARGEST_ELEMENT_BYTES = 16
AVG_TOLERANCE_ULP = 2.0  # libraries multiply by 1/n in different precisions (nccl-tests allows the same)


@lru_cache(maxsize=8)
def _noise(seed: int) -> _Words:
    """Return one period of uniform 64-bit random words.

    Each word is the value of a counter, mixed by the last steps (the finaliser) of the random generator splitmix64.
    """
    word = np.arange(PERIOD, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def _salt(*key: int) -> int:
    """Return a 64-bit hash of some small integers."""
    mixed = 0
    for part in key:
        mixed = ((mixed ^ (part + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed ^= mixed >> 29
    return mixed


@dataclass(frozen=True, slots=True, eq=False)
class Tiled:
    """Content that repeats `period` without end and begins at byte `offset` of the period.

    Only the period is stored. A period has a few MiB at most. Each 8-byte word of the content is `(word ^ salt) &
    mask`, where `word` is the repeated word. If the period is not a whole number of words, `salt` and `mask` must keep
    their defaults, which change nothing.
    """

    period: Bytes
    offset: int = 0
    salt: int = 0
    mask: int = 2**64 - 1

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes.

        A row is the shortest content that consists of whole periods, and also of whole elements of every type.
        """
        return lcm(len(self.period), _LARGEST_ELEMENT_BYTES)

    def after(self, num_bytes: int) -> Tiled:
        """Return the same content without its first `num_bytes` bytes."""
        return replace(self, offset=self.offset + num_bytes)

    def head(self, num_bytes: int) -> Bytes:
        """Return the first `num_bytes` bytes of the content, in a new array."""
        first = self.offset - self.offset % 8
        skipped = self.offset - first
        words = _repeated(self.period, first, -(-(skipped + num_bytes) // 8) * 8).view(np.uint64)
        if self.salt or self.mask != 2**64 - 1:
            words = (words ^ np.uint64(self.salt)) & np.uint64(self.mask)
        return words.view(np.uint8)[skipped : skipped + num_bytes]


@lru_cache(maxsize=8)
def constant(byte: int) -> Tiled:
    """Return content that repeats one byte."""
    return Tiled(np.full(1 << 16, byte, dtype=np.uint8))


def _repeated(period: Bytes, offset: int, num_bytes: int) -> Bytes:
    out = np.empty(num_bytes, dtype=np.uint8)
    done = 0
    while done < num_bytes:
        start = (offset + done) % len(period)
        count = min(len(period) - start, num_bytes - done)
        out[done : done + count] = period[start : start + count]
        done += count
    return out


def poison(dtype: Dtype) -> int:
    """Return the byte that fills memory before the memory is written.

    The byte is 0xA5 for integers and 0xFF for other types, because a float of 0xFF bytes is a NaN.
    """
    return 0xA5 if dtype.kind in ("int", "uint") else 0xFF


class CopyData:
    """Data for operations that move bytes without combining them. The values are arbitrary but finite."""

    def __init__(self, dtype: Dtype, ranks: tuple[int, ...], seed: int) -> None:
        self._ranks = ranks
        self._seed = seed
        # Clearing the top exponent bit keeps every float finite, because some libraries canonicalise NaN.
        element = dtype.num_bytes // 2 if dtype.kind == "complex" else dtype.num_bytes
        clear = 0 if dtype.kind in ("int", "uint") else 1 << (8 * element - 2)
        self._mask = ~sum(clear << (8 * element * k) for k in range(8 // element)) % 2**64

    def sent(self, member: int, offset: int = 0) -> Tiled:
        """Return the send buffer of a member, starting at byte `offset`."""
        return Tiled(_noise(self._seed).view(np.uint8), offset, _salt(self._seed, self._ranks[member]), self._mask)


class ReduceData:
    """Values for a reduction over all members of a group. The result of the reduction is known exactly."""

    def __init__(self, dtype: Dtype, reduce_op: str, ranks: tuple[int, ...], seed: int) -> None:
        self._dtype = dtype
        self._op = reduce_op
        self._key = (dtype, reduce_op, len(ranks), _salt(seed, ranks[0]) % 2**32)
        self._rule = _rule(*self._key)

    @property
    def exact(self) -> bool:
        """Whether results are compared bit by bit.

        Only results of avg may differ from the expected result, within a tolerance.
        """
        return self._op != "avg"

    def sent(self, member: int, offset: int = 0) -> Tiled:
        """Return the content of one member's send buffer for the reduction, from byte `offset` on."""
        return Tiled(_sent_period(member, *self._key), offset)

    def reduced(self, offset: int = 0) -> Tiled:
        """Return the reduction over all members, starting at byte `offset`."""
        return Tiled(_reduced_period(*self._key), offset)

    def beyond(self, got: Bytes, offset: int) -> _Bools:
        """Return a flag for each received element: whether it differs from the exact average by more than 2 ulp."""
        want = self.reduced(offset).head(len(got))
        value, exact = _decode(got, self._dtype), _decode(want, self._dtype)
        _, exponent = np.frexp(exact)
        ulp = np.ldexp(1.0, exponent - self._dtype.precision)
        beyond: _Bools = ~(np.abs(value - exact) <= AVG_TOLERANCE_ULP * ulp)
        return beyond


# All buffer sets of a row hold the same data, so the periods of a row are made once.
@lru_cache(maxsize=4)
def _rule(dtype: Dtype, op: str, num: int, seed: int) -> Any:
    return _RULES[_rule_name(dtype, op)](dtype, num, _noise(seed))


@lru_cache(maxsize=4)
def _sent_period(member: int, dtype: Dtype, op: str, num: int, seed: int) -> Bytes:
    slot = (member + (_noise(seed) >> np.uint64(40)).astype(np.int64)) % num
    return _encode(_rule(dtype, op, num, seed).value(slot), dtype)


@lru_cache(maxsize=4)
def _reduced_period(dtype: Dtype, op: str, num: int, seed: int) -> Bytes:
    total = _rule(dtype, op, num, seed).total(op)
    if op == "avg":
        total = np.asarray(total, dtype=np.float64) / num
    return _encode(total, dtype)


class _Exact:
    """The rule for sum. Each value is the integer s(i) * w[slot].

    The significand can represent all sums of these integers exactly.
    """

    def __init__(self, dtype: Dtype, num: int, noise: _Words) -> None:
        exact = min(dtype.precision or 8 * dtype.num_bytes - (dtype.kind == "int"), 40)
        widest = max(1, min(isqrt(2**exact // num), 1000))
        weight = [1 + _salt(slot) % widest if slot < 2**exact else 0 for slot in range(num)]
        self._weight: _Signed = np.array(weight, dtype=np.int64)
        # The largest integer is 2^w - 1; a float can also hold 2^p.
        largest = max(1, (2**exact - (dtype.precision == 0)) // int(self._weight.sum()))
        magnitude = 1 + (noise & np.uint64(2**39 - 1)).astype(np.int64) % largest
        negative = (noise >> np.uint64(63)).astype(bool) & (dtype.kind != "uint")
        self._scale: _Signed = np.where(negative, -magnitude, magnitude)

    def value(self, slot: _Signed) -> _Signed:
        return self._scale * self._weight[slot]

    def total(self, op: str) -> _Signed:
        return self._scale * int(self._weight.sum())


class _Extreme(_Exact):
    """The rule for min and max.

    Values are made as for the operation sum, but they may be larger, because min and max do not add them. Even types
    with few bits therefore have many different values.
    """

    def __init__(self, dtype: Dtype, num: int, noise: _Words) -> None:
        super().__init__(dtype, 1, noise)
        widest = isqrt(int(np.abs(self._scale).max()) * int(self._weight[0]))
        self._weight = np.array([1 + _salt(slot) % widest for slot in range(num)], dtype=np.int64)
        self._scale = np.sign(self._scale) * (1 + np.abs(self._scale) % widest)

    def total(self, op: str) -> _Signed:
        low, high = int(self._weight.min()), int(self._weight.max())
        wants_high = (self._scale > 0) == (op == "max")
        return self._scale * np.where(wants_high, high, low)


class _Average(_Exact):
    """The rule for avg.

    For each element, only two members have a value other than 0. If more members had values other than 0, the result
    would depend on whether a library scales the values before or after it adds them.
    """

    def __init__(self, dtype: Dtype, num: int, noise: _Words) -> None:
        super().__init__(dtype, num, noise)
        self._weight = np.array(([1, 2] + [0] * num)[:num], dtype=np.int64)
        self._scale = np.sign(self._scale) * (1 + np.abs(self._scale) % max(1, 2 ** (min(dtype.precision, 40) - 3)))


class _Product:
    """The rule for prod of floats.

    Slot 0 has a random significand, and other slots are powers of two (as in nccl-tests).
    """

    def __init__(self, dtype: Dtype, num: int, noise: _Words) -> None:
        steps = 2 ** min(dtype.precision - 1, 30)
        significand = 1.0 + (noise & np.uint64(steps - 1)).astype(np.float64) / steps
        self._first = np.where((noise >> np.uint64(63)).astype(bool), -significand, significand)
        # Only a few factors are not 1, because otherwise the product of many ranks would exceed float16's exponent
        # range.
        exponents = [_salt(slot, 7) % 3 - 1 if 0 < slot < 8 else 0 for slot in range(num)]
        self._power = np.ldexp(1.0, np.array(exponents))

    def value(self, slot: _Signed) -> Any:
        return np.where(slot == 0, self._first, self._power[slot])

    def total(self, op: str) -> Any:
        return self._first * float(self._power.prod())


class _Modular:
    """The rule for integers that are multiplied modulo 2^w or combined by bitwise operations.

    For each element, the member in slot 0 has a random word. The word of any other member depends only on its slot.
    """

    def __init__(self, dtype: Dtype, num: int, noise: _Words) -> None:
        self._first = noise
        self._num = num

    def _table(self, op: str) -> _Words:
        return np.array([_SLOT_WORDS[op](slot) % 2**64 for slot in range(self._num)], dtype=np.uint64)

    def total(self, op: str) -> _Words:
        total = self._first.copy()
        for word in self._table(op)[1:]:
            total = _COMBINE[op](total, word)
        return total


_SLOT_WORDS: dict[str, Callable[[int], int]] = {
    "prod": lambda slot: 2 * (slot % 50) + 3,
    "bxor": lambda slot: _salt(slot, 2),
    # Slots 1 to 3 clear (band) or set (bor) one bit of each byte. If more slots did, slot 0 would no longer matter.
    "band": lambda slot: ~(0x0101010101010101 << slot) if 0 < slot < 4 else ~0,
    "bor": lambda slot: 0x0101010101010101 << slot if 0 < slot < 4 else 0,
}
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "prod": np.multiply,
    "bxor": np.bitwise_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
}


def _modular(op: str) -> Callable[[Dtype, int, _Words], Any]:
    class Rule(_Modular):
        def value(self, slot: _Signed) -> _Words:
            return np.where(slot == 0, self._first, self._table(op)[slot])

    return Rule


_RULES: dict[str, Callable[[Dtype, int, _Words], Any]] = {
    "exact": _Exact,
    "extreme": _Extreme,
    "average": _Average,
    "product": _Product,
    **{op: _modular(op) for op in _COMBINE},
}


def _rule_name(dtype: Dtype, op: str) -> str:
    if op == "avg":
        return "average"
    if op in ("min", "max"):
        return "extreme"
    if op == "sum":  # also for integers: Open MPI saturates small ones where C would wrap
        return "exact"
    return "product" if op == "prod" and dtype.precision else op


def _encode(values: Any, dtype: Dtype) -> Bytes:
    """Return values as raw little-endian elements.

    The conversion is exact for the values of all rules in this module.
    """
    if dtype.kind == "complex":
        half = "float32" if dtype.num_bytes == 8 else "float64"
        # Real and imaginary part differ, so that a swap is detected. A sum adds real and imaginary parts separately.
        return np.stack([values, -2 * values], axis=-1).astype(half).reshape(-1).view(np.uint8)
    if dtype.name == "bfloat16":
        # Round to nearest even. Sums, products and extrema are exact; averages are not.
        word = np.asarray(values).astype(np.float32).view(np.uint32)
        word = word + (np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1)))
        return (word >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    return np.ascontiguousarray(values).astype(dtype.name).view(np.uint8)


def _decode(raw: Bytes, dtype: Dtype) -> npt.NDArray[np.float64]:
    if dtype.name == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return raw.view(dtype.name).astype(np.float64)
