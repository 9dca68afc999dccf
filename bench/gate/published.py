"""What others reached on the same hardware, for a rule that asks for a share of it."""

from __future__ import annotations

from bench.core.record import Header
from bench.gate.gate_input import gpus_of
from bench.hardware import reference
from bench.hardware.catalogue import gpu_printed, instance, instances
from bench.results.document import Summary


def published(header: Header, row: Summary, metric: str) -> tuple[float, str] | None:
    """The figure of this pattern and size on as many ranks and nodes of this GPU, with its source: bytes per second of
    busbw, or seconds of a small operation. What is known to have been held back is none; None where there is none."""
    if row.num_ranks is None or row.num_nodes is None:
        return None
    gpu = _gpu(header)
    if gpu is None:
        return None
    for each in reference.same_shape(row.pattern, gpu, header.instance, row.num_nodes, row.num_ranks):
        point = each.near(row.payload_bytes) if metric == "busbw" else None
        seconds = each.small_s.get(row.payload_bytes) if metric == "time" else None
        figure = point[1] if point else seconds
        if figure is not None and each.limited is None:
            return figure, each.source
    return None


def _gpu(header: Header) -> str | None:
    """The one GPU model of all nodes, as they told it or as the named instance type has it; None for a mixture."""
    gpus = {gpu_printed(name) for name in gpus_of(header)}
    if not gpus and header.instance in instances():
        return instance(str(header.instance)).gpu
    return gpus.pop() if len(gpus) == 1 else None
