"""Read the record that `linkbench job record` writes next to the traces: each rank's CPUs and its waits for a CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.core import spans
from bench.core.codes import Coded
from bench.core.step_trace import RankCpus, RankTrace
from bench.logs.archives import ArchiveError
from bench.logs.trace_messages import TraceCode
from bench.logs.traces import _open

_SCHEMA = b'"bench.cpus/1"'
_MOST_BYTES = 64 << 20


class CpuRecord:
    """Reads the record of one host."""

    name = "cpus"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Check whether the first bytes contain the schema's name."""
        return head.lstrip().startswith(b"{") and _SCHEMA in head[:64]

    def read(self, path: Path) -> Iterator[RankTrace]:
        """Yield a trace without events for each rank. Raises OSError, or NoTraceError if the record is damaged."""
        try:
            document = json.loads(_content(path))
            ranks = {int(rank): _cpus(document, own) for rank, own in document["ranks"].items()}
            host = str(document["host"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArchiveError):
            raise _open.NoTraceError(Coded.of(TraceCode.DAMAGED, source=str(path), num=0)) from None
        for rank, cpus in ranks.items():
            yield RankTrace(str(path), False, spans.NONE, np.empty(0), rank=rank, host=host, cpus=cpus)


READER = CpuRecord()


def _content(path: Path) -> bytes:
    content = b""
    for piece in _open.pieces(path):
        content += piece
        if len(content) > _MOST_BYTES:
            raise ValueError
    return content


def _cpus(document: Mapping[str, Any], own: Mapping[str, Any]) -> RankCpus:
    """Return the CPUs of a rank. Raises ValueError, TypeError or KeyError if a value is missing or has a wrong type."""
    columns = [np.array(one, dtype=np.float64) for one in (document["times"], own["used_s"], own["waited_s"])]
    if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1 or not np.isfinite(columns).all():
        raise ValueError
    quota = document["quota_cpus"]
    return RankCpus(frozenset(map(int, own["cpus"])), None if quota is None else float(quota), *columns)
