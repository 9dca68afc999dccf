"""Run `bench.allreduce`; rank 0 stops and continues what keeps the lease and the connections, from block to block."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.controller import guard, keeper
from bench.rank import heartbeats
from bench.rank.main import run_pattern
from bench.rank.placement import place
from bench.rank.sampling import Sampler
from bench.store import lease

PHASES = "BENCH_KEEPER_PHASES"  # the file that gets the blocks: the number of their first samples, and CPU times
_BLOCK_S = 1.5
_ORDER = (True, False, False, True)


class Blocks:
    """Counts samples, and begins the next block when one is over."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.running = threading.Event()
        self.running.set()
        self._num, self._began_s = 0, 0.0
        self._cpu_s = self._with_s = 0.0
        self._used_s = 0.0
        self._processes = [process for process in psutil.process_iter(["cmdline"]) if _is_ours(process)]

    def before(self, chunk: int) -> None:
        """Begin the next block if it is time to."""
        now = time.monotonic()
        if not self.starts or now - self._began_s > _BLOCK_S:
            if self.running.is_set() and self.starts:
                self._cpu_s += self._cpu() - self._used_s
                self._with_s += now - self._began_s
            self._switch(_ORDER[len(self.starts) % len(_ORDER)])
            self.starts.append(self._num)
            self._began_s = now
        self._num += chunk

    def end(self) -> None:
        """Continue all, and write the file."""
        self._switch(True)
        found = {"starts": self.starts, "cpu_s": self._cpu_s, "with_s": self._with_s}
        Path(os.environ[PHASES]).write_text(json.dumps(found))

    def _switch(self, with_them: bool) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGCONT if with_them else signal.SIGSTOP)
        if with_them:
            self.running.set()
            self._used_s = self._cpu()
        else:
            self.running.clear()

    def _cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


def _is_ours(process: psutil.Process) -> bool:
    """Whether this is the guard or the keeper of this job, and not of another one."""
    words = process.info["cmdline"] or ()
    if guard.__name__ in words:
        return os.environ[lease.VARIABLE] in words
    return keeper.__name__ in words and process.environ().get("BENCH_JOB") == os.environ["BENCH_JOB"]


def main() -> None:
    """Run the pattern, on rank 0 in blocks."""
    if place(os.environ).rank != 0:
        run_pattern("allreduce")
    blocks = Blocks()
    timed, wait_for_loss = Sampler.timed, heartbeats.wait_for_loss

    def timed_in_blocks(self: Sampler, batch: int, chunk: int) -> Any:
        blocks.before(chunk)
        return timed(self, batch, chunk)

    def wait_in_blocks(path: Path, me: Any, has_ended: Callable[[float], bool]) -> float | None:
        def ended(wait_s: float) -> bool:
            over = has_ended(wait_s)
            blocks.running.wait()
            return over

        return wait_for_loss(path, me, ended)

    Sampler.timed = timed_in_blocks  # type: ignore[method-assign]
    heartbeats.wait_for_loss = wait_in_blocks
    sample = Sampler.sample

    def sample_and_end(self: Sampler, *args: Any) -> Any:
        try:
            return sample(self, *args)
        finally:
            blocks.end()

    Sampler.sample = sample_and_end  # type: ignore[method-assign, assignment]
    run_pattern("allreduce")


if __name__ == "__main__":
    main()
