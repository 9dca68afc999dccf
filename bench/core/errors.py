"""Define the types of errors, and the exit code for each type.

A message has one or two sentences. A message names the file and line, key, host or rank, and what to do next.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

EXIT_DONE = 0
EXIT_VERDICT = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_MEASUREMENT = 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE  # the exit code that a shell gives if the reader of a pipe (`| head`) has ended


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, or the error's type if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def kernel_reason(error: BaseException) -> str:
    """Return only the kernel's text for the error number of an OSError. A library's message is often longer.

    For errors without a number, return the first line of the message.
    """
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else first_line(error)


class _Words(Protocol):
    """The part of `Code` that this module needs. It cannot import core/codes.py, which itself imports this module."""

    def words(self, facts: Mapping[str, Any]) -> str: ...


class _Reason(Protocol):
    """The part of `Coded` (core/codes.py) that this module needs."""

    @property
    def code(self) -> str: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...

    @property
    def text(self) -> str: ...


class BenchError(Exception):
    """An error whose message is shown to the user in one or two sentences.

    `exit_code` is the process's exit code. Program logic reads `code` and `facts`. If an error has no code of its own,
    its code is "uncoded".
    """

    exit_code = EXIT_MEASUREMENT
    code: str = "uncoded"
    facts: Mapping[str, Any] = {}

    @classmethod
    def of(cls, code: _Words, **facts: Any) -> Self:
        """Make an instance from a code and its facts. The code's template gives the text."""
        error = cls(code.words(facts))
        error.code, error.facts = str(code), facts
        return error

    @classmethod
    def coded(cls, reason: _Reason) -> Self:
        """Make an error from a code, its facts and its text."""
        error = cls(reason.text)
        error.code, error.facts = reason.code, reason.facts
        return error


class UsageError(BenchError):
    """The command line, a file or other input is invalid."""

    exit_code = EXIT_USAGE


class UnknownRateError(UsageError):
    """The command needs the rate of a link, but this rate is unknown.

    `link`: the name of the link in --links.
    `whose`: the part of the message that names the nodes with this link.
    """

    def __init__(self, link: str, whose: str, remedy: str = "") -> None:
        remedy = remedy or f"give it, such as --links {link}=10GB/s"
        super().__init__(f"the {link} rate of {whose} is unknown: {remedy}")
        self.link, self.whose = link, whose


class RefusedError(BenchError):
    """This machine or cluster does not match the request, so nothing was measured.

    `of_one_rank`: whether this rank itself must report the problem, because the problem may concern this rank only.
    """

    exit_code = EXIT_REFUSED

    def __init__(self, message: str, of_one_rank: bool = False) -> None:
        super().__init__(message)
        self.of_one_rank = of_one_rank


class NotInstalledError(RefusedError):
    """A library that a transport needs is missing, does not load, or lacks a required feature."""


class AbsentError(RefusedError):
    """Some ranks did not arrive at the first barrier. `ranks` lists the missing ranks in rising order."""

    def __init__(self, ranks: Sequence[int], waited_s: float) -> None:
        super().__init__(f"ranks {', '.join(map(str, ranks))} did not arrive within {waited_s:.0f} s")
        self.ranks, self.waited_s = tuple(ranks), waited_s


class MeasurementError(BenchError):
    """A measurement failed: a rank died, hung, ran out of memory or returned wrong data."""

    exit_code = EXIT_MEASUREMENT


class LostContactError(MeasurementError):
    """A peer no longer answers. The root cause is the reason why the peer ended, not this error."""


class Interrupted(BenchError):
    """Ctrl-C or a terminate signal. Measured rows are kept."""

    def __init__(self, message: str, exit_code: int = EXIT_INTERRUPTED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
