"""Run a scenario on a cluster: plan, check the place, launch every job, keep raw samples, print tables, draw plots."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.commands import _plan
from bench.commands.plan import estimate
from bench.config import paths
from bench.config.clusters import Cluster
from bench.controller import preflight, retest, survey
from bench.controller import run as desk
from bench.controller.jobs import Job, LocalMachine
from bench.core import plugins
from bench.core.errors import (
    EXIT_DONE,
    EXIT_MEASUREMENT,
    EXIT_REFUSED,
    BenchError,
    MeasurementError,
    NotInstalledError,
    RefusedError,
    UsageError,
)
from bench.core.launcher import Launcher
from bench.core.traits import traits
from bench.core.units import option_duration
from bench.gate import of_folder
from bench.results import collect, output
from bench.results.document import Document
from bench.results.run_report import RunReport
from bench.store import runs

_SCENARIO = "main"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench run`."""
    _plan.add_plan_arguments(parser)
    parser.set_defaults(scenario=None)  # so that --resume knows whether one was named
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    parser.add_argument("--plots", type=Path, default=Path("plots"), metavar="DIR", help="where plots are drawn")
    parser.add_argument("--no-plots", action="store_true", help="draw nothing")
    parser.add_argument("--no-preflight", action="store_true", help="ask no host before the run; ranks still check")
    parser.add_argument("--resume", metavar="RUN", help="only what this run (a path, a name, or latest) still misses")
    parser.add_argument("--retest", metavar="RUN", help="measure again what of this run failed its gate, and no more")
    parser.add_argument("--rules", metavar="FILE", help="the gate's rules for --retest (default: the scenario's)")
    parser.add_argument("--deadline", default="2m", metavar="TIME", help="a rank silent for so long ends its job (2m)")
    output.add_table_arguments(parser)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Run, report, plot; the exit code says whether everything was measured and right."""
    if args.retest and args.resume:
        raise UsageError("--retest measures a finished run again, --resume finishes one: give one of them")
    if not args.no_plots:
        _check_plots(args.plots)
    if not args.resume:
        args.scenario = args.scenario or _SCENARIO
    ran = _retested(args) if args.retest else _resumed(args) if args.resume else started(args)
    if ran.failed and not args.retest:
        _say(f"go on with: python -m bench run --resume {ran.folder}")
    if ran.failed and not runs.jobs_in(ran.folder):
        raise nothing(ran)
    document = collect.document(ran.folder)
    output.show(RunReport(document, args.show, args.notes), args)
    drawn, undrawn = _drawn(document, args, ran.folder)
    where = f"results: {ran.folder}/  plots: {args.plots / ran.folder.name}/" if drawn else f"results: {ran.folder}/"
    print(where, file=sys.stdout if args.format == "table" and args.output is None else sys.stderr)
    if args.retest:
        document = of_folder.newest(ran.folder, document)  # what was bad and is good now is good
    code = exit_code(document, ran)
    if undrawn is not None and code == EXIT_DONE:
        raise undrawn
    if undrawn is not None:
        _say(str(undrawn))
    return code


def nothing(ran: desk.Ran) -> BenchError:
    """Every job failed before its first row: each reason once."""
    kind = RefusedError if ran.refused == set(ran.failed) else MeasurementError
    reasons = dict.fromkeys(what.replace(f"{job}.log", "*.log") for job, what in ran.failed.items())
    return kind(f"nothing was measured: {'; '.join(reasons)} (logs are in {ran.folder})")


def exit_code(document: Document, ran: desk.Ran) -> int:
    """4 when something failed or was wrong, 3 when nothing could be measured, else 0."""
    if ran.failed and not document.summaries and ran.refused == set(ran.failed):
        return EXIT_REFUSED
    if ran.failed or document.failures or any(row.verified is False for row in document.summaries):
        return EXIT_MEASUREMENT
    return EXIT_DONE if document.summaries else EXIT_REFUSED


def draw(document: Document, folder: Path) -> list[Path]:
    """Every figure that applies, as PNG and SVG. Raises UsageError where they can not be written."""
    from bench.figures import _style

    drawn: list[Path] = []
    for name in plugins.names("figure"):
        figure = plugins.load("figure", name)
        if figure.applies(document):
            for title, picture in figure.draw(document):
                try:
                    drawn += _style.save(picture, folder / title)
                except OSError as error:
                    raise UsageError(
                        f"plots can not be written in {folder} ({error.strerror}): make room, or name another folder "
                        "by --plots DIR"
                    ) from None
    return drawn


def _drawn(document: Document, args: argparse.Namespace, run: Path) -> tuple[list[Path], MeasurementError | None]:
    """The plots, and why there are none: what was measured is kept and told all the same."""
    if args.no_plots:
        return [], None
    try:
        return draw(document, args.plots / run.name), None
    except (UsageError, ImportError) as error:  # the latter of a matplotlib that is there and does not load
        return [], MeasurementError(f"{error}; what was measured is kept: python -m bench plot {run} --plots DIR")


def _check_plots(folder: Path) -> None:
    """Said before anything is measured: nothing draws; the folder, or the nearest one above it, can not be written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NotInstalledError(
            f"no plots can be drawn: Python package matplotlib is not installed for {sys.executable}: install it, or "
            "measure without plots by --no-plots (make bench ARGS=--no-plots)"
        )
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        is_folder = there.is_dir()
        kind = RefusedError if is_folder else UsageError  # as of a results folder: no folder at all is a wrong path
        raise kind(
            f"--plots {folder} can not be written ({there} is {'read-only' if is_folder else 'no folder'}): "
            "give another folder, or --no-plots"
        )


def started(args: argparse.Namespace) -> desk.Ran:
    """Plan the scenario on the cluster, check the place, and run every job in a new folder."""
    planned, deadline_s = _plan.planned(args), option_duration("--deadline", args.deadline)
    preflight.check(planned.plan, planned.machine, planned.launchers, shutil.which)
    for note in planned.plan.notes:
        _say(note)
    for skip in planned.plan.skipped:
        _say(f"skipped: {skip.what}: {skip.reason}")
    _say(estimate(planned.plan).removeprefix("# "))
    with _progress() as (say, tick):
        ready = _ready(args, planned.machine, planned.launchers, say)
        means = desk.RunContext(paths.PACKAGE_ROOT, planned.launchers, planned.tools, deadline_s, say, tick, ready)
        return desk.start(planned.plan, planned.scenario.text, args.results, means)


def _ready(
    args: argparse.Namespace, machine: LocalMachine, launchers: Mapping[str, Launcher], say: desk.Say
) -> desk.Ready:
    """Asks this machine and the hosts that a cluster names.

    Raises RefusedError for what is wrong with them, says what may matter.
    """

    def ready(cluster: Cluster, jobs: Sequence[Job]) -> None:
        if args.no_preflight or all(traits(job.case.transport).modelled for job in jobs):
            return
        for line in survey.patience(cluster):
            say(line)
        found = survey.look(cluster, jobs, machine, launchers, args.results, paths.PACKAGE_ROOT)
        for sentence in survey.refuse(found, cluster.name):
            say(sentence)

    return ready


def _retested(args: argparse.Namespace) -> desk.Ran:
    """What of a run failed by its rules, once more, into the same folder."""
    reasons, again = of_folder.failed(runs.find(args.results, args.retest), args)
    folder, deadline_s = runs.find(args.results, args.retest), option_duration("--deadline", args.deadline)
    if not again.sizes and not again.ladders:
        _say(f"nothing to measure again: {reasons[0]}")
        return desk.Ran(folder, {})
    stored = runs.read_plan(folder)
    here = _plan.this_machine(stored["cluster"]["python"], stored["cluster"]["mpirun"])
    tools = _plan.installed({job["tool"] for job in stored["jobs"] if job.get("tool")}, args.tool_path)
    with _progress() as (say, tick):
        ready = _ready(args, here, _plan.all_launchers(), say)
        means = desk.RunContext(paths.PACKAGE_ROOT, _plan.all_launchers(), tools, deadline_s, say, tick, ready)
        return retest.retest(folder, again, reasons, here, _plan.all_patterns(), means)


def _resumed(args: argparse.Namespace) -> desk.Ran:
    folder, deadline_s = runs.find(args.results, args.resume), option_duration("--deadline", args.deadline)
    stored = runs.read_plan(folder)
    if stored.get("imported"):
        raise UsageError(f"{folder} was imported from logs: there is nothing in it that could be measured again")
    named = Path(args.scenario).name.removesuffix(".yaml").removesuffix(".yml") if args.scenario else stored["scenario"]
    if named != stored["scenario"]:
        raise UsageError(
            f"{folder} is a run of the scenario {stored['scenario']!r}, not {named!r}: leave the scenario out to go on "
            "with it, or --resume to measure anew"
        )
    here = _plan.this_machine(stored["cluster"]["python"], stored["cluster"]["mpirun"])
    tools = _plan.installed({job["tool"] for job in stored["jobs"] if job.get("tool")}, args.tool_path)
    patterns, launchers = _plan.all_patterns(), _plan.all_launchers()
    with _progress() as (say, tick):
        ready = _ready(args, here, launchers, say)
        means = desk.RunContext(paths.PACKAGE_ROOT, launchers, tools, deadline_s, say, tick, ready)
        return desk.resume(folder, here, patterns, means)


@contextlib.contextmanager
def _progress() -> Iterator[tuple[desk.Say, desk.Say]]:
    """What to call with lines that stay and with the state of the moment: a live line on a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield _say, lambda state: None
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    with console.status("") as status:
        yield partial(console.print, soft_wrap=True), status.update  # a command to copy stays in one piece


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
