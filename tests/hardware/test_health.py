"""Health rules: each finds its problem, and nothing on a healthy machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.core.codes import UNCODED
from bench.hardware.health import HealthFinding, findings, findings_between
from bench.hardware.messages import HealthCode
from bench.hardware.promises import promises
from tests.hardware.machines import gpu, hgx, loaded, node, nvlink, path, pcie_pair, sandbox

Change = Callable[[dict[str, Any]], object]


def by_rule(of: dict[str, Any], severity: str = "", **more: Any) -> dict[str, HealthFinding]:
    return {each.rule: each for each in findings(of, **more) if severity in ("", each.severity)}


def each_gpu(**changes: Any) -> Change:
    return lambda of: [one.update(changes) for one in of["gpus"]]


def one_gpu(index: int, **changes: Any) -> Change:
    return lambda of: of["gpus"][index].update(changes)


def fact(**changes: Any) -> Change:
    return lambda of: of.update(changes)


def paths(
    kind: str,
    access: bool | None = True,
    why_not: str | None = None,
    first: str = "gpu",
    second: str = "gpu",
) -> Change:
    def change(of: dict[str, Any]) -> None:
        for each in of["paths"]:
            if each["a"].startswith(first) and each["b"].startswith(second):
                each.update(kind=kind, peer_access=access, why_not=why_not)

    return change


def test_a_healthy_machine_has_no_finding_and_nothing_unknown() -> None:
    assert findings(hgx(), {"torch": "2.11.0+cu130", "cupy-cuda13x": "14.2.0"}, "p5.48xlarge") == ()


@pytest.mark.parametrize(
    ("rule", "severity", "change", "evidence"),
    [
        (
            "link_below_both_ends",
            "wrong",
            one_gpu(3, pcie_lanes=8),
            "generation 5 x8",
        ),
        ("link_below_both_ends", "wrong", one_gpu(3, pcie_generation=4), "generation 4 x16"),
        ("slot_below_gpu", "doubtful", each_gpu(own_generation=6), "generation 6"),
        ("slot_below_gpu", "doubtful", one_gpu(1, slot_lanes=8, pcie_lanes=8), "the slot x8"),
        ("no_peer_access", "wrong", paths("NV18", False, "the topology does not support it"), "NV18"),
        (
            "nvlink_down",
            "wrong",
            one_gpu(2, nvlinks=[nvlink(k, active=k != 7) for k in range(18)]),
            "not active: 7",
        ),
        (
            "nvlink_down",
            "wrong",
            each_gpu(nvlinks=[nvlink(k, active=k < 12) for k in range(18)]),
            "12 of 18",
        ),
        (
            "fabric_not_ready",
            "wrong",
            each_gpu(fabric="in progress"),
            "in progress",
        ),
        ("far_adapters", "wrong", paths("SYS", None, first="gpu5", second="mlx5"), "gpu5 to mlx5_0: SYS"),
        ("far_adapters", "doubtful", paths("PHB", None, first="gpu5", second="mlx5"), "gpu5 to mlx5_0: PHB"),
        ("no_gpu_direct", "wrong", fact(peermem=False, dmabuf=False), "nvidia_peermem"),
        ("iommu", "doubtful", fact(iommu="on"), "iommu: on"),
        ("acs", "doubtful", fact(acs=True), "acs: on"),
        ("locked_memory", "wrong", fact(max_locked_bytes=65536), "64 KiB"),
        ("shared_memory", "wrong", fact(shm_bytes=64 << 20), "64 MiB"),
        ("mig", "wrong", one_gpu(0, mig=True), "driver"),
        ("ecc_errors", "doubtful", one_gpu(4, ecc_uncorrected=2), "2 in total"),
        ("throttled", "wrong", one_gpu(6, throttle=["hw thermal slowdown"]), "hw thermal slowdown"),
        ("throttled", "doubtful", one_gpu(6, throttle=["sw power cap"]), "sw power cap"),
        ("governor", "doubtful", fact(governor="powersave"), "powersave"),
        ("unlike_gpus", "doubtful", one_gpu(7, power_limit_w=500.0), "gpu7: 500.0"),
    ],
)
def test_each_rule_finds_its_problem_and_no_other_does(rule: str, severity: str, change: Change, evidence: str) -> None:
    broken = hgx()
    change(broken)
    found = by_rule(broken)
    assert evidence in found[rule].evidence and found[rule].severity == severity
    assert found[rule].code != UNCODED and found[rule].what and found[rule].remedy
    assert set(found) - {"unlike_gpus"} <= {rule}, found  # one GPU that is broken is unlike the others


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("link_below_both_ends", each_gpu(under_load=False, pcie_generation=1)),
        ("no_peer_access", paths("NV18", None)),
        ("nvlink_down", each_gpu(nvlinks=[])),
        ("fabric_not_ready", lambda of: (each_gpu(fabric=None)(of), fact(fabric_manager=None)(of))),
        ("no_gpu_direct", fact(peermem=False, dmabuf=None)),
        ("iommu", fact(iommu=None)),
        ("acs", fact(acs=None)),
        ("shared_memory", fact(shm_bytes=None)),
        ("governor", fact(governor=None)),
    ],
)
def test_missing_facts_are_unknown_and_never_wrong(rule: str, change: Change) -> None:
    silent = hgx()
    change(silent)
    found = by_rule(silent)
    assert found[rule].severity == "unknown" and found[rule].evidence
    assert {each.severity for each in found.values()} == {"unknown"}


def test_only_the_lanes_of_an_idle_link_are_a_finding() -> None:
    idle = node([gpu(pcie_generation=1)], [])
    assert not by_rule(idle, "wrong") and not by_rule(idle, "doubtful")
    assert "generation 1 x16" in by_rule(idle, "unknown")["link_below_both_ends"].evidence
    narrow = by_rule(node([gpu(pcie_generation=1, pcie_lanes=8)], []), "doubtful")["narrow_link"]
    assert "x8 of x16" in narrow.evidence and narrow.remedy


def test_a_narrow_link_under_load_is_wrong_only_if_its_slot_has_more_lanes() -> None:
    assert set(by_rule(node([loaded(lanes=8)], []), "wrong")) == {"link_below_both_ends"}
    built_so = node([loaded(lanes=8, slot_lanes=None)], [])
    assert not by_rule(built_so, "wrong") and "x8 of x16" in by_rule(built_so, "doubtful")["narrow_link"].evidence


def test_a_sandbox_with_few_facts_has_nothing_wrong() -> None:
    found = by_rule(sandbox(), software={"torch": "2.11.0+cu130", "cupy-cuda13x": "14.2.0"})
    assert {each.severity for each in found.values()} == {"unknown"}
    assert {"link_below_both_ends", "governor", "shared_memory"} <= set(found)


def laptop() -> dict[str, Any]:
    """Half the lanes, no ECC, a battery's governor."""
    own = gpu(
        name="NVIDIA GeForce RTX 4070 Laptop GPU",
        nvlinks=[],
        fabric=None,
        ecc=None,
        ecc_uncorrected=None,
        mig=None,
        pcie_max_generation=4,
        own_generation=4,
        slot_generation=4,
        slot_lanes=8,
        pcie_lanes=8,
        numa_node=None,
        power_limit_w=None,
    )
    return node(
        [own],
        [],
        governor="powersave",
        fabric_manager=False,
        peermem=False,
        dmabuf=False,
        iommu="on",
        max_locked_bytes=8 << 20,
        numa_nodes=[],
    )


def virtual(name: str, **changes: Any) -> dict[str, Any]:
    """One GPU of a cloud: Ethernet by a function of an RDMA adapter, no bridges, no governor, no facts of its host."""
    own = gpu(name=name, nvlinks=[], fabric=None, slot_generation=None, slot_lanes=None, numa_node=None)
    card = {"name": "mlx5_0", "kind": "roce", "bytes_per_s": 12.5e9, "state": "active", "numa_node": 0}
    return (
        node(
            [own],
            [],
            adapters=[card],
            governor=None,
            virtual_machine=True,
            fabric_manager=False,
            acs=None,
            peermem=False,
            dmabuf=False,
            max_locked_bytes=64 << 10,
        )
        | changes
    )


def container_of_a_host_with_adapters() -> dict[str, Any]:
    """One of eight GPUs, with all adapters of its host but no device files."""
    whole = hgx(verbs=False, peermem=False, dmabuf=False, max_locked_bytes=64 << 10, fabric_manager=None)
    return whole | {"gpus": whole["gpus"][:1], "paths": [path("gpu0", "mlx5_7", "SYS", None)]}


@pytest.mark.parametrize(
    ("healthy", "doubted"),
    [
        (laptop(), {"governor", "slot_below_gpu"}),
        (virtual("NVIDIA L4"), {"no_gpu_direct", "locked_memory"}),
        (virtual("NVIDIA H200", fabric_manager=None, peermem=None, dmabuf=None), {"locked_memory"}),
        (container_of_a_host_with_adapters(), {"no_verbs"}),
    ],
)
def test_on_a_healthy_machine_nothing_is_wrong(healthy: dict[str, Any], doubted: set[str]) -> None:
    found = by_rule(healthy, software={"torch": "2.11.0+cu130", "cupy-cuda13x": "14.2.0"})
    assert {rule for rule, each in found.items() if each.severity == "wrong"} == set()
    assert {rule for rule, each in found.items() if each.severity == "doubtful"} == doubted


def test_a_virtual_machine_without_switches_leaves_sharing_unknown() -> None:
    flat = hgx(virtual_machine=True)
    paths("PHB", None, second="mlx5")(flat)
    assert by_rule(flat)["far_adapters"].severity == "unknown"
    assert by_rule(flat | {"virtual_machine": False})["far_adapters"].severity == "doubtful"


def test_infiniband_must_work_in_a_virtual_machine_too() -> None:
    card = {"name": "mlx5_0", "kind": "infiniband", "bytes_per_s": 50e9, "state": "active", "numa_node": 0}
    assert {"no_gpu_direct", "locked_memory"} == set(by_rule(virtual("NVIDIA H200", adapters=[card]), "wrong"))


def test_a_late_reading_proves_no_slow_link() -> None:
    late = by_rule(node([loaded(generation=1)], []))
    assert (
        late["link_below_both_ends"].severity == "unknown"
        and "generation 1 x16" in late["link_below_both_ends"].evidence
    )


def test_a_single_gpu_without_nvlinks_has_no_fabric_to_join() -> None:
    off = [nvlink(k, active=False) for k in range(18)]
    alone = by_rule(node([gpu(fabric="in progress", nvlinks=off)], []))["fabric_not_ready"]
    assert (alone.severity, alone.code) == ("doubtful", HealthCode.FABRIC_ALONE)
    assert by_rule(node([gpu(fabric="in progress")], []))["fabric_not_ready"].severity == "wrong"


def test_a_machine_without_gpus_has_no_finding_about_them() -> None:
    assert set(by_rule(node([], [], shm_bytes=1 << 20, iommu="on", fabric_manager=False))) == set()


def test_a_missing_fabric_manager_matters_if_gpus_report_no_state() -> None:
    silent = hgx(fabric_manager=False)
    each_gpu(fabric=None)(silent)
    assert by_rule(silent)["fabric_not_ready"].severity == "wrong"
    assert by_rule(silent | {"virtual_machine": True})["fabric_not_ready"].severity == "unknown"  # its host runs it
    assert "fabric_not_ready" not in by_rule(hgx(fabric_manager=False))  # the GPUs say that they have joined


def test_missing_peer_access_is_doubtful_but_wrong_if_disabled() -> None:
    for why, severity in (
        ("the chipset does not support it", "doubtful"),
        ("disabled by a setting of the driver", "wrong"),
    ):
        assert by_rule(pcie_pair("PHB", False, why))["no_peer_access"].severity == severity
    many = node(
        [gpu(k, name="NVIDIA L40S", nvlinks=[]) for k in range(4)],
        [path(f"gpu{a}", f"gpu{b}", "PHB", False) for a in range(4) for b in range(a)],
    )
    assert by_rule(many)["no_peer_access"].facts["pairs"] == [f"gpu{a}-gpu{b}" for a in range(4) for b in range(a)]


def test_one_gpu_of_eight_needs_no_nvlink() -> None:
    alone = node([gpu(nvlinks=[nvlink(k, active=False) for k in range(18)])], [])
    assert "nvlink_down" not in by_rule(alone)


def test_cards_without_a_bridge_miss_none() -> None:
    off = [nvlink(k, active=False) for k in range(18)]
    cards = [gpu(k, name="NVIDIA H100 PCIe", nvlinks=off, fabric=None) for k in range(2)]
    assert "nvlink_down" not in by_rule(node(cards, [path("gpu0", "gpu1", "SYS")]))


def test_without_paths_numa_nodes_tell_which_adapters_are_far() -> None:
    plain = hgx()
    plain["paths"] = [each for each in plain["paths"] if each["b"].startswith("gpu")]
    assert "far_adapters" not in by_rule(plain)
    plain["adapters"] = plain["adapters"][:4]  # all on node 0
    assert by_rule(plain)["far_adapters"].facts["gpus"] == "gpu[4-7]"


def test_acs_and_iommu_do_not_matter_where_nothing_goes_by_pcie() -> None:
    inside = hgx(iommu="on", acs=True, adapters=[])
    assert not {"iommu", "acs"} & set(by_rule(inside))
    assert {"iommu", "acs"} <= set(by_rule(pcie_pair() | {"iommu": "on", "acs": True}))


@pytest.mark.parametrize(
    ("software", "cuda", "code"),
    [
        ({"torch": "2.13.0+cpu"}, "13.0", HealthCode.TORCH_WITHOUT_CUDA),
        ({"torch": "2.11.0+cu130"}, "12.4", HealthCode.LIBRARY_TOO_NEW),
        ({"cupy-cuda13x": "14.2.0"}, "12.4", HealthCode.LIBRARY_TOO_NEW),
        ({"torch": "2.11.0+cu128"}, "12.4", None),
        ({"torch": "2.11.0"}, "12.4", None),
        ({"cupy-cuda12x": "14.2.0"}, "13.0", None),
    ],
)
def test_libraries_that_cannot_use_the_gpus(software: dict[str, str], cuda: str, code: str | None) -> None:
    found = by_rule(hgx(gpu_cuda=cuda), software=software).get("libraries")
    assert (found is None) if code is None else (found is not None and (found.code, found.severity) == (code, "wrong"))
    assert "libraries" not in by_rule(node([], [], gpu_cuda=cuda), software=software)


@pytest.mark.parametrize(
    ("software", "doubt"),
    [
        ({"cupy-cuda13x": "14.2.0"}, True),
        ({"torch": "2.11.0+cu130"}, True),
        ({"nvidia-nccl-cu13": "2.28.9"}, True),
        ({"torch": "2.11.0+cpu", "mpi4py": "4.1"}, False),
        ({}, False),
    ],
)
def test_gpu_libraries_without_a_visible_gpu_are_doubtful(software: dict[str, str], doubt: bool) -> None:
    found = by_rule(node([], [], no_gpus_because="no driver"), software=software).get("no_driver")
    assert (found is not None) == doubt
    assert found is None or (found.severity == "doubtful" and "no driver" in found.evidence)
    assert "no_driver" not in by_rule(hgx(), software=software)


def test_an_instance_type_promises_gpus_and_links() -> None:
    few = node([loaded(k) for k in range(7)], [path(f"gpu{a}", f"gpu{b}") for a in range(7) for b in range(a)])
    facts = by_rule(few, instance="p5.48xlarge")["below_instance"].facts
    assert (facts["there"], facts["wanted"]) == (7, 8)
    narrow = hgx(gpus=[loaded(k, lanes=8) for k in range(8)])
    facts = by_rule(narrow, instance="p5.48xlarge")["below_instance"].facts
    assert facts["linked"] == pytest.approx(facts["promised"] / 2)
    assert "below_instance" not in by_rule(few, instance="mine")


def l40s(num: int = 8) -> list[dict[str, Any]]:
    """Behind half their lanes, as in g6e.48xlarge."""
    return [
        gpu(
            k,
            name="NVIDIA L40S",
            nvlinks=[],
            fabric=None,
            pcie_lanes=8,
            slot_lanes=None,
            pcie_max_generation=4,
            slot_generation=None,
            own_generation=4,
        )
        for k in range(num)
    ]


def test_half_the_lanes_are_fine_if_the_instance_type_has_no_more() -> None:
    half = node(l40s(), [path(f"gpu{a}", f"gpu{b}", "PHB", False) for a in range(8) for b in range(a)])
    assert "narrow_link" in by_rule(half) and "narrow_link" not in by_rule(half, instance="g6e.48xlarge")
    quarter = node([each | {"pcie_lanes": 4} for each in half["gpus"]], half["paths"])
    assert {"narrow_link", "below_instance"} <= set(by_rule(quarter, "doubtful", instance="g6e.48xlarge"))
    assert (
        promises(quarter, "g6e.48xlarge")[0].bounds[0].bytes_per_s
        < promises(half, "g6e.48xlarge")[0].bounds[0].bytes_per_s
    )


def test_other_gpus_than_the_instance_type_has_are_wrong() -> None:
    found = by_rule(node(l40s(), []), "wrong", instance="p4d.24xlarge")["below_instance"]
    assert found.code == HealthCode.OTHER_GPUS and found.facts["found"] == ["L40S"]
    assert promises(node(l40s(), []), "p4d.24xlarge") == promises(node(l40s(), []))


def test_the_driver_knows_the_gpus_link_and_the_instance_type_the_way_to_the_host() -> None:
    """As on p4d: generation 4 to the switch, generation 3 to the processor."""
    a100 = [
        gpu(
            k,
            name="NVIDIA A100-SXM4-40GB",
            pcie_generation=4,
            pcie_max_generation=4,
            own_generation=4,
            slot_generation=None,
            slot_lanes=None,
            nvlinks=[nvlink(n) for n in range(12)],
        )
        for k in range(8)
    ]
    p4d = node(a100, [path(f"gpu{a}", f"gpu{b}", "NV12") for a in range(8) for b in range(a)])
    assert "below_instance" not in by_rule(p4d)
    found = by_rule(p4d, instance="p4d.24xlarge")["below_instance"]
    assert found.code == HealthCode.HOST_LINK_UNKNOWN
    assert "PCIe 4 x16" in found.evidence and "15.8 GB/s" in found.evidence
    alone, named = promises(p4d)[0].bound, promises(p4d, "p4d.24xlarge")[0].bound
    assert alone and named and named.bytes_per_s == alone.bytes_per_s / 2


def test_wrong_findings_come_first() -> None:
    many = hgx(governor="powersave", iommu=None, shm_bytes=64 << 20)
    assert [each.severity for each in findings(many)] == ["wrong", "doubtful", "unknown"]


def test_nodes_that_differ() -> None:
    assert findings_between({"a": hgx(), "b": hgx()}) == () == findings_between({"a": hgx()})
    other = hgx(gpu_driver="570.1", gpus=[loaded(k) for k in range(7)])
    found = findings_between({"a": hgx(), "b": other})
    assert [(each.code, each.facts["property"]) for each in found] == [
        (HealthCode.UNLIKE_NODES, "GPU driver"),
        (HealthCode.UNLIKE_NODES, "GPUs"),
    ]


def of_pairs(num: int, kinds: dict[tuple[int, int], str], usual: str) -> dict[str, Any]:
    """A node of GPUs whose paths a text shows: `usual`, and `kinds` of some pairs."""
    gpus = [{"index": index, "name": "unknown"} for index in range(num)]
    pairs = [(a, b) for a in range(num) for b in range(a + 1, num)]
    between = [{"a": f"gpu{a}", "b": f"gpu{b}", "kind": kinds.get((a, b), usual)} for a, b in pairs]
    return {"gpus": gpus, "paths": between, "told_by": "nvidia-smi topo"}


@pytest.mark.parametrize(
    ("of", "code", "severity", "gpus"),
    [
        (of_pairs(4, {(0, 3): "SYS", (1, 3): "SYS", (2, 3): "SYS"}, "NV12"), "gpu-without-nvlink", "wrong", "gpu3"),
        (of_pairs(3, {(0, 1): "NV4"}, "SYS"), "no-bridge", "doubtful", "gpu2"),
        (of_pairs(4, {(0, 1): "NV10", (1, 2): "NV10", (1, 3): "NV10"}, "NV12"), "fewer-nvlinks", "wrong", "gpu1"),
    ],
)
def test_a_gpu_unlike_the_others_by_its_paths(of: dict[str, Any], code: str, severity: str, gpus: str) -> None:
    found = by_rule(of)["unlike_nvlinks"]
    assert (found.code, found.severity, found.facts["gpus"]) == (code, severity, gpus)


# The cube mesh of eight V100: six NVLinks each, one or two to a peer, none to three peers.
CUBE = dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 3), (4, 5), (4, 6), (5, 7), (6, 7)], "NV1")
CUBE |= dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 6), (3, 7), (4, 7), (5, 6)], "NV2")


@pytest.mark.parametrize(
    ("of", "gpus"),
    [
        (of_pairs(8, CUBE | {(0, 3): "NV1"}, "SYS"), "gpu[0,3]"),
        (of_pairs(8, CUBE | {(5, 7): "SYS"}, "SYS"), "gpu[5,7]"),
        (of_pairs(4, {(0, 1): "NV12", (2, 3): "NV4"}, "SYS"), "gpu[2-3]"),
    ],
    ids=["half of a pair's links", "a pair's only link", "a bridge"],
)
def test_fewer_nvlinks_where_pairs_differ_by_design_are_doubtful(of: dict[str, Any], gpus: str) -> None:
    found = by_rule(of)["unlike_nvlinks"]
    assert (found.code, found.severity, found.facts["gpus"]) == ("fewer-nvlinks", "doubtful", gpus)


@pytest.mark.parametrize(
    "of",
    [
        of_pairs(8, CUBE, "SYS"),
        of_pairs(6, {ends: kind for ends, kind in CUBE.items() if max(ends) < 6}, "SYS"),  # a part of the mesh
        of_pairs(8, {}, "NV18"),
        of_pairs(4, {}, "PHB"),
        of_pairs(4, {(0, 1): "NV4", (2, 3): "NV4"}, "SYS"),
        # A cube mesh: one or two links to four peers, none to the others.
        of_pairs(4, {(0, 1): "NV2", (0, 2): "NV1", (1, 3): "NV1", (2, 3): "NV2"}, "SYS"),
        of_pairs(3, {(0, 2): "unknown", (1, 2): "unknown"}, "NV12"),
    ],
    ids=["whole mesh", "part of a mesh", "switch", "pcie", "bridges", "mesh", "a row is lost"],
)
def test_paths_that_are_built_this_way_are_no_finding(of: dict[str, Any]) -> None:
    assert "unlike_nvlinks" not in by_rule(of)


def test_nvlinks_slower_than_the_others() -> None:
    links = [{"index": index, "active": True, "bytes_per_s": 25e9} for index in range(12)]
    gpus = [{"index": index, "name": "NVIDIA A100-SXM4-40GB", "nvlinks": links} for index in range(2)]
    assert "slow_nvlinks" not in by_rule({"gpus": gpus})
    gpus[1] = gpus[1] | {"nvlinks": [links[0] | {"bytes_per_s": 20e9}, *links[1:]]}
    found = by_rule({"gpus": gpus})["slow_nvlinks"]
    assert (found.severity, found.facts["gpus"]) == ("wrong", "gpu1")


def test_a_card_without_a_bridge_has_no_links_down() -> None:
    up = [{"index": index, "active": True} for index in range(4)]
    down = [link | {"active": False} for link in up]
    gpus = [
        {"index": index, "name": "NVIDIA RTX A6000", "nvlinks": links} for index, links in enumerate((up, up, down))
    ]
    assert "nvlink_down" not in by_rule({"gpus": gpus})
