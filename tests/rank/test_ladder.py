"""A ladder of real records: rounds are asked for until the verdict stands, rank 0 decides, nothing runs for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.core.case import Case
from bench.core.program import Round
from bench.core.record import Record, Samples, Skip
from bench.core.skips import SkipCode
from bench.diagnose.localise import PairSamples, Places, localise
from bench.diagnose.pair_evidence import rows_of
from bench.rank import ladder

CASE = Case("pairs", transport="gloo", schedule="ladder", sizes=(1 << 20,), nics=("eth0", "eth1"))


def measured(round_: Round, slow: int) -> tuple[Record, ...]:
    return tuple(
        Record(
            "pipelined",
            (1 << 20,),
            1 << 20,
            2,
            2,
            group.name,
            group.src,
            group.dst,
            samples=Samples((0.02 if slow in group.ranks else 0.01,) * 30),
        )
        for group in round_
    )


def test_where_no_nics_are_named_each_gpu_has_its_own() -> None:
    for transport, clock, nics in (("nccl", "device", "gpu1"), ("mpi_cuda", "host", "gpu1"), ("mpi", "host", None)):
        case = Case("pairs", transport=transport, schedule="ladder", sizes=(1 << 20,))
        assert ladder.places(case, ["h0", "h0", "h1", "h1"], 2, clock).nics[1] == nics


def test_rounds_go_on_until_the_slow_nic_is_known() -> None:
    places = ladder.places(CASE, [f"h{rank // 2}" for rank in range(8)], 2, "host")
    assert places.nics[:3] == ("eth0", "eth1", "eth0")
    told: list[Any] = []

    def broadcast(asked: Any) -> Any:
        told.append(asked)
        return asked

    rows = list(ladder.measure_rounds(CASE, places, broadcast, True, lambda round_: measured(round_, 3)))
    assert told[-1] == () and sum(map(len, told)) == len(rows)
    names = [record.group for row in rows for record in row]
    assert len(set(names)) == len(names)
    taken = [row for name in names for row in rows_of(name, 1.0, False)]
    assert {stage for *_, stage in taken} == {1, 2, 4}  # screen, node, confirm


def test_the_other_ranks_do_what_the_first_says() -> None:
    said: Iterator[Any] = iter([("a round",), ()])
    done: list[Any] = []
    places = Places(("h0", "h1"), (None, None))
    rows = ladder.measure_rounds(
        CASE,
        places,
        lambda mine: next(said) if mine == () else None,
        False,
        lambda round_: done.append(round_) or (),  # type: ignore[func-returns-value]
    )
    assert list(rows) == [()]
    assert done == ["a round"]


def skipped(round_: Round) -> tuple[Record, ...]:
    """Records of a round for which no time was left."""
    reason = Skip.of(SkipCode.BUDGET, budget_s=1.0)
    return tuple(Record("pipelined", (8,), 8, 2, 2, group.name, skipped=reason) for group in round_)


@pytest.mark.parametrize("num_in_time", [0, 1, 3, 12])
def test_every_round_that_the_budget_leaves_out_is_a_skipped_row(num_in_time: int) -> None:
    places = Places(tuple(f"h{rank}" for rank in range(4)), (None,) * 4)
    taken: list[tuple[Record, ...]] = []

    def measure(round_: Round) -> tuple[Record, ...]:
        taken.append(measured(round_, 3) if len(taken) < num_in_time else skipped(round_))
        return taken[-1]

    rows = list(ladder.measure_rounds(CASE, places, lambda asked: asked, True, measure))
    assert rows == taken and len(rows) >= 6, "the first rounds are always asked for"
    assert len(rows) < 60
    records = [record for row in rows for record in row]
    left_out = [record.skipped.code for record in records if record.skipped is not None]
    assert left_out and set(left_out) == {SkipCode.BUDGET}
    assert sum(record.samples is not None for record in records) == sum(map(len, rows[:num_in_time]))


def test_a_ladder_without_samples_accuses_nobody() -> None:
    places = Places(("h0", "h1", "h2"), (None,) * 3)
    assert localise(PairSamples.of(()), places).accused == ()
