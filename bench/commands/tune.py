"""Find the best settings of a training step or a data feed on this machine, and print them with their gain."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.commands import _progress
from bench.commands._say import say
from bench.config import paths
from bench.controller import continued, plan
from bench.controller.jobs import Site
from bench.controller.run import RunContext
from bench.core import plugins
from bench.core.case import FACTORS, Case
from bench.core.case_argv import from_args
from bench.core.errors import EXIT_DONE, Interrupted, UsageError
from bench.core.option_parsers import HelpText, Parser
from bench.core.pattern import Pattern
from bench.core.units import option_duration
from bench.results import output
from bench.store import runs
from bench.tune import space
from bench.tune.messages import TuneError
from bench.tune.page import TuneReport, launcher_of
from bench.tune.run import TuneRequest, TuneRun, stored_request
from bench.tune.space import TuneSpace

_WHAT = {
    "step": "the bucket size and other settings of a training step",
    "feed": "the format, workers and other settings of reading training data",
}
_FEED_SIZES = "32M"
EXAMPLES = (
    ("linkbench tune step --timed layers=8,forward=3ms,backward=6ms,bytes=1M", "which bucket size is fastest here?"),
    (
        "linkbench tune step --timed LAYERS --try bucket=1M,4M --try NCCL_ALGO=Ring,Tree",
        "which of these settings are fastest?",
    ),
    ("linkbench tune feed --folder /data --demand 2GB/s", "which format and how many workers feed this workload?"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands.

    Each subcommand tunes one pattern, and the pattern's factors become options of the subcommand.
    """
    subcommands = parser.add_subparsers(dest="what", required=True, metavar="|".join(_WHAT), parser_class=Parser)
    for what, line in _WHAT.items():
        sub = subcommands.add_parser(
            what, description=f"Find {line}.", help=line, formatter_class=HelpText, allow_abbrev=False
        )
        for each in space.known_factors(_pattern(what)):
            sub.add_argument(*each.flags, dest=each.name, metavar="X", help=each.help, type=str)
        sub.add_argument(
            "--transport",
            metavar="X",
            help="communication library (default: the one that training uses on this machine)",
        )
        words = "a factor with its values (bucket=1M,4M) or a variable (NCCL_ALGO=Ring,Tree); repeatable"
        sub.add_argument("--try", dest="tried", action="append", default=[], metavar="NAME=VALUES", help=words)
        words = "measure all combinations (default: vary one factor after the other)"
        sub.add_argument("--together", action="store_true", help=words)
        sub.add_argument("--budget", metavar="TIME", help="total time of all launches (default 10m)")
        sub.add_argument("--delta", type=float, default=None, metavar="X", help="smallest gain that matters (0.02)")
        sub.add_argument("--cluster", default=None, help="entry of bench.yaml (default local)")
        sub.add_argument("--nodes", metavar="N", help="number of nodes (default: all of the cluster)")
        sub.add_argument("--ranks-per-node", metavar="N", help="number of ranks on each node (default: the cluster's)")
        sub.add_argument("--config", type=Path, metavar="FILE", help="bench.yaml to read (default ./bench.yaml)")
        sub.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="folder of runs")
        sub.add_argument("--resume", metavar="RUN", help="continue this search (path, name, or latest)")
        sub.add_argument(
            "--deadline", default="2m", metavar="TIME", help="end a job if a rank is silent this long (2m)"
        )
        sub.add_argument("--no-preflight", action="store_true", help="skip the checks of hosts before the search")
        sub.add_argument(
            "--share-hosts",
            action="store_true",
            help="measure while other benchmarks run on the hosts; every row says so",
        )
        output.add_output_arguments(sub)


def main(args: argparse.Namespace) -> int:
    """Search for the best settings, and print them.

    The run folder keeps all measured rows, even after an error or an interrupt.
    """
    folder: Path | None = None
    allowed: list[int] = []
    if args.resume is not None:
        folder = runs.find_own(args.results, args.resume)
        request, allowed = stored_request(folder)
        _check_resumed(args, request, folder)
        asked = _parsed(request)
    else:
        asked = args
        request = TuneRequest(
            args.what,
            tuple(_words_of_search(args)),
            option_duration("--budget", args.budget or "10m"),
            0.02 if args.delta is None else _share(args.delta),
            args.together,
        )
    site = _site(asked, folder)
    searched = _space(asked, site)
    with _progress.shown() as screen:
        context = RunContext(
            site,
            args.results,
            option_duration("--deadline", args.deadline),
            screen.say,
            screen.tick,
            check_hosts=not args.no_preflight,
            share_hosts=args.share_hosts,
            config=asked.config,
            follow=screen.follow,
        )
        tuned = TuneRun(request, searched, context, folder, allowed=allowed)
        try:
            found = tuned.search()
        except (KeyboardInterrupt, Interrupted):
            if tuned.folder is not None:
                say(f"continue the search with: linkbench tune {args.what} --resume {tuned.folder}")
            raise
    assert tuned.folder is not None
    first = runs.read_plan(tuned.folder)["jobs"][0]
    output.show(
        TuneReport(
            args.what,
            str(tuned.folder),
            searched,
            found,
            tuned.dropped,
            launcher_of(first["command"]),
            request.budget_s,
            tuned.spent_s,
            request.delta,
        ),
        args,
    )
    return EXIT_DONE


def _pattern(what: str) -> Pattern:
    pattern: Pattern = plugins.load("pattern", what).PATTERN
    return pattern


def _space(args: argparse.Namespace, site: Site) -> TuneSpace:
    """Return the search space: the case that the user chose, and the factors that the search varies."""
    pattern = _pattern(args.what)
    transport = space.transport_of(pattern, args.transport, site)
    case = _case(args, pattern, transport)
    varied = space.varied_by_user(args.tried, case, pattern) or space.usual(case, pattern)
    if not varied:
        names = [each.name for each in space.known_factors(pattern)]
        raise UsageError.of(TuneError.NOTHING_TO_TRY, pattern=pattern.name, known=names)
    nodes, per_node = _whole("--nodes", args.nodes), _whole("--ranks-per-node", args.ranks_per_node)
    return TuneSpace(case, nodes, per_node or (None if pattern.trains else 1), varied)


def _case(args: argparse.Namespace, pattern: Pattern, transport: str) -> Case:
    known = {each.name for each in space.known_factors(pattern)}
    given = {each.name: getattr(args, each.name, None) if each.name in known else None for each in FACTORS}
    if not pattern.trains:
        given |= {"mode": "isolated", "sizes": given["sizes"] or _FEED_SIZES}
    more = {"minbytes": None, "maxbytes": None, "stepfactor": None, "transport": transport}
    case = from_args(pattern.name, argparse.Namespace(**{**given, **more}))
    if not pattern.trains and len(case.sizes) != 1:
        raise UsageError.of(TuneError.ONE_SIZE, num_sizes=len(case.sizes))
    return case


def _site(args: argparse.Namespace, folder: Path | None) -> Site:
    config = paths.config_file(args.config)
    if folder is not None:
        return plan.site_of(continued.cluster_today(runs.read_plan(folder)["cluster"], config), (), None)
    from bench.config import clusters

    return plan.site_of(clusters.cluster(config, args.cluster or "local"), (), None)


# -- Continuing a search


def _words_of_search(args: argparse.Namespace) -> list[str]:
    """Return the options that define the search, in the form of command-line words."""
    words = [args.what]
    for each in space.known_factors(_pattern(args.what)):
        if getattr(args, each.name) is not None:
            words += [each.flags[-1], getattr(args, each.name)]
    for option, value in _plain_options(args).items():
        words += [] if value is None else [option, str(value)]
    words += [word for text in args.tried for word in ("--try", text)]
    return words


def _plain_options(args: argparse.Namespace) -> dict[str, object]:
    return {
        "--transport": args.transport,
        "--cluster": args.cluster,
        "--nodes": args.nodes,
        "--ranks-per-node": args.ranks_per_node,
        "--config": args.config,
    }


def _parsed(request: TuneRequest) -> argparse.Namespace:
    parser = Parser(prog="linkbench tune", allow_abbrev=False)
    arguments(parser)
    return parser.parse_args(list(request.argv))


def _check_resumed(args: argparse.Namespace, request: TuneRequest, folder: Path) -> None:
    own, other = args.what, request.what
    if own != other:
        raise UsageError.of(TuneError.OTHER_SEARCH, folder=str(folder), other=other, own=own)
    given = _words_of_search(args)[1:]
    more = {"--budget": args.budget, "--delta": args.delta, "--together": args.together or None}
    given += [option for option, value in more.items() if value is not None]
    options = [word for word in given if word.startswith("-")]
    if options:
        raise UsageError.of(TuneError.NEW_OPTIONS, options=options)


def _share(value: float) -> float:
    if not 0 < value < 1:
        raise UsageError(f"--delta {value:g} must be a share between 0 and 1, such as 0.02")
    return value


def _whole(option: str, text: str | None) -> int | None:
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise UsageError(f"{option} {text!r} must be a whole number of 1 or more")
    return None if text is None else int(text)
