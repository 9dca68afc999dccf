"""The words for what a gate says: failures by name, each demand with what was reached, each node, each retest."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from bench.core import hostlist
from bench.core.units import format_duration, format_rate, format_size
from bench.gate.gate import GateResult, JudgedDemand, NodeVerdict, Superseded
from bench.gate.rules import FAILURES, RATES, Demand, GateFault
from bench.results.text import NOTHING, count

_WIDTH = 120
_MOST_TOLD = 5  # faults of one name in text; all of them are in JSON and CSV
_MOST_NODES = 16


def table(gate: GateResult) -> str:
    """Verdict, failures by name, then a line for each demand, and the nodes."""
    lines = [f"# {conclusion(gate)}"]
    if gate.rules.description:
        lines += _wrapped(f"rules {gate.rules.name}: {gate.rules.description}", "# ", "#   ")
    for name in gate.names:
        lines += _wrapped(f"FAILED {name}: {FAILURES[name]}", "", "  ")
        for sentence in told(gate, name):
            lines += _wrapped(sentence, "  - ", "    ")
    if gate.judged:
        lines += ["", *_columns(("rule", "expected", "got", "margin", "rows", "verdict", "worst row"), _cells(gate))]
    if gate.nodes:
        lines += ["", *_node_lines(gate.nodes)]
    return "\n".join([*lines, *(f"# {line}" for line in remarks(gate))]) + "\n"


def markdown(gate: GateResult) -> str:
    """The same for a page or a pull request."""
    lines = [f"# {conclusion(gate)}", "", gate.rules.description, ""]
    for name in gate.names:
        lines += [f"- **{name}**: {FAILURES[name]}", *(f"  - {_plain(one)}" for one in told(gate, name))]
    lines += ["", *markdown_demands(gate), "", *markdown_nodes(gate.nodes), ""]
    return "\n".join([*lines, *(f"- {_plain(line)}" for line in remarks(gate))]) + "\n"


def markdown_demands(gate: GateResult) -> list[str]:
    """A row for each demand."""
    titles = ("rule", "expected", "got", "margin", "rows", "verdict", "worst row")
    return _markdown(titles, _cells(gate)) if gate.judged else ["No rule could be asked."]


def markdown_nodes(nodes: Sequence[NodeVerdict]) -> list[str]:
    """A row for each node, all of them."""
    rows = [(node.host, node.status, str(node.num_rows), "; ".join(node.reasons) or NOTHING) for node in nodes]
    return _markdown(("node", "verdict", "rows", "reasons"), rows) if rows else ["No node is known."]


def conclusion(gate: GateResult) -> str:
    """One sentence."""
    if gate.passed:
        return f"gate passed: {gate.run} by {gate.rules.name}, {count(len(gate.judged), 'demand')}"
    kinds = ", ".join(f"{name} ({number})" if number > 1 else name for name, number in gate.names.items())
    return f"gate FAILED: {gate.run} by {gate.rules.name}: {kinds or 'nothing was judged'}"


def remarks(gate: GateResult) -> list[str]:
    """What else the reader must know: retests, and what nobody looked at."""
    lines = [f"retest of {retest.started}, after: {'; '.join(retest.reasons)}" for retest in gate.retests]
    lines += _replaced_pairs(one for one in gate.superseded if one.now is None)
    alone = [replaced(one) for one in gate.superseded if one.now is not None]
    lines += alone[:_MOST_NODES]
    lines += [f"and {len(alone) - _MOST_NODES} rows more were measured again"] if len(alone) > _MOST_NODES else []
    if gate.unjudged:
        lines.append(f"{count(gate.unjudged, 'row')} of the run are judged by no rule")
    return lines


def replaced(one: Superseded) -> str:
    """`first result of allreduce 1M pipelined world: 3.1 GB/s; judged is allreduce-mpi-2x2#2: 9.8 GB/s`."""
    row = one.first
    now = f": {_figure(one.now)}" if one.now else ", the pairs of its suspects"
    where = f"{row.pattern} {format_size(row.payload_bytes)} {row.mode} {row.group}"
    return f"first result of {where}: {_figure(row)}; judged is {one.job}{now}"


def told(gate: GateResult, name: str, most: int = _MOST_TOLD) -> list[str]:
    """The sentences of one failure's name: `sum of rule: where: what`."""
    found = [(None, fault) for fault in gate.faults] + [(each, f) for each in gate.judged for f in each.faults]
    lines = list(dict.fromkeys(sentence(fault, each) for each, fault in found if fault.name == name))
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return lines[:most] + more


def sentence(fault: GateFault, judged: JudgedDemand | None = None) -> str:
    """One fault with its rule, its row and its figures."""
    words = [f"[{judged.rule}]"] if judged else []
    place = [fault.job or fault.pattern or ""]
    place += [format_size(fault.payload_bytes)] if fault.payload_bytes else []
    place += [fault.mode or "", "" if fault.group in (None, "world") else str(fault.group)]
    words += [" ".join(filter(None, place)) + ":"] if any(place) else []
    figures = ""
    if judged and fault.got is not None and fault.limit is not None:
        figures = f", it is {quantity(fault.got, judged.limit)}"
    return " ".join([*words, fault.what + figures])


def quantity(value: float, limit: Demand) -> str:
    """In the unit of the demand: a rate, a time or a percentage."""
    if limit.of == "baseline":
        return f"{value:.3f} x"
    if limit.of:
        return f"{100 * value:.1f}%"
    return format_rate(value) if limit.metric in RATES else format_duration(value)


def _replaced_pairs(superseded: Iterable[Superseded]) -> list[str]:
    """The pairs of suspects, which are judged by later pairs of them, in a line for each job."""
    rates: dict[tuple[str, str], list[float]] = {}
    for one in superseded:
        rates.setdefault((one.first.job, one.job), []).append(one.first.busbw_bytes_per_s or 0.0)
    return [
        f"first results of {count(len(found), 'pair')} of the suspects in {first}: {format_rate(min(found))} to "
        f"{format_rate(max(found))}; judged are those in {now}"
        for (first, now), found in rates.items()
    ]


def _cells(gate: GateResult) -> list[tuple[str, ...]]:
    return [_line(each) for each in gate.judged]


def _line(each: JudgedDemand) -> tuple[str, ...]:
    worst = each.worst
    expected = f"{each.limit.metric} {each.limit.text}"
    names = list(dict.fromkeys(fault.name for fault in each.faults))
    verdict = "pass" if each.passed else f"FAIL {', '.join(names) or 'nothing judged'}"
    if worst is None:
        return each.rule, expected, NOTHING, NOTHING, str(each.num_rows), verdict, NOTHING
    row = worst.row
    group = "" if row.group == "world" else f" {row.group}"
    where = f"{row.job} {format_size(row.payload_bytes)}{group}"
    # Beyond twice the most that is allowed a percentage says little.
    margin = f"{100 * worst.margin:+.1f}%" if worst.margin >= -1 else f"{1 - worst.margin:.3g} x limit"
    return each.rule, expected, quantity(worst.got, each.limit), margin, str(each.num_rows), verdict, where


def _figure(row: object) -> str:
    rate, seconds = getattr(row, "busbw_bytes_per_s", None), getattr(row, "median_s", None)
    if rate is not None:
        return format_rate(rate)
    return format_duration(seconds) if seconds is not None else "no figure"


def _node_lines(nodes: Sequence[NodeVerdict]) -> list[str]:
    """Those that did not pass with their reasons, the others by number."""
    good = [node.host for node in nodes if node.status == "passed"]
    named = ", ".join(good[:_MOST_NODES]) + (", ..." if len(good) > _MOST_NODES else "")
    lines = [f"nodes passed: {len(good)} of {len(nodes)}{f' ({named})' if good else ''}"]
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for node in nodes:
        if node.status != "passed":
            alike.setdefault((node.status, node.reasons), []).append(node.host)
    for (status, reasons), some in alike.items():
        who = f"node {some[0]}" if len(some) == 1 else f"nodes {hostlist.compress(some)}"
        for reason in reasons:
            lines += _wrapped(f"{who} {status}: {reason}", "", "  ")
    return lines


def _columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in (titles, *rows)) for column in range(len(titles))]
    return [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in (titles, *rows)
    ]


def _markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(map(_plain, line))} |" for line in lines]


def _plain(text: str) -> str:
    for character in ("|", "*", "_", "<"):
        text = text.replace(character, f"\\{character}")
    return text


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
