"""Read one line of a table of nccl-tests and split it into its two halves.

    size count type [redop] [root]  time algbw busbw #wrong [i_min i_max i_p99 i_cv%]  (the same in place)  [date time]

Before version 2.13, tables of reductions had no column `root`, and tables of copies had no column `redop`. In versions
before 2.13, the last column of a half was `error`, the largest deviation. The header lists the columns. Without a
header, the number of fields shows which columns exist. Each half of a row has four or eight fields, so one additional
field must be the root. The reader never guesses a column from the value of a field. If a column cannot contain its
value, the row is unreadable. Values are therefore never read from a neighbouring column. Times are in microseconds.
Rates are in 10^9 bytes per second.

In 2018, the header was `bytes N type [op] [root]`, and times were in milliseconds with three decimals. The largest
deviation was named `res` or `delta`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from itertools import product

from bench.core.dtypes import ALIASES, DTYPES
from bench.logs.foreign import ForeignRow

_NO_REDUCTION = "none"
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf)$", re.IGNORECASE)
_MEASURED = re.compile(
    r"(?:\d+\.\d*(?:e[-+]?\d+)?|\de[-+]?\d+|\d{5,}|[-+]?(?:nan|inf))$", re.IGNORECASE
)  # a number with digits after a point, or with an exponent
_POINTED = re.compile(r"\d+\.\d*$")
_WRONG = re.compile(r"(?:\d{1,19}|\d(?:\.\d{1,19})?e\+\d\d)$")  # how %g prints an integer
_COUNT = re.compile(r"\d{1,19}$")
_ROOT = re.compile(r"-?\d{1,9}$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}$")
# how %5.0e prints a number; %g prints an integer with an exponent from e+06 on
_ERROR = re.compile(r"\de(?:-\d\d|\+0[0-5])$")
_FP8 = {
    "f8e4m3": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
}
_TYPES = {name: name for name in DTYPES} | ALIASES | _FP8
_OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum", "premulsum", _NO_REDUCTION)
_TYPED = re.compile(
    rf"\d\s*(?:{'|'.join(_TYPES)})\s*(?:(?:{'|'.join(_OPERATIONS)})(?![a-z])|-?\d+\s+\d)"
    rf"|\b(?:{'|'.join(_TYPES)})\s+(?:{'|'.join(_OPERATIONS)})\s+-?\d"
)
# up to this number of pieces of a row, the reader tries every way to join them, with or without spaces
_MOST_SEGMENTS_GLUED = 4
FIGURES = ("time", "algbw", "busbw")  # the figures of a half, in their order


@dataclass(frozen=True, slots=True)
class Half:
    """The values of one row for one placement of the buffers, in place or out of place.

    If a value was printed as nan, the field is None and `unreadable` contains the value's name.
    """

    time_us: float | None
    algbw: float | None
    busbw: float | None
    num_wrong: int | None
    checked: bool
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """A complete row, or the first part of an incomplete row. `halves`: the complete halves.

    `rest`: the fields after the complete halves.
    """

    size: int
    count: int
    dtype: str
    reduce_op: str | None
    root: int | None
    halves: tuple[Half, ...]
    rest: tuple[str, ...] = field(default=())
    half_digit_s: float = 0.0  # half of the last printed digit of times, if it is larger than usual

    def row(self, half: Half, in_place: bool, line: int) -> ForeignRow:
        """Convert one half of a printed row to a row in SI units."""
        return ForeignRow(
            self.size,
            self.count,
            self.dtype,
            self.reduce_op,
            self.root,
            in_place,
            None if half.time_us is None else half.time_us / 1e6,
            None if half.algbw is None else half.algbw * 1e9,
            None if half.busbw is None else half.busbw * 1e9,
            half.num_wrong,
            line,
            unreadable=half.unreadable,
        )


def element_type(word: str) -> str | None:
    """Return torch's name for a type of nccl-tests or rccl-tests, or None for any other word."""
    return _TYPES.get(word)


def begins_row(tokens: list[str]) -> bool:
    """Check whether these fields begin a row: size, count and a type of nccl-tests."""
    return len(tokens) > 2 and tokens[2] in _TYPES and bool(_COUNT.match(tokens[0]) and _COUNT.match(tokens[1]))


def may_begin_row(tokens: list[str]) -> bool:
    """Check whether these fields may belong to a row that breaks off within its first three fields."""
    counts, words = tokens[:2], tokens[2:]
    return all(_COUNT.match(token) for token in counts) and (
        not words or (len(words) == 1 and any(name.startswith(words[0]) for name in _TYPES))
    )


def is_damaged_row(text: str, shape: RowLayout) -> bool:
    """Check whether this unreadable line of a table is a damaged row.

    In an intact row, the element type is followed by an operation or a root, and each half has three numbers with a
    decimal point. If only one part of a row is damaged, either the type with its operation is intact, or nearly all
    numbers are intact.
    """
    if _TYPED.search(text):
        return True
    if text.count(".") < 3:
        return False
    tokens = text.split()
    num_figures = sum(_POINTED.match(token) is not None for token in tokens)
    least = 3 if shape.halves == 1 or is_figures(tokens) else 4
    return num_figures >= least


def is_figures(tokens: list[str]) -> bool:
    """Check whether these fields are only numbers and N/A, as in the second part of an interrupted row."""
    return all(_NUMBER.match(token) or token == "N/A" for token in tokens)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns that a header announces.

    If an attribute is None, the reader determines its value from the number of fields in each row.

    `width`: the number of fields in each half of a row.
    `as_errors`: whether the last column of a half is `error`.
    `milliseconds`: whether times are in milliseconds with three decimals.
    """

    halves: int = 2
    width: int | None = None
    rooted: bool | None = None
    as_errors: bool | None = None
    milliseconds: bool = False

    @property
    def half_digit_s(self) -> float:
        """The rounding error of printed times in seconds, if this error is larger than usual, else 0."""
        return 0.5e-6 if self.milliseconds else 0.0


UNTITLED = RowLayout()


def is_half(tokens: list[str], shape: RowLayout) -> bool:
    """Check whether these fields are one half or both halves of a row.

    These fields do not include the first fields of the row, such as its size.
    """
    width = shape.width or 4
    return (
        len(tokens) in (width, width + 1, 2 * width) and _half(tokens[len(tokens) % width :][:width], None) is not None
    )


def read(tokens: list[str], shape: RowLayout = UNTITLED) -> Fields | None:
    """Read the fields of a complete or incomplete row. Return None if a field cannot be in its column.

    If there is no header and the row is complete, the number of fields shows whether the row has a root. If there is no
    header and the row is incomplete, the halves are not read, because a value could belong to the next column.
    """
    size, count, dtype = int(tokens[0]), int(tokens[1]), _TYPES[tokens[2]]
    rest = tokens[3:]
    if len(rest) > 2 and _DATE.match(rest[-2]) and ":" in rest[-1]:
        rest = rest[:-2]
    reduce_op: str | None = None
    cut = len(rest) == 1 and any(name.startswith(rest[0]) for name in _OPERATIONS)
    if rest and (rest[0] in _OPERATIONS or cut):
        reduce_op = None if rest[0] == _NO_REDUCTION else rest[0]
        rest = rest[1:]
    width = shape.width or (8 if len(rest) in (16, 17) else 4)
    rooted = shape.rooted
    if rooted is None and len(rest) - width * shape.halves in (0, 1):
        rooted = len(rest) > width * shape.halves
    if rooted is None:
        return Fields(size, count, dtype, reduce_op, None, (), tuple(rest))
    root: int | None = None
    if rooted and rest:
        if not _ROOT.match(rest[0]):
            return None
        root = None if int(rest[0]) < 0 else int(rest[0])
        rest = rest[1:]
    halves: list[Half] = []
    while len(rest) >= width:
        half = _half(rest[:width], shape.as_errors)
        if half is None:
            return None
        if shape.milliseconds and half.time_us is not None:
            half = replace(half, time_us=1000 * half.time_us)
        halves.append(half)
        rest = rest[width:]
    return Fields(size, count, dtype, reduce_op, root, tuple(halves), tuple(rest), shape.half_digit_s)


def _half(tokens: list[str], as_errors: bool | None) -> Half | None:
    if not all(_MEASURED.match(token) for token in tokens[:3] + tokens[4:]):
        return None
    time_us, algbw, busbw = (_figure(token) for token in tokens[:3])
    last = tokens[3]
    wrong: int | None = None
    if last != "N/A":
        is_error = _ERROR.match(last) is not None if as_errors is None else as_errors
        if not (_NUMBER if is_error else _WRONG).match(last):
            return None
        wrong = None if is_error else int(last) if last.isdigit() else int(float(last))
    figures = (time_us, algbw, busbw)
    unreadable = tuple(name for name, value in zip(FIGURES, figures, strict=True) if value is None)
    return Half(*figures, wrong, last != "N/A", unreadable)


def _figure(token: str) -> float | None:
    value = float(token)
    return value if math.isfinite(value) else None


def agrees(fields: Fields) -> bool:
    """Check whether algbw is size / time within the printed digits, and whether the size is a multiple of the count.

    The check applies to rows that were joined from pieces.
    """
    num_bytes = DTYPES[fields.dtype].num_bytes
    if fields.count and fields.size % (fields.count * num_bytes):
        return False
    return all(
        half.time_us is None
        or half.algbw is None
        or half.time_us <= 0
        or rate_agrees(fields.size, half.time_us / 1e6, half.algbw * 1e9, half_digit_s=fields.half_digit_s)
        for half in fields.halves
    )


def rate_agrees(
    size: int, time_s: float, rate_bytes_per_s: float, share: float = 1.0, half_digit_s: float = 0.0
) -> bool:
    """Check whether a printed rate equals `share * size / time`, within the rounding of the printed values.

    `half_digit_s`: the rounding error of printed times in seconds, if this error is larger than usual.
    """
    low_s, high_s = time_between(time_s, half_digit_s)
    low, high = rate_between(rate_bytes_per_s)
    return share * size / high_s <= high * (1 + 1e-9) and share * size / low_s >= low * (1 - 1e-9)


def time_between(time_s: float, half_digit_s: float = 0.0) -> tuple[float, float]:
    """Return the range of times, in seconds, that nccl-tests prints as `time_s`.

    The range is wide enough for the version that prints the fewest digits.
    """
    time_us = time_s * 1e6
    half = 0.005 if time_us < 100 else 0.05 if time_us < 10_000 else 0.5 if time_us < 1e7 else 0.05 * time_us
    half = max(half, half_digit_s * 1e6)
    return max(time_us - half, 1e-9) / 1e6, (time_us + half) / 1e6


def rate_between(rate: float) -> tuple[float, float]:
    """Return the range of rates, in bytes per second, that may be printed as this rate."""
    gigabytes = rate / 1e9
    half = 0.005 if gigabytes < 1000 else 0.05 if gigabytes < 10_000 else 0.5 if gigabytes < 1e6 else 0.5 * gigabytes
    return max(gigabytes - half, 0.0) * 1e9, (gigabytes + half) * 1e9


def joined(pieces: list[str], shape: RowLayout) -> Fields | None:
    """Join the pieces of an interrupted row. Return None until the row is complete.

    The interruption may be between two fields or inside a field, and the log does not show which of the two. If there
    are several ways to join the pieces, the function prefers the way that gives consistent values.
    """
    gaps = len(pieces) - 1
    ways = product((" ", ""), repeat=gaps) if gaps < _MOST_SEGMENTS_GLUED else iter([(" ",) * gaps])
    spaced: Fields | None = None
    for way in ways:
        tokens = "".join(piece + gap for piece, gap in zip(pieces, (*way, ""), strict=True)).split()
        fields = read(tokens, shape) if begins_row(tokens) else None
        if fields is None or len(fields.halves) != shape.halves or fields.rest:
            continue
        if agrees(fields):
            return fields
        if "" not in way:
            spaced = fields
    return spaced
