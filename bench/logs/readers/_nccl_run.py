"""Collect one run of nccl-tests line by line, and evaluate the run after its last line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bench.core.codes import Coded
from bench.logs.foreign import ForeignRow, ForeignRun
from bench.logs.messages import LogCode
from bench.logs.readers._nccl_judge import absent, asked_of, doubts
from bench.logs.readers._nccl_messages import NcclCode
from bench.logs.readers._nccl_pattern import (
    NamedPattern,
    PatternEvidence,
    evidence,
    fits,
    guess,
    more_ranks,
    of_others_alone,
    ranks_of,
)
from bench.logs.readers._nccl_rows import UNTITLED, Fields, Half, RowLayout, begins_row, is_figures, joined, read
from bench.logs.readers._run_notes import RunNotes

_AVERAGE_DIGITS = 2e-5  # relative rounding error of %g
_MOST_NAMED = 5  # a remark names at most this many sizes
# the words in headers of nccl-tests before 2019, and later words for the same columns
WORDS_OF_2018 = {"bytes": "size", "N": "count_of_2018", "op": "redop", "res": "error", "delta": "error"}
_PLACEMENTS = ("out of place", "in place")
LONGEST_PIECE = 400  # characters in a row or a part of a row, at most
_MOST_PIECES = 12
_MANY_FIGURES = 4


@dataclass
class OpenRun(RunNotes):
    """The part of a run that has been read so far.

    The first failures and the first lost parts explain the run's status.
    """

    most_remarks = 200
    most_reasons = 1

    line: int
    rccl: bool = False
    version: str | None = None
    banner: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    named: NamedPattern | None = None  # the pattern that the run's own banner names
    command: NamedPattern | None = None  # the pattern that a nearby command line names
    ranks_of_command: int | None = None
    title: tuple[str, ...] = ()
    shape: RowLayout = UNTITLED
    titled_again: bool = False
    ranks: dict[int, tuple[int, str, int]] = field(default_factory=dict)  # rank of the job -> group, host, process
    hosts: dict[str, None] = field(default_factory=dict)
    gpus: dict[str, None] = field(default_factory=dict)
    rows: list[ForeignRow] = field(default_factory=list)
    elided: list[int] = field(default_factory=list)
    # whether data were checked out of place, and in place
    checked: list[bool] = field(default_factory=lambda: [False, False])
    first_wrong: tuple[int, int, str] | None = None  # line, number of elements, placement
    banner_again: int | None = None  # the line that repeats the banner before any rank is listed
    mixed: int | None = None  # the line that lists a rank of a second process
    footer: bool = False
    over: bool = False
    average: float | None = None
    average_line: int | None = None
    last_line: int = 0

    def __post_init__(self) -> None:
        """Start without remarks and without reasons for the status."""
        super().__init__()

    def entitle(self, words: tuple[str, ...]) -> None:
        """Apply a header to the following rows."""
        words = tuple(WORDS_OF_2018.get(word, word) for word in words)
        self.title = words
        times = words.count("time") + words.count("cputime")
        self.shape = RowLayout(
            times, 8 if "i_min" in words else 4, "root" in words, "error" in words, "count_of_2018" in words
        )

    def add(self, fields: Fields, line: int) -> None:
        """Add both halves of a row. The first half is out of place, and the second half is in place."""
        self.last_line = line
        only_in_place = self.shape.halves == 1
        for index, half in enumerate(fields.halves):
            in_place = index == 1 or (only_in_place and len(fields.halves) == 1)
            self.rows.append(fields.row(half, in_place, line))
            self.checked[in_place] |= half.checked
            self._check_half(half, _PLACEMENTS[in_place], line)

    def _check_half(self, half: Half, placement: str, line: int) -> None:
        if half.unreadable:
            self.fail(line, NcclCode.FIGURE_NOT_A_NUMBER, figures=list(half.unreadable), placement=placement)
        if half.num_wrong and self.first_wrong is None:
            self.first_wrong = (line, half.num_wrong, placement)

    # ------------------------------------------------------------------------------------------------ the end of it

    def close(self) -> ForeignRun:
        """Return the run, with conclusions from its rows."""
        if self.mixed:
            self._check_mixed(self.mixed)
        if self.first_wrong:
            line, num_wrong, placement = self.first_wrong
            self.add_failure(line, NcclCode.WRONG_ELEMENTS, num_wrong=num_wrong, placement=placement)
        listed, complete = self._listed_ranks()
        checked_out, checked_in = self.checked
        seen = evidence(self.rows, checked_out, checked_in, self.shape.half_digit_s)
        complete = complete and not self._is_cut_list(seen, listed)
        pattern = self._pattern(seen, listed if complete else None)
        ranks = self._num_ranks(pattern, seen, listed, complete)
        if ranks == 1 and not self.mixed:
            self._check_order()
        others = self._ranks_of_others(pattern, seen, ranks)
        self._check_rows(pattern, others)
        rows, translations = self._translated(pattern, others)
        self._check_average()
        asked = asked_of(self.settings, self.rows, ranks)
        self._check_asked(asked, ranks)
        self._check_whole()
        return ForeignRun(
            "rccl_tests" if self.rccl else "nccl_tests",
            self.version,
            pattern,
            ranks,
            self._num_nodes(complete, ranks),
            self.status(),
            self.failure(),
            tuple(self.hosts),
            tuple(self.gpus),
            tuple(rows),
            (),
            self.all_remarks(),
            translations,
            tuple(self.settings.items()),
            self.line,
            asked_bytes=asked,
        )

    def _check_mixed(self, line: int) -> None:
        """Report that the same rank is listed with two processes.

        The program may have been restarted, or several runs may have printed at the same time.
        """
        if self.banner_again is not None:
            evidence_ = "the banner is printed twice, and a rank is listed of two processes"
            self.add_failure(line, LogCode.SEVERAL_RUNS_AT_ONCE, evidence=evidence_)
            return
        keys = [(row.payload_bytes, row.dtype, row.reduce_op, row.root, row.in_place) for row in self.rows]
        sizes = [key for key in keys if key[0]]
        if len(set(sizes)) < len(sizes):
            self.add_failure(line, LogCode.SEVERAL_RUNS_AT_ONCE, evidence="a rank is listed of two processes")
        else:
            self.remark(line, NcclCode.RANK_TWICE)

    def _check_order(self) -> None:
        """Report a run whose sizes go up and down, because every process of the job may have printed its own rows."""
        # with `-d all` and `-o all`, the sizes start again, rounded to whole elements each time
        passes: dict[tuple[object, ...], list[int]] = {}
        for row in self.rows:
            if not row.in_place:
                passes.setdefault((row.dtype, row.reduce_op, row.root), []).append(row.payload_bytes or 0)
        for sizes in passes.values():
            if any(later < earlier and later != sizes[0] for earlier, later in pairwise(sizes)):
                self.add_failure(None, LogCode.SEVERAL_RUNS_AT_ONCE, evidence="the sizes of one rank go up and down")
                return

    def _listed_ranks(self) -> tuple[int | None, bool]:
        """Return the number of ranks that the lines about devices show. Also return whether they list all ranks.

        Several groups of ranks may run at the same time. Only the first group is counted.
        """
        if not self.ranks:
            return None, False
        most = max(self.ranks) + 1
        groups = {group for group, _, _ in self.ranks.values()}
        if len(self.ranks) < most:
            return (most if len(groups) == 1 else None), False
        if len(groups) > 1:
            self.remark(None, NcclCode.GROUPS, num=len(groups))
        return len(self._of_first_group()), True

    def _is_cut_list(self, seen: PatternEvidence | None, listed: int | None) -> bool:
        """Check whether the rows are from more ranks than the log lists, because somebody shortened the list.

        In this case, the ratios in the rows do not fit the number of listed ranks. If the log names a test, the ratios
        fit this test on more ranks. If the log names no test, the ratios fit exactly one test on more ranks.
        """
        groups = {group for group, _, _ in self.ranks.values()}
        if seen is None or not listed or len(groups) > 1:
            return False
        names = [each.pattern for each in (self.named, self.command) if each is not None and each.pattern]
        pattern = names[0] if names else guess(seen, None, self.title)
        if pattern is None or fits(pattern, seen, listed) or not fits(pattern, seen, None):
            return False
        return more_ranks(pattern, seen, listed)

    def _of_first_group(self) -> list[str]:
        """Return the host of each rank in the first group of ranks."""
        first = self.ranks[min(self.ranks)][0]
        return [host for group, host, _ in self.ranks.values() if group == first]

    def _pattern(self, seen: PatternEvidence | None, ranks: int | None) -> str | None:
        if self.named and self.named.pattern:
            if seen and not fits(self.named.pattern, seen, ranks):
                self.remark(self.named.line, NcclCode.ROWS_OF_ANOTHER_TEST, program=self.named.word)
            return self.named.pattern
        if self.command:
            if seen is None or fits(self.command.pattern or "", seen, ranks):
                return self.command.pattern
            self.remark(self.command.line, NcclCode.ROWS_OF_ANOTHER_TEST, program=self.command.word)
        if seen is None:
            return None
        pattern = guess(seen, ranks, self.title)
        if pattern == "alltoall" and self.rccl:
            pattern = None  # alltoallv of rccl-tests prints the same table
        if pattern:
            self.remark(None, NcclCode.PATTERN_BY_ROWS, pattern=pattern)
        else:
            self.remark(None, NcclCode.PATTERN_UNKNOWN)
        return pattern

    def _num_ranks(
        self, pattern: str | None, seen: PatternEvidence | None, listed: int | None, complete: bool
    ) -> int | None:
        by_rows = ranks_of(pattern, seen) if pattern and seen else None
        if listed and complete:
            if by_rows and by_rows != listed:
                self.remark(None, NcclCode.RANKS_DISAGREE, listed=listed, by_rows=by_rows)
            return listed
        if listed and by_rows and by_rows < listed:
            self.remark(None, NcclCode.RANKS_UNKNOWN, last=listed - 1, by_rows=by_rows)
            return None
        if by_rows:
            if self.ranks and len(self.ranks) == listed:
                self.remark(self.rows[0].line, NcclCode.RANKS_DISAGREE, listed=listed, by_rows=by_rows)
            else:
                self.remark(None, NcclCode.RANKS_BY_ROWS, ranks=by_rows)
            return by_rows
        if listed and pattern and (seen is None or fits(pattern, seen, listed)):
            self.remark(None, NcclCode.RANKS_BY_LAST, ranks=listed)
            return listed
        asked = self.ranks_of_command
        if listed is None and asked and (pattern is None or seen is None or fits(pattern, seen, asked)):
            self.remark(None, NcclCode.RANKS_BY_COMMAND, ranks=asked)
            return asked
        return None

    def _num_nodes(self, complete: bool, ranks: int | None) -> int | None:
        if complete:
            return len(set(self._of_first_group()))
        return 1 if ranks and ranks == self.ranks_of_command and not self.ranks else None

    def _ranks_of_others(self, pattern: str | None, seen: PatternEvidence | None, ranks: int | None) -> int | None:
        """Return the number of ranks if algbw omits each rank's own data. Otherwise return None.

        If algbw omits these data, algbw is (n-1)/n of linkbench's algbw, where n is the number of ranks.
        """
        if pattern == "hypercube":
            return ranks
        if seen is not None and of_others_alone(seen) and pattern in (None, "allgather", "reducescatter"):
            return ranks or seen.part
        return None

    def _translated(self, pattern: str | None, ranks: int | None) -> tuple[list[ForeignRow], tuple[Coded, ...]]:
        """Convert algbw to linkbench's definition.

        Hypercube, and some other programs in old versions, print only (n-1)/n of linkbench's algbw. With the option -C,
        nccl-tests prints only the CPU time of the calls, so this function removes the printed time.

        `ranks`: the return value of `_ranks_of_others`.
        """
        if "cputime" in self.title:
            self.remark(None, NcclCode.CPU_TIME)
            for index, row in enumerate(self.rows):
                unreadable = tuple(name for name in row.unreadable if name != "time")
                self.rows[index] = replace(row, time_s=None, unreadable=unreadable)
        if "i_min" in self.title:
            self.remark(None, NcclCode.ITERATION_COLUMNS)
        if not ranks or ranks < 2:
            return self.rows, ()
        larger = ranks / (ranks - 1)
        rows = []
        for row in self.rows:
            algbw = row.algbw_bytes_per_s
            rows.append(row if algbw is None else replace(row, algbw_bytes_per_s=algbw * larger))
        whose = "nccl-tests before June 2020"
        if pattern == "hypercube":
            whose = "hypercube"
        elif pattern is None:
            whose += ", or of hypercube,"
        return rows, (Coded.of(NcclCode.ALGBW_OF_OTHERS, whose=whose, ranks=ranks, others=ranks - 1),)

    def _check_rows(self, pattern: str | None, ranks: int | None) -> None:
        """Mark each row whose values contradict each other, or contradict the values of other rows.

        `ranks`: the return value of `_ranks_of_others`.
        """
        if pattern == "alltoallv":  # the rates of alltoallv are those of the busiest rank
            return
        share = (ranks - 1) / ranks if ranks else 1.0
        timed = "cputime" not in self.title
        for index, code in doubts(self.rows, share, timed, self.shape.half_digit_s):
            row, reason = self.rows[index], Coded.of(code)
            self.remark(row.line, NcclCode.ROW_CONTRADICTS, reason=reason.text, reason_code=str(code))
            self.rows[index] = replace(row, contradicts=reason)

    def _check_average(self) -> None:
        """Compare the rows with the average that is printed below the rows."""
        whole = self._is_average_of_rows()
        if whole is False and self.average_line is not None:
            twice = self._line_printed_twice()
            if twice:
                self.lose(self.average_line, NcclCode.ROW_TWICE, twice=twice)
            else:
                self.lose(self.average_line, NcclCode.NOT_THE_AVERAGE)
        for line in self.elided:
            if whole:
                self.remark(line, NcclCode.NO_ROWS_LEFT_OUT)
            else:
                self.lose(line, NcclCode.ROWS_LEFT_OUT)

    def _line_printed_twice(self) -> int | None:
        """Return the line of the first row that repeats all values of an earlier row.

        Return None if no row repeats another row.
        """
        seen: set[ForeignRow] = set()
        for row in self.rows:
            figures = replace(row, line=0)
            if figures in seen:
                return row.line
            seen.add(figures)
        return None

    def _is_average_of_rows(self) -> bool | None:
        """Check whether the printed average is the average of the rows.

        Return None if the log has no average or no rates.
        """
        rates = [row.busbw_bytes_per_s for row in self.rows if row.busbw_bytes_per_s is not None]
        if self.average is None or not rates or not math.isfinite(self.average):
            return None
        return abs(sum(rates) / len(rates) / 1e9 - self.average) <= 0.0051 + _AVERAGE_DIGITS * abs(self.average)

    def _check_asked(self, asked: tuple[int, ...], ranks: int | None) -> None:
        """Report requested sizes that are missing before the last row of the log.

        `_check_whole` reports a log that ends early.
        """
        missing = absent(asked, self.rows, ranks, self.footer) if not self.cuts else []
        if missing:
            self.lose(None, NcclCode.SIZES_MISSING, num=len(missing), sizes=missing[:_MOST_NAMED])

    def _check_whole(self) -> None:
        """Report a run that did not end, or that did not measure the largest requested sizes."""
        if self.failures:
            return
        if not self.rows:
            self.add_cut(None, LogCode.NO_ROWS if self.footer else NcclCode.ENDS_BEFORE_ROWS)
            return
        if self.footer:
            return
        last, most, step = self.rows[-1], self._setting("max_bytes"), self._setting("step")
        if last.payload_bytes and most and step:
            by_factor = self.settings.get("step_kind") == "factor"
            following = last.payload_bytes * step if by_factor else last.payload_bytes + step
            if following <= most:
                self.lose(self.last_line, NcclCode.ENDS_EARLY, size=last.payload_bytes, most=most)
                return
        self.remark(None, NcclCode.NO_CLOSING_LINES)

    def _setting(self, name: str) -> int | None:
        text = self.settings.get(name, "")
        return int(text) if text.isdigit() and len(text) < 20 else None


def dotted(code: int) -> str:
    """Format a version code. For example, 22907 becomes 2.29.7, and 2804 (the form before 2.9) becomes 2.8.4."""
    major = 10000 if code >= 10000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"


class Pieces:
    """The pieces of a row that was interrupted by the output of another process.

    If no row was interrupted, there are no pieces.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._line = 0

    def __len__(self) -> int:
        return len(self._texts)

    def begin(self, text: str, line: int) -> None:
        """Begin a row with its first piece."""
        self._texts, self._line = [text], line

    def take(self, text: str, tokens: list[str], run: OpenRun) -> bool:
        """Add another piece if this piece can belong to the row. Return whether the piece was added.

        If the row is now complete, the row is added to the run.
        """
        if not self._texts or not _is_piece(tokens) or len(self._texts) == _MOST_PIECES:
            return False
        self._texts.append(text)
        fields = joined(self._texts, run.shape)
        if fields is not None:
            self._texts = []
            run.add(fields, self._line)
        return True

    def drop(self, run: OpenRun, at_end: bool) -> None:
        """End an incomplete row. Keep the first half of the row if this half is complete.

        Report the missing part as lost.
        """
        texts, self._texts = self._texts, []
        if not texts:
            return
        line, tokens = self._line, " ".join(texts).split()
        if not begins_row(tokens) and not at_end:
            run.remark(line, NcclCode.FIGURES_OF_NO_ROW)
            return
        fields = read(tokens, run.shape) if begins_row(tokens) and len(texts) == 1 else None
        # the fields after the half show that the half is complete
        if fields is not None and len(fields.halves) == 1 and fields.rest:
            run.add(fields, line)
            run.lose(line, NcclCode.HALF_CUT)
        else:
            run.lose(line, NcclCode.WHOLE_ROW_CUT)


def _is_piece(tokens: list[str]) -> bool:
    """Check whether this line can be a piece of an interrupted row.

    A piece has only numbers, or a few short words and then many numbers.
    """
    if len(tokens) >= 24 or any(len(token) > 20 for token in tokens):
        return False
    return is_figures(tokens) or (len(tokens) > _MANY_FIGURES and is_figures(tokens[-_MANY_FIGURES:]))
