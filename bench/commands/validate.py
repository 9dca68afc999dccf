"""Hold predictions against every published (and own, imported) measurement, each system predicted from the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.core.errors import EXIT_DONE
from bench.predict import from_args
from bench.results import output
from bench.results.table import as_json

if TYPE_CHECKING:
    from bench.predict.validate import Tried, Worth


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench validate`."""
    parser.add_argument(
        "--runs", type=Path, nargs="+", default=[], metavar="RUN", help="own runs and imported logs to try as well"
    )
    parser.add_argument(
        "--plot", type=output.drawing, metavar="FILE", help="draw the errors there (.png, .svg or .pdf)"
    )
    output.add_output_arguments(parser, output.BY_HAND)


def main(args: argparse.Namespace) -> int:
    """Print the tables; draw them where asked."""
    from bench.predict import validate
    from bench.predict import validate_page as words
    from bench.results import grid

    known = from_args.evidence(args.runs)
    rows = validate.tried(known)
    plain = [_plain(row) for row in rows]
    if args.format == "csv":
        text = grid.render("csv", words.SCHEMA, plain, ())
    elif args.format == "json":
        tables = {heading: [asdict(one) for one in told] for heading, _, told in _tables(rows)}
        text = as_json({"schema": words.SCHEMA, "tables": tables, "rows": plain, "notes": list(words.MEANING)})
    else:
        parts = [
            (heading, names, [asdict(one) | {"verdict": _verdict(heading, one)} for one in told])
            for heading, names, told in _tables(rows)
        ]
        text = words.text(args.format, parts, [f"left out: {note}" for note in known.notes])
    output.emit(text, args)
    if args.plot:
        from bench.figures import _style
        from bench.figures import _validate as figure

        _style.write(figure.errors(rows), args.plot)
    return EXIT_DONE


_TARGET_TABLE = "allreduce of 64 MiB and above, by class"


def _tables(rows: Sequence[Tried]) -> list[tuple[str, tuple[str, ...], tuple[Worth, ...]]]:
    """(heading, names of what tells groups, groups)."""
    from bench.predict import validate

    large = validate.large_allreduce(rows)
    order = [words for *_, words in validate.RANGES]
    ranged = sorted(rows, key=lambda row: order.index(row.size_range))
    return [
        (_TARGET_TABLE, ("class",), validate.by(large, lambda row: (validate.level_class(row),))),
        (
            "allreduce of 64 MiB and above, by system",
            ("class", "system", "GPUs"),
            validate.by(
                sorted(large, key=validate.level_class),
                lambda row: (row.link_class, row.system, f"{row.num_nodes} x {row.num_ranks // row.num_nodes}"),
            ),
        ),
        ("by size", ("size",), validate.by(ranged, lambda row: (row.size_range,))),
        (
            "64 MiB and above, by collective",
            ("collective",),
            validate.by([row for row in rows if row.payload_bytes >= validate.LARGE_BYTES], lambda row: (row.pattern,)),
        ),
        ("everything", ("",), validate.by(rows, lambda row: ("all rows",))),
    ]


def _verdict(heading: str, one: Worth) -> str:
    """Was the target met? Only the table that targets speak of has any."""
    from bench.predict import validate

    if heading != _TARGET_TABLE:
        return ""
    (name,) = one.words
    if name == "network":
        better = one.baseline_error is not None and one.error < one.baseline_error
        systems = f"{one.num_better} of {one.num_compared} systems are"
        return f"better than the baseline: {'met' if better else 'MISSED'} by the median, {systems}"
    target = validate.TARGETS.get(name)
    if target is None:
        return "none: stated as measured"
    if not one.num_pointed:
        return f"{100 * target:.0f} % or less: not met, no point is predicted"
    return f"{100 * target:.0f} % or less: {'met' if one.error <= target else 'MISSED'}"


def _plain(row: Tried) -> dict[str, Any]:
    return asdict(row) | {
        "error": row.error,
        "baseline_error": row.baseline_error,
        "covered": row.covered,
        "modelled": True,
    }
