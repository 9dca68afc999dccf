"""The lines of scaling and contention: what a reader is told, and warned of."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from bench.results import interference_text, scaling_text, sharing_text, spread_text
from bench.results.document import Interference, Scaling, Sharing, Spread


def one(kind: Any, **given: Any) -> Any:
    return kind(**dict.fromkeys(field.name for field in fields(kind)) | given)


WORLD: dict[str, Any] = {
    "pattern": "allreduce",
    "transport": "mpi",
    "mode": "pipelined",
    "payload_bytes": 1 << 20,
    "ranks_per_node": 8,
}


def test_a_world_stands_beside_its_reference_and_its_bound() -> None:
    nodes = {**WORLD, "factor": "nodes", "reference": "2", "oversubscribed": False, "busbw_bytes_per_s": 7e9}
    lines = scaling_text.lines(
        [
            one(Scaling, **nodes, value="2", num_nodes=2, efficiency=1.0, bound_fraction=0.9),
            one(
                Scaling,
                **nodes,
                value="4",
                num_nodes=4,
                efficiency=0.7,
                efficiency_low=0.68,
                efficiency_high=0.72,
                bound_fraction=0.99,
            ),
        ]
    )
    assert lines[0].startswith("allreduce over mpi, pipelined, more nodes beside the fewest")
    assert [line.split() for line in lines[1:]] == [
        ["1M", "2x8", "7.000", "GB/s", "the", "reference", "90.0", "%", "of", "bound"],
        ["1M", "4x8", "7.000", "GB/s", "0.700", "[0.680..0.720]", "x", "2", "nodes", "99.0", "%", "of", "bound"],
    ]


def test_one_node_and_several_are_said_to_be_apart_and_more_ranks_than_cpus() -> None:
    inside = {**WORLD, "factor": "ranks per node", "value": "4", "reference": "2", "num_nodes": 1, "median_s": 1e-3}
    between = {**WORLD, "factor": "nodes", "value": "4", "reference": "2", "num_nodes": 4, "median_s": 1e-3}
    lines = scaling_text.lines(
        [
            one(Scaling, **inside | {"mode": "isolated"}, time_ratio=1.5, oversubscribed=True),
            one(Scaling, **between | {"mode": "isolated"}, time_ratio=2.0, oversubscribed=False, floor_fraction=0.25),
        ]
    )
    assert "1000 us  1.500 x 2 ranks per node  (more ranks than CPUs)" in lines[1]
    assert "2.000 x 2 nodes  floor 25.0 %" in lines[3]
    assert "references of their own" in lines[-1]


def test_an_order_stands_beside_the_linear_one() -> None:
    order = {**WORLD, "factor": "order", "value": "interleaved", "reference": "linear", "num_nodes": 4}
    (_, line) = scaling_text.lines(
        [one(Scaling, **order, busbw_bytes_per_s=6e9, efficiency=0.52, oversubscribed=False)]
    )
    assert "order interleaved" in line and "0.520 x linear" in line


def test_aggressors_that_hardly_sent_are_said_in_capitals() -> None:
    given = {
        **WORLD,
        "split": "halves",
        "group": "victims",
        "aggressor": "alltoall",
        "aggressor_bytes": 4 << 20,
        "num_aggressors": 2,
        "alone_s": 1e-3,
        "disturbed_s": 2e-3,
        "factor": 2.0,
        "factor_low": 1.9,
        "factor_high": 2.1,
        "aggressor_bytes_per_s": 5e9,
        "aggressor_alone_bytes_per_s": 10e9,
        "num_blocks": 21,
    }
    title, covered = interference_text.lines([one(Interference, **given, num_blocks_not_covered=0)])
    _, poor = interference_text.lines([one(Interference, **given, num_blocks_not_covered=3)])
    assert "split halves: against alltoall of 4M by 2 ranks" in title
    assert "2.000 [1.900..2.100] x  5.000 of 10.00 GB/s (50.0 %)" in covered
    assert "NOT" not in covered and "NOT DISTURBED in 3 of 21 blocks" in poor


def test_launches_of_groups_with_long_names_have_a_column_that_holds_them() -> None:
    given = {"payload_bytes": 4 << 20, "mode": "pipelined", "median_s": 1e-3, "within": 0.01, "between": 0.02}
    spreads = [one(Spread, **given, group=name) for name in ("screen0:0-8", "confirm12:10-11")]
    width = spread_text.group_width(spreads)
    _, title, units = spread_text.titles(("pipelined",), width)
    lines = spread_text.rows(spreads, ("pipelined",), width)
    assert [line.split()[:2] for line in lines] == [["4194304", "screen0:0-8"], ["4194304", "confirm12:10-11"]]
    assert len({len(line) for line in [title, units, *lines]}) == 1
    assert spread_text.group_width(spreads[:1]) == 0


def test_a_factor_without_an_interval_is_marked_and_says_why() -> None:
    given = {
        **WORLD,
        "split": "halves",
        "group": "victims",
        "aggressor": "alltoall",
        "aggressor_bytes": 4 << 20,
        "num_aggressors": 2,
        "alone_s": 1e-3,
        "disturbed_s": 2e-3,
        "factor": 0.396,
        "num_blocks": 3,
        "aggressor_bytes_per_s": 5e9,
        "aggressor_alone_bytes_per_s": 10e9,
        "num_blocks_not_covered": 0,
    }
    _, unsure = interference_text.lines([one(Interference, **given, num_launches=1)])
    assert "0.396 ? x" in unsure and "3 blocks are too few for a 95 % interval" in unsure and unsure.count("?") == 1
    _, twice = interference_text.lines([one(Interference, **given, num_launches=2)])
    assert "2 launches are too few" in twice
    _, modelled = interference_text.lines([one(Interference, **given, num_launches=1, modelled=True)])
    assert "?" not in modelled


def test_groups_at_once_are_told_by_the_middle_one_and_the_worst() -> None:
    world = {key: value for key, value in WORLD.items() if key != "ranks_per_node"}
    given = {**world, "job": "a", "topology": "rail", "num_ranks": 2, "alone_s": 1e-3, "oversubscribed": False}
    three = [("rail0", 1.0, 0.9, 1.1), ("rail1", 2.0, 1.9, 2.1), ("rail2", 1.25, 1.2, 1.3)]
    title, line = sharing_text.lines(
        one(Sharing, **given, group=group, factor=factor, factor_low=low, factor_high=high, at_once_s=factor * 1e-3)
        for group, factor, low, high in three
    )
    assert title.startswith("allreduce over mpi, pipelined, topology rail: all groups at once against each alone")
    assert "1M  3 groups of 2  1.250 x  worst rail1 2.000 [1.900..2.100] x (1000 us alone, 2000 us at once)" in line
    assert "?" not in line and "CPUs" not in line
    (_, unsure) = sharing_text.lines(
        [one(Sharing, **given | {"oversubscribed": True}, group="rail0", factor=1.5, at_once_s=1.5e-3)]
    )
    assert "1 group of 2" in unsure and "1.500 ? x" in unsure and unsure.endswith("(more ranks than CPUs)")
