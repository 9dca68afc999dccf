"""Explain a training job from its ranks' traces: the parts of its steps, late ranks, and changes that would help."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from bench.core.step_trace import RankTrace
from bench.job.causes import Known, causes_of, limit_of
from bench.job.exchanges import copies_of, exchanges_of
from bench.job.graph import Graph
from bench.job.lateness import late_of, late_ranks
from bench.job.matching import job_of
from bench.job.model import Explained, TracedJob
from bench.job.network import Network
from bench.job.parts import steps_of, timelines_of
from bench.job.what_if import WhatIfs


def explain(traces: Iterable[RankTrace], network: Network | None = None) -> Explained:
    """Return the explanation of a job from its traces. Raises UsageError if the files contain no trace of a rank."""
    return explained(job_of(traces), network)


def explained(job: TracedJob, network: Network | None = None) -> Explained:
    """Return the explanation of a matched job.

    `network`: the links of the machine; None if the user did not name the machine.
    """
    timelines = timelines_of(job)
    steps = steps_of(job, timelines)
    if not job.num_steps:
        return Explained(job, steps, None, (), (), (), (), 0.0)
    graph = Graph(job, timelines)
    step_s = median(graph.recorded())
    limit_s = limit_of(job, step_s)
    late = late_of(job, timelines)
    ranks = late_ranks(late, limit_s, job.num_steps)
    replays = WhatIfs(job, timelines, graph, network)
    causes = causes_of(Known(job, steps, late, ranks, replays, step_s, limit_s))
    return Explained(
        job,
        steps,
        step_s,
        late,
        ranks,
        tuple(replays.named()),
        causes,
        limit_s,
        exchanges_of(job, graph, network),
        copies_of(job, timelines),
        max(abs(replayed - recorded) / recorded for recorded, replayed in graph.closure()),
    )
