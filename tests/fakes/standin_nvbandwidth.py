"""Stands in for nvbandwidth: takes its options, prints its tables as text (v0.4) or JSON (v0.8), copies nothing.

The figures are its own, in GB/s: GPU g gets 50 + g from the host, gives 40 + g and copies 600 + g inside; the cell of
row r and column c is 200 + 10 r + c, and 50 less the other way where both are told. `STANDIN_NVB`: how many GPUs, then
what goes wrong: no-peers, waived, corrupt, old (one table of two-way tests, as up to v0.5).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

Table = tuple[str, str, list[list[float | None]]]  # what follows the test's name, title, rows


def tables(test: str, gpus: int, mishaps: Collection[str]) -> list[Table]:
    """What a test prints."""
    if not test.startswith("device_to_device"):
        base = 600 if test == "device_local_copy" else 50 if test.startswith("host") else 40
        return [("", "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", [[base + gpu for gpu in range(gpus)]])]
    engine = test.rpartition("_")[2].upper()
    square = grid(gpus, 0, mishaps)
    if "bidirectional" not in test or "old" in mishaps:
        return [("", f"memcpy {engine} GPU(row) -> GPU(column) bandwidth (GB/s)", square)]
    verb = "Read" if "read" in test else "Write"
    parts = {f"{verb}1": square, f"{verb}2": grid(gpus, -50, mishaps), "Total": grid(gpus, 150, mishaps)}
    return [
        (f"_{part.lower()}", f"memcpy {engine} GPU(row) <-> GPU(column) {part} bandwidth (GB/s)", rows)
        for part, rows in parts.items()
    ]


def grid(gpus: int, more: float, mishaps: Collection[str]) -> list[list[float | None]]:
    """A table of pairs."""
    return [[cell(row, column, more, mishaps) for column in range(gpus)] for row in range(gpus)]


def cell(row: int, column: int, more: float, mishaps: Collection[str]) -> float | None:
    """One pair; None of a GPU with itself, and of GPUs 0 and 1 where these do not reach each other."""
    apart = "no-peers" in mishaps and {row, column} == {0, 1}
    return None if row == column or apart else 200.0 + 10 * row + column + more


def total(rows: Iterable[Iterable[float | None]]) -> float:
    """The sum below a table."""
    return sum(value or 0.0 for row in rows for value in row)


def document(tests: Sequence[str], gpus: int, mishaps: Collection[str]) -> str:
    """As v0.8 writes it."""
    cases: list[dict[str, object]] = []
    for test in tests:
        found = tables(test, gpus, mishaps)
        matrix = [["N/A" if value is None else f"{value:g}" for value in row] for *_, rows in found for row in rows]
        passed = {
            "name": test,
            "status": "Passed",
            "bandwidth_description": found[-1][1],
            "bandwidth_matrix": matrix,
            "sum": total(found[-1][2]),
        }
        if "waived" in mishaps:
            cases.append({"name": test, "status": "Waived"})
        else:
            cases.append({"name": test, "status": "Error", "error": "wrong data"} if "corrupt" in mishaps else passed)
    listed = [f"{gpu}: NVIDIA H200 (00000000:0{gpu}:00): (node7)" for gpu in range(gpus)]
    held = {
        "CUDA Runtime Version": 13000,
        "Driver Version": "580.65",
        "GPU Device list": listed,
        "testcases": cases,
        "version": "v0.8",
    }
    return json.dumps({"nvbandwidth": held}, indent=3)


def text(tests: Sequence[str], gpus: int, mishaps: Collection[str]) -> str:
    """As v0.4 prints it."""
    lines = [
        "nvbandwidth Version: v0.4",
        "Built from Git version: ",
        "",
        "CUDA Runtime Version: 12040",
        "CUDA Driver Version: 12040",
        "Driver Version: 550.54",
        "",
    ]
    lines += [f"Device {gpu}: NVIDIA H200" for gpu in range(gpus)]
    for test in tests:
        if "waived" in mishaps:
            lines += ["", f"Waived: {test}"]
            continue
        lines += ["", f"Running {test}."]
        for tail, title, rows in tables(test, gpus, mishaps):
            lines += [title, "".join(f"{column:10d}" for column in range(gpus))]
            for row, values in enumerate(rows):
                told = ("N/A" if value is None else f"{value:.2f}" for value in values)
                lines.append(f"{row:10d}" + "".join(f"{word:>10}" for word in told))
            lines += ["", f"SUM {test}{tail} {total(rows):.2f}", ""]
    return "\n".join(lines) + "\n"


def run(words: Sequence[str], told: str) -> str:
    """What it prints."""
    gpus, *mishaps = told.split()
    places = [number for number, word in enumerate(words) if word.startswith("-")]
    given = {words[start]: words[start + 1 : end] for start, end in pairwise([*places, len(words)])}
    return (document if "-j" in given else text)(given["-t"], int(gpus), mishaps)


if __name__ == "__main__":
    print(run(sys.argv[1:], os.environ.get("STANDIN_NVB", "2")))
