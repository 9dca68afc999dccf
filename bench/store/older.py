"""Replace sentences in files of older versions by codes, which newer files contain.

Only this module, and `remarks_of` in store/runs.py, interpret such sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.core.codes import UNCODED

_NO_NUMBER = "was printed, but is no number"  # text of bench.results/5 about a row of another tool's log


_WAIVED = " was waived: the tool says that it can not run here"


def update_header(parsed: dict[str, Any]) -> None:
    """Update a header line that is not checked yet.

    Missing values become empty lists or mappings. If a remark says that a tool skipped a test, the remark gets a code.
    """
    for name in ("case", "argv", "ranks", "notes", "remarks"):
        parsed[name] = parsed.get(name) or []
    for name in ("versions", "facts", "settings", "environment", "nodes", "calibration", "links", "imported"):
        parsed[name] = parsed.get(name) or {}
    if isinstance(parsed["imported"], dict):
        parsed["imported"] = _imported(parsed["imported"])


def update_record(parsed: dict[str, Any]) -> None:
    """Update a record line that is not checked yet: skips and failures get codes."""
    parsed.setdefault("requested_bytes", [])
    parsed.setdefault("payload_bytes", 0)
    if isinstance(parsed.get("skipped"), str):
        parsed["skipped"] = {"code": UNCODED, "text": parsed["skipped"]}
    if isinstance(parsed.get("failed"), dict):
        parsed["failed"] = _failure(parsed["failed"])


def _imported(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header's `imported`. If a remark says that the tool skipped a test, add the remark's code."""
    remarks = []
    listed = stored.get("remarks")
    for remark in listed if isinstance(listed, list) else ():
        text = remark.get("text", "") if isinstance(remark, dict) else ""
        test, waived, _ = str(text).partition(_WAIVED)
        if waived and remark.get("code", UNCODED) == UNCODED:
            remark = {**remark, "code": "waived", "facts": {"test": test}}
        remarks.append(remark)
    return {**stored, "remarks": remarks} if remarks else dict(stored)


def _failure(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored failure.

    If the text of the failure says that a tool printed an invalid number, the result has the code for this problem.
    """
    if stored.get("code", UNCODED) == UNCODED and str(stored.get("what")).endswith(_NO_NUMBER):
        return {**stored, "code": "unreadable-figure"}
    return dict(stored)
