"""Collect the lines of a log that belong to the JSON document of a tool.

The document ends when all of its braces are closed.
"""

from __future__ import annotations

import json
import re
from typing import Any

_MOST_CHARACTERS = 64 << 20
# a repeated group; an alternative for each character would backtrack at each character
_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')


class JsonCollector:
    """Collects the lines of one JSON document.

    If the first line does not begin with a brace, the class adds an opening brace.
    """

    def __init__(self, line: int) -> None:
        self.line = line
        self._texts: list[str] = []
        self._depth = self._size = 0
        self._opened = False

    def feed(self, text: str) -> bool:
        """Read a line.

        Return True if the document has ended, because its braces are closed or because it is too long.
        """
        if not self._texts and not text.startswith("{"):
            text = "{" + text
        self._texts.append(text)
        self._size += len(text) + 1
        bare = _STRINGS.sub("", text) if '"' in text else text
        self._opened = self._opened or "{" in bare
        self._depth += bare.count("{") - bare.count("}")
        return (self._opened and self._depth <= 0) or self._size > _MOST_CHARACTERS

    def read(self) -> dict[str, Any] | None:
        """Return the document, or None if the document is incomplete or is not valid JSON."""
        text = "\n".join(self._texts)
        try:
            found, _ = json.JSONDecoder(strict=False).raw_decode(text)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def mapping(value: object) -> dict[str, Any]:
    """Return the value if it is a JSON object, else an empty object."""
    return value if isinstance(value, dict) else {}


def listing(value: object) -> list[Any]:
    """Return the value if it is a JSON array, else an empty array."""
    return value if isinstance(value, list) else []


def figure(value: object) -> float | None:
    """Return the value if it is a finite JSON number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < 1e300 else None
