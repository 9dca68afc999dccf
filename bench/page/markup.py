"""Build HTML and SVG. Every text that is not yet markup is escaped."""

from __future__ import annotations

from html import escape

from bench.core.printable import printable

_VOID = frozenset(("meta", "input", "br"))


class Markup(str):
    """Text that is already HTML or SVG."""

    __slots__ = ()


def element(tag: str, /, *children: str, **attributes: object) -> Markup:
    """Return an element. Children that are not Markup are escaped.

    `attributes`: the attributes of the HTML element. In the name of an attribute, a trailing `_` is dropped (`class_`),
    and any other `_` becomes `-`. An attribute with the value None or False is left out.
    """
    given = {key: value for key, value in attributes.items() if value is not None and value is not False}
    opened = "".join(_attribute(key, value) for key, value in given.items())
    if tag in _VOID:
        return Markup(f"<{tag}{opened}>")
    return Markup(f"<{tag}{opened}>{joined(*children)}</{tag}>")


def joined(*parts: str) -> Markup:
    """Concatenate the parts into one piece of markup. Parts that are not Markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in parts))


def text(value: str) -> Markup:
    """Return text with hidden characters made visible, escaped for elements and attributes."""
    return Markup(escape(printable(value)))


def _attribute(key: str, value: object) -> str:
    name = key.removesuffix("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'
