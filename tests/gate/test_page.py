"""The golden page, and that nothing but the page depends on words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.commands.gate import plain
from bench.core.codes import Code
from bench.core.errors import EXIT_DONE, EXIT_VERDICT
from bench.core.record import Failure, Skip
from bench.gate import junit, page
from bench.gate.gate import GateResult
from bench.gate.messages import FaultCode, GateFailure, NodeCode
from bench.gate.publication_rules import PublicationRule
from bench.gate.remeasured import Retest
from tests.gate.gate_runs import RULES, SIZES, Run, good, header, judge, pairs, record, times
from tests.gate.test_gate import JOB, WAYS

GOLDEN = Path(__file__).with_name("golden_page.txt")
PUBLICATION = "publish: [ratios, completeness, verdicts, bounds]\n"
TEMPLATES: tuple[type[Code], ...] = (GateFailure, FaultCode, NodeCode, PublicationRule)


def slow_pairs() -> Run:
    run = good()
    run.jobs.append(pairs({2: 0.5}))
    return run


def retested() -> Run:
    run = slow_pairs()
    job, head, again = pairs({}, ranks=(0, 1, 2, 3))
    run.jobs.append((f"{job}#2", head, again))
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {job: ("h2",)}, ("slow-part",)),)
    run.jobs.append((f"{JOB}#2", header(), [record("pipelined", SIZES[1], times(3e-4))]))
    return run


def in_many_ways() -> Run:
    """Failures of the run, of rows and of pairs at once."""
    run = slow_pairs()
    run.outcomes["barrier-mpi-2x2"] = {"exit_code": 4, "seconds": 1.0, "what": "rank 1 died", "host": "h1"}
    run.records(lambda one: one.group == "world" and one.mode == "isolated", lambda one: replace(one, verified=None))
    run.jobs[0][2].append(record("pipelined", 1 << 22, samples=None, failed=Failure("out of memory", 2, "h1")))
    run.jobs[0][2].append(record("pipelined", 1 << 23, samples=None, skipped=Skip.uncoded("no time left")))
    run.warnings = ("allreduce.jsonl:7: a line cut short was left out",)
    return run


CASES: list[tuple[str, Run, str]] = [
    ("passed", good(), RULES),
    ("too low", good(), RULES.replace("50%", "90%")),
    ("slow pairs", slow_pairs(), RULES),
    ("retested", retested(), RULES),
    ("in many ways", in_many_ways(), RULES + "diagnose: true\nexpect: {hosts: 'h[0-9]', cluster: other}\n"),
    ("a publication", good(), PUBLICATION),
    ("rules and a publication", good(), RULES + PUBLICATION),
]


def pages(folder: Path) -> str:
    """The table of every case, and one in Markdown."""
    parts = []
    for name, run, rules in CASES:
        parts.append(f"== {name} ==\n{page.table(judge(run, folder, rules))}")
    parts.append(f"== in Markdown ==\n{page.markdown(judge(in_many_ways(), folder, RULES + PUBLICATION))}")
    return "\n".join(parts)


def test_the_pages_are_the_golden_page(tmp_path: Path) -> None:
    """If you reword a template, write the new page: python -m tests.gate.test_page."""
    assert pages(tmp_path) == GOLDEN.read_text(encoding="utf-8")


def without_words(value: Any) -> Any:
    """A JSON document without its texts for people."""
    if isinstance(value, dict):
        return {key: without_words(each) for key, each in value.items() if key not in ("what", "reasons", "conclusion")}
    return [without_words(each) for each in value] if isinstance(value, (list, tuple)) else value


def outcome(verdict: GateResult) -> tuple[Any, ...]:
    """All of a verdict that program logic and CI systems read."""
    nodes = [[reason.code for reason in node.reasons] for node in verdict.nodes]
    names = [case.get("name") for case in _cases(verdict)]
    return without_words(plain(verdict)), EXIT_DONE if verdict.passed else EXIT_VERDICT, nodes, names


def _cases(verdict: GateResult) -> Iterator[Any]:
    from xml.etree import ElementTree

    return ElementTree.fromstring(junit.render(verdict, "2026-01-03T00:00:00")).iter("testcase")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_rewording_every_template_changes_only_pages(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [(run, rules) for _, run, rules in CASES]
    for _, change, rules in WAYS:
        run = good()
        change(run)
        runs.append((run, rules))
    before = [outcome(judge(run, tmp_path, rules)) for run, rules in runs]
    shown = pages(tmp_path)
    words = random.Random(seed)
    for codes in TEMPLATES:
        for code in codes:
            monkeypatch.setattr(code, "template", "".join(words.choices("abcdefghij klmnop", k=words.randint(1, 40))))
    assert [outcome(judge(run, tmp_path, rules)) for run, rules in runs] == before
    assert pages(tmp_path) != shown


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(pages(Path(folder)), encoding="utf-8")
