"""Many host names in few letters, as Slurm writes them: `n[001-128,200],login` (slurm.conf(5), NodeName)."""

from __future__ import annotations

import re

from bench.core.errors import UsageError

_MOST_HOSTS = 1 << 16
_PART = re.compile(r"([^\[\],\s](?:[^\[\],\s]|\[[\d,-]+\])*)(?:,|$)", re.ASCII)  # a name, each range in brackets
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """`n[1-3,7],m0` as n1, n2, n3, n7, m0; zeros before a number stay: `n[08-10]` is n08, n09, n10.

    Several brackets in a name count like the digits of a number, the last one fastest. Raises UsageError for anything
    else, and for more than 65,536 hosts.
    """
    names: list[str] = []
    at = 0
    while at < len(text) or not text:
        part = _PART.match(text, at)
        if part is None or (part.end() == len(text) and text.endswith(",")):
            raise UsageError(f"the host list {text!r} is not one such as n[1-3,7],m0")
        names += _expanded(part[1], text, _MOST_HOSTS - len(names))
        at = part.end()
    return tuple(names)


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
        raise UsageError(f"{text!r}: {piece!r} is not a range of numbers such as 1-3")
    first, last = int(match[1]), int(match[2] or match[1])
    if last - first >= most:
        raise _too_many(text)
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]


def _too_many(text: str) -> UsageError:
    return UsageError(f"{text!r} names more than {_MOST_HOSTS} hosts: is a range mistyped?")
