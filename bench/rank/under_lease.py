"""Start another benchmark's program under the same leases as linkbench's ranks.

python -m bench.rank.under_lease [--share-hosts] PROGRAM ARGUMENTS ...

The controller puts this command line before the command line of a tool's program. This process replaces itself with the
program, so a launcher sees only the program. Before the replacement, the first process of each host takes the host's
lease (rank/host_lease.py) and starts a helper process. The helper holds this lease until the program ends. The helper
also reads the controller's lease (store/lease.py). If the controller's lease is lost, the helper ends all processes of
the job on its host.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bench.core.ends import EndCode
from bench.core.errors import BenchError, RefusedError
from bench.core.world import RankInfo
from bench.rank import delivery, heartbeats, host_lease
from bench.rank.messages import RankRefusal
from bench.rank.placement import place
from bench.store import lease
from bench.store.heartbeat import End, LastWords, error_line

SHARE = "--share-hosts"
_LOOK_S = 1.0


def main(words: Sequence[str]) -> int:
    """Replace this process by the program. Return an exit code only if the program cannot be started."""
    share = words[0] == SHARE
    rank: int | None = None
    try:
        me = place(os.environ)
        rank = me.rank
        with host_lease.held(me, share):
            if me.local_rank == 0:
                _leave_helper(me)
            _become(list(words[share:]))
    except BenchError as error:
        _say(heartbeats.end_of(error), rank)
        return error.exit_code


def _become(program: list[str]) -> NoReturn:
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        host = socket.gethostname()
        why = error.strerror
        raise RefusedError.of(RankRefusal.TOOL_NOT_STARTED, program=program[0], host=host, why=why) from None


def _leave_helper(me: RankInfo) -> None:
    """Fork the helper. The program inherits one end of a pipe.

    When the program ends, the kernel closes this end, and the helper learns that the program has ended.
    """
    ended, of_program = os.pipe()
    program = os.getpid()
    if os.fork():
        os.close(ended)
        os.set_inheritable(of_program, True)
        return
    os.close(of_program)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)

    def has_ended(wait_s: float) -> bool:
        # A process that the program started may keep the pipe open for longer.
        return bool(select.select([ended], [], [], wait_s)[0]) or os.getppid() != program

    path = os.environ.get(lease.VARIABLE, "")
    silent_s = heartbeats.wait_for_loss(Path(path), me, has_ended) if path else None
    if silent_s is not None:
        _say(End.of(EndCode.CONTROLLER_GONE, silent_s=silent_s), me.rank)
        from bench.probes import processes

        processes.end_job(os.environ[processes.JOB_VARIABLE])
    while not has_ended(_LOOK_S):
        pass
    os._exit(0)


def _say(end: End, rank: int | None) -> None:
    delivery.say(error_line(LastWords(end, rank, socket.gethostname())))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
