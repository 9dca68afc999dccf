"""The gate on what was imported: copies, what the log's own words tell, what is missing, what no figure can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from tests.commands import import_samples as samples

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def gated(out: Out, rules: str, run: str = "latest") -> dict[str, Any]:
    """The verdict on the newest run, by these rules."""
    Path("rules.yaml").write_text(rules, encoding="utf-8")
    out.readouterr()
    code = main(["gate", run, "--rules", "rules.yaml", "--format", "json"])
    told: dict[str, Any] = json.loads(out.readouterr().out)
    assert code == (0 if told["passed"] else 1)
    return told


def imported(text: str, *words: str, code: int = 0) -> Path:
    """The folder of the run that a log gives."""
    Path("a.log").write_text(text, encoding="utf-8")
    assert main(["import", "a.log", *words]) == code
    return max(Path("results").iterdir())


COPIES = """
rules:
  - {pattern: host_device, direction: h2d, busbw: at least 24 GB/s, imported: true, allow: unverified}
  - {pattern: peer_copy, busbw: at least PEER GB/s, imported: true, allow: unverified}
"""


def test_copies_that_nvbandwidth_measured_are_gated(capsys: Out) -> None:
    imported(samples.NVBANDWIDTH)
    told = gated(capsys, COPIES.replace("PEER", "20"))
    assert told["passed"], told["failures"]
    assert [each["num_rows"] for each in told["demands"]] == [2, 2]
    told = gated(capsys, COPIES.replace("PEER", "21"))
    assert told["failures"] == {"too-low": 1} and told["demands"][1]["worst_group"] == "gpu0>gpu1"


def test_copies_that_the_cuda_sample_measured_are_gated(capsys: Out) -> None:
    imported(samples.P2P)
    rule = "{pattern: peer_copy, direction: d2d, busbw: at least 20 GB/s, imported: true, allow: unverified}"
    inside = "{pattern: local_copy, busbw: at least 300 GB/s, imported: true, allow: unverified}"
    told = gated(capsys, f"rules:\n  - {rule}\n  - {inside}\n")
    assert told["passed"], told["failures"]
    assert [each["num_rows"] for each in told["demands"]] == [2, 4]
