"""Write a gate's verdict as JUnit XML for CI systems, and as error lines of GitHub Actions.

The file has one <testsuite>. There is a <testcase> for the whole run, for each demand, for each publication rule and
for each node. The `type` of a <failure> is a name from GateFailure (gate/messages.py). In a <failure>, each fault has
one line of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from bench.core import printable
from bench.gate import page
from bench.gate.gate import GateResult
from bench.gate.messages import FAILURES, FaultCode
from bench.gate.nodes import NodeStatus
from bench.gate.rules import GateFault

_MOST_LINES = 200  # the text of one failure has at most this many lines


def render(gate: GateResult, timestamp: str) -> bytes:
    """Return the whole file. `timestamp`: a time in UTC in the format ISO 8601, without a time zone."""
    suite = ElementTree.Element("testsuite", name=_clean(f"bench gate {gate.run}"))
    failed = _case(suite, "run", "the run as a whole", _named(gate.faults), [page.sentence(one) for one in gate.faults])
    for demand in gate.judged:
        faults = demand.faults
        if not faults and not demand.passed:
            faults = (GateFault(FaultCode.NOTHING_JUDGED),)
        title = f"{demand.rule}: {demand.limit.metric} {demand.limit.text}"
        failed += _case(suite, "rules", title, _named(faults), [page.sentence(fault, demand) for fault in faults])
    for finding in gate.findings:
        title = f"{finding.rule.number} {finding.rule}"
        lines = [page.sentence(fault) for fault in finding.faults]
        failed += _case(suite, "publication", title, _named(finding.faults), lines)
    for node in gate.nodes:
        lines = [reason.text for reason in node.reasons]
        if node.status == NodeStatus.FAILED:
            names = [reason.failure or reason.code for reason in node.reasons]
            failed += _case(suite, "nodes", node.host, names, lines)
        elif node.status == NodeStatus.PASSED:
            _case(suite, "nodes", node.host, (), [])
        else:
            case = ElementTree.SubElement(
                suite, "testcase", classname="bench.gate.nodes", name=_clean(node.host), time="0"
            )
            ElementTree.SubElement(case, "skipped", message=_clean("; ".join(lines)))
    skipped = len(suite.findall("testcase/skipped"))
    return _whole(suite, failures=failed, errors=0, skipped=skipped, timestamp=timestamp)


def broken(name: str, what: str, timestamp: str) -> bytes:
    """Return a file with one test case in state `error`, for a run that could not be judged.

    The file replaces an older file that may show that an earlier run passed.
    """
    suite = ElementTree.Element("testsuite", name=_clean(f"bench gate {name}"))
    case = ElementTree.SubElement(suite, "testcase", classname="bench.gate.run", name="the gate itself", time="0")
    ElementTree.SubElement(case, "error", message=_clean(what), type="gate-not-run").text = _clean(what)
    return _whole(suite, failures=0, errors=1, skipped=0, timestamp=timestamp)


def github_lines(gate: GateResult) -> list[str]:
    """Return a line `::error title=...::...` for each name of a failure, escaped as GitHub's runner requires."""
    lines = []
    for name in gate.names:
        message = "\n".join([FAILURES[name], *page.sentences(gate, name)])
        lines.append(github_line(f"bench gate: {name}", message))
    if not gate.passed and not lines:
        lines.append(github_line("bench gate", page.conclusion(gate)))
    return lines


def github_line(title: str, message: str) -> str:
    """Return one workflow command. GitHub's toolkit escapes % \\r \\n in data, and also : and , in properties."""
    title, message = printable.printable(title), printable.lines(message)
    data = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    name = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
    return f"::error title={name}::{data}"


def _named(faults: Sequence[GateFault]) -> list[str]:
    return [fault.name for fault in faults]


def _case(suite: ElementTree.Element, kind: str, title: str, names: Sequence[str], lines: Sequence[str]) -> int:
    """Add a test case. Return 1 if it failed, else 0. `names`, `lines`: the names of the failures, and their texts."""
    case = ElementTree.SubElement(suite, "testcase", classname=f"bench.gate.{kind}", name=_clean(title), time="0")
    if not names:
        return 0
    counts = ", ".join(f"{name} ({names.count(name)})" for name in dict.fromkeys(names))
    failure = ElementTree.SubElement(case, "failure", message=_clean(f"{counts}: {lines[0]}"), type=_clean(names[0]))
    more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    failure.text = _clean("\n".join([*lines[:_MOST_LINES], *more]))
    return 1


def _whole(suite: ElementTree.Element, *, failures: int, errors: int, skipped: int, timestamp: str) -> bytes:
    counts = {"tests": str(len(suite.findall("testcase"))), "failures": str(failures), "errors": str(errors)}
    for name, value in {**counts, "skipped": str(skipped), "time": "0", "timestamp": timestamp}.items():
        suite.set(name, value)
    suites = ElementTree.Element("testsuites", {"name": "bench gate", **counts, "time": "0"})
    suites.append(suite)
    ElementTree.indent(suites)
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _clean(text: str) -> str:
    """Replace characters that XML 1.0 forbids (control characters and surrogates) by a visible mark."""
    return "".join(letter if _allowed(ord(letter)) else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _allowed(code: int) -> bool:
    return code in (0x9, 0xA, 0xD) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
