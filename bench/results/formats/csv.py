"""CSV: one line of names, then one line for each figure; what was skipped or failed is not in it.

Numbers are written in full, unknown is empty, several values in one cell are separated by ';'.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import fields
from typing import Any

from bench.results.document import Document, Summary


def render(document: Document) -> str:
    """The summaries with the names of `Summary`'s fields as the first line."""
    names = [field.name for field in fields(Summary)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for summary in document.summaries:
        writer.writerow([_cell(getattr(summary, name)) for name in names])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return str(value)
