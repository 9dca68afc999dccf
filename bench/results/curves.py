"""Build the curves that the figures (figures/) and the page of a run (page/) draw from a document.

The functions return the rows of each curve, the names of panels and curves, and remarks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bench.core.case import FACTORS
from bench.core.record import Flag, Header
from bench.core.units import format_duration, format_size
from bench.results import launches
from bench.results.document import Document, Summary
from bench.results.model import case_of

_MOST_STAGED = 6
_MOST_LETTERS = 28  # of a curve's name in the title of a panel
IDEAL = " (modelled: ideal links)"  # the end of a modelled curve's label
_STAGED = "through the host"


Ends = tuple[float, float] | None  # the ends of an interval


@dataclass(frozen=True, slots=True)
class CurveLabel:
    """The label of a curve. The text of the label contains all of these parts.

    `settings`: the settings that distinguish this curve's case from the other cases of the pattern, the transport
        first.
    `own_name`: the name of the job or log if the settings of two curves are the same, else "".
    `imported`: whether this curve is imported and some other curve is not.
    """

    settings: tuple[str, ...]
    own_name: str = ""
    modelled: bool = False
    imported: bool = False

    def __str__(self) -> str:
        own_name = f" [{self.own_name}]" if self.own_name else ""
        return ", ".join(self.settings) + own_name + IDEAL * self.modelled + " (imported)" * self.imported


def valid(document: Document, mode: str) -> list[Summary]:
    """Return the rows of one mode that have a time and correct data.

    Training steps and passes over a data set are left out, because they have their own figures.
    """
    rows = [row for row in document.summaries if row.mode == mode and seconds(row) and row.verified is not False]
    others = {one.job for one in document.steps} | {one.job for one in document.feeds}
    return [row for row in rows if not others or case_of(row.job, document.headers[row.job]) not in others]


def seconds(row: Summary) -> float:
    """Return the median time in seconds.

    An imported row may have no median, but only a mean or a rate. Return the mean, or the time that follows from the
    rate. Return 0 if the row has no time.
    """
    if row.median_s is not None or not row.imported:
        return row.median_s or 0.0
    if row.mean_s is None and row.algbw_bytes_per_s:
        return (row.payload_bytes or 1) / row.algbw_bytes_per_s
    return row.mean_s or 0.0


def expected_seconds(row: Summary) -> Ends:
    """Return the time in seconds that a real machine is expected to need, as an interval. Return None if unknown."""
    low, high = row.expected_low_s, row.expected_high_s
    return None if low is None or high is None else (low, high)


def expected_busbw(row: Summary) -> Ends:
    """Return the interval, in GB/s, in which the busbw of a real machine is expected. Return None if unknown."""
    low, high = row.expected_busbw_low_bytes_per_s, row.expected_busbw_high_bytes_per_s
    return None if low is None or high is None else (low / 1e9, high / 1e9)


def by(rows: Iterable[Summary], key: Callable[[Summary], Any]) -> dict[Any, list[Summary]]:
    """Group rows by a key, in order of first appearance."""
    found: dict[Any, list[Summary]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of a curve: a message size, with the row of the slowest group from each launch of the case.

    Times are in seconds.

    `seconds`: the median of the launch medians.
    `interval`: the 95 % interval of `seconds`. The interval covers the variation between launches, or the variation
        within a single launch. None means unknown.
    `spread`: the times of the fastest and the slowest launch, or None if there is only one launch.
    """

    rows: tuple[Summary, ...]
    seconds: float
    interval: tuple[float, float] | None
    spread: tuple[float, float] | None

    @property
    def first(self) -> Summary:
        """The row of the first launch. The launches of a point all have the same size, bound, floor and algorithm."""
        return self.rows[0]

    @property
    def payload_bytes(self) -> int:
        """The size of the point."""
        return self.first.payload_bytes

    @property
    def converged(self) -> bool:
        """Whether more than half of the point's launches converged."""
        return 2 * sum(Flag.NOT_CONVERGED in row.flags for row in self.rows) < len(self.rows)

    @property
    def above_bound(self) -> bool:
        """Whether any launch of the point has a rate above a physical limit."""
        return any(Flag.ABOVE_BOUND in row.flags for row in self.rows)

    def busbw(self, at_seconds: float | None = None) -> float:
        """Return the bus bandwidth in GB/s that corresponds to a time in seconds.

        If the time is None, use the median time. If the pattern has no bus bandwidth, the result is 0.
        """
        return (self.first.busbw_bytes_per_s or 0.0) / 1e9 * seconds(self.first) / (at_seconds or self.seconds)


def curve_points(rows: Iterable[Summary]) -> list[CurvePoint]:
    """Return the points of one curve, sorted by size.

    `rows`: the rows of all groups and launches of one case.
    """
    points = []
    for _, of_size in sorted(by(rows, lambda row: row.payload_bytes).items()):
        groups = [_merged(of_group) for of_group in by(of_size, lambda row: row.group).values()]
        points.append(max(groups, key=lambda point: point.seconds))
    return points


def _merged(rows: Iterable[Summary]) -> CurvePoint:
    """Merge the rows of one group and size. If a launch has several attempts, the last attempt is used."""
    of_launch: dict[str, Summary] = {}
    for row in rows:
        launch = row.job.partition("#")[0]
        before = of_launch.get(launch)
        if before is None or before.job != row.job or seconds(before) < seconds(row):
            of_launch[launch] = row
    times = [seconds(row) for row in of_launch.values()]
    first = next(iter(of_launch.values()))
    interval = launches.interval(times)
    if len(times) == 1 and first.ci_low_s and first.ci_high_s:
        interval = first.ci_low_s, first.ci_high_s
    spread = (min(times), max(times)) if len(times) > 1 else None
    return CurvePoint(tuple(of_launch.values()), median(times), interval, spread)


def of_middle_launch(document: Document, rows: Iterable[Summary]) -> list[Summary]:
    """Return, of each set of rows that differ only in their launch, the row with the middle time.

    If two launches are in the middle, return the row of the slower launch. The row of the fastest launch may have been
    fast by chance.
    """
    cells = launches.cells(document.headers, rows)
    return [sorted(cell.rows.values(), key=seconds)[len(cell.rows) // 2] for cell in cells]


def points_of_cases(document: Document, rows: Iterable[Summary]) -> list[CurvePoint]:
    """Return the points of several cases, given their rows. A point represents all launches of its case."""
    cases = by(rows, lambda row: case_of(row.job, document.headers[row.job]))
    return [point for of_case in cases.values() for point in curve_points(of_case)]


def lines(document: Document, rows: Iterable[Summary]) -> dict[CurveLabel, list[CurvePoint]]:
    """Return the curves of these rows by label. The launches of one case make one curve."""
    names = labels(document)
    return {label: curve_points(own) for label, own in by(rows, lambda row: label_of(names, row)).items()}


def panel_title(pattern: str, rows: Iterable[Summary]) -> str:
    """Return the title of a panel.

    If a pattern has several groups, the title says that the curve shows the slowest group.
    """
    drawn = list(rows)
    groups = max(len({row.group for row in of_job}) for of_job in by(drawn, lambda row: row.job).values())
    if all(row.num_ranks == 1 and row.busbw_bytes_per_s is None for row in drawn):
        return f"{pattern} of one rank: call overhead, no link"
    return pattern if groups == 1 else f"{pattern}, slowest group of each size"


def best_rate(lines: Mapping[CurveLabel, Sequence[CurvePoint]]) -> str:
    """Return the highest bus bandwidth of a panel, for its title: `up to 3.93 GB/s (mpi, 32 KiB)`."""
    label, point = max(_candidates(lines), key=lambda pair: pair[1].busbw())
    above = ", above its bound" * point.above_bound
    words = f"{_named(lines, label)}{size_words(point.payload_bytes)}{above}{_not_converged(point)}"
    return f"up to {point.busbw():.3g} GB/s ({words})"


def best_time(lines: Mapping[CurveLabel, Sequence[CurvePoint]]) -> str:
    """Return the shortest time of a panel, for its title: `from 0.321 us (mpi, 8 B)`."""
    label, point = min(_candidates(lines), key=lambda pair: pair[1].seconds)
    words = f"{_named(lines, label)}{size_words(point.payload_bytes)}{_not_converged(point)}"
    return f"from {format_duration(point.seconds)} ({words})"


def _not_converged(point: CurvePoint) -> str:
    return "" if point.converged else ", not converged"


def _candidates(lines: Mapping[CurveLabel, Sequence[CurvePoint]]) -> list[tuple[CurveLabel, CurvePoint]]:
    """Return the points from which a panel's main result is chosen, with the labels of their curves.

    Modelled points are returned only if no other points exist. Points above their bound are returned only if there are
    no other points. Points that did not converge are returned, too. Without such points, the main result of a busy
    machine could lie far below the curve.
    """
    found = [(label, point) for label, points in lines.items() for point in points]
    found = [pair for pair in found if not pair[0].modelled] or found
    return [pair for pair in found if not pair[1].above_bound] or found


def _named(lines: Mapping[CurveLabel, Sequence[CurvePoint]], label: CurveLabel) -> str:
    """Return the name of a curve within its panel, followed by a comma. Return "" if the panel has only one curve."""
    if len(lines) == 1:
        return ""
    own = [word for word in label.settings if not all(word in each.settings for each in lines)]
    words = [*(own or label.settings[:1]), label.own_name, "imported" * label.imported]
    name = ", ".join(filter(None, words))
    return f"{name if len(name) <= _MOST_LETTERS else f'{label.settings[0]}, ...'}, "


def map_name(document: Document, header: Header) -> str:
    """Return the name of a job's map of pairs: pattern and transport, or the table's name in an imported log."""
    if not header.imported:
        return f"{header.pattern} over {header.transport}"
    logs = {each.imported.get("source") for each in document.headers.values() if each.imported}
    table = header.facts.get("matrix") if len(logs) == 1 else None  # the name of the job has the name of the log
    return f"{header.transport}, {table or header.job}"


def labels(document: Document) -> dict[str, CurveLabel]:
    """Return a label for each job.

    A label has as few settings as needed to distinguish the job's case from other cases of the pattern. The launches of
    a case have the same label. Jobs of different patterns share a label if their settings are equal. If only some jobs
    are imported, the labels of these jobs say "imported".
    """
    case_names = {job: case_of(job, header) for job, header in document.headers.items()}
    headers = {case: document.headers[job] for job, case in reversed(case_names.items())}
    named = _case_labels(dict(reversed(headers.items())))
    return {job: named[case] for job, case in case_names.items()}


def _case_labels(headers: Mapping[str, Header]) -> dict[str, CurveLabel]:
    settings = {job: _settings(header) for job, header in headers.items()}
    of_pattern: dict[str, list[tuple[tuple[str, ...], ...]]] = {}
    for job, header in headers.items():
        of_pattern.setdefault(header.pattern, []).append(settings[job])
    varied = []
    for index in range(1, _NUM_SETTINGS):
        if any(len({values[index] for values in jobs}) > 1 for jobs in of_pattern.values()):
            varied.append(index)
    found = {}
    for job, values in settings.items():
        found[job] = tuple(word for index in (0, *varied) for word in values[index] if word)
    lines = Counter((headers[job].pattern, found[job], mode) for job in headers for mode in _modes(headers[job]))
    named = {}
    mixed = not all(header.imported for header in headers.values())
    for job, header in headers.items():
        shared = any(lines[header.pattern, found[job], mode] > 1 for mode in _modes(header))
        named[job] = CurveLabel(
            found[job],
            own_name=_own_name(job, header) if shared else "",
            modelled=header.modelled,
            imported=bool(header.imported) and mixed,
        )
    return named


def _own_name(case: str, header: Header) -> str:
    """Return the part of a case's name after the pattern. For an imported log, return the name of the log."""
    pattern = header.pattern
    return case.replace(f"-{pattern}", "", 1) if header.imported else case.removeprefix(f"{pattern}-")


def _settings(header: Header) -> tuple[tuple[str, ...], ...]:
    """Return the settings that may distinguish two jobs, in the order in which a label shows them.

    A setting consists of one or more texts.
    """
    topology = "all ranks" if header.topology == "world" else header.topology
    return (
        (header.transport,),
        (header.dtype,),
        (header.reduce_op,),
        _world(header.num_ranks, header.num_nodes),
        (topology,),
        (header.direction or "",),
        *((_option(header, name),) for name in _LABELLED),
    )


_LABELLED = [each.flags[-1].removeprefix("--") for each in FACTORS if each.labelled]
_NUM_SETTINGS = 6 + len(_LABELLED)


def _modes(header: Header) -> list[str]:
    """Return the modes of a job's rows. Each mode has its own figures."""
    asked = _value(header, "mode")
    return asked.split(",") if asked else ["isolated", "pipelined"]


def _option(header: Header, name: str) -> str:
    """Return an option as text, for example `order reverse`. The result is empty if the option has its default."""
    value = _value(header, name)
    return f"{name} {value}" if value else ""


def _value(header: Header, name: str) -> str:
    """Return the value of an option. The result is empty if the option has its default."""
    case = list(header.case)
    flag = f"--{name}"
    return case[case.index(flag) + 1] if flag in case[:-1] else ""


def label_of(labels: Mapping[str, CurveLabel], row: Summary) -> CurveLabel:
    """Return the label of the curve to which a row belongs. This is the label of the row's job.

    Rows that were copied through host memory have a separate curve with another label.
    """
    label = labels[row.job]
    return replace(label, settings=(*label.settings, _STAGED)) if Flag.THROUGH_HOST in row.flags else label


def first_curves(document: Document, rows: Sequence[Summary], most: int) -> tuple[list[Summary], list[str]]:
    """Return the rows of the first `most` curves, and a remark that says how many curves are not drawn."""
    names = labels(document)
    shown = set(list(dict.fromkeys(label_of(names, row) for row in rows))[:most])
    left = len({label_of(names, row) for row in rows} - shown)
    remark = [f"not drawn: {left} more curves; linkbench report shows all"] if left else []
    return [row for row in rows if label_of(names, row) in shown], remark


def transports(document: Document, rows: Iterable[Summary]) -> dict[CurveLabel, str]:
    """Map the label of each curve to its transport, in the order of the rows."""
    names = labels(document)
    return {label_of(names, row): row.transport for row in rows}


def through_host_remark(rows: Iterable[Summary]) -> list[str]:
    """Return a remark that names the pairs whose copies went through host memory."""
    pairs = [f"{row.src}-{row.dst}" for row in rows if Flag.THROUGH_HOST in row.flags]
    more = ", ..." if len(set(pairs)) > _MOST_STAGED else ""
    named = ", ".join(list(dict.fromkeys(pairs))[:_MOST_STAGED])
    return [f"copied through host memory, not over a peer link: {named}{more}"] if pairs else []


def invalid_remark(document: Document, mode: str) -> list[str]:
    """Return a remark that says how many rows of a mode are not drawn because their data were wrong."""
    number = sum(row.mode == mode and row.verified is False for row in document.summaries)
    return [f"INVALID: {number} rows received wrong data and are not drawn"] if number else []


def interval_remark(points: Iterable[CurvePoint]) -> list[str]:
    """Return remarks that explain what the points, bars and bands of a figure show.

    Modelled rows have points but no bars and no bands.
    """
    points = list(points)
    measured = [point for point in points if not (point.first.modelled or point.first.imported)]
    most = max((len(point.rows) for point in measured), default=0)
    remarks = []
    if most == 1:
        remarks.append("median and its 95 % interval within one launch")
    elif most > 1:
        bars = "; bars: its 95 % interval over launches" if most >= launches.LEAST_FOR_INTERVAL else ""
        remarks.append(f"median of up to {most} launches{bars}; band: fastest to slowest launch")
    if any(point.first.imported for point in points):
        remarks.append("imported: the mean of one launch, as printed by the tool")
    return remarks


def algorithm_remark(rows: Iterable[Summary]) -> list[str]:
    """Return a remark that explains why a line has gaps (see `_style.points`)."""
    of = by(rows, lambda row: (row.pattern, row.transport, row.topology))
    changes = any(len({row.algorithm for row in alike}) > 1 for alike in of.values())
    return ["a line breaks where the algorithm changes"] if changes else []


def size_words(num_bytes: int) -> str:
    """Return a size for a sentence: `8 B`, `256 MiB`."""
    text = format_size(num_bytes)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} B"


def world(num_ranks: int | None, num_nodes: int | None) -> str:
    """Return a text such as `16 ranks, 2 nodes`. The text names no nodes for a single node or an unknown number."""
    return ", ".join(_world(num_ranks, num_nodes))


def _world(num_ranks: int | None, num_nodes: int | None) -> tuple[str, ...]:
    ranks = "ranks unknown" if num_ranks is None else f"{num_ranks} rank{'' if num_ranks == 1 else 's'}"
    return (ranks,) if num_nodes in (None, 1) else (ranks, f"{num_nodes} nodes")
