"""Who is measured and who disturbs."""

from __future__ import annotations

import pytest

from bench.core.case import Case
from bench.core.case_argv import from_argv
from bench.core.contention import aggressor, parts, rounds
from bench.core.errors import UsageError
from bench.core.world import World


def case(split: str = "alternate", **more: str) -> Case:
    return Case("allreduce", aggressor="alltoall:4M", split=split, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("split", "world", "victims", "aggressors", "idle"),
    [
        ("alternate", World(2, 2), (0, 2), (1, 3), ()),
        ("alternate", World(4, 1), (0, 2), (1, 3), ()),
        ("halves", World(2, 4), (0, 1, 4, 5), (2, 3, 6, 7), ()),
        ("0-1,4/2,5-6", World(2, 4), (0, 1, 4), (2, 5, 6), (3, 7)),
    ],
)
def test_a_split_gives_every_rank_its_part(
    split: str, world: World, victims: tuple[int, ...], aggressors: tuple[int, ...], idle: tuple[int, ...]
) -> None:
    found = parts(case(split), world)
    assert found is not None
    assert (found.victims.ranks, found.aggressors.ranks, found.idle) == (victims, aggressors, idle)


@pytest.mark.parametrize(
    ("split", "world", "fact"),
    [
        ("0-1/1-2", World(1, 4), "rank 1"),
        ("0/4", World(1, 4), "rank 4"),
        ("halves", World(4, 1), "4 x 1"),
        ("alternate", World(1, 1), "1 x 1"),
    ],
)
def test_a_split_that_does_not_fit_the_world_is_refused(split: str, world: World, fact: str) -> None:
    with pytest.raises(UsageError, match=f"--split {split}.*{fact}"):
        parts(case(split), world)


def test_a_case_without_an_aggressor_has_one_part() -> None:
    assert parts(Case("allreduce"), World(2, 2)) is None
    assert [[g.ranks for g in r] for r in rounds(Case("allreduce"), World(2, 2), "world")] == [[(0, 1, 2, 3)]]


@pytest.mark.parametrize(
    ("topology", "groups"),
    [
        ("world", [[("victims", (0, 1, 4, 5))]]),
        ("node", [[("node0", (0, 1)), ("node1", (4, 5))]]),
        ("rail", [[("rail0", (0, 4)), ("rail1", (1, 5))]]),
        ("groups of 2", [[("group0", (0, 1)), ("group1", (4, 5))]]),
    ],
)
def test_the_topology_is_made_of_the_victims(topology: str, groups: list[list[tuple[str, tuple[int, ...]]]]) -> None:
    found = rounds(case("halves", topology=topology), World(2, 4), topology)
    assert [[(group.name, group.ranks) for group in at_once] for at_once in found] == groups


def test_groups_of_victims_must_be_of_one_size() -> None:
    with pytest.raises(UsageError, match=r"topology node .*0, 1, 4"):
        rounds(case("0,1,4/2", topology="node"), World(2, 4), "node")


def test_an_aggressor_is_a_pattern_with_a_size() -> None:
    assert aggressor(from_argv(["allreduce", "--aggressor", "incast:3M"])) == ("incast", 3 << 20)
    assert aggressor(from_argv(["allreduce", "--aggressor", "alltoall"])) == ("alltoall", 4 << 20)
    for wrong, fact in (("alltoal", "'alltoall'"), ("alltoall:0", "'0'"), ("alltoall:x", "'x'")):
        with pytest.raises(UsageError, match=f"--aggressor: .*{fact}"):
            from_argv(["allreduce", "--aggressor", wrong])
    with pytest.raises(UsageError, match=r"--split: .*'0-3'"):
        from_argv(["allreduce", "--split", "0-3"])
