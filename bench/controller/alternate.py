"""Measure two sides launch by launch in the order A B B A, so that a drift of the machine affects both sides equally.

Each side is a separate run. The first launch starts the run, and the other launches resume it. Each launch is a
separate process, because the two sides may use different environment variables and Python environments.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.controller.messages import ControllerError
from bench.core.errors import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_USAGE,
    BenchError,
    MeasurementError,
    RefusedError,
    UsageError,
)
from bench.store import runs

LOOKS = (6, 10, 16, 26, 40)  # the numbers of launches after which `auto` compares the two sides
# The significance level of each of five looks. With this level, 5 % of all calls find a difference between equal sides
# (Pocock, Biometrika 64, 1977, table 1).
FDR_OF_LOOK = 0.0158
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = "PYTHON"
_ERRORS: dict[int, type[BenchError]] = {EXIT_USAGE: UsageError, EXIT_REFUSED: RefusedError}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: the arguments of `linkbench run`, and environment variables for its process.

    `python`: the interpreter of the side's environment.
    `results`: a folder that contains only the run of this side.
    """

    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    python: str
    results: Path

    @classmethod
    def of(cls, text: str, results: Path) -> Side:
        """Parse `NAME=value ... scenario --option ...`. The value of PYTHON is the path of the side's interpreter.

        Raises UsageError if a quotation mark in the text has no partner.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--run {text!r}: {error}") from None
        variables: dict[str, str] = {}
        while words and _VARIABLE.match(words[0]):
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        python = variables.pop(_PYTHON, sys.executable)
        return cls(tuple(words), tuple(variables.items()), python, results)

    @property
    def folder(self) -> Path:
        """The folder of the side's run. The folder exists after the side's first launch."""
        return runs.find(self.results, "latest")

    def measure(self, launch: int, most: int) -> None:
        """Measure launch number `launch` of a plan with `most` launches.

        If the launch fails, the error has the exit code of the launch.
        """
        begun = self.results.is_dir() and any(self.results.glob("*/plan.json"))
        words = [*self.words, "--launches", str(most)] if not begun else ["--resume", str(self.folder)]
        words += [] if not begun else _config_of(self.words)
        words += ["--only-launch", str(launch), "--no-plots", "--results", str(self.results), "--output", os.devnull]
        command = (self.python, "-m", "bench", "run", *words)
        process = subprocess.Popen(command, env=os.environ | dict(self.variables))
        try:
            exit_code = process.wait()
        except KeyboardInterrupt:  # the process is interrupted, too; it keeps its rows and prints a message
            process.wait()
            raise
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if exit_code != EXIT_DONE:
            facts = {"launch": launch, "command": shlex.join(command), "exit_code": exit_code}
            raise _ERRORS.get(exit_code, MeasurementError).of(ControllerError.LAUNCH_FAILED, **facts)


def _config_of(words: tuple[str, ...]) -> list[str]:
    """Return the option --config from the arguments of a run, to resume the run with the same bench.yaml."""
    for number, word in enumerate(words):
        if word == "--config":
            return list(words[number : number + 2])
        if word.startswith("--config="):
            return [word]
    return []


def alternate(a: Side, b: Side, most: int, say: Callable[[str], None]) -> Iterator[int]:
    """Measure launches of both sides in the order A B, B A, A B, ...

    After each pair, yields the number of finished launches of each side.
    """
    for launch in range(1, most + 1):
        sides = (("A", a), ("B", b)) if launch % 2 else (("B", b), ("A", a))
        for name, side in sides:
            say(f"launch {launch} of {name}")
            side.measure(launch, most)
        yield launch
