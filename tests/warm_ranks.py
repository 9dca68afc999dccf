"""Ranks that need not load torch, which takes three seconds of a CPU: a process that has loaded it forks them.

    with WarmRanks("torch.distributed") as warm:
        ended = warm.run([Rank(("-m", "bench.allreduce"), env, cwd), ...])

Each rank is a process with an environment, a folder and output of its own, and runs its words as `python WORDS` would.
Nothing but the named modules is loaded before the fork, so the suite itself is loaded by each rank. The real torchrun
is started by tests/launchers/test_launchers.py and tests/end_to_end/test_ranks.py.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEHIND = "torch behind another"  # the loaded torch, for a stand-in that a rank's PYTHONPATH has (tests/fakes/nccl)
_GRACE_S = 30.0  # for the others, after a rank failed


@dataclass(frozen=True)
class Rank:
    """What a rank runs, and where."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


@dataclass(frozen=True)
class Ended:
    """How a rank ended, and what it printed."""

    code: int
    out: str
    err: str


class WarmRanks:
    """A process that has loaded some modules, and forks ranks."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._started: subprocess.Popen[str] | None = None

    def __enter__(self) -> WarmRanks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._started is not None:
            self._started.communicate()  # the end of its input ends it

    def run(self, ranks: Sequence[Rank], timeout_s: float = 250.0, ends_others: bool = False) -> list[Ended]:
        """Start ranks, and wait for their ends. A rank that does not end in time is killed.

        `ends_others`: as under torchrun, the first rank that fails ends the others.
        """
        process = self._process()
        assert process.stdin is not None and process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            of_all = {"folder": folder, "timeout_s": timeout_s, "ends_others": ends_others}
            asked = {"ranks": [asdict(rank) for rank in ranks], **of_all}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, "the process that forks ranks ended"
            texts = [
                [Path(folder, f"{stream}{rank}").read_text(encoding="utf-8") for stream in ("out", "err")]
                for rank in range(len(ranks))
            ]
        return [Ended(code, out, err) for code, (out, err) in zip(json.loads(line), texts, strict=True)]

    def _process(self) -> subprocess.Popen[str]:
        """Return the process. It is started when first needed."""
        if self._started is None:
            env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # torchrun sets this variable, too
            words = (sys.executable, __file__, *self._modules)
            self._started = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._started


def port_of_ranks() -> int:
    """Return a free port for ranks to meet at. It is none of those that the kernel gives to connections meanwhile."""
    from bench.probes import ports  # not in the process that forks: each rank loads the suite

    return ports.free_port((20000, 29499))


def _serve(modules: Sequence[str]) -> None:
    gc.disable()  # it would look for garbage again and again while all of torch is loaded, a second in five
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # each measured row collects all garbage, among all of torch
    gc.enable()
    for line in sys.stdin:
        asked = json.loads(line)
        started = []
        for number, rank in enumerate(asked["ranks"]):
            process = os.fork()
            if process == 0:
                _become(rank, Path(asked["folder"]), number)
                return
            started.append(process)
        print(json.dumps(_codes(started, asked["timeout_s"], asked["ends_others"])), flush=True)


def _codes(started: Sequence[int], timeout_s: float, ends_others: bool) -> list[int]:
    """Wait for all processes."""
    codes: dict[int, int] = {}
    end = time.monotonic() + timeout_s
    while len(codes) < len(started):
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            codes[process] = os.waitstatus_to_exitcode(status)
        left = [one for one in started if one not in codes]
        if ends_others and codes.get(process):
            end = min(end, time.monotonic() + _GRACE_S)
            _send(left, signal.SIGTERM)
        if time.monotonic() > end:
            _send(left, signal.SIGKILL)
        if not process:
            time.sleep(0.005)
    return [codes[one] for one in started]


def _send(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _become(rank: Mapping[str, Any], folder: Path, number: int) -> None:
    """Run the words of a rank as a new interpreter would, then end as one does."""
    os.environ.clear()
    os.environ.update(rank["env"])
    os.chdir(rank["cwd"])
    for descriptor, name, how in (
        (0, os.devnull, os.O_RDONLY),
        (1, folder / f"out{number}", os.O_WRONLY | os.O_CREAT),
        (2, folder / f"err{number}", os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(name, how, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in (str(ROOT), *paths))]
    if any(Path(path, "torch").is_dir() for path in paths):
        sys.modules[BEHIND] = sys.modules.pop("torch")
        importlib.invalidate_caches()
    first, *others = rank["words"]
    if first == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(first).parent))
        sys.argv = [first, *others]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    sys.path[:1] = []  # of this file; where it is, a rank finds what it would not find alone
    _serve(sys.argv[1:])
