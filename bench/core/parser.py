"""The command line's parser: a mistake is one sentence and exit code 2, told by the command that was called."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from bench.core import plugins
from bench.core.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse prints its usage and leaves; names the nearest option."""

    def error(self, message: str) -> NoReturn:
        """What argparse found wrong, and whose help says more."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """A command says itself what it does not know: the parser around it has other options and another help."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._meant(rest)}")
        return found, rest

    def _meant(self, rest: Iterable[str]) -> str:
        mistyped = next((word.partition("=")[0] for word in rest if word.startswith("--")), None)
        close = plugins.closest(mistyped, tuple(self._option_string_actions)) if mistyped else None
        return f"; did you mean {close}?" if close else ""
