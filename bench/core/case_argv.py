"""Read a case from words of the command line, and write a case as such words.

For every case, `from_argv(to_argv(case)) == case`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from bench.core import plugins
from bench.core.case import FACTOR, FACTORS, LADDER_ALONE, Case, check_steps, preset_fields
from bench.core.errors import BenchError, UsageError
from bench.core.factors import Factor
from bench.core.plugins import check, nearest
from bench.core.sweep import geometric
from bench.core.units import parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare every option of a case. nccl-tests' options -b, -e and -f are another way to give --sizes."""
    for each in FACTORS:
        parser.add_argument(*each.flags, dest=each.name, metavar="X", help=each.help, type=str)
    parser.add_argument("-b", "--minbytes", metavar="X", help="smallest size, as in nccl-tests")
    parser.add_argument("-e", "--maxbytes", metavar="X", help="largest size, as in nccl-tests")
    parser.add_argument("-f", "--stepfactor", metavar="X", help="factor between sizes, as in nccl-tests")


def from_args(pattern: str, args: argparse.Namespace, *, planned: bool = False) -> Case:
    """Return the case that parsed arguments describe. `--like` sets further values.

    `planned`: whether the arguments are those of a planned job (`command_argv`). If `planned` is true, the arguments
        may differ from the settings of `--like`.

    Raises UsageError that names the option.
    """
    given = _given(args)
    for name, value in preset_fields(given.get("like", ""), pattern).items():
        if given.setdefault(name, value) != value and not planned:
            raise UsageError(f"--like {given['like']} measures with {name} {value}: leave out the other {name}")
    case = _case_of(pattern, given)
    if case.is_ladder and plugins.load("pattern", pattern).PATTERN.topology != "pairs":
        raise UsageError(f"--schedule ladder measures pairs of ranks, but {pattern} has no pairs: omit it")
    return case


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options that are present. Raises a UsageError that names the wrong option."""
    given = {}
    for each in FACTORS:
        text = getattr(args, each.name)
        if text is not None:
            given[each.name] = _parsed(each, text)
    if args.minbytes or args.maxbytes or args.stepfactor:
        if "sizes" in given:
            raise UsageError("both --sizes and -b, -e, -f are given: give one of them")
        given["sizes"] = _sizes_of(args)
    return given


def _case_of(pattern: str, given: Mapping[str, Any]) -> Case:
    """Return the case with these values. Raises UsageError if the values contradict each other."""
    case = replace(Case(pattern), **given)
    if case.is_ladder and case.aggressor:
        raise UsageError(LADDER_ALONE)
    check_steps(case, given)
    return case


def _sizes_of(args: argparse.Namespace) -> tuple[int, ...]:
    """Return the sizes, in bytes, that the options -b, -e and -f describe."""
    begin = parse_size(args.minbytes or "8")
    end = parse_size(args.maxbytes) if args.maxbytes else max(begin, parse_size("16M"))
    step = args.stepfactor or "2"
    if not step.isdecimal() or int(step) < 2:
        raise UsageError(f"factor -f {step!r} must be a whole number of 2 or more")
    return geometric(begin, end, int(step))


def _parsed(given: Factor, text: str) -> Any:
    try:
        return given.parse(text)
    except UsageError as error:
        raise UsageError(f"{given.flags[-1]}: {error}") from None


def from_argv(argv: Sequence[str]) -> Case:
    """Return the case that a list of words `[pattern, option, value, ...]` describes.

    The list has the form of `to_argv`. This function does not apply the settings of `--like`, because the words already
    contain every value that differs from its default. An older version of the suite may also have used other settings
    for `--like`. Raises a UsageError that names the mistake.
    """
    if not argv:  # a row that another tool measured
        raise UsageError("the case is empty: its first word must be a pattern")
    try:
        args, unknown = _parser_of_options().parse_known_args(list(argv[1:]))
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from None
    if unknown:
        flags = [flag for each in FACTORS for flag in each.flags]
        raise UsageError(f"no option is called {unknown[0]!r}{nearest(unknown[0], flags)}")
    return _case_of(check("pattern", argv[0]), _given(args))


@cache  # a parser of so many options takes much longer to build than to use
def _parser_of_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    add_arguments(parser)
    return parser


def own_case(argv: Sequence[str]) -> Case | None:
    """Return the case of a command line, or None if another program ran that command line."""
    return _own_case(tuple(argv))


@lru_cache(maxsize=1024)  # runs of many launches parse the same text many times
def _own_case(argv: tuple[str, ...]) -> Case | None:
    try:
        return from_argv(argv)
    except (BenchError, IndexError):
        return None


def stored_value(argv: Sequence[str], name: str) -> Any:
    """Return the value of one factor in a stored case.

    Another version may have stored a case that this version cannot read. Only the words of the factor are then read.
    The result is the factor's default if the option is absent, and the word itself if the word cannot be read.
    """
    case, each = own_case(argv), FACTOR[name]
    if case is not None:
        return getattr(case, name)
    words = dict(pairwise(argv))
    flag = next((flag for flag in each.flags if flag in words), None)
    if flag is None:
        return each.default
    try:
        return _parsed(each, words[flag])
    except UsageError:
        return words[flag]


def to_argv(case: Case) -> list[str]:
    """Return `[pattern, option, value, ...]` with only the values that differ from the defaults."""
    argv = [case.pattern]
    for each in FACTORS:
        value = getattr(case, each.name)
        if value != each.default:
            argv += [each.flags[-1], each.show(value)]
    return argv


def command_argv(case: Case) -> list[str]:
    """Return the words of `to_argv`, plus the default values that `--like` would otherwise change.

    The settings of `--like` may have changed since the case was planned. With the added default values, the command
    line still describes the planned case.
    """
    argv = to_argv(case)
    for name, preset in preset_fields(case.like, case.pattern).items():
        value, each = getattr(case, name), FACTOR[name]
        if value == each.default != preset:
            argv += [each.flags[-1], each.show(value)]
    return argv
