"""Read reports about a job as a whole: that it succeeded, or that a launcher starts it again."""

from __future__ import annotations

import re
from bisect import insort

_MOST_REPORTS = 1_024  # so that a damaged file fills no memory
_LONGEST_MESSAGE = 200  # lines
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
VERDICT = "# out of bounds values : 0 ok"
_SUCCEEDED = re.compile(
    r"\btotal training time:? \d|\bsav(?:ing|ed) (?:the )?final .{0,60}\bdone\b|\bexits successfully\b"
    r"|`trainer\.fit` stopped: `max_|['\"]train_runtime['\"]: ['\"]?\d|^\s*\d+\s.*\bcompleted\s+0:0\b"
    r"|\bsuccess complete wrf\b|^\s*finished mdrun on rank\b|^finalising parallel run\s*$"
    r"|^total wall time: \d"
    r"|\b(?:status|phase)['\"]?:? +['\"]?succe(?:eded|ss)\b|=+ \d+ passed\b|" + VERDICT
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


def is_success(text: str) -> bool:
    """Check whether a lower-case line is the final report of success by a trainer or a launcher."""
    if not any(word in text for word in _DONE_WORDS):
        return False
    if _SUCCEEDED.search(text):
        return True
    match = _FINISHED.search(text)
    if match is None:
        return False
    rest, _, _ = text[match.end() :].partition(".")
    return _PARTIAL.search(text[: match.end()] + rest) is None


def append(lines: list[int], number: int) -> bool:
    """Add a line. Returns whether all lines are still kept.

    If there are too many lines, only the first lines and the last line are kept.
    """
    if len(lines) < _MOST_REPORTS:
        lines.append(number)
        return True
    lines[-1] = number
    return False


class Restarts:
    """Reads the lines with which a launcher reports that it starts the job again.

    `lines`: the numbers of these lines.
    """

    def __init__(self) -> None:
        """Begin without a restart."""
        self.lines: list[int] = []
        self._retry = 0  # the line of Ray's decision to start the next attempt

    @property
    def last(self) -> int:
        """The line of the last restart; 0 without one."""
        return self.lines[-1] if self.lines else 0

    def read(self, number: int, text: str) -> bool:
        """Read a line in lower case. Returns whether it reports a restart."""
        if any(word in text for word in _RESTART_WORDS) and _RESTART.search(text) and not _ADVICE.search(text):
            append(self.lines, number)
            self._retry = number if "failuredecision.retry" in text else 0
            return True
        if self._retry and _NEXT_ATTEMPT in text:
            # the lines before it are the rest of the message about the attempt that failed
            if number - self._retry < _LONGEST_MESSAGE:
                self.lines[-1] = number
            self._retry = 0
        return False

    def insert(self, number: int) -> None:
        """Add a line that a later line showed to be a restart."""
        if len(self.lines) < _MOST_REPORTS:
            insort(self.lines, number)


class Trials:
    """Reads two kinds of Ray Tune's output: that it restores a trial, and the report at the end."""

    def __init__(self) -> None:
        """Begin without a trial."""
        self._restored = 0  # the last line about a trial that Ray Tune restores
        self._all_succeeded: bool | None = None  # in the rows of the table of trials so far; None outside a table

    def read(self, number: int, text: str) -> bool:
        """Read a line in lower case. Returns whether it shows that all trials succeeded."""
        if "restor" in text and _RESTORED.search(text):
            self._restored = number
        is_report = self._all_succeeded is not None or text.startswith(("│ ", "trial status"))
        return is_report and self._is_end(text)

    def take_restored(self) -> int:
        """Return the last line about a restored trial since the last call; 0 without one."""
        restored, self._restored = self._restored, 0
        return restored

    def _is_end(self, text: str) -> bool:
        if _ALL_TRIALS.match(text):
            return True
        if _TRIALS_HEAD.match(text):
            self._all_succeeded = False
        elif self._all_succeeded is not None and text.startswith("│ "):
            self._all_succeeded = True if " terminated " in text else None
        elif self._all_succeeded is not None and not text.startswith("├"):
            is_success, self._all_succeeded = self._all_succeeded, None
            return is_success
        return False
