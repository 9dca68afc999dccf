"""No low figure is without a reason and a next step, and no normal one has an accusing reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.explain.explain import Page, run_page
from bench.explain.messages import DecidingOption, ResultVerdict
from bench.explain.page import table
from bench.hardware.catalogue import instances, node_links
from bench.logs.foreign import ForeignRow
from tests.explain.logs import SIZES, a_run, curve, evidence_of
from tests.logs.corpus import FOLDER, needs_corpus
from tests.logs.synthetic_slow import MACHINES, SHARES, Machine

ACCUSING = {
    "peer-access-off",
    "sockets-in-node",
    "pcie-instead-of-nvlink",
    "part-of-nvlinks",
    "throttled-or-shared-gpus",
    "nccl-older-than-gpu",
    "nccl-not-shown",
    "slow-part-unknown",
    "loss-or-congestion",
    "falls-in-node",
}
PATTERNS = ("allreduce", "allgather", "alltoall")
LOW = (ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW)


def healthy() -> list[Path]:
    """Other people's logs of nccl-tests that hold rows of whole runs."""
    return sorted((FOLDER / "nccl_logs").glob("*.txt")) if FOLDER else []


def page(machine: Machine, pattern: str, share: float, num_nodes: int = 1, **hints: str) -> Page:
    rate = machine.normal[pattern][num_nodes] * share
    run = a_run(rate, 8 * num_nodes, num_nodes, pattern)
    return run_page(evidence_of(run, machine.instance, hints=hints))


def reasons(found: Page) -> list[str]:
    return [reason.code for reason in found.reasons]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.instance)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_every_low_figure_has_a_reason_and_a_command(machine: Machine, pattern: str, num_nodes: int) -> None:
    for share in SHARES:
        found = page(machine, pattern, share, num_nodes)
        assert found.assessment.verdict in LOW or num_nodes > 1, share
        if found.assessment.verdict in LOW:
            assert any(reason.step and reason.command for reason in found.reasons), (share, found.reasons)
            assert all(reason.weight < 0.9 for reason in found.reasons), "a figure alone proves nothing"
    assert reasons(page(machine, pattern, 1.0, num_nodes)) == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", instances())
def test_no_catalogue_type_ends_without_a_reason(name: str) -> None:
    links = node_links(name)
    for num_nodes in (1, 2):
        num_ranks = links.gpus * num_nodes
        for rate in (1.0, 10.0, 100.0):
            found = run_page(evidence_of(a_run(rate, num_ranks, num_nodes), name))
            if found.assessment.verdict in LOW:
                assert any(reason.step for reason in found.reasons), (num_nodes, rate)


@pytest.mark.parametrize(
    ("rate_gb", "hints", "first"),
    [
        (8.0, {}, "peer-access-off"),
        (20.0, {}, "peer-access-off"),
        (20.0, {"path": "P2P/IPC"}, "slow-part-unknown"),
        (50.0, {}, "pcie-instead-of-nvlink"),
        (50.0, {"search": "16, bw 20/20, type NVL"}, "slow-part-unknown"),
        (240.0, {}, "part-of-nvlinks"),
        (100.0, {}, "part-of-nvlinks"),
    ],
)
def test_what_a_rate_fits_on_eight_h100(rate_gb: float, hints: dict[str, str], first: str) -> None:
    assert reasons(run_page(evidence_of(a_run(rate_gb), "p5.48xlarge", hints=hints)))[0] == first


@pytest.mark.parametrize(
    ("rate_gb", "hints", "code"),
    [
        (20.0, {"path": "SHM/direct/direct"}, "peer-access-off"),
        (20.0, {"setting": "NCCL_P2P_DISABLE set by environment to 1"}, "peer-access-off"),
        (4.0, {"path": "NET/Socket/0"}, "sockets-in-node"),
        (50.0, {"search": "1, bw 12/12, type PHB"}, "pcie-instead-of-nvlink"),
    ],
)
def test_the_log_says_what_a_figure_only_fits(rate_gb: float, hints: dict[str, str], code: str) -> None:
    found = run_page(evidence_of(a_run(rate_gb), "p5.48xlarge", hints=hints))
    [reason] = [reason for reason in found.reasons if reason.code == code]
    assert reason.weight >= 0.9 and reason.facts["line"] == 7


def test_half_of_the_nvlinks_is_likelier_than_another_number() -> None:
    weights = {}
    for share in (0.4, 0.5):
        found = page(MACHINES[0], "allgather", share)
        weights[share] = {reason.code: reason for reason in found.reasons}["part-of-nvlinks"].weight
    assert weights[0.5] > weights[0.4]


@pytest.mark.parametrize(("version", "old"), [("2.14.3", True), ("2.21.5", False)])
def test_an_nccl_older_than_the_gpu(version: str, old: bool) -> None:
    assert ("nccl-older-than-gpu" in reasons(page(MACHINES[1], "allreduce", 0.4, nccl=version))) == old


def test_a_likely_reason_needs_no_fallback() -> None:
    found = reasons(page(MACHINES[1], "allreduce", 0.75))
    assert "no-nvls" in found and "slow-part-unknown" not in found


def falling(share: float, sizes: Sequence[int] = SIZES, num_last: int = 3) -> tuple[ForeignRow, ...]:
    """A curve whose last sizes are at a share of their rate."""
    rows = curve("allreduce", 16, 40.0, sizes=sizes)
    slow = []
    for row in rows[-num_last:]:
        rate, algbw = (row.busbw_bytes_per_s or 0) * share, (row.algbw_bytes_per_s or 0) * share
        seconds = (row.time_s or 0) / share
        slow.append(replace(row, busbw_bytes_per_s=rate, algbw_bytes_per_s=algbw, time_s=seconds))
    return (*rows[:-num_last], *slow)


def fallen(share: float, num_nodes: int = 2, **changes: Any) -> list[str]:
    run = a_run(40.0, 16 if num_nodes > 1 else 8, num_nodes, rows=falling(share, **changes))
    return reasons(run_page(evidence_of(run, gpu="NVIDIA H100 80GB HBM3")))


def test_a_collapse_between_nodes_names_loss_or_congestion() -> None:
    assert fallen(0.4)[0] == "loss-or-congestion"
    assert "loss-or-congestion" not in fallen(0.7)
    assert "loss-or-congestion" not in fallen(0.4, num_last=1), "one figure may be noise"


def test_a_collapse_inside_a_node_is_no_network() -> None:
    found = fallen(0.4, num_nodes=1)
    assert "falls-in-node" in found and "loss-or-congestion" not in found


def test_without_a_verdict_the_first_line_says_what_would_decide() -> None:
    run = a_run(40.0, 16, 2)
    found = run_page(evidence_of(run))
    assert found.decides is not None and found.decides.code == DecidingOption.INSTANCE
    text = table([found]).splitlines()
    assert text[1].startswith("To judge") and "--instance" in text[1]
    assert len(found.others) > 3, "of these the page shows three"
    shown = [line for line in text[text.index("What others got") :] if line.startswith("  - ")]
    assert len(shown) == 4 and shown[-1].startswith("  - and ")


def test_unknown_nics_are_given_by_their_option() -> None:
    found = run_page(evidence_of(a_run(20.0, 2, 2, "allgather"), gpu="NVIDIA GB10"))
    assert found.decides is not None and found.decides.code == DecidingOption.NICS
    assert found.decides.facts["candidates"] == ["DGX Spark"]


def test_two_sparks_at_the_rate_of_both_pcie_links_are_normal() -> None:
    assert run_page(evidence_of(a_run(21.0, 2, 2, "allgather"), "DGX Spark")).assessment.verdict == ResultVerdict.NORMAL


@pytest.mark.thin(3)
@needs_corpus
@pytest.mark.parametrize("path", healthy(), ids=lambda path: path.name[:30])
def test_no_log_that_is_judged_normal_has_an_accusing_reason(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", str(path), "--format", "json"])
    for found in json.loads(capsys.readouterr().out)["pages"]:
        accused = {reason["code"] for reason in found["reasons"]} & ACCUSING
        assert found["standing_code"] in ("low", "far-too-low") or not accused, found["title"]
