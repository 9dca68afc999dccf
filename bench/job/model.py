"""Define the data of an explained job: matched ranks, the parts of the steps, and the causes of lost time.

All times are seconds. After `align.py`, times of all ranks are on the clock of the reference rank.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType

from bench.core.codes import Coded
from bench.core.step_trace import Direction, RankTrace, StepPart, StepSegment, TracedCollective

MESSAGE = "message"  # the operation of a matched send and receive


@dataclass(frozen=True, slots=True)
class Alignment:
    """The alignment of the ranks' clocks with the clock of the reference rank.

    A time t of rank r is u + drifts[r] * (u - origin_s) on the reference's clock, where u = t + offsets_s[r].

    `bound_s`: the remaining spread of the end times of collectives. Smaller differences between two ranks are not
    significant. The value is None if no collective could be compared.
    `drifts`: the significant drifts in seconds per second, by rank. Other clocks are assumed to have no drift.
    """

    reference: int
    offsets_s: Mapping[int, float]
    bound_s: float | None
    num_collectives: int
    drifts: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    origin_s: float = 0.0

    def aligned(self, rank: int, time_s: float) -> float:
        """Convert a time of a rank to the reference's clock."""
        time_s += self.offsets_s.get(rank, 0.0)
        return time_s + self.drifts.get(rank, 0.0) * (time_s - self.origin_s)

    def own(self, rank: int, time_s: float) -> float:
        """Convert a time on the reference's clock to the clock of a rank."""
        drift = self.drifts.get(rank, 0.0)
        return (time_s + drift * self.origin_s) / (1 + drift) - self.offsets_s.get(rank, 0.0)


@dataclass(frozen=True, slots=True)
class MatchedCollective:
    """One collective, with the records of all ranks that took part and have a trace.

    `arrivals_s`, `starts_s`, `ends_s`: the times of each rank on the clock of the reference rank.
    `complete`: whether all members of the group have a file.
    `parts`: the record of each rank, on the rank's own clock.
    """

    group: str
    place: int
    op: str
    num_bytes: int | None
    dtype: str | None
    group_size: int | None
    arrivals_s: Mapping[int, float]
    starts_s: Mapping[int, float]
    ends_s: Mapping[int, float]
    complete: bool
    timed: bool = True
    parts: Mapping[int, TracedCollective] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def last_arrival_s(self) -> float:
        """The time at which the last rank arrived."""
        return max(self.arrivals_s.values())


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of one rank.

    `parts`: the seconds of each part of the step. The sum of all parts is end_s - start_s.
    """

    rank: int
    step: int
    start_s: float
    end_s: float
    parts: Mapping[StepPart, float]


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that arrived late at an exchange: how late it was, and which segment of its work took too long."""

    step: int
    rank: int
    late_s: float
    segment: StepSegment
    collective: int  # its index in TracedJob.collectives


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank for which other ranks waited.

    `share`: the share of steps in which the rank was late.
    `late_s`: the median of the rank's lateness at one exchange.
    `total_s`: the sum of the rank's lateness over all exchanges.
    `segment`: the segment that causes most of the lateness.
    """

    rank: int
    segment: StepSegment
    late_s: float
    share: float
    total_s: float


@dataclass(frozen=True, slots=True)
class TracedJob:
    """The traces of a job, with matched collectives and aligned clocks.

    All traces have the same steps. If the files mark no steps, the whole recording is one step.

    `remarks`: gaps and contradictions in the files.
    """

    traces: Mapping[int, RankTrace]
    num_ranks: int
    alignment: Alignment
    collectives: Sequence[MatchedCollective]
    num_steps: int
    missing: tuple[int, ...] = ()
    remarks: tuple[Coded, ...] = ()

    def step_span(self, rank: int, step: int) -> tuple[float, float]:
        """Return the start and end of a rank's step on its own clock."""
        return self.traces[rank].steps[step]

    def step_of(self, rank: int, time_s: float) -> int | None:
        """Return the number of the rank's step that contains a time on the rank's own clock."""
        steps = self.traces[rank].steps
        number = bisect_right(steps, time_s, key=itemgetter(0)) - 1
        return number if number >= 0 and time_s < steps[number][1] else None


@dataclass(frozen=True, slots=True)
class Gain:
    """The time that a change would save per step, from replays.

    `gain_s`, `low_s`, `high_s`: the median over steps with its 95 % interval.
    `by_step`: the saving in every step.
    `name`: a change in `messages.WhatIf`, or the code of a cause.
    """

    name: str
    gain_s: float
    low_s: float
    high_s: float
    by_step: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of lost time, and the time per step that would be saved without this cause.

    `code`: one of `messages.CauseCode`.
    `words`: the text of the cause, with its facts.
    `confidence`: a number from 0 to 1.
    `evidence`: facts from the traces that indicate this cause.
    `confirm`: a command or change that confirms the cause.
    """

    code: str
    gain_s: float
    gain_low_s: float
    gain_high_s: float
    confidence: float
    words: Coded
    evidence: tuple[Coded, ...]
    confirm: Coded
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExchangeKind:
    """All collectives of one type: the same operation, bytes and size of the group.

    `num_per_step`: the number of these collectives in a step of one rank.
    `transfer_s`: the median time of one collective. The time begins when all ranks have arrived and the previous
    collective of each rank has ended.
    `ideal_s`: the shortest time that the links allow.
    `expected_low_s`, `expected_high_s`: the range of times that libraries reach on these links.

    An unknown time is None.
    """

    op: str
    num_bytes: int | None
    dtype: str | None
    group_size: int | None
    num_groups: int
    num_per_step: float
    transfer_s: float | None
    ideal_s: float | None = None
    expected_low_s: float | None = None
    expected_high_s: float | None = None


@dataclass(frozen=True, slots=True)
class Copies:
    """The host-device copies of one direction and one type of host memory, in a step of one rank.

    All figures are medians over ranks.
    """

    direction: Direction
    pinned: bool | None
    num_bytes: float
    bytes_per_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class Explained:
    """The explanation of a job.

    `step_s`: the median time of a step, measured on the slowest rank of each step; None without steps.
    `gains`: for each change in `messages.WhatIf`, the time that the change would save.
    `limit_s`: the saving that a cause must exceed. The page does not name causes with a smaller saving.
    `closure`: the largest relative difference between a recorded step and its replay without a change.
    """

    job: TracedJob
    steps: Sequence[RankStep]
    step_s: float | None
    late: Sequence[Late]
    late_ranks: Sequence[LateRank]
    gains: Sequence[Gain]
    causes: Sequence[Cause]
    limit_s: float
    exchanges: Sequence[ExchangeKind] = ()
    copies: Sequence[Copies] = ()
    closure: float = 0.0
