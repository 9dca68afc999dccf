"""The first contact of two nodes as a whole, on two hosts without GPUs: every step starts and measures what it can."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bench.core.errors import EXIT_REFUSED, EXIT_USAGE
from bench.first_contact import plan_file
from bench.first_contact.messages import StepSkip, StepState
from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 50


def test_the_steps_of_two_nodes_run_from_the_first_to_the_last(testbed: Callable[..., Testbed], tmp_path: Path) -> None:
    bed = testbed(2)
    cluster = {"nodes": 2, "ranks_per_node": 1, "hosts": list(bed.hosts), "agent": bed.agent, "launcher": "torchrun"}
    cluster["env"] = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    (tmp_path / "bench.yaml").write_text(json.dumps({"clusters": {"bed": cluster}}))
    plan = yaml.safe_load(plan_file.OWN_PLAN.read_text(encoding="utf-8"))
    for step in plan["steps"].values():
        step |= {"limit_s": min(LIMIT_S, step.get("limit_s", LIMIT_S)), "least_s": 1}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, width=10_000))
    words = ["--steps", "plan.yaml", "--keep", "kept", "--cluster", "bed", "--config", "bench.yaml", "--budget", "400s"]
    command = [sys.executable, "-m", "bench", "doctor", "--first-contact", *words]
    done = bed.on(bed.hosts[0], command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, timeout_s=500)
    page = json.loads((tmp_path / "kept" / "page.json").read_text(encoding="utf-8"))
    assert page["variant"] == "nodes" and not page["not_reached"], done.err
    for step in page["steps"]:
        if step["name"] == "nodes-parity":
            assert step["skip"] == StepSkip.NO_TOOLS
        else:  # without GPUs, a scenario may take longer than this test has
            assert step["state"] in (StepState.PASSED, StepState.TIMED_OUT), step
            assert step["exit_code"] not in (EXIT_USAGE, EXIT_REFUSED), step
    assert {step["name"] for step in page["steps"] if step["state"] == StepState.PASSED} >= {"nodes-doctor"}
