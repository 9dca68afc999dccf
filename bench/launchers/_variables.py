"""Read a rank's environment variables, and write options as words. Several launchers use these functions."""

from __future__ import annotations

from collections.abc import Mapping

from bench.core.errors import UsageError
from bench.core.world import RankInfo


def whole(env: Mapping[str, str], name: str, launcher: str) -> int:
    """Return the value of an environment variable as a whole number of 0 or more.

    Raises UsageError if the variable is missing or invalid.
    """
    if name not in env:
        raise UsageError(
            f"{launcher} started this process, but {name} is not set: unset the launcher's other variables"
        )
    text = env[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{name}={env[name]!r}, set by {launcher}, is not a whole number of 0 or more")
    return int(text)


def checked(place: RankInfo) -> RankInfo:
    """Return `place` unchanged. Raises UsageError if the ranks and sizes in `place` contradict each other."""
    p = place
    if not (p.rank < p.num_ranks and p.local_rank < p.local_size <= p.num_ranks):
        raise UsageError(
            f"{p.launcher} set rank {p.rank} of {p.num_ranks}, and on its host {p.local_rank} of "
            f"{p.local_size}, which "
            "is impossible: the variables belong to different launches; unset the old ones"
        )
    return place


def rendezvous(env: Mapping[str, str], launcher: str) -> tuple[str, int] | None:
    """Return the rendezvous address of torch's ranks, from MASTER_ADDR and MASTER_PORT.

    Return None if both variables are missing.
    """
    address, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if not address and not port:
        return None
    if not address or not port:
        missing = "MASTER_PORT" if address else "MASTER_ADDR"
        raise UsageError(
            f"MASTER_ADDR and MASTER_PORT must be set together, but {missing} is missing: set or unset both"
        )
    number = whole(env, "MASTER_PORT", launcher)
    if not 0 < number < 1 << 16:
        raise UsageError(f"MASTER_PORT={port!r} is not a port: use one from 1 to 65535")
    return address, number


def check_one_line(options: Mapping[str, str]) -> None:
    """Raise UsageError for an option with a line break or another control character.

    Each option becomes part of a line of a script. If an option had a second line, this line would run as a command.
    """
    for name, value in options.items():
        for character in f"{name}{value}":
            if not character.isprintable():
                raise UsageError(f"option {name!r}: {value!r} contains {character!r}: write it on one line")


def long_options(options: Mapping[str, str]) -> list[str]:
    """Return options as words: `--name=value`, `--name` without a value, or `-p value` for a name of one letter."""
    words: list[str] = []
    for name, value in options.items():
        if len(name) == 1:
            words += [f"-{name}", *filter(None, (value,))]
        else:
            words.append(f"--{name}={value}" if value else f"--{name}")
    return words
