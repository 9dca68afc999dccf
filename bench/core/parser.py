"""A command line whose mistakes are told as all others: one sentence, exit code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

from bench.core.errors import UsageError


class Parser(argparse.ArgumentParser):
    """argparse's, but for what a mistake does: it raises UsageError."""

    def error(self, message: str) -> NoReturn:
        """The sentence, and where the options are told."""
        raise UsageError(f"{message} (see {self.prog} --help)")
