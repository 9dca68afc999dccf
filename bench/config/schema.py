"""Describe a YAML file by a schema.

A schema defines the keys, how each value is parsed, and which conditions the values must meet. Each kind of file has
one `Section`, which the module that needs the file declares (docs/extending.md). `load` reads a file in two passes. The
first pass finds unknown keys. This pass is first because a misspelt key often explains why a required key is missing.
The second pass reads every value as the user typed it, with the parser that the command line uses. Each mistake is one
UsageError with file, line, column and key. If a file omits a key, the field of the section's dataclass keeps its
default value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from bench.config import yaml_file
from bench.config.yaml_file import Loc, YamlFile
from bench.core.errors import UsageError
from bench.core.option_parsers import listed
from bench.core.plugins import nearest

Parse = Callable[[str], Any]
T = TypeVar("T")


class KeyMistake(UsageError):
    """The error for a value that contradicts another value in the file.

    The method `make` of a section raises this error. The error message then points at the key `key` in the file. If
    `at_value` is true, the message points at the value of `key` instead.
    """

    def __init__(self, key: str | tuple[str | int, ...], message: str, at_value: bool = False) -> None:
        super().__init__(message)
        self.loc = (key,) if isinstance(key, str) else key
        self.at_value = at_value


class Content(ABC):
    """Defines which values one position in a file may have, and reads the value at this position."""

    def check_keys(self, file: YamlFile, loc: Loc) -> None:  # noqa: B027  # a scalar has no keys
        """Raise UsageError for the first unknown key at or below `loc`."""

    @abstractmethod
    def read(self, file: YamlFile, loc: Loc) -> Any:
        """Return the value at `loc`. Raises UsageError that names the line and column of a wrong value."""


@dataclass(frozen=True, slots=True)
class Value(Content):
    """One scalar, read by `parse`."""

    parse: Parse

    def read(self, file: YamlFile, loc: Loc) -> Any:
        """See Content."""
        try:
            return scalar(self.parse, file.typed(loc))
        except UsageError as error:
            raise file.fail(loc, str(error)) from None


@dataclass(frozen=True, slots=True)
class Values(Content):
    """One scalar or a list of scalars, each read by `parse`.

    `split`: a function that turns the typed value into a list.
    `merge`: a function that combines the parsed values into the result.
    """

    parse: Parse
    split: Callable[[object], list[Any]] = listed
    merge: Callable[[tuple[Any, ...]], Any] = tuple

    def read(self, file: YamlFile, loc: Loc) -> Any:
        """See Content."""
        parsed: list[Any] = []
        try:
            for part in self.split(file.typed(loc)):
                parsed.append(scalar(self.parse, part))
            return self.merge(tuple(parsed))
        except UsageError as error:
            raise file.fail((*loc, len(parsed)), str(error)) from None  # if `merge` failed, the place of the list


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section.

    `names`: the spellings that files may use. Error messages show the first spelling. If `names` is empty, the key has
        the name of the field.
    """

    content: Content
    names: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Section(Content):
    """A mapping with known keys.

    `keys`: the key of each field.
    `make`: a function that makes the result from the fields that the file sets.
    """

    keys: Mapping[str, Key]
    make: Callable[..., Any] = dict

    def check_keys(self, file: YamlFile, loc: Loc) -> None:
        """See Content."""
        typed_as: dict[str, str] = {}
        for typed in _mapping(file, loc, strict=False):
            field = self._field(typed)
            if field is None:
                known = [_names(field, key)[0] for field, key in self.keys.items()]
                raise file.fail((*loc, typed), f"no key is called {str(typed)!r}{nearest(str(typed), known)}", key=True)
            if field in typed_as:
                twice = f"this key is also there as {typed_as[field]!r}: keep one of them"
                raise file.fail((*loc, typed), twice, key=True)
            typed_as[field] = typed
        for field, typed in typed_as.items():
            self.keys[field].content.check_keys(file, (*loc, typed))

    def read(self, file: YamlFile, loc: Loc) -> Any:
        """See Content."""
        typed_as: dict[Any, str] = {self._field(typed): typed for typed in _mapping(file, loc)}
        for field, key in self.keys.items():
            if key.required and field not in typed_as:
                name = _names(field, key)[0]
                raise file.fail((*loc, name), f"the key {name!r} is missing")
        found = {field: self.keys[field].content.read(file, (*loc, typed)) for field, typed in typed_as.items()}
        return build(file, loc, partial(self.make, **found), typed_as)

    def key_names(self) -> Iterator[str]:
        """Yield the name of every key in this section and in its nested sections, spelt as in error messages."""
        for field, key in self.keys.items():
            yield _names(field, key)[0]
            if isinstance(key.content, Section):
                yield from key.content.key_names()

    def _field(self, typed: object) -> str | None:
        return next((field for field, key in self.keys.items() if typed in _names(field, key)), None)


@dataclass(frozen=True, slots=True)
class NamedEntries(Content):
    """A mapping whose keys are names that the user chose.

    `name` is the parser of the names, and `value` is the parser of their values.
    `named`: a function that builds an entry from a name and its value. By default, the entry is the value alone.
    """

    name: Parse
    value: Content
    named: Callable[[Any, Any], Any] = lambda name, value: value

    def check_keys(self, file: YamlFile, loc: Loc) -> None:
        """See Content."""
        for typed in _mapping(file, loc, strict=False):
            self.value.check_keys(file, (*loc, typed))

    def read(self, file: YamlFile, loc: Loc) -> dict[Any, Any]:
        """See Content."""
        found = {}
        for typed in _mapping(file, loc):
            try:
                name = scalar(self.name, typed)
            except UsageError as error:
                raise file.fail((*loc, typed), str(error), key=True) from None
            found[name] = self.named(name, self.value.read(file, (*loc, typed)))
        return found


@dataclass(frozen=True, slots=True)
class Entries(Content):
    """A list of at least one entry, each read by `entry`."""

    entry: Content

    def check_keys(self, file: YamlFile, loc: Loc) -> None:
        """See Content."""
        held = file.typed(loc)
        if isinstance(held, list):
            for index in range(len(held)):
                self.entry.check_keys(file, (*loc, index))

    def read(self, file: YamlFile, loc: Loc) -> tuple[Any, ...]:
        """See Content."""
        held = file.typed(loc)
        if not isinstance(held, list) or not held:
            raise file.fail(loc, "expected a list of at least one entry, each beginning with '- '")
        return tuple(self.entry.read(file, (*loc, index)) for index in range(len(held)))


@dataclass(frozen=True, slots=True)
class Either(Content):
    """A value that is either a mapping or a value of another form.

    `mapping` reads a mapping, and `other` reads any other value.
    """

    mapping: Content
    other: Content

    def check_keys(self, file: YamlFile, loc: Loc) -> None:
        """See Content."""
        self._of(file, loc).check_keys(file, loc)

    def read(self, file: YamlFile, loc: Loc) -> Any:
        """See Content."""
        return self._of(file, loc).read(file, loc)

    def _of(self, file: YamlFile, loc: Loc) -> Content:
        return self.mapping if isinstance(file.typed(loc), dict) else self.other


def load(path: Path, kind: Section) -> Any:
    """Read a file whose contents `kind` describes, and return the result of `kind.make`.

    Raises UsageError for the first mistake.
    """
    return read(yaml_file.load(path), kind)


def read(file: YamlFile, kind: Section) -> Any:
    """Read the values of a file that is already parsed, in the same way as `load`."""
    kind.check_keys(file, ())
    return kind.read(file, ())


def build(file: YamlFile, loc: Loc, make: Callable[[], T], typed_as: Mapping[Any, str] = MappingProxyType({})) -> T:
    """Return the result of `make()`.

    If `make` raises UsageError, add the section's position in the file to the message. The section is at `loc`.

    `typed_as`: maps each field to the spelling of its key in the file.
    """
    try:
        return make()
    except KeyMistake as mistake:
        first, *rest = mistake.loc
        raise file.fail((*loc, typed_as.get(first, first), *rest), str(mistake), key=not mistake.at_value) from None
    except UsageError as error:
        raise file.fail(loc, str(error)) from None


def scalar(parse: Parse, typed: object) -> Any:
    """Apply `parse` to a scalar (or to a key, which may be a number). Raises UsageError for a list or mapping."""
    if isinstance(typed, int):
        return parse(str(typed))
    if not isinstance(typed, str):
        raise UsageError(f"expected one value, not a {'list' if isinstance(typed, list) else 'mapping'}")
    return parse(typed)


def _names(field: str, key: Key) -> Sequence[str]:
    return key.names or (field,)


def _mapping(file: YamlFile, loc: Loc, strict: bool = True) -> Mapping[Any, Any]:
    held = file.typed(loc)
    if isinstance(held, dict):
        return held
    if strict:
        raise file.fail(loc, "expected a mapping (`key: value`)")
    return {}
