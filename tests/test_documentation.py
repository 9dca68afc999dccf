"""The documentation is true: links resolve, keys are told, commands parse, examples work, the table was measured."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.config.clusters import load_clusters
from bench.config.scenario import load_scenario
from bench.core import plugins
from bench.core.case_argv import from_argv
from bench.gate.messages import FAILURES
from bench.gate.rules_file import load_rules
from bench.results.document import Summary
from tests.copies import copy_package

ROOT = Path(__file__).resolve().parent.parent
DOCSTRING = '"""'
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(page: Path, language: str) -> list[str]:
    parts = page.read_text(encoding="utf-8").split("```")
    inside = [part.partition("\n") for part in parts[1::2]]
    return [text for word, _, text in inside if word == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_every_field_of_a_summary_is_explained() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [field.name for field in dataclasses.fields(Summary) if f"`{field.name}`" not in text] == []


def test_the_examples_of_cluster_and_scenario_are_read_and_name_every_key(tmp_path: Path) -> None:
    clusters, scenario, *more = _blocks(ROOT / "docs" / "running.md", "yaml")
    for entry in (*more, *_blocks(ROOT / "docs" / "tour.md", "yaml")):
        (tmp_path / "bench.yaml").write_text(entry, encoding="utf-8")
        assert load_clusters(tmp_path / "bench.yaml")
    (tmp_path / "bench.yaml").write_text(clusters, encoding="utf-8")
    (tmp_path / "example.yaml").write_text(scenario, encoding="utf-8")
    assert set(load_clusters(tmp_path / "bench.yaml")) == {"lab", "pair"}
    example = load_scenario(str(tmp_path / "example.yaml"), tmp_path)
    assert example.measurements[0].env == {"NCCL_ALGO": ("Ring", "Tree")}
    for key in (
        "description",
        "budget",
        "max_seconds",
        "launches",
        "patterns",
        "transports",
        "sizes",
        "mode",
        "topology",
    ):
        assert f"{key}: " in scenario


@pytest.mark.parametrize(
    "page", PAGES[:1] + [ROOT / "docs" / "running.md", ROOT / "docs" / "gate.md"], ids=lambda page: page.name
)
def test_commands_in_the_text_can_be_parsed(page: Path) -> None:
    lines = [line for block in _blocks(page, "sh") for line in block.splitlines()]
    for line in lines:
        words = shlex.split(line, comments=True)
        names = [word.removeprefix("bench.") for word in words if word.startswith("bench.")]
        if names and "--help" not in words:
            after = words[words.index(f"bench.{names[0]}") + 1 :]
            if "--format" in after:
                del after[after.index("--format") : after.index("--format") + 2]
            assert from_argv([names[0], *after]).pattern == names[0]
        elif words[:3] == ["python", "-m", "bench"]:
            plugins.check("command", words[3])
        elif "linkbench" in words:
            command = words[words.index("linkbench") + 1]
            if command != "--help":
                plugins.check("command", command)


def test_the_gate_s_rules_are_read_and_every_way_to_fail_is_told(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    numbers = []
    for example in _blocks(ROOT / "docs" / "gate.md", "yaml"):
        (tmp_path / "rules.yaml").write_text(example, encoding="utf-8")
        numbers.append(len(load_rules(tmp_path / "rules.yaml").rules))
    assert numbers == [1, 4]
    assert [f"| `{name}` | {what} |" for name, what in FAILURES.items() if f"| `{name}` | {what} |" not in text] == []


def test_the_example_pattern_runs(tmp_path: Path) -> None:
    example = _blocks(ROOT / "docs" / "extending.md", "python")[0]
    copy_package(tmp_path)
    (tmp_path / "bench" / "skip.py").write_text(example, encoding="utf-8")
    words = "-m bench.skip --transport model --instance p4d.24xlarge --sizes 1M"
    done = subprocess.run((sys.executable, *words.split()), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "modelled" in done.stdout


def test_the_examples_of_extending_pass_the_linter(tmp_path: Path) -> None:
    """An example that is part of a file has no docstring, and may use names of the rest of the file."""
    pytest.importorskip("ruff")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    names: dict[bool, list[str]] = {True: [], False: []}
    for number, text in enumerate(_blocks(ROOT / "docs" / "extending.md", "python")):
        name = f"example{number}.py"
        (tmp_path / name).write_text(text, encoding="utf-8")
        names[text.startswith(DOCSTRING)].append(name)
    for words in (
        ("check", *names[True]),
        ("check", "--extend-ignore=D100,F821", *names[False]),
        ("format", "--check", *names[True], *names[False]),
    ):
        command = (sys.executable, "-m", "ruff", *words)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_in_the_readme_was_measured() -> None:
    from bench.results import collect
    from bench.results.formats import table
    from bench.results.run_report import RunReport

    [block] = [block for block in _blocks(ROOT / "README.md", "") if "isolated" in block]
    [folder] = (ROOT / "results" / "reference").glob("main_*")
    printed = table.render(RunReport(collect.document(folder))).splitlines()
    shown = [line for line in block.splitlines() if not line.startswith("$ ") and line != "..."]
    assert [line for line in shown if line not in printed] == []
