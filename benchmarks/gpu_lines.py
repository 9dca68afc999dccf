"""The lines that `gpu_copies` prints: a figure, its target, and a one-word verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

OK, MISSED, FAILED, UNKNOWN, PRINTED = "ok", "MISSED", "FAILED", "unknown", "printed"
Asked = tuple[float, float] | None  # at least, at most; None where the figure is only printed


class NotHereError(Exception):
    """A measurement that is not possible on this machine; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. Without a figure, `state` is FAILED or UNKNOWN and `words` gives the reason."""

    what: str
    ratio: float | None = None
    asked: Asked = None
    words: str = ""
    state: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in one word."""
        if self.state or self.asked is None:
            return self.state or PRINTED
        if self.ratio is None:
            return UNKNOWN
        return OK if self.asked[0] <= self.ratio <= self.asked[1] else MISSED

    def plain(self) -> dict[str, object]:
        """The line for JSON; an end of the target that is infinite is null."""
        asked = None if self.asked is None else [end if math.isfinite(end) else None for end in self.asked]
        ratio = self.ratio if self.ratio is not None and math.isfinite(self.ratio) else None
        return {"figure": self.what, "ratio": ratio, "asked": asked, "verdict": self.verdict, "words": self.words}

    def __str__(self) -> str:
        ratio = "-" if self.ratio is None else f"{self.ratio:.3f}"
        asked = "-" if self.asked is None else f"{self.asked[0]:g} .. {self.asked[1]:g}"
        return f"{self.what:54} {ratio:>7}  {asked:12} {self.verdict:8} {self.words}".rstrip()


def attempt(what: str, make: Callable[[], Line], asked: Asked = None) -> Line:
    """A line, or that it failed, or why it cannot be measured here."""
    try:
        return make()
    except NotHereError as error:
        return Line(what, None, asked, str(error), UNKNOWN)
    except Exception as error:
        return failed(what, error)


def failed(what: str, error: BaseException) -> Line:
    """The line for a part that raised this error."""
    return Line(what, words=next(iter(str(error).splitlines()), type(error).__name__), state=FAILED)
