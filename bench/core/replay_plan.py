"""A plan with the collectives of a recorded training job. The ranks of another job can run this plan.

`job/replay.py` makes the plan, a small JSON file, from traces. `rank/replay.py` runs the plan. Only rank 0 reads the
file. Rank 0 decides which started rank replays which recorded rank. A rank runs its operations one after another. For
each operation of a rank, a plan has two work times: one before the call, and one between the call and the wait for the
operation. The replay therefore overlaps work and exchanges as the recorded job did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.core.dtypes import DTYPES
from bench.core.errors import UsageError

SCHEMA = "bench.replay/1"
_MOST_S = 3600.0  # a longer gap means a damaged file
_MOST_BYTES = 1 << 50
T = TypeVar("T")
# The pattern that runs the same exchange as an operation of a plan.
PATTERN_OF = {
    "allreduce": "allreduce",
    "reduce_scatter": "reducescatter",
    "allgather": "allgather",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "message": "oneway",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of exchange.

    `num_bytes`: the payload S, as defined in docs/metrics.md.
    `members`: the recorded ranks that take part in the exchange. If the exchange is a message, the first member is the
        sender.
    """

    op: str
    num_bytes: int
    dtype: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """The work times of one rank before and during an operation, in seconds.

    `before_s`: the work between the rank's previous call or wait and the call of this operation.
    `wait_s`: the work between the call and the wait for the operation. The value is None if the rank does not wait
        before its next call.
    """

    before_s: float
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One exchange.

    `kind`: the index of the exchange's kind in the plan.
    `recorded_s`: the seconds from the arrival of the last rank to the end of the exchange, in the recorded job.
    """

    kind: int
    recorded_s: float | None
    turns: Mapping[int, Turn]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One recorded step.

    `recorded_s`: the time of the slowest rank in the recorded job.
    `tails_s`: for each rank, the work time after the rank's last operation.
    """

    recorded_s: float
    operations: tuple[Operation, ...]
    tails_s: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A job of `num_ranks` ranks, with the exchanges of the ranks and the work times between exchanges."""

    num_ranks: int
    kinds: tuple[Kind, ...]
    steps: tuple[PlannedStep, ...]

    @property
    def num_operations(self) -> int:
        """The number of operations of all steps."""
        return sum(len(step.operations) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A plan for the ranks that were started.

    `ranks[k]`: the recorded rank that rank k replays.
    `num_left_out`: the number of omitted operations. An operation is omitted if fewer than two of its members are
        replayed.
    `recorded`: the number of ranks of the recorded job.
    """

    plan: ReplayPlan
    ranks: tuple[int, ...]
    num_left_out: int
    recorded: int


def mapped(plan: ReplayPlan, num_ranks: int) -> Mapped:
    """Map a plan to at most `num_ranks` ranks.

    If the recorded job had more than `num_ranks` ranks, only some of them are replayed: either the first ranks, or
    ranks at equal distances. The function chooses the set of ranks that takes part in more exchanges. If only some
    members of a group are replayed, the group keeps these members. If the recorded job had fewer than `num_ranks`
    ranks, the additional ranks stay idle.
    """
    if num_ranks >= plan.num_ranks:
        return _mapped(plan, tuple(range(plan.num_ranks)))
    first = tuple(range(num_ranks))
    spread = tuple(rank * plan.num_ranks // num_ranks for rank in range(num_ranks))
    return min((_mapped(plan, spread), _mapped(plan, first)), key=lambda found: found.num_left_out)


def _mapped(plan: ReplayPlan, ranks: tuple[int, ...]) -> Mapped:
    here = {recorded: rank for rank, recorded in enumerate(ranks)}
    kinds: dict[Kind, int] = {}
    index: dict[int, int] = {}
    for number, kind in enumerate(plan.kinds):
        members = tuple(here[member] for member in kind.members if member in here)
        whole = kind.op != "message" or len(members) == len(kind.members)
        if len(members) > 1 and whole:
            index[number] = kinds.setdefault(replace(kind, members=members), len(kinds))
    steps = []
    for step in plan.steps:
        operations = tuple(
            Operation(index[one.kind], one.recorded_s, _of_ranks(one.turns, plan.kinds[one.kind].members, here))
            for one in step.operations
            if one.kind in index
        )
        steps.append(PlannedStep(step.recorded_s, operations, _of_ranks(step.tails_s, ranks, here)))
    own = ReplayPlan(len(ranks), tuple(kinds), tuple(steps))
    return Mapped(own, ranks, plan.num_operations - own.num_operations, plan.num_ranks)


def _of_ranks(known: Mapping[int, T], members: Sequence[int], here: Mapping[int, int]) -> dict[int, T]:
    """Return a value for each replayed rank.

    A rank without a trace gets the value of the first rank that has a trace.
    """
    first = known[min(known)]
    return {here[member]: known.get(member, first) for member in members if member in here}


def to_json(plan: ReplayPlan) -> dict[str, Any]:
    """Return the plan as its file stores it, with times rounded to 0.1 us."""
    return {
        "schema": SCHEMA,
        "num_ranks": plan.num_ranks,
        "kinds": [
            {"op": kind.op, "num_bytes": kind.num_bytes, "dtype": kind.dtype, "members": list(kind.members)}
            for kind in plan.kinds
        ],
        "steps": [
            {
                "recorded_s": _rounded(step.recorded_s),
                "operations": [
                    {
                        "kind": one.kind,
                        "recorded_s": _rounded(one.recorded_s),
                        "turns": {
                            str(rank): [_rounded(turn.before_s), _rounded(turn.wait_s)]
                            for rank, turn in one.turns.items()
                        },
                    }
                    for one in step.operations
                ],
                "tails_s": {str(rank): _rounded(seconds) for rank, seconds in step.tails_s.items()},
            }
            for step in plan.steps
        ],
    }


def write(plan: ReplayPlan, file: Path) -> None:
    """Write a plan. Raises UsageError if the file cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(to_json(plan), separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror}): use another folder") from None


def read(file: Path) -> ReplayPlan:
    """Read a plan. Raises UsageError if the file is not a valid plan."""
    try:
        return from_json(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"--plan {file} cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError):
        raise UsageError(f"--plan {file} is not a replay plan: write one with linkbench job replay") from None


def from_json(stored: Any) -> ReplayPlan:
    """Return a plan from its JSON form. Raises ValueError, TypeError or KeyError if the JSON form is damaged."""
    if stored["schema"] != SCHEMA:
        raise ValueError(stored["schema"])
    num_ranks = _whole(stored["num_ranks"], 1, 1 << 20)
    kinds = tuple(_kind(kind, num_ranks) for kind in stored["kinds"])
    steps = tuple(_step(step, kinds, num_ranks) for step in stored["steps"])
    if not steps or not all(step.tails_s for step in steps):
        raise ValueError("no step")
    return ReplayPlan(num_ranks, kinds, steps)


def _kind(stored: Mapping[str, Any], num_ranks: int) -> Kind:
    members = tuple(_whole(member, 0, num_ranks - 1) for member in stored["members"])
    if len(set(members)) != len(members):
        raise ValueError("members")
    op, dtype = stored["op"], stored["dtype"]
    if op not in PATTERN_OF or dtype not in DTYPES:
        raise ValueError(op, dtype)
    return Kind(op, _whole(stored["num_bytes"], 0, _MOST_BYTES), dtype, members)


def _step(stored: Mapping[str, Any], kinds: Sequence[Kind], num_ranks: int) -> PlannedStep:
    operations = []
    for one in stored["operations"]:
        turns = {
            _whole(int(rank), 0, num_ranks - 1): Turn(_seconds(before), None if wait is None else _seconds(wait))
            for rank, (before, wait) in one["turns"].items()
        }
        kind = _whole(one["kind"], 0, len(kinds) - 1)
        if not turns or not set(turns) <= set(kinds[kind].members):
            raise ValueError("turns")
        recorded = None if one["recorded_s"] is None else _seconds(one["recorded_s"])
        operations.append(Operation(kind, recorded, turns))
    tails = {_whole(int(rank), 0, num_ranks - 1): _seconds(tail) for rank, tail in stored["tails_s"].items()}
    return PlannedStep(_seconds(stored["recorded_s"]), tuple(operations), tails)


def _whole(value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(value)
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_S:
        raise ValueError(value)
    return float(value)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 7)
