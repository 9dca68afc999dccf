"""Read how a job went on: steps of training, reports of success, and restarts by a launcher.

Such lines cause no event. They show what became of the job after a message: a rank that prints further steps has
survived the message. Programs print steps in many forms, so one pattern covers the common ones: tqdm's bars, `iteration
120/ 5000`, `step=120`, `{'loss': 2.1, 'epoch': 0.2}`, `Epoch 3`.

A log may have millions of such lines. Only the lines around messages are read one by one. Of the other pieces of a
text, only the begin and the end are read.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

_SAMPLE = 1 << 11  # characters at the begin and at the end of a piece that is not read completely
_BETWEEN_SAMPLES = 1 << 20  # characters
_AFTER_EVENT, _ALTOGETHER = 1 << 18, 1 << 24  # characters that are read line by line, after one message and in one file
_LONGEST_LINE, _LONGEST_LABEL = 400, 200
WHOLE_PROGRAM = ", in <module>"  # the first frame of the stack of an exception that no code of the program caught
_LONGEST_STACK = 200  # lines
_MOST_MARKS = 50  # steps of one kind that are kept after one message, at most; of later steps only the last
_MOST_STREAMS, _MOST_KINDS, _MOST_REPORTS = 4_096, 32, 1_024
_MOST = 1 << 62
_STEPS_OF_EPOCH = 10  # an epoch has at least so many steps

# A word of a line in lower case -> the pattern of a step. Each pattern begins with plain text, which is found quickly.
_NUMBER = r"['\"]?[ \t:=\[#]{1,4}(\d{1,12})\b(?![.\w-])"
_COUNTERS = (
    ("iter", re.compile(rf"iter(?<![a-z]iter)(?:ation)?s?{_NUMBER}")),
    ("step", re.compile(rf"step(?<![a-z]step)s?{_NUMBER}")),
    ("/", re.compile(r"(?<![\d/.])(\d{1,12})/(\d{1,12})(?: \[|\])")),  # tqdm, Keras, `Epoch: [3][511/1736]`
)
_EPOCH = re.compile(r"epoch['\"]?[ \t:=\[#]{0,4}(\d{1,6})")
_WITHOUT_NUMBER = (
    ("loss", re.compile(r"loss(?<![a-z]loss)['\"]?[ \t:=]{1,4}['\"]?-?(?:\d|nan)")),
    ("sav", re.compile(r"sav(?:ed|ing) (?:the |final |model |a )*(?:checkpoint|model|weights)\b")),
)
# A line of an error may also name the step.
_ERRORS = ("error", "exception", "traceback", "fail", "cancel", "killed", "abort", "time out", "timeout", "timed out",
           "slurm", "srun:", "nccl info", "nccl warn", "worknccl", '  file "')  # fmt: skip
_OTHER_BAR = re.compile(r"(?:^|[\s\]:])(?!train|epoch|step|iter)([a-z][\w .()-]{2,60}):\s+\d{1,3}%\|")
_DONE_WORDS = (
    "training time",
    "finish",
    "complet",
    "done",
    "succe",
    "exit",
    "passed",
    "stopped",
    "train_runtime",
    "out of bounds",
)
_WORK = r"(?:pre-?|fine-?)?(?:training|tuning|optimi[sz]ation|experiment|run|job|workflow|application|worker group)"
_DONE = re.compile(
    rf"\b{_WORK}\b(?:(?!\b(?:not|to|until|when|if|will|can|must|may)\b|n't\b)[^.;]){{0,60}}"
    r"\b(?:finished|completed?|done|succeeded|successful(?:ly)?)\b(?! iteration)"
    r"(?!\swith (?:non-?zero|(?:exit )?(?:code|status):? [1-9]))"
    rf"|\b(?:finished|completed|done(?: with)?|end of) (?:the )?{_WORK}\b"
    r"|\b(?:total )?training time:? \d|\b(?:finished|completed) successfully\b|\bsuccessfully (?:finished|completed)\b"
    r"|\bsav(?:ing|ed) (?:the )?final .{0,60}\bdone\b|\bcompleted\s+0:0\b"
    r"|\bexits successfully\b|\bexit(?:ed)?(?: with)?(?: exit)?[ -]?code:? ?0\b|\bexited normally\b"
    r"|`trainer\.fit` stopped: `max_|\btrain_runtime\b|\b(?:status|phase)['\"]?:? +['\"]?succe(?:eded|ss)\b"
    r"|\breason:\s+completed\b|=+ \d+ passed\b|^\s*(?:all )?done[.!]?\s*$|# out of bounds values : 0 ok"
)
_NO_ERROR = re.compile(r"\b(?:code:? ?0|0 ok|0:0)\b")  # in a line that also has a word of an error
_RESTART_WORDS = ("restart", "reque", "retry")
_RESTART = re.compile(
    r"will restart worker group|\brestarting (?:the |all |training )*(?:worker group|workers|training|job|pods?)\b"
    r"|\brestarting from\b|\bjob \S{1,40} (?:has been |was )?requeued\b|\bneed to restart the pod\b"
    r"|\breque(?:ue)?(?:d|ing) (?:slurm )?job\b"
    r"|\bretrying task\b|\bfailuredecision\.retry\b|\brestarting\b.{0,40}\battempt\b|^restarting\b"
)
_TORCH_LABEL = re.compile(r"\[(?:default|rank)(\d{1,6})\]:")  # printed by torch and torchrun --tee
_MPIRUN_LABEL = re.compile(r"^\s*\[(?:1,)?(\d{1,6})\]\s?<std")  # printed by Open MPI --tag-output, and by horovodrun
_STREAM = re.compile(
    r"\s*(?:\((?P<a>[^()]{0,100}\b(?:pid|rank)=\d{1,10})"  # Ray, vLLM
    r"|\[rank: (?P<b>\d{1,6})\]"  # Lightning
    r"|(?!step|epoch|iter|batch)(?P<c>[A-Za-z][\w.-]{0,60}\d[\w.-]{0,60}): )",  # pdsh, pods
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Later:
    """What a file shows after one of its messages.

    `own_steps`: the steps after it by the process that printed it. A process is known by the label of its lines. Lines
        without a label count as lines of one process.
    `all_steps`: the most steps after it by any process of the file.
    `is_labelled`: whether `own_steps` are known to be of the same process.
    `has_success`: whether the program or its launcher reported success after it and after the last restart.
    `after_success`: whether success was reported before it, without a step between the report and the message.
    `num_restarts`: how often a launcher restarted the job before it.
    `restarts_left`: how often a launcher restarted the job after it.
    `is_uncaught`: whether the message ends the stack of a whole program. If a program ends so, lines that it had not
        yet written may follow.
    `steps_since_restart`: the most steps of any process after the last restart.
    """

    own_steps: int = 0
    all_steps: int = 0
    is_labelled: bool = False
    has_success: bool = False
    after_success: bool = False
    num_restarts: int = 0
    restarts_left: int = 0
    steps_since_restart: int = 0
    is_uncaught: bool = False


NOTHING_LATER = Later()


class _Series:
    """The steps of one kind: lines with their number, and the count of different steps so far.

    Positions are kept for the first steps after a message only, and for the last step.
    """

    def __init__(self, factor: int) -> None:
        """Begin without a step. `factor`: the steps between two numbers."""
        self._factor = factor
        self._marks: list[tuple[int, int, int]] = []
        self._left, self._message = _MOST_MARKS, 0

    def add(self, line: int, step: int | None, message: int) -> None:
        """Add a step, which may have no number. `message`: the number of messages before it."""
        if message != self._message:
            self._left, self._message = _MOST_MARKS, message
        count = self._marks[-1][2] if self._marks else 0
        is_new = step is None or not self._marks or step != self._marks[-1][1]
        mark = (line, -1 if step is None else step, count + is_new)
        self._left -= 1
        if self._left >= 0 or not self._marks:
            self._marks.append(mark)
        else:
            self._marks[-1] = mark

    def after(self, line: int) -> int:
        """Return how many steps are known after a line: different steps, or the rise of their numbers."""
        begin = bisect_right(self._marks, (line, _MOST, 0))
        if begin == len(self._marks):
            return 0
        (_, first, count), (_, last, count_of_all) = self._marks[begin], self._marks[-1]
        return max(count_of_all - count + 1, (last - first) * self._factor)

    def any_between(self, line: int, other: int) -> bool:
        """Check whether a step is known after a line and before another."""
        return bisect_right(self._marks, (line, _MOST, 0)) < bisect_left(self._marks, (other, -2, 0))


class ProgressReader:
    """Reads the lines of one file that show how the job went on."""

    def __init__(self) -> None:
        """Begin without any line."""
        self.num_marks = 0
        self.num_messages = 0
        self._series: dict[str, _Series] = {}  # the kind of step -> the steps of all processes
        self._own_series: dict[str | None, dict[str, _Series]] = {}  # a process -> the kind of step -> its steps
        self._successes: list[int] = []
        self._restarts: list[int] = []
        self._programs: dict[str | None, int] = {}  # a process -> the last line with the frame of a whole program
        self._uncaught: set[int] = set()
        self._after_event, self._altogether = _AFTER_EVENT, _ALTOGETHER
        self._not_sampled = 0

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

    def read_frame(self, number: int, raw: str) -> None:
        """Read a line that contains `WHOLE_PROGRAM`."""
        stream = stream_of(raw, rank_label(raw))
        if stream in self._programs or len(self._programs) < _MOST_STREAMS:
            self._programs[stream] = number

    def event_found(self, number: int, stream: str | None) -> None:
        """Read the lines after a message that was just found one by one, and keep their steps."""
        if number - self._programs.pop(stream, -_LONGEST_STACK) < _LONGEST_STACK:
            self._uncaught.add(number)
        self._after_event = _AFTER_EVENT
        self.num_messages += 1

    def read(self, number: int, raw: str, label: int | None) -> None:
        """Read one line.

        `label`: the rank that a launcher printed before the line.
        """
        begin = raw[:_LONGEST_LINE]
        if "\r" in raw:  # a line that was written over again and again: its first and its last state
            self._read(number, begin.lstrip("\r").partition("\r")[0], label)
            begin = raw[-_LONGEST_LINE:].rstrip("\r").rpartition("\r")[2]
        self._read(number, begin, label)

    def _read(self, number: int, raw: str, label: int | None) -> None:
        text = raw.lower()
        if any(word in text for word in _RESTART_WORDS) and _RESTART.search(text) is not None:
            _append(self._restarts, number)
            return
        is_error = any(word in text for word in _ERRORS)
        is_epoch = not is_error and self._read_step(number, raw, text, label)
        if is_epoch or (is_error and _NO_ERROR.search(text) is None):
            return
        if any(word in text for word in _DONE_WORDS) and _DONE.search(text) is not None:
            _append(self._successes, number)

    def _read_step(self, number: int, raw: str, text: str, label: int | None) -> bool:
        """Read the step that a line names. Return whether the line is about an epoch only.

        `text`: the line in lower case.
        """
        found: list[tuple[str, int | None]] = []
        for word, pattern in _COUNTERS:
            match = pattern.search(text) if word in text else None
            if match is not None and not found and not (word == "/" and _OTHER_BAR.search(text)):
                found.append((word + (match[2] if word == "/" else ""), int(match[1])))
        is_counted = bool(found)
        match = _EPOCH.search(text) if "epoch" in text else None
        found += [("epoch", int(match[1]))] if match is not None else []
        if not is_counted:
            found += [(word, None) for word, pattern in _WITHOUT_NUMBER if word in text and pattern.search(text)]
        for kind, step in found:
            self._add(number, stream_of(raw, rank_label(raw) if label is None else label), kind, step)
        return match is not None and not is_counted

    def _add(self, number: int, stream: str | None, kind: str, step: int | None) -> None:
        self.num_marks += 1
        if stream not in self._own_series and len(self._own_series) < _MOST_STREAMS:
            self._own_series[stream] = {}
        for series in (self._series, self._own_series.get(stream, {})):
            if kind not in series and len(series) < _MOST_KINDS:
                series[kind] = _Series(_STEPS_OF_EPOCH if kind == "epoch" else 1)
            if kind in series:
                series[kind].add(number, step, self.num_messages)

    def later(self, line: int, stream: str | None, rank: int | None) -> Later:
        """Return what the file shows after a message.

        `stream`: what the message's line says about its process (`stream_of`).
        `rank`: the rank that the message names.
        """
        own = str(rank) if stream is None and rank is not None else stream
        last = self._restarts[-1] if self._restarts else 0
        before = bisect_left(self._restarts, line)
        success = bisect_left(self._successes, line)
        at = self._successes[success - 1] if success else 0
        return Later(
            own_steps=_most_after(self._own_series.get(own, {}), line),
            all_steps=_most_after(self._series, line),
            is_labelled=own is not None,
            has_success=bool(self._successes) and self._successes[-1] > max(line, last),
            after_success=bool(success) and not any(series.any_between(at, line) for series in self._series.values()),
            num_restarts=before,
            restarts_left=len(self._restarts) - before,
            is_uncaught=line in self._uncaught,
            steps_since_restart=_most_after(self._series, last),
        )


def _most_after(series: dict[str, _Series], line: int) -> int:
    return max((steps.after(line) for steps in series.values()), default=0)


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


def _append(lines: list[int], number: int) -> None:
    """Add a line. Of too many lines, keep the first ones and the last one."""
    if len(lines) < _MOST_REPORTS:
        lines.append(number)
    else:
        lines[-1] = number
