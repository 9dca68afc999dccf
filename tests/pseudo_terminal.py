"""Run a command on a real pseudo-terminal, and return what it shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINES = 50
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Variables by which the user of the tests may have chosen widths and colours.
_CHOSEN = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a command wrote to its terminal: `raw` with escape sequences. `exit_code`: its own."""

    raw: str
    exit_code: int

    @property
    def text(self) -> str:
        """All that was written, without escape sequences and with the lines that others replaced."""
        return _ESCAPE.sub("", self.raw).replace("\r\n", "\n").replace("\r", "\n")


def shown(words: Sequence[str], width: int, variables: Mapping[str, str], stderr: int | None = None) -> Shown:
    """Run a command on a terminal of this width. `stderr`: as of subprocess; None: the terminal, too."""
    env = {name: value for name, value in os.environ.items() if name not in _CHOSEN}
    env |= {"TERM": "xterm", **variables}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, width, 0, 0))
    with subprocess.Popen(
        words, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs if stderr is None else stderr
    ) as command:
        os.close(theirs)
        raw = _all_of(ours)
    return Shown(raw, command.returncode)


def _all_of(terminal: int) -> str:
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # Linux ends a pseudo-terminal whose other end is closed by an error
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode()
