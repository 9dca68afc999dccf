"""A retest measures only what failed, with partners that passed, on hosts that can be chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.config.clusters import Cluster
from bench.controller import plan, retest
from bench.controller.messages import ControllerError
from bench.controller.run import RunContext
from bench.core.errors import UsageError
from bench.gate import gate as gates
from bench.gate.remeasured import RetestPlan
from bench.launchers import slurm
from bench.store import runs
from tests.gate.gate_runs import RULES, SIZES, good, judge, pairs, record, times

HOSTS = tuple(f"h{number}" for number in range(8))
ASKED = RetestPlan({}, ("pairs",), ("h5",), ("h0", "h1", "h2"))


def test_only_what_failed_is_measured_again(tmp_path: Path) -> None:
    run = good()
    assert run.plan is not None
    job, head, found = pairs({2: 0.5}, ladder="screen")
    run.jobs.append((job, head, found + pairs({2: 0.5}, ladder="confirm")[2]))
    run.plan["jobs"].append({"name": job, "case": list(head.case), "world": {"num_nodes": 6, "ranks_per_node": 1}})
    run.outcomes[job] = {"exit_code": 0, "seconds": 1.0, "what": None}
    run.jobs[0][2][2:] = [record(mode, SIZES[1], times(9e-3)) for mode in ("isolated", "pipelined")]
    verdict = judge(run, tmp_path)
    assert set(verdict.names) == {"too-low", "too-high", "slow-part"}
    asked = gates.retest_plan(verdict, run.gate_input())
    assert asked == RetestPlan(
        {"allreduce-mpi-2x2": (SIZES[1],)},
        (job,),
        ("h2",),
        ("h0", "h1", "h3"),
        {str(name): num for name, num in verdict.names.items()},
    )


def test_what_passed_or_cannot_be_mended_is_not_measured_again(tmp_path: Path) -> None:
    for rules in (RULES, RULES + "expect: {transport: nccl}\n", RULES.replace("bound", "reference")):
        run = good()
        verdict = judge(run, tmp_path, rules)
        asked = gates.retest_plan(verdict, run.gate_input())
        assert asked == RetestPlan({}, (), (), (), {str(name): num for name, num in verdict.names.items()})


def test_a_job_that_failed_as_a_whole_is_measured_as_a_whole(tmp_path: Path) -> None:
    run = good()
    run.outcomes["allreduce-mpi-2x2"]["what"] = "a rank died"
    asked = gates.retest_plan(judge(run, tmp_path), run.gate_input())
    assert asked.sizes == {"allreduce-mpi-2x2": ()}


def test_hosts_are_chosen_in_the_order_of_the_cluster() -> None:
    lab = Cluster("lab", nodes=8, hosts=HOSTS, launcher="mpirun")
    assert retest.chosen_hosts(ASKED, lab) == ("h0", "h1", "h2", "h5")
    assert retest.chosen_hosts(RetestPlan({"job": ()}, (), (), ()), lab) == ()
    few = Cluster("few", nodes=4, hosts=("h0", "h1", "h2", "h5"), launcher="mpirun")
    assert retest.chosen_hosts(ASKED, few) == (), "all of them take part anyway"
    assert retest.chosen_hosts(ASKED, Cluster("slurm", nodes=8, launcher="slurm")) == ("h5", "h0", "h1", "h2")


@pytest.mark.parametrize(
    ("cluster", "code"),
    [
        (Cluster("k", nodes=8, launcher="kubernetes"), ControllerError.RETEST_ON_KUBERNETES),
        (
            Cluster("lab", nodes=8, hosts=tuple(f"10.0.0.{n}" for n in range(8)), launcher="mpirun"),
            ControllerError.RETEST_HOSTS,
        ),
    ],
)
def test_hosts_that_cannot_be_chosen_are_refused(cluster: Cluster, code: ControllerError) -> None:
    with pytest.raises(UsageError) as error:
        retest.chosen_hosts(ASKED, cluster)
    assert error.value.code == code


def test_under_slurm_a_retest_needs_an_allocation_with_its_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    case = ["pairs", "--transport", "nccl", "--sizes", "4M", "--mode", "pipelined", "--schedule", "ladder"]
    job = {"name": "pairs", "case": case, "world": {"num_nodes": 8, "ranks_per_node": 1}, "factors": {}}
    runs.write_plan(
        tmp_path, {"scenario": "s", "cluster": {"name": "s", "nodes": 8, "launcher": "slurm"}, "jobs": [job]}
    )
    site = plan.site_of(Cluster("s", nodes=8, launcher="slurm"), (), None)
    context = RunContext(site, tmp_path, 60.0, print, print, check_hosts=False)
    with pytest.raises(UsageError) as error:
        retest.retest(tmp_path, ASKED, [], context)
    assert error.value.code == ControllerError.RETEST_IN_ALLOCATION
    assert "salloc --nodes=4 --nodelist=h5,h0,h1,h2 " in str(error.value)
    assert not (tmp_path / "retests.json").exists()
    assert slurm.on_hosts(["srun", "--nodes=4", "python"], ["h5", "h0", "h1"]) == (
        "srun",
        "--nodelist=h[5,0-1]",
        "--nodes=4",
        "python",
    )
