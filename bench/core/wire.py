"""Encode the values that ranks send each other as JSON bytes. Decoding a message can never run code.

A value may be a plain value or a tuple. A value may also be a dataclass or enum of this package, a numpy number, or a
numpy array of numbers. A dataclass is rebuilt from its fields, so its `__post_init__` checks the fields as usual. The
class of a dataclass or enum must already be loaded.
"""

from __future__ import annotations

import base64
import enum
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from bench.core.errors import MeasurementError

_PACKAGE = "bench."
_TAG = "@"  # the only key of a JSON object that encodes a value other than plain JSON
_NUMBERS = "biuf"  # kinds of numpy's types whose bytes are numbers
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class WireError(MeasurementError):
    """A message that cannot come from a rank of this run."""


def encoded(value: Any) -> bytes:
    """Encode the value as bytes. Raises TypeError for a value of a type that is not allowed."""
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False).encode()


def decoded(data: bytes) -> Any:
    """Decode the bytes that another rank sent. Raises WireError if the bytes are not an encoded value."""
    try:
        return _value(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"a rank sent a message that cannot be read ({type(error).__name__}: {error})") from None


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [_plain(each) for each in value]
    if kind is dict and all(type(key) is str for key in value) and _TAG not in value:
        return {key: _plain(each) for key, each in value.items()}
    for tagged in (_tagged_container, _tagged_numbers, _tagged_object):
        found = tagged(value)
        if found is not None:
            return {_TAG: found}
    raise TypeError(f"ranks cannot send each other a {kind.__module__}.{kind.__qualname__}")


def _tagged_container(value: Any) -> list[Any] | None:
    kind = type(value)
    if kind in (tuple, set, frozenset):
        return [kind.__name__, *map(_plain, value)]
    if kind in (bytes, bytearray):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, Mapping):
        return ["map", *([_plain(key), _plain(each)] for key, each in value.items())]
    return None


def _tagged_numbers(value: Any) -> list[Any] | None:
    if type(value) is float:
        return ["float", str(value)]
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in _NUMBERS:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return ["array", value.dtype.str, list(value.shape), data]
    return None


def _tagged_object(value: Any) -> list[Any] | None:
    """Return an enum member or a dataclass of this package as a tagged list, or None for any other value."""
    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not name.startswith(_PACKAGE):
        return None
    if isinstance(value, enum.Enum):
        return ["enum", name, value.name]
    if is_dataclass(value):
        return ["class", name, {field.name: _plain(getattr(value, field.name)) for field in fields(value)}]
    return None


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if _TAG not in plain:
        return {key: _value(each) for key, each in plain.items()}
    kind, *rest = plain[_TAG]
    return _OF_TAG[kind](*rest)


def _array(name: str, shape: list[int], data: str) -> Any:
    if np.dtype(name).kind not in _NUMBERS:
        raise ValueError(f"an array of {name}")
    found = np.frombuffer(base64.b64decode(data, validate=True), dtype=name).reshape(shape).copy()
    return found if shape else found[()]


def _member(name: str, member: str) -> enum.Enum:
    found = _class(name)
    if not issubclass(found, enum.Enum):
        raise ValueError(f"{name} is no enum")
    return found[member]


def _instance(name: str, content: dict[str, Any]) -> Any:
    found = _class(name)
    if not is_dataclass(found):
        raise ValueError(f"{name} is no dataclass")
    return _rebuilt(found, {key: _value(each) for key, each in content.items()})


def _rebuilt(kind: type[Any], content: dict[str, Any]) -> Any:
    made = {field.name for field in fields(kind) if field.init}
    value = kind(**{name: each for name, each in content.items() if name in made})
    for name in content.keys() - made:
        object.__setattr__(value, name, content[name])
    return value


def _name_of(kind: type[Any]) -> str:
    if not kind.__module__.startswith(_PACKAGE):
        raise TypeError(f"ranks cannot send each other a {kind.__module__}.{kind.__qualname__}")
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> type[Any]:
    """Return a class of this package. The module of the class must already be loaded.

    A message therefore cannot cause an import.
    """
    module, _, path = name.partition(":")
    found: Any = sys.modules[module] if module.startswith(_PACKAGE) else None
    for part in path.split("."):
        found = vars(found)[part]
    if not isinstance(found, type) or found.__module__ != module:
        raise ValueError(f"{name} is no class of this package")
    return found


_OF_TAG: dict[str, Callable[..., Any]] = {
    "tuple": lambda *items: tuple(map(_value, items)),
    "set": lambda *items: set(map(_value, items)),
    "frozenset": lambda *items: frozenset(map(_value, items)),
    "map": lambda *items: {_value(key): _value(each) for key, each in items},
    "bytes": lambda data: base64.b64decode(data, validate=True),
    "float": _SPECIAL.__getitem__,
    "array": _array,
    "enum": _member,
    "class": _instance,
}
