"""Draw the map of all pairs of ranks: a canvas that the page's script fills, and a table of the worst pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np

from bench.core.printable import printable
from bench.core.record import Header, known
from bench.diagnose import pair_evidence
from bench.diagnose.places import Places
from bench.page import blocks
from bench.page.markup import Markup, element, joined
from bench.results import curves, text
from bench.results.document import Document, Summary
from bench.results.table import Column, Table

_HOW = "Point at a cell, or move with the arrow keys. Rows send, columns receive."
_MOST_WORST = 20
_KINDS = ("pairs inside a host", "pairs between hosts of a rack", "pairs between racks")


@dataclass(frozen=True, slots=True)
class _Pair:
    """A row in the table of the worst pairs.

    `share`: the pair's value relative to the median of the pairs of the same kind. A share below 1 means worse than the
        median.
    """

    source: str
    target: str
    value: float
    share: float


def draw(document: Document) -> Markup:
    """Return the map of each job that measured at least two pairs."""
    found: list[Markup] = []
    for index, (job, rows) in enumerate(
        (job, list(own)) for job, own in groupby(document.summaries, lambda row: row.job)
    ):
        # a copy between a GPU and the host has only one rank, and no place on a map
        valid = [row for row in rows if row.verified is not False and row.src is not None and row.dst is not None]
        chosen = _chosen(valid)
        ranks = document.headers[job].num_ranks or 0
        if len({(row.src, row.dst) for row in chosen if max(row.src or 0, row.dst or 0) < ranks}) > 1:
            found.append(_map(document, document.headers[job], chosen, index, len(found)))
    return joined(*found)


def _chosen(rows: Sequence[Summary]) -> list[Summary]:
    """Return the pipelined rows of the largest size.

    If there are no pipelined rows, return the isolated rows of the smallest size.
    """
    rated = [row for row in rows if row.mode == "pipelined" and row.busbw_bytes_per_s]
    if rated:
        largest = max(row.payload_bytes for row in rated)
        return [row for row in rated if row.payload_bytes == largest]
    timed = [row for row in rows if row.mode == "isolated" and row.median_s]
    smallest = min((row.payload_bytes for row in timed), default=0)
    return [row for row in timed if row.payload_bytes == smallest]


def _map(document: Document, header: Header, rows: Sequence[Summary], index: int, number: int) -> Markup:
    first = rows[0]
    rated = first.mode == "pipelined"
    what = "bandwidth" if rated else "time"
    unit = "GB/s" if rated else "us"
    places = pair_evidence.places(asdict(header))
    order = sorted(range(known(header.num_ranks)), key=lambda rank: places.racks.get(places.hosts[rank], ""))
    names = [f"rank {rank} ({places.hosts[rank]})" for rank in range(len(order))]
    of = curves.size_words(first.payload_bytes) if first.payload_bytes else "copies"  # other tools do not state a size
    title = f"{curves.map_name(document, header)}: {what} of {of}"
    values = np.array([_value(row, rated) for row in rows])
    kinds = np.array([_kind_of(places, row) for row in rows])
    middles = [
        float(np.median(values[kinds == kind])) if (kinds == kind).any() else None for kind in range(len(_KINDS))
    ]
    # The input that the script needs to fill the canvas. The values are in the rows of the data.
    settings = {
        "rows": index,
        "mode": first.mode,
        "bytes": first.payload_bytes,
        "column": "busbw_bytes_per_s" if rated else "median_s",
        "scale": 1e-9 if rated else 1e6,
        "unit": unit,
        "middles": middles,
        "more": rated,
        "both": first.direction == "two-way" or not rated,
        "order": order,
        "hosts": [printable(host) for host in places.hosts],
        "racks": [printable(places.racks.get(host, "")) for host in places.hosts],
    }
    accused = pair_evidence.slow_parts(header, rows)
    remarks = [f"slow part: {one.kind} {one.name}: {'; '.join(code.text for code in one.findings)}" for one in accused]
    name = f"map-{number}"
    canvas = element(
        "canvas",
        title,
        id=name,
        tabindex=0,
        role="application",
        aria_label=f"{title}. Arrow keys move from pair to pair.",
        aria_describedby=f"{name}-says",
        data_map=json.dumps(settings, separators=(",", ":")),
    )
    medians = [
        f"{name}: {middle:.4g} {unit}" for name, middle in zip(_KINDS, middles, strict=True) if middle is not None
    ]
    scale = element("p", f"medians that pairs are compared with: {'; '.join(medians)}", class_="remarks")
    return element(
        "figure",
        element("h3", title),
        canvas,
        element("p", _HOW, id=f"{name}-says", class_="says", aria_live="polite"),
        element("ul", class_="legend", data_legend=name),
        scale,
        element("ul", *(element("li", remark) for remark in remarks)) if remarks else "",
        blocks.table(_worst(rows, values, np.array([middles[kind] for kind in kinds]), names, rated)),
        class_="map",
    )


def _kind_of(places: Places, row: Summary) -> int:
    """Return the kind of a pair, as an index into _KINDS (inside a host, between hosts of a rack, or between racks)."""
    source, target = places.hosts[row.src or 0], places.hosts[row.dst or 0]
    if source == target:
        return 0
    return 1 if places.racks.get(source, "") == places.racks.get(target, "") else 2


def _worst(rows: Sequence[Summary], values: Any, middles: Any, names: Sequence[str], rated: bool) -> Table:
    """Return the pairs that are worst relative to the median of the pairs of the same kind."""
    shares = values / middles if rated else middles / values
    worst = []
    for index in np.argsort(shares, kind="stable")[:_MOST_WORST].tolist():
        row = rows[index]
        worst.append(_Pair(names[row.src or 0], names[row.dst or 0], float(values[index]), float(shares[index])))
    columns = (
        Column("from", lambda pair: pair.source, right=False),
        Column("to", lambda pair: pair.target, right=False),
        Column("busbw" if rated else "time", lambda pair: f"{pair.value:.4g}", unit="(GB/s)" if rated else "(us)"),
        Column("of median of such pairs", lambda pair: text.percent(pair.share), unit="(%)"),
    )
    return Table(columns, worst, f"the {len(worst)} worst of {len(rows)} pairs")


def _value(row: Summary, rated: bool) -> float:
    return (row.busbw_bytes_per_s or 0.0) / 1e9 if rated else curves.seconds(row) * 1e6
