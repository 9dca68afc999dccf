"""Colours of words that must not be missed: on terminals, with NO_COLOR and with FORCE_COLOR."""

from __future__ import annotations

import io

import pytest

from bench.results import colours

PAGE = "# FAILED row\n  8  INVALID  SLOW: rank 3\n  16 FAR TOO LOW and LOW, slow and low, LOWER\n" + 300 * "x" + "\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("stream", "variables", "is_coloured"),
    [
        (Terminal, {}, True),
        (io.StringIO, {}, False),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (Terminal, {"NO_COLOR": ""}, True),
        (io.StringIO, {"FORCE_COLOR": "1"}, True),
        (Terminal, {"TERM": "dumb"}, False),
    ],
)
def test_where_there_are_colours(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], variables: dict[str, str], is_coloured: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    written = stream()
    colours.write(PAGE, written)
    assert ("\x1b[" in written.getvalue()) == is_coloured
    if not is_coloured:
        assert written.getvalue() == PAGE


def test_only_whole_words_have_colours_and_nothing_else_changes() -> None:
    terminal = Terminal()
    colours.write(PAGE, terminal)
    text = terminal.getvalue()
    for words in ("FAILED", "INVALID", "FAR TOO LOW"):
        assert f"\x1b[1;31m{words}\x1b[0m" in text
    for words in ("SLOW", "LOW"):
        assert f"\x1b[33m{words}\x1b[0m" in text
    plain = text.replace("\x1b[1;31m", "").replace("\x1b[33m", "").replace("\x1b[0m", "")
    assert plain == PAGE, "no line is wrapped or cut"
    assert text.count("\x1b[0m") == 5
