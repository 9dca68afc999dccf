"""Draw the figure of `linkbench select`.

The figure compares the costs and times of machines, and shows the parts of a step, model sizes and numbers of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.figures import _style
from bench.figures._origin import FigureOrigin
from bench.predict import crossover, select_page
from bench.predict.candidate import Candidate
from bench.predict.crossover import CrossoverLine
from bench.predict.draws import DrawnRange
from bench.predict.predict import CONFIDENCE
from bench.predict.select import Selection

_MILLION = 1e6
_PALE = 0.4
# the least value of the longest time in a unit for which the unit is used, the unit's seconds, and its name
_SPANS = ((2.0, 3600, "hours"), (2.0, 60, "minutes"), (0.0, 1, "seconds"))
_LONG_S = 10.0  # if a step can take longer, times are shown in seconds instead of milliseconds
_MOST = 8  # machines in a figure
_MOST_LINES = 4  # machines in a panel of lines; the bands of more machines would be hard to distinguish
_MOST_SIZES = 6  # labels of model sizes
_MOST_LINEAR = 12.0  # an axis of bars is logarithmic if its ends differ by more than this factor
_LETTER_SHARE = 0.021  # width of a letter of the ranges, as a share of a panel's width
_PARTS = (
    ("compute_s", "compute", "#777777", ""),
    ("bubble_s", "pipeline bubble", "#AAAAAA", ".."),
    ("exposed_s", "exposed communication", "#D55E00", "//"),
    ("feed_s", "host-to-device feed", "#BBBBBB", "xx"),
)

_UNDECIDED, _REFERENCE = ", UNDECIDED", " reference (= 1)"

_Looks = Callable[[str], _style.Look]


def draw(selection: Selection) -> Figure:
    """Draw six panels about the best machines, with intervals.

    The panels show costs, times, ratios between machines, the parts of a step, model sizes, and numbers of nodes.
    """
    shown = selection.candidates[:_MOST]
    figure, axes = _style.panels(6, height_in=max(3.2, 1.3 + 0.32 * len(shown)))
    looks = _style.looks_of_machines(each.instance.name for each in shown)
    look = looks.__getitem__
    amount = _million(selection)
    costs = [each.usd(amount.samples) for each in shown]
    _ranges(axes[0], shown, costs, look, f"cost of {amount.words}", "$")
    times, unit = _times([each.samples_per_s for each in shown], amount.samples)
    _ranges(axes[1], shown, times, look, f"time of {amount.words}", unit)
    _ratios(axes[2], selection, shown, look)
    _stacked(axes[3], shown)
    by_cost = all(each.sample_usd is not None for each in shown)
    question = selection.question
    types = _first_of_each(shown)[:_MOST_LINES]
    by_size = crossover.against_size(question, types)
    _lines(axes[4], by_size, look, by_cost, _parameters, amount)
    _lines(axes[5], crossover.against_nodes(question, types), look, by_cost, str, amount)
    first = f", the first {len(types)}" if len(types) < len(looks) else ""
    axes[4].set_title(f"by model size{first}", fontsize=_style.TEXT)
    axes[4].set_xlabel("parameters, by number of layers (logarithmic)", fontsize=_style.TEXT)
    axes[5].set_title(f"by number of nodes{first}", fontsize=_style.TEXT)
    axes[5].set_xlabel("nodes, same samples per GPU (logarithmic)", fontsize=_style.TEXT)
    names = [each.name for each in shown]
    for number, each in enumerate(axes):
        _style.watermark(each)
        if number < 4:
            _machine_axis(each, names, is_left=number % 2 == 0)
    handles = [
        *(Line2D([], [], color=look.colour, marker=look.marker, label=name) for name, look in looks.items()),
        *(
            Patch(facecolor=fill, hatch=hatch, edgecolor="white", label=words)
            for part, words, fill, hatch in _PARTS
            if any(machine.range(part).middle > 0 for machine in shown)
        ),
    ]
    title = f"{question.workload.name}: {select_page.headline(selection)}"
    _style.finish(figure, title, "MODELLED, not measured", handles, [*_remarks(selection, shown), *_ends(by_size)])
    machines = f"workload {question.workload.name} on {len(selection.candidates)} machines"
    _style.sign(figure, FigureOrigin(machines, date=f"computed {question.today}"))
    return figure


@dataclass(frozen=True, slots=True)
class _Amount:
    """An amount of work: a number of samples, and the name of this amount in the figure."""

    samples: float
    words: str


def _million(selection: Selection) -> _Amount:
    """Return a million tokens if the user gave the length of the training in tokens, else return a million samples."""
    tokens = selection.question.workload.model.tokens
    if selection.limits.tokens is None or tokens is None:
        return _Amount(_MILLION, "a million samples")
    return _Amount(_MILLION / tokens, "a million tokens")


def _times(samples_per_s: Sequence[DrawnRange], samples: float) -> tuple[list[DrawnRange], str]:
    """Return how long each machine takes for the given number of samples, and the unit of these times."""
    seconds = [DrawnRange(samples / each.high, samples / each.middle, samples / each.low) for each in samples_per_s]
    longest = max(each.middle for each in seconds)
    scale, unit = next(span for span in _SPANS if longest >= span[0] * span[1])[1:]
    return [DrawnRange(each.low / scale, each.middle / scale, each.high / scale) for each in seconds], unit


def _ranges(
    axes: Axes, shown: Sequence[Candidate], ranges: Sequence[DrawnRange | None], look: _Looks, title: str, unit: str
) -> None:
    """For each machine, draw a bar from the low to the high end of its range, with a mark in the middle.

    Write the range beside the bar.
    """
    for row, (machine, found) in enumerate(zip(shown, ranges, strict=True)):
        if found is None:
            axes.text(0.02, row, "no price", transform=axes.get_yaxis_transform(), va="center")
            continue
        _bar(axes, row, found, look(machine.instance.name), machine.has_middle)
        axes.text(found.high, row, f" {found.text()}", va="center", fontsize=_style.SMALL_TEXT)
    known = [each for each in ranges if each]
    words = _range_axis(axes, known, [0] * len(known))
    axes.set_title(title, fontsize=_style.TEXT)
    axes.set_xlabel(f"{unit}, {100 * CONFIDENCE:.0f} % interval{words}", fontsize=_style.TEXT)


def _range_axis(axes: Axes, ranges: Sequence[DrawnRange], more_letters: Sequence[int]) -> str:
    """Set the axis of range bars. Return ", logarithmic" if the axis is logarithmic, else "".

    The axis usually begins at zero. If the largest range would hide other ranges, the axis is logarithmic instead. The
    axis has room for the text beside each bar.

    `more_letters`: for each range, the number of letters written after the range's text.
    """
    letters = [len(each.text()) + 2 + more for each, more in zip(ranges, more_letters, strict=True)]
    low, high = min((each.low for each in ranges), default=0.1), max((each.high for each in ranges), default=1.0)
    if high < _MOST_LINEAR * low:
        ends = [each.high / (1 - _LETTER_SHARE * number) for each, number in zip(ranges, letters, strict=True)]
        axes.set_xlim(0, max(ends, default=1.0))
        return ""
    room = 1 / (1 - _LETTER_SHARE * max(letters))
    axes.set_xscale("log")
    axes.set_xlim(0.8 * low, high * (1.25 * high / low) ** (room - 1))
    _plain(axes.xaxis)
    return ", logarithmic"


def _bar(axes: Axes, row: int, found: DrawnRange, look: _style.Look, has_middle: bool) -> None:
    """Draw a range. A range with an unknown middle is drawn in a pale colour."""
    width = found.high - found.low
    axes.barh([row], [width], left=found.low, color=look.colour, height=0.45, alpha=0.9 if has_middle else _PALE)
    if has_middle:
        for colour, edge in (("white", 5), ("black", 2)):  # visible on dark and on light bars
            axes.plot(
                [found.middle], [row], color=colour, marker="|", markersize=13, markeredgewidth=edge, linestyle=""
            )


def _machine_axis(axes: Axes, names: Sequence[str], is_left: bool) -> None:
    """Set the axis of machines.

    The left panel shows the names of the machines. The right panel has the same rows without names.
    """
    axes.set_yticks(range(len(names)), [_style.shown(name) if is_left else "" for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(False, axis="y")


def _ratios(axes: Axes, selection: Selection, shown: Sequence[Candidate], look: _Looks) -> None:
    """For each machine, draw the range of its ratio to the best machine.

    If a range contains 1, it is uncertain whether this machine or the best machine is better.
    """
    decisions = {each.other.name: each for each in selection.verdicts if each.by == selection.by}
    drawn, more_letters = [DrawnRange(1.0, 1.0, 1.0)], [len(_REFERENCE)]
    for row, machine in enumerate(shown):
        decision = decisions.get(machine.name)
        if decision is None:
            axes.text(1.0, row, _REFERENCE if row == 0 else " no price", va="center", fontsize=_style.SMALL_TEXT)
            continue
        ratio = decision.ratio
        found = DrawnRange(1 / ratio.high, 1 / ratio.middle, 1 / ratio.low)
        _bar(axes, row, found, look(machine.instance.name), machine.has_middle)
        more = "" if decision.decided else _UNDECIDED
        axes.text(found.high, row, f" {found.text()}{more}", va="center", fontsize=_style.SMALL_TEXT)
        drawn.append(found)
        more_letters.append(len(more))
    axes.axvline(1.0, color="black", linewidth=1.0)
    words = _range_axis(axes, drawn, more_letters)
    axes.set_title(f"{selection.by}, relative to {shown[0].name}", fontsize=_style.TEXT)
    axes.set_xlabel(f"ratio, {100 * CONFIDENCE:.0f} % interval{words}", fontsize=_style.TEXT)


def _first_of_each(shown: Sequence[Candidate]) -> list[Candidate]:
    """Keep each instance type once, with its best number of nodes."""
    return list({each.instance.name: each for each in reversed(shown)}.values())[::-1]


def _stacked(axes: Axes, shown: Sequence[Candidate]) -> None:
    """Draw the parts of each machine's step, and the interval of the whole step's time.

    If the medians are unknown, draw only the interval.
    """
    longest = max(each.range("total_s").high for each in shown)
    scale, unit = (1.0, "s") if longest > _LONG_S else (1e3, "ms")
    for row, each in enumerate(shown):
        left, whole = 0.0, each.range("total_s")
        for part, _, fill, hatch in _PARTS if each.has_middle else ():
            width = each.range(part).middle * scale
            axes.barh([row], [width], left=left, color=fill, hatch=hatch, edgecolor="white", height=0.55)
            left += width
        if not each.has_middle:
            at, side = (whole.low, "left") if whole.low < longest / 2 else (whole.high, "right")
            words = "medians unknown"
            axes.text(at * scale, row - 0.25, words, ha=side, va="center", fontsize=_style.SMALL_TEXT)
        axes.plot(
            [whole.low * scale, whole.high * scale], [row, row], color="black", marker="|", markersize=9, linewidth=1.2
        )
    axes.set_xlim(0, 1.05 * longest * scale)
    axes.set_xlabel(f"step time ({unit}), black: {100 * CONFIDENCE:.0f} % interval", fontsize=_style.TEXT)
    axes.set_title("parts of the step, as medians", fontsize=_style.TEXT)


def _lines(
    axes: Axes,
    lines: Sequence[CrossoverLine],
    look: _Looks,
    by_cost: bool,
    words: Callable[[int], str],
    amount: _Amount,
) -> None:
    """Draw one band for each machine.

    `words`: a function that returns the label of a value on the x axis.
    `amount`: the amount of work. The y axis shows the cost or the time of this amount of work.
    """
    scale = amount.samples if by_cost else amount.samples / 3600
    for line in lines:
        style = look(line.name.rpartition(" x ")[2])
        x = [each for each, _, _ in line.points]
        low, high = ([getattr(found, end) * scale for _, found, _ in line.points] for end in ("low", "high"))
        middle = [found.middle * scale if has_middle else math.nan for _, found, has_middle in line.points]
        if not all(map(math.isnan, middle)):
            axes.plot(x, middle, color=style.colour, marker=style.marker, linewidth=1.6)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0)
        for end in (low, high):
            axes.plot(x, end, color=style.colour, linestyle="--", linewidth=0.9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    labelled = sorted({x for line in lines for x, _, _ in line.points})
    axes.xaxis.set_major_locator(FixedLocator(labelled[:: -(-len(labelled) // _MOST_SIZES)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(round(value))))
    _plain(axes.yaxis)
    unit = "$" if by_cost else "hours"
    axes.set_ylabel(f"{unit} for {amount.words} (logarithmic)", fontsize=_style.TEXT)


def _plain(*each: Axis) -> None:
    """Label the ticks 1, 2 and 5 times powers of ten, without exponents.

    If the axis spans less than a decade, ticks at 3 and 7 times powers of ten are labelled, too.
    """
    for axis in each:
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(FuncFormatter(partial(_between, axis)))


def _between(axis: Axis, value: float, _: object) -> str:
    low, high = sorted(axis.get_view_interval())
    digits = "2357" if high < 10 * low else "25"
    return _short(value) if f"{value:.3e}".startswith(tuple(f"{digit}.000" for digit in digits)) else ""


def _short(value: float) -> str:
    """Return a number as short text, such as 0.5, 20, 50k or 1M."""
    scale, unit = (1e6, "M") if value >= 1e6 else (1e3, "k") if value >= 1e4 else (1.0, "")
    return f"{value / scale:g}{unit}"


def _parameters(value: float) -> str:
    if value >= 0.9995e12:
        return f"{value / 1e12:.3g}T"
    return f"{value / 1e9:.3g}B" if value >= 1e9 else f"{value / 1e6:.3g}M"


def _ends(by_size: Sequence[CrossoverLine]) -> list[str]:
    """Return a remark that names the smallest model size for which a machine runs out of GPU memory.

    The curve of such a machine ends at this model size.
    """
    ends = [f"{each.name} from {_parameters(min(each.out_of_memory))}" for each in by_size if each.out_of_memory]
    return [f"out of GPU memory, by parameters: {', '.join(ends)}"] if ends else []


def _remarks(selection: Selection, shown: Sequence[Candidate]) -> list[str]:
    dated = ", ".join(
        f"{each.instance.name} {each.priced.price.usd_per_hour:.2f} \\$/h ({each.priced.price.date or 'undated'})"
        for each in _first_of_each(shown)
        if each.priced.price is not None
    )
    bases: dict[str, list[str]] = {}
    for each in shown:
        bases.setdefault(each.basis, []).append(each.name)
    vague = [each.name for each in shown if not each.has_middle]
    left = len(selection.candidates) - len(shown)
    remarks = [
        f"intervals of {100 * CONFIDENCE:.0f} %; step times are based on figures that are "
        + "; ".join(f"{basis.replace('+', ' and ')} ({', '.join(names)})" for basis, names in bases.items())
    ]
    remarks += [f"pale bars: only an interval is known, not its middle, for {', '.join(vague)}"] if vague else []
    remarks += [f"prices: {dated}"] if dated else []
    remarks.append(
        "compare machines by their ratio, not by their intervals, which share assumptions; a ratio whose interval "
        "contains 1 is undecided"
    )
    remarks += (
        ["black tick in a bar, and the line in a band: the median, where it is known"]
        if len(vague) < len(shown)
        else []
    )
    return remarks + ([f"not drawn: {left} more machines"] if left else [])
