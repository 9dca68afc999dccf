"""JSON: one document, numbers as numbers, unknown as null, SI units in the names of the keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from bench.results.document import Document


def render(document: Document) -> str:
    """`{"schema", "headers": {job: header}, "summaries", "skipped", "failures", "notes"}`, then a line end.

    A number that is none (NaN, infinity) becomes null: strict JSON has no word for it.
    """
    plain = _plain(document)
    del plain["show"]  # a matter of tables: every row has all figures here
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Dataclasses and mappings as objects, sequences as arrays, no NaN."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
