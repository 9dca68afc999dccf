from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.hardware import catalogue
from bench.hardware.catalogue import gpu, gpus, instance, instances, node_links, pcie_bytes_per_s, pcie_packet_share

FOLDER = Path(catalogue.__file__).parent
CONFIDENCES = {"measured", "vendor", "table", "derived", "recall"}


def blocks(node: Any) -> list[dict[str, Any]]:
    """Every mapping of a file that states facts: those that name a source."""
    if isinstance(node, list):
        return [found for each in node for found in blocks(each)]
    if not isinstance(node, dict):
        return []
    return ([node] if "source" in node else []) + [found for each in node.values() for found in blocks(each)]


@pytest.mark.parametrize("name", ["links", "gpus", "instances"])
def test_every_fact_names_a_source_that_exists_and_how_sure_it_is(name: str) -> None:
    file = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    found = blocks({key: value for key, value in file.items() if key != "sources"})
    assert len(found) > 10
    for block in found:
        assert block["source"] in file["sources"], block
        assert block["confidence"] in CONFIDENCES, block
        assert block.get("verified", True) is (block["confidence"] != "recall"), block
    assert set(file["sources"]) == {block["source"] for block in found} | {"memory"}


def test_every_part_of_an_instance_states_its_facts() -> None:
    entries = yaml.safe_load((FOLDER / "instances.yaml").read_text())["instances"]
    for name, entry in entries.items():
        parts = {key: value for key, value in entry.items() if isinstance(value, dict)}
        assert {"peers", "network", "nics"} <= set(parts), name
        assert all("source" in part for part in parts.values()), name
        assert all("source" in price for price in entry["prices"]), name


@pytest.mark.parametrize("name", instances())
def test_every_instance_can_be_read_and_its_links_written_to_a_header(name: str) -> None:
    found = instance(name)
    assert gpu(found.gpu).name == found.gpu
    assert NodeLinks.from_dict(found.links.to_dict()) == found.links
    assert set(found.links.sources) == set(found.links.verified) >= {"network", "nic", "latency"}
    dates = [price.date for price in found.prices if price.date]
    assert dates == sorted(dates)
    assert found.links.network_s
    if found.provider not in ("lambda", "runpod") and name != "BM.GPU.RTXPRO.8":  # they publish no rate of a network
        assert found.links.num_nics and found.links.nic_bytes_per_s


@pytest.mark.parametrize(
    ("name", "rate_gb"),
    [
        ("g6e.48xlarge", 15.754),
        ("g5.48xlarge", 15.754),
        ("g4dn.12xlarge", 7.877),
        ("g7e.48xlarge", 63.015),
        ("p4d.24xlarge", 15.754),
        ("a2-highgpu-8g", 15.754),
        ("a3-highgpu-8g", 31.508),
        ("a3-ultragpu-8g", 63.015),
    ],
)
def test_pcie_is_what_is_really_linked(name: str, rate_gb: float) -> None:
    rate = node_links(name).pcie_bytes_per_s
    assert rate is not None
    assert rate / 1e9 == pytest.approx(rate_gb, abs=5e-4)


def test_pcie_rates_follow_from_transfers_lanes_and_coding() -> None:
    assert pcie_bytes_per_s(1, 16) == 4e9
    assert pcie_bytes_per_s(5, 16) / 1e9 == pytest.approx(63.015, abs=5e-4)
    assert pcie_bytes_per_s(6, 16) / 1e9 == pytest.approx(121.0, abs=5e-4)
    assert pcie_packet_share()[0] == pytest.approx(256 / 280)
    with pytest.raises(UsageError, match=r"\b9\b.*links\.yaml"):
        pcie_bytes_per_s(9, 16)


def test_p4d_is_eight_a100_on_a_switch_that_does_not_reduce_and_four_nics() -> None:
    links = node_links("p4d.24xlarge")
    assert (links.gpus, links.peer, links.nvls) == (8, "nvswitch", False)
    assert (links.nvlink_bytes_per_s, links.nic_bytes_per_s, links.num_nics) == (300e9, 12.5e9, 4)


def test_hopper_and_blackwell_switches_reduce() -> None:
    assert node_links("p5.48xlarge").nvls
    assert node_links("p6-b200.48xlarge").nvls
    assert not node_links("p3.16xlarge").nvls


def test_what_was_not_read_is_not_verified() -> None:
    assert node_links("p4d.24xlarge").verified["nic"]
    p3 = node_links("p3.16xlarge")
    assert p3.verified["network"] and not p3.verified["nic"]
    assert not node_links("p5.48xlarge").verified["pcie"]
    assert gpu("T4").verified and not gpu("A10G").verified


def test_a_gpu_states_its_memory_its_rates_and_what_was_measured() -> None:
    h200 = gpu("H200-SXM-141GB")
    assert (h200.memory_bytes, h200.memory_bytes_per_s, h200.pcie) == (141e9, 4917e9, (5, 16))
    assert (h200.nvlink_generation, h200.flops["bf16"], h200.measured_bf16_flops) == (4, 989e12, None)
    assert gpu("A100-SXM4-80GB").measured_bf16_flops == pytest.approx(271.2e12)
    assert gpu("B300-SXM").pcie is None


def test_prices_keep_their_history_and_the_latest_counts() -> None:
    history = instance("p4d.24xlarge").prices
    assert [price.usd_per_hour for price in history] == [32.7726, 32.7726, 21.957642, 21.957642]
    latest = instance("p4d.24xlarge").price("us-east-1")
    assert latest is not None and latest.date == "2026-07-20" and "karpenter" in latest.source
    assert instance("p4d.24xlarge").price("mars") is None
    assert instance("DGX H100").price() is None
    remembered = instance("a3-ultragpu-8g").price()
    assert remembered is not None and not remembered.verified


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'p4d\.24xlarg'.*'p4d\.24xlarge'"):
        instance("p4d.24xlarg")
    with pytest.raises(UsageError, match=r"'L40X'.*'L40S?'"):
        gpu("L40X")
    assert "L40S" in gpus()


def test_more_ranks_than_gpus_are_refused() -> None:
    assert node_links("p4d.24xlarge", 8).gpus == 8
    with pytest.raises(UsageError, match=r"p4d\.24xlarge .*\b8 GPUs.*\b9\b"):
        node_links("p4d.24xlarge", 9)


def test_a_look_up_loads_no_numpy() -> None:
    code = (
        "import sys; from bench.hardware import bounds, catalogue; catalogue.instances(); "
        "sys.exit(bool({'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent.parent, check=False).returncode == 0


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("p4d", "p4d.24xlarge"),
        ("P5", "p5.48xlarge"),
        ("p5.48xlarge", "p5.48xlarge"),
        ("nd96isr_h100", "Standard_ND96isr_H100_v5"),
        ("a3-ultragpu", "a3-ultragpu-8g"),
    ],
)
def test_a_short_name_is_enough_if_only_one_type_fits(typed: str, name: str) -> None:
    assert instance(typed).name == name


@pytest.mark.parametrize(
    ("typed", "fitting"), [("g4dn", ("g4dn.12xlarge", "g4dn.metal")), ("48xlarge", ("p5.48xlarge",))]
)
def test_a_short_name_that_fits_several_types_names_them(typed: str, fitting: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        instance(typed)
    assert all(name in str(caught.value) for name in fitting)


@pytest.mark.parametrize("typed", ["", "p", "p4", "4d", "."])
def test_a_part_of_a_word_is_no_short_name(typed: str) -> None:
    with pytest.raises(UsageError):
        instance(typed)
