"""The controller outside an allocation, with programs that answer as Slurm's do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.config.clusters import Cluster
from bench.controller import batch
from bench.controller.jobs import Job
from bench.controller.messages import AllocationCode
from bench.core.case import Case
from bench.core.codes import Coded
from bench.core.errors import MeasurementError, RefusedError
from bench.core.world import World
from tests.facts import holds

SCONTROL = "JobId=17 JobName=bench JobState={state} Reason=x ExitCode={code}:0 NodeList={nodes} BatchHost=n1"
Fake = Callable[..., None]


def job(name: str, nodes: int = 2, estimate_s: float = 30.0) -> Job:
    return Job(name, Case("allreduce"), World(nodes, 8), "slurm", ("srun",), {}, (), 1, 4, estimate_s)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """`fake(sbatch="echo 17", ...)`: programs of one shell line each, and no others of Slurm."""

    def make(**lines: str) -> None:
        for name in ("sbatch", "squeue", "scontrol", "sacct", "sinfo", "scancel"):
            program = tmp_path / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{lines.get(name, 'exit 1')}\n", encoding="utf-8")
            program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return make


def ended(tmp_path: Path, says: list[str] | None = None) -> batch.AllocationEnd:
    said: list[str] = [] if says is None else says
    return batch.run([job("a"), job("b")], "#!/bin/sh\n", tmp_path, "lab", said.append, lambda state: None)


def test_the_script_has_nodes_for_the_largest_job_and_time_for_all() -> None:
    text = batch.script([job("a", 2), job("b", 4, 90.0)], Cluster("lab", options={"account": "team"}), ["true"])
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n#SBATCH --time=14\n" in text
    assert "#SBATCH --account=team\n" in text and text.endswith("\ntrue\n")


def test_only_jobs_of_slurm_outside_an_allocation_are_submitted() -> None:
    assert batch.needed([job("a")], {})
    assert not batch.needed([job("a")], {"SLURM_JOB_ID": "5"})
    assert not batch.needed([], {})


@pytest.mark.parametrize(
    ("state", "nodes", "code", "why", "refused"),
    [
        ("TIMEOUT", "n[1-2]", AllocationCode.TIMEOUT, "", False),
        ("OUT_OF_MEMORY", "n[1-2]", AllocationCode.OUT_OF_MEMORY, "", False),
        ("PREEMPTED", "n[1-2]", AllocationCode.PREEMPTED, "", False),
        ("CANCELLED", "n[1-2]", AllocationCode.CANCELLED, "", False),
        ("CANCELLED", "(null)", AllocationCode.CANCELLED, " before it could start", True),
        ("DEADLINE", "(null)", AllocationCode.DEADLINE, "", True),
        ("NODE_FAIL", "n[1-2]", AllocationCode.NODE_FAIL, ": node n2 (down*: not responding)", False),
        ("SOMETHING_NEW", "n[1-2]", AllocationCode.OTHER, "; its output is in", False),
    ],
)
def test_every_end_of_an_allocation_has_its_code(
    fake: Fake, tmp_path: Path, state: str, nodes: str, code: AllocationCode, why: str, refused: bool
) -> None:
    printed = SCONTROL.format(state=state, code=9, nodes=nodes)
    fake(
        sbatch="echo 17",
        squeue="exit 0",
        scontrol=f"echo '{printed}'",
        sinfo="printf 'n1|idle|none\\nn2|down*|not responding\\nn2|down*|not responding\\n'",
    )
    end = ended(tmp_path)
    assert end.failure is not None and end.failure.code == code
    facts = end.failure.facts
    assert (facts["job_id"], facts["state"], facts["exit_code"]) == ("17", state, 9)
    assert facts["why"].startswith(why) and bool(facts["why"]) == bool(why)
    assert end.refused is refused


def test_accounting_knows_a_job_that_slurmctld_has_forgotten(fake: Fake, tmp_path: Path) -> None:
    fake(
        sbatch="echo '17;cluster'",
        squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sacct="echo 'CANCELLED by 1000|0:0|n[1-2]'",
    )
    end = ended(tmp_path)
    assert end.failure is not None and end.failure.code == AllocationCode.CANCELLED


def test_an_inner_controller_that_reported_every_job_needs_no_more_words(fake: Fake, tmp_path: Path) -> None:
    fake(sbatch="echo 17", squeue="exit 0", scontrol=f"echo '{SCONTROL.format(state='FAILED', code=4, nodes='n1')}'")
    failed = {"exit_code": 4, "seconds": 1.0, "what": "rank 3 died", "code": "rank-gone", "facts": {"a": 1}}
    well: dict[str, Any] = {"exit_code": 0, "seconds": 1.0, "what": None, "code": None, "facts": {}}
    (tmp_path / "outcomes.json").write_text(json.dumps({"a": well, "b": failed}))
    assert ended(tmp_path).failure is None
    cancelled = Coded.of(AllocationCode.CANCELLED, job_id="17", why="")
    kept = batch.outcomes([job("a"), job("b")], tmp_path, cancelled)
    assert kept["a"] == well
    assert (kept["b"]["code"], kept["b"]["facts"]) == ("rank-gone", {"a": 1, "allocation": "cancelled"})
    assert kept["b"]["what"].startswith("rank 3 died; ") and cancelled.text in kept["b"]["what"]


def test_an_inner_controller_that_could_not_begin_is_quoted(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_FILES_S", 0.0)
    fake(sbatch="echo 17", squeue="exit 0", scontrol=f"echo '{SCONTROL.format(state='FAILED', code=3, nodes='n1')}'")
    (tmp_path / "slurm-17.err").write_text("2 of 2 jobs\nbench: error: no space\n")
    says: list[str] = []
    end = ended(tmp_path, says)
    assert end.refused and end.failure is not None
    assert (end.failure.code, end.failure.facts["why"]) == (AllocationCode.OTHER, ": no space")
    assert "2 of 2 jobs" in says and not any("error" in line for line in says)
    kept = batch.outcomes([job("a")], tmp_path, end.failure)
    assert (kept["a"]["exit_code"], kept["a"]["code"]) == (None, AllocationCode.OTHER)


def test_the_reason_to_wait_is_printed_once(fake: Fake, tmp_path: Path) -> None:
    count = tmp_path / "count"
    fake(
        sbatch="echo 17",
        scontrol=f"echo '{SCONTROL.format(state='CANCELLED', code=0, nodes='n1')}'",
        squeue=f"echo x >> {count}; [ $(wc -l < {count}) -gt 3 ] || echo 'PENDING|Resources'",
    )
    says: list[str] = []
    ended(tmp_path, says)
    assert [holds(says[0], "17:", "submitted"), holds(says[1], "17", "waits:", "Resources")] == [True] * len(says)


def test_slurms_own_error_is_quoted(fake: Fake, tmp_path: Path) -> None:
    fake(sbatch="echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(RefusedError) as error:
        ended(tmp_path)
    why = "Batch job submission failed: Invalid account"
    assert (error.value.code, error.value.facts) == (AllocationCode.NOT_TAKEN, {"cluster": "lab", "why": why})


def test_a_slurmctld_out_of_reach_is_not_a_fault_of_the_options(fake: Fake, tmp_path: Path) -> None:
    fake(sbatch="echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(RefusedError) as error:
        ended(tmp_path)
    assert error.value.code == AllocationCode.NO_CONTROLLER and "options" not in str(error.value)


def test_slurm_can_be_asked_without_submitting(fake: Fake, tmp_path: Path) -> None:
    cluster = Cluster("lab", launcher="slurm", options={"time": "soon"})
    fake(sbatch=f'echo "$1" > {tmp_path}/asked; grep -q -- "--time=soon" "$2" || exit 9; echo "bad time" >&2; exit 1')
    refusal = batch.refusal([job("a")], cluster)
    assert refusal is not None
    assert (refusal.code, refusal.facts) == (AllocationCode.NOT_TAKEN, {"cluster": "lab", "why": "bad time"})
    assert (tmp_path / "asked").read_text() == "--test-only\n", "nothing is submitted"
    fake(sbatch="echo 'sbatch: Job 7 to start at 12:00' >&2")
    assert batch.refusal([job("a")], cluster) is None


@pytest.mark.parametrize(
    ("reason", "never"),
    [("PartitionTimeLimit", True), ("QOSMaxNodePerJobLimit", True), ("AssocMaxJobsLimit", False), ("Priority", False)],
)
def test_a_job_that_can_never_start_is_cancelled_and_refused(
    fake: Fake, tmp_path: Path, reason: str, never: bool
) -> None:
    polls, cancelled = tmp_path / "polls", tmp_path / "cancelled"
    fake(
        sbatch="echo 17",
        scancel=f"touch {cancelled}",
        squeue=f"echo x >> {polls}; [ $(wc -l < {polls}) -gt 2 ] || echo 'PENDING|{reason}'",
        scontrol=f"echo '{SCONTROL.format(state='CANCELLED', code=0, nodes='(null)')}'",
    )
    if never:
        with pytest.raises(RefusedError) as error:
            ended(tmp_path)
        assert (error.value.code, error.value.facts["reason"]) == (AllocationCode.NEVER_STARTS, reason)
    else:
        assert ended(tmp_path).refused
    assert cancelled.exists() is never


def test_a_slurmctld_that_no_longer_answers_is_given_up(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_SILENCE_S", 0.3)
    fake(sbatch="echo 17", squeue="echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(MeasurementError) as error:
        ended(tmp_path)
    assert (error.value.code, error.value.facts["job_id"]) == (AllocationCode.NO_ANSWER, "17")
