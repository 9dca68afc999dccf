"""Read YAML strictly, by the core schema of YAML 1.2, and record the line and column of every value.

PyYAML follows YAML 1.1. In YAML 1.1, `off` and `NO` are booleans, `10:30` is a number in base sixty, `012` is octal,
and `1e-3` is text. If a key occurs twice, PyYAML silently uses the last value. This module uses only PyYAML's parser.
The type of an unquoted word follows the tables in section 10.3 of the YAML 1.2.2 specification. The module refuses
anchors, aliases and tags, so every value is written where it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.core.errors import UsageError
from bench.core.plugins import nearest

Loc = tuple[str | int, ...]  # keys and indices from the top of a file to a value

_WORDS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MOST_DEPTH = 50  # more than any file needs, and far below Python's recursion limit
_MOST_DIGITS = 4000  # Python refuses to read whole numbers with more digits


@dataclass(frozen=True, slots=True)
class Written:
    """The line and column of a value, and the line and column of the value's key. Lines and columns are counted from 1.

    `text`: the text of a scalar as the user typed it.
    """

    line: int
    column: int
    key_line: int
    key_column: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class YamlFile:
    """One parsed file. `value` is made of dict, list, str, int, float, bool and None."""

    path: Path
    text: str
    value: Any
    places: dict[Loc, Written]

    def where(self, loc: Loc, key: bool = False) -> str:
        """Return the place of the value at `loc`, such as `scenarios/x.yaml:7:13`.

        If `key` is true, return the place of the value's key. If the file has no such value, return the place of the
        nearest parent.
        """
        written = self.places[self.present(loc)]
        line, column = (written.key_line, written.key_column) if key else (written.line, written.column)
        return f"{_shown(self.path)}:{line}:{column}"

    def typed(self, loc: Loc = ()) -> Any:
        """Return the part of `value` at `loc`. Each scalar is returned as the text that the user typed.

        For example, `012` stays "012".
        """
        value = self.value
        for part in loc:
            value = value[part]
        if isinstance(value, dict):
            return {key: self.typed((*loc, key)) for key in value}
        if isinstance(value, list):
            return [self.typed((*loc, index)) for index in range(len(value))]
        return self.places[loc].text

    def present(self, loc: Loc) -> Loc:
        """Return the longest leading part of `loc` that exists in the file."""
        while loc not in self.places:
            loc = loc[:-1]
        return loc

    def fail(self, loc: Loc, message: str, key: bool = False) -> UsageError:
        """Return the error for the value at `loc` (or for its key): `FILE:LINE:COLUMN: dotted.key: message`."""
        return UsageError(": ".join(filter(None, (self.where(loc, key), dotted(self.present(loc)), message))))


def find(kind: str, name_or_path: str, folder: Path) -> Path:
    """Return the path of a file. The user gives the file's name in `folder`, or its path.

    If no file has this name, raises UsageError with the nearest name.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    if name_or_path not in known:
        # People leave out the hyphens: `vitl` means vit-l-306m.
        letters = _letters_of(name_or_path)
        begun = [name for name in known if letters and _letters_of(name).startswith(letters)]
        raise UsageError(f"{folder} has no {kind} {name_or_path!r}{nearest((begun or [name_or_path])[0], known)}")
    return folder / f"{name_or_path}.yaml"


def _letters_of(name: str) -> str:
    """Return the letters and digits of a name."""
    return re.sub(r"[\W_]", "", name.lower())


def dotted(loc: Loc) -> str:
    """Return the path of a value as text, such as `measure.0.patterns` for ("measure", 0, "patterns")."""
    return ".".join(map(str, loc))


def load(path: Path) -> YamlFile:
    """Parse one file. Raises UsageError with file, line and column if the file is not strict YAML."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{_shown(path)} cannot be read ({error.strerror})") from None
    return read(raw, path)


def read(raw: bytes, path: Path) -> YamlFile:
    """Parse the bytes of a file. Errors name `path`."""
    import yaml

    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _error(path, *_position(raw[: error.start]), "this byte is not UTF-8: save the file as UTF-8") from None
    places: dict[Loc, Written] = {}
    try:
        value = _Reader(path, places, yaml.parse(text, Loader=yaml.BaseLoader)).document()
    except yaml.reader.ReaderError as error:
        before = text[: error.position].encode()
        raise _error(path, *_position(before), f"character {chr(error.character)!r} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _error(path, line, column, f"this is not YAML: {_explained(error.problem or str(error))}") from None
    return YamlFile(path, text, value, places)


class _Reader:
    """Builds plain values from the parser's events, and records the position of each value in the file."""

    def __init__(self, path: Path, places: dict[Loc, Written], events: Iterator[Any]) -> None:
        self._path, self._places, self._events = path, places, events

    def document(self) -> Any:
        """Return the file's only document."""
        import yaml

        started = any(isinstance(event, yaml.DocumentStartEvent) for event in self._events)  # skips earlier events
        value = self._value(next(self._events), (), None) if started else None
        if value is None:
            raise UsageError(f"{_shown(self._path)} is empty")
        next(self._events)  # the document's end
        event = next(self._events)
        if isinstance(event, yaml.DocumentStartEvent):
            raise self._fail(event, "a second document begins here: write one document per file")
        return value

    def _value(self, event: Any, loc: Loc, key: Any) -> Any:
        import yaml

        self._refuse(event)
        if len(loc) > _MOST_DEPTH:
            raise self._fail(event, f"values are nested more than {_MOST_DEPTH} deep")
        mark, key_mark = event.start_mark, (key or event).start_mark
        text = event.value if isinstance(event, yaml.ScalarEvent) else ""
        self._places[loc] = Written(mark.line + 1, mark.column + 1, key_mark.line + 1, key_mark.column + 1, text)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(loc)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(loc)
        return self._scalar(event)

    def _refuse(self, event: Any) -> None:
        """Raise UsageError if an event is an alias, or has an anchor or a tag."""
        import yaml

        if isinstance(event, yaml.AliasEvent):
            raise self._fail(event, f"aliases (*{event.anchor}) are not supported: write the value out")
        if event.anchor is not None:
            raise self._fail(event, f"anchors (&{event.anchor}) are not supported: write the value out")
        if event.tag is not None:
            raise self._fail(event, f"tags ({event.tag}) are not supported: write a plain value")

    def _mapping(self, loc: Loc) -> dict[str | int, Any]:
        import yaml

        mapping: dict[str | int, Any] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event)
            if key in mapping:
                first = self._places[(*loc, key)].key_line
                raise self._fail(event, f"key {key!r} is there twice, first in line {first}: remove one of them")
            mapping[key] = self._value(next(self._events), (*loc, key), event)
        return mapping

    def _key(self, event: Any) -> str | int:
        import yaml

        self._refuse(event)
        key = self._scalar(event) if isinstance(event, yaml.ScalarEvent) else None
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise self._fail(event, "a key must be text or a whole number")
        return key

    def _sequence(self, loc: Loc) -> list[Any]:
        import yaml

        values: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            values.append(self._value(event, (*loc, len(values)), None))
        return values

    def _scalar(self, event: Any) -> str | int | float | bool | None:
        text: str = event.value
        if event.style is not None:  # quoted or a block of text
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            if len(text) > _MOST_DIGITS:
                raise self._fail(event, f"a number of {len(text)} digits is too long")
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if _FLOAT.fullmatch(text):
            return float(text)
        return float(text.replace(".", "")) if _SPECIAL.fullmatch(text) else text

    def _fail(self, event: Any, message: str) -> UsageError:
        return _error(self._path, event.start_mark.line + 1, event.start_mark.column + 1, message)


def _error(path: Path, line: int, column: int, message: str) -> UsageError:
    return UsageError(f"{_shown(path)}:{line}:{column}: {message}")


def _position(before: bytes) -> tuple[int, int]:
    """Return the line and column of the character that follows the bytes `before`. Both numbers start at 1."""
    start_of_line = before.rfind(b"\n") + 1
    return before.count(b"\n") + 1, len(before[start_of_line:].decode("utf-8", "replace")) + 1


def _explained(problem: str) -> str:
    """Return the parser's message, with a remedy for the most common mistakes."""
    if "'\\t'" in problem:
        return "a tab cannot indent; use spaces"
    if problem.endswith("cannot start any token"):
        return f"{problem}; put the value in quotes"
    return problem


def _shown(path: Path) -> str:
    """Return the path as a user would type it. A path below the working directory is relative."""
    folder = Path.cwd()
    return os.path.relpath(path, folder) if path.is_absolute() and path.is_relative_to(folder) else str(path)
