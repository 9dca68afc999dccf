"""Build the parser of all commands, with help that lists the commands by task."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Collection, Sequence

import bench
from bench.core import plugins
from bench.core.option_parsers import HelpText, Parser

PROGRAM = "linkbench"
_DEBUG = "show the traceback of an error"
# Commands by task, for --help. A command that is missing here is listed with the last task.
_TASKS = {
    "Measure": ("init", "doctor", "plan", "run", "tune", "diagnose"),
    "Read": ("why", "report", "plot", "explain", "job", "import", "fit"),
    "Judge": ("compare", "gate", "lint"),
    "Choose a machine": ("instances", "predict", "validate", "select"),
    "More": ("list", "completion", "man"),
}
EXAMPLES = (
    ("linkbench run", "measure this machine, print tables, draw plots"),
    ("linkbench run main --cluster p4d --model", "compute the same for eight A100s from their links"),
    ("linkbench explain nccl.log --instance p5", "is the result in this log normal?"),
    ("linkbench compare RUN latest", "what became slower since RUN?"),
    ("linkbench diagnose --cluster mine", "which host, NIC or link is slow?"),
    ("linkbench select --workload llama-3-8b --nodes 4", "which machine trains this fastest, and cheapest?"),
)


def parser_of(loaded: Collection[str], alone: bool = False) -> argparse.ArgumentParser:
    """Return the parser of all commands. Only commands in `loaded` are imported and have options.

    `alone`: if True, the parser knows only the commands in `loaded`. Creating the parsers of all other commands takes
        longer than creating those in `loaded`.
    """
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} <command> [options]",
        description=f"{bench.__doc__}\n\n{_commands()}",
        epilog=_examples(EXAMPLES) + f"\n\nOptions and examples of a command: {PROGRAM} <command> --help",
        formatter_class=HelpText,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"linkbench-suite {bench.__version__}")
    parser.add_argument("--debug", action="store_true", help=_DEBUG)
    commands = parser.add_subparsers(dest="command", prog=PROGRAM, help=argparse.SUPPRESS, parser_class=Parser)
    for name in loaded if alone else plugins.names("command"):
        line = plugins.first_line("command", name).replace("%", "%%")
        command = commands.add_parser(name, description=line, allow_abbrev=False)
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=_DEBUG)
        if name in loaded:
            module = plugins.load("command", name)
            module.arguments(command)
            command.epilog = _examples(examples_of(name))
            command.formatter_class = HelpText
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands with all options, for the manual page."""
    return parser_of(plugins.names("command"))


def _commands() -> str:
    """Return all commands by task, each with the first line of its file."""
    lines = []
    for task, names in by_task():
        lines += ["", f"{task}:", *(_aligned(name, plugins.first_line("command", name)) for name in names)]
    return "\n".join(lines[1:])


def by_task() -> list[tuple[str, list[str]]]:
    """Return the tasks and the names of their commands. Commands without a task are listed with the last task."""
    found = [(task, list(names)) for task, names in _TASKS.items()]
    named = {name for _, names in found for name in names}
    found[-1][1].extend(name for name in plugins.names("command") if name not in named)
    return found


def examples_of(command: str) -> Sequence[tuple[str, str]]:
    """Return examples of a command, each with a description."""
    found: Sequence[tuple[str, str]] = getattr(plugins.load("command", command), "EXAMPLES", ())
    return found


def _examples(examples: Sequence[tuple[str, str]]) -> str:
    """Return the text of the examples. Each command is on its own line, followed by a line with its description."""
    lines = [f"  {command}\n      {what}" for command, what in examples]
    return "\n".join(["Examples:", *lines]) if lines else ""


def _aligned(name: str, words: str) -> str:
    width = max(shutil.get_terminal_size().columns - 2, 40)
    return textwrap.fill(words, width, initial_indent=f"  {name:<11} ", subsequent_indent=" " * 14)
