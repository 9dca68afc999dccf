"""Compare every figure of a first contact with its expected ranges."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.first_contact.messages import ContactVerdict
from bench.first_contact.plan_file import Expectation, expectations_of
from bench.first_contact.readers import StepFigure
from bench.hardware import catalogue, reference

# A published rate is that of one machine. Copies differ by a few percent between equal machines.
PUBLISHED_MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure and its expected range.

    `over`: the name of another figure. If `over` is given, the range applies to the figure divided by the other figure.
    """

    figure: str
    value: float
    unit: str
    low: float | None
    high: float | None
    source: str
    verdict: str
    over: str | None = None


def judge(figures: Sequence[StepFigure], gpu: str, expectations: tuple[Expectation, ...]) -> list[Judged]:
    """Return each figure with every expectation that applies to it.

    A figure without an expected range gets the verdict "unjudged".
    """
    values = {figure.name: figure.value for figure in figures}
    judged: list[Judged] = []
    for figure in figures:
        mine = [_of(figure, each, values, gpu) for each in expectations_of(figure.name, gpu, expectations)]
        found = [each for each in mine if each is not None]
        if figure.source is not None and (figure.low is not None or figure.high is not None):
            found.append(_judged(figure.name, figure.value, figure.unit, figure.low, figure.high, figure.source))
        judged += found or [
            Judged(figure.name, figure.value, figure.unit, None, None, "", str(ContactVerdict.UNJUDGED))
        ]
    return judged


def _of(figure: StepFigure, wish: Expectation, values: Mapping[str, float], gpu: str) -> Judged | None:
    if wish.published is not None:
        return _published(figure, wish.published, gpu)
    if wish.over is None:
        return _judged(figure.name, figure.value, figure.unit, wish.low, wish.high, wish.source)
    _, name, quantity = figure.name.split("/", 2) if figure.name.count("/") >= 2 else ("", figure.name, "")
    pattern = wish.over.replace("{name}", name).replace("{quantity}", quantity)
    others = fnmatch.filter(values, pattern) if any(letter in pattern for letter in "*?") else [pattern]
    other = next((each for each in others if values.get(each)), None)
    if other is None:
        return None
    return _judged(figure.name, figure.value / values[other], "", wish.low, wish.high, wish.source, other)


def _published(figure: StepFigure, kind: str, gpu: str) -> Judged | None:
    model = catalogue.gpu_printed(gpu)
    ranges = [
        (each.rates[kind], each.source) for each in reference.copies() if each.gpu == model and kind in each.rates
    ]
    if not ranges:
        return None
    low = min(rates[0] for rates, _ in ranges) * 1e-9 * (1 - PUBLISHED_MARGIN)
    high = max(rates[1] for rates, _ in ranges) * 1e-9 * (1 + PUBLISHED_MARGIN)
    return _judged(figure.name, figure.value, figure.unit, low, high, "; ".join(sorted({text for _, text in ranges})))


def _judged(
    name: str, value: float, unit: str, low: float | None, high: float | None, source: str, over: str | None = None
) -> Judged:
    met = (low is None or value >= low) and (high is None or value <= high)
    return Judged(name, value, unit, low, high, source, str(ContactVerdict.MET if met else ContactVerdict.MISSED), over)
