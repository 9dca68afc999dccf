"""Damage the JSON files of a run's folder, and check how each command that reads the folder ends."""

from __future__ import annotations

import contextlib
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from bench.controller.jobs import JobSpec
from bench.core.errors import BenchError, UsageError
from bench.gate.remeasured import Retest
from bench.store import runs
from tests.fuzz import mutations

NAMES = ("plan.json", "outcomes.json", "retests.json")
JOB = "kinds"  # the only job; its results file is that of mutations.base_lines
_CLUSTER = "no-such-site"  # not in any bench.yaml, so --resume and --retest refuse even an undamaged plan


def files() -> dict[str, Any]:
    """The JSON of a good folder, with a value for every key that a run writes."""
    case = ["allreduce", "--transport", "mpi", "--sizes", "1K,1M"]
    job = {
        "name": JOB,
        "case": case,
        "world": {"num_nodes": 2, "ranks_per_node": 2},
        "launcher": "mpirun",
        "command": ["mpirun", "-n", "4"],
        "script": "mpirun -n 4",
        "factors": {"NCCL_ALGO": "Ring"},
        "launch": 1,
        "tool": "",
        "num_rounds": 1,
        "num_rows": 2,
        "estimate_s": 4.5,
    }
    cluster = {
        "name": _CLUSTER,
        "instance": None,
        "nodes": 2,
        "ranks_per_node": 2,
        "launcher": "auto",
        "python": None,
        "mpirun": None,
        "setup": ["true"],
        "env": {"A": "1"},
        "options": {"partition": "x"},
        "hosts": ["host0", "host1"],
        "agent": ["ssh"],
        "port": 29500,
        "links": {"nic_bytes_per_s": 1e9},
        "nics": ["eth0"],
        "racks": {"r0": ["host0", "host1"]},
        "site_instance": None,
        "differs": "",
    }
    plan = {
        "schema": runs.PLAN_SCHEMA,
        "scenario": "main",
        "scenario_text": "patterns: [allreduce]\n",
        "cluster": cluster,
        "modelled": False,
        "budget_s": 60.0,
        "estimate_s": 4.5,
        "notes": ["a note"],
        "remarks": [{"code": "sizes-thinned", "facts": {"before": 9, "after": 3}, "text": "a note"}],
        "skipped": [{"what": "gloo", "reason": "no torch", "code": "no-torch", "facts": {}}],
        "jobs": [job],
    }
    ended = {"job": JOB, "exit_code": 4, "seconds": 3.5, "what": "rank 1 died", "rank": 1, "host": "host1"}
    ended |= {"refused": False, "code": "died", "facts": {"signal": 9}}
    retest = {
        "started": "2026-01-02T03:04:05+00:00",
        "jobs": {JOB: ["host1"]},
        "reasons": ["FAIL"],
        "failures": {"too-low": 2},
        "outcomes_before": {JOB: ended},
    }
    return {"plan.json": plan, "outcomes.json": {JOB: ended}, "retests.json": [retest]}


@cache
def _results() -> bytes:
    return b"\n".join(mutations.base_lines()[JOB]) + b"\n"


def write(folder: Path) -> None:
    """Write a good folder."""
    for name, value in files().items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    (folder / f"{JOB}.jsonl").write_bytes(_results())


def damaged(name: str, seed: int) -> bytes:
    """The content of one file after one to three random mutations."""
    return b"\n".join(mutations.damaged([json.dumps(files()[name]).encode()], seed))


def read(folder: Path) -> bool:
    """Read all three files, and what commands make of them; False if a reader refused. Other errors are defects."""
    try:
        plan = runs.read_plan(folder)
        runs.remarks_of(plan)
        for end in runs.outcomes_or_error(folder).values():
            runs.failure_of({"what": "", **end})
        list(map(Retest.read, runs.read_retests(folder)))
    except UsageError as error:
        assert str(folder) in str(error) and len(str(error)) < len(str(folder)) + 400
        return False
    if not plan.get("imported"):
        for job in plan["jobs"]:
            with contextlib.suppress(UsageError):  # a case of another version
                JobSpec.from_plain(job)
    return True


def run_commands(folder: Path, draw: random.Random, all_of_them: bool = False) -> list[str]:
    """Run commands on a folder. Returns the problems."""
    try:
        refused = not read(folder)
    except BenchError as error:
        return [f"not a UsageError: {error!r}"]
    name, rules = str(folder), str(Path(__file__).parents[2] / "rules" / "publication.yaml")
    always = ["gate", name, "--rules", rules, "--format", "json"]
    rest = [
        ["report", name, "--format", "json"],
        ["report", name, "--certificate", rules],
        ["report", name, "--certificate"],
        ["gate", name, "--rules", str(Path(rules).with_name("acceptance-no-gpu.yaml"))],
        ["lint", name, "--format", "json"],
        ["diagnose", name, "--format", "json"],
        ["explain", name, "--format", "json"],
        ["compare", name, name, "--format", "json"],
        ["run", "--resume", name],
        ["run", "--retest", name],
    ]
    problems = []
    for argv in [always, *(rest if all_of_them else draw.sample(rest, 2))]:
        end = mutations.ended(argv)
        found = mutations.problem(end, folder, refused, allowed=(3,) if argv[0] == "run" else ())
        if found is not None:
            problems.append(f"{' '.join(argv)}: {found}")
    return problems
