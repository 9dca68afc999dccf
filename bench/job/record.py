"""Record a training job: start the user's command under nsys or with variables for a good trace.

torch's profiler runs in the user's program (`PROFILER_LINES`), because only the program knows where a step ends.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.core.errors import NotInstalledError, RefusedError, UsageError, first_line
from bench.job.messages import RecordCode
from bench.probes import nsys
from bench.probes.job_cpus import INTERVAL_S, JobCpus

FOLDER_VARIABLE = "BENCH_TRACES"
# Ten steps after three warm-up steps. Only recorded shapes give the sizes of Gloo's exchanges.
PROFILER_LINES = f"""\
import os, torch
profiler = torch.profiler.profile(
    schedule=torch.profiler.schedule(wait=10, warmup=3, active=10, repeat=1),
    record_shapes=True,
    on_trace_ready=lambda done: done.export_chrome_trace(
        os.path.join(os.environ.get("{FOLDER_VARIABLE}", "."), f"rank{{os.environ.get('RANK', 0)}}.json.gz")
    ),
)
profiler.start()       # before the first step
...
    profiler.step()    # at the end of each step
...
profiler.stop()        # after the last step
"""
_NUM_COLLECTIVES = 20000  # collectives that the flight recorder keeps


@dataclass(frozen=True, slots=True)
class Recording:
    """The command to run, and the files that it writes.

    `kept`: the user's variables that are not changed.
    """

    folder: Path
    command: tuple[str, ...]
    variables: Mapping[str, str]
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """The exit code of a recorded command, and the traces and nsys exports that it wrote."""

    exit_code: int
    traces: tuple[Path, ...]
    exports: tuple[Path, ...]


def prepare(folder: Path, command: tuple[str, ...], env: Mapping[str, str], under_nsys: bool = False) -> Recording:
    """Return the command and variables that record a job. Raises NotInstalledError if nsys is requested but missing."""
    folder = folder.absolute()
    wanted = variables(folder)
    if under_nsys:
        if not nsys.is_installed(env):
            raise NotInstalledError.of(RecordCode.NO_NSYS)
        command = (*nsys.profile_words(folder / "nsys-%h-%p"), *command)
    kept = tuple(name for name in wanted if name in env)
    return Recording(folder, command, {name: value for name, value in wanted.items() if name not in env}, kept)


def variables(folder: Path) -> dict[str, str]:
    """Return the variables for a good recording.

    The variables of the flight recorder have an old and a new name in torch.
    """
    return {
        FOLDER_VARIABLE: str(folder),
        "TORCH_FR_BUFFER_SIZE": str(_NUM_COLLECTIVES),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": str(_NUM_COLLECTIVES),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "flight_recorder_"),
        "TORCH_NCCL_ENABLE_TIMING": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(folder / "nccl-%h-%p.log"),
    }


def run(recording: Recording, env: Mapping[str, str]) -> Recorded:
    """Run the command to its end, and return its exit code and the files that it wrote.

    Raises UsageError if the folder cannot be made. Raises RefusedError if the command cannot be started.
    """
    folder = recording.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError.of(RecordCode.NO_FOLDER, folder=str(folder), why=error.strerror) from None
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    try:
        process = subprocess.Popen(recording.command, env={**env, **recording.variables})
    except OSError as error:
        raise RefusedError.of(
            RecordCode.NOT_STARTED, program=recording.command[0], why=error.strerror or first_line(error)
        ) from None
    cpus = JobCpus(FOLDER_VARIABLE, str(folder))
    exit_code = _ended(process, cpus)
    if (record := cpus.record()) is not None:
        (folder / f"cpus-{record['host']}-{process.pid}.json").write_text(json.dumps(record), encoding="utf-8")
    for report in sorted(_changed(folder, before)):
        if report.suffix == ".nsys-rep":
            nsys.export(report, env)
    new = sorted(_changed(folder, before))
    return Recorded(
        exit_code,
        tuple(path for path in new if path.name.endswith((".json", ".json.gz")) and not path.name.startswith("cpus-")),
        tuple(path for path in new if path.suffix == ".sqlite"),
    )


def _changed(folder: Path, before: Mapping[Path, int]) -> list[Path]:
    """Return the files of a folder that are new or have changed.

    `before`: the earlier modification time of each file, in nanoseconds.
    """
    return [path for path in folder.iterdir() if path.stat().st_mtime_ns != before.get(path)]


def _ended(process: subprocess.Popen[bytes], cpus: JobCpus) -> int:
    """Wait for the command, and return its exit code as a shell does.

    On Ctrl-C, the terminal also interrupts the command.
    """
    while True:
        try:
            cpus.sample()
            code = process.wait(INTERVAL_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            continue
        except BaseException:  # if this process must end, the command must end, too
            process.terminate()
            process.wait()
            raise
        return code if code >= 0 else 128 - code


def shell_lines(recording: Recording) -> str:
    """Return the variables as lines for a shell or a job script."""
    folder = str(recording.folder)
    lines = [f"mkdir -p {shlex.quote(folder)}"]
    return "\n".join([*lines, *(f"export {name}={shlex.quote(value)}" for name, value in recording.variables.items())])


def default_folder() -> Path:
    """Return the name of a new folder: `trace`, or `trace-2` and so on if the folder `trace` exists."""
    number = 1
    while (folder := Path("trace" if number == 1 else f"trace-{number}")).exists():
        number += 1
    return folder
