"""Draw the steps of ranks as bars, divided into the parts of the step. The legend has only the visible parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from bench.core.step_trace import StepPart
from bench.job.page import COLOURS, TITLES

_LEAST_SHARE = 0.003  # as a share of the longest bar; a narrower part has no visible colour and is drawn as `other`

_MOST_NAMED = 2
_NOISE = 1e-6  # as a share of the longest bar; a narrower part is the rounding error of a sum

Parts = Mapping[StepPart, float]  # seconds


def visible(bars: Sequence[Parts]) -> list[Parts]:
    """Return the bars of one figure. Leave out parts that are too narrow to see in every bar.

    The time of the narrow parts is added to the part `other`.
    """
    least_s = _LEAST_SHARE * max((sum(bar.values()) for bar in bars), default=0.0)
    wide = [part for part in StepPart if any(bar[part] > least_s for bar in bars) and part is not StepPart.OTHER]
    found: list[Parts] = []
    for bar in bars:
        kept: dict[StepPart, float] = {part: bar[part] for part in wide}
        kept[StepPart.OTHER] = sum(bar.values()) - sum(kept.values())
        found.append(kept)
    return found


def draw(panel: Axes, bars: Sequence[Parts]) -> float:
    """Draw one bar for each rank, with the first rank at the top.

    The axis is in ms. Return the length of the longest bar in ms.
    """
    left = [0.0] * len(bars)
    for part, colour in COLOURS.items():
        widths = [bar.get(part, 0.0) * 1e3 for bar in bars]
        panel.barh(range(len(bars)), widths, left=left, color=colour, height=0.7)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    panel.invert_yaxis()
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    return max(left)


def largest(bars: Sequence[Parts]) -> str:
    """Return a text with the two parts that take most time, summed over all bars: `compute 91 %, exchange 6 %`."""
    sums = {part: sum(bar.get(part, 0.0) for bar in bars) for part in StepPart}
    whole = sum(sums.values()) or 1.0
    most = sorted(sums, key=lambda part: -sums[part])[:_MOST_NAMED]
    return ", ".join(f"{TITLES[part]} {100 * sums[part] / whole:.0f} %" for part in most if sums[part] > 0)


def handles(bars: Sequence[Parts]) -> list[Patch]:
    """Return the legend entries of the parts that are drawn.

    `bars`: the bars that `visible` returned.
    """
    noise_s = _NOISE * max((sum(bar.values()) for bar in bars), default=0.0)
    shown = [part for part in StepPart if any(bar.get(part, 0.0) > noise_s for bar in bars)]
    return [Patch(color=COLOURS[part], label=TITLES[part]) for part in shown]


def remarks(whole: Sequence[Parts], drawn: Sequence[Parts]) -> list[str]:
    """Return a remark that names the parts that are too narrow to see. Their time is in `other`."""
    folded = [part for part in StepPart if any(bar[part] > 0 for bar in whole) and part not in drawn[0]]
    names = ", ".join(TITLES[part] for part in folded)
    return [f"other contains {names}: each at most {100 * _LEAST_SHARE:g} % of the longest bar"] if folded else []
