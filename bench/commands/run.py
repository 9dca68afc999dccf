"""Run a scenario on a cluster: plan, check, launch every job, store raw samples, print tables, draw plots."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.commands import _plan, _progress
from bench.commands._drawing import draw
from bench.commands._say import say
from bench.commands.plan import estimate
from bench.config import paths
from bench.controller import continued, plan, preflight, profile, retest
from bench.controller import run as controller
from bench.controller.jobs import Site
from bench.controller.more_launches import more_launches
from bench.controller.run import RunResult
from bench.core import printable
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
from bench.core.units import option_duration
from bench.gate import of_folder
from bench.predict import expected
from bench.results import collect, compare, output, power
from bench.results.document import Document
from bench.results.run_report import RunReport
from bench.store import runs

_SCENARIO, _CLUSTER = "main", "local"
_AUTO = "auto"
_CHANGE_OF_ALL, _CHANGE_OF_ROW, _DELTA = 0.1, 0.2, 0.05  # --launches auto stops when a comparison would find these


EXAMPLES = (
    ("linkbench run latency --cluster mine --launches 5", "measure scenario latency, each job in five launches"),
    ("linkbench run main --cluster p4d --model", "compute scenario main from the links of a p4d, without hardware"),
    ("linkbench run --resume latest", "measure the rows that an interrupted run still lacks"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    _plan.add_plan_arguments(parser)
    parser.set_defaults(scenario=None, cluster=None)  # None: the user named none, as --resume and --retest must know
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="folder of runs")
    parser.add_argument("--plots", type=Path, default=Path("plots"), metavar="DIR", help="folder of plots")
    parser.add_argument("--no-plots", action="store_true", help="draw nothing")
    output.add_figure_format(parser)
    parser.add_argument(
        "--no-preflight",
        action="store_true",
        help="skip the checks of hosts before the run; ranks still check their own host",
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="measure the rows that this run (path, name, or latest) still lacks"
    )
    parser.add_argument("--retest", metavar="RUN", help="measure again only the rows that failed this run's gate")
    parser.add_argument("--rules", metavar="FILE", help="gate rules for --retest (default: the scenario's)")
    parser.add_argument("--deadline", default="2m", metavar="TIME", help="end a job if a rank is silent this long (2m)")
    parser.add_argument(
        "--only-launch",
        type=int,
        metavar="N",
        help="measure only launch N of each job; --resume measures the other launches",
    )
    words = "for --launches auto: start no launch after this time (30m)"
    parser.add_argument("--auto-time", metavar="TIME", help=words)
    parser.add_argument(
        "--share-hosts", action="store_true", help="measure while other benchmarks run on the hosts; every row says so"
    )
    parser.add_argument("--profile", choices=profile.KINDS, help="profile one more launch, whose times no result uses")
    output.add_table_arguments(parser)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Run a scenario, print its tables and draw its plots.

    The exit code says whether everything was measured and correct.
    """
    _check_options(args)
    if not args.no_plots:
        _check_plots(args.plots)
    if not (args.resume or args.retest):
        args.scenario, args.cluster = args.scenario or _SCENARIO, args.cluster or _CLUSTER
    ran = _retested(args) if args.retest else _resumed(args) if args.resume else _started(args)
    if ran.failed and not args.retest:
        say(f"continue with: {continued.command(ran.folder, args.config)}")
    if ran.failed and not runs.jobs_in(ran.folder):
        raise nothing_measured(ran)
    document = expected.added(collect.document(ran.folder))
    run = collect.named(ran.folder)
    most_lines = output.most_lines(args)
    report = RunReport(document, args.show, args.notes, None, most_lines, run, columns=args.columns)
    output.show(report, args)
    drawn, undrawn = _drawn(document, args, ran.folder)
    where = f"results: {ran.folder}/  plots: {args.plots / ran.folder.name}/" if drawn else f"results: {ran.folder}/"
    where += "".join(f"  page: {path}" for path in _page(document, args, ran.folder))
    where += _profiled(ran.folder) if args.profile else ""
    print(printable.line(where), file=sys.stdout if args.format == "table" and args.output is None else sys.stderr)
    if args.retest or args.resume:
        document = of_folder.newest(ran.folder, document)  # rows that were measured again replace earlier failures
    code = exit_code(document, ran)
    if undrawn is not None and code == EXIT_DONE:
        raise undrawn
    if undrawn is not None:
        say(str(undrawn))
    return code


def _check_options(args: argparse.Namespace) -> None:
    """Raise UsageError if two options contradict each other."""
    if args.retest and args.resume:
        raise UsageError("--retest measures a finished run again, and --resume finishes a run: give only one of them")
    if args.launches == _AUTO and (args.retest or args.resume or args.model or args.profile or args.only_launch):
        raise UsageError(
            "--launches auto measures a new run: leave out --resume, --retest, --model, --profile and --only-launch"
        )
    if args.auto_time is not None and args.launches != _AUTO:
        raise UsageError("--auto-time needs --launches auto: add it")
    if args.profile and (args.retest or args.resume):
        raise UsageError("--profile needs a new run: leave out --resume and --retest")


def _say_ignored(args: argparse.Namespace, stored: Mapping[str, Any]) -> None:
    """Name the options that have no effect. The plan of the stored run already says what is measured."""
    named: dict[str, object] = {
        "SCENARIO": args.retest and args.scenario and _scenario_name(args.scenario) != stored["scenario"],
        "--cluster": args.cluster and args.cluster != stored["cluster"]["name"],
        "--launches": args.launches,
        "--budget": args.budget,
        "--model": args.model and not stored.get("modelled"),
        "--rules": args.resume and args.rules,
    }
    ignored = [option for option, is_ignored in named.items() if is_ignored]
    if ignored:
        option = "--resume" if args.resume else "--retest"
        say(f"bench: warning: {option} measures what the run's plan says, and ignores {', '.join(ignored)}")


def _scenario_name(given: str) -> str:
    return Path(given).name.removesuffix(".yaml").removesuffix(".yml")


def _profiled(folder: Path) -> str:
    """Return a line that names the folder with the traces of the profiled launch, or '' if there are no traces."""
    traces = profile.traces(folder)
    if not traces:
        return ""
    return f"  profile: {traces[0] if len(traces) == 1 else f'{traces[0].parent}/'}"


def nothing_measured(ran: RunResult) -> BenchError:
    """Return the error to raise if all jobs failed before their first row.

    The error names each reason once, with the number of jobs that failed for this reason.
    """
    kind = RefusedError if ran.refused == set(ran.failed) else MeasurementError
    jobs_of: dict[str, list[str]] = {}
    for job, failure in ran.failed.items():
        jobs_of.setdefault(_without_own_files(ran.folder, job, failure.what), []).append(job)
    reasons = [
        ran.failed[jobs[0]].what + (f" ({len(jobs)} jobs failed like this)" if len(jobs) > 1 else "")
        for jobs in jobs_of.values()
    ]
    return kind(f"nothing was measured: {'; '.join(reasons)} (logs are in {ran.folder})")


def _without_own_files(folder: Path, job: str, text: str) -> str:
    """Return the text of a failure without the paths of the job's own output files."""
    for file in (runs.log_file(folder, job), runs.output_file(folder, job)):
        text = text.replace(str(file), "")
    return text


def exit_code(document: Document, ran: RunResult) -> int:
    """Return 4 if something failed or data were wrong, and 3 if nothing could be measured. Otherwise return 0."""
    if ran.failed and not document.summaries and ran.refused == set(ran.failed):
        return EXIT_REFUSED
    if ran.failed or document.failures or any(row.verified is False for row in document.summaries):
        return EXIT_MEASUREMENT
    return EXIT_DONE if document.summaries else EXIT_REFUSED


def _drawn(document: Document, args: argparse.Namespace, run: Path) -> tuple[list[Path], MeasurementError | None]:
    """Draw the plots of a run. Returns the paths of the files. If drawing failed, the function also returns the error.

    An error in drawing does not affect the results.
    """
    if args.no_plots:
        return [], None
    try:
        return draw(document, args.plots / run.name, collect.named(run), args.figure_format), None
    except (UsageError, ImportError) as error:  # ImportError: matplotlib is installed but cannot be loaded
        return [], MeasurementError(f"{error}; the results are kept: linkbench plot {run} --plots DIR")


def _page(document: Document, args: argparse.Namespace, run: Path) -> list[Path]:
    """Write the page of a run into its folder of plots. Returns the page's path in a list; empty without a page."""
    if args.no_plots or not document.summaries:
        return []
    from bench.page import content, page

    path: Path = args.plots / run.name / "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        output.replace_file(path, page.html(content.of_run(run, document)).encode())
    except OSError as error:
        say(f"bench: warning: page {path} cannot be written ({error.strerror}); the results are kept")
        return []
    return [path]


def _check_plots(folder: Path) -> None:
    """Check before the measurement that plots can be drawn and written. Raises BenchError if not."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NotInstalledError(
            f"no plots can be drawn: Python package matplotlib is not installed for {sys.executable}: install it, or "
            f"use --no-plots (make bench ARGS=--no-plots)"
        )
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    remedy = "use another folder, or --no-plots"
    if not nearest.is_dir():
        raise UsageError(f"--plots {folder} cannot be written ({nearest} is not a folder): {remedy}")
    if not os.access(nearest, os.W_OK):
        raise RefusedError(f"--plots {folder} cannot be written ({nearest} is read-only): {remedy}")


def started(args: argparse.Namespace, profiler: str | None = None) -> RunResult:
    """Plan the scenario on the cluster, check the hosts, and run every job in a new folder.

    If `profiler` is given, it records one more launch.
    """
    planned = plan.make(_plan.request(args))
    preflight.check(planned.plan, planned.site)
    for remark in planned.plan.remarks:
        say(remark.text)
    for skip in planned.plan.skipped:
        say(f"skipped: {skip.what}: {skip.reason.text}")
    say(estimate(planned.plan))
    profiled = profile.check(profiler, planned.plan.jobs) if profiler else None
    with _context(args, planned.site) as context:
        ran = controller.start(planned.plan, planned.scenario.text, context)
        if profiler and profiled:
            try:
                profile.launch(profiler, profiled, ran.folder, context)
            except MeasurementError as error:  # the results are not affected
                say(f"bench: warning: {error}")
        return ran


def _started(args: argparse.Namespace) -> RunResult:
    """Start a new run.

    With `--launches auto`, the function adds launches until a later comparison with this run can detect small changes,
    or until a limit is reached.
    """
    if args.launches != _AUTO:
        return started(args, args.profile)
    time_s = option_duration("--auto-time", args.auto_time or "30m")
    ends = time.monotonic() + time_s
    args.launches = "1"
    request = _plan.request(args)
    ran = started(args)
    folder = ran.folder
    with _context(args, _stored_site(runs.read_plan(folder), args)) as context:
        for number, later in more_launches(request, folder, power.NUMBERS[-1], context):
            ran = later
            is_over = time.monotonic() > ends
            if number not in power.NUMBERS and not is_over:
                continue
            if _finds_enough(folder, number, context.say) or is_over:
                break
    return ran


def _finds_enough(folder: Path, num_launches: int, tell: controller.Say) -> bool:
    """Print how large a change must be so that a comparison finds it with this number of launches.

    Returns whether this number is sufficient.
    """
    shares = (_CHANGE_OF_ALL, _CHANGE_OF_ROW, _DELTA, compare.FDR)
    try:
        found = power.power_of(collect.document(folder), num_launches, *shares)
    except UsageError as error:  # too few launches have rows
        tell(str(error))
        return False
    tell(
        f"{num_launches} launches: a comparison finds a change of {_CHANGE_OF_ALL:.0%} of all rows "
        f"with probability {found.all_rows:.0%}, of {_CHANGE_OF_ROW:.0%} of one row with {found.one_row:.0%}, "
        f"and with 90% a change of {found.least_all:.0%} of all rows and {found.least_row:.0%} of one row"
    )
    return found.is_enough


def _retested(args: argparse.Namespace) -> RunResult:
    """Measure again the rows that failed a run's gate. The new rows go into the same folder."""
    folder = runs.find_own(args.results, args.retest)
    reasons, again = of_folder.failed(folder, args)
    stored = runs.read_plan(folder)
    _say_ignored(args, stored)
    if not again.sizes and not again.ladders:
        say(f"nothing to measure again: {reasons[0]}")
        return RunResult(folder, {})
    with _context(args, _stored_site(stored, args)) as context:
        return retest.retest(folder, again, reasons, context)


def _resumed(args: argparse.Namespace) -> RunResult:
    """Measure the rows that a run still lacks."""
    folder = runs.find_own(args.results, args.resume)
    stored = runs.read_plan(folder)
    if stored.get("imported"):
        raise UsageError(f"{folder} was imported from logs: nothing in it can be measured again")
    named = _scenario_name(args.scenario) if args.scenario else stored["scenario"]
    if named != stored["scenario"]:
        raise UsageError(
            f"{folder} is a run of the scenario {stored['scenario']!r}, not {named!r}: omit the scenario to continue "
            f"it, or omit --resume to measure anew"
        )
    _say_ignored(args, stored)
    with _context(args, _stored_site(stored, args)) as context:
        return controller.resume(folder, context)


def _stored_site(stored: Mapping[str, Any], args: argparse.Namespace) -> Site:
    """Return the site of a stored plan, as the current bench.yaml describes it.

    Raises RefusedError if the cluster has changed since the plan was made.
    """
    tools = {job["tool"] for job in stored["jobs"] if job.get("tool")}
    cluster = continued.cluster_today(stored["cluster"], paths.config_file(args.config))
    return plan.site_of(cluster, tools, args.tool_path)


@contextlib.contextmanager
def _context(args: argparse.Namespace, site: Site) -> Iterator[controller.RunContext]:
    """Yield the context that the controller needs to run jobs on a site."""
    deadline_s = option_duration("--deadline", args.deadline)
    with _progress.shown() as screen:
        yield controller.RunContext(
            site,
            args.results,
            deadline_s,
            screen.say,
            screen.tick,
            check_hosts=not args.no_preflight,
            share_hosts=args.share_hosts,
            config=args.config,
            follow=screen.follow,
            only_launch=args.only_launch,
        )
