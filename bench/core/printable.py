"""Make text of others safe to show: on a terminal, in CSV, in Markdown, in JSON, and in the log of a CI system.

Hosts, notes, versions, flags, file names and the lines of logs come from other programs and other users. They may hold
escape sequences that clear a screen or retitle a terminal, directions that reorder letters, formulas that a spreadsheet
runs, tags that a page runs, and commands to a CI system. Each function leaves ordinary text as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

# Controls (C0, DEL, C1), format characters (direction, zero width), lone surrogates, and separators of lines.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
# Commands that a CI system reads in a log: `::error::` of GitHub after blanks; `##[...]`, `##vso[...]` and
# `##teamcity[...]` anywhere in a line.
_AT_BEGIN = re.compile(r"^([ \t]*):(?=:[A-Za-z])")
_ANYWHERE = re.compile(r"#(?=#(?:\w*)\[)")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four: full width
_ENTITY = re.compile(r"&(?=#?\w+;)")
_TAG = re.compile(r"(?<!\\)<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=\()\(")
_BACKTICKS = re.compile(r"`+")


def printable(text: str) -> str:
    """One line of text: each hidden character, and each line break, as a visible escape such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(_escape(letter) if unicodedata.category(letter) in _HIDDEN else letter for letter in text)


def lines(text: str) -> str:
    """Text whose line breaks the program placed itself, as a terminal and the log of a CI system may show it."""
    return "\n".join(map(line, text.split("\n")))


def line(text: str) -> str:
    """One line, as a terminal and the log of a CI system may show it."""
    text = printable(text)
    if ":" in text:
        text = _AT_BEGIN.sub(r"\1\\x3a", text)
    return _ANYWHERE.sub(r"\\x23", text) if "##" in text else text


def json_text(text: str) -> str:
    """A JSON document whose strings hold every hidden character, and commands to a CI system, as JSON's own escapes."""
    if not text.isascii():
        text = "".join(
            letter if letter.isprintable() or unicodedata.category(letter) not in _HIDDEN else _json_escape(letter)
            for letter in text
        )
    return _ANYWHERE.sub(r"\\u0023", text.replace("\x7f", "\\u007f")) if "##" in text else text


def csv_cell(text: str) -> str:
    """A cell of CSV that no spreadsheet takes for a formula; numbers stay numbers."""
    text = printable(text)
    if not text.startswith(_FORMULA) or len(text) == 1:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def markdown(text: str) -> str:
    """A piece of a line, such as a cell or an item of a list, that Markdown shows as it is."""
    text = _ENTITY.sub("&amp;", printable(text))
    for character in "|*_<":
        text = text.replace(character, f"\\{character}")
    if text.count("`") % 2 or "```" in text:
        text = text.replace("`", "\\`")
    return text.replace("](", "]\\(")


def markdown_cell(text: str) -> str:
    """A cell of a table of Markdown, in a page that goes through `markdown_page`."""
    return printable(text).replace("|", "\\|")


def markdown_page(text: str) -> str:
    """A page of Markdown without tags, entities, links or images, which no page of the suite has. Fences stay."""
    shown = []
    fence = ""
    for each in map(line, text.split("\n")):
        mark = each[: len(each) - len(each.lstrip("`"))]
        if fence:
            fence = "" if mark == fence and each == mark else fence
        elif len(mark) > 2:
            fence = mark
        else:
            each = _LINK.sub(r"]\\(", _ENTITY.sub("&amp;", _TAG.sub(r"\\<", each)))
        shown.append(each)
    return "\n".join(shown)


def fenced(content: Sequence[str], language: str = "") -> list[str]:
    """Lines as a block of code of Markdown, between fences that are longer than any in them."""
    longest = max((len(run) for each in content for run in _BACKTICKS.findall(each)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, *map(printable, content), fence]


def joined(page: Iterable[str]) -> str:
    """The lines of a page; a line break inside one of them is shown as an escape."""
    return "\n".join(map(printable, page))


def _escape(letter: str) -> str:
    code = ord(letter)
    if letter in "\t\n\r":
        return {"\t": "\\t", "\n": "\\n", "\r": "\\r"}[letter]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(letter: str) -> str:
    if letter == "\n":
        return letter
    code = ord(letter)
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code - 0x10000 & 0x3FF):04x}"
