"""Draw the rates at which a data set is read: a dot for each format and reading method, and a table.

The fastest rate comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.page import blocks, dots
from bench.page.markup import Markup, element
from bench.results import derived_tables, feed_words, looks
from bench.results.document import Document
from bench.results.training_rows import Fed

_SHAPES = {  # the markers of a row's other rates: key of dots.SHAPES, and name in the explanation
    "disk_bytes_per_s": ("line", "upright line"),
    "core_bytes_per_s": ("cross", "cross"),
    "pcie_bytes_per_s": ("triangle", "triangle"),
    "demand_bytes_per_s": ("diamond", "diamond"),
}


def draw(document: Document) -> Markup:
    """Return the picture, its explanation and the table.

    Return nothing if the run did not measure the reading of a data set.
    """
    if not document.feeds:
        return Markup()
    every = feed_words.fastest_first(document)
    shown = sorted(every[: feed_words.MOST_ROWS], key=lambda one: one.state)  # the fastest of each state stays first
    hollow = feed_words.not_converged(document)
    colour, _ = looks.of_transport(feed_words.transport_of(document, shown[0]))
    sizes = feed_words.several_sizes(shown)
    picture = dots.DotPicture(
        name="feed",
        title="Rate of reading training data",
        description="The rate of each way of reading and its limits; the table below has every value",
        axis="rate of reading (GB/s), logarithmic",
        rows=[_row(one, colour, sizes, one.job in hollow) for one in shown],
        left=330,
        row_height=26,
    )
    values = blocks.details("Values", blocks.table(derived_tables.feeds(document)))
    heading = element("h3", f"Fastest: {feed_words.fastest(every)}")
    remarks = element("ul", *(element("li", each) for each in _remarks(every, shown, hollow)), class_="remarks")
    return element("figure", heading, dots.draw(picture), remarks, values, class_="wide")


def _row(one: Fed, colour: str, sizes: bool, hollow: bool) -> dots.DotRow:
    known = one.low_s and one.high_s
    return dots.DotRow(
        kind=one.state,
        name=feed_words.name(one, sizes),
        words=feed_words.rate(one),
        colour=colour,
        bytes_per_s=one.bytes_per_s,
        ends=(one.payload_bytes / one.high_s, one.payload_bytes / one.low_s) if known else None,  # type: ignore[operator]
        limits=tuple(
            dots.DotLimit(rate, shape) for name, (shape, _) in _SHAPES.items() if (rate := getattr(one, name))
        ),
        hollow=hollow,
    )


def _remarks(every: Sequence[Fed], shown: Sequence[Fed], hollow: set[str]) -> list[str]:
    remarks = ["dot: the rate of the slowest rank in GB/s, with its 95 % interval; left: the state of the page cache"]
    remarks += ["hollow: not converged"] if any(one.job in hollow for one in shown) else []
    remarks += [f"{_SHAPES[name][1]}: {words}" for name, words in feed_words.marked(shown).items()]
    remarks += feed_words.limits_remark(shown)
    remarks += [f"not drawn: {len(every) - len(shown)} slower rows"] if len(shown) < len(every) else []
    return remarks
