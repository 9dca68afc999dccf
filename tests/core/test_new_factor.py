"""A new factor is one field of Case and the transport that obeys it: everything else follows from the table.

The test adds a factor to a copy of the package with two edits, and uses it everywhere a factor can be used.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.copies import copy_package

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = "bench/core/case.py"
FIELD = """
    detour: int = factor(
        1, "--detour", help="how many times each message of a modelled run crosses its path (default 1)",
        parse=words.whole(1, "detour"), selectable=True, labelled=True)
    # fmt: on
"""
TRANSPORT = "bench/transports/model.py"
PLAIN = "        return tuple(seconds.tolist())\n"
OBEYING = "        return tuple(taken * self.options.case.detour for taken in seconds.tolist())\n"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more factor, in a folder with a scenario, a cluster and rules that use it."""
    folder = tmp_path_factory.mktemp("suite")
    copy_package(folder)
    edit(folder / TABLE, "    # fmt: on\n", FIELD.removeprefix("\n"))
    edit(folder / TRANSPORT, PLAIN, OBEYING)
    write(folder / "bench.yaml", "clusters: {two: {instance: p4d.24xlarge, nodes: 2, ranks_per_node: 8}}")
    for name, value in (("once", "1"), ("thrice", "3"), ("both", "[1, 3]")):
        write(
            folder / f"scenarios/{name}.yaml",
            f"measure: [{{pattern: allreduce, sizes: 1M, mode: isolated, detour: {value}}}]",
        )
    write(
        folder / "rules/detour.yaml",
        "rules: [{pattern: allreduce, detour: 3, mode: isolated, time: at most 1s}]",
    )
    return folder


def edit(path: Path, old: str, new: str) -> None:
    """The only edit of a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def python(suite: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with the copy of the package."""
    env = os.environ | {"PYTHONPATH": str(suite)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True, timeout=300, check=False)


def run(suite: Path, *words: str, module: str = "bench") -> subprocess.CompletedProcess[str]:
    """A command of the copy."""
    return python(suite, "-m", module, *words)


def json_of(suite: Path, *words: str, module: str = "bench") -> Any:
    done = run(suite, *words, "--format", "json", module=module)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def modelled(suite: Path, scenario: str) -> Path:
    """The folder of a modelled run of a scenario."""
    results = suite / f"results-{scenario}"
    if not results.exists():
        done = run(suite, "run", scenario, "--cluster", "two", "--model", "--no-plots", "--results", str(results))
        assert done.returncode == 0, done.stderr
    [folder] = results.glob("*-*")
    return folder


def test_it_is_an_option_of_every_pattern_and_the_transport_obeys_it(suite: Path) -> None:
    words = ("--transport", "model", "--instance", "p4d.24xlarge", "--sizes", "1M", "--mode", "isolated")
    plain = json_of(suite, *words, module="bench.allreduce")["summaries"][0]["median_s"]
    threefold = json_of(suite, *words, "--detour", "3", module="bench.allreduce")["summaries"][0]["median_s"]
    assert threefold == pytest.approx(3 * plain)


def test_it_is_a_key_of_scenarios_an_argument_of_commands_and_a_part_of_job_names(suite: Path) -> None:
    plan = json_of(suite, "plan", "both", "--cluster", "two", "--model")
    assert [job["name"] for job in plan["jobs"]] == ["allreduce-model-2x8", "allreduce-model-2x8-detour3"]
    assert [job["case"][-2:] == ["--detour", "3"] for job in plan["jobs"]] == [False, True]
    wrong = suite / "scenarios/wrong.yaml"
    write(wrong, "measure: [{pattern: allreduce, detour: 0}]")
    done = run(suite, "plan", "wrong", "--cluster", "two", "--model")
    assert done.returncode == 2 and "wrong.yaml:1:40: measure.0.detour: " in done.stderr


def test_the_header_of_a_results_file_holds_it(suite: Path) -> None:
    [file] = modelled(suite, "thrice").glob("*.jsonl")
    header = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert header["case"][-2:] == ["--detour", "3"]


@pytest.mark.slow
def test_runs_that_differ_in_it_are_compared_only_if_it_is_named(suite: Path) -> None:
    runs = [str(modelled(suite, name)) for name in ("once", "thrice")]
    refused = run(suite, "compare", *runs)
    assert refused.returncode == 2 and "--allow-diff detour" in refused.stderr
    compared = json_of(suite, "compare", *runs, "--allow-diff", "detour")
    assert [row["differs"] for row in compared["rows"]] == [{"detour": {"base": "1", "new": "3"}}]


def test_a_gate_rule_selects_rows_by_it(suite: Path) -> None:
    for scenario, failure in (("thrice", "modelled"), ("once", "missing-rows")):
        done = run(suite, "gate", str(modelled(suite, scenario)), "--rules", "detour", "--format", "json")
        assert failure in json.loads(done.stdout)["failures"]


@pytest.mark.slow
def test_a_figure_labels_it(suite: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bench.results import curves; from bench.results import collect\n"
        "print(sorted(map(str, curves.labels(collect.document(Path(sys.argv[1]))).values())))"
    )
    folder = str(modelled(suite, "both"))
    done = python(suite, "-c", code, folder)
    assert [label.split(", ") for label in ast.literal_eval(done.stdout)] == [
        ["model (modelled: ideal links)"],
        ["model", "detour 3 (modelled: ideal links)"],
    ]
