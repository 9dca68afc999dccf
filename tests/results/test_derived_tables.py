"""The tables of what rows say together: their cells, and the cells of a row that has no interval or a doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from bench.results import derived_tables
from bench.results.compared_rows import Interference, Overlapped, Parity, Scaling, Sharing
from bench.results.document import Document, Spread
from bench.results.table import Table

Make = Callable[..., Any]


def one(kind: Any, **given: Any) -> Any:
    return kind(**dict.fromkeys(field.name for field in fields(kind)) | given)


def only(**rows: Any) -> Table:
    """The only derived table of a document with these rows."""
    [table] = derived_tables.tables(Document("bench.document/1", {}, (), **rows))
    return table


def cells(table: Table) -> list[list[str]]:
    columns = table.shown_columns(wide=False)
    return [[column.cell(row) for column in columns] for row in table.rows]


def by_title(table: Table) -> dict[str, str]:
    """The cells of the first row."""
    return {column.title: column.cell(table.rows[0]) for column in table.shown_columns(wide=False)}


WORLD: dict[str, Any] = {
    "pattern": "allreduce",
    "transport": "mpi",
    "mode": "pipelined",
    "payload_bytes": 1 << 20,
    "ranks_per_node": 8,
}


def test_a_world_is_shown_with_its_ratio_to_the_reference_and_its_bound() -> None:
    nodes = {**WORLD, "factor": "nodes", "reference": "2", "oversubscribed": False, "busbw_bytes_per_s": 7e9}
    efficiency = {"efficiency": 0.7, "efficiency_low": 0.68, "efficiency_high": 0.72}
    table = only(
        scalings=(
            one(Scaling, **nodes, value="2", num_nodes=2, efficiency=1.0, bound_fraction=0.9),
            one(Scaling, **nodes, value="4", num_nodes=4, **efficiency, bound_fraction=0.99),
        )
    )
    assert cells(table) == [
        ["1M", "2x8", "7.000", "reference", "", "90.0 % of bound"],
        ["1M", "4x8", "7.000", "0.700", "0.680..0.720", "99.0 % of bound"],
    ]
    assert len(table.sections()) == 1


def test_worlds_inside_a_node_and_of_several_nodes_are_in_different_sections() -> None:
    common = {**WORLD, "mode": "isolated", "value": "4", "reference": "2", "median_s": 1e-3}
    inside = {**common, "factor": "ranks per node", "num_nodes": 1}
    between = {**common, "factor": "nodes", "num_nodes": 4}
    table = only(
        scalings=(
            one(Scaling, **inside, time_ratio=1.5, oversubscribed=True),
            one(Scaling, **between, time_ratio=2.0, oversubscribed=False, floor_fraction=0.25),
        )
    )
    assert len(table.sections()) == 2
    assert [row[:4] for row in cells(table)] == [["1M", "1x8", "1000", "1.500"], ["1M", "4x8", "1000", "2.000"]]
    assert [row[4] for row in cells(table)] == ["", "floor 25.0 %"]
    assert [bool(row[5]) for row in cells(table)] == [True, False], "more ranks than CPUs"


def test_an_order_is_compared_with_the_linear_one() -> None:
    order = {**WORLD, "factor": "order", "value": "interleaved", "reference": "linear", "num_nodes": 4}
    table = only(scalings=(one(Scaling, **order, busbw_bytes_per_s=6e9, efficiency=0.52, oversubscribed=False),))
    assert by_title(table)["world"] == "interleaved" and by_title(table)["x reference"] == "0.520"


def test_only_the_largest_size_of_a_curve_is_shown_unless_all_are_asked_for() -> None:
    scaling = {**WORLD, "factor": "nodes", "value": "4", "reference": "2", "num_nodes": 4, "median_s": 1e-3}
    rows = [one(Scaling, **scaling | {"payload_bytes": size}, time_ratio=2.0) for size in (8, 1024, 512)]
    document = Document("bench.document/1", {}, (), scalings=tuple(rows))
    [brief], [whole] = derived_tables.tables(document, whole=False), derived_tables.tables(document)
    assert [row.payload_bytes for row in brief.rows] == [1024] and len(whole.rows) == 3


CONTENTION: dict[str, Any] = {
    **WORLD,
    "split": "halves",
    "group": "victims",
    "aggressor": "alltoall",
    "aggressor_bytes": 4 << 20,
    "num_aggressors": 2,
    "alone_s": 1e-3,
    "disturbed_s": 2e-3,
    "factor": 2.0,
    "aggressor_bytes_per_s": 5e9,
    "aggressor_alone_bytes_per_s": 10e9,
    "num_blocks": 21,
    "num_launches": 1,
}


def test_blocks_in_which_aggressors_hardly_sent_are_counted() -> None:
    around = {"factor_low": 1.9, "factor_high": 2.1}
    covered = by_title(only(interferences=(one(Interference, **CONTENTION, **around, num_blocks_not_covered=0),)))
    poor = by_title(only(interferences=(one(Interference, **CONTENTION, **around, num_blocks_not_covered=3),)))
    assert (covered["factor"], covered["ci95"]) == ("2.000", "1.900..2.100")
    assert covered["aggressors"] == "5.000 of 10.00 GB/s (50.0 %)"
    assert "idle" not in covered and poor["idle"] == "3 of 21"


def test_a_factor_without_an_interval_is_marked_unless_it_is_modelled() -> None:
    unsure = by_title(only(interferences=(one(Interference, **CONTENTION, num_blocks_not_covered=0),)))
    modelled = only(interferences=(one(Interference, **CONTENTION, num_blocks_not_covered=0, modelled=True),))
    assert (unsure["ci95"], by_title(modelled)["ci95"]) == ("?", "-")


def test_rows_of_one_case_share_a_heading_wherever_they_come() -> None:
    rows = [one(Interference, **CONTENTION | {"mode": mode}, num_blocks_not_covered=0) for mode in ("a", "b", "a")]
    assert [len(section) for _, section in only(interferences=tuple(rows)).sections()] == [2, 1]


def test_groups_at_once_are_shown_by_the_median_and_the_worst() -> None:
    world = {key: value for key, value in WORLD.items() if key != "ranks_per_node"}
    given = {**world, "job": "a", "topology": "rail", "num_ranks": 2, "alone_s": 1e-3, "oversubscribed": False}
    three = [("rail0", 1.0, 0.9, 1.1), ("rail1", 2.0, 1.9, 2.1), ("rail2", 1.25, 1.2, 1.3)]
    rows = [
        one(Sharing, **given, group=group, factor=factor, factor_low=low, factor_high=high, at_once_s=factor * 1e-3)
        for group, factor, low, high in three
    ]
    [line] = cells(only(sharings=tuple(rows)))
    assert line == ["1M", "3 of 2 ranks", "1.250", "rail1", "2.000", "1.900..2.100", "1000", "2000"]
    unsure = one(Sharing, **given | {"oversubscribed": True}, group="rail0", factor=1.5, at_once_s=1.5e-3)
    [line] = cells(only(sharings=(unsure,)))
    assert line[1] == "1 of 2 ranks" and line[5] == "?" and len(line) == 9, "more ranks than CPUs"


def test_samples_that_were_not_covered_are_counted() -> None:
    given = {
        **{key: value for key, value in WORLD.items() if key != "ranks_per_node"},
        "group": "world",
        "dtype": "bfloat16",
        "order": 1024,
        "alone_s": 1e-3,
        "together_s": 1.3e-3,
        "factor": 1.3,
        "product_alone_s": 1e-4,
        "product_together_s": 1.1e-4,
        "product_factor": 1.1,
        "num_samples": 8,
        "num_not_covered": 3,
    }
    [line] = cells(only(overlaps=(one(Overlapped, **given),)))
    assert line == ["1M", "1000", "1300", "1.300", "?", "1024", "100.0", "110.0", "1.100", "?", "3 of 8"]


def test_another_tool_is_shown_case_by_case() -> None:
    given = {"tool": "osu", "pattern": "allreduce", "mode": "isolated", "group": "world", "num_launches": 3}
    times = {"payload_bytes": 8, "ours_s": 1.1e-6, "theirs_s": 1e-6, "ratio": 1.1, "case": "", "statistic": "mean"}
    sure = one(Parity, **given, **times, ratio_low=1.0, ratio_high=1.2)
    table = only(parities=(sure, one(Parity, **given, **times | {"case": "--root 1"})))
    assert cells(table) == [
        ["8", "1.100", "1.000", "1.100", "1.000..1.200"],
        ["8", "1.100", "1.000", "1.100", ""],
    ]
    assert len(table.sections()) == 2


def test_launches_of_groups_are_shown_in_a_column_that_holds_long_names(a_document: Document) -> None:
    given = {"job": "a", "jobs": ("allreduce-mpi",), "payload_bytes": 4 << 20, "mode": "pipelined", "num_launches": 5}
    figures = {"median_s": 1e-3, "within": 0.01, "between": 0.02}
    spreads = tuple(one(Spread, **given, **figures, group=name) for name in ("screen0:0-8", "confirm12:10-11"))
    table = derived_tables.launches(replace(a_document, spreads=spreads))
    assert [row[:3] for row in cells(table)] == [
        ["4194304", "screen0:0-8", "1000"],
        ["4194304", "confirm12:10-11", "1000"],
    ]
    alone = derived_tables.launches(replace(a_document, spreads=spreads[:1]))
    assert cells(alone) == [["4194304", "1000", "-", "1.0", "2.0"]]
