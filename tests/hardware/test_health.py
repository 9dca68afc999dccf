"""Rules on the health of a machine: each finds what it is for, and is silent on a healthy machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.hardware.health import HealthFinding, findings, findings_between
from bench.hardware.promises import promises
from tests.hardware.machines import gpu, hgx, loaded, node, nvlink, path, pcie_pair, sandbox

Change = Callable[[dict[str, Any]], object]


def said(of: dict[str, Any], severity: str = "", **more: Any) -> dict[str, HealthFinding]:
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
            "generation 5 x8, both ends can do generation 5 x16",
        ),
        ("link_below_both_ends", "wrong", one_gpu(3, pcie_generation=4), "generation 4 x16"),
        ("slot_below_gpu", "doubtful", each_gpu(own_generation=6), "the GPU can do generation 6, here generation 5"),
        ("slot_below_gpu", "doubtful", one_gpu(1, slot_lanes=8, pcie_lanes=8), "the GPU has x16, the slot x8"),
        ("no_peer_access", "wrong", paths("NV18", False, "the topology does not support it"), "the topology does not"),
        (
            "nvlink_down",
            "wrong",
            one_gpu(2, nvlinks=[nvlink(k, active=k != 7) for k in range(18)]),
            "17 of 18 are active; not active: 7",
        ),
        (
            "nvlink_down",
            "wrong",
            each_gpu(nvlinks=[nvlink(k, active=k < 12) for k in range(18)]),
            "12 of 18 are active",
        ),
        (
            "fabric_not_ready",
            "wrong",
            each_gpu(fabric="in progress"),
            "fabric state: in progress; the fabric manager runs",
        ),
        ("far_adapters", "wrong", paths("SYS", None, first="gpu5", second="mlx5"), "gpu5 to mlx5_0: SYS"),
        ("far_adapters", "doubtful", paths("PHB", None, first="gpu5", second="mlx5"), "gpu5 to mlx5_0: PHB"),
        ("no_gpu_direct", "wrong", fact(peermem=False, dmabuf=False), "nvidia_peermem is not loaded"),
        ("iommu", "doubtful", fact(iommu="on"), "iommu: on"),
        ("acs", "doubtful", fact(acs=True), "acs: on"),
        ("locked_memory", "wrong", fact(max_locked_bytes=65536), "64 KiB"),
        ("shared_memory", "wrong", fact(shm_bytes=64 << 20), "64 MiB for 8 GPUs"),
        ("mig", "wrong", one_gpu(0, mig=True), "the driver says so"),
        ("ecc_errors", "doubtful", one_gpu(4, ecc_uncorrected=2), "2 in all"),
        ("throttled", "wrong", one_gpu(6, throttle=["hw thermal slowdown"]), "hw thermal slowdown"),
        ("throttled", "doubtful", one_gpu(6, throttle=["sw power cap"]), "sw power cap"),
        ("governor", "doubtful", fact(governor="powersave"), "powersave"),
        ("unlike_gpus", "doubtful", one_gpu(7, power_limit_w=500.0), "gpu7: 500.0"),
    ],
)
def test_each_rule_finds_what_it_is_for_and_nothing_else_does(
    rule: str, severity: str, change: Change, evidence: str
) -> None:
    broken = hgx()
    change(broken)
    found = said(broken)
    assert evidence in found[rule].evidence and found[rule].severity == severity
    assert found[rule].what and found[rule].remedy
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
def test_what_is_not_told_is_unknown_and_never_wrong(rule: str, change: Change) -> None:
    silent = hgx()
    change(silent)
    found = said(silent)
    assert found[rule].severity == "unknown" and found[rule].evidence
    assert {each.severity for each in found.values()} == {"unknown"}


def test_of_an_idle_link_only_the_lanes_are_a_finding() -> None:
    idle = node([gpu(pcie_generation=1)], [])
    assert not said(idle, "wrong") and not said(idle, "doubtful")
    assert "generation 1 x16" in said(idle, "unknown")["link_below_both_ends"].evidence
    narrow = said(node([gpu(pcie_generation=1, pcie_lanes=8)], []), "doubtful")["narrow_link"]
    assert "x8 is linked, x16 is possible" in narrow.evidence and narrow.remedy


def test_a_narrow_link_under_load_is_wrong_only_where_its_slot_is_known_to_do_more() -> None:
    assert set(said(node([loaded(lanes=8)], []), "wrong")) == {"link_below_both_ends"}
    built_so = node([loaded(lanes=8, slot_lanes=None)], [])
    assert not said(built_so, "wrong") and "x16 is possible" in said(built_so, "doubtful")["narrow_link"].evidence


def test_a_sandbox_that_tells_little_has_nothing_wrong_and_much_unknown() -> None:
    found = said(sandbox(), software={"torch": "2.11.0+cu130", "cupy-cuda13x": "14.2.0"})
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
    """One GPU of a cloud: Ethernet by a function of an RDMA adapter, no bridges, no governor, nothing of its host."""
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
    """One of eight GPUs, beside all adapters of its host, which no device file reaches."""
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
    found = said(healthy, software={"torch": "2.11.0+cu130", "cupy-cuda13x": "14.2.0"})
    assert {rule for rule, each in found.items() if each.severity == "wrong"} == set()
    assert {rule for rule, each in found.items() if each.severity == "doubtful"} == doubted


def test_a_virtual_machine_that_shows_no_switch_does_not_tell_who_shares_one() -> None:
    flat = hgx(virtual_machine=True)
    paths("PHB", None, second="mlx5")(flat)
    assert said(flat)["far_adapters"].severity == "unknown"
    assert said(flat | {"virtual_machine": False})["far_adapters"].severity == "doubtful"


def test_adapters_that_are_there_for_rdma_must_be_able_to_in_a_virtual_machine_too() -> None:
    card = {"name": "mlx5_0", "kind": "infiniband", "bytes_per_s": 50e9, "state": "active", "numa_node": 0}
    assert {"no_gpu_direct", "locked_memory"} == set(said(virtual("NVIDIA H200", adapters=[card]), "wrong"))


def test_a_reading_that_came_too_late_proves_no_slow_link() -> None:
    late = said(node([loaded(generation=1)], []))
    assert (
        late["link_below_both_ends"].severity == "unknown"
        and "generation 1 x16" in late["link_below_both_ends"].evidence
    )


def test_one_gpu_whose_nvlinks_are_off_has_nobody_to_join() -> None:
    off = [nvlink(k, active=False) for k in range(18)]
    alone = said(node([gpu(fabric="in progress", nvlinks=off)], []))["fabric_not_ready"]
    assert alone.severity == "doubtful" and alone.remedy.startswith("nothing where CUDA programs work")
    assert said(node([gpu(fabric="in progress")], []))["fabric_not_ready"].severity == "wrong"


def test_a_machine_without_gpus_has_no_finding_about_them() -> None:
    assert set(said(node([], [], shm_bytes=1 << 20, iommu="on", fabric_manager=False))) == set()


def test_a_manager_that_does_not_run_matters_where_gpus_do_not_tell_their_state() -> None:
    silent = hgx(fabric_manager=False)
    each_gpu(fabric=None)(silent)
    assert said(silent)["fabric_not_ready"].severity == "wrong"
    assert said(silent | {"virtual_machine": True})["fabric_not_ready"].severity == "unknown"  # its host runs it
    assert "fabric_not_ready" not in said(hgx(fabric_manager=False))  # the GPUs say that they have joined


def test_gpus_that_a_platform_can_not_join_are_doubtful_and_those_that_somebody_parted_wrong() -> None:
    for why, severity in (
        ("the chipset does not support it", "doubtful"),
        ("disabled by a setting of the driver", "wrong"),
    ):
        assert said(pcie_pair("PHB", False, why))["no_peer_access"].severity == severity
    many = node(
        [gpu(k, name="NVIDIA L40S", nvlinks=[]) for k in range(4)],
        [path(f"gpu{a}", f"gpu{b}", "PHB", False) for a in range(4) for b in range(a)],
    )
    assert said(many)["no_peer_access"].what.endswith("and 2 more")


def test_one_gpu_of_eight_needs_no_nvlink() -> None:
    alone = node([gpu(nvlinks=[nvlink(k, active=False) for k in range(18)])], [])
    assert "nvlink_down" not in said(alone)


def test_cards_without_a_bridge_miss_none() -> None:
    off = [nvlink(k, active=False) for k in range(18)]
    cards = [gpu(k, name="NVIDIA H100 PCIe", nvlinks=off, fabric=None) for k in range(2)]
    assert "nvlink_down" not in said(node(cards, [path("gpu0", "gpu1", "SYS")]))


def test_without_paths_numa_nodes_tell_which_adapters_are_far() -> None:
    plain = hgx()
    plain["paths"] = [each for each in plain["paths"] if each["b"].startswith("gpu")]
    assert "far_adapters" not in said(plain)
    plain["adapters"] = plain["adapters"][:4]  # all on node 0
    assert said(plain)["far_adapters"].what.endswith("gpu[4-7]")


def test_acs_and_iommu_do_not_matter_where_nothing_goes_by_pcie() -> None:
    inside = hgx(iommu="on", acs=True, adapters=[])
    assert not {"iommu", "acs"} & set(said(inside))
    assert {"iommu", "acs"} <= set(said(pcie_pair() | {"iommu": "on", "acs": True}))


@pytest.mark.parametrize(
    ("software", "cuda", "word"),
    [
        ({"torch": "2.13.0+cpu"}, "13.0", "without CUDA"),
        ({"torch": "2.11.0+cu130"}, "12.4", "newer driver"),
        ({"cupy-cuda13x": "14.2.0"}, "12.4", "newer driver"),
        ({"torch": "2.11.0+cu128"}, "12.4", None),
        ({"torch": "2.11.0"}, "12.4", None),
        ({"cupy-cuda12x": "14.2.0"}, "13.0", None),
    ],
)
def test_libraries_that_can_not_use_the_gpus(software: dict[str, str], cuda: str, word: str | None) -> None:
    found = said(hgx(gpu_cuda=cuda), software=software).get("libraries")
    assert (found is None) if word is None else (found is not None and word in found.what and found.severity == "wrong")
    assert "libraries" not in said(node([], [], gpu_cuda=cuda), software=software)


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
def test_libraries_for_gpus_that_nobody_shows_are_no_good_page(software: dict[str, str], doubt: bool) -> None:
    found = said(node([], [], no_gpus_because="no NVIDIA driver answers"), software=software).get("no_driver")
    assert (found is not None) == doubt
    assert found is None or (found.severity == "doubtful" and "no NVIDIA driver answers" in found.evidence)
    assert "no_driver" not in said(hgx(), software=software)


def test_an_instance_type_promises_gpus_and_links() -> None:
    few = node([loaded(k) for k in range(7)], [path(f"gpu{a}", f"gpu{b}") for a in range(7) for b in range(a)])
    assert "7 of the 8 GPUs" in said(few, instance="p5.48xlarge")["below_instance"].what
    narrow = hgx(gpus=[loaded(k, lanes=8) for k in range(8)])
    assert "31.5 GB/s, where p5.48xlarge has 63 GB/s" in said(narrow, instance="p5.48xlarge")["below_instance"].what
    assert "below_instance" not in said(few, instance="mine")


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


def test_half_the_lanes_are_no_doubt_where_the_instance_type_has_no_more() -> None:
    half = node(l40s(), [path(f"gpu{a}", f"gpu{b}", "PHB", False) for a in range(8) for b in range(a)])
    assert "narrow_link" in said(half) and "narrow_link" not in said(half, instance="g6e.48xlarge")
    quarter = node([each | {"pcie_lanes": 4} for each in half["gpus"]], half["paths"])
    assert {"narrow_link", "below_instance"} <= set(said(quarter, "doubtful", instance="g6e.48xlarge"))
    assert (
        promises(quarter, "g6e.48xlarge")[0].bounds[0].bytes_per_s
        < promises(half, "g6e.48xlarge")[0].bounds[0].bytes_per_s
    )


def test_other_gpus_than_the_instance_type_has_are_wrong() -> None:
    found = said(node(l40s(), []), "wrong", instance="p4d.24xlarge")["below_instance"]
    assert found.evidence == "there is L40S, it has A100-SXM4-40GB"
    assert promises(node(l40s(), []), "p4d.24xlarge") == promises(node(l40s(), []))


def test_a_driver_tells_of_the_gpus_own_link_and_the_instance_type_of_the_way_to_the_host() -> None:
    """As on p4d: generation 4 to the switch, whose own link and processor have generation 3."""
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
    assert "below_instance" not in said(p4d)
    found = said(p4d, instance="p4d.24xlarge")["below_instance"]
    assert found.severity == "unknown" and "PCIe 4 x16" in found.evidence and "15.8 GB/s to its host" in found.evidence
    alone, named = promises(p4d)[0].bound, promises(p4d, "p4d.24xlarge")[0].bound
    assert alone and named and named.bytes_per_s == alone.bytes_per_s / 2
    assert "topology file of the instance type" in named.source


def test_what_is_wrong_comes_first() -> None:
    many = hgx(governor="powersave", iommu=None, shm_bytes=64 << 20)
    assert [each.severity for each in findings(many)] == ["wrong", "doubtful", "unknown"]


def test_nodes_that_differ() -> None:
    assert findings_between({"a": hgx(), "b": hgx()}) == () == findings_between({"a": hgx()})
    other = hgx(gpu_driver="570.1", gpus=[loaded(k) for k in range(7)])
    assert [each.what for each in findings_between({"a": hgx(), "b": other})] == [
        "the nodes differ in their GPU driver",
        "the nodes differ in their GPUs",
    ]
