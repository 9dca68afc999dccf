"""Read and write compact lists of host names in Slurm's syntax: `n[001-128,200],login` (slurm.conf(5), NodeName)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from bench.core.errors import UsageError

_MOST_HOSTS = 1 << 16
_PART = re.compile(r"([^\[\],\s](?:[^\[\],\s]|\[[\d,-]+\])*)(?:,|$)", re.ASCII)  # a name, each range in brackets
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Expand a list: `n[1-3,7],m0` is n1, n2, n3, n7, m0. Leading zeros stay: `n[08-10]` is n08, n09, n10.

    If a name has several brackets, the last bracket varies fastest. Raises UsageError for any other text, and for more
    than 65,536 hosts.
    """
    names: list[str] = []
    at = 0
    while at < len(text) or not text:
        part = _PART.match(text, at)
        if part is None or (part.end() == len(text) and text.endswith(",")):
            raise UsageError(f"host list {text!r} is not valid: write it as n[1-3,7],m0")
        names += _expanded(part[1], text, _MOST_HOSTS - len(names))
        at = part.end()
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """Return a text from which `expand` restores these names.

    If names differ only in a final number, consecutive numbers become a range: n1, n2, n3 become `n[1-3]`.
    """
    parts: list[str] = []
    for (stem, width), group in groupby(map(_split, names), key=lambda split: (split[0], _width(split[1]))):
        runs: list[list[str]] = []
        for _, digits in group:
            if width and runs and int(digits) == int(runs[-1][-1]) + 1:
                runs[-1].append(digits)
            else:
                runs.append([digits])
        ranges = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
        if not width or ranges == [runs[0][0]]:
            parts += [f"{stem}{number}" for number in ranges]
        else:
            parts.append(f"{stem}[{','.join(ranges)}]")
    return ",".join(parts)


def _width(digits: str) -> int:
    """Return a key for the number at the end of a name.

    Two such numbers can be in one range only if their keys are equal.

    If the number begins with 0, the key is its number of digits. For other numbers, the key is 1. Without a number, the
    key is 0.
    """
    return len(digits) if digits.startswith("0") else min(len(digits), 1)


def _split(name: str) -> tuple[str, str]:
    """Return a name without the digits at its end, and the removed digits.

    Addresses and all-digit names are not split.
    """
    match = re.fullmatch(r"(.*[A-Za-z-])(\d+)", name, re.ASCII)
    return (match[1], match[2]) if match else (name, "")


def _expanded(part: str, text: str, most: int) -> list[str]:
    names = [""]
    for word in re.split(r"(\[[^\]]*\])", part):
        ends = [word]
        if word.startswith("["):
            ends = [number for piece in word[1:-1].split(",") for number in _numbers(piece, text, most)]
        if len(names) * len(ends) > most:
            raise _too_many(text)
        names = [name + end for name in names for end in ends]
    return names


def _numbers(piece: str, text: str, most: int) -> list[str]:
    match = _RANGE.fullmatch(piece)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"host list {text!r}: {piece!r} is not a range of numbers such as 1-3")
    first, last = int(match[1]), int(match[2] or match[1])
    if last - first >= most:
        raise _too_many(text)
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]


def _too_many(text: str) -> UsageError:
    return UsageError(f"host list {text!r} names more than {_MOST_HOSTS} hosts: check its ranges")
