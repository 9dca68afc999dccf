"""What limits the passes over a data set, as a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.core.record import Header, ReadSamples, Record, Samples, reads_of
from bench.results import feeds

SIZE = 1 << 30
READS = ReadSamples("cold", 1024, 1 << 20, (SIZE,) * 6, (0.5,) * 6, (1.0,) * 6, (0.1,) * 6)


@pytest.mark.parametrize(
    ("seconds", "argv", "more", "binds"),
    [
        (1.1, (), {}, "disk"),
        (0.8, (), {}, ""),  # 1.25 of the disk's rate: bytes that a cache delivers, or a probe that was slow
        (3.0, (), {}, ""),  # far below every bound: reads of one record at a time
        (1.1, (), {"cpu_s": (1.05,) * 6}, "core"),
        (1.1, ("--workers", "4"), {"cpu_s": (1.05,) * 6}, "disk"),  # the work is on four cores
        (0.12, (), {"direct_s": (), "cpu_s": (0.01,) * 6}, "copy"),
        (9.0, ("--step-time", "140ms"), {"step_s": (0.14,), "busy_s": (0.1,), "wait_s": (0.001,)}, "step"),
        (9.0, ("--step-time", "140ms"), {"step_s": (0.14,), "busy_s": (0.3,), "wait_s": (0.1,)}, "loader"),
    ],
)
def test_the_bound_that_the_passes_reach_is_named(
    seconds: float,
    argv: tuple[str, ...],
    more: dict[str, Any],
    binds: str,
    a_record: Callable[..., Record],
    a_header: Callable[..., Header],
) -> None:
    reads = ReadSamples(**{name: getattr(READS, name) for name in READS.__slots__} | more)
    record = a_record(payload_bytes=SIZE, num_ranks=1, samples=Samples([seconds] * 6), reads=reads)
    (one,) = feeds.of_record("job", a_header(case=("feed", *argv), pattern="feed"), record)
    assert one.binds == binds


def test_the_link_to_the_gpu_is_a_bound_of_reads_that_go_there(
    a_record: Callable[..., Record], a_header: Callable[..., Header]
) -> None:
    gpu = {"index": 0, "name": "GPU", "pcie_generation": 3, "pcie_lanes": 1, "pci_bus": "0000:1b:00.0"}
    gpu["under_load"] = True
    ranks = ({"host": "h", "local_rank": 0, "gpu_pci_bus": "0000:1b:00.0"},)
    record = a_record(payload_bytes=SIZE, num_ranks=1, samples=Samples([1.2] * 6), reads=READS)
    found = {}
    for to in ("host", "device"):
        header = a_header(
            case=("feed", "--to", to), pattern="feed", nodes={"h": {"gpus": [gpu]}}, ranks=ranks, num_ranks=1
        )
        (found[to],) = feeds.of_record("job", header, record)
    assert (found["host"].pcie_bytes_per_s, found["host"].binds) == (None, "disk")
    # 8 GT/s, 128b/130b: 985 MB/s, less the headers of packets
    assert 0.7e9 < (found["device"].pcie_bytes_per_s or 0) < 0.985e9
    assert found["device"].binds == "pcie"


@pytest.mark.parametrize(
    ("to", "gpus", "paths", "share"),
    [
        ("device", (0, 1, 2, 3), (), 1.0),  # a GPU and a link for each rank
        ("device", (0, 0, 0, 0), (), 0.25),  # one GPU for all
        ("device", (0, 0, 0, 1), (), 1 / 3),  # the slowest rank is one of three on a link
        ("device", (0, 1, 2, 3), (("gpu0", "gpu1"), ("gpu2", "gpu3")), 0.5),  # two GPUs on each switch
        ("gds", (0, 1, 2, 3), (("gpu0", "gpu1"), ("gpu2", "gpu3")), 1.0),  # the disks may be on the switches, too
        ("gds", (0, 0, 2, 3), (("gpu0", "gpu1"), ("gpu2", "gpu3")), 0.5),
    ],
)
def test_ranks_share_the_links_to_their_gpus(
    to: str,
    gpus: tuple[int, ...],
    paths: tuple[tuple[str, str], ...],
    share: float,
    a_record: Callable[..., Record],
    a_header: Callable[..., Header],
) -> None:
    pcie = {"name": "GPU", "pcie_generation": 3, "pcie_lanes": 1, "under_load": True}
    node = {
        "gpus": [pcie | {"index": index, "pci_bus": f"0000:1{index}:00.0"} for index in range(4)],
        "paths": [{"a": a, "b": b, "kind": "PIX"} for a, b in paths],
    }

    def link(gpus: tuple[int, ...]) -> float:
        ranks = tuple({"host": "h", "local_rank": 0, "gpu_pci_bus": f"0000:1{index}:00.0"} for index in gpus)
        record = a_record(payload_bytes=SIZE, num_ranks=len(gpus), samples=Samples([1.2] * 6), reads=READS)
        header = a_header(
            case=("feed", "--to", to), pattern="feed", nodes={"h": node}, ranks=ranks, num_ranks=len(gpus)
        )
        (one,) = feeds.of_record("job", header, record)
        assert one.pcie_bytes_per_s is not None
        return one.pcie_bytes_per_s

    assert link(gpus) == pytest.approx(share * link((0,)))


def test_the_worst_rank_proves_the_passes_of_all() -> None:
    other = ReadSamples("cold", 1024, 1 << 20, (SIZE - 5, SIZE + 5), (0.7, 0.4), (), ())
    first = ReadSamples("cold", 1024, 1 << 20, (SIZE, SIZE), (0.5, 0.5), (1.0,), ())
    joined = reads_of([first, None, other])
    assert isinstance(joined, ReadSamples)
    assert (joined.device_bytes, joined.cpu_s, joined.direct_s) == ((SIZE - 5, SIZE), (0.7, 0.5), (1.0,))
