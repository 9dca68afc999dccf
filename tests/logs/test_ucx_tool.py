"""ucx_perftest between two ranks: its options, what it cannot measure, and figures of its own output."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.world import World
from bench.logs.messages import ToolCode
from bench.logs.readers._ucx_tool import UcxPerftestTool, UcxToolCode

TWO = World(2, 1)
TOOL: UcxPerftestTool = plugins.load("tool", "ucx_perftest").TOOL
# As UCX 1.13 prints it, with invented figures.
RULE = f"+{'-' * 106}+"
PRINTED = f"""{RULE}
| API:          protocol layer                                                                             |
| Test:         tag match {{test}}                                                                         |
| Data layout:  (automatic)                                                                                |
| Send memory:  host                                                                                       |
| Recv memory:  host                                                                                       |
| Message size: {{size}}                                                                                   |
{RULE}
|              |              |       {{word}} (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
{RULE}
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
{RULE}
Final:                    500     10.000     8.000     8.000     1953.13    1953.13      125000      125000
"""


def case(pattern: str = "kv_pages", size: int = 1 << 20, mode: str = "isolated", **more: Any) -> Case:
    """A case of one start."""
    return Case(pattern, transport="mpi", sizes=(size,), mode=mode, **more)


def printed(size: int, latency: bool = False) -> str:
    """The client's output."""
    words = ("latency", "latency") if latency else ("bandwidth", "overhead")
    return PRINTED.format(test=words[0], word=words[1], size=size)


def test_pages_are_messages_in_flight() -> None:
    words = TOOL.arguments(case(iterations=500), TWO)
    assert words == ["-t", "tag_bw", "-s", "16384", "-n", "500", "-w", "50", "-O", "64"]
    assert TOOL.arguments(case("pingpong", 8, warmup=3, iterations=9), TWO)[:8] == [
        "-t", "tag_lat", "-s", "8", "-n", "9", "-w", "3",
    ]  # fmt: skip
    gpu = Case("pingpong", transport="nccl_direct", sizes=(8,), mode="pipelined")
    assert TOOL.arguments(gpu, TWO)[-2:] == ["-m", "cuda"]


def test_large_messages_are_few() -> None:
    words = TOOL.arguments(case("pingpong", 1 << 30, "pipelined"), TWO)
    assert words[words.index("-n") + 1] == "20"


@pytest.mark.parametrize(
    ("asked", "world", "code"),
    [
        (Case("allreduce"), TWO, ToolCode.NO_PROGRAM),
        (case(), World(1, 4), UcxToolCode.ONE_PAIR),
        (case(size=1000), TWO, UcxToolCode.UNEVEN_PAGES),
        (case("pingpong", direction="two-way"), TWO, ToolCode.OPTION_UNSUPPORTED),
        (case(), TWO, None),
    ],
)
def test_what_it_cannot_measure_has_a_code(asked: Case, world: World, code: str | None) -> None:
    skip = TOOL.unsupported_reason(asked, world)
    assert (skip.code if skip else None) == code


def test_figures_are_of_all_pages() -> None:
    (record,) = TOOL.records(printed(16384), case(), TWO)
    assert record.reported is not None and record.reported["mean_s"] == pytest.approx(64 * 8e-6)
    assert record.reported["algbw_bytes_per_s"] == pytest.approx((1 << 20) / 512e-6)


def test_a_client_that_prints_no_banner_measured_what_was_asked() -> None:
    banner = re.compile(r"\| [A-Z][a-z ]+:")
    text = "\n".join(line for line in printed(0).splitlines() if not banner.match(line) and "| API" not in line)
    (record,) = TOOL.records(text, case(), TWO)
    assert record.reported is not None and record.reported["mean_s"] == pytest.approx(64 * 8e-6)


def test_another_test_or_size_is_no_result() -> None:
    with pytest.raises(UsageError):
        TOOL.records(printed(16384, latency=True), case(), TWO)
    (record,) = TOOL.records(printed(8192), case(), TWO)
    assert record.failed is not None and record.failed.code == UcxToolCode.NO_ROW
    (record,) = TOOL.records("connection refused\n", case(), TWO)
    assert record.failed is not None and record.failed.code == UcxToolCode.NO_ROW
