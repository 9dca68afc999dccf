"""Fit latency + size / bandwidth to the curves of a run, with intervals, or report that this model does not fit."""

from __future__ import annotations

import argparse

from bench.commands import report
from bench.core.errors import EXIT_DONE, UsageError
from bench.results import collect, model, output
from bench.results.fit_report import FitReport


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    output.add_run_arguments(parser)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the model of every curve, or the reason why a curve has no model."""
    path = report.path_of(args)
    document = collect.document(path)
    curves = model.curves(document.headers, document.summaries)
    fits = model.fits(document.headers, document.summaries)
    if not fits:
        least = model.LEAST_POINTS
        raise UsageError(f"{path} holds no curve of at least {least} sizes with correct data: measure more sizes")
    output.show(FitReport(document, fits, [curve for curve in curves if curve.no_fit is not None]), args)
    report.warn(document)
    return EXIT_DONE
