"""Files of older versions: sentences that they hold in place of codes, read as codes.

Only this module reads such sentences. The words are those that bench.results/5 and its plans wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.codes import UNCODED
from bench.core.remarks import RemarkCode

_NO_NUMBER = "was printed, but is no number"
_THINNED = "sizes thinned"


def failure(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored failure, with the code of a figure that another tool printed as no number."""
    words = str(stored.get("what"))
    if stored.get("code", UNCODED) == UNCODED and words.endswith(_NO_NUMBER):
        return {**stored, "code": "unreadable-figure"}
    return dict(stored)


def remarks(notes: Sequence[str]) -> list[dict[str, Any]]:
    """The remarks of a plan that has only notes: those that program logic needs."""
    return [{"code": RemarkCode.SIZES_THINNED, "facts": {}, "text": note} for note in notes if _THINNED in note]
