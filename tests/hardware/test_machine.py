"""Which machine a log comes from: named, told by the log, or proposed with what is not known."""

from __future__ import annotations

import pytest

from bench.core.errors import UsageError
from bench.hardware.catalogue import gpu, gpu_links, gpu_printed, gpus, node_links, yaml_file
from bench.hardware.machine import machine_of
from tests.facts import holds


@pytest.mark.parametrize(
    ("printed", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("NVIDIA L40S", "L40S"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("Tesla T4", "T4"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200-SXM-180GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell SE"),
        ("NVIDIA Graphics Device", None),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell WS"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell WS"),
        ("NVIDIA GH200 120GB", "GH200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H20-3e", "H20-141GB"),
        ("NVIDIA H200 NVL", "H200-NVL-141GB"),
        ("NVIDIA H800", "H800-SXM5-80GB"),
        ("NVIDIA H800 PCIe", "H800-PCIe-80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM4-80GB"),
        ("NVIDIA A800 80GB PCIe", "A800-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA A40-8Q", None),
        ("NVIDIA A30", "A30"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX A5000", "RTX A5000"),
        ("NVIDIA RTX A5000 Laptop GPU", None),
        ("Quadro RTX 8000", "Quadro RTX 8000"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Tesla V100-SXM3-32GB", "V100-SXM3-32GB"),
        ("NVIDIA T4G", "T4G"),
        ("AMD Instinct MI325X", "MI325X"),
    ],
)
def test_a_gpu_is_known_by_the_name_that_drivers_print(printed: str, known: str | None) -> None:
    assert gpu_printed(printed) == known


def test_a_named_machine_is_certain_and_a_contradicting_gpu_is_reported() -> None:
    named = machine_of("g6e.48xlarge", ("NVIDIA L40S",))
    assert named.links == node_links("g6e.48xlarge") and named.how == "g6e.48xlarge, as named"
    assert holds(machine_of("g6e.48xlarge", ("NVIDIA A100-SXM4-40GB",)).how, "g6e.48xlarge", "A100-SXM4-40GB")
    assert machine_of("g6e").links == node_links("g6e.48xlarge")
    with pytest.raises(UsageError, match="'g99'"):
        machine_of("g99")


def test_a_log_that_names_its_platform_is_believed() -> None:
    found = machine_of(None, ("A100-SXM4-40GB",), platform="P4d")
    assert (found.instance, found.links) == ("p4d.24xlarge", node_links("p4d.24xlarge"))
    assert machine_of(None, ("A100-SXM4-40GB",), platform="p99").instance is None


def test_types_that_share_a_gpu_and_differ_in_nics_leave_the_nics_unknown() -> None:
    found = machine_of(None, ("A100-SXM4-40GB",), ranks_per_node=8)
    assert {"p4d.24xlarge", "a2-highgpu-8g"} <= set(found.candidates)
    assert found.links is not None and found.links.num_nics is None and found.likely is None
    assert found.links.nvlink_bytes_per_s == 300e9
    assert "p4d.24xlarge 50 GB/s" in found.unknown_nics


def test_types_that_agree_on_their_nics_make_them_likely_and_not_certain() -> None:
    found = machine_of(None, ("NVIDIA H200",), ranks_per_node=8)
    assert len(found.candidates) > 2
    assert found.links is not None and found.links.nic_bytes_per_s is None
    assert found.likely is not None and found.likely.num_nics and found.likely.nic_bytes_per_s
    assert found.likely.num_nics * found.likely.nic_bytes_per_s == 400e9


def test_host_names_leave_the_types_of_their_provider() -> None:
    assert machine_of(None, ("Tesla V100-SXM2-32GB",), ("ip-172-31-1-2",), 8).candidates == ("p3dn.24xlarge",)
    assert machine_of(None, ("NVIDIA B200",), ("gke-pool-1",), 8).candidates == ("a4-highgpu-8g",)
    assert machine_of(None, ("NVIDIA B200",), ("ip-10-0-0-1",), 8).candidates == ("p6-b200.48xlarge",)


def test_one_type_of_many_makers_is_not_taken_for_the_machine() -> None:
    found = machine_of(None, ("AMD Instinct MI355X",), ("node1",), 2)
    assert found.candidates == ("BM.GPU.MI355X.8",) and found.likely is None
    assert found.links is not None and found.links.pcie_bytes_per_s == pytest.approx(63.015e9, abs=1e6)


def test_no_gpu_an_unknown_one_or_two_kinds_give_no_links() -> None:
    for names in ((), ("NVIDIA Graphics Device",), ("NVIDIA L40S", "NVIDIA L4")):
        found = machine_of(None, names)
        assert found.links is None and found.how.startswith("unknown")


@pytest.mark.parametrize("name", gpus())
def test_a_gpu_alone_gives_ports_and_no_nics(name: str) -> None:
    links = gpu_links(name, 2)
    assert links.num_nics is None and links.nic_bytes_per_s is None
    assert set(links.sources) == set(links.verified)
    assert ("nvlink" in links.sources) is (links.nvlink_bytes_per_s is not None)
    assert links.pcie_bytes_per_s is not None or name in ("B300-SXM", "MI250X", "GB10", "Trainium2")


def test_each_name_that_drivers_print_means_one_gpu() -> None:
    words = [word for name in gpus() for word in (name, *gpu(name).drivers)]
    assert len(words) == len(set(words))
    assert all(gpu_printed(f"NVIDIA {word}") for name in gpus() for word in gpu(name).drivers)


@pytest.mark.parametrize(
    ("name", "peer", "rate"),
    [
        ("RTX A6000", "nvlink_pairs", 56.25e9),
        ("A40", "nvlink_pairs", 56.25e9),
        ("A100-PCIe-40GB", "nvlink_pairs", 300e9),
        ("Quadro RTX 8000", "nvlink_pairs", 50e9),
        ("H800-SXM5-80GB", "nvswitch", 200e9),
        ("H20", "nvswitch", 450e9),
        ("MI325X", "infinity_fabric", 448e9),
        ("GB10", "host", None),
        ("L20", "host", None),
        ("A30", "nvlink_pairs", None),
        ("MI250X", "infinity_fabric", None),
    ],
)
def test_a_card_has_the_links_of_its_own_kind(name: str, peer: str, rate: float | None) -> None:
    links = gpu_links(name, 2)
    assert (links.peer, links.nvlink_bytes_per_s) == (peer, rate)


def test_no_port_has_more_than_its_generations_links() -> None:
    every = yaml_file("links")["nvlink"]
    for name in gpus():
        links = gpu_links(name, 8)
        if links.nvlink_generation is not None and links.nvlink_bytes_per_s is not None:
            most = every[links.nvlink_generation]
            assert links.nvlink_bytes_per_s <= most["gbyte_per_s"] * most["most_links"] * 1e9, name


@pytest.mark.parametrize(
    ("names", "least"),
    [
        (("RTX 3080",), 912.4e9),  # two cards print this name
        (("GH200", "H20"), 4022e9),
        (("B200-SXM-180GB", "B300-SXM", "GB200", "GB300"), 8184e9),
    ],
)
def test_the_memory_of_a_card_bounds_no_other_card_of_its_name_or_stacks(names: tuple[str, ...], least: float) -> None:
    assert {gpu(name).memory_bytes_per_s for name in names} == {least}


def test_a_port_of_infinity_fabric_is_seven_of_its_links() -> None:
    for name in ("MI300X", "MI325X", "MI355X"):
        links = gpu_links(name, 8)
        assert links.nvlink_bytes_per_s == pytest.approx(7 * (links.pair_bytes_per_s or 0.0))
    assert gpu_links("MI355X", 8).pair_bytes_per_s == pytest.approx(153.6e9 / 2)
    assert gpu("MI325X").flops["bf16"] == gpu("MI300X").flops["bf16"]


def test_a_machine_with_only_a_known_gpu() -> None:
    assert holds(machine_of(None, ("NVIDIA A30",)).how, "A30;", "unknown")
