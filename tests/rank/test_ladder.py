"""A ladder of real records: rounds are asked for until the verdict stands, rank 0 decides, nothing runs for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.core.case import Case
from bench.core.program import Round
from bench.core.record import Record, Samples, Skip
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

    rows = list(ladder.climb(CASE, places, broadcast, True, lambda: True, lambda round_: measured(round_, 3)))
    assert told[-1] == () and sum(map(len, told)) == len(rows)
    names = [record.group for row in rows for record in row]
    assert len(set(names)) == len(names)
    taken = [row for name in names for row in rows_of(name, 1.0, False)]
    assert {stage for *_, stage in taken} == {1, 2, 4}  # screen, node, confirm


def test_the_other_ranks_do_what_the_first_says() -> None:
    said: Iterator[Any] = iter([("a round",), ()])
    done: list[Any] = []
    places = Places(("h0", "h1"), (None, None))
    rows = ladder.climb(
        CASE,
        places,
        lambda mine: next(said) if mine == () else None,
        False,
        lambda: True,
        lambda round_: done.append(round_) or (),  # type: ignore[func-returns-value]
    )
    assert list(rows) == [()]
    assert done == ["a round"]


def test_a_ladder_whose_rows_are_all_skipped_ends() -> None:
    places = Places(("h0", "h1"), (None, None))

    def skipped(round_: Round) -> tuple[Record, ...]:
        return tuple(
            Record("pipelined", (8,), 8, 2, 2, group.name, skipped=Skip.uncoded("no memory")) for group in round_
        )

    rows = list(ladder.climb(CASE, places, lambda asked: asked, True, lambda: True, skipped))
    assert 0 < len(rows) < 20


def test_time_up_ends_it() -> None:
    places = Places(("h0", "h1", "h2"), (None,) * 3)
    assert not list(ladder.climb(CASE, places, lambda asked: asked, True, lambda: False, lambda round_: ()))
    assert localise(PairSamples.of(()), places).accused == ()
