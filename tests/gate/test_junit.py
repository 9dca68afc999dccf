"""JUnit as CI systems read it: counts that are right, any text inside, and GitHub's lines with their escapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gate import junit, page
from bench.gate.gate import GateResult
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
    """The suite, after holding all that every reader counts on."""
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


def test_a_pass_has_a_case_for_the_run_each_demand_and_each_node(tmp_path: Path) -> None:
    suite = parsed(junit.render(a_gate(tmp_path), WHEN))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "0", "0")
    assert suite.get("timestamp") == WHEN


def test_a_failure_bears_its_name_as_type_and_its_rows_as_text(tmp_path: Path) -> None:
    run = good()
    run.told.append(pairs({2: 0.5}))
    suite = parsed(junit.render(judge(run, tmp_path, RULES.replace("50%", "90%")), WHEN))
    failures = {case.get("name"): case[0] for case in suite if len(case)}
    assert [failure.get("type") for failure in failures.values()] == ["slow-part", "too-low", "slow-part"]
    assert "h2" in failures
    text = failures["world: busbw at least 90% of bound"].text or ""
    assert "allreduce-mpi-2x2 1M pipelined: busbw at least 90% of bound is asked for, it is 77.9%" in text


def test_a_gate_that_could_not_be_asked_is_an_error_not_a_pass() -> None:
    suite = parsed(junit.broken("run", "rules.yaml:3:1: no key is called 'x'", WHEN))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


@given(text=st.text(st.characters(codec=None)))
def test_any_text_survives_as_xml(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    gate = a_gate(tmp_path_factory.mktemp("gate"))
    odd = replace(gate, run=text, faults=(GateFault("failed-job", text),))
    [failure] = parsed(junit.render(odd, WHEN)).findall("testcase/failure")
    assert failure.get("type") == "failed-job"
    parsed(junit.broken(text, text, WHEN))


def test_control_characters_and_markup_are_shown_and_not_obeyed() -> None:
    suite = parsed(junit.broken("a\x00b", '\x1b[31m<failure message="x"/>]]>&', WHEN))
    [error] = suite.findall("testcase/error")
    assert error.text == '\N{REPLACEMENT CHARACTER}[31m<failure message="x"/>]]>&'


def test_github_lines_are_one_line_each_with_their_escapes(tmp_path: Path) -> None:
    gate = a_gate(tmp_path, RULES.replace("50%", "90%"))
    [line] = junit.github_lines(gate)
    assert line.startswith("::error title=bench gate%3A too-low::below the least") and "\n" not in line
    assert "%0A" in line and "at least 90%25 of bound" in line
    assert junit.github_line("a:b,c%", "x\r\ny%") == "::error title=a%3Ab%2Cc%25::x%0D%0Ay%25"
    assert junit.github_lines(a_gate(tmp_path)) == []


def test_the_table_shows_each_demand_and_names_failures_first(tmp_path: Path) -> None:
    lines = page.table(a_gate(tmp_path, RULES.replace("50%", "90%"))).splitlines()
    assert lines[0].startswith("# gate FAILED: run by rules: too-low (2)")
    assert lines[1].startswith("FAILED too-low")
    [demand] = [line for line in lines if "busbw at least 90% of bound" in line and not line.startswith("  -")]
    for word in ("77.9%", "-13.5%", " 2 ", "FAIL too-low", "allreduce-mpi-2x2"):
        assert word in demand
    assert "nodes passed: 0 of 2" in lines
    [nodes] = [line for line in lines if line.startswith("node")][1:]
    assert nodes == "nodes h[0-1] not judged: no row of its own met a demand, and no pairs cleared it"
    run = good()
    run.told.append(pairs({}))
    assert "nodes passed: 6 of 6 (h0, h1, h2, h3, h4, h5)" in page.table(judge(run, tmp_path)).splitlines()
    passed = page.markdown(a_gate(tmp_path))
    assert passed.startswith("# gate passed") and "| world | busbw at least 50% of bound | 77.9% |" in passed
