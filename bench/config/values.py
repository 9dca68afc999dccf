"""Parse single values of YAML files.

Each function takes the text as the user typed it, and raises UsageError if the text is not a valid value.
"""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Callable
from typing import Any

from bench.core import hostlist, plugins
from bench.core.case import FACTOR
from bench.core.errors import UsageError
from bench.core.links import PEERS, RATES
from bench.core.option_parsers import listed
from bench.core.plugins import nearest
from bench.hardware import catalogue
from bench.hardware.bounds import COPY_DIRECTIONS, COPY_PATTERNS


def words(typed: object) -> list[Any]:
    """Return the words of a value. A list stays unchanged.

    If the value is a single text, the function splits the text like a shell.
    """
    if not isinstance(typed, str):
        return listed(typed)
    try:
        return shlex.split(typed) or [typed]
    except ValueError:
        raise UsageError(f"{typed!r} has an unclosed quotation mark: close it, or write a list of words") from None


def _matching(form: str, what: str) -> Callable[[str], str]:
    """Return a parser that accepts a text only if the whole text matches this regular expression."""

    def parse(typed: str) -> str:
        if re.fullmatch(form, typed, re.ASCII) is None:
            raise UsageError(f"{typed!r} is not {what}")
        return typed

    return parse


cluster_name = _matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, '.', '_' and '-'")
nic_name = _matching(r"[A-Za-z0-9][A-Za-z0-9._:-]*", "a network interface's name, such as eth0 or mlx5_0")
rack_name = _matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a rack's name")
host_name = _matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a host's name or address")
variable_name = _matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")
option_name = _matching(r"[A-Za-z0-9][A-Za-z0-9_-]*", "an option's name without its dashes")


def hosts(typed: str) -> tuple[str, ...]:
    """Parse one host, or several hosts written as in Slurm, such as `n[001-128]`."""
    return tuple(map(host_name, hostlist.expand(typed)))


def all_hosts(parsed: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Join several parsed host lists into one list. The order of the hosts does not change."""
    return sum(parsed, ())


def text(typed: str) -> str:
    """Return any text that is not empty and has no zero byte."""
    if not typed.strip() or "\0" in typed:
        raise UsageError("expected some text")
    return typed


def variable(typed: str) -> str:
    """Parse the value of an environment variable. The value may be empty but must not have a zero byte."""
    if "\0" in typed:
        raise UsageError("a variable cannot hold a zero byte")
    return typed


def port(typed: str) -> int:
    """Parse a TCP port."""
    if not typed.isdecimal() or not 0 < int(typed) < 1 << 16:
        raise UsageError(f"{typed!r} is not a port: give one from 1 to 65535")
    return int(typed)


def instance(typed: str) -> str:
    """Return the name of an instance type of the catalogue."""
    return catalogue.instance(typed).name


def link(typed: str) -> str:
    """Return the name of a link. A file may give this link a rate that replaces the catalogue's rate."""
    if typed not in RATES:
        raise UsageError(f"no link is called {typed!r}{nearest(typed, RATES)}")
    return typed


def peers(typed: str) -> str:
    """Return the kind of link between the GPUs of a node."""
    if typed not in PEERS:
        raise UsageError(f"no kind of peer link is called {typed!r}{nearest(typed, PEERS)}")
    return typed


def price(typed: str) -> float:
    """Parse a price in dollars per hour, which must be above zero."""
    found = _number(typed)
    if found is None or not 0 < found < 1e6:
        raise UsageError(f"{typed!r} is not a price: give US dollars per hour of one node, such as 21.96")
    return found


def ratio(typed: str) -> float:
    """Parse a ratio of 1 or more."""
    found = _number(typed)
    if found is None or not 1 <= found < 1e6:
        raise UsageError(f"{typed!r} is not an oversubscription: give 1 (none) or more, such as 2 or 1.5")
    return found


def date(typed: str) -> str:
    """Parse a day in ISO 8601 format."""
    try:
        return datetime.date.fromisoformat(typed).isoformat()
    except ValueError:
        raise UsageError(f"{typed!r} is not a date: write it as 2026-07-20") from None


def _number(typed: str) -> float | None:
    try:
        return float(typed)
    except ValueError:
        return None


def pattern(typed: str) -> str:
    """Return the name of a pattern. Each pattern is a file in the package's root folder."""
    return plugins.check("pattern", typed)


def judged_pattern(typed: str) -> str:
    """Return the name of a pattern to which a gate rule can apply.

    The pattern is either a pattern of this suite or one of COPY_PATTERNS, which only other tools measure.
    """
    return typed if typed in COPY_PATTERNS else plugins.check("pattern", typed)


def judged_direction(typed: str) -> str:
    """Return the name of a direction, which this suite or another tool measures."""
    return typed if typed in COPY_DIRECTIONS else str(FACTOR["direction"].parse(typed))


def transport(typed: str) -> str:
    """Return the name of a transport. The name auto is not accepted."""
    return plugins.check("transport", typed)


def tool(typed: str) -> str:
    """Return the name of another benchmark tool. Each tool has a file in logs/readers/."""
    return plugins.check("tool", typed)


def launcher(typed: str) -> str:
    """Return `auto` or the name of a launcher. Each launcher is a file in launchers/."""
    return typed if typed == "auto" else plugins.check("launcher", typed)


def ranks_per_node(typed: str) -> int | None:
    """Parse a number of 1 or more. The result is None for auto."""
    return None if typed == "auto" else int(FACTOR["ranks_per_node"].parse(typed))


def transports(chosen: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the parsed transports, or None for auto. Raises UsageError if auto is listed with other transports."""
    if "auto" in chosen and len(chosen) > 1:
        raise UsageError("auto chooses the transports: omit the other transports, or omit auto")
    return None if chosen == ("auto",) else chosen
