"""A short run of the store's functions, with a failure at each of its writes, fsyncs and renames in turn.

    LD_PRELOAD=LIBRARY python -m tests.store.injection FOLDER LIBRARY EVERY

EVERY: 1 for all operations, 7 for every seventh. Each trial is a forked process. After its end, the run's folder must
have all that was acknowledged and nothing twice, and another process must be able to complete the run. The output is
{"trials": number, "violations": [text, ...]} as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.core.errors import BenchError, UsageError
from bench.core.record import Header, Record, Samples
from bench.store import heartbeat, jsonl, lease, run_lock, runs
from bench.store.heartbeat import End, Heartbeat
from tests.facts import whole_plan

MODES = {"kill": 1, "torn": 2, "no space": 3, "broken": 4, "power": 5}  # as in injection.c
JOBS, SIZES = ("first", "second"), (8, 64, 4096)
FAILED, CRASHED = 3, 70
PLAN = whole_plan({"jobs": [{"name": job} for job in JOBS]})

Acknowledge = Callable[[str], None]


def _header(job: str) -> Header:
    return Header(job, (), "allreduce", "gloo", "float32", "sum", None, None, "world", 2, 1, 2, "perf", False, "")


def _record(size: int) -> Record:
    seconds = tuple(float(size + i) for i in range(20))
    return Record("isolated", (size,), size, 2, 1, verified=True, samples=Samples(seconds, (seconds, seconds)))


def short_run(folder: Path, acknowledge: Acknowledge) -> None:
    """Begin or complete the run: all that controller and rank 0 write, in their order."""
    if not (folder / "plan.json").exists():
        shutil.rmtree(folder, ignore_errors=True)  # a folder without a plan is not a run
        folder = runs.create(folder.parent, folder.name)
        runs.write_plan(folder, PLAN)
        acknowledge("plan")
    with run_lock.held(folder):
        for job in JOBS:
            _short_job(folder, job, acknowledge)


def _short_job(folder: Path, job: str, acknowledge: Acknowledge) -> None:
    missing = [size for size in SIZES if size not in rows(folder, job)]
    outcomes = runs.outcomes_or_error(folder)
    if not missing and job in outcomes:
        return
    beats = runs.heartbeat_folder(folder, job)
    beats.mkdir(exist_ok=True)
    lease.write(beats / lease.NAME, "1")
    with runs.open_log(folder, job) as log:
        log.write(b"started\n")
    if missing:
        writer = jsonl.Writer(runs.results_file(folder, job), _header(job))
        for size in missing:
            writer.append(_record(size))
            acknowledge(f"{job} {size}")
            heartbeat.write(beats, Heartbeat(0, "h0", 1, f"{size}", 0.0))
        writer.clocks({"h0": {"offset_s": 0.0}})
        writer.end({})
    heartbeat.write(beats, Heartbeat(0, "h0", 1, "", 0.0, End("done", {}, "done")))
    runs.write_outcomes(folder, {**outcomes, job: {"what": None}})
    acknowledge(f"{job} outcome")
    shutil.rmtree(beats, ignore_errors=True)


def rows(folder: Path, job: str) -> list[int]:
    """The sizes of the rows that a job's file has."""
    file = runs.results_file(folder, job)
    try:
        attempts = jsonl.read(file).attempts if file.exists() else ()
    except UsageError:
        return []  # killed while it wrote the header
    return [record.payload_bytes for attempt in attempts for record in attempt.records]


def trial(library: Any, folder: Path, mode: int, number: int) -> tuple[list[str], int, int]:
    """Run with one failure. Returns (what was acknowledged, the exit code, the number of operations)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 0
        library.inject_arm(str(folder).encode(), mode, number)
        try:
            short_run(folder, lambda what: void(os.write(writing, f"{what}\n".encode())))
        except (BenchError, OSError) as error:
            code = FAILED if isinstance(error, BenchError) or error.errno in (5, 28) else CRASHED
        except BaseException:
            traceback.print_exc()
            code = CRASHED
        os.write(writing, f"count {library.inject_count()}\n".encode())
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    counts = [int(line.split()[1]) for line in said if line.startswith("count")]
    return [line for line in said if not line.startswith("count")], code, counts[0] if counts else 0


def void(_: object) -> None:
    """Ignore a value."""


def problems(folder: Path, acknowledged: list[str], whole: bool) -> Iterator[str]:
    """What is lost, doubled or broken in a run's folder. `whole`: all must be there."""
    for job in JOBS:
        found = Counter(rows(folder, job))
        yield from (f"{job} {size} is there {num} times" for size, num in found.items() if num > 1)
        wanted = [f"{job} {size}" for size in SIZES]
        yield from (
            f"{row} is lost" for row in wanted if (whole or row in acknowledged) and not found[int(row.split()[1])]
        )
    if whole or "plan" in acknowledged or (folder / "plan.json").exists():
        try:
            if {key: value for key, value in runs.read_plan(folder).items() if key != "schema"} != PLAN:
                yield "the plan is another"
        except BenchError as error:
            yield str(error)
    try:
        outcomes = runs.outcomes_or_error(folder)
    except BenchError as error:
        yield str(error)
        return
    ended = [f"{job} outcome" for job in JOBS]
    yield from (f"{end} is lost" for end in ended if (whole or end in acknowledged) and end.split()[0] not in outcomes)


def failed_and_completed(library: Any, folder: Path, name: str, number: int) -> Iterator[str]:
    """Fail at one operation, and complete the run after it."""
    shutil.rmtree(folder, ignore_errors=True)
    acknowledged, code, _ = trial(library, folder, MODES[name], number)
    ends = (0, FAILED) if name in ("no space", "broken") else (-signal.SIGKILL,)
    if code not in ends:
        yield f"it ended with {code}"
    yield from problems(folder, acknowledged, whole=code == 0)
    for beats in folder.glob(f".*.heartbeats/{lease.NAME}"):
        lease.write(beats, lease.LOST)  # as the killed controller's guard does
    more, code, _ = trial(library, folder, 0, 0)
    if code != 0:
        yield f"the run cannot be completed ({code})"
    yield from (f"{row} was written again" for row in set(acknowledged) & set(more))
    yield from (f"completed: {problem}" for problem in problems(folder, [], whole=True))


def main(folder: Path, library_file: str, every: int) -> None:
    """Fail at each operation in each mode."""
    library = ctypes.CDLL(library_file)
    library.inject_count.restype = ctypes.c_long
    library.inject_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long]
    _, code, num = trial(library, folder, 0, 0)
    violations = [] if code == 0 else [f"without a failure the run ends with {code}"]
    num_trials = 0
    for name in MODES:
        for number in range(1, num + 1, every):
            num_trials += 1
            found = failed_and_completed(library, folder, name, number)
            violations += [f"{name} at operation {number} of {num}: {violation}" for violation in found]
    print(json.dumps({"trials": num_trials, "violations": violations}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
