"""What is told of a run beside its figures, within bounds: a log may go wrong on every line."""

from __future__ import annotations

from bench.logs.foreign import FAILED, OK, TRUNCATED, Remark

_MOST_REMARKS = 1000
_MOST_REASONS = 10
_MOST_LETTERS = 300


class RunNotes:
    """Remarks of a run while it is read, why it failed, and what of it is lost."""

    def __init__(self) -> None:
        self.remarks: list[Remark] = []
        self.failures: list[str] = []
        self.cuts: list[str] = []

    def say(self, line: int | None, text: str) -> None:
        """Something that a reader of the figures must know."""
        if len(self.remarks) < _MOST_REMARKS:
            self.remarks.append(Remark(line, text))

    def fail(self, line: int | None, text: str, why: str | None = None) -> None:
        """The run failed. `why`: in other words than the remark's."""
        text = text.strip()[:_MOST_LETTERS]
        self.say(line, text)
        if len(self.failures) < _MOST_REASONS:
            self.failures.append(why or text)

    def lose(self, line: int | None, text: str) -> None:
        """Something of the run is lost, and what."""
        self.say(line, text)
        if len(self.cuts) < _MOST_REASONS:
            self.cuts.append(text)

    def status(self) -> str:
        """What became of the run."""
        return FAILED if self.failures else TRUNCATED if self.cuts else OK

    def failure(self) -> str | None:
        """Why it is not whole; None where it is."""
        return "; ".join(dict.fromkeys(self.failures or self.cuts)) or None
