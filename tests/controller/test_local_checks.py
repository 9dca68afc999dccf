"""What this machine must be able to do before a job starts from it, with a launcher made for the test."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.config.clusters import Cluster
from bench.controller import local_checks, survey
from bench.controller.host_checks import Wanted
from bench.core import plugins
from bench.core.launcher import Launcher
from tests.controller.test_batch import job

ROOT = Path(__file__).resolve().parent.parent.parent
HELP = "usage: x [-h] [--standalone] [--node-rank N]\n  --node-rank, --node_rank N  its number; see rdzv-conf"


class Fake(type(plugins.load("launcher", "torchrun").LAUNCHER)):  # type: ignore[misc]
    """One that knows two options."""

    help = ("-c", f"print({HELP!r})")


def found(cluster: Cluster, launcher: Launcher | None = None) -> list[str]:
    launchers = {"slurm": launcher or Fake()}
    return [finding.what for finding in local_checks.look(cluster, [job("a")], launchers)]


def test_set_up_lines_are_tried_as_the_jobs_shell_runs_them() -> None:
    [told] = found(Cluster("lab", setup=("true", "nosuchprogram load x", "true")))
    assert told.startswith("`setup:` of cluster 'lab' fails on this machine (nosuchprogram: not found): mend it")
    assert len(found(Cluster("lab", setup=("exit 0",)))) == 1, "a line that ends the shell ends the job"
    assert found(Cluster("lab", setup=('test "$A" = 1',), env={"A": "1"})) == []


def test_options_are_asked_of_the_launcher_itself() -> None:
    assert found(Cluster("lab", options={"node-rank": "1", "standalone": ""})) == []
    [told] = found(Cluster("lab", launcher="torchrun", options={"node-rnk": "1"}))
    assert told.startswith("`options:` of cluster 'lab': torchrun has no option 'node-rnk'; did you mean 'node-rank'")
    assert found(Cluster("lab", python="/opt/none/python", options={"x": "1"})) == [], "nobody knows"


def test_what_a_scheduler_starts_is_not_tried_here() -> None:
    assert found(Cluster("lab", setup=("false",)), plugins.load("launcher", "slurm").LAUNCHER) == []


def test_an_interpreter_that_is_not_here_is_told_and_one_that_is_answers(tmp_path: Path) -> None:
    wanted = Wanted((), results=str(tmp_path / "results"))
    cluster = Cluster("lab", setup=("echo welcome",))
    [finding] = survey.of_this_machine(wanted, cluster, "/opt/none/python", ROOT).findings
    assert "has no interpreter /opt/none/python: install it there" in finding.what
    found = survey.of_this_machine(wanted, cluster, sys.executable, ROOT)
    assert [told.software["python"][:7] for told in found.facts.values()] == ["CPython"]
