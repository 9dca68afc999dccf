"""How long each exchange of a job was on the wire."""

from __future__ import annotations

from bench.job.graph import Graph
from bench.job.model import TracedJob
from bench.job.parts import timelines_of


def transfers_s(job: TracedJob) -> list[float]:
    """The seconds of each collective from when its ranks and its lane were ready."""
    graph = Graph(job, timelines_of(job))
    return [graph.transfer_s(index) or 0.0 for index in range(len(job.collectives))]
