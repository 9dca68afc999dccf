"""Run the `model` transport: one process simulates all ranks on a fabric, with a virtual clock and no checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench.core import plugins
from bench.core.case import Case
from bench.core.contention import Parts, parts, rounds, shape_of_aggressors, useful_bytes
from bench.core.errors import UsageError
from bench.core.fabric import Fabric
from bench.core.flows import MemberSteps
from bench.core.links import NodeLinks
from bench.core.pattern import Pattern, Shape
from bench.core.program import Group, Round, is_device_work
from bench.core.record import Contention, Header, Record, Samples, Skip, StopReason
from bench.core.remarks import CodedRemark
from bench.core.skips import SkipCode
from bench.core.traits import names_with
from bench.core.transport import Options
from bench.core.world import World
from bench.hardware import catalogue
from bench.rank.header import described, ignored_options, links_of
from bench.rank.messages import RankRefusal, RankRemark, RankSkip
from bench.rank.rows import traffic_of_round

if TYPE_CHECKING:
    from bench.transports.model import FabricModel


def header_and_rows(case: Case, job: str) -> tuple[Header, Iterator[tuple[Record, ...]]]:
    """Return the header and the rows of a modelled case. Raises UsageError if the case names no instance type."""
    if not case.instance:
        raise UsageError.of(RankRefusal.MODEL_INSTANCE)
    if not case.traits.modelled:
        case = replace(case, transport=names_with("modelled")[0])
    pattern: Pattern = plugins.load("pattern", case.pattern).PATTERN
    world = World(case.nodes or 1, case.ranks_per_node or catalogue.node_links(case.instance).gpus)
    links = NodeLinks.from_dict(links_of(case, world))
    model = plugins.load("transport", case.transport).TRANSPORT(Fabric(links, world), Options(case=case))
    remark = CodedRemark.of(
        RankRemark.MODELLED,
        num_nodes=world.num_nodes,
        ranks_per_node=world.ranks_per_node,
        instance=case.instance,
    )
    remarks = [remark, *ignored_options(case, pattern)]
    head = Header(
        **described(case, pattern, world, job),
        clock="virtual",
        modelled=True,
        facts=model.facts(),
        settings={"seed": case.seed},
        links=links.to_dict(),
        notes=tuple(each.text for each in remarks),
        remarks=tuple(remarks),
    )
    return head, rows(case, pattern, world, model)


def rows(case: Case, pattern: Pattern, world: World, model: FabricModel) -> Iterator[tuple[Record, ...]]:
    """Yield each row's records: exactly one virtual sample per group."""
    hosts = tuple(f"modelled-{rank // world.ranks_per_node}" for rank in range(world.num_ranks))
    row = partial(_row, case, pattern, model, hosts, parts(case, world))
    if case.is_ladder and pattern.topology == "pairs" and world.num_ranks > 1:
        from bench.rank import ladder

        payload, requested = max(case.payloads(pattern, 2).items())
        where = ladder.places(case, hosts, world.ranks_per_node, "device")
        shape = case.shape(2, payload, case.modes[0])
        yield from ladder.measure_rounds(case, where, lambda asked: asked, True, partial(row, shape, requested))
        return
    all_rounds = rounds(case, world, pattern.topology_of(case.topology))
    num_ranks = len(all_rounds[0][0].ranks)
    for payload, requested in case.payloads(pattern, num_ranks).items():
        for mode in case.modes:
            shape = case.shape(num_ranks, payload, mode)
            for groups in all_rounds:
                yield row(shape, requested, groups)


def _row(
    case: Case,
    pattern: Pattern,
    model: FabricModel,
    hosts: tuple[str, ...],
    split: Parts | None,
    shape: Shape,
    requested_all: tuple[int, ...],
    groups: Round,
) -> tuple[Record, ...]:
    reason = pattern.needs(shape) or _unsupported_reason(pattern, shape)
    seconds: Sequence[float] = (0.0,) * len(groups)
    disturbed: Sequence[Contention | None] = (None,) * len(groups)
    steps = tuple(pattern.steps(shape, member) for member in range(shape.num_ranks)) if reason is None else ()
    if reason is None and split is not None:
        seconds, disturbed = _against(
            case, model, groups, (steps,) * len(groups), split.aggressors, pattern.operations(shape)
        )
    elif reason is None:
        seconds = model.simulate(groups, (steps,) * len(groups))
    return tuple(
        Record(
            mode=shape.mode,
            requested_bytes=requested_all,
            in_place=case.in_place,
            modelled=True,
            algorithm=None if reason else model.algorithm_used,
            stop_reason=None if reason else StopReason.EXACT,
            skipped=reason,
            samples=None if reason else Samples((took / pattern.operations(shape),), loop="virtual"),
            contention=contention,
            **own_traffic,
        )
        for own_traffic, took, contention in zip(
            traffic_of_round(pattern, shape, groups, hosts), seconds, disturbed, strict=True
        )
    )


def _against(
    case: Case, model: FabricModel, groups: Round, steps: tuple[MemberSteps, ...], aggressors: Group, operations: int
) -> tuple[list[float], list[Contention]]:
    """Return two lists with one element per group: the seconds while aggressors run, and the contention record.

    The contention record contains the group's time without aggressors.
    """
    other, shape = shape_of_aggressors(case, len(aggressors.ranks))
    theirs = tuple(other.steps(shape, member) for member in range(shape.num_ranks))
    alone_s, disturbed_s = model.contend(groups, steps, aggressors, theirs)
    useful = useful_bytes(other, shape)
    return disturbed_s[:-1], [
        Contention(
            other.name,
            shape.payload_bytes,
            shape.num_ranks,
            1,
            (seconds / operations,),
            (useful / disturbed_s[-1],),
            useful / alone_s[-1],
        )
        for seconds in alone_s[:-1]
    ]


def _unsupported_reason(pattern: Pattern, shape: Shape) -> Skip | None:
    """Return why the fabric cannot simulate a pattern. Return None if the simulation is possible.

    The fabric simulates only the links between ranks, and not the GPUs themselves.
    """
    if pattern.trains:
        return Skip.of(RankSkip.MODEL_STEP)
    if pattern.replays:
        return Skip.of(RankSkip.MODEL_REPLAY)
    if pattern.bursts:
        return Skip.of(SkipCode.DEVICE_WORK, transport="the model")
    if pattern.overlaps:
        return Skip.of(RankSkip.MODEL_OVERLAP)
    for member in range(shape.num_ranks):
        for step in pattern.steps(shape, member):
            if is_device_work(step):
                return Skip.of(SkipCode.DEVICE_WORK, transport="the model")
    return None
