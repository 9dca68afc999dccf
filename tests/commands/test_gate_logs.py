"""The gate on imported logs: one that was cut, crashed or found wrong data is never green."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from tests.logs import corpus

Out = pytest.CaptureFixture[str]
GENTLE = """
rules:
  - name: anything
    patterns: [PATTERNS]
    sizes: 1M:64G # below, tools print 0.00
    busbw: at least 1 B/s
    imported: true
    allow: [unverified, one-rank, contradicts]
"""


@pytest.mark.thin(4)
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_only_a_complete_and_correct_log_can_pass(step: int, tmp_path: Path, capsys: Out) -> None:
    """Every `step`-th log."""
    passed = failed = 0
    logs = corpus.paths(["nccl_logs"])[::step]
    for log in logs:
        where = ["--results", str(tmp_path / log.stem)]
        code = main(["import", str(log), "--format", "json", *where])
        out = capsys.readouterr().out
        if code == 2:
            continue
        document: dict[str, Any] = json.loads(out)
        patterns = sorted({run["pattern"] for run in document["runs"] if run["pattern"]}) or ["allreduce"]
        (tmp_path / "rules.yaml").write_text(GENTLE.replace("PATTERNS", ", ".join(patterns)))
        words = ["gate", "latest", "--rules", str(tmp_path / "rules.yaml"), "--format", "json", *where]
        verdict = main(words)
        names = set(json.loads(capsys.readouterr().out)["failures"])
        rows = [row for run in document["runs"] for row in run["records"]]
        if code != 0:
            assert verdict == 1 and names, log.name
        if any(row["num_wrong"] for row in rows):
            assert "wrong-data" in names, log.name
        statuses = {run["status"] for run in document["runs"]}
        assert "truncated" not in statuses or "truncated-import" in names, log.name
        assert "failed" not in statuses or names & {"failed-job", "wrong-data"}, log.name
        passed, failed = passed + (verdict == 0), failed + (verdict == 1)
    assert passed > len(logs) // 3 and failed, (passed, failed)
