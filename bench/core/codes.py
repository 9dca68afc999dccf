"""Define codes and facts. Modules pass codes and facts to each other, not the text of messages.

Each skip, remark, failure or reason has a code and facts. The code says what happened, and the facts are the values in
the message, such as a host name. Each code has one template for its text. The template is in the feature's
`messages.py` or in the file of a plug-in. The text is only for people: program logic and tests compare codes and facts,
never `text` (tests/test_prose.py).
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from bench.core.units import format_bytes, format_count, format_duration, format_rate, format_size

UNCODED = "uncoded"  # text of another program, or of a file written before codes were stored


class MissingFactError(KeyError):
    """A template names a fact that is not among the facts of its code. The author of the code must add the fact."""

    def __str__(self) -> str:
        """Return the message without the quotes of KeyError."""
        return str(self.args[0])


class Code(StrEnum):
    """An enum of codes. A code says what happened, and has a template for its text.

    A template is a format string, and facts replace its fields. A template can use Python's own format specs and these
    format specs:

    `size`: bytes in the spelling of options, such as 8G.
    `bytes`: bytes with a binary unit, such as 8 GiB.
    `rate`: bytes per second.
    `time`: seconds.
    `percent`: a fraction, shown as a percentage.
    `count`: a large number, such as 100B.
    `list`: a sequence, shown with commas. `list 4` shows 4 elements and the number of the other elements.
    `n noun`: a number with its noun. `{num_nodes:n node}` gives "1 node" or "2 nodes".
    """

    template: str

    def __new__(cls, value: str, template: str = "{text}") -> Self:
        """Make an enum member from its value and its template."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.template = template
        return member

    def words(self, facts: Mapping[str, Any]) -> str:
        """Fill in the template. Raises MissingFactError if a fact is missing."""
        return fill(self.template, facts, self)


def fill(template: str, facts: Mapping[str, Any], code: str = "") -> str:
    """Fill in a template. Raises MissingFactError, which names the fact and the code, if a fact is missing."""
    try:
        return _WORDS.vformat(template, (), facts)
    except KeyError as error:
        owner = f"the template of code '{code}'" if code else f"template {template!r}"
        known = ", ".join(facts) or "no facts"
        raise MissingFactError(f"{owner} names the fact {error.args[0]!r}, but its facts are: {known}") from None


def fill_present(template: str, facts: Mapping[str, Any], code: str = "") -> str:
    """Fill in a template, and omit the optional parts whose facts are missing.

    `<, on {host}>` is omitted if the fact `host` is missing or None. `<rising?, still rising>` is kept only if the fact
    `rising` is true. `<!rising?, flat>` is kept only if the fact `rising` is false or missing.
    """

    def part(match: re.Match[str]) -> str:
        unless, flag, text = match.groups()
        if flag and bool(facts.get(flag)) == bool(unless):
            return ""
        names = [name.partition("[")[0] for _, name, _, _ in string.Formatter().parse(text) if name]
        return text if all(facts.get(name) is not None for name in names) else ""

    return fill(_OPTIONAL.sub(part, template), facts, code)


class OptionalPartsCode(Code):
    """A code whose template can have optional parts. A part is omitted if its fact is missing (see `fill_present`)."""

    def words(self, facts: Mapping[str, Any]) -> str:
        """Fill in the template, and omit the parts whose facts are missing."""
        return fill_present(self.template, facts, self)


@dataclass(frozen=True, slots=True)
class Coded:
    """A code, its facts (plain values that JSON can hold) and its text for people."""

    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def of(cls, code: Code, **facts: Any) -> Self:
        """Make an instance from a code and its facts. The code's template gives the text."""
        return cls(code, facts, code.words(facts))

    @classmethod
    def uncoded(cls, text: str) -> Self:
        """Make an instance from text without a code. The text comes from another program or from an older file."""
        return cls(UNCODED, {}, text)

    def to_plain(self) -> dict[str, Any]:
        """Return the code, the facts and the text as JSON documents hold them."""
        return {"code": self.code, "facts": dict(self.facts), "text": self.text}


class _Words(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("list"):
            most = int(format_spec[5:] or len(value))
            rest = [f"and {len(value) - most} more"] if len(value) > most else []
            return " ".join([", ".join(map(str, value[:most])), *rest])
        if format_spec.startswith("n "):
            ending = "es" if format_spec.endswith(("ch", "sh", "s", "x")) else "s"
            return f"{value}{format_spec[1:]}" + ("" if value == 1 else ending)
        if format_spec in _SPECS:
            return _SPECS[format_spec](value)
        return format(value, format_spec)


_OPTIONAL = re.compile(r"<(?:(!?)(\w+)\?)?([^<>]*)>")
_SPECS: dict[str, Callable[[Any], str]] = {
    "size": format_size,
    "bytes": format_bytes,
    "rate": format_rate,
    "time": format_duration,
    "count": format_count,
    "percent": lambda fraction: f"{100 * fraction:.3g} %",
}
_WORDS = _Words()
