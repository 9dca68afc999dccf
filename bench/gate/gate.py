"""Does a run pass a file of rules? It fails closed: what is not there, not known or no evidence is a failure by name.

Every row that a rule selects must be evidence (measured, verified, converged, of ranks enough) and reach the figure
that is asked for; every row that was asked for must be there; nothing in the run may have failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from bench.diagnose.localise import Diagnosis
from bench.gate import completeness as cover
from bench.gate import nodes as by_node
from bench.gate import remeasured as retest
from bench.gate import rows as by_row
from bench.gate import whole_run as whole
from bench.gate.gate_input import GateInput as GateInput
from bench.gate.gate_input import hosts
from bench.gate.gate_input import networks_in as networks_in
from bench.gate.header_consistency import faults as unsound_faults
from bench.gate.nodes import NodeVerdict as NodeVerdict
from bench.gate.remeasured import Again as Again
from bench.gate.remeasured import Retest as Retest
from bench.gate.remeasured import Superseded as Superseded
from bench.gate.remeasured import newest as newest
from bench.gate.rows import Figure as Figure
from bench.gate.rules import FAILURES, Demand, GateFault, GateRule, Rules
from bench.results.document import Summary

unsound = unsound_faults  # the rows of one attempt that contradict its header


@dataclass(frozen=True, slots=True)
class JudgedDemand:
    """One demand of one rule. `worst`: the row with the least to spare; None where no row could be judged."""

    rule: str
    limit: Demand
    num_rows: int
    worst: Figure | None
    faults: tuple[GateFault, ...]

    @property
    def passed(self) -> bool:
        """Was something judged, and nothing wrong?"""
        return not self.faults and self.worst is not None


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate says. `faults`: of the run as a whole. `unjudged`: rows that no rule looks at."""

    run: str
    rules: Rules
    faults: tuple[GateFault, ...]
    judged: tuple[JudgedDemand, ...]
    nodes: tuple[NodeVerdict, ...]
    verdict: Diagnosis | None
    superseded: tuple[Superseded, ...]
    retests: tuple[Retest, ...]
    unjudged: int

    @property
    def all_faults(self) -> tuple[GateFault, ...]:
        """Every way in which the run failed, those of the whole run first."""
        return (*self.faults, *(fault for each in self.judged for fault in each.faults))

    @property
    def passed(self) -> bool:
        """Only where nothing failed and every demand was judged."""
        return not self.all_faults and bool(self.judged) and all(each.passed for each in self.judged)

    @property
    def names(self) -> dict[str, int]:
        """How often the run failed in which way, in the order of FAILURES."""
        found = [fault.name for fault in self.all_faults]
        return {name: found.count(name) for name in FAILURES if name in found}


def gate(rules: Rules, run: GateInput, retests: Sequence[Retest] = ()) -> GateResult:
    """Judge a run: the newest measurement of each row, and what a retest replaced is told."""
    document, superseded = newest(run.document, retests)
    whole_run, run = run, replace(run, document=document)
    faults = list(whole.faults(run, rules.expect))
    empty = any(fault.name == "empty-run" for fault in faults)
    told = [] if empty else [_judged(run, rule, limit) for rule in rules.rules for limit in rule.limits]
    faults += [] if empty else cover.lost(whole_run, [*faults, *(fault for each in told for fault in each[0].faults)])
    verdict = None if empty or rules.diagnose is False else by_node.diagnosed(run)
    faults += [] if empty else by_node.parts(run, verdict, rules.diagnose)
    judged_rows = [row for _, rows, _ in told for row in rows]
    judged_rows += [row for row in document.summaries if row.src is not None] if verdict else []
    every = [*faults, *(fault for each in told for fault in each[0].faults)]
    met = [row for _, _, good in told for row in good]
    cleared = by_node.cleared(run, verdict, rules)
    return GateResult(
        run=run.name,
        rules=rules,
        faults=tuple(faults),
        judged=tuple(each[0] for each in told),
        nodes=by_node.nodes(run, verdict, _once(judged_rows), (met, cleared), every, retest.suspects(retests)),
        verdict=verdict,
        superseded=superseded,
        retests=tuple(retests),
        unjudged=len(document.summaries) - len(_once(judged_rows)),
    )


def again(verdict: GateResult, run: GateInput) -> Again:
    """What of a run that failed should be measured again."""
    took_part = {host for header in run.document.headers.values() for host in hosts(header)}
    by_status = {
        status: [node.host for node in verdict.nodes if node.status == status and node.host in took_part]
        for status in (by_node.FAILED, by_node.PASSED, by_node.NOT_JUDGED)
    }
    others = [*by_status[by_node.PASSED], *by_status[by_node.NOT_JUDGED]]  # the best known of first
    return retest.again(verdict.all_faults, by_status[by_node.FAILED], others, dict(run.planned()))


def unreadable(rules: Rules, name: str, why: str) -> GateResult:
    """The verdict on a run that is there and can not be read."""
    return GateResult(name, rules, (GateFault("unreadable-run", why),), (), (), None, (), (), 0)


def _judged(run: GateInput, rule: GateRule, limit: Demand) -> tuple[JudgedDemand, list[Summary], list[Summary]]:
    """The verdict on one demand, the rows that it is about, and those of them that met it."""
    mine, others = cover.selected(run, rule, limit)
    faults = list(cover.absent(run, rule, limit, mine, others))
    sound = []
    for row in mine:
        of_row = list(by_row.evidence(row, rule, limit, run.document.headers[row.job]))
        faults += of_row
        if not of_row:
            sound.append(row)
    faults += _other_network(run, rule, mine)
    figures, missed = by_row.figures(run, sound, limit)
    worst = min(figures, key=lambda each: each.margin, default=None)
    bad = {by_node.place(each) for each in missed}
    met = [each.row for each in figures if each.margin >= 0 and by_node.place(each.row) not in bad]
    return JudgedDemand(rule.name, limit, len(mine), worst, (*faults, *missed)), mine, met


def _other_network(run: GateInput, rule: GateRule, rows: Iterable[Summary]) -> Iterator[GateFault]:
    if rule.network:
        between = sorted(row.job for row in rows if row.num_nodes != 1)
        for job, _ in groupby(between):
            yield from whole.wrong_network(run, job, rule.network)


def _once(rows: Iterable[Summary]) -> list[Summary]:
    return list({id(row): row for row in rows}.values())
