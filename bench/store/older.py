"""Files of older versions: turn a sentence that they hold in place of a code into that code.

Only this module (and `remarks_of` in store/runs.py) reads such sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.core.codes import UNCODED

_NO_NUMBER = "was printed, but is no number"  # the text in bench.results/5 for a row of another tool's log


_WAIVED = " was waived: the tool says that it can not run here"


def imported(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The origin of imported rows; a test that the tool waived gets its code."""
    remarks = []
    for remark in stored.get("remarks") or ():
        text = remark.get("text", "") if isinstance(remark, Mapping) else ""
        test, waived, _ = str(text).partition(_WAIVED)
        if waived and remark.get("code", UNCODED) == UNCODED:
            remark = {**remark, "code": "waived", "facts": {"test": test}}
        remarks.append(remark)
    return {**stored, "remarks": remarks} if remarks else dict(stored)


def failure(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored failure; a figure that another tool printed as "no number" gets its code."""
    if stored.get("code", UNCODED) == UNCODED and str(stored.get("what")).endswith(_NO_NUMBER):
        return {**stored, "code": "unreadable-figure"}
    return dict(stored)
