"""One run of nccl-tests while its lines come in, and what is concluded from them at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bench.logs.foreign import FAILED, OK, TRUNCATED, ForeignRow, ForeignRun, Remark
from bench.logs.readers._nccl_judge import absent, asked_of, doubts
from bench.logs.readers._nccl_pattern import PatternEvidence, evidence, fits, guess, of_others_alone, ranks_of
from bench.logs.readers._nccl_rows import UNTITLED, Fields, Half, RowLayout

_MOST_REMARKS = 200
_AVERAGE_DIGITS = 2e-5  # of %g
_AT_ONCE = "several runs print into one log at once"


@dataclass(slots=True)
class NamedPattern:
    """A pattern, and where its name was read."""

    pattern: str | None
    word: str
    line: int | None


@dataclass(slots=True)
class OpenRun:
    """What has been read so far."""

    line: int
    rccl: bool = False
    version: str | None = None
    banner: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    named: NamedPattern | None = None  # by its own banner
    command: NamedPattern | None = None  # by a command line near it
    ranks_of_command: int | None = None
    title: tuple[str, ...] = ()
    shape: RowLayout = UNTITLED
    titled_again: bool = False
    ranks: dict[int, tuple[int, str, int]] = field(default_factory=dict)  # rank of the job -> group, host, process
    hosts: dict[str, None] = field(default_factory=dict)
    gpus: dict[str, None] = field(default_factory=dict)
    rows: list[ForeignRow] = field(default_factory=list)
    elided: list[int] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    num_unsaid: int = 0
    checked: list[bool] = field(default_factory=lambda: [False, False])
    failure: str | None = None
    first_wrong: str | None = None
    mixed: int | None = None  # the line that lists a rank of another process
    cut: str | None = None
    footer: bool = False
    over: bool = False
    average: float | None = None
    average_line: int | None = None
    last_line: int = 0

    def say(self, line: int | None, text: str) -> None:
        """Keep a remark, or count it where there are very many."""
        if len(self.remarks) < _MOST_REMARKS:
            self.remarks.append(Remark(line, text))
        else:
            self.num_unsaid += 1

    def fail(self, sentence: str) -> None:
        """The first reason is the one that is kept."""
        self.failure = self.failure or sentence

    def lose(self, line: int, text: str, why: str) -> None:
        """Something of this line could not be read."""
        self.say(line, text)
        self.cut = self.cut or why

    def entitle(self, words: tuple[str, ...]) -> None:
        """Take a header in."""
        self.title = words
        times = words.count("time") + words.count("cputime")
        self.shape = RowLayout(times, 8 if "i_min" in words else 4, "root" in words, "error" in words)

    def add(self, fields: Fields, line: int) -> None:
        """The halves of a row: out of place, then in place."""
        self.last_line = line
        only_in_place = self.shape.halves == 1
        for index, half in enumerate(fields.halves):
            in_place = index == 1 or (only_in_place and len(fields.halves) == 1)
            self.rows.append(fields.row(half, in_place, line))
            self.checked[in_place] |= half.checked
            self._judge(half, in_place, line)

    def _judge(self, half: Half, in_place: bool, line: int) -> None:
        where = "in place" if in_place else "out of place"
        if half.unreadable:
            told = ", ".join(half.unreadable)
            self.say(line, f"line {line}: a figure {where} is no number ({told}), it is left unknown")
            self.fail(f"{told} {where} in line {line}: no number was printed")
        if half.num_wrong and self.first_wrong is None:
            self.first_wrong = f"{half.num_wrong} wrong elements {where} in line {line}"

    # ------------------------------------------------------------------------------------------------ the end of it

    def close(self) -> ForeignRun:
        """The run, with what its rows tell about it."""
        if self.mixed:
            self._judge_mixed(self.mixed)
        if self.first_wrong:
            self.fail(self.first_wrong)
        known, complete = self._ranks_told()
        seen = evidence(self.rows, *self.checked)
        pattern = self._pattern(seen, known if complete else None)
        ranks = self._ranks(pattern, seen, known, complete)
        if ranks == 1 and not self.mixed:
            self._judge_order()
        others = self._ranks_of_others(pattern, seen, ranks)
        self._judge_rows(pattern, others)
        rows, translations = self._translated(pattern, others)
        self._check_average()
        asked = asked_of(self.settings, self.rows, ranks)
        self._check_asked(asked, ranks)
        self._check_whole()
        status = FAILED if self.failure else TRUNCATED if self.cut else OK
        self.remarks.sort(key=lambda remark: (remark.line is None, remark.line or 0))
        if self.num_unsaid:
            self.remarks.append(Remark(None, f"{self.num_unsaid} more remarks are left out"))
        return ForeignRun(
            "rccl_tests" if self.rccl else "nccl_tests",
            self.version,
            pattern,
            ranks,
            self._nodes(complete, ranks),
            status,
            self.failure or self.cut,
            tuple(self.hosts),
            tuple(self.gpus),
            tuple(rows),
            (),
            tuple(self.remarks),
            translations,
            tuple(self.settings.items()),
            self.line,
            asked_bytes=asked,
        )

    def _judge_mixed(self, line: int) -> None:
        """A rank was listed again, of another process: was it another start, or do several print at the same time?"""
        keys = [(row.payload_bytes, row.dtype, row.reduce_op, row.root, row.in_place) for row in self.rows]
        sizes = [key for key in keys if key[0]]
        if len(set(sizes)) < len(sizes):
            self.fail(f"{_AT_ONCE}, their rows are mixed (line {line})")
        else:
            self.say(line, f"line {line}: a rank is listed again, of another process; one start has left no rows")

    def _judge_order(self) -> None:
        """Rows of one rank whose sizes go up and down: every process of a job has printed its own."""
        passes: dict[tuple[object, ...], list[int]] = {}  # `-d all` and `-o all` begin anew, of whole elements each
        for row in self.rows:
            if not row.in_place:
                passes.setdefault((row.dtype, row.reduce_op, row.root), []).append(row.payload_bytes or 0)
        if any(
            later < earlier and later != sizes[0] for sizes in passes.values() for earlier, later in pairwise(sizes)
        ):
            self.fail(f"{_AT_ONCE}, of one rank each: their sizes go up and down")

    def _ranks_told(self) -> tuple[int | None, bool]:
        """Ranks of one collective by the device lines, and whether all are there. Groups run apart, at one time."""
        if not self.ranks:
            return None, False
        most = max(self.ranks) + 1
        groups = {group for group, _, _ in self.ranks.values()}
        if len(self.ranks) < most:
            return (most if len(groups) == 1 else None), False
        if len(groups) > 1:
            self.say(None, f"{len(groups)} groups of ranks run at the same time; rows are of the first")
        return len(self._of_first_group()), True

    def _of_first_group(self) -> list[str]:
        """The host of each rank of it."""
        first = self.ranks[min(self.ranks)][0]
        return [host for group, host, _ in self.ranks.values() if group == first]

    def _pattern(self, seen: PatternEvidence | None, ranks: int | None) -> str | None:
        if self.named and self.named.pattern:
            if seen and not fits(self.named.pattern, seen, ranks):
                self.say(self.named.line, f"line {self.named.line}: rows do not look like those of {self.named.word}")
            return self.named.pattern
        if self.command:
            if seen is None or fits(self.command.pattern or "", seen, ranks):
                return self.command.pattern
            self.say(
                self.command.line, f"line {self.command.line} names {self.command.word}; the rows are of another test"
            )
        if seen is None:
            return None
        pattern = guess(seen, ranks, self.title)
        if pattern == "alltoall" and self.rccl:
            pattern = None  # its alltoallv prints the same
        if pattern:
            self.say(None, f"no line names the test: its columns, counts and busbw/algbw are those of {pattern}")
        else:
            self.say(None, "no line names the test, and its rows fit several")
        return pattern

    def _ranks(
        self, pattern: str | None, seen: PatternEvidence | None, known: int | None, complete: bool
    ) -> int | None:
        by_rows = ranks_of(pattern, seen) if pattern and seen else None
        if known and complete:
            if by_rows and by_rows != known:
                self.say(None, f"the devices are those of {known} ranks, the rows those of {by_rows}")
            return known
        if known and by_rows and by_rows < known:
            self.say(None, f"rank {known - 1} is listed, the rows are those of {by_rows} ranks: num_ranks is not known")
            return None
        if by_rows:
            self.say(
                None, f"num_ranks is {by_rows} by size/count or busbw/algbw of the rows; the devices are not listed"
            )
            return by_rows
        if known and pattern and (seen is None or fits(pattern, seen, known)):
            self.say(None, f"num_ranks is {known} by the last rank that is listed; others are missing from the log")
            return known
        if (
            known is None
            and self.ranks_of_command
            and (pattern is None or seen is None or fits(pattern, seen, self.ranks_of_command))
        ):
            self.say(
                None, f"num_ranks is {self.ranks_of_command} by -g and -t of the command line, one process on one node"
            )
            return self.ranks_of_command
        return None

    def _nodes(self, complete: bool, ranks: int | None) -> int | None:
        if complete:
            return len(set(self._of_first_group()))
        return 1 if ranks and ranks == self.ranks_of_command and not self.ranks else None

    def _ranks_of_others(self, pattern: str | None, seen: PatternEvidence | None, ranks: int | None) -> int | None:
        """The number of ranks where algbw counts what comes from the others alone, (n-1)/n of ours; else None."""
        if pattern == "hypercube":
            return ranks
        if seen is not None and of_others_alone(seen) and pattern in (None, "allgather", "reducescatter"):
            return ranks or seen.part
        return None

    def _translated(self, pattern: str | None, ranks: int | None) -> tuple[list[ForeignRow], tuple[str, ...]]:
        """hypercube prints (n-1)/n of our algbw, as others did once; -C prints the time of the calls, not of the
        operation. `ranks`: as `_ranks_of_others` says."""
        if "cputime" in self.title:
            self.say(None, "the time column is CPU time (-C): it is left out, algbw and busbw are of the operation")
            self.rows = [
                replace(row, time_s=None, unreadable=tuple(name for name in row.unreadable if name != "time"))
                for row in self.rows
            ]
        if "i_min" in self.title:
            self.say(None, "the columns of single iterations (i_min, i_max, i_p99, i_cv%) are not kept")
        if not ranks or ranks < 2:
            return self.rows, ()
        larger = ranks / (ranks - 1)
        rows = [
            row if row.algbw_bytes_per_s is None else replace(row, algbw_bytes_per_s=row.algbw_bytes_per_s * larger)
            for row in self.rows
        ]
        old = "the algbw of nccl-tests before June 2020"
        whose = "hypercube's algbw" if pattern == "hypercube" else old if pattern else f"{old}, or of hypercube,"
        return rows, (f"{whose} times n/(n-1) = {ranks}/{ranks - 1}: size / time",)

    def _judge_rows(self, pattern: str | None, ranks: int | None) -> None:
        """Which rows contradict themselves, or are of another kind than all others of the run? `ranks`: as
        `_ranks_of_others` says."""
        if pattern == "alltoallv":  # its rates are of the busiest rank
            return
        share = (ranks - 1) / ranks if ranks else 1.0
        timed = "cputime" not in self.title
        for index, why in doubts(self.rows, share, timed):
            row = self.rows[index]
            self.say(row.line, f"line {row.line} contradicts {why}")
            self.rows[index] = replace(row, contradicts=why)

    def _check_average(self) -> None:
        """Rows against the average below them."""
        whole = self._is_average_of_rows()
        if whole is False and self.average_line is not None:
            twice = self._twice()
            why = f"line {twice} stands there twice" if twice else "rows are missing"
            self.lose(
                self.average_line,
                f"line {self.average_line}: the average busbw is not the rows': {why}",
                f"the average busbw is not that of the rows: {why}",
            )
        for line in self.elided:
            if whole:
                self.say(line, f"line {line}: lines were left out here; by the average no row is among them")
            else:
                self.lose(
                    line,
                    f"line {line}: rows were left out here by whoever wrote this",
                    f"rows were left out in line {line}",
                )

    def _twice(self) -> int | None:
        """The line of the first row that has every figure of one before it."""
        seen: set[ForeignRow] = set()
        for row in self.rows:
            figures = replace(row, line=0)
            if figures in seen:
                return row.line
            seen.add(figures)
        return None

    def _is_average_of_rows(self) -> bool | None:
        """Is the closing average that of the rows? None where there is none."""
        rates = [row.busbw_bytes_per_s for row in self.rows if row.busbw_bytes_per_s is not None]
        if self.average is None or not rates or not math.isfinite(self.average):
            return None
        return abs(sum(rates) / len(rates) / 1e9 - self.average) <= 0.0051 + _AVERAGE_DIGITS * abs(self.average)

    def _check_asked(self, asked: tuple[int, ...], ranks: int | None) -> None:
        """Is each size there that was asked for, up to where the rows end? An end that is too early is told apart."""
        missing = absent(asked, self.rows, ranks, self.footer) if not self.cut else []
        if missing:
            told = ", ".join(map(str, missing[:5])) + ", ..." * (len(missing) > 5)
            self.say(None, f"{len(missing)} sizes that were asked for are not there: {told} bytes")
            self.cut = self.cut or f"sizes that were asked for are not there: {told} bytes"

    def _check_whole(self) -> None:
        """Did it end, and did it measure what it was asked for?"""
        if self.failure:
            return
        if not self.rows:
            self.cut = self.cut or ("the log has no rows" if self.footer else "the log ends before the first row")
            return
        if self.footer:
            return
        last, most, step = self.rows[-1], self._setting("max_bytes"), self._setting("step")
        if last.payload_bytes and most and step:
            by_factor = self.settings.get("step_kind") == "factor"
            following = last.payload_bytes * step if by_factor else last.payload_bytes + step
            if following <= most:
                self.lose(
                    self.last_line,
                    f"line {self.last_line}: the log ends at {last.payload_bytes} of {most} bytes",
                    f"the log ends at {last.payload_bytes} bytes, {most} were asked for",
                )
                return
        self.say(None, "the closing lines are missing: whether rows or errors followed is not known")

    def _setting(self, name: str) -> int | None:
        text = self.settings.get(name, "")
        return int(text) if text.isdigit() and len(text) < 20 else None


def dotted(code: int) -> str:
    """22907 -> 2.29.7; 2804 -> 2.8.4, as codes were written before 2.9."""
    major = 10000 if code >= 10000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"
