"""Print the manual page, made from the help of all commands: `linkbench man | man -l -`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import bench
from bench.commands import _parser
from bench.core.errors import EXIT_DONE

EXAMPLES = (
    ("linkbench man | man -l -", "read the manual page"),
    ("linkbench man > ~/.local/share/man/man1/linkbench.1", "install the manual page for `man linkbench`"),
)
_EXIT_CODES = (
    ("0", "Done; a verdict is good."),
    ("1", "A run, gate, comparison or diagnosis has a bad verdict."),
    ("2", "The command line or an input file is wrong."),
    ("3", "This machine or cluster cannot run the command, or nothing was measured."),
    ("4", "A measurement failed; measured rows are kept."),
    ("130, 143", "Interrupted, terminated; measured rows are kept."),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add no options, because the page always covers all commands."""


def main(args: argparse.Namespace) -> int:
    """Print the page."""
    print("\n".join(_page(_parser.whole_parser())))
    return EXIT_DONE


def _page(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of the page in the language of man(7)."""
    yield f'.TH LINKBENCH 1 "" "linkbench {bench.__version__}" "User Commands"'
    yield from (".SH NAME", f"linkbench \\- {_plain(str(bench.__doc__))}")
    yield from (".SH SYNOPSIS", ".B linkbench", "<command> [options]")
    yield from (".SH OPTIONS", *_options(parser))
    yield from (".SH EXAMPLES", *_examples(_parser.EXAMPLES))
    [commands] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for task, names in _parser.by_task():
        yield f".SH COMMANDS: {_plain(task).upper()}"
        for name in names:
            command = commands.choices[name]
            yield from (f".SS linkbench {name}", _plain(command.description or ""), *_options(command))
            yield from _examples(_parser.examples_of(name))
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_CODES:
        yield from (".TP", f".B {code}", _plain(meaning))


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the positional arguments and options of a parser, except `--help`."""
    formatter = parser.formatter_class(prog=parser.prog)
    for action in parser._actions:
        hidden = action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction)
        if hidden or isinstance(action, argparse._SubParsersAction):
            continue
        words = formatter._expand_help(action) if action.help else ""
        yield from (".TP", f".B {_plain(formatter._format_action_invocation(action))}", _plain(words))


def _examples(examples: Sequence[tuple[str, str]]) -> Iterator[str]:
    for command, what in examples:
        yield from (".PP", f"$ \\fB{_plain(command)}\\fR", ".br", _plain(what))


def _plain(words: str) -> str:
    """Return the text with the escapes that make man(7) show it unchanged.

    If the text begins with a control character of man(7), this character is escaped as well.
    """
    escaped = " ".join(words.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
