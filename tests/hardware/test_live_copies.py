"""Bounds of copies and messages between the very GPUs that a row is of, and of a GPU's own memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from bench.core.links import Bound, Limit
from bench.core.record import Header, Record, Samples
from bench.hardware.bounds import bounds_of, floor_of
from bench.hardware.catalogue import node_links
from bench.hardware.live import links_of
from bench.hardware.promises import promises
from tests.hardware.machines import gpu, hgx, loaded, node, nvlink, path, pcie_pair, sandbox

SIZE = 1 << 30


def header(pattern: str, facts: dict[str, Any], **changes: Any) -> Header:
    links, num = links_of(facts), len(facts["gpus"])
    plain = Header(
        job="job",
        case=(pattern,),
        pattern=pattern,
        transport="cuda_copy",
        dtype="uint8",
        reduce_op="",
        root=None,
        direction=None,
        topology="world",
        num_ranks=num,
        num_nodes=1,
        ranks_per_node=num,
        clock="device",
        modelled=False,
        started="",
        links=links.to_dict() if links else {},
        nodes={"h0": facts},
        ranks=tuple({"host": "h0", "local_rank": k} for k in range(num)),
    )
    return replace(plain, **changes)


def record(num_ranks: int = 2, **changes: Any) -> Record:
    plain = Record(
        mode="pipelined",
        requested_bytes=(SIZE,),
        payload_bytes=SIZE,
        num_ranks=num_ranks,
        num_nodes=1,
        bus_factor=1.0,
        rank_bytes=SIZE,
        samples=Samples((1.0,)),
    )
    return replace(plain, **changes)


def pair(a: int, b: int, **changes: Any) -> Record:
    return record(group=f"{a}-{b}", src=a, dst=b, **changes)


def hard(of: Header, row: Record) -> Bound:
    (found,) = [bound for bound in bounds_of(of, row) if bound.kind == "hard"]
    return found


def gb(of: Header, row: Record) -> float:
    return hard(of, row).bytes_per_s / 1e9


def uneven() -> dict[str, Any]:
    """Four GPUs: two and three NVLinks, PCIe of one switch, of two NUMA nodes, and none at all."""
    ends = {0: ["gpu1", "gpu1", "gpu2"], 1: ["gpu0", "gpu0"], 2: ["gpu0"], 3: []}
    gpus = [
        loaded(k, lanes=8 if k == 3 else 16, nvlinks=[nvlink(n, peer=end) for n, end in enumerate(ends[k])])
        for k in range(4)
    ]
    kinds = {(0, 1): "NV2", (0, 2): "NV1", (0, 3): "PIX", (1, 2): "PHB", (1, 3): "SYS", (2, 3): "NODE"}
    return node(gpus, [path(f"gpu{a}", f"gpu{b}", kinds[a, b], (a, b) != (1, 3)) for a, b in combinations(range(4), 2)])


@pytest.mark.parametrize(
    ("a", "b", "rate", "words"),
    [
        (0, 1, 50.0, "(NV2)"),
        (2, 0, 25.0, "(NV1)"),
        (0, 3, 31.508, "(PIX)"),
        (1, 2, 63.015, "(PHB)"),
        (1, 3, 31.508, "(SYS)"),
    ],
)
def test_the_bound_of_a_copy_follows_from_what_is_between_the_two(a: int, b: int, rate: float, words: str) -> None:
    for direction in ("one-way", "two-way"):
        of = header("peer_copy", uneven(), direction=direction)
        assert gb(of, pair(a, b)) == pytest.approx(rate, rel=1e-4)
        assert words in hard(of, pair(a, b)).why and f"gpu{min(a, b)} and gpu{max(a, b)}" in hard(of, pair(a, b)).why


def test_a_copy_by_way_of_the_host_is_held_to_no_peer_link() -> None:
    of = header("peer_copy", hgx())
    assert gb(of, pair(0, 1)) == 450.0
    staged = pair(0, 1, flags=("through-host",))
    assert gb(of, staged) == pytest.approx(63.015, rel=1e-4) and hard(of, staged).code == Limit.PCIE_PORT
    assert gb(replace(of, direction="through_host", nodes={}, ranks=()), pair(0, 1)) == pytest.approx(63.015, rel=1e-4)


def test_messages_between_two_gpus_have_the_links_of_these_two() -> None:
    plain = hgx()
    plain["paths"][0]["kind"] = "NV17"
    for pattern in ("pingpong", "sendrecv"):
        of = header(pattern, plain, transport="nccl")
        assert gb(of, pair(0, 1)) == 425.0
        assert gb(of, pair(0, 2)) == 450.0
    of = header("pingpong", pcie_pair(pcie_lanes=8, pcie_generation=4, under_load=True), transport="nccl")
    assert gb(of, pair(0, 1)) == pytest.approx(15.754, rel=1e-4)


def test_by_nvlink_a_library_may_go_round_by_a_third_gpu() -> None:
    plain = uneven()
    plain["gpus"] = plain["gpus"][:3]
    of = header("pingpong", plain, transport="nccl")
    assert hard(of, pair(1, 2)).code in (Limit.NVLINK_AND_PCIE, Limit.NVLINK_PORT)
    assert hard(replace(of, pattern="peer_copy"), pair(1, 2)).code == Limit.PCIE_PORT  # a copy does not


def test_a_part_of_the_ranks_may_be_the_faster_ones() -> None:
    plain = hgx()
    plain["gpus"][7] = loaded(7, nvlinks=[nvlink(k, active=k > 1) for k in range(18)])
    of = header("allgather", plain, transport="nccl")
    assert gb(of, record(8)) == 400.0
    assert gb(of, record(4, group="group0")) == 450.0


def test_which_gpu_a_rank_has() -> None:
    of = header("peer_copy", uneven())
    assert gb(replace(of, environment={"CUDA_VISIBLE_DEVICES": "2,0"}), pair(0, 1)) == 25.0
    named = tuple({"host": "h0", "local_rank": k, "gpu_pci_bus": f"0000:0{2 - k}:00.0"} for k in range(2))
    assert gb(replace(of, ranks=named), pair(0, 1)) == pytest.approx(63.015, rel=1e-4)
    masked = replace(of, environment={"CUDA_VISIBLE_DEVICES": "GPU-7f"})
    assert hard(masked, pair(0, 1)) == hard(replace(of, nodes={}), pair(0, 1))  # not known: the node's own


def test_a_copy_to_the_host_has_the_link_of_its_own_gpu() -> None:
    of = header("host_device", uneven(), direction="h2d")
    assert gb(of, record(1, group="rank0")) == pytest.approx(63.015, rel=1e-4)
    assert gb(of, record(1, group="group3")) == pytest.approx(31.508, rel=1e-4)
    assert gb(of, record(4)) == pytest.approx(31.508, rel=1e-4)  # of all at once the slowest counts
    for direction in ("d2h", "two-way", "bidirectional"):
        assert gb(replace(of, direction=direction), record(1, group="rank0")) == pytest.approx(63.015, rel=1e-4)
    given = replace(of, links=node_links("g6e.48xlarge").to_dict())
    assert gb(given, record(1, group="rank0")) == pytest.approx(15.754, rel=1e-4)


def test_a_gpus_own_memory_bounds_copies_inside_it() -> None:
    of = header("local_copy", sandbox())
    (cold,) = bounds_of(of, record(1, bus_factor=2.0, cache="cold", payload_bytes=64 << 20))
    assert (cold.bytes_per_s, cold.name, cold.kind, cold.verified) == (4917e9, "GPU memory", "hard", True)
    (hot,) = bounds_of(of, record(1, bus_factor=2.0, cache="hot", payload_bytes=1 << 20))
    assert hot.kind == "reference" and "caches" in hot.why
    small = replace(of, facts={"gpu_cache_bytes": str(1 << 18)})
    assert bounds_of(small, record(1, bus_factor=2.0, cache="hot", payload_bytes=1 << 20))[0].kind == "hard"
    assert bounds_of(header("local_copy", node([gpu(name="another")], [])), record(1, bus_factor=2.0)) == ()
    assert bounds_of(replace(of, imported={"tool": "nvbandwidth"}), record(1, bus_factor=2.0)) == ()


@pytest.mark.parametrize("pattern", ["allreduce", "host_device", "peer_copy", "local_copy"])
def test_ranks_that_share_a_gpu_are_held_to_nothing(pattern: str) -> None:
    of = header(pattern, hgx())
    assert bounds_of(of, pair(0, 1))
    assert bounds_of(replace(of, facts={"shared_gpu": "yes"}), pair(0, 1)) == ()
    assert bounds_of(of, pair(0, 1, flags=("shared_gpu",))) == ()
    assert floor_of(of, pair(0, 1, mode="isolated")) is not None
    assert floor_of(of, pair(0, 1, mode="isolated", flags=("shared_gpu",))) is None


def test_what_a_machine_promises() -> None:
    told = {each.what: each for each in promises(hgx())}
    assert [each.bound.bytes_per_s / 1e9 for each in told.values() if each.bound] == pytest.approx(
        [63.015, 450.0, 700.0, 3350.0], rel=1e-4
    )
    assert [len(each.members) for each in told.values()] == [8, 28, 8, 8]
    classes = [each for each in promises(uneven()) if each.what.startswith("GPU to GPU")]
    assert [each.members for each in classes] == [
        ("gpu0-gpu1",),
        ("gpu0-gpu2",),
        ("gpu0-gpu3",),
        ("gpu1-gpu2",),
        ("gpu1-gpu3",),
        ("gpu2-gpu3",),
    ]
    assert "(SYS)" in classes[4].what
    assert promises(node([], [])) == ()
