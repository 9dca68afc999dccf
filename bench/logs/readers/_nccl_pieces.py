"""A row of nccl-tests whose line was cut by what another process printed: its pieces, until they are a row again."""

from __future__ import annotations

from bench.logs.readers._nccl_rows import begins_row, is_figures, joined, read
from bench.logs.readers._nccl_run import OpenRun

LONGEST_PIECE = 400  # characters
_MOST_PIECES = 12
_MANY_FIGURES = 4


class Pieces:
    """None, or the beginning of one row."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._line = 0

    def __len__(self) -> int:
        return len(self._texts)

    def begin(self, text: str, line: int) -> None:
        """The first piece."""
        self._texts, self._line = [text], line

    def take(self, text: str, tokens: list[str], run: OpenRun) -> bool:
        """Another piece, if it can be one. A row that is whole by it goes to the run."""
        if not self._texts or not _is_piece(tokens) or len(self._texts) == _MOST_PIECES:
            return False
        self._texts.append(text)
        fields = joined(self._texts, run.shape)
        if fields is not None:
            self._texts = []
            run.add(fields, self._line)
        return True

    def drop(self, run: OpenRun, at_end: bool) -> None:
        """The row was never completed: what is whole of it stays, the rest is said to be lost."""
        texts, self._texts = self._texts, []
        if not texts:
            return
        line, tokens = self._line, " ".join(texts).split()
        if not begins_row(tokens) and not at_end:
            run.say(line, f"line {line}: figures that belong to no row")
            return
        fields = read(tokens, run.shape) if begins_row(tokens) and len(texts) == 1 else None
        if fields is not None and len(fields.halves) == 1 and fields.rest:  # what follows it shows that it is whole
            run.add(fields, line)
            run.lose(line, f"line {line}: the row is cut, its in-place half is lost", f"line {line} is cut")
        else:
            run.lose(line, f"line {line}: the row is cut, it is lost", f"line {line} is cut")


def _is_piece(tokens: list[str]) -> bool:
    """Can this be a part of a row? Figures, or many of them behind words that are no longer than a type."""
    if len(tokens) >= 24 or any(len(token) > 20 for token in tokens):
        return False
    return is_figures(tokens) or (len(tokens) > _MANY_FIGURES and is_figures(tokens[-_MANY_FIGURES:]))
