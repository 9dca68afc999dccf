"""Derive the evidence about a run of another tool: usable rows, ranks and nodes, bounds and published results."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from bench.core.codes import Coded
from bench.core.log_traits import log_traits
from bench.core.pattern import MessagePattern, Pattern, Shape, Traffic, traffic_of
from bench.explain.evidence import RunEvidence
from bench.explain.log_hints import Hint
from bench.explain.messages import AssessmentCode, CountCode
from bench.explain.own_source import is_own
from bench.explain.run_bounds import HALF_DIGIT, bounds_of_run, rows_above, usual_nic_use
from bench.hardware.catalogue import instance
from bench.hardware.machine import LogMachine
from bench.hardware.reference import Reference, same_shape
from bench.logs.foreign import ForeignRow, ForeignRun

# For n ranks, busbw / algbw is f (n-1)/n. This is f for each pattern.
_FACTORS = {"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0, "alltoall": 1.0}
_MOST_RANKS_OF_MESSAGES = 2048  # an import allows more ranks, because it computes the messages of each size only once
_ENDS = 2  # a test of a NIC has two ends, and counts as a transfer between two nodes
_MOST_GPUS = 16  # the most GPUs that a node on the market has
_USUAL_GPUS = 8
_POD = re.compile(r"(.*[a-z][a-z0-9]*-)\d{1,4}(?:\.|$)")  # the pods of a Kubernetes set: name-0, name-1


def gathered(
    run: ForeignRun,
    machine: LogMachine,
    pattern: Pattern | None,
    hints: Sequence[Hint] = (),
    num_nodes: int | None = None,
) -> RunEvidence:
    """Collect the evidence about a run of another tool.

    `pattern`: the pattern that the run names.
    `num_nodes`: the number of nodes that the user gave.
    """
    rows = []
    doubtful = []
    for row in run.rows:
        if _is_doubtful(row):
            doubtful.append(row)
        elif (row.payload_bytes or 0) > 0 and (row.time_s or row.busbw_bytes_per_s):
            rows.append(row)
    ranks, ranks_from = _ranks(run, rows)
    nodes, nodes_from = _nodes(run, machine, ranks, num_nodes)
    if pattern is not None and ranks is not None and not run.size_is_block:
        rows = [_with_rates(row, pattern, ranks) for row in rows]
    evidence = RunEvidence(
        run,
        machine,
        tuple(rows),
        ranks,
        nodes,
        counts=tuple(filter(None, (ranks_from, nodes_from))),
        hints=tuple(hints),
        doubtful=tuple(doubtful),
    )
    evidence = replace(evidence, misfit=_misfit(evidence, num_nodes))
    if ranks is None or nodes is None or evidence.hint("shared") or evidence.misfit:
        return evidence
    best = evidence.best
    if pattern is not None and best is not None:
        traffic = _traffic(pattern, best, ranks, nodes)
        if traffic.node_bytes and traffic.rank_bytes:
            evidence = replace(evidence, nic_share=traffic.node_bytes / traffic.rank_bytes)
        evidence = replace(evidence, nic_use=usual_nic_use(evidence, pattern.name))
        if machine.links is not None and not evidence.other_gpus:
            bounds = bounds_of_run(evidence, pattern.name, best, traffic)
            evidence = replace(evidence, bounds=bounds, above=rows_above(evidence.rows, bounds))
    return with_references(evidence)


def with_references(evidence: RunEvidence) -> RunEvidence:
    """Add the published results with the same numbers of ranks and nodes to the evidence.

    If this run was published, its own published result is left out.
    """
    run, machine = evidence.run, evidence.machine
    if not (run.pattern and evidence.num_nodes and evidence.num_ranks) or evidence.by_message_passing:
        return replace(evidence, references=())
    found = same_shape(run.pattern, machine.gpu, machine.instance, evidence.num_nodes, evidence.num_ranks)
    others = (each for each in found if is_comparable(evidence, each) and not is_own(evidence, each))
    return replace(evidence, references=tuple(others))


def is_comparable(evidence: RunEvidence, reference: Reference) -> bool:
    """Check whether a published result may be shown.

    For a run across nodes, a published result with a different or unknown network is not comparable. If the network of
    this run is unknown, the page shows all results, but they do not affect the verdict.
    """
    same_machine = reference.instance is not None and reference.instance == evidence.machine.instance
    if not evidence.crosses_nics or same_machine or not evidence.nics_known or reference.limited is not None:
        return True
    networks = [evidence.network_bytes_per_s]
    if evidence.num_ranks == evidence.num_nodes and evidence.machine.links is not None:
        networks.append(evidence.machine.links.nic_bytes_per_s)
    theirs = reference.network_bytes_per_s
    if theirs is None:
        return False
    return any(network is not None and abs(theirs / network - 1) < 0.01 for network in networks)


def _is_doubtful(row: ForeignRow) -> bool:
    """Check whether the row lacks numbers, or whether the tool's reader says that the row contradicts itself."""
    figures = (row.time_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s)
    infinite = any(figure is not None and not math.isfinite(figure) for figure in figures)
    return bool(row.contradicts or row.unreadable or infinite)


def _with_rates(row: ForeignRow, pattern: Pattern, num_ranks: int) -> ForeignRow:
    """Add bandwidths, computed from the time, to a row for which the tool printed no bandwidth."""
    algbw = row.algbw_bytes_per_s
    if row.busbw_bytes_per_s is None and isinstance(pattern, MessagePattern) and num_ranks > _MOST_RANKS_OF_MESSAGES:
        return row
    if algbw is None and row.time_s:
        algbw = (row.payload_bytes or 0) / row.time_s
    if row.busbw_bytes_per_s is not None or algbw is None:
        return row
    factor = traffic_of(pattern, Shape(num_ranks, row.payload_bytes or 0), None).bus_factor
    return replace(row, algbw_bytes_per_s=algbw, busbw_bytes_per_s=algbw * factor if factor else None)


def _traffic(pattern: Pattern, row: ForeignRow, ranks: int, nodes: int) -> Traffic:
    """Return the bytes that must leave a rank or a node.

    The bytes are unknown if the pattern has too many messages to compute.
    """
    if isinstance(pattern, MessagePattern) and ranks > _MOST_RANKS_OF_MESSAGES:
        return Traffic(None, None, None, 1)
    return traffic_of(pattern, Shape(ranks, row.payload_bytes or 0), nodes if ranks % nodes == 0 else None)


def _ranks(run: ForeignRun, rows: Sequence[ForeignRow]) -> tuple[int | None, Coded | None]:
    """Return the number of ranks, and how this number was derived.

    If the log does not state the number of ranks, this function derives the number from busbw / algbw. The number is
    None if it is unknown.
    """
    if run.num_ranks is not None:
        return run.num_ranks, None
    factor = _FACTORS.get(run.pattern or "")
    low, high = 2.0, math.inf
    for row in rows:
        if factor is None or not row.algbw_bytes_per_s or not row.busbw_bytes_per_s:
            continue
        algbw, bus = row.algbw_bytes_per_s, row.busbw_bytes_per_s
        least, most = (bus - HALF_DIGIT) / (algbw + HALF_DIGIT), (bus + HALF_DIGIT) / max(algbw - HALF_DIGIT, 1.0)
        if least >= factor:
            return None, None
        low = max(low, factor / (factor - least))
        high = min(high, factor / (factor - most) if most < factor else math.inf)
    candidates = range(math.ceil(low), math.floor(high) + 1) if high < 10_000 else range(0)
    if factor is None or len(candidates) != 1:
        return None, None
    num_ranks = candidates[0]
    ratio = factor * (num_ranks - 1) / num_ranks
    return num_ranks, Coded.of(CountCode.RANKS_FROM_RATES, num_ranks=num_ranks, ratio=ratio)


def _nodes(
    run: ForeignRun, machine: LogMachine, ranks: int | None, given: int | None
) -> tuple[int | None, Coded | None]:
    """Return the number of nodes, and a message about the origin of this number.

    If the log states the number, there is no message (None).
    """
    if given is not None:
        return given, Coded.of(CountCode.NODES_GIVEN, num_nodes=given)
    in_log = run.num_nodes or (len(run.hosts) or None)
    nics = machine.links is not None and machine.links.nic_bytes_per_s is not None
    if in_log is None and nics and ranks == _ENDS and log_traits(run.tool).nic_test:
        return _ENDS, None
    # an excerpt of the list of ranks may name only some hosts
    most = _MOST_GPUS if run.num_nodes else _USUAL_GPUS
    if in_log is not None and (in_log == 1 or not run.num_nodes) and (ranks or 0) > in_log * most:
        in_log = None
    per_node = machine.links.gpus if machine.instance and machine.links else None
    if ranks is not None and in_log == len(run.hosts) and (per_node is None or ranks <= in_log * per_node):
        return in_log, _may_be_pods(run, machine, ranks)
    if per_node is None or ranks is None:
        return in_log, None
    needed = -(-ranks // per_node)
    if in_log is not None and in_log >= needed:
        return in_log, None
    return needed, Coded.of(CountCode.NODES_FROM_GPUS, num_nodes=needed, num_gpus=per_node)


def _may_be_pods(run: ForeignRun, machine: LogMachine, ranks: int) -> Coded | None:
    """Return a warning that the number of nodes may be wrong because the hosts may be pods.

    Otherwise return None.

    Hosts may be pods if their names end in numbers and the hosts have few ranks. "Few" means at most half as many ranks
    per host as a node has GPUs.
    """
    names = (machine.instance,) if machine.instance else machine.candidates
    gpus = min((instance(name).gpus for name in names), default=_USUAL_GPUS)
    num = len(run.hosts)
    stems = set()
    for host in run.hosts:
        numbered = _POD.match(host)
        if numbered is None:
            return None
        stems.add(numbered[1])
    if num < 2 or len(stems) != 1 or ranks > num * gpus // 2:
        return None
    return Coded.of(CountCode.NODES_MAY_BE_PODS, num_nodes=num)


def _misfit(evidence: RunEvidence, given: int | None) -> Coded | None:
    """Return why the user's number of nodes is impossible for this number of ranks; None if it is possible."""
    ranks = evidence.num_ranks
    if given is None or ranks is None:
        return None
    per_node, left = divmod(ranks, given)
    if left:
        return Coded.of(AssessmentCode.RANKS_DO_NOT_DIVIDE, num_ranks=ranks, num_nodes=given)
    machine, links = evidence.machine, evidence.machine.links
    if machine.instance and links and per_node > links.gpus and not evidence.by_message_passing:
        return Coded.of(
            AssessmentCode.TOO_MANY_RANKS,
            num_ranks=ranks,
            num_nodes=given,
            per_node=per_node,
            instance=machine.instance,
            num_gpus=links.gpus,
        )
    return None
