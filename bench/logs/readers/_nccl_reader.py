"""nccl-tests and rccl-tests: their output of any age, as text or JSON, read from clean and from dirty logs.

The size is S as we count it, the time a mean over ranks of each rank's mean, rates are 10^9 bytes per second
(methodology: "nccl-tests"). Both placements of a line become a row of their own. Hypercube's algbw is translated.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.logs.foreign import ForeignRun, Line, Reader
from bench.logs.readers._nccl_json import NcclJsonCollector
from bench.logs.readers._nccl_pieces import LONGEST_PIECE
from bench.logs.readers._nccl_text import Text, begins_run, whole_row

_NOTHING: tuple[ForeignRun, ...] = ()


class NcclTests(Reader):
    """Text, and documents between it."""

    tool = "nccl_tests"

    def __init__(self) -> None:
        self._text = Text()
        self._document: NcclJsonCollector | None = None

    def begins(self, text: str) -> bool:
        """Command, banner, device, header, footer, failure and data lines; the first line of its JSON."""
        if text[:1].isdigit():
            return len(text) <= LONGEST_PIECE and whole_row(text.split()) is not None
        if text[:1] in ("{", '"'):
            return NcclJsonCollector.begins(text)
        return begins_run(text)

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """See Reader."""
        number, text = line
        if text:
            if self._document is not None or (text[0] in '{"' and NcclJsonCollector.begins(text)):
                self._read_json(number, text)
            else:
                self._text.read(number, text)
            if self._text.done:
                return self._take()
        return iter(_NOTHING)

    def finish(self) -> Iterator[ForeignRun]:
        """See Reader."""
        found = self._document.finish() if self._document is not None else []
        self._document = None
        self._text.close(at_end=True)
        self._text.done += found
        return self._take()

    def _take(self) -> Iterator[ForeignRun]:
        done, self._text.done = self._text.done, []
        return iter(done)

    def _read_json(self, number: int, text: str) -> None:
        """A line of a document. One that can not be a part of it ends it, and is text again."""
        if self._document is None:
            self._document = NcclJsonCollector(number)
        taken = self._document.feed(text)
        if taken is False:
            return
        found, self._document = self._document.finish(), None
        if found:
            self._text.close()
            self._text.done += found
        if taken is None:
            self._text.read(number, text)


READER = NcclTests
