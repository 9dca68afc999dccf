"""Read process stacks from `py-spy dump`, and process states from `ps aux`, for a job that hangs.

A dump is a snapshot. A process is therefore suspected only if all other processes of the job are waiting.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from sys import stdlib_module_names

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

_ELSEWHERE = MessageKind(
    "process-elsewhere",
    Role.ABSENT,
    "process {pid} was in {frame} while the {num_waiting} other processes waited in calls of torch.distributed",
    0.5,
    "read the whole stack of this process, and find what it waits for",
    "py-spy dump --native --pid PID",
)
_IN_KERNEL = MessageKind(
    "process-in-kernel",
    Role.ABSENT,
    "process {pid} was in the kernel (state D of `ps`), as during input and output, while the {num_others} other "
    "processes of its program were not, and processes waited in calls of torch.distributed",
    0.5,
    "find what this process waits for: often a file system or a device that hangs",
    "cat /proc/PID/stack; dmesg -T | tail; df -h",
)
_TABLE = re.compile(r"^USER\s+PID\s+%CPU\s+%MEM\s+VSZ\s+RSS\s+TTY\s+STAT\s+START\s+TIME\s+COMMAND$")
_ROW = re.compile(
    r"^\S{1,64}\s+(?P<pid>\d{1,10})(?:\s+\S{1,40}){5}\s+(?P<state>[A-Z])\S{0,8}\s+\S+\s+\S+\s+(?P<program>.+)$"
)
_PROCESS = re.compile(r"^Process (\d{1,10}): ")
_THREAD = re.compile(
    r'^Thread (?:0x[0-9A-Fa-f]{1,16}|(?P<number>\d{1,10})) \([\w+]{1,20}\)(?:: "(?P<name>[^"]{0,100})")?$'
)
_FRAME = re.compile(r"^(?P<call>\S[^()]{0,200}) \((?P<file>[^()]{1,300}?)(?P<line>:\d{1,9})?\)$")
_MAIN, _VERSION = "MainThread", "Python v"
_WAITS = "torch/distributed/distributed_c10d.py"
_LOADER = "torch/utils/data/_utils/worker.py"
_LEAST = 3  # processes
_MOST_PROCESSES, _MOST_FRAMES = 4_096, 200
_Frame = tuple[str, str, str]  # the function, its file and the line


class PySpy(EventFormat):
    """Yields one event for all dumps of a file, if exactly one process of the job does not wait for other processes.

    If a process has several dumps, only the last dump is used. Launchers and the worker processes of data loaders are
    ignored.
    """

    hints = (f'"{_MAIN}"', _VERSION, " %CPU ")

    def __init__(self) -> None:
        """Start with no dump."""
        self._process: int | None = None  # the process that py-spy named last
        self._stacks: dict[int, tuple[EventLine, list[_Frame]]] = {}  # a process -> its frames, the innermost first
        self._frames: list[_Frame] | None = None  # the stack that the next line may continue
        self._rows: dict[int, tuple[EventLine, str, str]] = {}  # a process -> its state and program in the last table
        self._is_table = False  # whether the next line may be a row of the table

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the next line may be a stack frame, or a row of a process table."""
        return self._frames is not None or self._is_table

    def read(self, line: EventLine) -> Iterator[Event]:
        """Read a line of a stack. Only `finish` yields an event."""
        self._read_table(line)
        thread, frame = _THREAD.match(line.text), _FRAME.match(line.text)
        if line.text.startswith(_VERSION):
            process = _PROCESS.match(line.before)
            self._process, self._frames = int(process[1]) if process is not None else None, None
        elif thread is not None:
            self._begin(line, thread)
        elif self._frames is None or frame is None:
            self._frames = None
        elif len(self._frames) < _MOST_FRAMES:
            self._frames.append((frame["call"], frame["file"], frame["line"] or ""))
        yield from ()

    def _read_table(self, line: EventLine) -> None:
        """Read a line of a table of processes, as `ps aux` prints it."""
        if _TABLE.match(line.text):
            self._is_table, self._rows = True, {}
        elif self._is_table:
            row = _ROW.match(line.text)
            self._is_table = row is not None and len(self._rows) < _MOST_PROCESSES
            if row is not None:
                self._rows[int(row["pid"])] = (line, row["state"], row["program"])

    def _begin(self, line: EventLine, thread: re.Match[str]) -> None:
        """Begin the stack of a thread.

        If several threads are listed without frames between them, these threads have the same stack.
        """
        frames = self._frames if self._frames is not None and not self._frames else []
        number = self._process if self._process is not None else thread["number"]  # the first thread has the pid
        self._frames = None
        if thread["name"] == _MAIN and number is not None and len(self._stacks) < _MOST_PROCESSES:
            self._frames = frames
            self._stacks[int(number)] = (line, frames)

    def finish(self) -> Iterator[Event]:
        """Yield the event of the only process outside torch.distributed, if at least two other processes wait there."""
        stacks = {pid: (line, frames) for pid, (line, frames) in self._stacks.items() if frames}
        waiting = {pid: frames for pid, (_, frames) in stacks.items() if frames[0][1].endswith(_WAITS)}
        programs = {frames[-1][:2] for frames in waiting.values()}
        elsewhere = [
            pid
            for pid, (_, frames) in stacks.items()
            if pid not in waiting and frames[-1][:2] in programs and all(file != _LOADER for _, file, _ in frames)
        ]
        if len(elsewhere) == 1 and len(waiting) + 1 >= _LEAST:
            line, frames = stacks[elsewhere[0]]
            own = next((each for each in frames if not _is_of_library(each[1])), frames[0])
            facts = {"frame": "{} ({}{})".format(*own), "num_waiting": len(waiting)}
            yield event_of(_ELSEWHERE, line, pid=elsewhere[0], facts=facts, printed=f"{line.text}: {facts['frame']}")
        elif waiting:
            yield from self._in_kernel(waiting)

    def _in_kernel(self, waiting: Collection[int]) -> Iterator[Event]:
        """Yield the event of the only process that is blocked in the kernel and does not wait for other processes."""
        blocked = [pid for pid, (_, state, _) in self._rows.items() if state == "D" and pid not in waiting]
        if len(blocked) != 1:
            return
        line, _, program = self._rows[blocked[0]]
        num_others = sum(other == program for _, _, other in self._rows.values()) - 1
        if num_others + 1 >= _LEAST and program in {self._rows[pid][2] for pid in waiting if pid in self._rows}:
            yield event_of(_IN_KERNEL, line, pid=blocked[0], facts={"num_others": num_others})


FORMAT = PySpy


def _is_of_library(file: str) -> bool:
    """Check whether a source file belongs to Python or torch.

    A path that py-spy prints is relative to the package's folder.
    """
    module = file.partition("/")[0].removesuffix(".py")
    return module in (*stdlib_module_names, "torch", "<frozen importlib._bootstrap>") or "/lib/python" in file
