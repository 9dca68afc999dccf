"""A process that takes the place of rank 1 in a rendezvous and sends a pickled command instead of data.

RANK=1 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python tests/end_to_end/stranger.py COMMAND KNOWS_PREFIX
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=20)


class Command:
    """Runs a shell command in whichever process unpickles it."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


def join(prefix: str, command: str) -> None:
    """Meet rank 0 as rank 1 and send the command."""
    tcp = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, False, TIMEOUT)
    store = dist.PrefixStore(prefix, tcp)
    store.set("bench/arrived/1", '{"device": null, "problem": null}')
    dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=TIMEOUT)
    dist.all_reduce(torch.zeros(2, dtype=torch.float32))  # the first eight bytes between all ranks
    dist.barrier()
    dist.gather_object(Command(command), dst=0)


if __name__ == "__main__":
    join(*sys.argv[1:])
