"""Which machine a log comes from: named, told by the log, or proposed with what is not known."""

from __future__ import annotations

import pytest

from bench.core.errors import UsageError
from bench.hardware.catalogue import gpu_links, gpu_printed, gpus, node_links
from bench.hardware.machine import machine_of


@pytest.mark.parametrize(("printed", "known"), [
    ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"), ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"), ("NVIDIA L40S", "L40S"),
    ("A100-SXM4-40GB", "A100-SXM4-40GB"), ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
    ("NVIDIA H200", "H200-SXM-141GB"),
    ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"), ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"), ("Tesla T4", "T4"),
    ("NVIDIA GB200", "GB200"), ("NVIDIA B200", "B200-SXM-180GB"), ("NVIDIA H100 NVL", "H100-NVL-94GB"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell SE"), ("NVIDIA Graphics Device", None),
])  # fmt: skip
def test_a_gpu_is_known_by_the_name_that_drivers_print(printed: str, known: str | None) -> None:
    assert gpu_printed(printed) == known


def test_a_named_machine_is_certain_and_a_gpu_that_contradicts_it_is_said() -> None:
    named = machine_of("g6e.48xlarge", ("NVIDIA L40S",))
    assert named.links == node_links("g6e.48xlarge") and named.how == "g6e.48xlarge, as named"
    assert "while the log names A100-SXM4-40GB" in machine_of("g6e.48xlarge", ("NVIDIA A100-SXM4-40GB",)).how
    with pytest.raises(UsageError, match="no instance type is called 'g6e'"):
        machine_of("g6e")


def test_a_log_that_names_its_platform_is_believed() -> None:
    found = machine_of(None, ("A100-SXM4-40GB",), platform="P4d")
    assert (found.instance, found.links) == ("p4d.24xlarge", node_links("p4d.24xlarge"))
    assert machine_of(None, ("A100-SXM4-40GB",), platform="p99").instance is None


def test_types_that_share_a_gpu_and_differ_in_nics_leave_the_nics_unknown() -> None:
    found = machine_of(None, ("A100-SXM4-40GB",), ranks_per_node=8)
    assert {"p4d.24xlarge", "a2-highgpu-8g"} <= set(found.candidates)
    assert found.links is not None and found.links.num_nics is None and found.likely is None
    assert found.links.nvlink_bytes_per_s == 300e9
    assert "p4d.24xlarge 50 GB/s" in found.unknown[0]


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
    found = machine_of(None, ("NVIDIA L40S",), ("node1",), 2)
    assert found.candidates == ("g6e.48xlarge",) and found.likely is None
    assert found.links is not None and found.links.pcie_bytes_per_s == pytest.approx(31.508e9, abs=1e6)


def test_no_gpu_an_unknown_one_or_two_kinds_give_no_links() -> None:
    for names in ((), ("NVIDIA Graphics Device",), ("NVIDIA L40S", "NVIDIA L4")):
        found = machine_of(None, names)
        assert found.links is None and found.how.startswith("not known")


@pytest.mark.parametrize("name", gpus())
def test_a_gpu_alone_gives_ports_and_no_nics(name: str) -> None:
    links = gpu_links(name, 2)
    assert links.num_nics is None and links.nic_bytes_per_s is None
    assert set(links.sources) == set(links.verified)
    assert ("nvlink" in links.sources) is (links.nvlink_bytes_per_s is not None)
    assert links.pcie_bytes_per_s is not None or name == "B300-SXM"
