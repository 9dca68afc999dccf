"""Colour important words such as FAILED, INVALID, SLOW and LOW, on terminals only.

NO_COLOR turns colours off. FORCE_COLOR turns colours on, also for outputs that are not terminals (https://no-color.org,
https://force-color.org).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

# Only whole words in capital letters get a colour.
_STYLES = {
    "bold red": r"\b(FAILED|INVALID|WRONG DATA|FAR TOO LOW|ABOVE|BUSY MACHINES?)\b",
    "yellow": r"(?<!TOO )\b(SLOW|LOW|STARVED|THROTTLED|BUSY(?! MACHINE)|CONTRADICTION)\b",
}


def wanted(stream: TextIO) -> bool:
    """Check whether text on this stream may have colours."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def styled(text: str) -> Text:
    """Return the text with its important words coloured."""
    from rich.text import Text

    found = Text(text)
    for style, words in _STYLES.items():
        found.highlight_regex(words, style)
    return found


def write(text: str, stream: TextIO) -> None:
    """Write text, with colours if the stream may have them. Lines are neither wrapped nor cut."""
    if not wanted(stream):
        stream.write(text)
        return
    from rich.console import Console

    console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
    console.print(styled(text), soft_wrap=True, end="")
