"""The words for scaling: a line for each world beside its reference, and for each order of ranks beside the linear."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.units import format_size
from bench.results import text
from bench.results.document import Scaling

_TITLES = {
    "nodes": "more nodes beside the fewest",
    "ranks per node": "more ranks inside one node beside the fewest",
    "order": "another order of ranks beside the linear one",
}
_FIGURES = {"isolated": "time, latency floor / time", "pipelined": "busbw, busbw / bound of that world"}
_APART = (
    "one node and several nodes have references of their own: ranks inside a node use other links than the network's, "
    "so neither says what the other lost"
)


def lines(scalings: Sequence[Scaling]) -> list[str]:
    """For each curve a title, then a line for each size and world; nothing where nothing scales."""
    curves: dict[str, list[str]] = {}
    for one in scalings:
        title = f"{one.pattern} over {one.transport}, {one.mode}, {_TITLES[one.factor]} ({_FIGURES[one.mode]}):"
        curves.setdefault(title, []).append(f"  {_line(one)}")
    found = [line for title, of_title in curves.items() for line in (title, *of_title)]
    worlds = {one.num_nodes > 1 for one in scalings if one.factor != "order"}
    return [*found, _APART] if len(worlds) > 1 else found


def _line(one: Scaling) -> str:
    words = [f"{format_size(one.payload_bytes):>6} {_what(one):>12}"]
    if one.mode == "pipelined" and one.efficiency is not None:
        words.append(f"{text.gigabytes(one.busbw_bytes_per_s):>7} GB/s")
        words += _beside(one, one.efficiency, one.efficiency_low, one.efficiency_high)
        words += [] if one.bound_fraction is None else [f"{text.percent(one.bound_fraction)} % of bound"]
    else:
        words.append(f"{text.microseconds(one.median_s):>8} us")
        words += _beside(one, one.time_ratio, one.time_ratio_low, one.time_ratio_high)
        words += [] if one.floor_fraction is None else [f"floor {text.percent(one.floor_fraction)} %"]
    return "  ".join([*words, *["(more ranks than CPUs)"] * one.oversubscribed])


def _what(one: Scaling) -> str:
    return f"order {one.value}" if one.factor == "order" else f"{one.num_nodes}x{one.ranks_per_node}"


def _beside(one: Scaling, ratio: float, low: float | None, high: float | None) -> list[str]:
    """`0.52 [0.51..0.53] x linear`; the reference itself says only that it is."""
    if one.value == one.reference:
        return ["the reference"]
    around = "" if low is None or high is None else f" [{low:.3f}..{high:.3f}]"
    return [f"{ratio:.3f}{around} x {one.reference}{'' if one.factor == 'order' else f' {one.factor}'}"]
