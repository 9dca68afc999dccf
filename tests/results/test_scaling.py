"""Rows beside a reference of the same kind: by hand, with intervals, and what may not be compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.core.record import Header, Record, Samples
from bench.results import summary
from bench.results.compared_rows import Scaling
from bench.results.inference import ratio_interval

Make = Callable[..., Any]
MiB = 1 << 20


def run(
    a_header: Make,
    a_record: Make,
    world: str,
    seconds: float,
    launch: int = 1,
    order: str = "linear",
    spread: float = 0.0,
    size: int = MiB,
    mode: str = "pipelined",
) -> tuple[str, Header, list[Record]]:
    """A job of one row in a world such as 2x4, all samples alike (or spread evenly by so much around the middle)."""
    num_nodes, per_node = map(int, world.split("x"))
    num_ranks = num_nodes * per_node
    job = f"a-{world}-{order}" + (f"-launch{launch}" if launch > 1 else "")
    case = ("allreduce", "--transport", "mpi", *(("--order", order) if order != "linear" else ()))
    header = a_header(
        job=job,
        case=case,
        launch=launch,
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        ranks_per_node=per_node,
        nodes={f"h{k}": {"num_cpus": 4} for k in range(num_nodes)},
    )
    samples = Samples([seconds * (1 + spread * ((7 * k) % 41 - 20) / 20) for k in range(41)])
    record = a_record(
        mode=mode,
        samples=samples,
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        payload_bytes=size,
        requested_bytes=(MiB,),
        bus_factor=2 * (num_ranks - 1) / num_ranks,
    )
    return job, header, [record]


def scalings(*runs: tuple[str, Header, list[Record]]) -> dict[str, Scaling]:
    return {one.value: one for one in summary.document(runs).scalings}


def test_efficiency_is_the_ratio_of_bus_bandwidths(a_header: Make, a_record: Make) -> None:
    found = scalings(run(a_header, a_record, "1x2", 1e-3), run(a_header, a_record, "1x4", 2e-3))
    assert {one.factor for one in found.values()} == {"ranks per node"}
    assert (found["2"].efficiency, found["2"].time_ratio, found["2"].reference) == (1.0, 1.0, "2")
    assert found["4"].time_ratio == pytest.approx(2.0)
    assert found["4"].efficiency == pytest.approx((1.5 / 2) / 1.0)  # factors 2(n-1)/n: 1.5 and 1


def test_a_world_inside_a_node_is_no_reference_for_the_network(a_header: Make, a_record: Make) -> None:
    runs = [run(a_header, a_record, world, 1e-3) for world in ("1x2", "2x2", "4x2", "2x4", "1x1")]
    found = summary.document(runs).scalings
    assert [(one.factor, one.value, one.reference) for one in found] == [("nodes", "2", "2"), ("nodes", "4", "2")]
    assert {one.ranks_per_node for one in found} == {2}


@pytest.mark.parametrize("untold", ["ranks_per_node", "num_nodes", "num_ranks"])
def test_a_world_that_is_not_told_whole_stands_on_no_curve(untold: str, a_header: Make, a_record: Make) -> None:
    whole = [run(a_header, a_record, world, 1e-3) for world in ("1x2", "1x4")]
    job, header, [record] = run(a_header, a_record, "1x3", 1e-3)
    left_out: dict[str, Any] = {untold: None}
    if untold != "ranks_per_node":
        record = replace(record, **left_out)
    part = (job, replace(header, **left_out), [record])
    assert {one.value for one in summary.document([*whole, part]).scalings} == {"2", "4"}


def test_a_single_rank_is_no_reference(a_header: Make, a_record: Make) -> None:
    assert scalings(run(a_header, a_record, "1x1", 1e-3), run(a_header, a_record, "1x2", 1e-3)) == {}


def test_sizes_that_round_apart_are_not_compared(a_header: Make, a_record: Make) -> None:
    small = run(a_header, a_record, "1x2", 1e-3, size=256)
    assert scalings(small, run(a_header, a_record, "1x4", 1e-3, size=512)) == {}
    assert set(scalings(small, run(a_header, a_record, "1x4", 1e-3, size=258))) == {"2", "4"}


def test_an_order_stands_beside_the_linear_one_of_the_same_world(a_header: Make, a_record: Make) -> None:
    runs = [run(a_header, a_record, "2x2", 1e-3), run(a_header, a_record, "2x2", 2e-3, order="interleaved")]
    (one,) = summary.document([*runs, run(a_header, a_record, "1x2", 3e-3, order="reverse")]).scalings
    assert (one.factor, one.value, one.reference) == ("order", "interleaved", "linear")
    assert one.efficiency == pytest.approx(0.5)


def test_over_launches_the_interval_is_welchs(a_header: Make, a_record: Make) -> None:
    runs = [run(a_header, a_record, "1x2", seconds, k) for k, seconds in enumerate((1e-3, 1.1e-3, 1.21e-3), 1)]
    runs += [run(a_header, a_record, "1x4", seconds, k) for k, seconds in enumerate((2e-3, 2.2e-3, 2.42e-3), 1)]
    one = scalings(*runs)["4"]
    # Logs are apart by ln 1.1 on both sides: deviation that, 4 degrees of freedom (t 2.776 from tables).
    half = 2.7764451 * math.log(1.1) * math.sqrt(2 / 3)
    assert (one.interval_over, one.num_launches) == ("launches", 3)
    assert one.time_ratio_low == pytest.approx(2 * math.exp(-half))
    assert one.efficiency_low == pytest.approx(0.75 * math.exp(-half))
    assert one.efficiency_high == pytest.approx(0.75 * math.exp(half))


def test_within_a_launch_the_interval_holds_both_rows(a_header: Make, a_record: Make) -> None:
    one = scalings(run(a_header, a_record, "1x2", 1e-3, spread=0.1), run(a_header, a_record, "1x4", 2e-3))["4"]
    assert one.interval_over == "samples"
    assert one.time_ratio_low is not None and one.time_ratio_high is not None
    assert 1.9 < one.time_ratio_low < 2.0 < one.time_ratio_high < 2.1


def test_distances_of_a_ratio_add_as_squares() -> None:
    low, high = ratio_interval(1.0, (math.exp(-0.3), math.exp(0.1)), 1.0, (math.exp(-0.2), math.exp(0.4)))
    assert math.log(low) == pytest.approx(-0.5)
    assert math.log(high) == pytest.approx(math.hypot(0.1, 0.2))


def test_more_ranks_than_cpus_are_said(a_header: Make, a_record: Make) -> None:
    found = scalings(run(a_header, a_record, "1x4", 1e-3), run(a_header, a_record, "1x8", 1e-3))
    assert [found[world].oversubscribed for world in ("4", "8")] == [False, True]


def test_wrong_data_scale_nowhere(a_header: Make, a_record: Make) -> None:
    job, header, (record,) = run(a_header, a_record, "1x4", 1e-3)
    wrong = replace(record, verified=False, num_wrong=1)
    assert scalings(run(a_header, a_record, "1x2", 1e-3), (job, header, [wrong])) == {}


def test_an_isolated_row_has_its_floor_and_time(a_header: Make, a_record: Make) -> None:
    job, header, records = run(a_header, a_record, "1x4", 4e-3, mode="isolated")
    header = replace(header, calibration={"message_s": 1e-3})
    one = scalings(run(a_header, a_record, "1x2", 1e-3, mode="isolated"), (job, header, records))["4"]
    assert one.floor_fraction == pytest.approx(0.5)  # two steps of a message
    assert one.time_ratio == pytest.approx(4.0)
