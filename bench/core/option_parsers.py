"""Parse typed text into values, on a command line and in files. Each parser raises UsageError for invalid text."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from bench.core import plugins
from bench.core.errors import UsageError
from bench.core.plugins import check, nearest
from bench.core.units import format_size, parse_duration, parse_rate, parse_size

# What the user can require a library to use, each with an example.
REQUIRABLE = {"network": "efa", "algorithm": "ring", "protocol": "simple"}
_AGGRESSOR_BYTES = 4 << 20  # large enough to keep any link busy, small enough to end soon
_NO_REST = re.compile(r"0+(\.0*)?\s*(s|ms|us)?")
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


class HelpText(argparse.HelpFormatter):
    """A help formatter that prints a text of several lines unchanged. A text without line breaks is wrapped."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of printing its usage, and suggests the nearest option."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with argparse's message.

        The message also names the command that prints help about the options.
        """
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Refuse options that are unknown to a subcommand.

        Without this check, the main parser would refuse these options and would explain only its own options.
        """
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._suggestion(rest)}")
        return found, rest

    def _suggestion(self, rest: Iterable[str]) -> str:
        mistyped = next((word.partition("=")[0] for word in rest if word.startswith("--")), None)
        known = [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]
        close = plugins.closest(mistyped.removeprefix("--"), known) if mistyped else None
        return f"; did you mean --{close}?" if close else ""


def one_of(kind: str, words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that accepts the words in `words` and no other text.

    `kind`: the name for the accepted words in error messages.
    """

    def parse(text: str) -> str:
        if text not in words:
            raise UsageError(f"no {kind} is called {text!r}{nearest(text, tuple(words))}")
        return text

    return parse


def whole(least: int, name: str = "") -> Callable[[str], int]:
    """Return a parser that accepts a whole number of `least` or more.

    `name`: the name of the number in error messages.
    """

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise UsageError(f"{name} {text!r} must be a whole number of {least} or more".lstrip())
        return int(text)

    return parse


def skew(text: str) -> float:
    """Parse an exponent from 0 to 4."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 4:
        raise UsageError(f"skew {text!r} must be a number from 0 (all equal) to 4")
    return value


def rest(text: str) -> float:
    """Parse a pause in seconds. The text is a duration, or 0 for no pause."""
    return 0.0 if _NO_REST.fullmatch(text.strip()) else parse_duration(text)


def alignment(text: str) -> int:
    """Parse a number of bytes: a power of two of 64 or more."""
    num_bytes = parse_size(text)
    if num_bytes < 64 or num_bytes & (num_bytes - 1):
        raise UsageError(f"alignment {text!r} must be a power of two of 64 bytes or more")
    return num_bytes


def at_least_one_byte(text: str) -> int:
    """Parse a size of one byte or more."""
    num_bytes = parse_size(text)
    if num_bytes < 1:
        raise UsageError(f"size {text!r} is too small: give at least 1 byte")
    return num_bytes


def demand(text: str) -> float:
    """Parse a rate that a run must reach, in bytes per second. The value 0 means that no rate is required."""
    return 0.0 if text in ("0", "0.0B/s") else parse_rate(text)


def switch(text: str) -> bool:
    """Parse `1` or `true`, `0` or `false`."""
    if text.lower() not in _SWITCH:
        raise UsageError(f"{text!r} must be 1 or true, 0 or false")
    return _SWITCH[text.lower()]


def matrix(text: str) -> tuple[tuple[int, ...], ...]:
    """Parse a square matrix of weights, written row by row: `0,1;2,0`."""
    try:
        rows = tuple(tuple(int(cell) for cell in row.split(",")) for row in text.split(";"))
    except ValueError:
        rows = ()
    square = all(len(row) == len(rows) for row in rows) and all(cell >= 0 for row in rows for cell in row)
    if not rows or not square or not any(map(any, rows)):
        raise UsageError(f"traffic matrix {text!r} must be square weights, rows separated by ';', such as 0,1;2,0")
    return rows


def nics(text: str) -> tuple[int, float]:
    """Parse the NICs of a node, such as 8x400G.

    Returns the number of NICs and the rate of one NIC in bytes per second. Raises UsageError.
    """
    match = re.fullmatch(r"(\d+) ?x ?(\d+(?:\.\d+)?) ?[gG]?", text)
    if match is None or not int(match[1]) or not float(match[2]):
        raise UsageError(f"--nics {text!r} is not a number of NICs and the Gb/s of each: write 8x400G")
    return int(match[1]), float(match[2]) * 1e9 / 8


def aggressor(text: str) -> str:
    """Return the text `PATTERN[:SIZE]`, always with a size. If the size is missing, a default size is added."""
    name, separator, size = text.partition(":")
    num_bytes = parse_size(size) if separator else _AGGRESSOR_BYTES
    return f"{check('pattern', name)}:{format_size(num_bytes)}"


def links(text: str) -> tuple[tuple[str, float], ...]:
    """Parse pairs of a link and its bytes per second, such as `nic=12.5GB/s,nvlink=300GB/s`."""
    pairs = []
    for part in text.split(","):
        name, separator, rate = part.partition("=")
        if not separator:
            raise UsageError(f"links {text!r} must be name=rate, such as nic=12.5GB/s,nvlink=300GB/s")
        pairs.append((name.strip(), parse_rate(rate)))
    return tuple(pairs)


def names(text: str) -> tuple[str, ...]:
    """Parse comma-separated names."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise UsageError(f"{text!r} must be comma-separated names, such as eth0,eth1")
    return names


def racks(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Parse the hosts of each rack: `r1=h0,h1;r2=h2,h3`."""
    racks = []
    for part in text.split(";"):
        rack, separator, hosts = part.partition("=")
        if not separator or not rack.strip():
            raise UsageError(f"racks {text!r} must be name=hosts, such as r1=h0,h1;r2=h2,h3")
        racks.append((rack.strip(), names(hosts)))
    return tuple(racks)


def required(text: str) -> tuple[tuple[str, str], ...]:
    """Parse what a library must use: `network=efa,algorithm=ring`."""
    pairs = []
    for part in text.split(","):
        name, _, value = (word.strip().lower() for word in part.partition("="))
        if name not in REQUIRABLE or not value:
            known = ", ".join(f"{word}={example}" for word, example in REQUIRABLE.items())
            raise UsageError(f"requirement {part!r} must be one of {known}, or several separated by commas")
        pairs.append((name, value))
    return tuple(pairs)


# These functions turn a value from a file into texts for the parsers above. `typed`: a text, or a list or mapping.


def listed(typed: object) -> list[Any]:
    """Return the value if it is a list, otherwise a list that contains only the value.

    Raises UsageError for an empty list.
    """
    if typed == []:
        raise UsageError("the list is empty: give at least one value, or leave out the key")
    return typed if isinstance(typed, list) else [typed]


def split_orders(typed: object) -> list[Any]:
    """Return a list of texts. Each text is an order of ranks.

    A list of numbers such as `[0, 2, 1, 3]` is a single order, so the result has one text.
    """
    parts = listed(typed)
    if all(isinstance(part, str) and part.isdecimal() for part in parts):
        return [",".join(parts)]
    return parts


def split_matrix(typed: object) -> list[Any]:
    """Return a list with one text, which is the matrix in the form of the command line (`0,1;2,0`).

    `typed`: the text itself, or a list with the rows of the matrix.
    """
    if not isinstance(typed, list):
        return [typed]
    rows = [row if isinstance(row, list) else [row] for row in typed]
    return [";".join(",".join(map(str, row)) for row in rows)]


def split_requirements(typed: object) -> list[Any]:
    """Return a list with one text, which has the requirements in the form of the command line (`network=efa`).

    `typed`: the text itself, or a mapping such as `{network: efa}`.
    """
    if not isinstance(typed, dict):
        return [typed]
    return [",".join(f"{name}={value}" for name, value in typed.items())]


def merged_sizes(parsed: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Merge parsed ranges and sizes, in bytes, into one tuple in rising order without duplicates."""
    return tuple(sorted({size for part in parsed for size in part}))


def only_one(parsed: tuple[Any, ...]) -> Any:
    """Return the only element of a list of parsed values.

    Factors whose `split` function always returns a single text use `only_one` as their `merge` function.
    """
    return parsed[0]


def ctas(text: str) -> str:
    """Check a number of CTAs such as `4`, or a range such as `1-16`, and return it unchanged. Raises UsageError."""
    found = re.fullmatch(r"([1-9]\d*)(?:-([1-9]\d*))?", text)
    if text and (found is None or int(found[2] or found[1]) < int(found[1])):
        raise UsageError(f"{text!r} is not a number of CTAs: give a number, such as 4, or a range, such as 1-16")
    return text
