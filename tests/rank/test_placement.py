"""What a rank is bound to: its share of the CPU cores, and the NIC that its library must use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.core.case import Case
from bench.core.world import RankInfo
from bench.rank import placement
from tests.facts import holds
from tests.logs import corpus
from tests.logs.corpus import needs_corpus


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The masks that are set, on a machine with four CPUs of one thread each."""
    masks: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, mask: masks.append(mask))
    monkeypatch.setattr("bench.probes.sysfs.cores", lambda cpus: [(cpu,) for cpu in sorted(cpus)])
    return masks


def me(local_rank: int, local_size: int) -> RankInfo:
    """A rank of one host."""
    return RankInfo(local_rank, local_size, local_rank, local_size, "mpirun")


def test_ranks_of_a_host_get_different_cores(bound: list[set[int]]) -> None:
    done = [placement.bind_cpus(me(rank, 2), "auto", 1) for rank in range(2)]
    [words] = set(done)
    assert bound == [{0, 1}, {2, 3}] and holds(words, "each", "own")


@pytest.mark.parametrize(("ranks", "how", "least"), [(4, "auto", 2), (5, "auto", 1), (2, "none", 1)])
def test_nothing_is_bound_if_threads_would_share_a_cpu_or_on_request(
    bound: list[set[int]], ranks: int, how: str, least: int
) -> None:
    assert placement.bind_cpus(me(0, ranks), how, least).startswith("as launched")
    assert bound == []


@pytest.mark.parametrize(
    ("num_cores", "ranks", "shares"),
    [(4, 2, [{0, 1}, {2, 3}]), (5, 2, [{0, 1}, {2, 3}]), (2, 2, [{0}, {1}]), (2, 3, [set(), set(), set()])],
)
def test_ranks_get_equally_many_cores_or_none(num_cores: int, ranks: int, shares: list[set[int]]) -> None:
    cores = [(core,) for core in range(num_cores)]
    assert [placement.share_of(cores, rank, ranks) for rank in range(ranks)] == shares


def test_a_rank_gets_all_hardware_threads_of_its_cores() -> None:
    assert placement.share_of([(0, 4), (1, 5), (2, 6), (3, 7)], 1, 2) == {2, 6, 3, 7}


# Machines as cloud vendors describe them to NCCL: for each NUMA node its CPUs, and the PCI addresses of its GPUs.
Machine = dict[int, tuple[set[int], list[str]]]
FOUR_NODES: Machine = {  # the GPUs' addresses are not in the order of the nodes, as on hosts with four AMD dies
    0: (set(range(8)), ["0003:00:00.0", "0004:00:00.0"]),
    1: (set(range(8, 16)), ["0001:00:00.0", "0002:00:00.0"]),
    2: (set(range(16, 24)), ["000d:00:00.0", "000e:00:00.0"]),
    3: (set(range(24, 32)), ["000b:00:00.0", "000c:00:00.0"]),
}


def machine_of(path: Path) -> Machine:
    """A machine from a topology file of NCCL."""
    nodes: Machine = {}
    for cpu in ElementTree.parse(path).getroot().iter("cpu"):
        mask = int(cpu.attrib["affinity"].replace(",", ""), 16)
        gpus = [pci.attrib["busid"] for pci in cpu.iter("pci") if pci.attrib.get("class") == "0x030200"]
        nodes[int(cpu.attrib["numaid"])] = ({k for k in range(mask.bit_length()) if mask >> k & 1}, gpus)
    return nodes


def masks_of_ranks(
    machine: Machine, root: Path, monkeypatch: pytest.MonkeyPatch, launched: Sequence[set[int]] = ()
) -> tuple[list[set[int]], list[set[int]]]:
    """The masks that ranks get, one rank per GPU, and the CPUs of their GPUs' NUMA nodes.

    `launched`: each rank's mask from the launcher; without it, all CPUs.
    """
    beside = {gpu: cpus for cpus, gpus in machine.values() for gpu in gpus}
    for node, (cpus, gpus) in machine.items():
        for gpu in gpus:
            device = root / "sys/bus/pci/devices" / gpu
            device.mkdir(parents=True)
            (device / "numa_node").write_text(f"{node}\n")
            (device / "local_cpulist").write_text(",".join(map(str, sorted(cpus))) + "\n")
    addresses, everything = sorted(beside), set().union(*beside.values())
    got: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, mask: got.append(set(mask)))
    monkeypatch.setattr("bench.probes.sysfs.cores", lambda cpus: [(cpu,) for cpu in sorted(cpus)])
    for rank in range(len(addresses)):
        mask = launched[rank] if launched else everything
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, mask=mask: set(mask))
        place = me(rank, len(addresses))
        placement.bind_cpus(place, "auto", 2, placement.cpus_beside_gpus(place, addresses, root))
    return got, [beside[address] for address in addresses]


def assert_each_beside_its_gpu(masks: list[set[int]], beside: list[set[int]]) -> None:
    """Each rank has CPUs of its GPU's NUMA node only, and no other rank has one of them."""
    assert len(masks) == len(beside) and all(mask and mask <= near for mask, near in zip(masks, beside, strict=True))
    assert sum(map(len, masks)) == len(set().union(*masks))


def test_ranks_are_bound_beside_their_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_each_beside_its_gpu(*masks_of_ranks(FOUR_NODES, tmp_path, monkeypatch))


@needs_corpus
@pytest.mark.parametrize(
    "name",
    [*(f"Azure+azhpc-images__n{it}" for it in ("cv4", "dv2", "dv4", "dv5")), "aws+aws-ofi-nccl__p4d-24xl"],
)
def test_ranks_are_bound_beside_their_gpus_on_machines_of_clouds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machine_of(corpus.real("topo_xml", f"{name}-topo.xml"))
    assert_each_beside_its_gpu(*masks_of_ranks(machine, tmp_path, monkeypatch))


def test_a_launchers_mask_limits_the_cpus_beside_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    even = set(range(0, 32, 2))
    masks, beside = masks_of_ranks(FOUR_NODES, tmp_path, monkeypatch, [even] * 8)
    assert_each_beside_its_gpu(masks, beside)
    assert all(mask <= even for mask in masks)


def test_a_rank_that_its_launcher_bound_far_from_its_gpu_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = [set(range(16, 32))] * 4 + [set(range(16))] * 4  # the GPUs of ranks 0 to 3 are on nodes 0 and 1
    masks, beside = masks_of_ranks(FOUR_NODES, tmp_path, monkeypatch, far)
    assert all(mask <= given for mask, given in zip(masks, far, strict=True))
    assert not any(mask & near for mask, near in zip(masks, beside, strict=True))


def test_ranks_with_one_visible_gpu_each_get_different_cpus(bound: list[set[int]]) -> None:
    """Slurm may show each rank its own GPU only; then a rank does not know whose GPUs are beside its own."""
    for rank in range(2):
        placement.bind_cpus(me(rank, 2), "auto", 1, [frozenset({2, 3})] * 2)
    assert bound == [{2}, {3}]


def test_nics_go_to_ranks_in_turn() -> None:
    case = Case("pairs", transport="gloo", nics=("eth0", "eth1"))
    assert [placement.nic_of(case, k) for k in range(4)] == ["eth0", "eth1", "eth0", "eth1"]
    assert placement.nic_of(Case("pairs"), 0) is None


def test_mpi_takes_one_nic_only() -> None:
    for transport in ("mpi", "mpi_cuda"):
        assert placement.nic_of(Case("pairs", transport=transport, nics=("eth0", "eth1")), 1) is None
        assert placement.nic_of(Case("pairs", transport=transport, nics=("eth0",)), 1) == "eth0"
        env: dict[str, str] = {}
        placement.use_nic("eth0", transport, env)
        assert env == {"UCX_NET_DEVICES": "eth0", "OMPI_MCA_btl_tcp_if_include": "eth0"}


def test_a_variable_of_the_user_stays() -> None:
    env = {"GLOO_SOCKET_IFNAME": "eth7"}
    placement.use_nic("eth0", "gloo", env)
    assert env == {"GLOO_SOCKET_IFNAME": "eth7"}
    env = {}
    placement.use_nic("eth0", "gloo", env)
    placement.use_nic(None, "nccl", env)
    assert env == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_nccl_has_variables_for_interfaces_and_for_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_INTERFACES", tmp_path)
    (tmp_path / "eth0").mkdir()
    env: dict[str, str] = {}
    placement.use_nic("eth0", "nccl", env)
    placement.use_nic("mlx5_1", "nccl", env)
    assert env == {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "=mlx5_1"}
