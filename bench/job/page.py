"""The page of `linkbench job explain`: the answer, the parts of a step, the changes that would help, the exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from statistics import median
from typing import Any

from bench.core.codes import Coded
from bench.core.step_trace import StepPart
from bench.core.units import format_bytes, format_duration, format_rate
from bench.job.messages import AnswerCode, CauseCode, WhatIf
from bench.job.model import Cause, Copies, ExchangeKind, Explained
from bench.results import text
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table

SCHEMA = "bench.job/1"
_LETTERS = {
    StepPart.DATA_WAIT: "d",
    StepPart.COMPUTE: "#",
    StepPart.IMBALANCE: "w",
    StepPart.EXPOSED_EXCHANGE: "x",
    StepPart.EXPOSED_COPY: "c",
    StepPart.HOST_BOUND: "h",
    StepPart.OTHER: ".",
}
TITLES = {
    StepPart.DATA_WAIT: "data",
    StepPart.COMPUTE: "compute",
    StepPart.IMBALANCE: "waits",
    StepPart.EXPOSED_EXCHANGE: "exchange",
    StepPart.EXPOSED_COPY: "copies",
    StepPart.HOST_BOUND: "host",
    StepPart.OTHER: "other",
}
COLOURS = {  # Okabe and Ito's colours, which colour-blind readers can distinguish
    StepPart.DATA_WAIT: "#e69f00",
    StepPart.COMPUTE: "#009e73",
    StepPart.IMBALANCE: "#d55e00",
    StepPart.EXPOSED_EXCHANGE: "#0072b2",
    StepPart.EXPOSED_COPY: "#56b4e9",
    StepPart.HOST_BOUND: "#cc79a7",
    StepPart.OTHER: "#999999",
}
_BAR = 32  # characters of the bar of the longest step
_MOST_RANKS = 16  # ranks that are shown one by one; if there are more, those that differ most are shown
_MOST_EXCHANGES = 12


@dataclass(frozen=True, slots=True)
class RankParts:
    """The step of one rank: medians over steps, in seconds."""

    rank: int
    host: str | None
    step_s: float
    parts: Mapping[StepPart, float]


@dataclass(frozen=True, slots=True)
class TrainingPrice:
    """The price of GPU time, and the number of steps of the training."""

    usd_per_gpu_hour: float
    num_steps: int
    num_gpus: int

    def gpu_hours(self, gain_s: float) -> float:
        """Return the GPU-hours that a gain per step saves over the whole training."""
        return gain_s * self.num_steps * self.num_gpus / 3600

    def usd(self, gain_s: float) -> float:
        """Return the price of the GPU-hours that a gain per step saves over the whole training."""
        return self.gpu_hours(gain_s) * self.usd_per_gpu_hour


@dataclass(frozen=True)
class JobReport(Report):
    """The contents of a job's page.

    `remarks`: remarks on files that could not be read.
    `price`: the price of GPU time, if known.
    """

    explained: Explained
    remarks: Sequence[Coded] = ()
    price: TrainingPrice | None = None

    @cached_property
    def ranks(self) -> list[RankParts]:
        """The parts of every rank's step."""
        found = []
        by_rank: dict[int, list[Any]] = {}
        for step in self.explained.steps:
            by_rank.setdefault(step.rank, []).append(step)
        for rank, steps in by_rank.items():
            parts = {part: median(step.parts[part] for step in steps) for part in StepPart}
            step_s = median(step.end_s - step.start_s for step in steps)
            found.append(RankParts(rank, self.explained.job.traces[rank].host, step_s, parts))
        return found

    @property
    def accused(self) -> set[int]:
        """The ranks that the page names as late."""
        causes = self.explained.causes
        return {rank for cause in causes if cause.code == CauseCode.LATE_RANK for rank in cause.ranks}

    @property
    def shown_ranks(self) -> list[RankParts]:
        """The ranks that the page shows.

        If a job has many ranks, the page shows the ranks whose parts differ most from the median of all ranks.
        """
        if len(self.ranks) <= _MOST_RANKS:
            return self.ranks
        usual = {part: median(one.parts[part] for one in self.ranks) for part in StepPart}
        differing = sorted(self.ranks, key=lambda one: -sum(abs(one.parts[part] - usual[part]) for part in StepPart))
        return sorted(differing[:_MOST_RANKS], key=lambda one: one.rank)

    def blocks(self) -> Iterable[Block]:
        """Yield the page for people, which begins with the answer."""
        yield Heading(self.answer())
        yield Lines([self.what()])
        yield from self.causes()
        if self.explained.step_s is not None:
            yield from self.parts()
            yield from self.what_ifs()
            yield from self.exchanges()
        yield from self.all_remarks()

    def causes(self) -> Iterator[Block]:
        """Yield the causes, each with its gain, its evidence and how to confirm it."""
        if self.explained.causes:
            lines = [*self._causes()]
            if any(map(_has_gain, self.explained.causes)):
                lines.append(Coded.of(AnswerCode.WORDS_OF_CAUSES).text)
            yield Lines(lines, title="Causes")

    def all_remarks(self) -> Iterator[Block]:
        """Yield the remarks on gaps and contradictions in the files."""
        yield Lines([remark.text for remark in (*self.explained.job.remarks, *self.remarks)], title="Remarks")

    def what(self) -> str:
        """Return a description of the traced job: ranks, hosts, devices, steps."""
        job = self.explained.job
        traces = [*job.traces.values()]
        hosts = {trace.host for trace in traces if trace.host}
        devices = sorted({trace.device_name for trace in traces if trace.device_name})
        words = [f"{text.count(job.num_ranks, 'rank')}" + (f" on {text.count(len(hosts), 'host')}" if hosts else "")]
        if job.missing:
            words.append(f"{len(traces)} of them with a trace")
        words += devices or ([] if any(trace.on_device for trace in traces) else ["no GPU"])
        if self.explained.step_s is not None:
            words.append(f"{text.count(job.num_steps, 'step')} of {format_duration(self.explained.step_s)} (median)")
        return ", ".join(words)

    def answer(self) -> str:
        """Return the answer in one sentence."""
        explained = self.explained
        if explained.step_s is None:
            return Coded.of(AnswerCode.NO_STEPS).text
        uncertain = next((gain for gain in explained.gains if gain.gain_s > explained.limit_s), None)
        if not explained.causes and uncertain is not None:
            times = {"gain_s": uncertain.gain_s, "low_s": uncertain.low_s, "high_s": uncertain.high_s}
            return Coded.of(AnswerCode.UNCERTAIN, what=WhatIf(uncertain.name).template, **times).text
        if not explained.causes:
            return Coded.of(AnswerCode.NOTHING, limit_s=explained.limit_s).text
        first = explained.causes[0]
        if not _has_gain(first):
            return first.words.text
        facts = {"cause": first.words.text, "gain_s": first.gain_s, "step_s": explained.step_s}
        return Coded.of(AnswerCode.FIRST, **facts, share=first.gain_s / explained.step_s).text

    def _causes(self) -> Iterator[str]:
        """Yield the causes.

        Each cause has the time that a step would save, the evidence, and a way to confirm the cause.
        """
        for number, cause in enumerate(self.explained.causes, 1):
            gain = f"{_ms(cause.gain_s)} ms a step [{_ms(cause.gain_low_s)} .. {_ms(cause.gain_high_s)}]"
            if self.explained.job.num_steps == 1:
                gain = f"{_ms(cause.gain_s)} ms in the only recorded step"
            price = f", {self._priced(cause)}" if self.price else ""
            yield f"{number}. {cause.code}: {cause.words.text}"
            if _has_gain(cause):
                yield f"   returns {gain}{price}; confidence {cause.confidence:g}"
            for evidence in cause.evidence:
                yield f"   {evidence.text}"
            yield f"   confirm: {cause.confirm.text}"

    def _priced(self, cause: Cause) -> str:
        assert self.price is not None
        hours, usd = self.price.gpu_hours(cause.gain_s), self.price.usd(cause.gain_s)
        return f"{hours:,.4g} GPU-hours or {usd:,.4g} USD over {text.count(self.price.num_steps, 'step')}"

    @property
    def parts_title(self) -> str:
        """The title of the table and of the figure that show the parts."""
        title = "Where the step goes: ms, medians over steps; waits: for a rank that is late"
        if len(self.shown_ranks) < len(self.ranks):
            title += f"; the {len(self.shown_ranks)} ranks of {len(self.ranks)} that differ most"
        return title

    def origin(self) -> str:
        """Return a line that says who measured the figures, and on which days."""
        days = sorted(
            {
                datetime.fromtimestamp(trace.epoch_s, UTC).date().isoformat()
                for trace in self.explained.job.traces.values()
                if trace.epoch_s
            }
        )
        return Coded.of(AnswerCode.ORIGIN, days=" to ".join(dict.fromkeys([*days[:1], *days[-1:]])) or None).text

    def files(self) -> Iterator[Block]:
        """Yield the name of each shown rank's file."""
        traces = self.explained.job.traces
        columns = [
            Column("rank", lambda rank: str(rank)),
            Column("host", lambda rank: traces[rank].host or NOTHING, right=False, optional=True),
            Column("file", lambda rank: traces[rank].source, right=False),
            Column("steps", lambda rank: str(len(traces[rank].steps))),
            Column("events", lambda rank: str(traces[rank].num_events)),
        ]
        shown = [one.rank for one in self.shown_ranks] or [*traces][:_MOST_RANKS]
        rest = len(traces) - len(shown)
        yield Table(columns, shown, title=f"Files that were read{f'; {rest} more' if rest else ''}")

    def parts(self, is_terminal: bool = True) -> Iterator[Block]:
        """Yield the parts of each rank's step. Parts that take no time on any rank are left out.

        `is_terminal`: whether the output is a terminal. On a terminal, each rank has a row of letters, and the title of
        each part shows the part's letter.
        """
        longest = max((one.step_s for one in self.ranks), default=0.0)
        shown = self.shown_ranks
        columns = [
            Column("rank", lambda one: str(one.rank)),
            Column("host", lambda one: one.host or NOTHING, right=False, optional=True, leave_out=1),
            Column("step", lambda one: _ms(one.step_s), unit="(ms)"),
        ]
        for part in StepPart:
            if any(_ms(one.parts[part]) != _ms(0) for one in shown):
                letter = f"({_LETTERS[part]})" if is_terminal else ""
                columns.append(Column(TITLES[part], _cell(part), unit=letter, leave_out=_LEAVE_OUT.get(part, 0)))
        if is_terminal:
            columns.append(Column("the step in letters", lambda one: _bar(one, longest), right=False, leave_out=9))
        yield Table(columns, shown, title=self.parts_title)

    def what_ifs(self) -> Iterator[Block]:
        """Yield the changes that would help."""
        gains = [one for one in self.explained.gains if one.high_s > 0]
        step_s = self.explained.step_s or 0.0
        words = {name.value: name.template for name in WhatIf}
        columns = [
            Column("gain", lambda one: _ms(one.gain_s), unit="(ms)"),
            Column("interval", lambda one: f"{_ms(one.low_s)} .. {_ms(one.high_s)}", unit="(ms)"),
            Column("step", lambda one: _ms(step_s - one.gain_s), unit="(ms)"),
            Column("what if", lambda one: words[one.name], right=False, wrapped=True),
        ]
        if gains:
            title = "What would help, by replay of the recorded steps with one change on all ranks; gains do not add up"
            yield Table(columns, gains, title=title)

    def exchanges(self) -> Iterator[Block]:
        """Yield the exchanges and copies by type."""
        columns = [
            Column("exchange", lambda one: one.op, right=False),
            Column("size", lambda one: format_bytes(one.num_bytes) if one.num_bytes else NOTHING),
            Column("ranks", lambda one: str(one.group_size or NOTHING)),
            Column("groups", lambda one: str(one.num_groups), leave_out=3),
            Column("a step", lambda one: f"{one.num_per_step:g}"),
            Column("takes", _time),
            Column("bound", lambda one: _duration(one.ideal_s), optional=True),
            Column("others reach", _expected, optional=True),
        ]
        shown = self.explained.exchanges[:_MOST_EXCHANGES]
        if shown:
            title = "Exchanges, from when the last rank was ready"
            rest = len(self.explained.exchanges) - len(shown)
            yield Table(columns, shown, title=title + (f"; {rest} more kinds" if rest else ""))
        columns = [
            Column("copies", lambda one: one.direction.value, right=False),
            Column("memory", _memory, right=False),
            Column("a step", lambda one: format_bytes(one.num_bytes)),
            Column("rate", lambda one: format_rate(one.bytes_per_s)),
            Column("exposed", lambda one: _duration(one.exposed_s)),
        ]
        if self.explained.copies:
            yield Table(columns, self.explained.copies)

    def data(self) -> Mapping[str, Any]:
        """Return the job as JSON. All times are seconds, medians over steps."""
        explained = self.explained
        job = explained.job
        return {
            "schema": SCHEMA,
            "num_ranks": job.num_ranks,
            "steps": job.num_steps,
            "step_s": explained.step_s,
            "limit_s": explained.limit_s,
            "clock_bound_s": job.alignment.bound_s,
            "closure": explained.closure,
            "ranks": [
                {
                    "rank": one.rank,
                    "host": one.host,
                    "step_s": one.step_s,
                    "parts": {f"{part.value}_s": seconds for part, seconds in one.parts.items()},
                    "source": job.traces[one.rank].source,
                }
                for one in self.ranks
            ],
            "missing_ranks": job.missing,
            "late_ranks": [
                {"rank": one.rank, "segment": one.segment.value, "late_s": one.late_s, "share": one.share}
                for one in explained.late_ranks
            ],
            "collectives": explained.exchanges,
            "copies": [_plain_copies(one) for one in explained.copies],
            "what_if": [
                {"code": one.name, "gain_s": one.gain_s, "gain_low_s": one.low_s, "gain_high_s": one.high_s}
                for one in explained.gains
            ],
            "causes": [self._plain(cause) for cause in explained.causes],
            "remarks": [one.to_plain() for one in (*job.remarks, *self.remarks)],
        }

    def _plain(self, cause: Cause) -> Mapping[str, Any]:
        found: dict[str, Any] = {
            "code": cause.code,
            "gain_s": cause.gain_s,
            "gain_low_s": cause.gain_low_s,
            "gain_high_s": cause.gain_high_s,
            "confidence": cause.confidence,
            "ranks": cause.ranks,
            "facts": cause.words.facts,
            "text": cause.words.text,
            "evidence": [one.to_plain() for one in cause.evidence],
            "command": cause.confirm.text,
        }
        if self.price is not None:
            found |= {"gpu_hours": self.price.gpu_hours(cause.gain_s), "usd": self.price.usd(cause.gain_s)}
        return found

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Yield a line for each rank."""
        for one in self.ranks:
            parts = {f"{part.value}_s": seconds for part, seconds in one.parts.items()}
            yield {"rank": one.rank, "host": one.host, "step_s": one.step_s, **parts}


_LEAVE_OUT = {StepPart.EXPOSED_COPY: 4, StepPart.OTHER: 5, StepPart.HOST_BOUND: 3}


def _cell(part: StepPart) -> Any:
    return lambda one: _ms(one.parts[part])


def _has_gain(cause: Cause) -> bool:
    """Check whether the page shows the time that a step would save without this cause."""
    return bool(cause.gain_s) and cause.code != CauseCode.UNKNOWN


def _ms(seconds: float) -> str:
    """Return milliseconds with a useful number of digits."""
    if abs(seconds) < 0.5e-6:
        return "0"
    return f"{seconds * 1e3:.3g}" if abs(seconds) < 0.1 else f"{seconds * 1e3:.0f}"


def _bar(one: RankParts, longest: float) -> str:
    """Draw a rank's step as a row of letters.

    The number of equal letters shows the time of one part. A part that rounds to zero has no letter.
    """
    letters, done = "", 0.0
    for part, letter in _LETTERS.items():
        done += one.parts[part]
        letters += letter * (round(done / longest * _BAR) - len(letters))
    return letters


def _duration(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_duration(seconds)


def _time(one: ExchangeKind) -> str:
    return _duration(one.transfer_s)


def _expected(one: ExchangeKind) -> str:
    if one.expected_low_s is None or one.expected_high_s is None:
        return NOTHING
    return f"{format_duration(one.expected_low_s)} to {format_duration(one.expected_high_s)}"


def _memory(one: Copies) -> str:
    return {True: "pinned", False: "pageable", None: NOTHING}[one.pinned]


def _plain_copies(one: Copies) -> Mapping[str, Any]:
    return {
        "direction": one.direction.value,
        "bytes": one.num_bytes,
        "bytes_per_s": one.bytes_per_s,
        "pinned": one.pinned,
        "exposed_s": one.exposed_s,
    }
