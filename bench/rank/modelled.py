"""Rows of the `model` transport: one process, all ranks simulated on a fabric, a virtual clock, nothing verified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.core.case import Case
from bench.core.pattern import Pattern
from bench.core.record import Record, Samples
from bench.core.topology import rounds
from bench.core.world import World
from bench.rank.rows import payloads, shape_of, traffic

if TYPE_CHECKING:
    from bench.transports.model import Model


def rows(case: Case, pattern: Pattern, world: World, model: Model) -> Iterator[tuple[Record, ...]]:
    """Each row's records: exactly one virtual sample per group."""
    hosts = tuple(f"modelled-{rank // world.ranks_per_node}" for rank in range(world.num_ranks))
    all_rounds = rounds(world, pattern.topology or case.topology, case.order)
    num_ranks = len(all_rounds[0][0].ranks)
    for payload, requested_all in payloads(case, pattern, num_ranks).items():
        for mode in case.modes:
            shape = shape_of(case, num_ranks, payload, mode)
            for groups in all_rounds:
                reason = pattern.needs(shape)
                seconds: tuple[float, ...] = (0.0,) * len(groups)
                if reason is None:
                    steps = tuple(pattern.steps(shape, member) for member in range(num_ranks))
                    seconds = model.simulate(groups, (steps,) * len(groups))
                yield tuple(
                    Record(
                        mode=mode,
                        requested_bytes=requested_all,
                        in_place=case.in_place,
                        modelled=True,
                        algorithm=None if reason else model.algorithm_used,
                        stop_reason=None if reason else "exact",
                        skipped=reason,
                        samples=None if reason else Samples((took / pattern.operations(shape),), loop="virtual"),
                        **traffic(pattern, shape, group, hosts),
                    )
                    for group, took in zip(groups, seconds, strict=True)
                )
