"""Show the tables of training steps: times and gains, derived figures, speed-ups, and parts of each rank's step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench.core.units import format_size
from bench.results import text
from bench.results.document import Document
from bench.results.table import NOTHING, Column, Table
from bench.results.training_rows import StepScaling, StepScalingPoint, TrainedStep


def tables(document: Document) -> list[Table]:
    """Return the tables of a document's training steps. Tables without rows are left empty."""
    return [
        Table(_STEP, document.steps, _STEP_TITLE, _step_heading),
        Table(_STEP_RATES, document.steps, _RATES_TITLE, _step_heading),
        Table(_STEP_SCALING, _scaled_steps(document.step_scalings), _SPEEDUP_TITLE, _speedup_heading),
        Table(_STEP_PARTS, _step_ranks(document.steps), _PARTS_TITLE, lambda one: _step_heading(one.step)),
    ]


@dataclass(frozen=True, slots=True)
class StepOfRank:
    """One line of the table of step parts: a training step on one rank."""

    step: TrainedStep
    rank: int

    def part_s(self, part: str) -> float:
        """Return the seconds of a part."""
        return self.step.parts_s[part][self.rank]


def _step_ranks(found: Iterable[TrainedStep]) -> list[StepOfRank]:
    return [StepOfRank(step, rank) for step in found for rank in range(step.num_ranks)]


def _step_heading(one: TrainedStep) -> str:
    return f"{one.job}: {one.strategy} over {one.transport}, {text.count(one.num_ranks, 'rank')}"


def _ms(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds * 1e3:.2f}"


def _removed(name: str) -> Callable[[Any], str]:
    def shown(one: Any) -> str:
        removal = getattr(one, name)
        if removal.low_s is None:
            return _ms(removal.seconds)
        return f"{_ms(removal.seconds)} ({_ms(removal.low_s)}..{_ms(removal.high_s)})"

    return shown


def _figure(value: float | None, unit: float = 1.0) -> str:
    return "" if value is None else f"{value / unit:.4g}"


def _peak(place: str) -> Callable[[Any], str]:
    return lambda one: _figure(max(one.rates.peak_bytes[place]), 1 << 20) if place in one.rates.peak_bytes else ""


def _gradient_error(one: TrainedStep) -> str:
    return "" if one.gradient_error is None else f"{100 * one.gradient_error:.3g}"


def _learned(name: str) -> Callable[[Any], str]:
    return lambda one: _figure(one.learned.get(name))


def _clocks(one: TrainedStep) -> str:
    if one.instruments is None:
        return NOTHING
    low, high = one.instruments_low, one.instruments_high
    interval = "" if low is None or high is None else f" ({100 * low:+.2f}..{100 * high:+.2f})"
    return f"{100 * one.instruments:+.2f}{interval}"


def _profiler(one: TrainedStep) -> str:
    return "" if one.profiler is None else f"{100 * one.profiler:+.1f}"


def _part(name: str) -> Callable[[Any], str]:
    return lambda one: _ms(one.part_s(name))


_STEP_TITLE = (
    "training step: its time without clocks inside; what it gains without exchange, loader and copies, as its variants "
    "measure (95 %); inside: exposed exchange by clocks inside a step; error: of a compressed gradient; loss: of a "
    "small problem after the same number of samples, with this exchange and with exact gradients; clocks: what they "
    "add to a step, not to its time here; profiler: what it adds to the steps of the trace, which are in no other "
    "figure; late: the rank that others wait for"
)
_STEP = (
    Column("gradients", lambda one: format_size(one.gradient_bytes)),
    Column("step", lambda one: _ms(one.step_s), unit="(ms)"),
    Column("exchange", _removed("exposed_by_removal"), unit="(ms)"),
    Column("inside", lambda one: _ms(one.exposed_by_removal.inside_s), unit="(ms)"),
    Column("loader", _removed("loader_by_removal"), unit="(ms)"),
    Column("copies", _removed("copies_by_removal"), unit="(ms)"),
    Column("efficiency", lambda one: f"{one.efficiency:.3f}"),
    Column("error", _gradient_error, unit="(%)", optional=True),
    Column("loss", _learned("loss"), optional=True),
    Column("exact loss", _learned("exact_loss"), optional=True),
    Column("clocks", _clocks, unit="(%)"),
    Column("profiler", _profiler, unit="(%)", optional=True),
    Column(
        "late",
        lambda one: "" if one.late_rank is None else f"rank {one.late_rank} {one.late_segment} {_ms(one.late_s)} ms",
        right=False,
        optional=True,
    ),
)
_RATES_TITLE = (
    "training step, derived: samples, operations (MFU: by the formula / the data sheets' rate), largest "
    "memory of a rank (growth since before the model) and its prediction, energy and price"
)
_STEP_RATES = (
    Column("samples/s", lambda one: f"{one.rates.samples_per_s:.4g}"),
    Column("tokens/s", lambda one: _figure(one.rates.tokens_per_s), optional=True),
    Column("FLOP/s", lambda one: _figure(one.rates.flops_per_s, 1e12), unit="(TFLOP/s)", optional=True),
    Column("MFU", lambda one: _figure(one.rates.mfu, 0.01), unit="(%)", optional=True),
    Column("counted", lambda one: _figure(one.rates.counted_over_formula), optional=True),
    Column("host", _peak("host"), unit="(MiB)", optional=True),
    Column("allocated", _peak("allocated"), unit="(MiB)", optional=True),
    Column("reserved", _peak("reserved"), unit="(MiB)", optional=True),
    Column("expected", lambda one: _figure(one.rates.predicted_bytes, 1 << 20), unit="(MiB)", optional=True),
    Column("energy", lambda one: _figure(one.rates.joules_per_sample), unit="(J/sample)", optional=True),
    Column("price", lambda one: _figure(one.rates.usd_per_sample), unit="(USD/sample)", optional=True),
)


@dataclass(frozen=True, slots=True)
class ScaledStep:
    """One line of the table of speed-ups: a training step on one number of ranks."""

    scaling: StepScaling
    point: StepScalingPoint


def _scaled_steps(found: Iterable[StepScaling]) -> list[ScaledStep]:
    return [ScaledStep(one, point) for one in found for point in one.points]


def _speedup_interval(line: ScaledStep) -> str:
    low, high = line.point.low, line.point.high
    return "-" if low is None or high is None else f"{low:.2f}..{high:.2f}"


def _speedup_heading(line: ScaledStep) -> str:
    one = line.scaling
    if one.reason is None:
        return f"{one.kind} scaling: each increase of the number of ranks gains 10 % or more"
    return f"{one.kind} scaling: more than {one.stops_at} ranks gain less than 10 %: {one.reason.text}"


_SPEEDUP_TITLE = "training step on more ranks: speed-up in work per second, ideal, and by the bound of the links"
_STEP_SCALING = (
    Column("ranks", lambda line: str(line.point.num_ranks)),
    Column("nodes", lambda line: str(line.point.num_nodes)),
    Column("step", lambda line: _ms(line.point.step_s), unit="(ms)"),
    Column("speed-up", lambda line: f"{line.point.speedup:.2f}"),
    Column("ci95", _speedup_interval),
    Column("ideal", lambda line: f"{line.point.ideal:.2f}"),
    Column("bound", lambda line: "" if line.point.bound is None else f"{line.point.bound:.2f}", optional=True),
)
_PARTS_TITLE = (
    "training step by rank: disjoint parts that sum to a step with clocks (mean of the middle half of these steps)"
)
_STEP_PARTS = (
    Column("rank", lambda one: str(one.rank)),
    Column("data", _part("data_wait"), unit="(ms)"),
    Column("compute", _part("compute"), unit="(ms)"),
    Column("imbalance", _part("imbalance"), unit="(ms)"),
    Column("exchange", _part("exposed_exchange"), unit="(ms)"),
    Column("copies", _part("exposed_copy"), unit="(ms)"),
    Column("host", _part("host_bound"), unit="(ms)"),
    Column("other", _part("other"), unit="(ms)"),
    Column("sum", lambda one: _ms(sum(own[one.rank] for own in one.step.parts_s.values())), unit="(ms)"),
)
