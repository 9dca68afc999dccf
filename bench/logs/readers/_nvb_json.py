"""The JSON document of nvbandwidth, collected from lines until its braces close, and what is whole in a broken one."""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

from bench.logs.foreign import Line

BEGINS = re.compile(r'\{?\s*"nvbandwidth"\s*:')
_MOST_CHARACTERS = 16 << 20
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'  # a choice for every character would keep a way back for each
_STRINGS = re.compile(_STRING)
# A line of a document as a program indents it: a bracket, a value, or a key with one of them.
_SCALAR = rf"(?:{_STRING}|-?\d[\d.eE+-]*|true|false|null|NaN|-?Infinity)"
_PRINTED = re.compile(rf"(?:(?:{_STRING}\s*:\s*)?(?:[\[{{](?:\s*[\]}}])?|{_SCALAR})?|[\]}}]+)\s*,?")
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_PAIR = re.compile(rf'"([^"\\]+)"\s*:\s*({_SCALAR})')


class NvbandwidthJsonCollector:
    """One document, from the line that names it. Lines that are none of it, as others print them between, are left."""

    def __init__(self, line: Line) -> None:
        self.line = line.number
        self.too_long = False
        self.closed = False
        self._texts: list[str] = []
        self._numbers = array("Q")
        self._depth = self._size = 0
        self._opened = False

    def feed(self, line: Line) -> None:
        """Takes a line in; `closed` and `too_long` tell whether more is wanted."""
        text = line.text.strip()
        if not self._texts:
            text = text[text.index('"nvbandwidth"') :]
        elif not text or not (text[0] in '"{}[]' or _PRINTED.fullmatch(text)):
            return
        self._texts.append(text)
        self._numbers.append(line.number)
        self._size += len(text) + 1
        self.too_long = self._size > _MOST_CHARACTERS
        bare = _STRINGS.sub("", text) if '"' in text else text
        opened, closed = bare.count("{"), bare.count("}")
        self._opened = self._opened or opened > 0
        self._depth += opened - closed
        self.closed = self._opened and self._depth <= 0

    def line_of(self, key: str) -> int | None:
        """The first line that holds a key."""
        found = (number for number, text in zip(self._numbers, self._texts, strict=True) if f'"{key}"' in text)
        return next(found, None)

    def read(self) -> tuple[dict[str, Any], list[int | None], bool]:
        """What stands under "nvbandwidth", the line of every test case, and whether the document is whole."""
        text = ""
        for texts in (self._texts, filter(_PRINTED.fullmatch, self._texts)):
            text = "{" + "\n".join(texts)
            found = _parsed(text)
            if found is not None:
                return found, self._lines_of_names(found), True
        found = _salvaged(text)
        return found, self._lines_of_names(found), False

    def _lines_of_names(self, found: dict[str, Any]) -> list[int | None]:
        """Where each test case names itself; None for all where they can not be told apart."""
        cases = found.get("testcases")
        cases = cases if isinstance(cases, list) else []
        wanted = [case.get("name") if isinstance(case, dict) else None for case in cases]
        pairs = zip(self._numbers, self._texts, strict=True)
        named = [(name, number) for number, text in pairs if '"name"' in text for name in _NAME.findall(text)]
        if [name for name, _ in named[: len(wanted)]] != wanted:
            return [None] * len(cases)
        return [number for _, number in named[: len(wanted)]]


def _parsed(text: str) -> dict[str, Any] | None:
    """The first complete value of "nvbandwidth"; what follows it is no matter."""
    for ending in ("", "}"):
        try:
            value, _ = json.JSONDecoder().raw_decode(text + ending)
        except (ValueError, RecursionError):
            continue
        inner = value.get("nvbandwidth") if isinstance(value, dict) else None
        return inner if isinstance(inner, dict) else {}
    return None


def _salvaged(text: str) -> dict[str, Any]:
    """Whole test cases and plain values of a document that is cut or spoilt."""
    start = re.search(r'"testcases"\s*:\s*\[', text)
    if start is None:
        return _plain(text)
    cases: list[Any] = []
    decoder, at = json.JSONDecoder(), start.end()
    while (brace := re.compile(r"[\s,]*(\{)").match(text, at)) is not None:
        try:
            value, at = decoder.raw_decode(text, brace.start(1))
        except (ValueError, RecursionError):
            break
        cases.append(value)
    return _plain(text[: start.start()]) | {"testcases": cases}


def _plain(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in _PAIR.findall(text):
        try:
            found[key] = json.loads(value)
        except ValueError:
            continue
    return found
