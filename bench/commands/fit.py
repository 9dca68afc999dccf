"""Fit latency + size / bandwidth to the curves of a run, with intervals, or say that it does not fit."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from bench.commands import report
from bench.core.errors import EXIT_DONE, UsageError
from bench.results import collect, fit_text, grid, model, output
from bench.results.document import Document, Fit

SCHEMA = "bench.fit/1"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench fit`."""
    output.add_run_arguments(parser)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the model of every curve, and why some have none."""
    path = report.path_of(args)
    document = collect.document(path)
    curves = model.curves(document.headers, document.summaries)
    fits = model.fits(document.headers, document.summaries)
    if not fits:
        least = model.LEAST_POINTS
        raise UsageError(f"{path} holds no curve of at least {least} sizes whose data were right: measure more sizes")
    output.emit(_rendered(args.format, document, fits, [curve for curve in curves if curve.why_not]), args)
    for warning in document.notes:
        print(f"bench: warning: {warning}", file=sys.stderr)
    return EXIT_DONE


def _rendered(form: str, document: Document, fits: Sequence[Fit], left_out: Sequence[model.Curve]) -> str:
    if form == "json":
        return json.dumps(_plain(document, fits, left_out), indent=1, allow_nan=False)
    if form == "csv":
        return _csv(document, fits)
    remarks = [f"no model of {fit_text.curve_words(document.headers, each)}: {each.why_not}" for each in left_out]
    render = fit_text.markdown if form == "markdown" else fit_text.table
    return render(document.headers, fits, remarks)


def _plain(document: Document, fits: Sequence[Fit], left_out: Sequence[model.Curve]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "fits": [asdict(fit) | _beside(document, fit) for fit in fits],
        "not_fitted": [
            {name: getattr(each, name) for name in ("job", "pattern", "transport", "mode", "group")}
            | {"num_sizes": len(each.points), "reason": each.why_not}
            for each in left_out
        ],
        "notes": list(document.notes),
    }


def _beside(document: Document, fit: Fit) -> dict[str, Any]:
    """What a machine must know of a fit beyond its own fields."""
    over = "launches" if fit.num_launches >= model.LEAST_LAUNCHES else "residuals"
    return {"modelled": model.header_of(document.headers, fit.job).modelled, "intervals_over": over}


def _csv(document: Document, fits: Sequence[Fit]) -> str:
    """One line for each piece; one without a piece's figures for a curve that does not fit."""
    return grid.as_csv([row for fit in fits for row in _csv_rows(document, fit)])


def _csv_rows(document: Document, fit: Fit) -> Iterator[dict[str, Any]]:
    whole = asdict(fit) | _beside(document, fit)
    del whole["segments"]
    for segment in fit.segments if fit.fits else fit.segments[:1]:
        piece = asdict(segment) if fit.fits else dict.fromkeys(asdict(segment))
        piece["segment_max_residual"] = piece.pop("max_residual")
        yield whole | piece
