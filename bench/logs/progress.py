"""Read how a job went on: steps of training, reports of success, and restarts by a launcher.

Such lines cause no event. They show what became of the job after a message: a rank that prints further steps has
survived the message. Programs print steps in many forms, so one pattern covers the common ones: tqdm's bars, `iteration
120/ 5000`, `step=120`, `{'loss': 2.1, 'epoch': 0.2}`, `Epoch 3`.

A log may have millions of such lines. Only the lines around messages are read one by one. Of the other pieces of a
text, only the begin and the end are read.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

from bench.logs.readers import _lines

_SAMPLE = 1 << 11  # characters at the begin and at the end of a piece that is not read completely
_BETWEEN_SAMPLES = 1 << 20  # characters
_AFTER_EVENT, _ALTOGETHER = 1 << 18, 1 << 24  # characters that are read line by line, after one message and in one file
_LONGEST_LINE, _LONGEST_LABEL = 400, 200  # characters; steps and labels stand at the begin of a line
# Lines about an error that no code of the program caught. A thread's or a worker's exception ends it, too.
UNCAUGHT = (" in <module>", "terminate called", "Error executing job", "terminated with the following error",
            "_bootstrap_inner", "ray::", "--> FOAM FATAL", "Fatal error in P", "Fatal error in internal_")  # fmt: skip
_LONGEST_STACK = 200  # lines
_MOST_MARKS = 50  # steps of one kind that are kept in one part of a file; later ones of the part become one
_MOST_STREAMS, _MOST_REPORTS = 4_096, 1_024  # so that a damaged file fills no memory
_MOST_COMPARED = 16  # processes with the most steps; all ranks of a job make the same steps
_MOST = 1 << 62

# A word of a line in lower case -> the pattern of a step. Each pattern begins with plain text, which is found quickly.
# `eval_steps=500` is a setting.
_NUMBER = r"['\"]?[ \t:=\[#]{1,12}['\"]?(\d{1,12})\b(?![.\w-])"
# `dataset iteration 5 of 40`, and the iterations of a linear solver, which OpenFOAM prints in every step
_NO_STEP = r"(?<!dataset iter)(?<!data iter)(?<!loader iter)(?<!no iter)"
_COUNTERS = (
    ("iter", re.compile(rf"iter(?<![a-z]iter){_NO_STEP}(?:ation)?(?:(?<!_iter)s)?{_NUMBER}")),
    ("step", re.compile(rf"step(?<![a-z]step)(?:(?<!_step)s)?{_NUMBER}")),
    ("num_updates", re.compile(rf"num_updates{_NUMBER}")),
)
_BAR = re.compile(r"(?<![\d/.])(\d{1,12})/(\d{1,12})(?: \[|\]| ━| \(\d)")  # tqdm, Keras, `Epoch: [3][511/1736]`
# Programs that simulate: a text in lower case, and the number that rises.
_SIMULATIONS = (
    ("time = ", "time", re.compile(r"^time = (\d{1,12}(?:\.\d{1,12})?(?:e[-+]\d{1,3})?)s?\s*$")),  # OpenFOAM
    ("prog= ", "percent", re.compile(r"\bprog= {1,6}(\d{1,3}\.\d{1,6})%")),  # HPL of NVIDIA
    ("column=", "column", re.compile(r"\bcolumn=(\d{1,12}) fraction=")),  # HPL
)
_CLOCK = re.compile(  # WRF
    r"timing for main: time (\d{1,6})-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d) on domain {1,6}(\d{1,3}):"
)
# The heads of tables of LAMMPS and GROMACS. The first column of each row below is the step.
_TABLE_HEAD = re.compile(r"^\s*step(?:\s+(?![\d.])[a-z][\w./()\[\]-]{0,30}){1,40}\s*$")
_EPOCH = re.compile(r"epoch['\"]?[ \t:=\[#]{0,4}(\d{1,6}(?:\.\d{1,9})?)")
_WITHOUT_NUMBER = (
    ("loss", re.compile(r"loss(?<![a-z]loss)['\"]?[ \t:=]{1,4}['\"]?-?(?:\d|nan)")),
    ("sav", re.compile(r"sav(?:ed|ing) (?:the |final |model |a )*(?:checkpoint|model|weights)\b")),
)
# A line of an error may also name the step. A summary of W&B names the last step.
_ERRORS = ("error", "exception", "traceback", "fail", "cancel", "killed", "abort", "time out", "timeout", "timed out",
           "slurm", "srun:", "nccl info", "nccl warn", "worknccl", '  file "', "wandb:", "retrying")  # fmt: skip
_TRAINS = re.compile(r"(?<![a-z])(?:train|epoch|step|iter|batch)[a-z]*[^a-z]*$")  # before the numbers of a bar
_LETTER = re.compile(r"[a-z]")
_DONE_WORDS = ("training time", "finish", "complet", "done", "succe", "passed", "stopped", "train_runtime",
               "out of bounds", "finalis", "total wall time")  # fmt: skip
_TRAINING = r"(?:pre-?|fine-?)?(?:train(?:ing)?|tuning)"
_FINISHED = re.compile(  # unless `_PARTIAL`
    rf"\b{_TRAINING}(?: (?:is|was|has|been|loop|run|now))*[ :,-]+(?:finished|completed?|done|succeeded)\b"
    rf"|\b(?:finished|completed|done(?: with)?|end of) (?:the |all )?{_TRAINING}\b"
    r"|\b(?:job|run|experiment|workflow|application|program|worker group)\b[^.;]{0,40}"
    r"\b(?:succeeded|successfully (?:finished|completed)|(?:finished|completed) successfully)\b"
)
_PARTIAL = re.compile(
    r"\b(?:not|until|when|if|once|to be|will|can|must|may|stage|warm-?up|epoch|step|iteration|data|setup|fold)\b|n't\b"
)
_VERDICT = "# out of bounds values : 0 ok"
_SUCCEEDED = re.compile(
    r"\btotal training time:? \d|\bsav(?:ing|ed) (?:the )?final .{0,60}\bdone\b|\bexits successfully\b"
    r"|`trainer\.fit` stopped: `max_|['\"]train_runtime['\"]: ['\"]?\d|^\s*\d+\s.*\bcompleted\s+0:0\b"
    r"|\bsuccess complete wrf\b|^\s*finished mdrun on rank\b|^finalising parallel run\s*$"
    r"|^total wall time: \d"
    r"|\b(?:status|phase)['\"]?:? +['\"]?succe(?:eded|ss)\b|=+ \d+ passed\b|" + _VERDICT
)
_RESTART_WORDS = ("restart", "reque", "retry")
_RESTART = re.compile(
    r"will restart worker group|\brestarting (?:the |all |training )*(?:worker group|workers|training|job|pods?)\b"
    r"|\brestarting from\b|\bjob \S{1,40} (?:has been |was )?requeued\b|\bneed to restart the pod\b"
    r"|\breque(?:ue)?(?:d|ing) (?:slurm )?job\b"
    r"|\bretrying task\b|\bfailuredecision\.retry\b|\brestarting\b.{0,40}\battempt\b"
)
_NEXT_ATTEMPT = "attempting to start training worker group"  # printed by Ray
_ALL_TRIALS = re.compile(r"trial status: \d{1,6} terminated\s*$")
_RESTORED = re.compile(
    r"\b(?:restoring|attempting to restore) trial (?:state |\S{1,100} )?from (?:the )?(?:last |latest )?checkpoint\b"
)
_TRIALS_HEAD = re.compile(r"│ trial name +status ")  # of the table that Ray Tune prints
_ADVICE = re.compile(
    r"\b(?:consider|try|please|should|recommend\w*|if|when|before|by|without)\b.{0,60}\bre(?:start|que)"
)
_TORCH_LABEL = re.compile(r"\[(?:default|rank)(\d{1,6})\]:")  # printed by torch and torchrun --tee
_MPIRUN_LABEL = re.compile(r"^\s*\[(?:1,)?(\d{1,6})\]\s?<std")  # printed by Open MPI --tag-output, and by horovodrun
_STREAM = re.compile(
    r"\s*(?:\((?P<a>[^()]{0,100}\b(?:pid|rank)=\d{1,10})[^()]{0,60}\)?"  # Ray, vLLM
    r"|\[rank: (?P<b>\d{1,6})\]"  # Lightning
    r"|\[(?P<d>(?=[A-Za-z][\w.-]{0,90}\d[\w-]{0,60}:\d|(?:gpu|rank)-?\d|" + _lines.HOST_NAME + r")"
    r"(?!step|epoch|iter|batch|stage)[A-Za-z][\w.-]{0,60}\d[\w-]{0,60}(?:\.(?!py:)[\w-]{1,60}){0,4}"
    r"(?::\d{1,4})?)\]:?\s"  # scripts that start a process on each host
    r"|(?!step|epoch|iter|batch)(?P<c>[A-Za-z][\w.-]{0,60}\d[\w.-]{0,60}): )",  # pdsh, pods
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Later:
    """What a file shows after one of its messages.

    The steps of one kind are counted by lines. A line counts if its number exceeds all numbers since the message, so
    that ranks that print the same step, and a buffer that a rank writes late, count once.

    `own_steps`: the steps after it by the process that printed it. A process is known by the label of its lines. Lines
        without a label count as lines of one process. Losses without a number count, too.
    `file_steps`: the steps after it in lines without a label.
    `all_steps`: the most steps after it by any process of the file. Losses without a number do not count.
    `rise`: how many steps the numbers of `all_steps` span.
    `is_labelled`: whether `own_steps` are known to be of the same process.
    `has_success`: whether the program or its launcher reported success after it and after the last restart. A report
        of a labelled process counts for the messages of this process only.
    `after_success`: whether success was reported before it, after steps, and without a step between the report and the
        message. A report of rank 0 counts for all messages: its end breaks the connections of the others.
    `num_restarts`: how often a launcher restarted the job before it.
    `restarts_left`: how often a launcher restarted the job after it.
    `is_uncaught`: whether the message ends the stack of a whole program. If a program ends so, lines that it had not
        yet written may follow. False if another solver of OpenFOAM begins after it, whose steps are no such lines.
    `steps_since_restart`: the steps of all processes after the last restart.
    `has_verdict`: whether nccl-tests reported correct results after it, which is the end of its test.
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
_MOST_AT_END = 40  # lines after the last step of a log that ends there


class StepUnit(StrEnum):
    """What rises as a job goes on."""

    STEPS = "steps"
    EPOCHS = "epochs"
    TIME = "time"  # of a simulation, in the program's unit
    CLOCK = "clock"  # of a simulation, in seconds
    PERCENT = "percent"


@dataclass(frozen=True, slots=True)
class Course:
    """How the job of one file went on, as far as its lines show it.

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
        """Return the facts of `COURSE` (logs/messages.py). Without steps and success, there are none."""
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


class _Mark(NamedTuple):
    """A line that names a step.

    `step`: the number of the step.
    `total`: the last number of the bar, or 0 if the line is no bar.
    `num_lines`: the number of lines that this mark counts for: each state of a line that was written over, and the
        lines that were left out before this one.
    """

    line: int
    step: float
    total: int
    num_lines: int


class _Series:
    """The steps of one kind: lines with their numbers.

    All lines are kept of the first steps in one part of a file only. `part`: how many messages, restarts and reports of
    success there are before a line.

    `must_rise`: whether only steps count that exceed all steps before a message, too. A tool that runs after a failed
        simulation prints the same times again.
    """

    def __init__(self, must_rise: bool = False) -> None:
        """Begin without a step."""
        self._must_rise = must_rise
        self._tops: list[float] = []  # for each mark: the highest step up to it
        self._first_of: dict[int, int] = {}  # the total of a bar -> the first mark with this total
        self._marks: list[_Mark] = []
        self._left, self._part, self._highest = _MOST_MARKS, 0, -1.0
        self._after: list[tuple[int, float]] = []  # for each mark: the count of lines from it on, and their rise

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, line: int, step: float, total: int, num_states: int, part: int) -> None:
        """Add a step. `num_states`: how often the line was written since the last step."""
        self._after, self._tops, self._first_of = [], [], {}
        if part != self._part:
            self._left, self._part, self._highest = _MOST_MARKS, part, -1.0
        _, last, last_total, num_lines = self._marks[-1] if self._marks else _Mark(0, step, total, 0)
        weight = max(1, min(num_states, int(step - last))) if total == last_total else 1
        self._left -= 1
        if self._left >= 0 or not self._marks:
            self._marks.append(_Mark(line, step, total, weight))
        elif total == last_total and step > self._highest:
            self._marks[-1] = _Mark(line, step, total, num_lines + weight)
        self._highest = max(self._highest, step)

    def after(self, line: int) -> tuple[int, float]:
        """Return how many lines after a line have a number that exceeds all numbers since, and how far they rise."""
        begin = self._first_after(line)
        if begin == len(self._marks):
            return 0, 0
        self._after = self._after or self._counted()
        if self._must_rise and begin:
            self._tops = self._tops or list(accumulate((mark.step for mark in self._marks), max))
            begin = bisect_right(self._tops, self._tops[begin - 1], lo=begin)
            if begin == len(self._marks):
                return 0, 0
        return self._after[begin]

    def _counted(self) -> list[tuple[int, float]]:
        """Count from the last mark to the first. Where the total of a bar changes, another count begins."""
        found: list[tuple[int, float]] = [(0, 0)] * len(self._marks)
        counts, tops = [0] * len(self._marks), [0.0] * len(self._marks)
        higher: list[int] = []  # the places of the marks that exceed all marks before them
        best: tuple[int, float] = (0, 0)
        for at in reversed(range(len(self._marks))):
            _, step, total, weight = self._marks[at]
            if at + 1 < len(self._marks) and self._marks[at + 1].total != total:
                higher, best = [], found[at + 1]
            while higher and self._marks[higher[-1]].step <= step:
                higher.pop()
            counts[at] = weight + (counts[higher[-1]] if higher else 0)
            tops[at] = tops[higher[-1]] if higher else step
            higher.append(at)
            found[at] = max(best, (counts[at], tops[at] - step + 1))
        return found

    @property
    def span(self) -> tuple[float, float, int]:
        """The first and the highest step, and the line of the highest one."""
        highest = max(self._marks, key=lambda mark: (mark.step, mark.line))
        return self._marks[0].step, highest.step, highest.line

    def is_continued(self, line: int) -> bool:
        """Whether the first bar after a line has the same number of steps as a bar before the line."""
        begin = self._first_after(line)
        if not self._first_of:
            for at, mark in enumerate(self._marks):
                self._first_of.setdefault(mark.total, at)
        return self._first_of[self._marks[begin].total] < begin

    def any_between(self, line: int, other: int) -> bool:
        """Check whether a step is known after a line and before another."""
        return self._first_after(line) < bisect_left(self._marks, (other, -1.0, 0, 0))

    def _first_after(self, line: int) -> int:
        return bisect_right(self._marks, (line, float(_MOST), _MOST, _MOST))


class ProgressReader:
    """Reads the lines of one file that show how the job went on."""

    def __init__(self) -> None:
        """Begin without any line."""
        self.num_marks = 0
        self.num_messages = 0
        self._part = 0
        self._series: dict[str, _Series] = {}  # the kind of step -> the steps of all processes
        self._own_series: dict[str | None, dict[str, _Series]] = {}  # a process -> the kind of step -> its steps
        self._busiest: list[tuple[str | None, dict[str, _Series]]] | None = None  # those with the most steps
        self._successes: dict[str | None, list[int]] = {}  # a process -> the lines of its reports
        self._restarts: list[int] = []
        self._retry = 0  # the line of Ray's decision to start the next attempt
        self._programs: dict[str | None, int] = {}  # a process -> the last line about its end by an exception
        self._last_end = 0
        self._uncaught: set[int] = set()
        self._after_event, self._altogether = _AFTER_EVENT, _ALTOGETHER
        self._not_sampled = 0
        self._execs: list[tuple[int, str]] = []  # (line, program) for each program of OpenFOAM that began
        self._verdict = 0  # the last line with which nccl-tests reports correct results
        self._restored = 0  # the last line about a trial that Ray Tune restores
        self._trials: bool | None = None  # whether all rows of Ray Tune's table of trials so far are successful
        self._columns: re.Pattern[str] | None = None  # the form of a row of the last table of steps

    @property
    def num_restarts(self) -> int:
        """How often a launcher restarted the job in the lines so far."""
        return len(self._restarts)

    def wants(self, num_chars: int) -> bool:
        """Return whether the next characters are read line by line; if not, only samples of them are."""
        wanted = self._after_event > 0 and self._altogether > 0
        self._after_event -= num_chars
        self._altogether -= num_chars if wanted else 0
        return wanted

    def samples(self, text: str, is_last: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (number of line ends before it, line) for some complete lines at the begin and at the end of a text.

        Yield nothing if samples were taken shortly before, unless the text is the last one.
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
        """Read the lines after a message that was just found one by one, and keep their steps.

        `number`: the line of the message.
        `stream`: the process that printed it.
        """
        if number - self._programs.pop(stream, -_LONGEST_STACK) < _LONGEST_STACK:
            self._uncaught.add(number)
        self._after_event = _AFTER_EVENT
        self.num_messages += 1
        self.begin_part()

    def begin_part(self) -> None:
        """Keep the first of the next steps, too."""
        self._part += 1

    def read(self, number: int, raw: str, label: int | None) -> None:
        """Read one line.

        `label`: the rank that a launcher printed before the line.
        """
        begin, num_states = raw[:_LONGEST_LINE], 1
        if "\r" in raw:  # a line that was written over again and again: its first and its last state
            self._read(number, begin.lstrip("\r").partition("\r")[0], label, 1)
            begin, num_states = raw[-_LONGEST_LINE:].rstrip("\r").rpartition("\r")[2], raw.count("\r")
        self._read(number, begin, label, num_states)

    def _read(self, number: int, raw: str, label: int | None, num_states: int) -> None:
        raw = _lines.without_colours(raw)
        text = raw.lower()
        self._read_trials(number, text)
        if text.startswith("exec   : ") and len(self._execs) < _MOST_REPORTS:
            self._execs.append((number, text.split()[2].rpartition("/")[2] if len(text.split()) > 2 else ""))
        if any(word in text for word in _RESTART_WORDS) and _RESTART.search(text) and not _ADVICE.search(text):
            self._append(self._restarts, number)
            self._retry = number if "failuredecision.retry" in text else 0
            return
        if self._retry and _NEXT_ATTEMPT in text:
            # the lines before it are the rest of the message about the attempt that failed
            if number - self._retry < _LONGEST_STACK:
                self._restarts[-1] = number
            self._retry = 0
        if any(word in text for word in _ERRORS):
            return
        steps = list(_steps_in(text, number)) or list(self._simulated(text))
        if steps:
            stream = stream_of(raw, rank_label(raw) if label is None else label)
            for kind, step, total in steps:
                self._add(number, stream, kind, step, total, num_states)
        is_about_epoch = any(kind == "epoch" for kind, *_ in steps) and "train_runtime" not in text
        if not is_about_epoch and any(word in text for word in _DONE_WORDS) and _is_success(text):
            self._verdict = number if _VERDICT in text else self._verdict
            stream = stream_of(raw, rank_label(raw) if label is None else label)
            if stream in self._successes or len(self._successes) < _MOST_STREAMS:
                self._append(self._successes.setdefault(stream, []), number)

    def _read_trials(self, number: int, text: str) -> None:
        """Read what Ray Tune prints about its trials: a trial that it restores, and the report at the end.

        Only if all trials succeeded is the restored trial a restart of the job: others may have failed, and not have
        been restored.
        """
        if "restor" in text and _RESTORED.search(text):
            self._restored = number
        is_report = self._trials is not None or text.startswith(("│ ", "trial status"))
        if not is_report or not self._is_end_of_trials(text):
            return
        self._append(self._successes.setdefault(None, []), number)
        if self._restored and len(self._restarts) < _MOST_REPORTS:
            insort(self._restarts, self._restored)
        self._restored = 0

    def _is_end_of_trials(self, text: str) -> bool:
        """Read a line of Ray Tune's report about its trials. Return whether it shows that all trials succeeded."""
        if _ALL_TRIALS.match(text):
            return True
        if _TRIALS_HEAD.match(text):
            self._trials = False
        elif self._trials is not None and text.startswith("│ "):
            self._trials = True if " terminated " in text else None
        elif self._trials is not None and not text.startswith("├"):
            is_success, self._trials = self._trials, None
            return is_success
        return False

    def _simulated(self, text: str) -> Iterator[tuple[str, float, int]]:
        """Yield (kind, number, total) for the step that a program printed without the word, such as in a table."""
        for word, kind, pattern in _SIMULATIONS:
            match = pattern.search(text) if word in text else None
            if match is not None:
                yield kind, float(match[1]), 0
                return
        if "timing for main" in text and (clock := _CLOCK.search(text)) is not None:
            year, month, day, hours, minutes, seconds, domain = map(int, clock.groups())
            # 31 days in each month: the steps near the end of a month are fewer than the difference
            days = (year * 12 + month) * 31 + day
            yield f"clock {domain}", ((days * 24 + hours) * 60 + minutes) * 60 + seconds, 0
        elif text.lstrip()[:4] == "step" and _TABLE_HEAD.match(text):
            num_others = len(text.split()) - 1
            self._columns = re.compile(rf"^\s*(\d{{1,12}})(?:\s+-?\d[\d.e+-]{{0,30}}){{{num_others}}}\s*$")
        elif self._columns is not None and (row := self._columns.match(text)) is not None:
            yield "row", int(row[1]), 0

    def _append(self, lines: list[int], number: int) -> None:
        """Add a line. Of too many lines, keep the first ones and the last one."""
        if len(lines) < _MOST_REPORTS:
            lines.append(number)
            self.begin_part()
        else:
            lines[-1] = number

    def _add(self, number: int, stream: str | None, kind: str, step: float, total: int, num_states: int) -> None:
        self.num_marks += 1
        self._busiest = None
        if stream not in self._own_series and len(self._own_series) < _MOST_STREAMS:
            self._own_series[stream] = {}
        for series in (self._series, self._own_series.get(stream, {})):
            if kind not in series:
                series[kind] = _Series(must_rise=kind.partition(" ")[0] in _OF_SIMULATIONS)
            series[kind].add(number, step, total, num_states, self._part)

    def later(self, line: int, stream: str | None, rank: int | None) -> Later:
        """Return what the file shows after a message.

        `stream`: what the message's line says about its process (`stream_of`).
        `rank`: the rank that the message names.
        """
        own = str(rank) if stream is None and rank is not None else stream
        files = self._own_series.get(None, {})
        last = self._restarts[-1] if self._restarts else 0
        before = bisect_left(self._restarts, line)
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
            restarts_left=len(self._restarts) - before,
            is_uncaught=line in self._uncaught and not self._begins_solver(line),
            steps_since_restart=_most_after(self._series, last)[0],
            has_verdict=self._verdict > line,
        )

    def _begins_solver(self, line: int) -> bool:
        """Whether, after a message, a solver of OpenFOAM begins that is another program than the one before it."""
        at = bisect_left(self._execs, (line, ""))
        before = self._execs[at - 1][1] if at else ""
        return any(before and name != before and name.endswith("foam") for _, name in self._execs[at:])

    def _all_steps(self, line: int, own: str | None) -> tuple[int, float]:
        """Return the most steps with a number after a line by one process, and their rise.

        `own`: the process that printed the line.
        """
        if self._busiest is None:
            busiest = sorted(self._own_series.items(), key=lambda item: -sum(map(len, item[1].values())))
            self._busiest = busiest[:_MOST_COMPARED]
        found = (
            steps.after(line)
            for stream, series in self._busiest
            for steps in _known({kind: series[kind] for kind in series if kind not in _UNNUMBERED}, line, own, stream)
        )
        return max(found, default=(0, 0))

    def course(self, num_lines: int) -> Course:
        """Return how the job went on. `num_lines`: the number of lines of the file."""
        last_restart = self._restarts[-1] if self._restarts else 0
        success = max((lines[-1] for lines in self._successes.values()), default=0)
        if success <= last_restart or _most_after(self._series, success)[0] >= _MANY_LATER:
            success = 0
        course = Course(success_line=success or None, num_lines=num_lines)
        kinds = [kind for kind in self._series if kind not in _UNNUMBERED]
        kinds.sort(key=lambda kind: (-self._series[kind].after(0)[0], *_by_clarity(kind)))
        for kind in kinds:
            first, last, line = self._series[kind].span
            if last > first:
                unit = _UNITS.get(kind.partition(" ")[0], StepUnit.STEPS)
                return replace(course, unit=unit, first_step=first, last_step=last, last_step_line=line)
        return course

    def _any_between(self, line: int, other: int) -> bool:
        return any(series.any_between(line, other) for series in self._series.values())


_OF_SIMULATIONS = ("time", "clock", "row", "column", "percent")
_UNNUMBERED = tuple(kind for kind, _ in _WITHOUT_NUMBER)
_BARE = "bare bar"
_MANY_LATER = 20  # with so many steps after it, a report of success was about another part of the job
_UNITS = {
    "epoch": StepUnit.EPOCHS,
    "time": StepUnit.TIME,
    "clock": StepUnit.CLOCK,
    "percent": StepUnit.PERCENT,
}
_CLEAREST = ("iter", "step", "num_updates", "row", "column", "time", "clock", "percent", "bar", "epoch")


def _short(number: float) -> float:
    return int(number) if number == int(number) else number


def _by_clarity(kind: str) -> tuple[int, str]:
    """Return the sort key of a kind of step: the kind that says most about the whole job comes first."""
    name = kind.partition(" ")[0]
    return _CLEAREST.index(name) if name in _CLEAREST else len(_CLEAREST), kind


def _known(series: Mapping[str, _Series], line: int, own: str | None, stream: str | None) -> Iterator[_Series]:
    """Yield the steps that say something about a job after a message of one process.

    After a message of another process, a bar without a description may show the work of one process, unless it goes on
    as before the message.

    `own`: the process that printed the message. `stream`: the process that printed the steps.
    """
    for kind, steps in series.items():
        if kind != _BARE or own in (None, stream) or not steps.after(line)[0] or steps.is_continued(line):
            yield steps


def _most_after(series: dict[str, _Series], line: int) -> tuple[int, float]:
    return max((steps.after(line) for steps in series.values()), default=(0, 0))


def _steps_in(text: str, number: int) -> Iterator[tuple[str, float, int]]:
    """Yield (kind, number, total of a bar) for the steps that a line in lower case names.

    A loss without a number gets the number of its line.
    """
    is_counted = False
    for word, pattern in _COUNTERS:
        match = pattern.search(text) if word in text else None
        if match is not None:
            yield word, int(match[1]), 0
            is_counted = True
            break
    else:
        for match in reversed(list(_BAR.finditer(text)) if "/" in text else []):
            kind = _kind_of_bar(text, match)
            if kind is not None:
                yield kind, int(match[1]), int(match[2])
                is_counted = True
            break
    match = _EPOCH.search(text) if "epoch" in text else None
    if match is not None:
        yield "epoch", float(match[1]), 0
    if not is_counted:
        for word, pattern in _WITHOUT_NUMBER:
            if word in text and pattern.search(text):
                yield word, number, 0


def _kind_of_bar(text: str, match: re.Match[str]) -> str | None:
    """Return the kind of a bar: one that shows steps of training, or one without a description, which may show any.

    Return None for a bar that shows files, shards or compiled sources.
    """
    before = _TORCH_LABEL.sub("", text[: match.start()])
    label = _STREAM.match(before)
    before = before[label.end() :] if label is not None else before
    if _TRAINS.search(before) or "loss" in text:
        return "bar"
    return _BARE if _LETTER.search(before) is None and not match[0].endswith("]") else None


def _is_success(text: str) -> bool:
    """Check whether a line in lower case is the final report of a trainer or a launcher that all went well."""
    if _SUCCEEDED.search(text):
        return True
    match = _FINISHED.search(text)
    if match is None:
        return False
    rest, _, _ = text[match.end() :].partition(".")
    return _PARTIAL.search(text[: match.end()] + rest) is None


def rank_label(raw: str) -> int | None:
    """Return the rank that torch, torchrun or mpirun printed before a line; None for a line without a rank."""
    found = _TORCH_LABEL.search(raw[:_LONGEST_LABEL]) or _MPIRUN_LABEL.match(raw)
    return int(found[1]) if found else None


def stream_of(raw: str, label: int | None) -> str | None:
    """Return the name of the process that printed a line: its rank, or the text before its lines. None if unknown."""
    if label is not None:
        return str(label)
    found = _STREAM.match(raw[:_LONGEST_LINE])
    return next(filter(None, found.groups()), None) if found is not None else None
