"""Break the text that commands print into lines that fit the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

PIPED_WIDTH = 100  # characters in a line of a file or a pipe
_LEAST_WIDTH = 60  # on a narrower terminal, lines have this length


def line_width(to_file: bool = False) -> int:
    """Return the number of characters in a line of a page.

    The result is the width of the terminal, or the value of the variable COLUMNS. If the page goes to a file
    (`to_file`) or a pipe, the width is PIPED_WIDTH.
    """
    if to_file or not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        return PIPED_WIDTH
    return max(shutil.get_terminal_size((PIPED_WIDTH, 24)).columns, _LEAST_WIDTH)


def quoted(text: str, most: int) -> str:
    """Return a line of a log. If the line has more than `most` characters, cut it at a blank.

    The text ` [...]` replaces the part that was cut.
    """
    if len(text) <= most:
        return text
    mark = " [...]"
    kept = text[: most - len(mark)]
    return (kept.rpartition(" ")[0] or kept).rstrip() + mark


def wrapped(text: str, width: int, rest: str = "", first: str = "") -> list[str]:
    """Break a text at blanks into lines of at most `width` characters. A word that is longer than `width` stays whole.

    `first`: the text at the beginning of the first line.
    `rest`: the text at the beginning of all other lines.

    Blanks at the beginning of the text are kept.
    """
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
