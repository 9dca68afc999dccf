"""The desk outside an allocation, in front of programs that answer as Slurm's do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.config.clusters import Cluster
from bench.controller import batch
from bench.controller.jobs import Job
from bench.core.case import Case
from bench.core.errors import MeasurementError, RefusedError
from bench.core.world import World

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


def ended(tmp_path: Path, says: list[str] | None = None) -> batch.End:
    said: list[str] = [] if says is None else says
    return batch.run([job("a"), job("b")], "#!/bin/sh\n", tmp_path, "lab", said.append, lambda state: None)


def test_room_for_the_largest_job_and_time_for_all() -> None:
    text = batch.script([job("a", 2), job("b", 4, 90.0)], Cluster("lab", options={"account": "team"}), ["true"])
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n#SBATCH --time=14\n" in text
    assert "#SBATCH --account=team\n" in text and text.endswith("\ntrue\n")


def test_only_jobs_of_slurm_outside_an_allocation_are_submitted() -> None:
    assert batch.wanted([job("a")], {})
    assert not batch.wanted([job("a")], {"SLURM_JOB_ID": "5"})
    assert not batch.wanted([], {})


@pytest.mark.parametrize(
    ("state", "nodes", "words", "refused"),
    [
        ("TIMEOUT", "n[1-2]", "ran into its time limit: give it more by `time`", False),
        ("OUT_OF_MEMORY", "n[1-2]", "took more memory than Slurm gave it", False),
        ("PREEMPTED", "n[1-2]", "had to make room for another job", False),
        ("CANCELLED", "n[1-2]", "was cancelled", False),
        ("CANCELLED", "(null)", "was cancelled before it could start", True),
        ("DEADLINE", "(null)", "could not end before its deadline", True),
        ("NODE_FAIL", "n[1-2]", "ended because a node failed: node n2 (down*: not responding)", False),
        ("SOMETHING_NEW", "n[1-2]", "ended as SOMETHING_NEW with exit code 9; its output is in", False),
    ],
)
def test_every_end_is_told_as_what_it_was(
    fake: Fake, tmp_path: Path, state: str, nodes: str, words: str, refused: bool
) -> None:
    told = SCONTROL.format(state=state, code=9, nodes=nodes)
    fake(
        sbatch="echo 17",
        squeue="exit 0",
        scontrol=f"echo '{told}'",
        sinfo="printf 'n1|idle|none\\nn2|down*|not responding\\nn2|down*|not responding\\n'",
    )
    end = ended(tmp_path)
    assert end.what is not None and end.what.startswith(f"Slurm job 17 {words}")
    assert end.refused is refused


def test_what_the_controller_has_forgotten_accounting_knows(fake: Fake, tmp_path: Path) -> None:
    fake(
        sbatch="echo '17;cluster'",
        squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sacct="echo 'CANCELLED by 1000|0:0|n[1-2]'",
    )
    assert ended(tmp_path).what == "Slurm job 17 was cancelled"


def test_a_desk_that_told_every_end_needs_no_more_words(fake: Fake, tmp_path: Path) -> None:
    fake(sbatch="echo 17", squeue="exit 0", scontrol=f"echo '{SCONTROL.format(state='FAILED', code=4, nodes='n1')}'")
    outcomes = {name: {"exit_code": 4, "seconds": 1.0, "what": what} for name, what in (("a", None), ("b", "rank 3"))}
    (tmp_path / "outcomes.json").write_text(json.dumps(outcomes))
    assert ended(tmp_path).what is None
    kept = batch.outcomes([job("a"), job("b")], tmp_path, "Slurm job 17 was cancelled")
    assert [kept[name]["what"] for name in "ab"] == [None, "rank 3; Slurm job 17 was cancelled"]


def test_a_desk_that_could_not_begin_is_quoted(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_FILES_S", 0.0)
    fake(sbatch="echo 17", squeue="exit 0", scontrol=f"echo '{SCONTROL.format(state='FAILED', code=3, nodes='n1')}'")
    (tmp_path / "slurm-17.err").write_text("2 of 2 jobs\nbench: error: no space is left\n")
    says: list[str] = []
    end = ended(tmp_path, says)
    assert end == batch.End("Slurm job 17 ended as FAILED with exit code 3: no space is left", refused=True)
    assert "2 of 2 jobs" in says and not any("error" in line for line in says)
    kept = batch.outcomes([job("a")], tmp_path, end.what)
    assert kept == {"a": {"exit_code": None, "seconds": None, "what": end.what}}


def test_why_a_job_waits_is_said_once(fake: Fake, tmp_path: Path) -> None:
    count = tmp_path / "count"
    fake(
        sbatch="echo 17",
        scontrol=f"echo '{SCONTROL.format(state='CANCELLED', code=0, nodes='n1')}'",
        squeue=f"echo x >> {count}; [ $(wc -l < {count}) -gt 3 ] || echo 'PENDING|Resources'",
    )
    says: list[str] = []
    ended(tmp_path, says)
    assert says == ["Slurm job 17: submitted", "Slurm job 17 waits: Resources"]


def test_what_slurm_refuses_is_told_in_its_own_words(fake: Fake, tmp_path: Path) -> None:
    fake(sbatch="echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(RefusedError, match=r"cluster 'lab' \(Batch job submission failed: Invalid account\): mend"):
        ended(tmp_path)


def test_a_controller_out_of_reach_is_no_fault_of_the_options(fake: Fake, tmp_path: Path) -> None:
    fake(sbatch="echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(RefusedError, match=r"can not be reached from here for cluster 'lab' .*scontrol ping") as told:
        ended(tmp_path)
    assert "options" not in str(told.value)


def test_slurm_is_asked_whether_it_would_take_the_script(fake: Fake, tmp_path: Path) -> None:
    cluster = Cluster("lab", launcher="slurm", options={"time": "soon"})
    fake(
        sbatch=f'echo "$1" > {tmp_path}/asked; grep -q -- "--time=soon" "$2" || exit 9; echo "no such time" >&2; exit 1'
    )
    assert batch.refusal([job("a")], cluster) == (
        "Slurm does not take the job of cluster 'lab' (no such time): mend its `options:`, or its `nodes:`"
    )
    assert (tmp_path / "asked").read_text() == "--test-only\n", "nothing is submitted"
    fake(sbatch="echo 'sbatch: Job 7 to start at 12:00' >&2")
    assert batch.refusal([job("a")], cluster) is None


@pytest.mark.parametrize(
    ("reason", "never"),
    [("PartitionTimeLimit", True), ("QOSMaxNodePerJobLimit", True), ("AssocMaxJobsLimit", False), ("Priority", False)],
)
def test_a_job_that_no_waiting_helps_is_cancelled_and_refused(
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
        with pytest.raises(RefusedError, match=rf"can never start \({reason}\)"):
            ended(tmp_path)
    else:
        assert ended(tmp_path).refused
    assert cancelled.exists() is never


def test_a_controller_that_answers_no_more_is_given_up(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_SILENCE_S", 0.3)
    fake(sbatch="echo 17", squeue="echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(MeasurementError, match=r"has not answered for .* job 17 may still run"):
        ended(tmp_path)
