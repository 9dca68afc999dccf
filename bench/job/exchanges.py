"""Summarise the exchanges and copies of a job by type, with the rates that the links reach without other work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from bench.core import spans
from bench.core.step_trace import Direction, StepPart
from bench.job.graph import Graph
from bench.job.model import Copies, ExchangeKind, TracedJob
from bench.job.network import Network
from bench.job.parts import RankTimeline


def exchanges_of(job: TracedJob, graph: Graph, network: Network | None) -> list[ExchangeKind]:
    """Return the job's collectives by type. The type with the longest time per step comes first."""
    kinds: dict[tuple[str, int | None, str | None, int | None], list[int]] = defaultdict(list)
    for index, one in enumerate(job.collectives):
        kinds[one.op, one.num_bytes, one.dtype, one.group_size or len(one.parts)].append(index)
    found = []
    for (op, num_bytes, dtype, size), indices in kinds.items():
        transfers = [seconds for index in indices if (seconds := graph.transfer_s(index)) is not None]
        first = job.collectives[indices[0]]
        alone = network.alone(first) if network else None
        calls = sum(len(job.collectives[index].parts) for index in indices)
        found.append(
            ExchangeKind(
                op,
                num_bytes,
                dtype,
                size,
                len({job.collectives[index].group for index in indices}),
                calls / len(job.traces) / max(job.num_steps, 1),
                median(transfers) if transfers else None,
                alone.ideal_s if alone else None,
                alone.low_s if alone else None,
                alone.high_s if alone else None,
            )
        )
    return sorted(found, key=lambda one: -(one.transfer_s or 0.0) * one.num_per_step)


def copies_of(job: TracedJob, timelines: Mapping[int, RankTimeline]) -> list[Copies]:
    """Return the copies between host and device, for each direction and type of host memory (pinned or pageable)."""
    found = []
    kinds = {(one.direction, one.pinned) for trace in job.traces.values() for one in trace.copies}
    for direction, pinned in sorted(kinds, key=str):
        if direction not in (Direction.H2D, Direction.D2H):
            continue
        sizes, rates, exposed = [], [], []
        for rank, trace in job.traces.items():
            own = [one for one in trace.copies if (one.direction, one.pinned) == (direction, pinned)]
            if not own:
                continue
            union = spans.union(spans.of((one.start_s, one.end_s) for one in own))
            num_bytes = sum(one.num_bytes or 0 for one in own)
            sizes.append(num_bytes / job.num_steps)
            rates.append(num_bytes / max(sum(one.end_s - one.start_s for one in own), 1e-9))
            exposed.append(
                spans.total(spans.both(union, timelines[rank].by_part[StepPart.EXPOSED_COPY])) / job.num_steps
            )
        found.append(Copies(direction, pinned, median(sizes), median(rates), median(exposed)))
    return found
