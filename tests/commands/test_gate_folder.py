"""The gate on a folder of other tools' logs: weakest over files, placement, in-place figures that no tool checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from tests.logs.synthetic_pairs import log_of_pair, write_cluster

RULES = """
rules:
  - name: pairs
    patterns: [alltoall, sendrecv]
    imported: true
    weakest: at least 80% of median
"""
Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def gated(out: Out, run: str, rules: str = RULES) -> dict[str, Any]:
    """The verdict on logs."""
    Path("rules.yaml").write_text(rules, encoding="utf-8")
    code = main(["gate", run, "--rules", "rules.yaml", "--format", "json"])
    verdict: dict[str, Any] = json.loads(out.readouterr().out)
    assert code == (0 if verdict["passed"] else 1)
    return verdict


def codes(verdict: dict[str, Any]) -> set[str]:
    faults = [*verdict["faults"], *(fault for demand in verdict["demands"] for fault in demand["faults"])]
    return {fault["code"] for fault in faults}


def test_a_healthy_folder_passes_and_leaves_nothing_behind(capsys: Out) -> None:
    """The in-place column of both operations says N/A for the check; the one out of place was checked."""
    write_cluster(Path("logs"), 5)
    verdict = gated(capsys, "logs")
    assert (verdict["passed"], verdict["run"], verdict["unjudged"]) == (True, "logs", 0)
    assert verdict["demands"][0]["num_rows"] == 10 * 2 * 2 * 2
    assert not Path("results").exists()


def test_the_weakest_of_all_files_fails(capsys: Out) -> None:
    write_cluster(Path("logs"), 5, slow_pairs={("node02", "node04"): 0.6})
    verdict = gated(capsys, "logs")
    [demand] = verdict["demands"]
    assert {fault["code"] for fault in demand["faults"]} == {"below-demand"}
    assert {"node02_node04" in fault["job"] for fault in demand["faults"]} == {True}
    assert demand["got"] == pytest.approx(0.6, abs=0.05)


def test_a_host_at_fault_fails_whatever_the_rules_select(capsys: Out) -> None:
    write_cluster(Path("logs"), 6, slow={"node03": 0.7})
    rules = "rules:\n  - {pattern: alltoall, imported: true, busbw: at least 1 GB/s}\n"
    verdict = gated(capsys, "logs", rules)
    [fault] = verdict["faults"]
    assert (fault["code"], fault["facts"]["part"]) == ("part-slow", "node03")
    assert gated(capsys, "logs", "diagnose: false\n" + rules)["passed"]


@pytest.mark.parametrize("placement", ["in_place", "out_of_place"])
def test_a_placement_is_selected(placement: str, capsys: Out) -> None:
    write_cluster(Path("logs"), 4)
    verdict = gated(capsys, "logs", RULES + f"    placement: {placement}\n")
    assert (verdict["passed"], verdict["demands"][0]["num_rows"], verdict["unjudged"]) == (True, 24, 24)


def test_rows_that_nothing_checked_stay_unverified(capsys: Out) -> None:
    text = log_of_pair(("a", "b"), 40.0).replace("      0 ", "    N/A ").replace("    0  ", "  N/A  ")
    Path("a.log").write_text(text, encoding="utf-8")
    assert "data-unchecked" in codes(
        gated(capsys, "a.log", RULES.replace("weakest: at least 80% of median", "busbw: at least 1 GB/s"))
    )


def test_one_log_has_no_peers(capsys: Out) -> None:
    Path("a.log").write_text(log_of_pair(("a", "b"), 40.0), encoding="utf-8")
    assert codes(gated(capsys, "a.log")) == {"groups-too-few"}


def test_a_run_without_figures_fails(capsys: Out) -> None:
    write_cluster(Path("logs"), 4, failing={("node01", "node02"): "sendrecv"})
    assert not gated(capsys, "logs")["passed"]
