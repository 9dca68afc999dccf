"""Write the lines of a page about rows: what was measured, what is possible, and what others measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.core.codes import Coded
from bench.core.links import Bound
from bench.explain.assessment import bound_to_show
from bench.explain.evidence import RunEvidence, busbw, is_network
from bench.explain.messages import BoundCode, MissingCode, OthersCode, ResultCode
from bench.explain.own_source import others_of_each_machine, own_references
from bench.hardware.reference import Reference
from bench.logs.foreign import OK, TRUNCATED, ForeignRun
from bench.logs.messages import LogCode

_MOST_OTHERS, _MOST_LIMITED, _MOST_ANYWHERE = 4, 2, 6
# A published result with a known limitation is shown if it differs from this run's rate by less than this share.
_CLOSE = 0.25
_MOST_REMARKS, _MOST_LINES = 3, 4


def title(evidence: RunEvidence) -> str:
    """Return the title: `allreduce, 16 ranks on 2 nodes, by nccl-tests`."""
    words = evidence.run.pattern or "an unknown operation"
    if evidence.num_ranks:
        words += f", {evidence.num_ranks} rank{'' if evidence.num_ranks == 1 else 's'}"
    if evidence.num_nodes:
        words += f" on {evidence.num_nodes} node{'' if evidence.num_nodes == 1 else 's'}"
    return f"{words}, by {tool_name(evidence.run)}"


def tool_name(run: ForeignRun) -> str:
    """Return the name of the run's tool with its version: `nvbandwidth v0.5`."""
    version = f" {run.tool_version}" if run.tool_version else ""
    return run.tool.replace("_", "-") + version


def got(evidence: RunEvidence) -> Iterator[Coded]:
    """Yield lines about wrong data and lost lines, the best figure, the small-message time and the machine."""
    best, machine = evidence.best, evidence.machine
    if evidence.modelled:
        yield Coded.of(ResultCode.MODELLED)
    if evidence.num_wrong:
        yield _wrong_data(evidence)
    if evidence.doubtful:
        yield _excluded(evidence)
    yield from status_lines(evidence.run)
    yield from evidence.counts
    if best is None:
        yield Coded.of(ResultCode.NO_BANDWIDTH)
    elif not evidence.num_wrong:
        yield from _best(evidence)
    if log_facts := _log_facts(evidence):
        yield Coded.of(ResultCode.LOG_FACTS, log_facts=log_facts)
    if evidence.small_message_s is not None and not evidence.num_wrong:
        yield Coded.of(ResultCode.SMALL_MESSAGES, time_s=evidence.small_message_s)
    yield Coded.of(ResultCode.MACHINE, machine=machine.how)
    if machine.all_unknown and not machine.instance:
        yield Coded.of(ResultCode.UNKNOWN, unknown=list(machine.all_unknown))


def status_lines(run: ForeignRun) -> Iterator[Coded]:
    """Yield lines about the end of the run, the tests that the tool skipped, and the remarks of the log's reader."""
    if run.status != OK:
        truncated = run.status == TRUNCATED
        failure = run.failure.text if run.failure else None
        yield Coded.of(ResultCode.STATUS, status=run.status, failure=failure, truncated=truncated)
    waived = [remark for remark in run.remarks if remark.code == LogCode.WAIVED]
    remarks = [remark for remark in run.remarks if remark.line is not None and remark not in waived]
    if len(waived) > 1:
        first, last = waived[0].line, waived[-1].line
        yield Coded.of(ResultCode.WAIVED_TESTS, num_tests=len(waived), first_line=first, last_line=last)
    if remarks:
        shown = [remark.words for remark in remarks[:_MOST_REMARKS]]
        more = len(remarks) - len(shown)
        yield Coded.of(
            ResultCode.LOG_REMARKS, num_remarks=len(remarks), remarks="; ".join(shown), num_more=more or None
        )


def possible(evidence: RunEvidence) -> Iterator[Coded]:
    """Yield a line for each bound on the rate of the best row."""
    best = evidence.best
    if not evidence.bounds or best is None:
        yield _no_bound(evidence)
        return
    for bound in _bounds_to_show(evidence):
        reached = None if evidence.num_wrong or evidence.modelled else busbw(best) / bound.bytes_per_s
        yield bound_line(bound, bridge=evidence.bridge_unknown and bound.kind == "hard", share=reached)
    if evidence.crosses_nics and evidence.network_bytes_per_s is None:
        yield Coded.of(BoundCode.NICS_UNKNOWN)


def bound_line(bound: Bound, **facts: Any) -> Coded:
    """Return one line about a bound.

    `facts`: more facts of BoundCode.BOUND, such as the share that was reached.
    """
    return Coded.of(
        BoundCode.BOUND,
        bound=bound.name,
        bound_code=bound.code,
        bound_rate=bound.bytes_per_s,
        hard=bound.kind == "hard",
        why=bound.why,
        source=bound.source,
        unverified=not bound.verified,
        **facts,
    )


def others(evidence: RunEvidence) -> Iterator[Coded]:
    """Yield published results with the same numbers of ranks and nodes.

    A published result with a known limitation is shown only if this run has about the same rate. If this run itself was
    published, its published result comes last.
    """
    obstacle = _not_compared(evidence)
    if obstacle is not None:
        yield obstacle
        return
    run = evidence.run
    elsewhere: list[Reference] = []
    if evidence.machine.links is None and run.pattern and evidence.num_ranks:
        elsewhere = list(others_of_each_machine(evidence))[:_MOST_ANYWHERE]
    for reference in elsewhere:
        yield _reference(reference, True, elsewhere=True)
    if not elsewhere and not evidence.references:
        yield Coded.of(OthersCode.NONE_KNOWN)
    rate = busbw(evidence.best) if evidence.best else 0.0
    good = [reference for reference in evidence.references if reference.limited is None]
    limited = []
    for reference in evidence.references:
        if reference.limited and abs(reference.best[1] - rate) < _CLOSE * rate:
            limited.append(reference)
    for reference in good[:_MOST_OTHERS] + limited[:_MOST_LIMITED]:
        yield _reference(reference, evidence.crosses_nics)
    for reference in own_references(evidence):
        yield Coded.of(OthersCode.OWN_SOURCE, source=reference.source)


def _wrong_data(evidence: RunEvidence) -> Coded:
    rows = (*evidence.rows, *evidence.doubtful)
    wrong = [row for row in rows if row.num_wrong]
    worst = max(wrong, key=lambda row: row.num_wrong or 0)
    ranks = evidence.num_ranks
    all_elements = bool(ranks)
    for row in wrong:
        share = (row.num_wrong or 0) / row.num_elements if row.num_elements else None
        if not ranks or share is None or abs(share / ranks - 1) >= 0.001:
            all_elements = False
    return Coded.of(
        ResultCode.WRONG_DATA,
        num_wrong_rows=len(wrong),
        num_rows=len(rows),
        num_wrong=worst.num_wrong,
        size_bytes=worst.payload_bytes or 0,
        all_elements=all_elements,
        num_ranks=ranks,
    )


def _excluded(evidence: RunEvidence) -> Coded:
    first = evidence.doubtful[0]
    why = first.contradicts.text if first.contradicts else None
    if why is None and first.unreadable:
        why = f"{', '.join(first.unreadable)} is not a number"
    lines = [row.line for row in evidence.doubtful if row.line][:_MOST_LINES] or None
    all_shown = len(evidence.doubtful) <= _MOST_LINES
    return Coded.of(
        ResultCode.EXCLUDED_ROWS,
        num_excluded=len(evidence.doubtful),
        num_rows=len(evidence.doubtful) + len(evidence.rows),
        lines=lines if all_shown else None,
        first_lines=None if all_shown else lines,
        size_bytes=first.payload_bytes or 0,
        why=why,
    )


def _best(evidence: RunEvidence) -> Iterator[Coded]:
    best, flat_from = evidence.best, evidence.flat_from_bytes
    assert best is not None
    yield Coded.of(
        ResultCode.BEST,
        rate=busbw(best),
        size_bytes=best.payload_bytes or 0,
        placement="in place" if best.in_place else "out of place",
        num_rows=len(evidence.rows),
        flat_from_bytes=flat_from if flat_from and flat_from < evidence.largest_bytes else None,
    )
    if rate := evidence.nic_bytes_per_s:
        yield Coded.of(ResultCode.NIC_RATE, rate=rate, ring=evidence.by_ring)


def _log_facts(evidence: RunEvidence) -> list[str]:
    """List what NCCL printed about itself."""
    facts = []
    if nccl := evidence.hint("nccl"):
        facts.append(f"NCCL {nccl.value}")
    if evidence.crosses_nics and (network := evidence.hint("network")):
        facts.append(f"network {network.value}")
    nics = evidence.num_nics_in_log
    if evidence.crosses_nics and nics:
        direct = "with" if evidence.uses_gpudirect else "without"
        facts.append(f"{nics} NIC{'' if nics == 1 else 's'} {direct} GPUDirect RDMA")
    if channels := evidence.hint("channels"):
        facts.append(f"{channels.value} channels")
    return facts


def _bounds_to_show(evidence: RunEvidence) -> list[Bound]:
    """Return the bounds in the order of the page: the main bound, then all other bounds.

    If data cross NICs, only hard bounds and the rates of the network are shown.
    """
    first = bound_to_show(evidence)
    found = []
    for bound in evidence.bounds:
        if bound.kind == "hard" or not evidence.crosses_nics or is_network(bound):
            found.append(bound)
    return sorted(found, key=lambda bound: bound is not first)


def _no_bound(evidence: RunEvidence) -> Coded:
    missing = _missing(evidence)
    return Coded.of(BoundCode.NO_BOUND, why=missing.text, why_code=missing.code)


def _missing(evidence: RunEvidence) -> Coded:
    """Return why no bound is known."""
    machine = evidence.machine
    if evidence.hint("shared"):
        return Coded.of(MissingCode.SHARED_GPU)
    if evidence.misfit:
        return Coded.of(MissingCode.RANKS_DO_NOT_FIT)
    if evidence.other_gpus:
        gpus = list(evidence.other_gpus)
        return Coded.of(MissingCode.OTHER_MACHINE, instance=machine.instance, other_gpus=gpus)
    if machine.links is None:
        return Coded.of(MissingCode.MACHINE)
    if evidence.num_ranks is None:
        return Coded.of(MissingCode.NUM_RANKS)
    if evidence.num_nodes is None:
        return Coded.of(MissingCode.NUM_NODES)
    return Coded.of(MissingCode.PATTERN_OR_LINKS)


def _not_compared(evidence: RunEvidence) -> Coded | None:
    """Return why this run cannot be compared with published results; None if a comparison is possible."""
    if evidence.num_wrong:
        return Coded.of(OthersCode.WRONG_DATA)
    if evidence.misfit:
        return Coded.of(OthersCode.RANKS_DO_NOT_FIT)
    if evidence.other_gpus:
        return Coded.of(OthersCode.OTHER_MACHINE, instance=evidence.machine.instance)
    if evidence.by_message_passing:
        return Coded.of(OthersCode.HOST_MEMORY)
    return None


def _reference(reference: Reference, with_network: bool, elsewhere: bool = False) -> Coded:
    size, rate = reference.best
    return Coded.of(
        OthersCode.RESULT,
        elsewhere=elsewhere,
        rate=rate,
        size_bytes=size,
        machine=reference.instance or reference.gpu,
        network_rate=reference.network_bytes_per_s if with_network else None,
        note=reference.note or None,
        limited=reference.limited or None,
        source=reference.source,
    )
