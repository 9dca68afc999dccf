"""The figure of `linkbench select`: parts of the step, cost against time, and both against model size and nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.figures import _style
from bench.predict import crossover
from bench.predict.candidate import Candidate
from bench.predict.crossover import CrossoverLine
from bench.predict.predict import CONFIDENCE
from bench.predict.select import Selection

_MILLION = 1e6
_PALE = 0.4
_LONG_S = 10.0  # if a step can take longer, times are shown in seconds instead of milliseconds
_MOST = 6  # machines in a figure, limited by the distinct colours
_PARTS = (
    ("compute_s", "compute", "#0072B2", ""),
    ("bubble_s", "pipeline bubble", "#56B4E9", ".."),
    ("exposed_s", "exposed communication", "#D55E00", "//"),
    ("feed_s", "host-to-device feed", "#E69F00", "xx"),
)


def draw(selection: Selection) -> Figure:
    """Draw four panels that show the best machines with their intervals."""
    shown = selection.candidates[:_MOST]
    figure, axes = _style.panels(4, height_in=3.9)
    looks = _style.looks(each.instance.name for each in shown)
    _stacked(axes[0], shown)
    _cost_against_time(axes[1], shown, looks.__getitem__)
    by_cost = all(each.sample_usd is not None for each in shown)
    question = selection.question
    _lines(axes[2], crossover.against_size(question, _first_of_each(shown)), looks.__getitem__, by_cost, _parameters)
    _lines(axes[3], crossover.against_nodes(question, shown), looks.__getitem__, by_cost, str)
    axes[2].set_title("by model size", fontsize=_style.TEXT)
    axes[2].set_xlabel("parameters (layers added or removed)", fontsize=_style.TEXT)
    axes[3].set_title("by number of nodes", fontsize=_style.TEXT)
    axes[3].set_xlabel("nodes (same samples per GPU)", fontsize=_style.TEXT)
    for each in axes:
        _style.watermark(each)
    handles = [
        *(
            Patch(facecolor=fill, hatch=hatch, edgecolor="white", label=words)
            for part, words, fill, hatch in _PARTS
            if any(machine.range(part).middle > 0 for machine in shown)
        ),
        *(Line2D([], [], color=look.colour, marker=look.marker, label=name) for name, look in looks.items()),
    ]
    title = f"{question.workload.name}: selected machines - modelled, not measured"
    _style.finish(figure, title, handles, (), _remarks(selection, shown))
    return figure


def _first_of_each(shown: Sequence[Candidate]) -> list[Candidate]:
    """Keep each instance type once, with its best number of nodes."""
    return list({each.instance.name: each for each in reversed(shown)}.values())[::-1]


def _stacked(axes: Axes, shown: Sequence[Candidate]) -> None:
    """Draw the parts of each machine's step, and the interval of the whole step's time.

    The bar of communication is pale if only a range of its time is known.
    """
    longest = max(each.range("total_s").high for each in shown)
    scale, unit = (1.0, "s") if longest > _LONG_S else (1e3, "ms")
    for row, each in enumerate(shown):
        left = 0.0
        for part, _, fill, hatch in _PARTS:
            width = each.range(part).middle * scale
            pale = part == "exposed_s" and not each.has_middle
            axes.barh(
                [row],
                [width],
                left=left,
                color=fill,
                hatch=hatch,
                edgecolor="white",
                height=0.55,
                alpha=_PALE if pale else 1.0,
            )
            left += width
        whole = each.range("total_s")
        axes.plot(
            [whole.low * scale, whole.high * scale], [row, row], color="black", marker="|", markersize=9, linewidth=1.2
        )
    axes.set_yticks(range(len(shown)), [_style.shown(each.name) for each in shown])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"step time ({unit}), bars: {100 * CONFIDENCE:.0f} % interval", fontsize=_style.TEXT)
    axes.set_title("parts of the step (medians)", fontsize=_style.TEXT)


def _cost_against_time(axes: Axes, shown: Sequence[Candidate], look: Callable[[str], _style.Look]) -> None:
    for number, each in enumerate(shown):
        hours = each.samples_per_s
        usd = each.usd(int(_MILLION))
        if usd is None:
            continue
        x, y = _MILLION / hours.middle / 3600, usd.middle
        low, high = _MILLION / hours.high / 3600, _MILLION / hours.low / 3600
        style = look(each.instance.name)
        # Cost is time x price: both rise together, so one slanted line shows both intervals.
        axes.plot([low, high], [usd.low, usd.high], color=style.colour, linewidth=2.2, alpha=0.75)
        if each.has_middle:
            axes.plot([x], [y], color=style.colour, marker=style.marker, markersize=8, linestyle="")
        if len({machine.layout.num_nodes for machine in shown}) > 1:
            words = f"x {each.layout.num_nodes}"
            end, aside = ((high, usd.high), (3, 2)) if number % 2 == 0 else ((low, usd.low), (-18, -10))
            axes.annotate(words, end, aside, textcoords="offset points", fontsize=_style.SMALL_TEXT)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain(axes.xaxis, axes.yaxis)
    axes.set_xlabel("hours for a million samples", fontsize=_style.TEXT)
    axes.set_ylabel("$ for a million samples", fontsize=_style.TEXT)
    axes.set_title("cost against time: lower left is better", fontsize=_style.TEXT)


def _lines(
    axes: Axes,
    lines: Sequence[CrossoverLine],
    look: Callable[[str], _style.Look],
    by_cost: bool,
    words: Callable[[int], str],
) -> None:
    """Draw one band for each machine. `words`: returns the label of a value on the x axis."""
    scale = _MILLION if by_cost else _MILLION / 3600
    for line in lines:
        style = look(line.name.rpartition(" x ")[2])
        x = [each for each, _ in line.points]
        low, middle, high = (
            [getattr(found, end) * scale for _, found in line.points] for end in ("low", "middle", "high")
        )
        if line.has_middle:
            axes.plot(x, middle, color=style.colour, marker=style.marker, linewidth=1.6)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.18, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted({x for line in lines for x, _ in line.points})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(round(value))))
    _plain(axes.yaxis)
    axes.set_ylabel("$ for a million samples" if by_cost else "hours for a million samples", fontsize=_style.TEXT)


def _plain(*each: Axis) -> None:
    """Label ticks without exponents, at 1, 2 and 5 times powers of ten.

    If the axis spans less than a decade, also label 3 and 7 times powers of ten.
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
    return f"{value / 1e9:.3g}B" if value >= 1e9 else f"{value / 1e6:.3g}M"


def _remarks(selection: Selection, shown: Sequence[Candidate]) -> list[str]:
    dated = ", ".join(
        f"{each.instance.name} {each.priced.price.usd_per_hour:.2f} \\$/h ({each.priced.price.date or 'undated'})"
        for each in _first_of_each(shown)
        if each.priced.price is not None
    )
    vague = [each.name for each in shown if not each.has_middle]
    left = len(selection.candidates) - len(shown)
    remarks = [
        f"intervals of {100 * CONFIDENCE:.0f} %; the step time is based on "
        + "; ".join(f"{each.name}: {each.basis.replace('+', ' and ')}" for each in shown)
    ]
    remarks += (
        [f"pale bars and bands without a line: only an interval is known for {', '.join(vague)}"] if vague else []
    )
    remarks += [f"prices: {dated}"] if dated else []
    remarks.append("compare machines by their ratio (bench select), not by their intervals, which share assumptions")
    return remarks + ([f"not drawn: {left} more"] if left else [])
