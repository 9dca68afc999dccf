"""The links that a machine's own facts tell of."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import combinations
from typing import Any

import pytest

from bench.core.links import NodeLinks
from bench.hardware.catalogue import bounding_links, node_links
from bench.hardware.live import as_linked, bounding, links_of, links_of_all
from bench.hardware.messages import HealthCode
from bench.probes.topology import inventory_of
from tests.hardware.machines import gpu, hgx, loaded, node, nvlink, path, pcie_pair, sandbox
from tests.logs import corpus
from tests.probes import synthetic_machines as synthetic

PCIE = {(5, 16): 63.015e9, (5, 8): 31.508e9, (4, 16): 31.508e9, (4, 8): 15.754e9}


def links(of: dict[str, Any]) -> NodeLinks:
    found = links_of(of)
    assert found is not None
    assert NodeLinks.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    return found


def test_eight_gpus_on_nvswitch() -> None:
    found = links(hgx())
    assert (found.gpus, found.peer, found.nvls, found.nvlink_generation) == (8, "nvswitch", True, 4)
    assert (found.nvlink_bytes_per_s, found.nic_bytes_per_s, found.num_nics) == (450e9, 50e9, 8)
    assert found.pcie_bytes_per_s == pytest.approx(PCIE[5, 16], rel=1e-4)
    assert "under load" in found.sources["pcie"] and set(found.verified.values()) == {True}
    assert found.network_reduces


def test_the_slowest_gpu_bounds_what_all_do() -> None:
    plain = hgx()
    plain["gpus"][3] = loaded(3, lanes=8, nvlinks=[nvlink(k, active=k != 5) for k in range(18)])
    found = links(plain)
    assert found.nvlink_bytes_per_s == 425e9
    assert found.pcie_bytes_per_s == pytest.approx(PCIE[5, 8], rel=1e-4)


def test_an_idle_link_counts_with_its_lanes_and_the_generation_of_both_ends() -> None:
    found = links(node([gpu(pcie_generation=1, pcie_lanes=8, slot_generation=4)], []))
    assert found.pcie_bytes_per_s == pytest.approx(PCIE[4, 8], rel=1e-4)
    assert "idle" in found.sources["pcie"] and "PCIe 4 x8" in found.sources["pcie"]
    unsaid = links(node([gpu(pcie_generation=1, pcie_lanes=None, slot_lanes=None)], []))
    assert unsaid.pcie_bytes_per_s == pytest.approx(PCIE[5, 16], rel=1e-4)
    under = links(node([gpu(pcie_generation=4, pcie_lanes=8, under_load=True)], []))
    assert under.pcie_bytes_per_s == pytest.approx(PCIE[4, 8], rel=1e-4)


def test_generation_1_is_taken_for_a_link_that_went_idle_before_it_was_read() -> None:
    found = links(node([gpu(pcie_generation=1, pcie_lanes=8, under_load=True)], []))
    assert found.pcie_bytes_per_s == pytest.approx(PCIE[5, 8], rel=1e-4) and "idle" in found.sources["pcie"]


def test_an_unreported_link_has_no_rate() -> None:
    bare = links(node([gpu(pcie_max_generation=None, slot_generation=None, nvlinks=[])], []))
    assert (bare.pcie_bytes_per_s, bare.nvlink_bytes_per_s, bare.nic_bytes_per_s) == (None, None, None)
    assert bare.peer == "host" and "pcie" not in bare.sources
    assert links_of(node([], [])) is None and links_of({}) is None


def test_a_chip_that_is_joined_to_its_processor_by_nvlink_has_no_pcie() -> None:
    assert links(node([gpu(name="NVIDIA GB200")], [])).pcie_bytes_per_s == 450e9
    spark = gpu(name="NVIDIA GB10", pcie_lanes=1, pcie_max_generation=1, nvlinks=[])
    shared = links(node([spark], []))  # one memory of host and GPU, and no link that its driver's x1 would be
    assert shared.pcie_bytes_per_s is None and "pcie" not in shared.sources


@pytest.mark.parametrize(
    ("kind", "access", "peer"),
    [
        ("PIX", True, "pcie_p2p"),
        ("SYS", True, "pcie_p2p"),
        ("PHB", False, "host"),
        ("PHB", None, "host"),
    ],
)
def test_gpus_without_nvlink(kind: str, access: bool | None, peer: str) -> None:
    found = links(pcie_pair(kind, access))
    assert (found.peer, found.nvlink_bytes_per_s) == (peer, None)
    assert found.gpus_per_pcie_switch == (2 if kind == "PIX" else None)


def test_bridges_between_two_and_meshes_of_four() -> None:
    def joined(pairs: list[tuple[int, int]], num: int, links_each: int) -> dict[str, Any]:
        ends: dict[int, list[str]] = {k: [] for k in range(num)}
        for a, b in pairs:
            ends[a] += [f"gpu{b}"] * links_each
            ends[b] += [f"gpu{a}"] * links_each
        gpus = [gpu(k, nvlinks=[nvlink(n, peer=end) for n, end in enumerate(ends[k])]) for k in range(num)]
        between = [
            path(f"gpu{a}", f"gpu{b}", f"NV{links_each}" if (a, b) in pairs else "SYS")
            for a, b in combinations(range(num), 2)
        ]
        return node(gpus, between)

    bridged = links(joined([(0, 1), (2, 3)], 4, 12))
    assert (bridged.peer, bridged.nvlink_bytes_per_s, bridged.nvls) == ("nvlink_pairs", 300e9, False)
    mesh = links(joined(list(combinations(range(4), 2)), 4, 4))
    assert (mesh.peer, mesh.nvlink_bytes_per_s, mesh.pair_bytes_per_s) == ("nvlink_mesh", 300e9, 100e9)


def test_unknown_paths_bound_by_the_models_own_links() -> None:
    silent = node([gpu(k, nvlinks=[]) for k in range(8)], [])
    assert (links(silent).peer, links(silent).nvlink_bytes_per_s) == ("nvswitch", 450e9)
    assert "own" in links(silent).sources["nvlink"]
    unheard = node([gpu(k, name="unknown", nvlinks=[]) for k in range(8)], [])
    assert (links(unheard).peer, links(unheard).nvlink_bytes_per_s) == ("nvswitch", None)


def test_adapters_without_a_link_or_without_rdma_carry_nothing() -> None:
    plain = hgx()
    plain["adapters"][0]["state"] = "DOWN"
    plain["adapters"].append({"name": "eth0", "kind": "ethernet", "bytes_per_s": 12.5e9})
    assert links(plain).num_nics == 7
    plain["adapters"][1]["bytes_per_s"] = None  # a sum with an unknown part is unknown
    assert links(plain).nic_bytes_per_s is None and "network" not in links(plain).sources


def test_the_slowest_node_counts_and_one_without_facts_makes_all_unknown() -> None:
    slow = hgx()
    slow["gpus"][0] = loaded(0, lanes=8)
    slow["adapters"] = slow["adapters"][:4]
    both = links_of_all([hgx(), slow])
    assert both is not None and both.num_nics == 4
    assert both.pcie_bytes_per_s == pytest.approx(PCIE[5, 8], rel=1e-4)
    assert links_of_all([hgx(), {}]) is None and links_of_all([]) is None


def test_slower_links_replace_those_of_the_instance_type() -> None:
    promised, real = node_links("p5.48xlarge"), links(hgx(gpus=[loaded(k, lanes=8) for k in range(8)]))
    held, slower = as_linked(promised, real)
    assert held.pcie_bytes_per_s == real.pcie_bytes_per_s and held.nvlink_bytes_per_s == 450e9
    assert held.nic_bytes_per_s == promised.nic_bytes_per_s and "as linked" in held.sources["pcie"]
    [message] = slower
    assert message.code == HealthCode.BELOW_INSTANCE
    assert message.facts["linked"] == real.pcie_bytes_per_s and message.facts["promised"] == promised.pcie_bytes_per_s
    assert as_linked(promised, links(hgx())) == (promised, ())
    assert as_linked(promised, None) == (promised, ())
    given = promised.with_rates({"pcie": 60e9})
    assert as_linked(given, real) == (given, ())


def test_given_rates_come_before_those_of_the_machine() -> None:
    facts = [hgx()]
    assert bounding({}, facts) == (links(hgx()).to_dict(), ())
    assert bounding({}, []) == ({}, ())
    told, _ = bounding(bounding_links("", {"pcie": 10e9}, 8, True), facts)
    assert (told["pcie_bytes_per_s"], told["nvlink_bytes_per_s"], told["peer"]) == (10e9, 450e9, "nvswitch")
    named = node_links("p4d.24xlarge").to_dict()
    assert bounding(named, []) == (named, ())


def test_a_sandbox_with_one_gpu_has_its_pcie_link() -> None:
    found = links(sandbox())
    assert found.peer == "host" and found.pcie_bytes_per_s == pytest.approx(PCIE[5, 16], rel=1e-4)


def recorded(name: str) -> dict[str, Any]:
    """The facts of a machine: of a synthetic text, or of another person's file."""
    if name in synthetic.TEXTS:
        text = synthetic.TEXTS[name]
    else:
        text = corpus.real(*name.split("/")).read_text(errors="replace")
    found = inventory_of(text)
    assert found is not None
    return asdict(found)


def test_a_machine_with_half_the_lanes_is_bound_by_them() -> None:
    assert links(recorded("pcie_logs/8_gpus_with_half_the_lanes")).pcie_bytes_per_s == pytest.approx(
        PCIE[4, 8], rel=1e-4
    )


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("topo_logs/2_gpus_of_a_bridge", "nvlink_pairs"),
        ("topo_logs/8_gpus_of_nvswitch", "nvswitch"),
        ("topo_logs/8_gpus_8_cards", "nvswitch"),
        ("topo_logs/2_gpus_of_a_host", "host"),
        ("topo_logs/8_gpus_without_a_legend", "host"),
        ("pcie_logs/8_gpus_with_half_the_lanes", "host"),
        *(
            pytest.param(name, peer, marks=corpus.needs_corpus)
            for name, peer in (
                ("topo_logs/01_2gpu_nv2.txt", "nvlink_pairs"),
                ("topo_logs/03_8xa100_nv12_nonic_spaces.txt", "nvswitch"),
                ("topo_logs/04_8xh100_nv18_nonic_spaces.txt", "nvswitch"),
                ("topo_logs/02_2gpu_phb.txt", "host"),
                ("topo_logs/06_gke_a4_8xb200_8nic_pix_node_sys.txt", "nvswitch"),
                ("topo_logs/12_8gpu_pix_phb_switches_nolegend.txt", "host"),
                ("pcie_logs/02_nvidia-smi-qx_aws_g6e48_8xl40s_gen4_x8of16.xml.txt", "host"),
            )
        ),
    ],
)
def test_recorded_machines(name: str, peer: str) -> None:
    assert links(recorded(name)).peer == peer
