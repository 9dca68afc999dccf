"""Write the summary of a run: at most MOST_LINES lines before its tables.

The lines name the machine, and the best bandwidth and the smallest latency of each transport. Further lines say how
reliable the figures are, and which command to run next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.codes import Coded
from bench.core.record import Flag, Header
from bench.core.step_trace import StepPart
from bench.core.units import format_bytes
from bench.results import text
from bench.results.busy import BusyRun, busy_run
from bench.results.curves import of_middle_launch
from bench.results.document import Document, Summary
from bench.results.messages import HeadlineCode
from bench.results.model import case_of
from bench.results.training_rows import Fed, TrainedStep

MOST_LINES = 8
_LARGE_RATIO = 64  # rows this much smaller than the largest message show no bandwidth
_OTHER_LINES = 3  # for machine, trust and next; a busy machine adds one more
_MOST_SHARE = 1.5  # of a reference; above it, something slowed the measurement of the reference
_OPEN = frozenset({Flag.NOT_CONVERGED, Flag.FEW_SAMPLES, Flag.BAD_SAMPLES})
MOST_OPEN = 0.5  # share of the figures; if more figures have not converged, the advice is to measure again


@dataclass(frozen=True, slots=True)
class NamedRun:
    """The names by which commands refer to a run. `name`: the run's folder. `scenario` and `cluster`: "" if unknown."""

    name: str
    scenario: str = ""
    cluster: str = ""


def headline(document: Document, run: NamedRun | None = None) -> list[Coded]:
    """Return the summary of a run.

    `run`: the names by which commands refer to the run. If `run` is None, the summary suggests no next command.
    """
    if not document.headers:
        return []
    busy = busy_run(document)
    lines = [Coded.of(HeadlineCode.BUSY, several=len(busy.hosts) > 1, **busy.facts())] if busy.matters else []
    most = MOST_LINES - _OTHER_LINES - len(lines)
    lines.append(_machine(list(document.headers.values())))
    steps = [*_steps(document.steps), *_feeds(document.feeds)]
    # Their times are no latency of an operation.
    whole = {one.job for one in document.steps} | {one.job for one in document.feeds}
    jobs = {job for job, header in document.headers.items() if case_of(job, header) in whole}
    lines += [*_transports(document, jobs, most - len(steps)), *steps]
    if document.summaries:
        lines.append(_trust(document, busy))
    if run is not None:
        lines += _advice(document, run, busy)
    return lines


# -- what was measured


def machine_words(headers: Sequence[Header]) -> str:
    """Return the nodes, CPUs, GPUs and ranks of jobs, such as `1 node: 2 CPUs (AMD EPYC), no GPU; 2 ranks`."""
    facts = _machine_facts(headers)
    if not facts["num_nodes"]:
        unknown = "number of nodes not stated" if facts["instance"] else "machine not stated"
        return ", ".join(filter(None, (facts["instance"], facts["ranks"], unknown)))
    return Coded.of(HeadlineCode.MACHINE, **{**facts, "modelled": False, "imported": False}).text


def _machine(headers: Sequence[Header]) -> Coded:
    """Return the line about nodes, CPUs, GPUs and ranks."""
    return Coded.of(HeadlineCode.MACHINE, **_machine_facts(headers))


def _machine_facts(headers: Sequence[Header]) -> dict[str, Any]:
    nodes: dict[str, Any] = {}
    for header in headers:
        nodes |= header.nodes
    types = sorted({header.instance for header in headers if header.instance})
    ranks = sorted({header.num_ranks for header in headers if header.num_ranks})
    num_nodes = max([header.num_nodes or 0 for header in headers], default=0)
    modelled = all(header.modelled for header in headers)
    shown = Counter(filter(None, (_node_words(node) for node in nodes.values() if not modelled)))
    each = [words if len(shown) == 1 else f"{num} x {words}" for words, num in shown.items()]
    # other tools' logs name the GPUs, but not the number on each node
    if not each and all(header.facts.get("gpus") for header in headers):
        each = sorted({str(header.facts["gpus"]) for header in headers})
    return {
        "modelled": modelled,
        "imported": all(header.imported for header in headers),
        "num_nodes": num_nodes or None,
        "nodes_unknown": not num_nodes,
        "instance": ", ".join(types) or None,
        "each": "; ".join(each) or None,
        "ranks": _range(ranks),
    }


def _node_words(node: Any) -> str:
    """Return the CPUs and GPUs of a node, such as `2 CPUs (AMD EPYC), no GPU`.

    If the header does not state the number of CPUs, the text has only the GPUs.
    """
    gpus = Counter(str(gpu.get("name") or "unknown GPU") for gpu in node.get("gpus") or ())
    parts = [f"{num} x {name}" for name, num in gpus.items()]
    if node.get("num_cpus"):
        model = f" ({node['cpu_model']})" if node.get("cpu_model") else ""
        parts = [f"{text.count(node['num_cpus'], 'CPU')}{model}", *(parts or ["no GPU"])]
    return ", ".join(parts)


def _range(numbers: Sequence[int]) -> str | None:
    """Return a text such as `2 ranks` or `2 to 16 ranks`. Return None if no number is known."""
    if not numbers:
        return None
    return text.count(numbers[0], "rank") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} ranks"


def _steps(steps: Sequence[TrainedStep]) -> list[Coded]:
    """Return the line about the fastest training step, or an empty list if there is no step."""
    if not steps:
        return []
    best = min(steps, key=lambda one: one.step_s)
    exposed = max(best.parts_s[StepPart.EXPOSED_EXCHANGE]) / best.step_s
    waited = max(best.parts_s[StepPart.DATA_WAIT]) / best.step_s
    late = sorted({one.job for one in steps if one.late_rank is not None})
    return [
        Coded.of(
            HeadlineCode.STEP,
            step_s=best.step_s,
            job=best.job,
            more=len(steps) > 1,
            exposed_share=exposed,
            data_share=waited,
            num_late=len(late) or None,
            num=len(steps),
        )
    ]


def _feeds(feeds: Sequence[Fed]) -> list[Coded]:
    """Return the line about the fastest and the slowest reads. Return an empty list if the run has no reads.

    Training data are seldom in memory. If a run has reads from the device, its reads from the page cache are left out.
    """
    rows = [one for one in feeds if one.state != "warm"] or list(feeds)
    if not rows:
        return []
    best, slowest = max(rows, key=lambda one: one.bytes_per_s), min(rows, key=lambda one: one.bytes_per_s)
    facts = {
        "more": len(rows) > 1,
        "num": len(rows),
        "rate": best.bytes_per_s,
        "files": best.files,
        "read_order": best.read_order,
        "state": best.state,
        "num_workers": best.num_workers or None,
        "binds": best.binds or None,
        "headroom": best.headroom,
        "wait_s": best.wait_s,
    }
    if slowest is not best:
        facts |= {"slowest": slowest.bytes_per_s, "slowest_files": slowest.files, "slowest_order": slowest.read_order}
    return [Coded.of(HeadlineCode.FEED, **facts)]


def _transports(document: Document, without_latency: Collection[str], most: int) -> list[Coded]:
    """Return a line for each transport, with its best bandwidth and its smallest latency.

    If a case has several launches, only the row of the middle launch is used.
    `without_latency`: the jobs whose times are not latencies, because each time covers several operations.
    """
    usable = [row for row in document.summaries if row.verified is not False]
    found = []
    for transport in dict.fromkeys(row.transport for row in usable):
        of_transport = [row for row in usable if row.transport == transport]
        rated = _telling([row for row in of_transport if _is_rated(row)])
        best = _best(of_middle_launch(document, rated))
        timed = [row for row in of_transport if _is_timed(row) and row.job not in without_latency]
        smallest = _smallest(of_middle_launch(document, timed))
        if best or smallest:
            both = bool(best and smallest)
            code = HeadlineCode.MODELLED_TRANSPORT if of_transport[0].modelled else HeadlineCode.TRANSPORT
            found.append(Coded.of(code, transport=transport, both=both, **best, **smallest))
    if len(found) <= most:
        return found
    rest = [line.facts["transport"] for line in found[most - 1 :]]
    return [*found[: most - 1], Coded.of(HeadlineCode.MORE_TRANSPORTS, num=len(rest), transports=rest)]


def _telling(rated: Sequence[Summary]) -> Sequence[Summary]:
    """Return the rows among which the largest bus bandwidth is searched.

    Pipelined rows take precedence, because the table and the figures show the bandwidth of pipelined rows. If all
    pipelined rows have small messages, they do not take precedence, because their times depend on latency. For modelled
    rows, the bandwidth of ideal links would be misleading. Modelled rows with an expected figure of a real machine
    therefore take precedence over other modelled rows.
    """
    largest = max((row.payload_bytes for row in rated), default=0)
    pipelined = [row for row in rated if row.mode == "pipelined"]
    if any(row.payload_bytes * _LARGE_RATIO >= largest for row in pipelined):
        rated = pipelined
    return [row for row in rated if row.expected_busbw_low_bytes_per_s is not None] or rated


def _best(rated: Sequence[Summary]) -> dict[str, Any]:
    """Return the facts of the row that has the largest bus bandwidth. The result is empty without rows."""
    if not rated:
        return {}
    best = max(rated, key=lambda row: row.busbw_bytes_per_s or 0)
    share = best.bound_fraction
    return {
        "busbw": f"{text.gigabytes(best.busbw_bytes_per_s)} GB/s",
        "busbw_bytes_per_s": best.busbw_bytes_per_s,
        "busbw_row": _row_words(best),
        "bound_share": share if share is not None and share <= _MOST_SHARE else None,
        "bound": best.bound_name,
        "expected_busbw": None if best.expected_low_s is None else f"{text.expected_rate(best)} GB/s",
    }


def _is_rated(row: Summary) -> bool:
    """Check whether a row has a bus bandwidth that does not exceed the row's bound."""
    rate = row.busbw_bytes_per_s
    return bool(rate) and math.isfinite(rate or 0.0) and Flag.ABOVE_BOUND not in row.flags


def _is_timed(row: Summary) -> bool:
    """Check whether a row has the time of one operation."""
    return row.mode == "isolated" and row.flops_per_s is None and _seconds(row) is not None


def _smallest(timed: Sequence[Summary]) -> dict[str, Any]:
    """Return the facts of the row that has the smallest time of one operation. The result is empty without rows.

    Modelled rows with an expected time take precedence over other modelled rows. Among modelled rows with an expected
    time, the row with the smallest expected time is chosen.
    """
    timed = [row for row in timed if row.expected_low_s is not None] or timed
    if not timed:
        return {}
    smallest = min(timed, key=lambda row: row.expected_low_s or _seconds(row) or 0.0)
    return {
        "latency": f"{text.microseconds(_seconds(smallest))} us",
        "latency_s": _seconds(smallest),
        "latency_row": _row_words(smallest),
        "floor": _floor(smallest),
        "expected_latency": None if smallest.expected_low_s is None else f"{text.expected_time(smallest)} us",
    }


def _floor(row: Summary) -> str | None:
    """Return the latency floor of a row as text.

    Return None if the row is faster than its floor. A row can be faster than its floor if ranks share memory.
    """
    seconds = _seconds(row)
    if row.floor_s is None or (seconds is not None and seconds < row.floor_s):
        return None
    return f"{text.microseconds(row.floor_s)} us"


def _seconds(row: Summary) -> float | None:
    """Return the time of one operation in seconds, or None if it is unknown.

    The time is the median, or the mean if another tool reports only a mean.
    """
    seconds = row.mean_s if row.median_s is None else row.median_s
    return seconds if seconds is not None and math.isfinite(seconds) else None


def _row_words(row: Summary) -> str:
    group = "" if row.group in ("", "world") else f", {row.group}"
    size = text.size(row)
    return (
        f"{row.pattern}{group}" if size == text.NOTHING else f"{row.pattern}{group}, {format_bytes(row.payload_bytes)}"
    )


# -- how far to trust it


def _trust(document: Document, busy: BusyRun) -> Coded:
    """Return the line about the reliability of the figures.

    This line covers wrong data, convergence, contradictions, launches, and other load on the machine.
    """
    rows = document.summaries
    measured = [row for row in rows if not row.modelled and not row.imported]
    if not measured and not rows[0].modelled:
        return Coded.of(HeadlineCode.IMPORTED, num=len(rows))
    if not measured:
        num_expected = sum(row.expected_low_s is not None for row in rows)
        num_without = len(rows) - num_expected if 0 < num_expected < len(rows) else None
        return Coded.of(HeadlineCode.MODELLED, num=len(rows), num_expected=num_expected, num_without=num_without)
    num_open = sum(map(is_open, measured))
    return Coded.of(
        HeadlineCode.TRUST,
        num=len(measured),
        num_converged=len(measured) - num_open,
        share=(len(measured) - num_open) / len(measured),
        num_wrong=sum(row.verified is False for row in rows) or None,
        num_failed=len(document.failures) or None,
        num_contradictions=len(document.conflicts) or None,
        launches=max([spread.num_launches for spread in document.spreads], default=1),
        idle=busy.is_known and not busy.matters,
        load_unknown=not busy.is_known,
    )


def is_open(row: Summary) -> bool:
    """Check whether the interval of a row's median is missing, or wider than requested."""
    return not _OPEN.isdisjoint(row.flags)


# -- what to do next


def _advice(document: Document, run: NamedRun, busy: BusyRun) -> list[Coded]:
    """Return the command that the summary suggests next. The first condition that applies determines the command."""
    rows = document.summaries
    scenario, command = _command(run)
    if document.replays:
        scenario = ""  # "" if the scenario was written for this run alone; `job replay` writes it again
    unsure = busy.matters or sum(map(is_open, rows)) > MOST_OPEN * len(rows)
    applying = {
        HeadlineCode.NEXT_WRONG: any(row.verified is False for row in rows),
        HeadlineCode.NEXT_IMPORTED: any(row.imported for row in rows),
        HeadlineCode.NEXT_FAILED: document.failures and scenario,
        HeadlineCode.NEXT_MODELLED: any(row.modelled for row in rows) and scenario,
        HeadlineCode.NEXT_SLOW: any(one.slow for one in document.standings),
        HeadlineCode.NEXT_OPEN: unsure and scenario,
        HeadlineCode.NEXT_SINGLE: rows and not document.spreads and scenario,
        HeadlineCode.NEXT_PUBLISH: rows,
    }
    for code, applies in applying.items():
        if applies:
            return [Coded.of(code, run=run.name, command=command)]
    return []


def _command(run: NamedRun) -> tuple[str, str]:
    """Return the name of the run's scenario, and the command that measures this scenario again."""
    cluster = f" --cluster {run.cluster}" if run.cluster not in ("", "local") else ""
    return run.scenario, f"linkbench run {run.scenario}{cluster}"
