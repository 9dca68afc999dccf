"""What this machine must be able to do before a job starts from it, with a launcher for the test."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.config.clusters import Cluster
from bench.controller import preflight, survey
from bench.controller.host_checks import PreflightFinding, Wanted
from bench.controller.jobs import Site
from bench.controller.messages import FindingCode
from bench.controller.plan import this_machine
from bench.core import plugins
from bench.core.launcher import Launcher
from tests.controller.test_batch import job

ROOT = Path(__file__).resolve().parent.parent.parent
HELP = "usage: x [-h] [--standalone] [--node-rank N]\n  --node-rank, --node_rank N  its number; see rdzv-conf"


class Fake(type(plugins.load("launcher", "torchrun").LAUNCHER)):  # type: ignore[misc]
    """A launcher with two options."""

    help = ("-c", f"print({HELP!r})")


def found(cluster: Cluster, launcher: Launcher | None = None) -> list[PreflightFinding]:
    site = Site(cluster, this_machine(None, None), {}, {"slurm": launcher or Fake()})
    return preflight.local_findings(cluster, [job("a")], site)


def test_set_up_lines_are_run_as_in_the_jobs_shell() -> None:
    [finding] = found(Cluster("lab", setup=("true", "nosuchprogram load x", "true")))
    assert (finding.code, finding.facts) == (
        FindingCode.SETUP_FAILS,
        {"cluster": "lab", "why": "nosuchprogram: not found"},
    )
    assert len(found(Cluster("lab", setup=("exit 0",)))) == 1, "a line that ends the shell ends the job"
    assert found(Cluster("lab", setup=('test "$A" = 1',), env={"A": "1"})) == []


def test_options_are_compared_with_the_launchers_help() -> None:
    assert found(Cluster("lab", options={"node-rank": "1", "standalone": ""})) == []
    [finding] = found(Cluster("lab", launcher="torchrun", options={"node-rnk": "1"}))
    assert (finding.code, finding.facts["option"]) == (FindingCode.NO_OPTION, "node-rnk")
    assert finding.facts["launcher"] == "torchrun" and "'node-rank'" in finding.facts["nearest"]
    assert found(Cluster("lab", python="/opt/none/python", options={"x": "1"})) == [], "the launcher has no help"


def test_what_a_scheduler_starts_is_not_checked_here() -> None:
    assert found(Cluster("lab", setup=("false",)), plugins.load("launcher", "slurm").LAUNCHER) == []


def test_a_missing_interpreter_is_named_and_an_existing_one_answers(tmp_path: Path) -> None:
    wanted = Wanted((), results=str(tmp_path / "results"))
    cluster = Cluster("lab", setup=("echo welcome",))
    [finding] = survey.of_this_machine(wanted, cluster, "/opt/none/python").findings
    assert (finding.code, finding.facts["python"]) == (FindingCode.NO_INTERPRETER, "/opt/none/python")
    found = survey.of_this_machine(wanted, cluster, sys.executable)
    assert [facts.software["python"][:7] for facts in found.facts.values()] == ["CPython"]
