"""What a recorded step would take on another machine: its exchanges predicted there, its compute scaled.

The recorded steps are replayed with the exchanges' times of the other machine. A step's interval comes from replays at
the low and the high end of all exchanges and of the compute; both ends at once are wider than either is likely to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from statistics import median
from typing import Any

from bench.core.errors import UsageError
from bench.core.units import format_duration
from bench.hardware import catalogue
from bench.job.graph import Graph, GraphChange, Transfer
from bench.job.model import TracedJob
from bench.job.network import Network
from bench.job.parts import timelines_of
from bench.predict.select_page import LETTERS
from bench.results import text
from bench.results.table import Block, Column, Heading, Lines, Report, Table

SCHEMA = "bench.job_predict/1"
_MODEL_SPREAD = 1.15  # assumed: by how much a GPU's real ratio deviates from that of its data sheet's rates


@dataclass(frozen=True, slots=True)
class ComputeFactor:
    """Seconds of compute there / recorded seconds. basis: "given", "assumed" (data sheets) or "recorded" (the same)."""

    low: float
    middle: float
    high: float
    basis: str


@dataclass(frozen=True)
class Elsewhere(Report):
    """A job on another machine. num_predicted: exchanges whose time there is predicted; the others keep their own."""

    job: TracedJob
    network: Network
    num_nodes: int
    factor: ComputeFactor

    @cached_property
    def _graph(self) -> Graph:
        return Graph(self.job, timelines_of(self.job))

    @cached_property
    def recorded_s(self) -> float:
        """The recorded step of the slowest rank, the median over steps."""
        return median(self._graph.recorded())

    @cached_property
    def replayed_s(self) -> float:
        """The same by a replay without a change: the closure test."""
        return median(self._graph.steps())

    @cached_property
    def predicted_s(self) -> tuple[float, float, float]:
        """The low, middle and high step on the other machine."""
        factors = (self.factor.low, self.factor.middle, self.factor.high)
        changes = [
            GraphChange(transfer=self._transfer(end), compute_factor=factor) for end, factor in enumerate(factors)
        ]
        low, middle, high = (median(self._graph.steps(change)) for change in changes)
        return low, middle, high

    @cached_property
    def bases(self) -> list[str]:
        """The kinds of evidence of the exchanges."""
        return sorted({alone.basis for one in self.job.collectives if (alone := self.network.alone(one)) is not None})

    @cached_property
    def num_predicted(self) -> int:
        """Of how many exchanges the time there is known."""
        return sum(self.network.alone(one) is not None for one in self.job.collectives)

    def _transfer(self, end: int) -> Transfer:
        """Return the transfers at the low (0), the middle (1) or the high (2) end of their intervals."""

        def transfer(index: int, own_s: float) -> float:
            alone = self.network.alone(self.job.collectives[index])
            return own_s if alone is None else (alone.low_s, alone.centre_s, alone.high_s)[end]

        return transfer

    def blocks(self) -> Iterable[Block]:
        """Yield the predicted step, and what it rests on."""
        low, middle, high = self.predicted_s
        times = f"{format_duration(middle)} [{format_duration(low)} .. {format_duration(high)}]"
        where = f"{text.count(self.num_nodes, 'node')} of {self.network.name}"
        yield Heading(f"a step takes {times} on {where}, and {format_duration(self.recorded_s)} as recorded")
        rows = [
            (
                "compute",
                f"x {self.factor.middle:.3g} [{self.factor.low:.3g} .. {self.factor.high:.3g}]",
                self.factor.basis,
            ),
            ("exchanges", f"{self.num_predicted} of {len(self.job.collectives)} predicted", ", ".join(self.bases)),
        ]
        columns = [
            Column("part", lambda row: str(row[0]), right=False),
            Column("there", lambda row: str(row[1]), right=False),
            Column("rests on", lambda row: str(row[2]), right=False),
        ]
        yield Table(columns, rows)
        closure = abs(self.replayed_s - self.recorded_s) / self.recorded_s
        lines = [f"closure: replayed with its own times, the step differs by {closure:.2%} from the recorded one"]
        if self.num_predicted < len(self.job.collectives):
            lines.append("exchanges of unknown size or kind keep their recorded time")
        lines += ["waiting for input, host gaps and copies keep their recorded time", *self._unnamed()]
        yield Lines(lines)

    def _unnamed(self) -> Iterable[str]:
        if self.factor.basis == "recorded":
            yield "the compute keeps its recorded time: give --compute-factor, or traces that name their GPU"

    def data(self) -> Mapping[str, Any]:
        """Return the prediction as JSON, in seconds."""
        low, middle, high = self.predicted_s
        return {
            "schema": SCHEMA,
            "instance": self.network.name,
            "num_nodes": self.num_nodes,
            "step_s": middle,
            "step_low_s": low,
            "step_high_s": high,
            "recorded_step_s": self.recorded_s,
            "replayed_step_s": self.replayed_s,
            "compute_factor": self.factor,
            "num_predicted": self.num_predicted,
            "num_collectives": len(self.job.collectives),
            "rests_on": {"exchange": [LETTERS.get(basis, basis) for basis in self.bases], "compute": self.factor.basis},
        }

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield one line."""
        low, middle, high = self.predicted_s
        yield {"instance": self.network.name, "step_s": middle, "step_low_s": low, "step_high_s": high}


def factor_of(job: TracedJob, gpu: str | None, given: float | None) -> ComputeFactor:
    """Return how many times as long the compute takes on another GPU.

    gpu: its model. The data sheets' rates of matrices and of memory give two ratios; the truth is assumed between them,
    within 15 % of either.
    """
    if given is not None:
        if not given > 0:
            raise UsageError(f"--compute-factor must be above zero, not {given:g}")
        return ComputeFactor(given, given, given, "given")
    names = {trace.device_name for trace in job.traces.values()}
    name = names.pop() if len(names) == 1 else None
    model = catalogue.gpu_printed(name) if name else None
    if model is None or gpu is None:
        return ComputeFactor(1.0, 1.0, 1.0, "recorded")
    if model == gpu:
        return ComputeFactor(1.0, 1.0, 1.0, "the same GPU")
    ours, theirs = catalogue.gpu(model), catalogue.gpu(gpu)
    pairs = [(ours.flops[kind], theirs.flops[kind]) for kind in ours.flops.keys() & theirs.flops.keys()]
    if ours.memory_bytes_per_s and theirs.memory_bytes_per_s:
        pairs.append((ours.memory_bytes_per_s, theirs.memory_bytes_per_s))
    ratios = [own / other for own, other in pairs]
    if not ratios:
        return ComputeFactor(1.0, 1.0, 1.0, "recorded")
    low, high = min(ratios) / _MODEL_SPREAD, max(ratios) * _MODEL_SPREAD
    return ComputeFactor(low, sqrt(low * high), high, "assumed")
