"""Compare predictions with published measurements and with the user's measurements.

Each system is predicted only from the data of other systems.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.errors import EXIT_DONE, UsageError
from bench.predict import from_args
from bench.results import output

if TYPE_CHECKING:
    from bench.predict.validate_step_page import StepValidateReport


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `linkbench validate`."""
    words = "your runs and imported logs, to validate as well"
    parser.add_argument("--runs", type=Path, nargs="+", default=[], metavar="RUN", help=words)
    words = "draw the errors (.png, .svg or .pdf)"
    parser.add_argument("--plot", type=output.drawing, metavar="FILE", help=words)
    words = "validate training throughputs instead of collectives"
    parser.add_argument("--training", action="store_true", help=words)
    words = "compare this run's training steps with their prediction from its exchanges"
    parser.add_argument("--steps", type=Path, metavar="RUN", help=words)
    words = "for --steps: take the exchanges from this run, for example on another link"
    parser.add_argument("--links", type=Path, metavar="RUN", help=words)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the tables. Draw the errors if --plot is given."""
    from bench.predict import validate
    from bench.predict.validate_page import ValidateReport

    if args.links is not None and args.steps is None:
        raise UsageError("--links needs --steps RUN, the run with the training steps")
    if args.steps is not None:
        if args.training or args.plot or args.runs:
            raise UsageError("--steps cannot be combined with --training, --runs or --plot")
        output.show(_steps(args.steps, args.links), args)
        return EXIT_DONE
    evidence = from_args.evidence(args.runs)
    if args.training:
        from bench.predict.validate_training import held_out_runs
        from bench.predict.validate_training_page import TrainingValidateReport

        if args.plot:
            raise UsageError("--plot draws collectives, not --training")
        output.show(TrainingValidateReport(held_out_runs(evidence)), args)
        return EXIT_DONE
    rows = validate.held_out_rows(evidence)
    output.show(ValidateReport(rows, evidence.notes), args)
    if args.plot:
        from bench.figures import _style
        from bench.figures import _validate as figure

        _style.write(figure.errors(rows), args.plot)
    return EXIT_DONE


def _steps(steps: Path, links: Path | None) -> StepValidateReport:
    from bench.predict.validate_step import validated
    from bench.predict.validate_step_page import StepValidateReport
    from bench.results import collect

    found = collect.document(steps)
    if not found.steps:
        raise UsageError(f"{steps} has no training step to predict: linkbench run step measures some")
    return StepValidateReport(validated(found, found if links is None else collect.document(links)))
