"""Make text from other programs safe for a terminal, for CSV, Markdown and JSON, and for the log of a CI system.

Hosts, notes, versions, flags, file names and log lines come from other programs and other users. Text from other
programs may contain control characters that reorder letters. Escape sequences in the text may clear a screen or change
the title of a terminal. A spreadsheet may run formulas in the text, a web page may interpret tags, and a CI system may
run commands. Each function leaves ordinary text unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Unicode's controls (C0, DEL, C1), format characters (directions, zero width, tags), separators of lines, surrogates.
_FORMAT = (
    "\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001-\U000e007f"
)
_HIDDEN = re.compile(f"[\x00-\x1f\x7f-\x9f{_FORMAT}\ud800-\udfff]")
_HIDDEN_IN_JSON = re.compile(f"[\x7f-\x9f{_FORMAT}\ud800-\udfff]")  # json.dumps escapes all other hidden characters
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
    """Return one line of text. Each hidden character and each line break becomes a visible escape such as `\\x1b`."""
    return text if text.isprintable() else _HIDDEN.sub(_escape, text)


def lines(text: str) -> str:
    """Return text of several lines that is safe on a terminal and in the log of a CI system."""
    return "\n".join(map(line, text.split("\n")))


def line(text: str) -> str:
    """Return one line that is safe on a terminal and in the log of a CI system."""
    text = printable(text)
    if ":" in text:
        text = _AT_BEGIN.sub(r"\1\\x3a", text)
    return _ANYWHERE.sub(r"\\x23", text) if "##" in text else text


def json_text(text: str) -> str:
    """Escape every hidden character in a JSON document, and each `#` that could begin a command to a CI system."""
    return _ANYWHERE.sub(r"\\u0023", _HIDDEN_IN_JSON.sub(_json_escape, text))


def csv_cell(text: str) -> str:
    """Return a CSV cell that no spreadsheet reads as a formula. Numbers are unchanged."""
    text = printable(text)
    if not text.startswith(_FORMULA) or len(text) == 1:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def markdown(text: str) -> str:
    """Escape a part of a line, such as a cell or a list item. Markdown then shows the text unchanged."""
    text = _ENTITY.sub("&amp;", printable(text))
    for character in "|*_<":
        text = text.replace(character, f"\\{character}")
    if text.count("`") % 2 or "```" in text:
        text = text.replace("`", "\\`")
    return text.replace("](", "]\\(")


def markdown_cell(text: str) -> str:
    """Escape a cell of a Markdown table, for a page that is later passed to `markdown_page`."""
    return printable(text).replace("|", "\\|")


def markdown_page(text: str) -> str:
    """Return a Markdown page in which tags, entities, links and images are escaped. Code fences are unchanged."""
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


def fenced(content: Iterable[str], language: str = "") -> list[str]:
    """Return the lines as a Markdown code block, with fences that are longer than any fence in the lines."""
    content = list(content)
    longest = max((len(run) for each in content for run in _BACKTICKS.findall(each)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, *map(printable, content), fence]


def joined(page: Iterable[str]) -> str:
    """Join the lines of a page. A line break inside a line is shown as an escape."""
    return "\n".join(map(printable, page))


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    code = ord(letter)
    if letter in "\t\n\r":
        return {"\t": "\\t", "\n": "\\n", "\r": "\\r"}[letter]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code - 0x10000 & 0x3FF):04x}"
