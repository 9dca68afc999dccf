"""How words that somebody typed become values, on a command line and in files. UsageError says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.core.errors import UsageError
from bench.core.plugins import check, nearest
from bench.core.units import format_size, parse_rate, parse_size

# What a library may be held to, each with an example.
REQUIRABLE = {"network": "efa", "algorithm": "ring", "protocol": "simple"}
_AGGRESSOR_BYTES = 4 << 20  # large enough to keep any link busy, small enough to be told to stop


def one_of(kind: str, words: Sequence[str]) -> Callable[[str], str]:
    """What reads one of these words; `kind` is what errors call it."""

    def parse(text: str) -> str:
        if text not in words:
            raise UsageError(f"no {kind} is called {text!r}{nearest(text, tuple(words))}")
        return text

    return parse


def whole(least: int, name: str = "") -> Callable[[str], int]:
    """What reads a whole number of `least` or more; errors may call it by a name."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise UsageError(f"{f'{name} ' if name else ''}{text!r} must be a whole number of {least} or more")
        return int(text)

    return parse


def alignment(text: str) -> int:
    """Bytes, a power of two."""
    num_bytes = parse_size(text)
    if num_bytes < 64 or num_bytes & (num_bytes - 1):
        raise UsageError(f"alignment {text!r} must be a power of two of 64 bytes or more")
    return num_bytes


def switch(text: str) -> bool:
    """0 or 1."""
    return one_of("switch", ("0", "1"))(text) == "1"


def matrix(text: str) -> tuple[tuple[int, ...], ...]:
    """Square weights, row by row: `0,1;2,0`."""
    try:
        rows = tuple(tuple(int(cell) for cell in row.split(",")) for row in text.split(";"))
    except ValueError:
        rows = ()
    square = all(len(row) == len(rows) for row in rows) and all(cell >= 0 for row in rows for cell in row)
    if not rows or not square or not any(map(any, rows)):
        raise UsageError(f"traffic matrix {text!r} must be square weights, rows by ';', such as 0,1;2,0")
    return rows


def aggressor(text: str) -> str:
    """`PATTERN[:SIZE]`, with its size told."""
    name, separator, size = text.partition(":")
    num_bytes = parse_size(size) if separator else _AGGRESSOR_BYTES
    return f"{check('pattern', name)}:{format_size(num_bytes)}"


def links(text: str) -> tuple[tuple[str, float], ...]:
    """Rates in bytes per second by link: `nic=12.5GB/s,nvlink=300GB/s`."""
    pairs = []
    for part in text.split(","):
        name, separator, rate = part.partition("=")
        if not separator:
            raise UsageError(f"links {text!r} must be name=rate, such as nic=12.5GB/s,nvlink=300GB/s")
        pairs.append((name.strip(), parse_rate(rate)))
    return tuple(pairs)


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise UsageError(f"{text!r} must be names with commas between them, such as eth0,eth1")
    return names


def racks(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The hosts of each rack: `r1=h0,h1;r2=h2,h3`."""
    racks = []
    for part in text.split(";"):
        rack, separator, hosts = part.partition("=")
        if not separator or not rack.strip():
            raise UsageError(f"racks {text!r} must be name=hosts, such as r1=h0,h1;r2=h2,h3")
        racks.append((rack.strip(), names(hosts)))
    return tuple(racks)


def required(text: str) -> tuple[tuple[str, str], ...]:
    """What a library is held to: `network=efa,algorithm=ring`."""
    pairs = []
    for part in text.split(","):
        name, _, value = (word.strip().lower() for word in part.partition("="))
        if name not in REQUIRABLE or not value:
            known = ", ".join(f"{word}={example}" for word, example in REQUIRABLE.items())
            raise UsageError(f"requirement {part!r} must be one of {known}, or several with commas between them")
        pairs.append((name, value))
    return tuple(pairs)
