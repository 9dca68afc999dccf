"""The words for two runs beside each other: a line for each row, what else changed, and what follows."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.units import format_size
from bench.results import inference
from bench.results import text as results_text
from bench.results.compare import Compared, Comparison, UnmatchedRow, num_launches
from bench.results.grid import pipes
from bench.results.launches import between

_MAX_WIDTH = 130
_NO_SPREAD = f"{results_text.NOTHING}/{results_text.NOTHING}"
_NUM_LEFT = 4  # columns of words; figures stand to the right

# Shown in a column of their own, where they are not the same in all rows; the others in the line above the rows.
_IN_COLUMNS = ("cache", "loop")


@dataclass(frozen=True, slots=True)
class Sides:
    """What a reader must know of the two runs: their names, and the command that would give verdicts."""

    base: str
    new: str
    command: str


def table(comparison: Comparison, sides: Sides) -> str:
    """All of it as text."""
    rows = [_cells(row, comparison) for row in comparison.rows]
    titles = _titles(comparison)
    widths = [max(map(len, column)) if _says(column[1:]) else 0 for column in zip(titles, *rows, strict=True)]
    lines = [f"# BASE  {sides.base}", f"# NEW   {sides.new}", *_comments(reading(comparison)), "#"]
    lines.append(f"# {_aligned(titles, widths)}")
    heading = None
    for row, cells in zip(comparison.rows, rows, strict=True):
        if heading != (heading := title(row, comparison)):
            lines.append(f"# {heading}")
        lines.append(f"  {_aligned(cells, widths)}")
    after = [*remarks(comparison), *changed(comparison), conclusion(comparison, sides)]
    return "\n".join([*lines, *_comments(after)]) + "\n"


def markdown(comparison: Comparison, sides: Sides) -> str:
    """The same as one Markdown table, what was measured in its first column."""
    titles = _titles(comparison)
    rows = [_cells(row, comparison) for row in comparison.rows]
    shown = [index for index, column in enumerate(zip(*rows, strict=True)) if _says(column)]
    text = [f"# {sides.new} against {sides.base}", "", f"**{_sentence(conclusion(comparison, sides))}**", ""]
    text += [f"- {line}" for line in reading(comparison)]
    text += ["", pipes(["what", *(titles[index] for index in shown)]), pipes([":---"] * (len(shown) + 1))]
    for row, cells in zip(comparison.rows, rows, strict=True):
        text.append(pipes([title(row, comparison), *(cells[index] for index in shown)]))
    after = [*remarks(comparison), *changed(comparison)]
    return "\n".join([*text, "", *(f"- {line}" for line in after)]).rstrip() + "\n"


def reading(comparison: Comparison) -> list[str]:
    """How to read the columns."""
    lines = [
        "times: median of the launches' medians, BASE and NEW",
        "ratio: NEW / BASE, above 1 NEW takes longer",
    ]
    if not any(row.estimate for row in comparison.rows):
        return lines
    delta = f"{100 * comparison.delta:g} %"
    return [
        *lines,
        "ci95: 95 % interval of the ratio over launches (Welch, on logarithms); spread: between launches, BASE/NEW",
        "p: exact Mann-Whitney test on the launches' medians, corrected over all rows (Benjamini and Hochberg)",
        "least: the smallest change that so many launches, spread like these, show in 8 of 10 comparisons",
        f"slower, faster: p at most {comparison.fdr:g} and a ratio beyond {delta}; "
        f"equivalent: all of ci95 within {delta}; inconclusive: neither",
    ]


def title(row: Compared, comparison: Comparison) -> str:
    """What was measured, and the factors that tell it from the other rows: `allreduce over mpi, 2 ranks on 1 node`."""
    ranks, nodes = _both(row, "num_ranks"), _both(row, "num_nodes")
    words = f"{row.place.pattern} over {_both(row, 'transport')}, {ranks} ranks on {nodes} node{'s' * (nodes != '1')}"
    said = {"transport", "num_ranks", "num_nodes", *_IN_COLUMNS}
    told = [f"{name} {_both(row, name)}" for name in _telling(comparison) if name not in said]
    return ", ".join([words, *told])


def remarks(comparison: Comparison) -> list[str]:
    """Why rows have no verdict or no ratio, which rows only one run has, and what the number of rows costs."""
    lines = []
    for reason in dict.fromkeys(row.reason for row in comparison.rows if row.reason):
        rows = [row for row in comparison.rows if row.reason == reason]
        lines.append(f"not comparable ({results_text.count(len(rows), 'row')}): {reason}")
    if comparison.counts["modelled"]:
        lines.append("modelled: both figures are arithmetic, so there is nothing to infer: a ratio, and no verdict")
    if comparison.counts["imported"]:
        lines.append("imported: one mean of another tool's log has no spread: a ratio, and no verdict")
    if comparison.allowed:
        lines.append(f"meant to differ: {', '.join(comparison.allowed)}")
    lines += _alone("BASE", comparison.only_base) + _alone("NEW", comparison.only_new)
    return lines + _price(comparison)


def changed(comparison: Comparison) -> list[str]:
    """What else is not the same in the two runs."""
    if not comparison.changes:
        return ["nothing else is known to have changed: same versions, variables, settings and hosts"]
    shown = [(each.what, each.base or "none", each.new or "none") for each in comparison.changes]
    return [f"changed: {what}: {_cut(before)} -> {_cut(after)}" for what, before, after in shown]


def conclusion(comparison: Comparison, sides: Sides) -> str:
    """The whole comparison in one line, with the command that gives verdicts where there are none."""
    counts = comparison.counts
    words = [f"{number} {verdict}" for verdict, number in counts.items() if number]
    line = f"{results_text.count(len(comparison.rows), 'row')}: {', '.join(words)}"
    worst = max(
        (row for row in comparison.rows if row.verdict == "slower"), key=lambda row: row.ratio or 0, default=None
    )
    if worst is not None:
        at = f"{worst.place.pattern}, {worst.place.mode}, {format_size(worst.place.payload_bytes)}"
        line += f"; the most at {at}: {results_text.significant(worst.ratio or 0)} times as long"
    if counts["exploratory"]:
        fewer = (
            f"with fewer than {inference.LEAST_LAUNCHES} launches of each run a ratio is exploratory, without a verdict"
        )
        line += f"; {fewer}; for verdicts measure both by: {sides.command}"
    return line


def _titles(comparison: Comparison) -> list[str]:
    telling = _telling(comparison)
    groups = len({row.place.group for row in comparison.rows}) > 1
    return [
        "mode",
        "group" if groups else "",
        *(name if name in telling else "" for name in _IN_COLUMNS),
        "size (B)",
        "launches",
        "BASE (us)",
        "NEW (us)",
        "spread (%)",
        "ratio",
        "ci95",
        "p",
        "least (%)",
        "verdict",
    ]


def _cells(row: Compared, comparison: Comparison) -> list[str]:
    """The words below the titles, '' where there is no such column."""
    titles, place, found = _titles(comparison), row.place, row.estimate
    launches = f"{len(row.base_launches_s)}/{len(row.new_launches_s)}"
    spread = "/".join(results_text.percent(between(side)) for side in (row.base_launches_s, row.new_launches_s))
    beyond = [_both(row, name) if name in titles else "" for name in _IN_COLUMNS]
    ratio = row.ratio
    return [
        place.mode,
        place.group if titles[1] else "",
        *beyond,
        str(place.payload_bytes),
        launches if ratio else results_text.NOTHING,
        results_text.microseconds(row.base_s),
        results_text.microseconds(row.new_s),
        spread if ratio else results_text.NOTHING,
        f"{ratio:.3f}" if ratio else results_text.NOTHING,
        f"{found.ratio_low:.3f}..{found.ratio_high:.3f}" if found else results_text.NOTHING,
        _p(row.p_corrected),
        results_text.percent(found.min_detectable) if found else results_text.NOTHING,
        row.verdict,
    ]


def _says(column: Sequence[str]) -> bool:
    """Is there anything in a column?"""
    return any(cell not in ("", results_text.NOTHING, _NO_SPREAD) for cell in column)


def _p(p: float | None) -> str:
    if p is None:
        return results_text.NOTHING
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _telling(comparison: Comparison) -> list[str]:
    """The factors that tell rows from others of the same pattern, mode, size and transport, or BASE from NEW."""
    values: dict[tuple[Any, ...], set[str]] = {}
    for row in comparison.rows:
        for name in row.factors:
            if row.ratio is not None:  # the others say their reason
                values.setdefault((name, row.place, _both(row, "transport")), set()).add(_both(row, name))
    several = {key[0] for key, found in values.items() if len(found) > 1}
    differ = {name for row in comparison.rows if row.ratio is not None for name in row.differs}
    return [name for name in comparison.rows[0].factors if name in several | differ]


def _both(row: Compared, name: str) -> str:
    """A factor's value, or that of BASE and that of NEW where they differ."""
    if name in row.differs:
        return " -> ".join(value or "unknown" for value in row.differs[name])
    return row.factors[name] or "none"


def _alone(side: str, rows: Iterable[UnmatchedRow]) -> list[str]:
    """Modes with the same sizes on one line."""
    sizes: dict[tuple[str, str, str], dict[int, None]] = {}
    for row in rows:
        group = "" if row.place.group == "world" else f", group {row.place.group}"
        what = f"{row.place.pattern} over {row.factors['transport'] or 'unknown'}{group}"
        sizes.setdefault((what, row.why or "", row.place.mode), {})[row.place.payload_bytes] = None
    modes: dict[tuple[str, str, str], list[str]] = {}
    for (what, why, mode), at in sizes.items():
        modes.setdefault((what, ", ".join(map(format_size, at)), why), []).append(mode)
    return [
        f"only in {side}: {what}, {' and '.join(found)} at {at}" + f" ({why})" * bool(why)
        for (what, at, why), found in modes.items()
    ]


def _price(comparison: Comparison) -> list[str]:
    """How many rows must change together for a verdict, where the launches are too few to tell one alone."""
    tested = [row for row in comparison.rows if row.estimate is not None]
    if not tested:
        return []
    fewest = min(tested, key=num_launches)
    least_p = inference.least_p(len(fewest.base_launches_s), len(fewest.new_launches_s))
    together = math.ceil(least_p * len(tested) / comparison.fdr)
    if together <= 1:
        return []
    launches = inference.launches_for_one(len(tested), comparison.fdr)
    return [
        f"{num_launches(fewest)} launches can not tell a change of fewer than {together} of "
        f"{results_text.count(len(tested), 'row')} compared together; "
        f"{launches} launches of each run can tell one alone"
    ]


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = [
        f"{cell:<{width}}" if index < _NUM_LEFT or index == len(cells) - 1 else f"{cell:>{width}}"
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        if width
    ]
    return "  ".join(words).rstrip()


def _comments(lines: Iterable[str]) -> list[str]:
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line, _MAX_WIDTH, initial_indent="# ", subsequent_indent="#     ", break_on_hyphens=False
        )
    ]
