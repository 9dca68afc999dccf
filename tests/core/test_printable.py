"""Text of others at the edge of every output: what acts on a reader's machine becomes visible, the rest stays."""

from __future__ import annotations

import json
import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core import printable

NASTY = (
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "a\rb",
    "a\nFAILED nothing",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "a\u2028b",
    "\x7f",
    "\udcff",
    "\u200b",
    "\U000e0041",
    "=1+1",
    "@SUM(A1)",
    "-1+1",
    "+cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "</td>",
    "&lt;b&gt;",
    "![x](http://x.invalid/y.png)",
    "`",
    "```",
    "a|b",
    "::error::all is well",
    "##[error]x",
    "##vso[task.setvariable variable=a]b",
    "$\\frac$",
    "$x$",
)
TEXTS = st.one_of(
    st.sampled_from(NASTY), st.text(max_size=8), st.lists(st.sampled_from(NASTY), max_size=3).map("".join)
)


def hidden(text: str) -> list[str]:
    """What a terminal may act on, except for line ends."""
    return [
        letter for letter in text if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]


@given(TEXTS)
def test_a_line_has_no_hidden_character_and_no_line_break(text: str) -> None:
    for shown in (printable.printable(text), printable.line(text), printable.csv_cell(text), printable.markdown(text)):
        assert not hidden(shown) and "\n" not in shown


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=20))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable.printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202e", "\\u202e"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("  ::error::x", "  \\x3a:error::x"),
        ("node ##[error]x", "node \\x23#[error]x"),
        ("##vso[a]", "\\x23#vso[a]"),
        ("std::error, 3 ## 4, a::b", "std::error, 3 ## 4, a::b"),
        ("\u00e9\u4e2d \u00b5s", "\u00e9\u4e2d \u00b5s"),
    ],
)
def test_escapes_are_visible(text: str, shown: str) -> None:
    assert printable.line(text) == shown


@given(TEXTS)
def test_json_holds_the_same_value_and_nothing_hidden(text: str) -> None:
    document = json.dumps({text: [text]}, indent=1, ensure_ascii=False)
    safe = printable.json_text(document)
    assert json.loads(safe) == json.loads(document)
    assert not hidden(safe) and "##[" not in safe and "##vso[" not in safe


@given(st.one_of(TEXTS, st.floats(allow_nan=False).map(str)))
def test_no_cell_is_a_formula_and_numbers_stay_numbers(text: str) -> None:
    cell = printable.csv_cell(text)
    if cell[:1] in ("=", "+", "-", "@", "\t", "\r") and len(cell) > 1:
        assert math.isfinite(float(cell)) or cell.strip("+-").lower() in ("inf", "infinity", "nan")


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_a_page_of_markdown_has_no_tag_and_a_fence_is_not_left(texts: list[str]) -> None:
    page = printable.markdown_page(printable.joined([*map(printable.markdown, texts), *printable.fenced(texts), "<b>"]))
    assert page.endswith("\n\\<b>"), "the fence ended where it should"
    for line in page.split("\n")[: len(texts)]:
        assert "<script" not in line.replace("\\<", "") and "](" not in line
