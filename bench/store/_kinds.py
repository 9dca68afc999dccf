"""Does a stored line hold what its fields are? A file may have been written or changed by anything.

What a field may be stands in its dataclass, `float | None` or `Mapping[str, float]`; nothing is said twice here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

_PLAIN: dict[str, type | tuple[type, ...]] = {"str": str, "bool": bool, "int": int, "float": (int, float)}
_MANY = re.compile(r"(tuple|Mapping)\[(?:str, )?(\w+)(?:, \.\.\.)?\]")
_LARGEST = 1 << 1000  # what a float can not hold is no figure


def wrong(kind: type, parsed: Mapping[str, Any], unknown: bool) -> str | None:
    """The first field that is none of what it may be, in words; `unknown`: null is allowed everywhere."""
    for field in fields(kind):
        if field.name not in parsed or (unknown and parsed[field.name] is None):
            continue
        parts = str(field.type).split(" | ")
        if not any(_is(parsed[field.name], part) for part in parts):
            return f"{field.name} is {str(parsed[field.name])[:40]!r}, and must be {' or '.join(parts)}"
    return None


def _is(value: object, part: str) -> bool:
    if part == "None":
        return value is None
    if part in _PLAIN:
        if isinstance(value, int) and (isinstance(value, bool) != (part == "bool") or abs(value) > _LARGEST):
            return False
        return isinstance(value, _PLAIN[part])
    if part.startswith("Mapping") and not isinstance(value, Mapping):
        return False
    many = _MANY.fullmatch(part)
    if many is None or many[2] not in _PLAIN:
        return True
    if isinstance(value, Mapping):
        return all(each is None or _is(each, many[2]) for each in value.values())
    return isinstance(value, tuple) and all(_is(each, many[2]) for each in value)
