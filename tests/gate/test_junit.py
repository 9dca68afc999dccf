"""JUnit files and GitHub lines: correct counts, any text inside, and escapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gate import junit
from bench.gate.gate import GateResult
from bench.gate.messages import FaultCode
from bench.gate.rules import GateFault
from tests.gate.gate_runs import RULES, good, judge, pairs

WHEN = "2026-01-03T00:00:00"
# What the schema of Jenkins' xUnit plug-in (junit-10.xsd) knows of each element.
KNOWN = {
    "testsuites": {"name", "tests", "failures", "errors", "time", "disabled"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id", "package"},
    "testcase": {"name", "classname", "time", "status", "assertions", "file", "line"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message", "type"},
}


def parsed(content: bytes) -> ElementTree.Element:
    """The suite, after checking what every reader relies on."""
    suites = ElementTree.fromstring(content)
    [suite] = suites
    for element in suites.iter():
        assert set(element.attrib) <= KNOWN[element.tag], element.tag
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(name, "-1")) == len(suite.findall(f"testcase/{tag}"))
    assert int(suite.get("tests", "-1")) == len(suite.findall("testcase")) > 0
    assert suites.get("tests") == suite.get("tests") and suites.get("failures") == suite.get("failures")
    assert all(len(case) <= 1 and case.get("name") and case.get("classname") for case in suite)
    names = [(case.get("classname"), case.get("name")) for case in suite]
    assert len(names) == len(set(names))
    return suite


def a_gate(folder: Path, rules: str = RULES) -> GateResult:
    return judge(good(), folder, rules)


def test_the_run_each_demand_and_each_node_have_a_case(tmp_path: Path) -> None:
    suite = parsed(junit.render(a_gate(tmp_path), WHEN))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "0", "0")
    assert suite.get("timestamp") == WHEN


def test_a_failure_has_its_name_as_type_and_its_rows_as_text(tmp_path: Path) -> None:
    run = good()
    run.jobs.append(pairs({2: 0.5}))
    suite = parsed(junit.render(judge(run, tmp_path, RULES.replace("50%", "90%")), WHEN))
    failures = {case.get("name"): case[0] for case in suite if len(case)}
    assert [failure.get("type") for failure in failures.values()] == ["slow-part", "too-low", "slow-part"]
    assert "h2" in failures
    text = failures["world: busbw at least 90% of bound"].text or ""
    for fact in ("allreduce-mpi-2x2", "1M", "pipelined", "77.9%"):
        assert fact in text


def test_a_gate_that_judged_nothing_is_an_error() -> None:
    suite = parsed(junit.broken("run", "rules.yaml:3:1: there is no key 'x'", WHEN))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


@given(text=st.text(st.characters(codec=None)))
def test_any_text_is_valid_xml(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    gate = a_gate(tmp_path_factory.mktemp("gate"))
    odd = replace(gate, run=text, faults=(GateFault(FaultCode.JOB_FAILED, {"text": text}),))
    [failure] = parsed(junit.render(odd, WHEN)).findall("testcase/failure")
    assert failure.get("type") == "failed-job"
    parsed(junit.broken(text, text, WHEN))


def test_control_characters_and_markup_are_shown_as_text() -> None:
    suite = parsed(junit.broken("a\x00b", '\x1b[31m<failure message="x"/>]]>&', WHEN))
    [error] = suite.findall("testcase/error")
    assert error.text == '\N{REPLACEMENT CHARACTER}[31m<failure message="x"/>]]>&'


def test_a_github_line_is_one_escaped_line(tmp_path: Path) -> None:
    gate = a_gate(tmp_path, RULES.replace("50%", "90%"))
    [line] = junit.github_lines(gate)
    assert line.startswith("::error title=bench gate%3A too-low::") and "\n" not in line
    assert "%0A" in line and "90%25 of bound" in line
    assert junit.github_line("a:b,c%", "x\ny%") == "::error title=a%3Ab%2Cc%25::x%0Ay%25"
    assert junit.github_line("a\r\n::b", "x\r\n::y") == "::error title=a\\r\\n%3A%3Ab::x\\r%0A\\x3a:y"
    assert junit.github_lines(a_gate(tmp_path)) == []
