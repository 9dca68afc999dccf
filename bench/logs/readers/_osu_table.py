"""The table that OSU's programs print: a line of titles, then lines of numbers, two decimals wherever one is no count.

Titles by version: `Latency (us)` and `Avg Latency(us)` (3.x on), `Bi-Bandwidth (MB/s)` (3.x) and `Bandwidth (MB/s)`,
`Min Latency(us)`, `Max Latency(us)` and `Iterations` with `-f`, `Validation` with `-c`.
"""

from __future__ import annotations

import math
import re

SIZE = "size"
_COLUMNS = {
    "size": SIZE,
    "avg latency": "mean_s",
    "latency": "mean_s",
    "min latency": "least_mean_s",
    "max latency": "largest_mean_s",
    "iterations": "num_samples",
    "bandwidth": "bytes_per_s",
    "bi-bandwidth": "bytes_per_s",
    "mb/s": "bytes_per_s",
    "messages/s": "messages_per_s",
    "validation": "valid",
}
_TITLE = re.compile(
    r"(Size|(?:Avg |Min |Max )?Latency ?\(us\)|Iterations|MB/s|Messages/s|Validation"
    r"|[A-Z][A-Za-z0-9/-]*(?: [A-Za-z0-9/-]+)*(?: ?\([^)]*\))?)\s*"
)
_COUNT = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}\.[0-9]{2,6}")
_MARKS = {"Pass": 1.0, "Fail": 0.0, "-": math.nan}


def columns(line: str) -> list[str] | None:
    """What each column is ("" where it is of no use here), from the line of titles; None for any other line."""
    titles = [re.sub(r"\s*\(.*\)", "", title).strip().lower() for title in _TITLE.findall(line[:400].lstrip("#"))]
    if len(titles) < 2 or titles[0] != SIZE:
        return None
    return [_COLUMNS.get(title, "") for title in titles]


def numbers(words: list[str], names: list[str]) -> dict[str, float] | None:
    """The columns that have a name, in SI units; None where a word is missing, cut, or no number of its column."""
    if len(words) != len(names):
        return None
    found = {name: _number(word, name) for word, name in zip(words, names, strict=True) if name}
    return None if None in found.values() else {name: value for name, value in found.items() if value is not None}


def _number(word: str, name: str) -> float | None:
    if name == "valid":
        return _MARKS.get(word)
    if name in (SIZE, "num_samples"):
        return float(word) if _COUNT.fullmatch(word) else None
    scale = {"bytes_per_s": 1e6, "messages_per_s": 1.0}.get(name, 1e-6)
    return float(word) * scale if _DECIMAL.fullmatch(word) else None
