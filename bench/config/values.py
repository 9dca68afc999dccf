"""How one value of a YAML file is read: what was typed goes through the functions that read a command line.

Each reader takes text (or, where it says so, lists of it) and raises UsageError, whose sentence says what is right.
"""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Callable
from typing import Any

from bench.core import hostlist, plugins
from bench.core.case import OPTIONS
from bench.core.errors import UsageError
from bench.core.links import PEERS, RATES
from bench.core.plugins import nearest
from bench.hardware import catalogue
from bench.hardware.bounds import COPY_DIRECTIONS, COPY_PATTERNS

OPTION: dict[str, Callable[[str], Any]] = {option.field: option.parse for option in OPTIONS}
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


def one(parse: Callable[[str], Any]) -> Callable[[object], Any]:
    """`parse` for a value (or a key, which may be a number) that must not be a list or a mapping."""

    def read(typed: object) -> Any:
        if isinstance(typed, int):
            return parse(str(typed))
        if not isinstance(typed, str):
            raise UsageError(f"must be one value, not a {'list' if isinstance(typed, list) else 'mapping'}")
        return parse(typed)

    return read


def listed(typed: object) -> list[Any]:
    """A list as it is, one value as a list of it."""
    if typed == []:
        raise UsageError("the list is empty: give at least one value, or leave the key out")
    return typed if isinstance(typed, list) else [typed]


def words(typed: object) -> list[Any]:
    """A list of words as it is; one text split as a shell does."""
    if not isinstance(typed, str):
        return listed(typed)
    try:
        return shlex.split(typed) or [typed]
    except ValueError:
        raise UsageError(f"{typed!r} has a quotation that does not end: close it, or write a list of words") from None


def _matching(form: str, what: str) -> Callable[[str], str]:
    """Text of this form and no other."""

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
    """One host, or several as Slurm writes them: `n[001-128]`."""
    return tuple(map(host_name, hostlist.expand(typed)))


def text(typed: str) -> str:
    """Any text but none."""
    if not typed.strip() or "\0" in typed:
        raise UsageError("some text must stand here")
    return typed


def variable(typed: str) -> str:
    """The value of an environment variable: any text, also none, without zero bytes."""
    if "\0" in typed:
        raise UsageError("a variable can not hold a zero byte")
    return typed


def port(typed: str) -> int:
    """A TCP port."""
    if not typed.isdecimal() or not 0 < int(typed) < 1 << 16:
        raise UsageError(f"{typed!r} is not a port: give one from 1 to 65535")
    return int(typed)


def switch(typed: str) -> bool:
    """true or false, also 1 or 0."""
    if typed.lower() not in _SWITCH:
        raise UsageError(f"{typed!r} must be true or false")
    return _SWITCH[typed.lower()]


def instance(typed: str) -> str:
    """An instance type of the catalogue."""
    return catalogue.instance(typed).name


def link(typed: str) -> str:
    """A link whose rate can be said in place of the catalogue's."""
    if typed not in RATES:
        raise UsageError(f"no link is called {typed!r}{nearest(typed, RATES)}")
    return typed


def peers(typed: str) -> str:
    """How the GPUs of a node reach each other."""
    if typed not in PEERS:
        raise UsageError(f"no kind of peer link is called {typed!r}{nearest(typed, PEERS)}")
    return typed


def price(typed: str) -> float:
    """Dollars per hour, above zero."""
    found = _number(typed)
    if found is None or not 0 < found < 1e6:
        raise UsageError(f"{typed!r} is no price: give US dollars per hour of one node, such as 21.96")
    return found


def ratio(typed: str) -> float:
    """1 or more."""
    found = _number(typed)
    if found is None or not 1 <= found < 1e6:
        raise UsageError(f"{typed!r} is no oversubscription: give 1 (none) or more, such as 2 or 1.5")
    return found


def date(typed: str) -> str:
    """A day, ISO 8601."""
    try:
        return datetime.date.fromisoformat(typed).isoformat()
    except ValueError:
        raise UsageError(f"{typed!r} is no date: write it as 2026-07-20") from None


def _number(typed: str) -> float | None:
    try:
        return float(typed)
    except ValueError:
        return None


def pattern(typed: str) -> str:
    """A pattern, a file at the root of the package."""
    return plugins.check("pattern", typed)


def judged_pattern(typed: str) -> str:
    """A pattern that a run may hold: one of ours, or copies that other tools alone measure."""
    return typed if typed in COPY_PATTERNS else plugins.check("pattern", typed)


def judged_direction(typed: str) -> str:
    """A direction that rows may have: one of ours, or one of another tool's matrices."""
    return typed if typed in COPY_DIRECTIONS else str(OPTION["direction"](typed))


def tool(typed: str) -> str:
    """Another benchmark, a file of logs/readers/."""
    return plugins.check("tool", typed)


def launcher(typed: str) -> str:
    """auto, or a file of launchers/."""
    return typed if typed == "auto" else plugins.check("launcher", typed)


def ranks_per_node(typed: str) -> int | None:
    """A number of 1 or more; None for auto."""
    return None if typed == "auto" else int(OPTION["ranks_per_node"](typed))


def transports(chosen: tuple[str, ...]) -> tuple[str, ...] | None:
    """Transports already read; None for auto, which stands alone."""
    if "auto" in chosen and len(chosen) > 1:
        raise UsageError("auto chooses the transports: leave the others out, or leave it out")
    return None if chosen == ("auto",) else chosen


def sizes(read: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Ranges and sizes already read, merged and sorted. Bytes."""
    return tuple(sorted({size for part in read for size in part}))


def orders(typed: object) -> list[Any]:
    """Orders of ranks, not yet checked: `[0, 2, 1, 3]` is one order, not four."""
    parts = listed(typed)
    if all(isinstance(part, str) and part.isdecimal() for part in parts):
        return [",".join(parts)]
    return parts


def matrix(typed: object) -> list[Any]:
    """The one text of the command line, `0,1;2,0`, also of a list of rows."""
    if isinstance(typed, list):
        rows = [row if isinstance(row, list) else [row] for row in typed]
        return [";".join(",".join(map(str, row)) for row in rows)]
    return [typed]


def requirements(typed: object) -> list[Any]:
    """The one text of the command line, `network=efa,protocol=simple`, also of `{network: efa, protocol: simple}`."""
    return [",".join(f"{name}={value}" for name, value in typed.items())] if isinstance(typed, dict) else [typed]
