"""The lines of pages: their width, and texts that are shortened only with a mark."""

from __future__ import annotations

import pytest

from bench.core.wrapping import PIPED_WIDTH, line_width, quoted, wrapped


def test_a_pipe_has_its_width_unless_columns_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert line_width() == line_width(to_file=True) == PIPED_WIDTH
    monkeypatch.setenv("COLUMNS", "72")
    assert (line_width(), line_width(to_file=True)) == (72, PIPED_WIDTH)
    monkeypatch.setenv("COLUMNS", "10")
    assert line_width() == 60, "narrower lines cannot be read"


def test_words_are_never_broken_and_lines_fit() -> None:
    path = "/a/" + "b" * 70
    lines = wrapped(f"one two {path} three", 60, rest="  ", first="- ")
    assert lines == ["- one two", f"  {path}", "  three"]
    assert wrapped("", 60) == []


def test_a_quote_is_whole_or_marked() -> None:
    assert quoted("short", 10) == "short"
    text = quoted("one two three four five six", 20)
    assert text == "one two three [...]" and len(text) <= 20
