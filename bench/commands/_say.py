"""Print sentences to stderr: what a user must know beside the output of a command."""

from __future__ import annotations

import sys

from bench.core import printable


def say(*sentences: str) -> None:
    """Print each sentence on a line of its own, without what a terminal or a CI system would act on."""
    for sentence in sentences:
        print(printable.line(sentence), file=sys.stderr, flush=True)
