"""Is this number normal? One page about one run: what it is, what is possible, what others got, where it stands, why.

Every sentence follows from the run's own rows and lines, from bounds on its links, or from a published result; none is
there without its evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.core.links import Bound
from bench.core.log_traits import log_traits
from bench.core.pattern import Pattern
from bench.core.units import format_bytes, format_rate
from bench.explain import copies, copy_reasons
from bench.explain.assessment import ABOVE, LIKE, NORMAL, Assessment, shown, stand, tightest
from bench.explain.evidence import RunEvidence, busbw, gathered
from bench.explain.failures import failure_reason
from bench.explain.log_evidence import Hint, Listener
from bench.explain.reason import Reason
from bench.explain.reasons import reasons, small_sizes
from bench.explain.remarks import remarks
from bench.hardware.machine import LogMachine
from bench.hardware.reference import Reference, best_of_each
from bench.logs.foreign import TRUNCATED, ForeignRow, ForeignRun
from bench.logs.messages import LogCode

__all__ = [
    "ABOVE",
    "LIKE",
    "NORMAL",
    "Hint",
    "Listener",
    "LogMachine",
    "Page",
    "Reason",
    "RunEvidence",
    "page",
    "page_of",
]

_MOST_OTHERS, _MOST_ANYWHERE = 4, 6
_NEAR = 0.25  # a result that was held back is shown where ours is as near as this
_ENOUGH_OF_BOUND = 0.5  # a normal result below this share of its bound still deserves its reason


@dataclass(frozen=True, slots=True)
class Page:
    """The answer, in the order in which it is printed; rates in bytes per second. `share`: of the bound `bound`."""

    title: str
    line: int  # of the log, where the run begins
    got: tuple[str, ...]
    possible: tuple[str, ...]
    others: tuple[str, ...]
    standing: Assessment
    reasons: tuple[Reason, ...]
    remarks: tuple[str, ...]
    machine: str
    num_ranks: int | None = None
    num_nodes: int | None = None
    best: ForeignRow | None = None
    bound: Bound | None = None
    share: float | None = None
    source: str = ""  # the file that it comes from


def page(
    run: ForeignRun,
    machine: LogMachine,
    pattern: Pattern | None,
    hints: Sequence[Hint] = (),
    num_nodes: int | None = None,
) -> Page:
    """The page about one run of a foreign tool. `pattern`: the one that the run names, None where it has none."""
    if (run.matrices or log_traits(run.tool).copies) and not run.rows:
        return _of_copies(run, copies.gathered(run, machine, hints))
    return page_of(gathered(run, machine, pattern, hints, num_nodes))


def page_of(seen: RunEvidence) -> Page:
    """The page about rows."""
    standing, bound = stand(seen), tightest(seen)
    failure = failure_reason(seen.run, seen.num_wrong, len(seen.rows) + len(seen.doubtful))
    found: tuple[Reason, ...] = (failure,) if failure else ()
    share = (
        busbw(seen.best) / bound.bytes_per_s
        if seen.best and bound and not seen.num_wrong and not seen.modelled
        else None
    )
    if (
        not seen.num_wrong
        and not seen.modelled
        and not seen.other_gpus
        and not seen.misfit
        and (standing.word != NORMAL or (share is not None and share < _ENOUGH_OF_BOUND))
    ):
        found += reasons(seen)
    elif not seen.num_wrong and not seen.modelled and (short := small_sizes(seen)):
        found += (short,)
    return Page(
        title=_title(seen),
        line=seen.run.line,
        got=tuple(_got(seen)),
        possible=tuple(_possible(seen)),
        others=tuple(_others(seen)),
        standing=standing,
        reasons=found,
        remarks=() if seen.num_wrong or seen.modelled or seen.misfit else remarks(seen),
        machine=seen.machine.how,
        num_ranks=seen.num_ranks,
        num_nodes=seen.num_nodes,
        best=None if seen.num_wrong else seen.best,
        bound=bound,
        share=share,
    )


def _of_copies(run: ForeignRun, copying: copies.Copying) -> Page:
    failure = failure_reason(run, 0, 0)
    return Page(
        title=f"copies, by {_tool(run)}",
        line=run.line,
        got=(*_state(run), *copies.got(copying), f"machine: {copying.machine.how}"),
        possible=tuple(copies.possible(copying)) or ("no copy over a link has a rate to set beside a bound",),
        others=tuple(copies.others(copying)) or ("nothing is known here of this machine or GPU",),
        standing=copies.stand(copying),
        reasons=((failure,) if failure else ()) + copy_reasons.reasons(copying),
        remarks=tuple(copies.remarks(copying)),
        machine=copying.machine.how,
    )


def _title(seen: RunEvidence) -> str:
    run = seen.run
    ranks = f", {seen.num_ranks} rank{'s' if seen.num_ranks != 1 else ''}" if seen.num_ranks else ""
    nodes = f" on {seen.num_nodes} node{'s' if seen.num_nodes != 1 else ''}" if seen.num_nodes else ""
    return f"{run.pattern or 'an unknown operation'}{ranks}{nodes}, by {_tool(run)}"


def _tool(run: ForeignRun) -> str:
    return run.tool.replace("_", "-") + (f" {run.tool_version}" if run.tool_version else "")


def _got(seen: RunEvidence) -> Iterator[str]:
    """Wrong data and lost lines first, then the machine, the best figure and the small-message time."""
    run, best = seen.run, seen.best
    if seen.modelled:
        yield "MODELLED: arithmetic on the links, nothing was measured"
    if seen.num_wrong:
        yield _wrong(seen)
    if seen.doubtful:
        yield _doubtful(seen)
    yield from _state(run)
    yield from (f"counted: {words}" for words in seen.counted)
    if best is None:
        yield "no row with a bandwidth"
    elif not seen.num_wrong:
        where = "in place" if best.in_place else "out of place"
        yield (
            f"{format_rate(busbw(best))} of busbw at {format_bytes(best.payload_bytes or 0)} ({where}), the best "
            f"of {len(seen.rows)} rows{_flatness(seen)}"
        )
        if rate := seen.carried_bytes_per_s:
            how = (
                "round a ring of all ranks"
                if seen.by_ring
                else "if nothing crosses them twice or is reduced on the way"
            )
            yield f"that is {format_rate(rate)} each way through each node's NICs, {how}"
    yield from _heard(seen)
    if seen.small_s is not None and not seen.num_wrong:
        yield f"{seen.small_s * 1e6:.3g} us for messages up to 1 KiB (median)"
    yield f"machine: {seen.machine.how}"
    if seen.machine.unknown and not seen.machine.instance:
        yield f"not known: {', '.join(seen.machine.unknown)}"


def _doubtful(seen: RunEvidence) -> str:
    """The rows that count for nothing, in one sentence."""
    lines = [str(row.line) for row in seen.doubtful if row.line][:4]
    where = f" (line {', '.join(lines)}{', ...' if len(seen.doubtful) > 4 else ''})" if lines else ""
    total = len(seen.doubtful) + len(seen.rows)
    first = seen.doubtful[0]
    why = (
        first.contradicts.text
        if first.contradicts
        else (f"{', '.join(first.unreadable)} is no number" if first.unreadable else "")
    )
    said = f"LEFT OUT: {len(seen.doubtful)} of {total} rows contradict themselves or are no numbers{where}"
    return f"{said}: {format_bytes(first.payload_bytes or 0)}: {why}" if why else said


def _heard(seen: RunEvidence) -> Iterator[str]:
    """What NCCL said of itself."""
    said = {kind: hint.value for kind in ("nccl", "network", "channels") if (hint := seen.hint(kind))}
    nics = seen.nics_heard
    words = [f"NCCL {said['nccl']}"] if "nccl" in said else []
    words += [f"network {said['network']}"] if "network" in said and seen.over_nics else []
    if nics and seen.over_nics:
        direct = any("GDRDMA" in hint.value for hint in seen.hints if hint.kind == "path")
        words.append(f"{nics} NIC{'s' if nics > 1 else ''} {'with' if direct else 'without'} GPU Direct RDMA")
    words += [f"{said['channels']} channels"] if "channels" in said else []
    if words:
        yield f"the log says: {', '.join(words)}"


def _state(run: ForeignRun) -> Iterator[str]:
    if run.status != "ok":
        whole = "; explain the whole log, if there is one" if run.status == TRUNCATED else ""
        yield f"status: {run.status}{f': {run.failure.text}' if run.failure else ''}{whole}"
    waived = [remark for remark in run.remarks if remark.code == LogCode.WAIVED]
    lost = [remark for remark in run.remarks if remark.line is not None and remark not in waived]
    if len(waived) > 1:
        lines = f"lines {waived[0].line} to {waived[-1].line}"
        yield f"{len(waived)} tests were waived ({lines}): the tool says that they can not run here"
    if lost:
        told = "; ".join(remark.words for remark in lost[:3])
        more = f"; and {len(lost) - 3} more" if len(lost) > 3 else ""
        yield f"the log has {len(lost)} remark{'s' if len(lost) > 1 else ''}: {told}{more}"


def _wrong(seen: RunEvidence) -> str:
    every = (*seen.rows, *seen.doubtful)
    rows = [row for row in every if row.num_wrong]
    worst = max(rows, key=lambda row: row.num_wrong or 0)
    said = f"WRONG DATA in {len(rows)} of {len(every)} rows: {worst.num_wrong} wrong elements"
    said += f" at {format_bytes(worst.payload_bytes or 0)}"
    elements = [(row.num_wrong or 0) / row.num_elements for row in rows if row.num_elements]
    ranks = seen.num_ranks
    if ranks and len(elements) == len(rows) and all(abs(share / ranks - 1) < 0.001 for share in elements):
        said += f", which is every element of every one of {ranks} ranks, at every size"
    return said


def _flatness(seen: RunEvidence) -> str:
    flat = seen.flat_from
    return f"; flat within 5 % from {format_bytes(flat)} on" if flat and flat < (seen.largest_bytes or 0) else ""


def _possible(seen: RunEvidence) -> Iterator[str]:
    best = seen.best
    if not seen.bounds or best is None:
        yield f"no bound is known: {_unknown(seen)}"
        return
    for bound in _telling(seen):
        bridge = ", if there is a bridge" if seen.bridge_unknown and bound.kind == "hard" else ""
        kind = "hard bound" if bound.kind == "hard" else "reference, may be exceeded"
        reached = "" if seen.num_wrong or seen.modelled else f", reached {busbw(best) / bound.bytes_per_s:.0%}"
        doubt = "" if bound.verified else "; not verified"
        name = f"{bound.name} ({kind}{bridge})"
        yield f"{format_rate(bound.bytes_per_s)} by {name}{reached}: {bound.why} [{bound.source}{doubt}]"
    if seen.over_nics and seen.network_bytes_per_s is None:
        yield "what the NICs of a node carry is not known, and so no bound on the network"


def _telling(seen: RunEvidence) -> list[Bound]:
    """The bounds that tell something: the tightest first; across nodes, of the references only the network's."""
    first = shown(seen)
    found = [
        bound for bound in seen.bounds if bound.kind == "hard" or not seen.over_nics or bound.name.startswith("network")
    ]
    return sorted(found, key=lambda bound: bound is not first)


def _unknown(seen: RunEvidence) -> str:
    if seen.hint("shared"):
        return "ranks that share a GPU may exchange everything inside it"
    if seen.misfit:
        return "the ranks do not fit the nodes"
    if seen.other_gpus:
        return f"{seen.machine.instance} is not the log's machine, whose GPU is {', '.join(seen.other_gpus)}"
    if seen.machine.links is None:
        return "the machine is not (name it: --instance)"
    if seen.num_ranks is None:
        return "the number of ranks is not (say it: --num-ranks)"
    if seen.num_nodes is None:
        return "the number of nodes is not (say it: --num-nodes)"
    return "of this pattern, or of these links"


def _others(seen: RunEvidence) -> Iterator[str]:
    if seen.num_wrong:
        yield "not compared: the data were wrong"
        return
    if seen.misfit:
        yield "not compared: the ranks do not fit the nodes"
        return
    if seen.other_gpus:
        yield f"not compared: {seen.machine.instance} is not the log's machine"
        return
    if seen.of_hosts:
        yield "not compared: what is known here was measured by NCCL between GPUs, and this is another library"
        return
    found: Sequence[Reference] = ()
    if seen.machine.links is None and seen.run.pattern and seen.num_ranks:
        found = best_of_each(seen.run.pattern, seen.num_ranks, seen.num_nodes)[:_MOST_ANYWHERE]
        yield from (f"as many ranks on another machine: {_reference(each, True)}" for each in found)
    if not found and not seen.references:
        yield "nobody's result of this pattern with as many ranks and nodes on such links is known here"
    good = [each for each in seen.references if each.limited is None]
    rate = busbw(seen.best) if seen.best else 0.0
    limited = [each for each in seen.references if each.limited and abs(each.best[1] - rate) < _NEAR * rate]
    for each in good[:_MOST_OTHERS] + limited[:2]:
        yield _reference(each, seen.over_nics)


def _reference(each: Reference, over_nics: bool) -> str:
    size, rate = each.best
    nics = each.network_bytes_per_s if over_nics else None
    network = f", {format_rate(nics)} of NICs per node" if nics else ""
    held = f", held back: {each.limited}" if each.limited else ""
    note = f", {each.note}" if each.note else ""
    where = f"{format_rate(rate)} at {format_bytes(size)} on {each.instance or each.gpu}"
    return f"{where}{network}{note}{held} [{each.source}]"
