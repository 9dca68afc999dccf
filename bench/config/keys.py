"""What keys a YAML file has, and how the value of each is read: a description of the file, carried out in two passes.

The first pass finds a key that nobody knows, wherever it stands: a misspelt key is told before what it leaves missing.
The second reads every value, as it was typed, by the function that reads it on a command line. Each mistake is one
UsageError with file, line, column and key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.config import values
from bench.config.yaml_file import Loc, YamlFile
from bench.core.errors import UsageError
from bench.core.plugins import nearest

NEEDED = object()  # the default of a key that must be there


class Read(ABC):
    """How the value at one place of a file is read."""

    def check_keys(self, file: YamlFile, loc: Loc) -> None:  # noqa: B027  # a value has no keys
        """Raise UsageError for the first key at or below `loc` that is not known."""

    @abstractmethod
    def read(self, file: YamlFile, loc: Loc) -> Any:
        """The value at `loc`. Raises UsageError at its place."""


@dataclass(frozen=True, slots=True)
class One(Read):
    """One value, read by `parse`."""

    parse: Callable[[str], Any]

    def read(self, file: YamlFile, loc: Loc) -> Any:
        """See Read."""
        try:
            return values.one(self.parse)(file.typed(loc))
        except UsageError as error:
            raise file.fail(loc, str(error)) from None


@dataclass(frozen=True, slots=True)
class Many(Read):
    """One value or a list of them, each read by `parse`; `before` makes the list, `after` takes what was read."""

    parse: Callable[[str], Any]
    before: Callable[[object], list[Any]] = values.listed
    after: Callable[[tuple[Any, ...]], Any] = tuple

    def read(self, file: YamlFile, loc: Loc) -> Any:
        """See Read."""
        parsed: list[Any] = []
        try:
            for part in self.before(file.typed(loc)):
                parsed.append(values.one(self.parse)(part))
            return self.after(tuple(parsed))
        except UsageError as error:
            raise file.fail((*loc, len(parsed)), str(error)) from None  # beyond the list, when all were read


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section: what reads it, and what it is where the file leaves it out. `others`: more names of it."""

    read: Read
    default: Any = NEEDED
    name: str = ""  # the one that errors teach; '' for that of the field
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section(Read):
    """Lines of `key: value` with known keys, by the name of the field that each becomes; read as a dict of fields."""

    keys: Mapping[str, Key]

    def check_keys(self, file: YamlFile, loc: Loc) -> None:
        """See Read."""
        held = _lines(file, loc, strict=False)
        taken: dict[str, str] = {}
        for typed in held:
            field = self._field(typed)
            if field is None or field in taken:
                raise file.fail((*loc, typed), self._why(typed, taken.get(field or "")), key=True)
            taken[field] = typed
        for field, typed in taken.items():
            self.keys[field].read.check_keys(file, (*loc, typed))

    def read(self, file: YamlFile, loc: Loc) -> dict[str, Any]:
        """See Read."""
        typed_as = {self._field(typed): typed for typed in _lines(file, loc)}
        found = {}
        for field, key in self.keys.items():
            if field in typed_as:
                found[field] = key.read.read(file, (*loc, typed_as[field]))
            elif key.default is NEEDED:
                raise file.fail((*loc, key.name or field), f"the key {key.name or field!r} is missing")
            else:
                found[field] = key.default
        return found

    def _field(self, typed: object) -> str | None:
        return next((f for f, key in self.keys.items() if typed == (key.name or f) or typed in key.others), None)

    def _why(self, typed: object, twin: str | None) -> str:
        if twin is not None:
            return f"this key is also there as {twin!r}: keep one of them"
        return f"no key is called {str(typed)!r}{nearest(str(typed), [k.name or f for f, k in self.keys.items()])}"


@dataclass(frozen=True, slots=True)
class NamedEntries(Read):
    """Lines of `name: value` whose names are the user's own: `name` reads them, `value` what stands behind."""

    name: Callable[[str], Any]
    value: Read

    def check_keys(self, file: YamlFile, loc: Loc) -> None:
        """See Read."""
        for typed in _lines(file, loc, strict=False):
            self.value.check_keys(file, (*loc, typed))

    def read(self, file: YamlFile, loc: Loc) -> dict[Any, Any]:
        """See Read."""
        found = {}
        for typed in _lines(file, loc):
            try:
                name = values.one(self.name)(typed)
            except UsageError as error:
                raise file.fail((*loc, typed), str(error), key=True) from None
            found[name] = self.value.read(file, (*loc, typed))
        return found


@dataclass(frozen=True, slots=True)
class Entries(Read):
    """A list of at least one entry, each read by `each`."""

    each: Read

    def check_keys(self, file: YamlFile, loc: Loc) -> None:
        """See Read."""
        held = file.typed(loc)
        for index in range(len(held)) if isinstance(held, list) else ():
            self.each.check_keys(file, (*loc, index))

    def read(self, file: YamlFile, loc: Loc) -> list[Any]:
        """See Read."""
        held = file.typed(loc)
        if not isinstance(held, list) or not held:
            raise file.fail(loc, "a list of at least one entry, each begun by '- ', must stand here")
        return [self.each.read(file, (*loc, index)) for index in range(len(held))]


def whole(file: YamlFile, keys: Section) -> dict[str, Any]:
    """The fields of a whole file. Raises UsageError for its first mistake, a misspelt key before any other."""
    keys.check_keys(file, ())
    return keys.read(file, ())


def _lines(file: YamlFile, loc: Loc, strict: bool = True) -> Mapping[Any, Any]:
    held = file.typed(loc)
    if isinstance(held, dict):
        return held
    if strict:
        raise file.fail(loc, "lines of `key: value` must stand here")
    return {}
