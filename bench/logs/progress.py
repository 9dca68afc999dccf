"""Read the progress of a job: steps of training, reports of success, and restarts by a launcher.

Such lines cause no event. They show whether the job continued after a message: for example, whether a rank printed
further steps.

A log may have millions of such lines. Only the lines around messages are read one by one. From other pieces of the
text, at most some lines at the beginning and the end are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.logs import job_reports
from bench.logs.job_reports import Restarts, Trials
from bench.logs.line_labels import LONGEST_LINE, rank_label, stream_of
from bench.logs.readers import _lines
from bench.logs.step_lines import BARE_BAR, UNNUMBERED, StepLines, StepUnit, by_clarity, is_simulated, unit_of
from bench.logs.step_series import StepSeries

_SAMPLE = 1 << 11  # characters at the begin and at the end of a piece that is not read completely
_BETWEEN_SAMPLES = 1 << 20  # characters
_AFTER_EVENT, _ALTOGETHER = 1 << 18, 1 << 24  # characters that are read line by line, after one message and in one file
# Lines about an error that no code of the program caught. A thread's or a worker's exception ends it, too.
UNCAUGHT = (" in <module>", "terminate called", "Error executing job", "terminated with the following error",
            "_bootstrap_inner", "ray::", "--> FOAM FATAL", "Fatal error in P", "Fatal error in internal_")  # fmt: skip
_LONGEST_STACK = 200  # lines
_MOST_STREAMS, _MOST_PROGRAMS = 4_096, 1_024  # so that a damaged file fills no memory
_MOST_COMPARED = 16  # processes with the most steps; all ranks of a job make the same steps
_MOST_AT_END = 40  # lines after the last step of a log that ends there
_MANY_LATER = 20  # with so many steps after it, a report of success was about another part of the job
# A line of an error may also name the step. A summary of W&B names the last step.
_ERRORS = ("error", "exception", "traceback", "fail", "cancel", "killed", "abort", "time out", "timeout", "timed out",
           "slurm", "srun:", "nccl info", "nccl warn", "worknccl", '  file "', "wandb:", "retrying")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Later:
    """The progress that a file shows after one of its messages.

    Steps of one kind are counted by lines. A line counts only if its number exceeds all earlier numbers since the
    message. If several ranks print the same step, or if a rank writes its buffer late, each step therefore counts once.

    `own_steps`: the steps after the message by the process that printed the message. A process is known by the label of
        its lines. Lines without a label count as lines of one process. Losses without a step number also count.
    `file_steps`: the steps after the message in lines without a label.
    `all_steps`: the steps after the message by the process with the most steps. Losses without a step number do not
        count.
    `rise`: how many steps the numbers of `all_steps` span.
    `is_labelled`: whether `own_steps` are known to be of the same process.
    `has_success`: whether the program or its launcher reported success after the message and after the last restart. A
        report of a labelled process counts only for the messages of this process.
    `after_success`: whether success was reported before the message, after steps, and without a step between the report
        and the message. A report of rank 0 counts for all messages, because the end of rank 0 breaks the connections of
        the other ranks.
    `num_restarts`: how often a launcher restarted the job before the message.
    `restarts_left`: how often a launcher restarted the job after the message.
    `is_uncaught`: whether the message ends the stack of a whole program. After such an end, delayed lines of the
        program may follow. The value is False if another solver of OpenFOAM begins after the message, because the later
        steps are then from this solver.
    `steps_since_restart`: the steps of all processes after the last restart.
    `has_verdict`: whether nccl-tests reported correct results after the message. This report is the end of its test.
    """

    own_steps: int = 0
    file_steps: int = 0
    all_steps: int = 0
    rise: int = 0
    is_labelled: bool = False
    has_success: bool = False
    after_success: bool = False
    num_restarts: int = 0
    restarts_left: int = 0
    steps_since_restart: int = 0
    is_uncaught: bool = False
    has_verdict: bool = False


NOTHING_LATER = Later()


@dataclass(frozen=True, slots=True)
class Course:
    """The progress of the job of one file, as far as the lines show it.

    `first_step`, `last_step`: the first and the highest number of the steps; None if no steps are known.
    `last_step_line`: the line of the last step.
    `success_line`: the line of the last report of success, unless many steps or a restart follow it; None without one.
    `num_lines`: the number of lines of the file.
    """

    unit: StepUnit = StepUnit.STEPS
    first_step: float | None = None
    last_step: float | None = None
    last_step_line: int = 0
    success_line: int | None = None
    num_lines: int = 0

    def __bool__(self) -> bool:
        return self.last_step is not None or self.success_line is not None

    def facts(self) -> dict[str, Any]:
        """Return the facts of `COURSE` (logs/messages.py). If neither a step nor a success is known, return {}."""
        if not self:
            return {}
        facts: dict[str, Any] = {"has_course": True, "success_line": self.success_line, "num_lines": self.num_lines}
        if self.first_step is None or self.last_step is None:
            return {**facts, "has_success_only": True}
        is_at_end = self.num_lines - self.last_step_line <= _MOST_AT_END
        return {
            **facts,
            f"has_{self.unit}": True,
            "first_step": _short(self.first_step),
            "last_step": _short(self.last_step),
            "last_step_line": self.last_step_line,
            "has_both": self.success_line is not None,
            "has_steps_only": self.success_line is None and is_at_end,
            "has_more": self.success_line is None and not is_at_end,
        }


NO_COURSE = Course()


class ProgressReader:
    """Reads the lines of one file that show the progress of the job."""

    def __init__(self) -> None:
        """Begin without any line."""
        self.num_marks = 0
        self.num_messages = 0
        self._part = 0
        self._series: dict[str, StepSeries] = {}  # the kind of step -> the steps of all processes
        self._own_series: dict[str | None, dict[str, StepSeries]] = {}  # a process -> the kind of step -> its steps
        self._busiest: list[tuple[str | None, dict[str, StepSeries]]] | None = None  # those with the most steps
        self._successes: dict[str | None, list[int]] = {}  # a process -> the lines of its reports
        self._restarts, self._trials = Restarts(), Trials()
        self._step_lines = StepLines()
        self._programs: dict[str | None, int] = {}  # a process -> the last line about its end by an exception
        self._last_end = 0
        self._uncaught: set[int] = set()
        self._after_event, self._altogether = _AFTER_EVENT, _ALTOGETHER
        self._not_sampled = 0
        self._execs: list[tuple[int, str]] = []  # (line, program) for each program of OpenFOAM that began
        self._verdict = 0  # the last line with which nccl-tests reports correct results

    @property
    def num_restarts(self) -> int:
        """How often a launcher restarted the job in the lines so far."""
        return len(self._restarts.lines)

    def wants(self, num_chars: int) -> bool:
        """Return whether the next characters must be read line by line. If not, samples of them are enough."""
        wanted = self._after_event > 0 and self._altogether > 0
        self._after_event -= num_chars
        self._altogether -= num_chars if wanted else 0
        return wanted

    def samples(self, text: str, is_last: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (number of line ends before it, line) for some complete lines at both ends of a text.

        If too few characters have passed since the last samples, yield nothing. The last text always gives samples.
        """
        self._not_sampled += len(text)
        if self._not_sampled < _BETWEEN_SAMPLES and not is_last:
            return
        self._not_sampled = 0
        if len(text) <= 2 * _SAMPLE:
            yield from enumerate(text.split("\n")[:-1])
            return
        yield from enumerate(text[:_SAMPLE].split("\n")[:-1])
        num_before = text.count("\n", 0, len(text) - _SAMPLE)
        yield from enumerate(text[-_SAMPLE:].split("\n")[1:-1], start=num_before + 1)

    def read_end(self, number: int, raw: str) -> None:
        """Read a line that contains a text of `UNCAUGHT`."""
        self._last_end = number
        stream = stream_of(raw, rank_label(raw))
        if stream in self._programs or len(self._programs) < _MOST_STREAMS:
            self._programs[stream] = number

    def event_found(self, number: int, stream: str | None) -> None:
        """Read the lines after a new message one by one, and keep their steps.

        `number`: the line of the message.
        `stream`: the process that printed the message.
        """
        if number - self._programs.pop(stream, -_LONGEST_STACK) < _LONGEST_STACK:
            self._uncaught.add(number)
        self._after_event = _AFTER_EVENT
        self.num_messages += 1
        self.begin_part()

    def begin_part(self) -> None:
        """Begin a new part of the file. The first steps of the part are kept."""
        self._part += 1

    def read(self, number: int, raw: str, label: int | None) -> None:
        """Read one line.

        `label`: the rank that a launcher printed before the line.
        """
        begin, num_states = raw[:LONGEST_LINE], 1
        if "\r" in raw:  # a line that was written over again and again: its first and its last state
            self._read(number, begin.lstrip("\r").partition("\r")[0], label, 1)
            begin, num_states = raw[-LONGEST_LINE:].rstrip("\r").rpartition("\r")[2], raw.count("\r")
        self._read(number, begin, label, num_states)

    def _read(self, number: int, raw: str, label: int | None, num_states: int) -> None:
        raw = _lines.without_colours(raw)
        text = raw.lower()
        if self._trials.read(number, text):
            # only now is the restored trial a restart of the job: others might have failed without being restored
            if restored := self._trials.take_restored():
                self._restarts.insert(restored)
            self._succeeded(number, None)
        if text.startswith("exec   : ") and len(self._execs) < _MOST_PROGRAMS:
            self._execs.append((number, text.split()[2].rpartition("/")[2] if len(text.split()) > 2 else ""))
        num_restarts = self.num_restarts
        if self._restarts.read(number, text):
            self._part += self.num_restarts - num_restarts
            return
        if any(word in text for word in _ERRORS):
            return
        steps = self._step_lines.steps(text, number)
        stream = stream_of(raw, rank_label(raw) if label is None else label) if steps else None
        for kind, step, total in steps:
            self._add(number, stream, kind, step, total, num_states)
        is_about_epoch = any(step.kind == "epoch" for step in steps) and "train_runtime" not in text
        if not is_about_epoch and job_reports.is_success(text):
            self._verdict = number if job_reports.VERDICT in text else self._verdict
            self._succeeded(number, stream_of(raw, rank_label(raw) if label is None else label))

    def _succeeded(self, number: int, stream: str | None) -> None:
        """Store the line of a report of success. `stream`: the process that printed the report."""
        is_kept = stream is None or stream in self._successes or len(self._successes) < _MOST_STREAMS
        if is_kept and job_reports.append(self._successes.setdefault(stream, []), number):
            self.begin_part()

    def _add(self, number: int, stream: str | None, kind: str, step: float, total: int, num_states: int) -> None:
        self.num_marks += 1
        self._busiest = None
        if stream not in self._own_series and len(self._own_series) < _MOST_STREAMS:
            self._own_series[stream] = {}
        for series in (self._series, self._own_series.get(stream, {})):
            if kind not in series:
                series[kind] = StepSeries(must_rise=is_simulated(kind))
            series[kind].add(number, step, total, num_states, self._part)

    def later(self, line: int, stream: str | None, rank: int | None) -> Later:
        """Return what the file shows after a message.

        `stream`: what the message's line says about its process (`stream_of`).
        `rank`: the rank that the message names.
        """
        own = str(rank) if stream is None and rank is not None else stream
        files = self._own_series.get(None, {})
        last = self._restarts.last
        before = bisect_left(self._restarts.lines, line)
        reports = sorted(report for name in {own, None} for report in self._successes.get(name, ()))
        at = max(
            (done for name in {own, None, "0"} for done in self._successes.get(name, ()) if done < line), default=0
        )
        all_steps, rise = self._all_steps(line, own)
        return Later(
            own_steps=_most_after(self._own_series.get(own, {}), line)[0],
            file_steps=max((steps.after(line)[0] for steps in _known(files, line, own, None)), default=0),
            all_steps=all_steps,
            rise=max(all_steps, int(rise)),
            is_labelled=own is not None,
            has_success=bool(reports) and reports[-1] > max(line, last, self._last_end),
            after_success=bool(at) and self._any_between(0, at) and not self._any_between(at, line),
            num_restarts=before,
            restarts_left=self.num_restarts - before,
            is_uncaught=line in self._uncaught and not self._begins_solver(line),
            steps_since_restart=_most_after(self._series, last)[0],
            has_verdict=self._verdict > line,
        )

    def _begins_solver(self, line: int) -> bool:
        """Whether an OpenFOAM solver begins after a message, and differs from the program before the message."""
        at = bisect_left(self._execs, (line, ""))
        before = self._execs[at - 1][1] if at else ""
        return any(before and name != before and name.endswith("foam") for _, name in self._execs[at:])

    def _all_steps(self, line: int, own: str | None) -> tuple[int, float]:
        """Return how many numbered steps the process with the most such steps printed after a line, and their rise.

        `own`: the process that printed the line.
        """
        if self._busiest is None:
            busiest = sorted(self._own_series.items(), key=lambda item: -sum(map(len, item[1].values())))
            self._busiest = busiest[:_MOST_COMPARED]
        found = (
            steps.after(line)
            for stream, series in self._busiest
            for steps in _known({kind: series[kind] for kind in series if kind not in UNNUMBERED}, line, own, stream)
        )
        return max(found, default=(0, 0))

    def course(self, num_lines: int) -> Course:
        """Return the progress of the job. `num_lines`: the number of lines of the file."""
        success = max((lines[-1] for lines in self._successes.values()), default=0)
        if success <= self._restarts.last or _most_after(self._series, success)[0] >= _MANY_LATER:
            success = 0
        course = Course(success_line=success or None, num_lines=num_lines)
        kinds = [kind for kind in self._series if kind not in UNNUMBERED]
        kinds.sort(key=lambda kind: (-self._series[kind].after(0)[0], *by_clarity(kind)))
        for kind in kinds:
            first, last, line = self._series[kind].span
            if last > first:
                return replace(course, unit=unit_of(kind), first_step=first, last_step=last, last_step_line=line)
        return course

    def _any_between(self, line: int, other: int) -> bool:
        return any(series.any_between(line, other) for series in self._series.values())


def _short(number: float) -> float:
    return int(number) if number == int(number) else number


def _known(series: Mapping[str, StepSeries], line: int, own: str | None, stream: str | None) -> Iterator[StepSeries]:
    """Yield the steps that show the progress of a job after a message of one process.

    A bar without a description may show the work of a single process. If another process than `own` printed such a bar,
    it counts only if a bar with the same total came before the message.

    `own`: the process that printed the message. `stream`: the process that printed the steps.
    """
    for kind, steps in series.items():
        if kind != BARE_BAR or own in (None, stream) or not steps.after(line)[0] or steps.is_continued(line):
            yield steps


def _most_after(series: dict[str, StepSeries], line: int) -> tuple[int, float]:
    return max((steps.after(line) for steps in series.values()), default=(0, 0))
