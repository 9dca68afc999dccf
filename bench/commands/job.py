"""Explain a training job from its traces, predict it on another machine, replay its exchanges, or record traces."""

from __future__ import annotations

import argparse
from types import ModuleType

from bench.commands import _job_explain, _job_predict, _job_record, _job_replay
from bench.core.option_parsers import HelpText, Parser

_SUBCOMMANDS: dict[str, ModuleType] = {
    "explain": _job_explain,
    "predict": _job_predict,
    "record": _job_record,
    "replay": _job_replay,
}
EXAMPLES = tuple(example for module in _SUBCOMMANDS.values() for example in module.EXAMPLES)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options to the parser."""
    subcommands = parser.add_subparsers(
        dest="subcommand", required=True, metavar="|".join(_SUBCOMMANDS), parser_class=Parser
    )
    for name, module in _SUBCOMMANDS.items():
        line = (module.__doc__ or "").partition("\n")[0]
        module.arguments(
            subcommands.add_parser(name, description=line, help=line, formatter_class=HelpText, allow_abbrev=False)
        )


def main(args: argparse.Namespace) -> int:
    """Run the subcommand. Returns its exit code."""
    code: int = _SUBCOMMANDS[args.subcommand].main(args)
    return code
