"""Compare two runs: rows that became slower or faster, with confidence intervals, and other changes."""

from __future__ import annotations

import argparse
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.commands import report
from bench.commands._say import say
from bench.controller.alternate import FDR_OF_LOOK, LOOKS, Side, alternate
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.core.units import option_duration
from bench.results import collect, compare, output
from bench.results.compare_report import CompareReport, Sides
from bench.results.document import Document
from bench.results.headline import NamedRun
from bench.results.power import PowerReport, power_report
from bench.store import runs

EXAMPLES = (
    ("linkbench compare RUN latest", "which rows became slower since RUN, and how certain is it?"),
    ("linkbench compare RUN --power", "how many launches does a comparison with RUN need, and to find what?"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    parser.add_argument("base", metavar="BASE", nargs="?", help="a run's path or name, a .jsonl file, or latest")
    parser.add_argument("new", metavar="NEW", nargs="?", help="the run to compare with BASE")
    parser.add_argument(
        "--power", action="store_true", help="print how many launches a comparison with BASE needs; NEW is not given"
    )
    parser.add_argument(
        "--change",
        type=partial(_fraction, "--change"),
        default=0.1,
        metavar="X",
        help="for --power: the change of all rows to find (default 10%%)",
    )
    parser.add_argument(
        "--row-change",
        type=partial(_fraction, "--row-change"),
        default=0.2,
        metavar="X",
        help="for --power: the change of a single row to find (default 20%%)",
    )
    parser.add_argument(
        "--in-turn",
        action="store_true",
        help="for --power: assume that the launches of both runs alternate, as with --run",
    )
    parser.add_argument(
        "--delta",
        type=partial(_fraction, "--delta"),
        default=0.05,
        metavar="X",
        help="the smallest change that matters (default 5%%)",
    )
    parser.add_argument(
        "--run",
        nargs=2,
        metavar=("A", "B"),
        help="measure both sides with alternating launches; a side is '[NAME=value ...] [scenario] [options of run]', "
        "and its variable PYTHON sets the interpreter",
    )
    parser.add_argument(
        "--launches",
        default="auto",
        metavar="N",
        help="for --run: launches of each side; auto (default): up to 40, until the verdict is certain",
    )
    parser.add_argument("--budget", metavar="TIME", help="for --run: start no launch after this time (30m)")
    parser.add_argument(
        "--fail-on",
        choices=("slower", "never"),
        default="slower",
        help="slower (default): exit with 1 if all rows together or any row became slower; never: do not",
    )
    parser.add_argument(
        "--allow-diff",
        action="append",
        default=[],
        metavar="FACTOR",
        help="a factor that may differ, such as num_ranks or library; may be repeated",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    words = "draw the ratio of each row with its interval (.png, .svg or .pdf)"
    parser.add_argument("--plot", type=output.drawing, metavar="FILE", help=words)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the comparison of two runs or, with --power, the number of launches that a comparison needs.

    Returns 1 if a single row or the average of all rows became slower, but not with `--fail-on never`.
    """
    if (args.run is not None) + args.power + (args.new is not None) != 1 or (args.run is None) == (args.base is None):
        raise UsageError("give BASE and NEW, or BASE and --power, or --run A B")
    if args.power and args.plot is not None:
        raise UsageError("--plot draws the rows of two runs: give BASE and NEW, not --power")
    if args.power:
        output.show(_power(args), args)
        return EXIT_DONE
    if args.run:
        paths, fdr = _measured(args)
    else:
        paths, fdr = [_path(name, args.results) for name in (args.base, args.new)], compare.FDR
    documents = [collect.document(path) for path in paths]
    shares = {"delta": args.delta, "fdr": fdr}
    comparison = compare.compare(*documents, **shares, allow_diff=args.allow_diff, in_turn=args.run is not None)
    sides = Sides(str(paths[0]), str(paths[1]), _command(paths))
    compared = CompareReport(comparison, sides)
    output.show(compared, args)
    if args.plot is not None:
        _draw(compared, documents, [collect.named(path) for path in paths], args.plot)
    report.warn(*documents)
    if paths[0].resolve() == paths[1].resolve():
        say("bench: warning: BASE and NEW are the same run")
    return EXIT_VERDICT if comparison.is_slower and args.fail_on == "slower" else EXIT_DONE


def _power(args: argparse.Namespace) -> PowerReport:
    """Return the smallest changes that a comparison with BASE detects, and the command that measures the new run."""
    path = _path(args.base, args.results)
    shares = (args.change, args.row_change, args.delta, compare.FDR)
    report = power_report(
        collect.document(path), str(path), *shares, in_turn=args.in_turn, launch_s=_launch_s(path), command=""
    )
    number = report.needed or report.powers[-1].num_launches
    scenario = runs.read_plan(path)["scenario"] if (path / "plan.json").is_file() else "SCENARIO"
    command = (
        f"linkbench compare --run {shlex.quote(scenario)} {shlex.quote(scenario)} --launches {number}"
        if args.in_turn
        else _command([path], number)
    )
    return replace(report, command=command)


def _launch_s(path: Path) -> float | None:
    """Return the time of one launch of all jobs of a run, or None if unknown."""
    if not (path / "plan.json").is_file():
        return None
    launches = {job.get("launch") or 1 for job in runs.read_plan(path)["jobs"]}
    seconds = sum(outcome.get("seconds") or 0.0 for outcome in runs.read_outcomes(path).values())
    return seconds / len(launches) if launches and seconds else None


def _draw(compared: CompareReport, documents: Sequence[Document], names: Sequence[NamedRun], path: Path) -> None:
    from bench.figures import _compare, _style

    try:
        _style.write(_compare.draw(compared, documents, names), path)
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror}") from None


def _path(name: str, results: Path) -> Path:
    return report.path_of(argparse.Namespace(run=name, results=results))


def _measured(args: argparse.Namespace) -> tuple[list[Path], float]:
    """Measure both sides of --run, with alternating launches.

    Returns the folders of the two runs, and the false discovery rate for their final comparison.

    With `--launches auto`, the command compares the two sides several times during the measurement. Every comparison,
    including the final comparison, then uses the false discovery rate FDR_OF_LOOK, which is lower than usual.
    """
    folder = args.results / runs.new_run_id("compare", "ab")
    sides = Side.of(args.run[0], folder / "a"), Side.of(args.run[1], folder / "b")
    is_auto = args.launches == "auto"
    most = LOOKS[-1] if is_auto else _whole("--launches", args.launches)
    fdr = FDR_OF_LOOK if is_auto else compare.FDR
    ends = math.inf if args.budget is None else time.monotonic() + option_duration("--budget", args.budget)
    for number in alternate(*sides, most, lambda line: say(f"bench: {line}")):
        if is_auto and number in LOOKS:
            documents = [collect.document(side.folder) for side in sides]
            shares = {"delta": args.delta, "fdr": fdr}
            if compare.compare(*documents, **shares, allow_diff=args.allow_diff, in_turn=True).is_decided:
                break
        if time.monotonic() > ends:
            say(f"bench: the budget of {args.budget} ended after {number} launches of each side")
            break
    return [side.folder for side in sides], fdr


def _fraction(option: str, text: str) -> float:
    """Parse a share such as `5%` or `0.05`.

    Raises UsageError with the name `option` if the share is not between 0 and 1.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"{option} {text!r} must be a share between 0 and 1, such as 5% or 0.05")
    return value


def _whole(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{option} {text!r} must be auto or a whole number of 1 or more")
    return int(text)


def _command(paths: list[Path], num_launches: int | str = "auto") -> str:
    """Return the command that measures the scenarios of these runs again with `num_launches` launches.

    With `auto`, the new run stops when it has enough launches for a comparison.
    """
    words = []
    for path in paths:
        if path.is_dir() and (path / "plan.json").exists():
            plan = runs.read_plan(path)
            if plan.get("imported"):
                continue
            cluster = plan["cluster"]["name"]
            words.append(
                f"make bench SCENARIO={shlex.quote(plan['scenario'])}"
                + (f" CLUSTER={shlex.quote(cluster)}" if cluster != "local" else "")
                + f" LAUNCHES={num_launches}"
            )
    return " and ".join(dict.fromkeys(words)) or f"make bench SCENARIO=... LAUNCHES={num_launches}"
