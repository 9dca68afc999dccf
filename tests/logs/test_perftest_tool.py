"""perftest between two hosts: its options, what it cannot measure, and the figures of its own output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.controller import tool_results
from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.record import Header, Record
from bench.core.world import World
from bench.hardware.bounds import bounds_of
from bench.logs.messages import ToolCode
from bench.logs.readers._perftest_tool import PerftestTool, PerftestToolCode
from bench.logs.tool import HostEnd, HostEnds
from tests.fakes import standin_perftest

TWO = World(2, 1)
WRITE: PerftestTool = plugins.load("tool", "perftest").TOOL
READ: PerftestTool = plugins.load("tool", "perftest_read").TOOL
ENDS = HostEnds((HostEnd("a", "mlx5_0", "infiniband", 50e9), HostEnd("b", "mlx5_3", "infiniband", 25e9)), "6.06")


def case(size: int = 65536, mode: str = "pipelined", transport: str = "mpi", **more: Any) -> Case:
    """A case of one start."""
    return Case("pingpong", transport=transport, sizes=(size,), mode=mode, **more)


def printed(tool: PerftestTool, asked: Case, capsys: pytest.CaptureFixture[str]) -> str:
    """What the stand-in prints for a case, below the line of the two ends."""
    given = standin_perftest.options([*tool.arguments(asked, TWO), "-d", "mlx5_0"])
    name = tool.program(asked)
    verb = name.split("_")[1].capitalize()
    both = "Bidirectional " if "both" in given else ""
    latency = name.endswith("_lat")
    rate = 12.5e9 / (2 if "cuda" in given else 1) * (2 if both else 1)
    standin_perftest.row(int(given["size"]), 1000, rate, latency, "gbits" in given)
    table = capsys.readouterr().out
    return f"{ENDS.line()}\n RDMA_{verb} {both}{'Latency' if latency else 'BW'} Test\n{table}{'-' * 80}\n"


def test_each_start_measures_one_size_in_one_mode() -> None:
    both = Case("pingpong", transport="mpi", sizes=(8, 1024), mode="both")
    starts = WRITE.starts(both)
    assert [(one.sizes, WRITE.program(one)) for one in starts] == [
        ((8,), "ib_write_lat"),
        ((1024,), "ib_write_lat"),
        ((8,), "ib_write_bw"),
        ((1024,), "ib_write_bw"),
    ]
    assert READ.program(starts[0]) == "ib_read_lat" and WRITE.program(Case("allreduce")) == ""


def test_options_follow_the_case() -> None:
    words = WRITE.arguments(case(4096, window=16, iterations=2, nics=("mlx5_1",)), TWO)
    assert words == ["-F", "-s", "4096", "-n", "5", "--report_gbits", "-t", "16", "-d", "mlx5_1"]
    assert WRITE.arguments(case(8, "isolated", "nccl_direct"), TWO) == ["-F", "-s", "8", "--use_cuda=0"]
    assert "-b" in READ.arguments(case(direction="two-way"), TWO)


@pytest.mark.parametrize(
    ("asked", "world", "code"),
    [
        (Case("allreduce"), TWO, ToolCode.NO_PROGRAM),
        (case(), World(1, 2), PerftestToolCode.TWO_HOSTS),
        (case(), World(2, 8), PerftestToolCode.TWO_HOSTS),
        (case(mode="isolated", direction="two-way"), TWO, PerftestToolCode.ONE_WAY_LATENCY),
        (case(topology="rail"), TWO, ToolCode.OPTION_UNSUPPORTED),
        (case(), TWO, None),
    ],
)
def test_what_it_cannot_measure_has_a_code(asked: Case, world: World, code: str | None) -> None:
    skip = WRITE.unsupported_reason(asked, world)
    assert (skip.code if skip else None) == code


def test_gpu_memory_needs_a_build_with_cuda() -> None:
    skip = WRITE.build_lacks(case(transport="nccl"), TWO, frozenset())
    assert skip is not None and skip.code == PerftestToolCode.BUILT_WITHOUT_CUDA
    assert WRITE.build_lacks(case(transport="nccl"), TWO, frozenset({"cuda"})) is None
    assert WRITE.build_lacks(case(), TWO, frozenset()) is None


def record_of(tool: PerftestTool, asked: Case, text: str) -> Record:
    """The only record, with the traffic of the pattern."""
    (record,) = tool.records(text, asked, TWO)
    return tool_results.by_definition(record, asked, plugins.load("pattern", "pingpong").PATTERN)


def test_rates_of_host_and_gpu_memory(capsys: pytest.CaptureFixture[str]) -> None:
    for transport, rate in (("mpi", 12.5e9), ("nccl_direct", 6.25e9)):
        asked = case(1 << 20, transport=transport)
        record = record_of(WRITE, asked, printed(WRITE, asked, capsys))
        assert record.reported is not None and record.bus_factor == 1
        assert record.reported["busbw_bytes_per_s"] == pytest.approx(rate, rel=1e-3)
    two_way = case(1 << 20, direction="two-way")
    record = record_of(READ, two_way, printed(READ, two_way, capsys))
    assert record.reported is not None
    assert record.reported["busbw_bytes_per_s"] == pytest.approx(12.5e9, rel=1e-3)  # per direction


def test_the_median_of_a_latency(capsys: pytest.CaptureFixture[str]) -> None:
    asked = case(8, "isolated")
    (record,) = WRITE.records(printed(WRITE, asked, capsys), asked, TWO)
    assert record.reported is not None
    assert (record.reported["median_s"], record.reported["mean_s"]) == pytest.approx((2e-6, 2.1e-6))


def test_the_slower_adapter_bounds_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    asked = case(1 << 20)
    text = printed(WRITE, asked, capsys)
    links = WRITE.links(text)
    assert links is not None and links.nic_bytes_per_s == 25e9
    assert WRITE.version(text) == "6.06" and WRITE.facts(asked, text)["memory"] == "host"
    for tool, name in ((WRITE, "perftest"), (READ, "perftest_read")):
        record = record_of(tool, asked, printed(tool, asked, capsys))
        (bound, *_) = bounds_of(header(name, links), record)
        assert bound.kind == "hard" and bound.bytes_per_s == pytest.approx(25e9)


def header(tool: str, links: NodeLinks) -> Header:
    """The header of the tool's results file."""
    return Header(
        job="job",
        case=(),
        pattern="pingpong",
        transport=tool,
        dtype="float32",
        reduce_op="",
        root=None,
        direction="one-way",
        topology="world",
        num_ranks=2,
        num_nodes=2,
        ranks_per_node=1,
        clock="host",
        modelled=False,
        started="",
        links=links.to_dict(),
    )


@pytest.mark.parametrize("rate", [None, 0.0])
def test_an_unknown_rate_bounds_nothing(rate: float | None) -> None:
    ends = HostEnds((HostEnd("a", "mlx5_0", "roce", 50e9), HostEnd("b", "mlx5_0", "roce", rate)))
    assert WRITE.links(ends.line()) is None and WRITE.links("") is None and WRITE.links(ENDS.line()[:-9]) is None


def test_another_test_or_size_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    asked = case(65536)
    text = printed(WRITE, asked, capsys)
    with pytest.raises(UsageError):
        READ.records(text, asked, TWO)
    with pytest.raises(UsageError):
        WRITE.records(text, replace(asked, mode="isolated"), TWO)
    (record,) = WRITE.records(text, case(4096), TWO)
    assert record.failed is not None and record.failed.code == PerftestToolCode.NO_ROW


def test_what_the_program_says_is_the_failure() -> None:
    text = f"{ENDS.line()}\n RDMA_Write BW Test\n Failed to modify QP 342 to RTR\n"
    (record,) = WRITE.records(text, case(), TWO)
    assert record.failed is not None and "342" in record.failed.what
