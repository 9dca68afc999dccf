"""Show tables whose lines combine several rows, such as the launches of a case or a comparison with another tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.core.units import format_size
from bench.results import step_tables, text
from bench.results.compared_rows import Interference, Overlapped, Parity, Scaling, Sharing
from bench.results.document import Document, Spread
from bench.results.run_table import group_names
from bench.results.table import NOTHING, Column, Table
from bench.results.training_rows import Checkpointed, Fed

LAUNCHES = (
    "over launches: median of the launches' medians; ci95 over launches (3 or more)",
    "within: half the interval of one launch's median; between: standard deviation of the launches' medians",
)
_SCALING_TITLES = {
    "nodes": "more nodes",
    "ranks per node": "more ranks inside one node",
    "order": "other orders of ranks",
}


def tables(document: Document, whole: bool = True) -> list[Table]:
    """Return the tables that have at least one row.

    `whole`: if False, the scaling table shows only the largest size of each curve.
    """
    scalings = document.scalings if whole else _largest(document.scalings)
    sharings = _sizes_shared(document.sharings)
    found = [
        Table(_PARITY, document.parities, "parity: ours / theirs", _parity_heading),
        Table(_SCALING, scalings, _SCALING_TITLE, _scaling_heading),
        Table(_INTERFERENCE, document.interferences, _INTERFERENCE_TITLE, _interference_heading),
        Table(_SHARING, sharings, _SHARING_TITLE, lambda groups: _sharing_heading(groups[0])),
        Table(_OVERLAP, document.overlaps, _OVERLAP_TITLE, _overlap_heading),
        feeds(document),
        Table(_CHECKPOINT, document.checkpoints, _CHECKPOINT_TITLE, _checkpoint_heading),
        *step_tables.tables(document),
        Table(_REPLAY, document.replays, _REPLAY_TITLE, lambda one: f"replay over {one.transport}"),
    ]
    return [table for table in found if table.rows]


# -- launches


@dataclass(frozen=True, slots=True)
class SpreadLine:
    """One size and group of a case, as a line in the table of launches.

    For each mode, the line shows how much the launches differ.
    """

    heading: str
    groups: tuple[str, ...]
    payload_bytes: int
    by_mode: dict[str, Spread]


def measured_spreads(document: Document) -> list[Spread]:
    """Return the spreads of rows whose launches were measured.

    Modelled launches are all equal, so they have no spread.
    """
    return [spread for spread in document.spreads if not document.headers[spread.jobs[0]].modelled]


def launches(document: Document) -> Table:
    """Return the table of launches. The table has a line for each size and group of a case with several launches."""
    lines: list[SpreadLine] = []
    spreads = measured_spreads(document)
    for job in dict.fromkeys(spread.job for spread in spreads):
        own = [spread for spread in spreads if spread.job == job]
        num = max(spread.num_launches for spread in own)
        heading = f"{text.job_line(job, document.headers[own[0].jobs[0]])}, {num} launches"
        found: dict[tuple[int, str], SpreadLine] = {}
        for spread in own:
            key = (spread.payload_bytes, spread.group)
            line = found.setdefault(key, SpreadLine(heading, (spread.group,), spread.payload_bytes, {}))
            line.by_mode[spread.mode] = spread
        lines += found.values()
    grouped = len({line.groups for line in lines}) > 1
    columns = [Column("size", lambda line: str(line.payload_bytes), unit="(B)", width=10)]
    if grouped:
        columns.append(Column("group", lambda line: group_names(line.groups), width=8))
    for mode in dict.fromkeys(spread.mode for spread in spreads):
        columns += _spread_columns(mode)
    return Table(columns, lines, section=lambda line: line.heading, gap=1)


def _spread_columns(mode: str) -> list[Column]:
    def shown(show: Callable[[Spread], str]) -> Callable[[SpreadLine], str]:
        return lambda line: show(line.by_mode[mode]) if mode in line.by_mode else NOTHING

    return [
        Column("time", shown(lambda one: text.microseconds(one.median_s)), unit="(us)", group=mode, width=9),
        Column(
            "ci95", shown(lambda one: text.interval(one.ci_low_s, one.ci_high_s)), unit="(us)", group=mode, width=19
        ),
        Column("within", shown(lambda one: text.percent(one.within)), unit="(%)", group=mode, width=7),
        Column("between", shown(lambda one: text.percent(one.between)), unit="(%)", group=mode, width=8),
    ]


# -- cells that several tables share


def _size(row: Any) -> str:
    return format_size(row.payload_bytes)


def _group(row: Any) -> str:
    return "" if row.group == "world" else str(row.group)


def _us(name: str) -> Callable[[Any], str]:
    return lambda row: text.microseconds(getattr(row, name))


def _interval(low: float | None, high: float | None) -> str:
    """Return an interval as text, such as `0.512..0.530`.

    The text is `?` if there are too few samples or launches for an interval.
    """
    return "?" if low is None or high is None else f"{low:.3f}..{high:.3f}"


def _factor_columns(name: str, title: str = "factor") -> list[Column]:
    """Return the columns of a ratio and its 95 % interval. A modelled ratio has no interval."""

    def interval(row: Any) -> str:
        found = _interval(getattr(row, f"{name}_low"), getattr(row, f"{name}_high"))
        return NOTHING if found == "?" and getattr(row, "modelled", False) else found

    return [Column(title, lambda row: f"{getattr(row, name):.3f}"), Column("ci95", interval)]


def _share_of(num: int, of: int) -> str:
    """Return a text such as `4 of 21`. The result is empty if `num` is 0."""
    return f"{num} of {of}" if num else ""


def _oversubscribed(row: Scaling | Sharing) -> str:
    return "more ranks than CPUs" if row.oversubscribed else ""


# -- another tool


def _parity_heading(one: Parity) -> str:
    asked = f" {one.case}" if one.case else ""
    launches = f"{one.num_launches} launch{'es' if one.num_launches > 1 else ''}"
    return f"{one.pattern}{asked} and {one.tool}, {launches}: ours / theirs, each the {one.statistic}"


_PARITY = (
    Column("size", _size),
    Column("group", _group, optional=True),
    Column("ours", _us("ours_s"), unit="(us)"),
    Column("theirs", _us("theirs_s"), unit="(us)"),
    Column("ratio", lambda one: f"{one.ratio:.3f}"),
    Column(
        "ci95", lambda one: "" if one.ratio_low is None else _interval(one.ratio_low, one.ratio_high), optional=True
    ),
)


# -- scaling


def _largest(scalings: Sequence[Scaling]) -> list[Scaling]:
    """Return the results, restricted to the largest size of each curve."""
    largest: dict[str, int] = {}
    for one in scalings:
        heading = _scaling_heading(one)
        largest[heading] = max(one.payload_bytes, largest.get(heading, 0))
    return [one for one in scalings if one.payload_bytes == largest[_scaling_heading(one)]]


def _scaling_heading(one: Scaling) -> str:
    return f"{one.pattern} over {one.transport}, {one.mode}: {_SCALING_TITLES[one.factor]}"


def _rated(one: Scaling) -> bool:
    """Check whether the scaling table shows the bandwidth of this row instead of its time.

    The table shows bandwidths only for pipelined rows.
    """
    return one.mode == "pipelined" and one.efficiency is not None


def _scaled(one: Scaling) -> str:
    if one.value == one.reference:
        return "reference"
    ratio = one.efficiency if _rated(one) else one.time_ratio
    return f"{ratio:.3f}"


def _scaled_interval(one: Scaling) -> str:
    low, high = one.time_ratio_low, one.time_ratio_high
    if _rated(one):
        low, high = one.efficiency_low, one.efficiency_high
    return "" if low is None or high is None else _interval(low, high)


def _share(one: Scaling) -> str:
    """Return busbw / bound as text. If the row shows a time, return the ratio latency floor / time."""
    if _rated(one):
        return "" if one.bound_fraction is None else f"{text.percent(one.bound_fraction)} % of bound"
    return "" if one.floor_fraction is None else f"floor {text.percent(one.floor_fraction)} %"


_SCALING_TITLE = (
    "scaling: busbw (pipelined) or time (isolated) relative to the smallest world (inside one node, or "
    "between nodes) or to the linear order"
)
_SCALING = (
    Column("size", _size),
    Column("world", lambda one: one.value if one.factor == "order" else f"{one.num_nodes}x{one.ranks_per_node}"),
    Column("time (us)", lambda one: "" if _rated(one) else text.microseconds(one.median_s), optional=True),
    Column("busbw (GB/s)", lambda one: text.gigabytes(one.busbw_bytes_per_s) if _rated(one) else "", optional=True),
    Column("x reference", _scaled),
    Column("ci95", _scaled_interval, optional=True),
    Column("", _share, optional=True),
    Column("", _oversubscribed, right=False, optional=True),
)


# -- contention


def _interference_heading(one: Interference) -> str:
    ranks = f"{one.num_aggressors} rank{'s' * (one.num_aggressors > 1)}"
    return (
        f"{one.pattern} over {one.transport}, {one.mode}, {one.ranks_per_node} ranks per node, split "
        f"{one.split}; {one.aggressor} of {format_size(one.aggressor_bytes)} by {ranks} as aggressor"
    )


def _aggressor_rate(one: Interference) -> str:
    share = text.percent(one.aggressor_bytes_per_s / one.aggressor_alone_bytes_per_s)
    alone = text.gigabytes(one.aggressor_alone_bytes_per_s)
    return f"{text.gigabytes(one.aggressor_bytes_per_s)} of {alone} GB/s ({share} %)"


_INTERFERENCE_TITLE = (
    "contention: factor = time disturbed / time alone (`?`: too few blocks or launches for an interval); "
    "idle: blocks in which aggressors hardly sent, so the factor is too low"
)
_INTERFERENCE = (
    Column("size", _size),
    Column("group", lambda one: one.group),
    Column("alone", _us("alone_s"), unit="(us)"),
    Column("disturbed", _us("disturbed_s"), unit="(us)"),
    *_factor_columns("factor"),
    Column("aggressors", _aggressor_rate),
    Column("idle", lambda one: _share_of(one.num_blocks_not_covered, one.num_blocks), optional=True),
)


# -- groups at once


def _sizes_shared(sharings: Iterable[Sharing]) -> list[list[Sharing]]:
    """Return one list for each job, mode and size, with the results of all groups."""
    sizes: dict[tuple[str, str, int], list[Sharing]] = {}
    for one in sharings:
        sizes.setdefault((one.job, one.mode, one.payload_bytes), []).append(one)
    return list(sizes.values())


def _worst(groups: Sequence[Sharing]) -> Sharing:
    return max(groups, key=lambda one: one.factor)


def _of_worst(show: Callable[[Sharing], str]) -> Callable[[Sequence[Sharing]], str]:
    return lambda groups: show(_worst(groups))


def _sharing_heading(one: Sharing) -> str:
    return f"{one.pattern} over {one.transport}, {one.mode}, topology {one.topology}"


_SHARING_TITLE = "groups at once: factor = time at once / time alone (`?`: too few samples or launches for an interval)"
_FACTOR, _FACTOR_INTERVAL = _factor_columns("factor")
_SHARING = (
    Column("size", _of_worst(_size)),
    Column("groups", lambda groups: f"{len(groups)} of {groups[0].num_ranks} ranks"),
    Column("median factor", lambda groups: f"{median(one.factor for one in groups):.3f}"),
    Column("worst", _of_worst(lambda one: one.group)),
    Column("factor", _of_worst(_FACTOR.cell)),
    Column("ci95", _of_worst(_FACTOR_INTERVAL.cell)),
    Column("alone", _of_worst(_us("alone_s")), unit="(us)"),
    Column("at once", _of_worst(_us("at_once_s")), unit="(us)"),
    Column("", _of_worst(_oversubscribed), right=False, optional=True),
)


# -- overlap


def _overlap_heading(one: Overlapped) -> str:
    return f"allreduce over {one.transport}, {one.num_ranks} ranks, {one.mode}, and products of {one.dtype}"


_OVERLAP_TITLE = (
    "overlap: factor = time overlapped / time alone (`?`: too few blocks or launches for an interval); not "
    "covered: samples in which the allreduce or the products ended early, so the factors are too low"
)
_OVERLAP = (
    Column("size", _size),
    Column("group", _group, optional=True),
    Column("alone", _us("alone_s"), unit="(us)"),
    Column("overlapped", _us("together_s"), unit="(us)"),
    *_factor_columns("factor"),
    Column("order", lambda one: str(one.order)),
    Column("product alone", _us("product_alone_s"), unit="(us)"),
    Column("overlapped", _us("product_together_s"), unit="(us)"),
    *_factor_columns("product_factor"),
    Column("not covered", lambda one: _share_of(one.num_not_covered, one.num_samples), optional=True),
)


# -- feed


def feeds(document: Document) -> Table:
    """Return the table of passes over data sets."""
    return Table(_FEED, document.feeds, _FEED_TITLE, _feed_heading)


def _feed_heading(one: Fed) -> str:
    return f"{one.num_records:,} records of {format_size(one.record_bytes)}, {one.state}"


def _rate_cell(name: str) -> Callable[[Any], str]:
    def shown(one: Any) -> str:
        rate = getattr(one, name)
        return NOTHING if rate is None else f"{rate / 1e9:.3f}"

    return shown


def _known_ms(name: str) -> Callable[[Any], str]:
    def shown(one: Any) -> str:
        seconds = getattr(one, name)
        return "" if seconds is None else f"{seconds * 1e3:.1f}"

    return shown


_FEED_TITLE = (
    "feed: disk: O_DIRECT reads in order, copy: in memory, core: what one core gives (S / CPU time of a pass), PCIe: "
    "the GPU's link; binds: what the passes reach 0.7 to 1.2 of; device: bytes from the device per byte asked; "
    "headroom: rate / demand; wait: of a step for its batch, formula: max(0, batch / workers - step)"
)
_FEED = (
    Column("files", lambda one: one.files, right=False),
    Column("order", lambda one: one.read_order, right=False),
    Column("ranks", lambda one: str(one.num_ranks) if one.num_ranks > 1 else "", optional=True),
    Column("workers", lambda one: str(one.num_workers)),
    Column("", lambda one: "O_DIRECT" if one.direct_io else "", right=False, optional=True),
    Column("size", _size),
    Column("records/s", lambda one: f"{one.records_per_s:.0f}"),
    Column("rate", _rate_cell("bytes_per_s"), unit="(GB/s)"),
    Column("disk", _rate_cell("disk_bytes_per_s"), unit="(GB/s)"),
    Column("copy", _rate_cell("copy_bytes_per_s"), unit="(GB/s)"),
    Column("core", _rate_cell("core_bytes_per_s"), unit="(GB/s)"),
    Column(
        "PCIe",
        lambda one: _rate_cell("pcie_bytes_per_s")(one) if one.pcie_bytes_per_s else "",
        unit="(GB/s)",
        optional=True,
    ),
    Column("least", lambda one: one.least, right=False),
    Column("binds", lambda one: one.binds or NOTHING, right=False),
    Column("device", lambda one: f"{one.device_share:.3f}"),
    Column("step", _known_ms("step_s"), unit="(ms)", optional=True),
    Column("batch", _known_ms("busy_s"), unit="(ms)", optional=True),
    Column("wait", _known_ms("wait_s"), unit="(ms)", optional=True),
    Column("formula", _known_ms("predicted_wait_s"), unit="(ms)", optional=True),
    Column("to GPU", _known_ms("copied_s"), unit="(ms)", optional=True),
    Column("path", lambda one: one.gpu_path, right=False, optional=True),
    Column("headroom", lambda one: "" if one.headroom is None else f"{one.headroom:.2f}", optional=True),
)


# -- checkpoints


def _checkpoint_heading(one: Checkpointed) -> str:
    exchange = format_size(one.exchange_bytes)
    return f"{one.num_ranks} ranks, steps of {one.step_s * 1e3:.1f} ms with an allreduce of {exchange}"


def _stall_interval(one: Checkpointed) -> str:
    if one.stall_low_s is None or one.stall_high_s is None:
        return NOTHING
    return f"{one.stall_low_s * 1e3:.1f} to {one.stall_high_s * 1e3:.1f}"


_CHECKPOINT_TITLE = (
    "checkpoints: write: until the slowest rank's shard is durable; stall: time that the steps lost; "
    "blocked: the part of the stall before the first step; exchange: alone, and while the checkpoint was "
    "written; read: all shards back from the device"
)
_CHECKPOINT = (
    Column("method", lambda one: one.method, right=False),
    Column("shard", lambda one: format_size(one.shard_bytes)),
    Column("write", _known_ms("write_s"), unit="(ms)"),
    Column("rate", _rate_cell("write_bytes_per_s"), unit="(GB/s)"),
    Column("blocked", _known_ms("blocked_s"), unit="(ms)"),
    Column("stall", _known_ms("stall_s"), unit="(ms)"),
    Column("ci95", _stall_interval, unit="(ms)"),
    Column("alone", _known_ms("exchange_alone_s"), unit="(ms)"),
    Column("during", _known_ms("exchange_during_s"), unit="(ms)"),
    Column("read", _rate_cell("read_bytes_per_s"), unit="(GB/s)"),
    Column("device", lambda one: f"{one.device_share:.3f}"),
    Column(
        "slowest",
        lambda one: "" if one.slowest_rank is None else f"rank {one.slowest_rank} +{one.slowest_behind:.0%}",
        right=False,
        optional=True,
    ),
)


# -- replay

_REPLAY_TITLE = (
    "replay of a recorded job: factor = replayed time / recorded time; step: of the slowest rank; an exchange lasts "
    "from the last arrival to the end"
)
_REPLAY = (
    Column("what", lambda one: one.group, right=False),
    Column("size", _size),
    Column("ranks", lambda one: str(one.num_ranks)),
    Column("recorded", _us("recorded_s"), unit="(us)"),
    Column("replayed", _us("replayed_s"), unit="(us)"),
    Column("ci95", lambda one: text.interval(one.low_s, one.high_s), unit="(us)"),
    Column("factor", lambda one: f"{one.factor:.3f}"),
)
