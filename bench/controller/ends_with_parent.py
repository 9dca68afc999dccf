"""Run a command that the kernel ends when its parent ends, even if the parent is killed.

    python -I -S ends_with_parent.py PARENT COMMAND ...

PARENT is the process id of the caller. COMMAND replaces this process. Only Linux can end a command in this way;
elsewhere COMMAND runs as usual. With the options -I and -S, Python starts faster and does not depend on the environment
of COMMAND.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def end_with(parent: int) -> None:
    """Make the kernel send TERM to this process when the parent process ends. This setting survives `exec`.

    The kernel sends the signal as soon as the parent's thread that started this process ends.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent has already ended
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])
