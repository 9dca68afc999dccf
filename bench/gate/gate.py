"""Judge a run by a rules file.

A run passes only if all evidence is present, known and valid. Every cause of a failure has a name (GateFailure). A row
that a rule selects counts only if it was measured, verified and converged, and has enough ranks. The figure of the row
must meet the demand. Every requested row must be present, and no job or row may have failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.diagnose.localise import Diagnosis
from bench.gate import completeness, nodes, publication, remeasured, rows, whole_run
from bench.gate.gate_input import GateInput, hosts
from bench.gate.messages import FaultCode, GateFailure
from bench.gate.nodes import NodeStatus, NodeVerdict
from bench.gate.publication import PublicationFinding
from bench.gate.remeasured import Retest, RetestPlan, Superseded
from bench.gate.rows import Figure
from bench.gate.rules import Demand, GateFault, GateRule, Rules
from bench.results.document import Summary


@dataclass(frozen=True, slots=True)
class JudgedDemand:
    """The result of one demand of one rule.

    `worst`: the row that is closest to the limit, or that misses the limit most. None if no row was judged.
    """

    rule: str
    limit: Demand
    num_rows: int
    worst: Figure | None
    faults: tuple[GateFault, ...]

    @property
    def passed(self) -> bool:
        """Whether the demand passed: at least one row was judged, and there is no fault."""
        return not self.faults and self.worst is not None


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict on a run.

    `faults`: the faults of the run as a whole. `unjudged`: the number of rows that no rule selects.
    """

    run: str
    rules: Rules
    faults: tuple[GateFault, ...]
    judged: tuple[JudgedDemand, ...] = ()
    nodes: tuple[NodeVerdict, ...] = ()
    diagnosis: Diagnosis | None = None
    superseded: tuple[Superseded, ...] = ()
    retests: tuple[Retest, ...] = ()
    unjudged: int = 0
    findings: tuple[PublicationFinding, ...] = ()

    @property
    def all_faults(self) -> tuple[GateFault, ...]:
        """All faults: first those of the whole run, then those of the demands, then those of the publication rules."""
        of_demands = (fault for demand in self.judged for fault in demand.faults)
        of_findings = (fault for finding in self.findings for fault in finding.faults)
        return (*self.faults, *of_demands, *of_findings)

    @property
    def passed(self) -> bool:
        """Whether the run passed: there is no fault, and every demand judged a row."""
        if self.all_faults or not (self.judged or self.findings):
            return False
        return bool(self.judged or not self.rules.rules) and all(demand.passed for demand in self.judged)

    @property
    def names(self) -> dict[GateFailure, int]:
        """How many faults have each name, in the order of GateFailure."""
        found = [fault.name for fault in self.all_faults]
        return {name: found.count(name) for name in GateFailure if name in found}


@dataclass(frozen=True, slots=True)
class _DemandRows:
    """`selected`: the rows that a demand selects. `met`: the selected rows that meet the demand."""

    demand: JudgedDemand
    selected: list[Summary]
    met: list[Summary]


def gate(rules: Rules, run: GateInput, retests: Sequence[Retest] = ()) -> GateResult:
    """Judge a run. For each row, its newest measurement counts.

    The older measurements that a retest replaced are in `superseded`.
    """
    findings = publication.findings(run, rules.publish)
    if not rules.rules:
        return GateResult(run.name, rules, (), findings=findings, retests=tuple(retests))
    document, superseded = remeasured.newest(run.document, retests)
    whole, run = run, replace(run, document=document)
    faults = list(whole_run.faults(run, rules.expect))
    demands: list[_DemandRows] = []
    diagnosis = None
    if not any(fault.name == GateFailure.EMPTY_RUN for fault in faults):
        checked = rows.checked_out_of_place(run)
        demands = [_judged(run, rule, limit, checked) for rule in rules.rules for limit in rule.limits]
        faults += completeness.lost(whole, [*faults, *_faults_of(demands)])
        if rules.diagnose is not False:
            diagnosis = nodes.diagnosed(run)
        faults += nodes.parts(run, diagnosis, rules.diagnose)
    judged_rows = [row for each in demands for row in each.selected]
    if diagnosis:
        judged_rows += [row for row in document.summaries if row.src is not None]
    met = [row for each in demands for row in each.met]
    verdicts = nodes.nodes(
        run,
        diagnosis,
        _once(judged_rows),
        (met, nodes.cleared(run, diagnosis, rules)),
        [*faults, *_faults_of(demands)],
        remeasured.suspects(retests),
    )
    return GateResult(
        run=run.name,
        rules=rules,
        faults=tuple(faults),
        judged=tuple(each.demand for each in demands),
        nodes=verdicts,
        diagnosis=diagnosis,
        superseded=superseded,
        retests=tuple(retests),
        unjudged=len(document.summaries) - len(_once(judged_rows)),
        findings=findings,
    )


def retest_plan(verdict: GateResult, run: GateInput) -> RetestPlan:
    """Return which parts of a failed run to measure again."""
    took_part = {host for header in run.document.headers.values() for host in hosts(header)}

    def of_status(status: NodeStatus) -> list[str]:
        return [node.host for node in verdict.nodes if node.status == status and node.host in took_part]

    partners = [*of_status(NodeStatus.PASSED), *of_status(NodeStatus.NOT_JUDGED)]  # hosts that passed come first
    plan = remeasured.plan_of_retest(verdict.all_faults, of_status(NodeStatus.FAILED), partners, run.planned())
    return replace(plan, failures={str(name): number for name, number in verdict.names.items()})


def unreadable(rules: Rules, name: str, error: str) -> GateResult:
    """Return the verdict on a run that exists but cannot be read. `error`: why the run cannot be read."""
    return GateResult(name, rules, (GateFault(FaultCode.RUN_UNREADABLE, {"error": error}),))


def _judged(run: GateInput, rule: GateRule, limit: Demand, checked: frozenset[rows.RowOutOfPlace]) -> _DemandRows:
    selected, elsewhere = completeness.selected(run, rule, limit)
    faults = list(completeness.absent(run, rule, limit, selected, elsewhere))
    sound = []
    for row in selected:
        of_row = list(rows.evidence(row, rule, limit, run.document.headers[row.job], checked))
        faults += of_row
        if not of_row:
            sound.append(row)
    if rule.network:
        for job in sorted({row.job for row in selected if row.num_nodes != 1}):
            faults += whole_run.other_network(run, job, rule.network)
    figures, missed = rows.figures(run, sound, limit)
    worst = min(figures, key=lambda figure: figure.margin, default=None)
    bad = {nodes.place(fault) for fault in missed}
    met = [figure.row for figure in figures if figure.margin >= 0 and nodes.place(figure.row) not in bad]
    return _DemandRows(JudgedDemand(rule.name, limit, len(selected), worst, (*faults, *missed)), selected, met)


def _faults_of(demands: Iterable[_DemandRows]) -> Iterator[GateFault]:
    return (fault for each in demands for fault in each.demand.faults)


def _once(found: Iterable[Summary]) -> list[Summary]:
    return list({id(row): row for row in found}.values())
