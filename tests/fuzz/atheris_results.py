"""Fuzz the reader of results files by coverage: `python -m tests.fuzz.atheris_results [libFuzzer options]`.

It needs atheris (`pip install atheris`), which is no dependency of the suite; test_results_reader.py draws the same
mutations with hypothesis. The bytes are a results file, or the seed of mutations of a good one. Give a folder to keep
the corpus, and `-max_total_time=1200` to end after twenty minutes.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

with atheris.instrument_imports(include=["bench"]):
    from bench.core.errors import UsageError
    from bench.results import collect
    from bench.results.run_report import RunReport
    from bench.results.table import as_json
    from tests.fuzz import mutations

_BASES = mutations.base_lines()
_FILE = Path(tempfile.mkdtemp()) / "bad.jsonl"


def read(data: bytes) -> None:
    """Read the bytes as a results file and render its document. Anything but UsageError is a defect."""
    found = atheris.FuzzedDataProvider(data)
    if found.ConsumeBool():
        name = found.PickValueInList(sorted(_BASES))
        lines = mutations.damaged(_BASES[name], found.ConsumeInt(4), list(_BASES.values()))
        _FILE.write_bytes(b"\n".join(lines) + b"\n")
    else:
        _FILE.write_bytes(found.ConsumeBytes(len(data)))
    with contextlib.suppress(UsageError):
        as_json(RunReport(collect.document(_FILE)).data())


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
