"""Write the gate's pages as text and Markdown.

The pages show failures by name, the worst row of each demand, nodes and retests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from bench.core import hostlist, printable
from bench.core.units import format_duration, format_rate, format_size
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.gate.gate import GateResult, JudgedDemand
from bench.gate.messages import FAILURES, GateFailure
from bench.gate.nodes import NodeStatus, NodeVerdict
from bench.gate.publication import FindingStatus, PublicationFinding
from bench.gate.remeasured import Superseded
from bench.gate.rules import RATES, Demand, GateFault
from bench.results.document import Document, Summary
from bench.results.text import NOTHING, count

_MOST_FAULTS = 5  # at most this many faults of one name are shown; JSON and CSV have all faults
_MOST_NODES = 16
_MOST_JOBS = 8  # at most this many jobs are shown for one finding
# a run with one of these failures has no plan that could be carried out again
_CANNOT_REPEAT = {
    GateFailure.NO_PLAN,
    GateFailure.UNREADABLE_RUN,
    GateFailure.IMPORTED,
    GateFailure.TRUNCATED_IMPORT,
    GateFailure.MODELLED,
}
_TITLES = ("rule", "expected", "got", "margin", "rows", "verdict", "worst row")


def table(gate: GateResult, width: int = PIPED_WIDTH) -> str:
    """Return the verdict, the failures, and the tables of demands, publication rules and nodes.

    `width`: the number of characters in a line.
    """
    lines = wrapped(conclusion(gate), width, "#   ", "# ")
    if gate.rules.description:
        lines += wrapped(f"rules {gate.rules.name}: {gate.rules.description}", width, "#   ", "# ")
    for name in _names(gate):
        lines += wrapped(f"FAILED {name}: {FAILURES[name]}", width, "  ")
        for sentence in sentences(gate, name):
            lines += wrapped(sentence, width, "    ", "  - ")
    if gate.judged:
        lines += ["", *_demands(gate.judged, width)]
    if gate.findings:
        lines += ["", *_finding_lines(gate.findings, width)]
    if gate.nodes:
        lines += ["", *_node_lines(gate.nodes, width)]
    for line in (*remarks(gate), *next_steps(gate)):
        lines += wrapped(line, width, "#   ", "# ")
    return printable.joined(lines) + "\n"


def markdown(gate: GateResult) -> str:
    """Return the same content as `table`, as Markdown."""
    lines = [f"# {conclusion(gate)}", "", gate.rules.description, ""]
    for name in _names(gate):
        lines += [
            f"- **{name}**: {FAILURES[name]}",
            *(f"  - {printable.markdown(each)}" for each in sentences(gate, name)),
        ]
    if gate.rules.rules or not gate.findings:
        lines += ["", *markdown_demands(gate), "", *markdown_nodes(gate.nodes), ""]
    if gate.findings:
        lines += ["", *_markdown_findings(gate.findings), ""]
    lines += [f"- {printable.markdown(line)}" for line in (*remarks(gate), *next_steps(gate))]
    return printable.joined(lines) + "\n"


def markdown_demands(gate: GateResult) -> list[str]:
    """Return a Markdown table with a row for each demand."""
    if not gate.judged:
        return ["No demand was judged."]
    return _markdown(_TITLES, [_cells(demand) for demand in gate.judged])


def markdown_nodes(nodes: Sequence[NodeVerdict]) -> list[str]:
    """Return a Markdown table with a row for each node."""
    rows = []
    for node in nodes:
        reasons = "; ".join(reason.text for reason in node.reasons)
        rows.append((node.host, node.status, str(node.num_rows), reasons or NOTHING))
    return _markdown(("node", "verdict", "rows", "reasons"), rows) if rows else ["No node is known."]


def conclusion(gate: GateResult) -> str:
    """Return the verdict in one sentence."""
    if gate.passed:
        asked = []
        if gate.judged:
            asked.append(count(len(gate.judged), "demand"))
        if gate.findings:
            asked.append(kept(gate.findings))
        return f"gate passed: {gate.run} by {gate.rules.name}, {', '.join(asked)}"
    names = ", ".join(f"{name} ({number})" if number > 1 else name for name, number in gate.names.items())
    if gate.findings:
        names += f" ({kept(gate.findings)})"
    return f"gate FAILED: {gate.run} by {gate.rules.name}: {names or 'nothing was judged'}"


def kept(findings: Sequence[PublicationFinding]) -> str:
    """Count the publication rules that the run keeps, and list the numbers of the broken rules.

    Example: "11 of 12 rules kept; broken: 2".
    """
    broken = [str(finding.rule.number) for finding in findings if finding.status == FindingStatus.FAILED]
    passed = sum(finding.status == FindingStatus.PASSED for finding in findings)
    unknown = sum(finding.status == FindingStatus.NOT_KNOWN for finding in findings)
    rest = len(findings) - passed - len(broken) - unknown
    words = f"{passed} of {len(findings)} rules kept"
    if rest:
        words += f", {rest} not applicable"
    if unknown:
        words += f", {unknown} not known"
    return f"{words}; broken: {', '.join(broken)}" if broken else words


def remarks(gate: GateResult) -> list[str]:
    """Return sentences about retests, about modelled rows, and about the rows that no rule judges."""
    lines = [f"retest of {retest.started}, after: {'; '.join(retest.reasons)}" for retest in gate.retests]
    lines += _replaced_pairs(each for each in gate.superseded if each.now is None)
    alone = [replaced(each) for each in gate.superseded if each.now is not None]
    lines += alone[:_MOST_NODES]
    if len(alone) > _MOST_NODES:
        lines.append(f"and {len(alone) - _MOST_NODES} more rows were measured again")
    modelled = [rule.name for rule in gate.rules.rules if rule.modelled]
    if modelled:
        lines.append(f"MODELLED rows are judged by {', '.join(modelled)}: nothing was measured")
    if gate.unjudged:
        lines.append(
            f"{count(gate.unjudged, 'row')} of the run {'is' if gate.unjudged == 1 else 'are'} judged by no rule"
        )
    return lines


def next_steps(gate: GateResult) -> list[str]:
    """Return the command to run after a failed gate. Return an empty list if the run cannot be measured again."""
    if gate.passed or not gate.judged or not _CANNOT_REPEAT.isdisjoint(gate.names):
        return []
    return [f"next: linkbench run --retest {gate.run}  (after a repair, with the same --rules: only what failed)"]


def replaced(superseded: Superseded) -> str:
    """Describe a row that a retest replaced: its first result, and the new result that the gate judges.

    For example: `first result of allreduce 1M pipelined world: 3.1 GB/s; judged is allreduce-mpi-2x2#2: 9.8 GB/s`.
    """
    row = superseded.first
    now = f": {_figure(superseded.now)}" if superseded.now else ", the pairs of its suspects"
    where = f"{row.pattern} {format_size(row.payload_bytes)} {row.mode} {row.group}"
    return f"first result of {where}: {_figure(row)}; judged is {superseded.job}{now}"


def sentences(gate: GateResult, name: GateFailure, most: int = _MOST_FAULTS) -> list[str]:
    """Describe each fault that has this name in one sentence.

    If there are more than `most` sentences, the other faults are only counted.
    """
    found: dict[str, None] = {}
    for fault in gate.faults:
        if fault.name == name:
            found[sentence(fault)] = None
    for demand in gate.judged:
        for fault in demand.faults:
            if fault.name == name:
                found[sentence(fault, demand)] = None
    for finding in gate.findings:
        for fault in finding.faults:
            if fault.name == name:
                found[sentence(fault)] = None
    lines = list(found)
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return lines[:most] + more


def sentence(fault: GateFault, demand: JudgedDemand | None = None) -> str:
    """Describe one fault with its rule, its row and its figure.

    `demand`: the demand that the row did not meet. None if the fault concerns the whole run.
    """
    words = [f"[{demand.rule}]"] if demand else []
    place = [fault.job or fault.pattern or ""]
    if fault.payload_bytes:
        place.append(format_size(fault.payload_bytes))
    place.append(fault.mode or "")
    if fault.group not in (None, "world"):
        place.append(str(fault.group))
    if any(place):
        words.append(" ".join(filter(None, place)) + ":")
    figure = ""
    if demand and fault.got is not None and fault.limit is not None:
        figure = f", measured {quantity(fault.got, demand.limit)}"
    return " ".join([*words, fault.what + figure])


def quantity(value: float, limit: Demand) -> str:
    """Format a figure in the unit of its demand: a rate, a time or a percentage.

    If the demand refers to a baseline, the figure is a ratio.
    """
    if limit.of == "baseline":
        return f"{value:.3f} x"
    if limit.of:
        return f"{100 * value:.1f}%"
    return format_rate(value) if limit.metric in RATES else format_duration(value)


def _names(gate: GateResult) -> list[GateFailure]:
    """Return the names of failures that the page lists one by one. Publication findings are shown separately."""
    return [name for name in gate.names if name != GateFailure.NOT_PUBLISHABLE]


def _replaced_pairs(superseded: Iterable[Superseded]) -> list[str]:
    """Describe the pairs that a retest replaced. The result has one line for each job."""
    rates: dict[tuple[str, str], list[float]] = {}
    for each in superseded:
        rates.setdefault((each.first.job, each.job), []).append(each.first.busbw_bytes_per_s or 0.0)
    return [
        f"first results of {count(len(found), 'pair')} of the suspects in {first}: {format_rate(min(found))} to "
        f"{format_rate(max(found))}; judged are the pairs in {now}"
        for (first, now), found in rates.items()
    ]


def _cells(demand: JudgedDemand) -> tuple[str, ...]:
    worst = demand.worst
    expected = f"{demand.limit.metric} {demand.limit.text}"
    names = ", ".join(dict.fromkeys(fault.name for fault in demand.faults))
    verdict = "pass" if demand.passed else f"FAIL {names or 'nothing judged'}"
    if worst is None:
        return demand.rule, expected, NOTHING, NOTHING, str(demand.num_rows), verdict, NOTHING
    group = "" if worst.row.group == "world" else f" {worst.row.group}"
    where = f"{worst.row.job} {format_size(worst.row.payload_bytes)}{group}"
    # A percentage is hard to read if the figure is more than twice the allowed value.
    margin = f"{100 * worst.margin:+.1f}%" if worst.margin >= -1 else f"{1 - worst.margin:.3g} x limit"
    return demand.rule, expected, quantity(worst.got, demand.limit), margin, str(demand.num_rows), verdict, where


def _figure(row: Summary) -> str:
    if row.busbw_bytes_per_s is not None:
        return format_rate(row.busbw_bytes_per_s)
    return format_duration(row.median_s) if row.median_s is not None else "no figure"


def _node_lines(nodes: Sequence[NodeVerdict], width: int) -> list[str]:
    """Count the nodes that passed, then describe the other nodes with their reasons."""
    good = [node.host for node in nodes if node.status == NodeStatus.PASSED]
    named = ", ".join(good[:_MOST_NODES])
    if len(good) > _MOST_NODES:
        named += f" and {len(good) - _MOST_NODES} more"
    lines = []
    if good or any(node.status == NodeStatus.FAILED for node in nodes):
        lines = wrapped(f"nodes passed: {len(good)} of {len(nodes)}{f' ({named})' if good else ''}", width, "  ")
    alike: dict[tuple[NodeStatus, tuple[str, ...]], list[str]] = {}
    for node in nodes:
        if node.status != NodeStatus.PASSED:
            alike.setdefault((node.status, tuple(reason.text for reason in node.reasons)), []).append(node.host)
    for (status, reasons), some in alike.items():
        who = f"node {some[0]}" if len(some) == 1 else f"nodes {hostlist.compress(some)}"
        for reason in reasons:
            lines += wrapped(f"{who} {status}: {reason}", width, "  ")
    return lines


def looked_at(document: Document) -> list[str]:
    """Count the judged jobs and rows. State how many CPUs and GPUs of each host the jobs used."""
    lines = [f"{count(len(document.headers), 'job')}, {count(len(document.summaries), 'row')}"]
    used: dict[str, None] = {}
    for header in document.headers.values():
        if header.imported:
            continue  # a log does not state which part of a host was used
        ranks = Counter(str(rank.get("host")) for rank in header.ranks)
        for host, facts in header.nodes.items():
            cpus, gpus = facts.get("num_cpus") or 0, len(facts.get("gpus") or ())
            used[f"{host}: {count(ranks[host], 'rank')} on {count(cpus, 'CPU')} and {count(gpus, 'GPU')}"] = None
    return [*lines, *used]


def finding_sentences(finding: PublicationFinding) -> dict[str, list[GateFault]]:
    """Return the sentences about a publication rule. Each sentence has the faults that it describes."""
    found: dict[str, list[GateFault]] = {}
    for fault in finding.faults:
        found.setdefault(fault.what, []).append(fault)
    if finding.faults:
        return found
    if finding.status == FindingStatus.PASSED:
        found[finding.rule.held] = []
    elif finding.status == FindingStatus.NOT_KNOWN:
        found[f"the run does not record {finding.about}"] = []
    elif finding.about:
        found[f"there are no {finding.about} to look at"] = []
    if finding.partly:
        found[f"imported rows are not judged: {finding.rule.not_judged}"] = []
    return found


def _finding_lines(findings: Sequence[PublicationFinding], width: int) -> list[str]:
    """Return a line for each publication rule. The faults of a rule and their rows are listed below its line."""
    lines = []
    for finding in findings:
        status = finding.status.upper() if finding.status == FindingStatus.FAILED else finding.status
        lines += wrapped(f"{finding.rule.number:>3}  {status:<14}  {finding.rule.template}", width, " " * 21)
        for said, faults in finding_sentences(finding).items():
            lines += wrapped(said, width, " " * 7, " " * 7)
            if faults:
                lines += wrapped("in " + "; ".join(_rows(faults)), width, " " * 9, " " * 9)
    return [*lines, f"# {kept(findings)}"]


def _markdown_findings(findings: Sequence[PublicationFinding]) -> list[str]:
    rows = []
    for finding in findings:
        found = []
        for said, faults in finding_sentences(finding).items():
            found.append(f"{said} ({'; '.join(_rows(faults))})" if faults else said)
        rows.append((str(finding.rule.number), finding.rule.template, finding.status, "; ".join(found)))
    return [*_markdown(("rule", "", "verdict", "what was found"), rows), "", f"- {kept(findings)}"]


def _rows(faults: Iterable[GateFault]) -> list[str]:
    """List the rows that faults concern, job by job: `allreduce-mpi-1x2: isolated 8, 64K`."""
    jobs: dict[str, dict[str, dict[str, None]]] = {}
    for fault in faults:
        modes = jobs.setdefault(fault.job or "the whole run", {})
        if fault.mode is not None:
            group = "" if fault.group in (None, "world") else f" {fault.group}"
            size = NOTHING if fault.payload_bytes is None else format_size(fault.payload_bytes)
            modes.setdefault(f"{fault.mode}{group}", {})[size] = None
    lines = []
    for job, modes in jobs.items():
        sizes = ", ".join(f"{mode} {' '.join(at)}" for mode, at in modes.items())
        lines.append(f"{job}: {sizes}" if sizes else job)
    more = [f"and {len(lines) - _MOST_JOBS} more jobs"] if len(lines) > _MOST_JOBS else []
    return [*lines[:_MOST_JOBS], *more]


def _demands(demands: Sequence[JudgedDemand], width: int) -> list[str]:
    """Return a table with one row for each demand.

    If the rows are too long, the names of the rules become headings above the rows. If the rows are still too long, the
    failures and the worst row are on separate lines.
    """
    rows = [[printable.printable(word) for word in _cells(demand)] for demand in demands]
    whole = _columns([_TITLES, *rows])
    if max(map(len, whole)) <= width:
        return whole
    cells = _columns([_TITLES[1:], *(row[1:] for row in rows)])
    apart = max(map(len, cells)) > width - 2
    if apart:
        cells = _columns([_TITLES[1:-1], *([*row[1:-2], row[-2].partition(" ")[0]] for row in rows)])
    lines, rule = [f"  {cells[0]}"], None
    for row, line in zip(rows, cells[1:], strict=True):
        if row[0] != rule:
            lines.append(row[0])
        lines.append(f"  {line}")
        details = [row[-2].partition(" ")[2], f"worst row: {row[-1]}" if row[-1] != NOTHING else ""]
        if apart and any(details):
            lines += wrapped("; ".join(filter(None, details)), width, " " * 6, " " * 4)
        rule = row[0]
    return lines


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(map(printable.markdown, line))} |" for line in lines]
