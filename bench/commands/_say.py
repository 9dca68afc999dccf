"""Print sentences for the user to stderr, apart from the command's output on stdout."""

from __future__ import annotations

import sys

from bench.core import printable


def say(*sentences: str) -> None:
    """Print each sentence on its own line. Escape characters that a terminal or a CI system would interpret."""
    for sentence in sentences:
        print(printable.line(sentence), file=sys.stderr, flush=True)
