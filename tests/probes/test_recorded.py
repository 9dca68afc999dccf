"""Records of machines: synthetic ones, and other people's.

Those of other people are in BENCH_LOG_CORPUS (folders topo_logs, topo_xml, pcie_logs). Only their facts about GPUs,
links and adapters are here; they were read by eye, not by a parser.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from bench.core.inventory import Inventory, NoAccess
from bench.probes import lspci
from bench.probes.topology import inventory_of
from tests.facts import holds
from tests.logs.corpus import FOLDER, needs_corpus
from tests.probes import synthetic_machines as synthetic

FULL8 = {"gpus": 8, "cards": 0, "paths": 28, "lost": 0}
# File -> counts; memory nodes of the GPUs; some cells, the first and the last among them.
TABLES: dict[str, Any] = {
    "01_2gpu_nv2": ({"gpus": 2, "cards": 0, "paths": 1, "lost": 0}, [None, None], {"gpu0 gpu1": "NV2"}),
    "02_2gpu_phb": ({"gpus": 2, "cards": 0, "paths": 1, "lost": 0}, [None, None], {"gpu0 gpu1": "PHB"}),
    "03_8xa100_nv12_nonic_spaces": (FULL8, [0, 0, 0, 0, 1, 1, 1, 1], {"gpu0 gpu1": "NV12", "gpu6 gpu7": "NV12"}),
    "04_8xh100_nv18_nonic_spaces": (FULL8, [0, 0, 0, 0, 1, 1, 1, 1], {"gpu0 gpu1": "NV18", "gpu6 gpu7": "NV18"}),
    "05_8gpu_stas_performance": (FULL8, [0, 0, 0, 0, 1, 1, 1, 1], {"gpu0 gpu1": "NV18", "gpu3 gpu4": "NV18"}),
    "06_gke_a4_8xb200_8nic_pix_node_sys": (
        {"gpus": 8, "cards": 8, "paths": 120, "lost": 0},
        [0, 0, 0, 0, 1, 1, 1, 1],
        {
            "gpu0 gpu1": "NV18",
            "gpu0 mlx5_0": "PIX",
            "gpu0 mlx5_1": "PIX",
            "gpu1 mlx5_2": "NODE",
            "gpu2 mlx5_2": "PIX",
            "gpu3 mlx5_4": "SYS",
            "gpu5 mlx5_4": "PIX",
            "gpu7 mlx5_7": "PIX",
            "gpu7 mlx5_5": "NODE",
            "mlx5_0 mlx5_1": "PIX",
            "mlx5_1 mlx5_2": "NODE",
            "mlx5_3 mlx5_4": "SYS",
            "mlx5_6 mlx5_7": "PIX",
        },
    ),
    "07_2x2080ti_pix_and_topo_p2p": ({"gpus": 2, "cards": 0, "paths": 1, "lost": 0}, [1, 1], {"gpu0 gpu1": "PIX"}),
    "08_1xl40s_10nic_node": (
        {"gpus": 1, "cards": 10, "paths": 55, "lost": 0},
        [0],
        {
            "gpu0 mlx5_0": "NODE",
            "gpu0 mlx5_9": "NODE",
            "mlx5_0 mlx5_1": "NODE",
            "mlx5_1 mlx5_2": "PIX",
            "mlx5_8 mlx5_9": "PIX",
        },
    ),
    "09_8xrtxpro6000_pix_node_sys_ansi": (
        FULL8,
        [0, 0, 0, 0, 1, 1, 1, 1],
        {
            "gpu0 gpu1": "PIX",
            "gpu1 gpu2": "NODE",
            "gpu2 gpu3": "PIX",
            "gpu3 gpu4": "SYS",
            "gpu4 gpu5": "PIX",
            "gpu5 gpu6": "NODE",
            "gpu6 gpu7": "PIX",
        },
    ),
    "10_4gpu_node_nolegend": (
        {"gpus": 4, "cards": 0, "paths": 6, "lost": 0},
        [None] * 4,
        {"gpu0 gpu1": "NODE", "gpu2 gpu3": "NODE"},
    ),
    "11_8gpu_phb_sys_nolegend": (
        FULL8,
        [None] * 8,
        {"gpu0 gpu1": "PHB", "gpu0 gpu3": "PHB", "gpu0 gpu4": "SYS", "gpu6 gpu7": "PHB"},
    ),
    "12_8gpu_pix_phb_switches_nolegend": (
        FULL8,
        [None] * 8,
        {"gpu0 gpu1": "PIX", "gpu0 gpu3": "PIX", "gpu3 gpu4": "PHB", "gpu6 gpu7": "PIX"},
    ),
    "13_dgxa100_12mlx5_pxb_truncated": (
        {"gpus": 8, "cards": 12, "paths": 145, "lost": 1},  # of 190: nothing is told of ten adapters among themselves
        [3, 3, 1, 1, 7, 7, 5, 5],
        {
            "gpu0 gpu1": "NV12",
            "gpu0 mlx5_0": "PXB",
            "gpu0 mlx5_2": "SYS",
            "gpu2 mlx5_3": "PXB",
            "gpu4 mlx5_6": "PXB",
            "gpu7 mlx5_9": "PXB",
            "gpu7 mlx5_11": "SYS",
            "mlx5_0 mlx5_1": "PXB",
            "mlx5_1 mlx5_11": "SYS",
            "mlx5_2 mlx5_3": None,
            "mlx5_10 mlx5_11": None,
        },
    ),
    "14_8xa100_4nic_pxb_complete": (
        {"gpus": 8, "cards": 4, "paths": 66, "lost": 0},
        [0, 0, 0, 0, 1, 1, 1, 1],
        {
            "gpu0 gpu1": "NV12",
            "gpu1 NIC1": "PXB",
            "gpu2 NIC1": "SYS",
            "gpu3 NIC3": "PXB",
            "gpu7 NIC3": "SYS",
            "NIC0 NIC1": "PXB",
            "NIC1 NIC2": "SYS",
            "NIC2 NIC3": "PIX",
        },
    ),
    "15_hgx_h100_8nic_pix_truncated": (
        {"gpus": 8, "cards": 8, "paths": 105, "lost": 1},
        [0, 0, 0, 0, 1, 1, 1, 1],
        {
            "gpu0 gpu1": "NV18",
            "gpu0 NIC0": "PIX",
            "gpu0 NIC1": "NODE",
            "gpu3 NIC3": "PIX",
            "gpu4 NIC3": "SYS",
            "gpu7 NIC7": "PIX",
            "NIC0 NIC1": "NODE",
            "NIC1 NIC7": "SYS",
            "NIC2 NIC3": None,
            "NIC6 NIC7": None,
        },
    ),
    "16_hopper_12nic_lost_tab_PIXNODE": (
        {"gpus": 8, "cards": 12, "paths": 54, "lost": 1},  # three rows of twenty are there
        [None, None, None, None, 0, 0, 0, None],
        {
            "gpu0 gpu4": "NV18",
            "gpu4 gpu5": "NV18",
            "gpu4 NIC6": "PIX",
            "gpu5 NIC6": "NODE",
            "gpu5 NIC7": "PIX",
            "gpu5 NIC8": "NODE",
            "gpu5 NIC9": "NODE",
            "gpu5 NIC11": "NODE",
            "gpu6 NIC7": "NODE",
            "gpu6 NIC8": "PIX",
            "gpu6 NIC11": "NODE",
            "gpu0 gpu1": None,
            "gpu7 NIC0": None,
            "NIC0 NIC1": None,
        },
    ),
}

EFA4 = [f"0000:{bus}:1b.0" for bus in ("10", "20", "90", "a0")]
P4D = [f"0000:{bus}:{device}.0" for bus in ("10", "20", "90", "a0") for device in ("1c", "1d")]
# File -> addresses of the GPUs, their memory nodes, generation and lanes at most; adapters and their kind; some paths;
# a word of what is said to be lost.
TREES: dict[str, Any] = {
    "Azure+azhpc-images__ncv4-graph": ([None] * 4, [None] * 4, (None, None), [], None, {"gpu0 gpu1": None}, "graph"),
    "Azure+azhpc-images__ncv4-topo": (
        [f"000{n}:00:00.0" for n in (1, 2, 3, 4)],
        [0, 1, 2, 3],
        (None, None),
        ["eth0"],
        "ethernet",
        {"gpu0 gpu1": "SYS", "gpu2 gpu3": "SYS", "gpu0 eth0": "PHB", "eth0 gpu3": "SYS"},
        "to itself",
    ),
    "Azure+azhpc-images__ndv2-topo": (
        [f"000{n}:00:00.0" for n in range(1, 9)],
        [0, 0, 0, 0, 1, 1, 1, 1],
        (4, 16),
        ["0101:00:00.0"],
        "infiniband",
        {"gpu0 gpu3": "PHB", "gpu3 gpu4": "SYS", "gpu0 0101:00:00.0": "PHB", "0101:00:00.0 gpu7": "SYS"},
        "NVLinks",
    ),
    "Azure+azhpc-images__ndv4-topo": (
        [f"000{n}:00:00.0" for n in "3412debc"],
        [0, 0, 1, 1, 2, 2, 3, 3],
        (4, 16),
        [f"010{n}:00:00.0" for n in "34127856"],
        "infiniband",
        {"gpu0 gpu1": "PIX", "gpu1 gpu2": "SYS", "gpu0 0103:00:00.0": "PIX", "gpu7 0106:00:00.0": "PIX"},
        "NVLinks",
    ),
    "Azure+azhpc-images__ndv5-topo": (
        [f"000{n}:00:00.0" for n in "12389abc"],
        [0, 0, 0, 0, 1, 1, 1, 1],
        (5, 16),
        [f"010{n}:00:00.0" for n in range(1, 9)],
        "infiniband",
        {
            "gpu0 gpu1": "PHB",
            "gpu3 gpu4": "SYS",
            "gpu0 0101:00:00.0": "PIX",
            "gpu1 0103:00:00.0": "PHB",
            "gpu7 0108:00:00.0": "PIX",
        },
        "NVLinks",
    ),
    "aws+aws-ofi-nccl__g5.48xl-topo": ([], [], (None, None), [], None, {}, "9 PCI devices without a class"),
    "aws+aws-ofi-nccl__p4d-24xl-topo": (
        P4D,
        [0, 0, 0, 0, 1, 1, 1, 1],
        (3, 16),
        EFA4,
        "efa",
        {
            "gpu0 gpu1": "PIX",
            "gpu1 gpu2": "PHB",
            "gpu3 gpu4": "SYS",
            "gpu0 0000:10:1b.0": "PIX",
            "gpu7 0000:a0:1b.0": "PIX",
        },
        "NVLinks",
    ),
    "aws+aws-ofi-nccl__p4de-24xl-topo": (
        P4D,
        [0, 0, 0, 0, 1, 1, 1, 1],
        (3, 16),
        EFA4,
        "efa",
        {"gpu0 gpu1": "PIX", "gpu1 gpu2": "PHB", "gpu3 gpu4": "SYS", "gpu6 gpu7": "PIX"},
        "NVLinks",
    ),
}

# File -> GPUs, name, MiB, address of the first and the last; PCIe of the first: now, most, own, slot, lanes, most
# lanes; MHz of SM now and most, of memory now and most; W, limit in W, C; ECC, MIG, fabric.
DRIVERS: dict[str, Any] = {
    "01_nvidia-smi-qx_aws_p4d_8xa100.xml": (
        8,
        "NVIDIA A100-SXM4-40GB",
        40960,
        "10:1C.0",
        "A0:1D.0",
        (4, 4, 4, None, 16, 16),
        (210, 1410, 1215, 1215),
        (45.16, 400, 42),
        (True, False, None),
    ),
    "02_nvidia-smi-qx_aws_g6e48_8xl40s_gen4_x8of16.xml": (
        8,
        "NVIDIA L40S",
        46068,
        "9E:00.0",
        "CC:00.0",
        (1, 4, 4, None, 8, 16),
        (210, 2520, 405, 9001),
        (25.42, 350, 34),
        (True, None, None),
    ),
    "03_nvidia-smi-qx_aws_g5_1xa10g.xml": (
        1,
        "NVIDIA A10G",
        23028,
        "00:1E.0",
        "00:1E.0",
        (1, 4, 4, None, 8, 16),
        (210, 1710, 405, 6251),
        (10.80, 300, 26),
        (True, None, None),
    ),
    "04_nvidia-smi-qx_aws_g4dn_metal_8xt4_x8.xml": (
        8,
        "Tesla T4",
        15360,
        "18:00.0",
        "F5:00.0",
        (1, 3, 3, 3, 8, 16),
        (300, 1590, 405, 5001),
        (13.73, 70, 31),
        (True, None, None),
    ),
    "05_nvidia-smi-qx_gcp_a3_1xh100_hostgen4_devgen5.xml": (
        1,
        "NVIDIA H100 80GB HBM3",
        81559,
        "04:00.0",
        "04:00.0",
        (4, 4, 5, 4, 16, 16),
        (345, 1980, 2619, 2619),
        (69.38, 700, 32),
        (True, False, "completed"),
    ),
    "06_nvidia-smi-qx_gcp_g2_1xl4_hostgen3.xml": (
        1,
        "NVIDIA L4",
        23034,
        "00:03.0",
        "00:03.0",
        (1, 3, 4, 3, 16, 16),
        (210, 2040, 405, 6251),
        (13.35, 72, 44),
        (True, None, None),
    ),
    "07_nvidia-smi-qx_azure_nc40_h100nvl.xml": (
        1,
        "NVIDIA H100 NVL",
        95830,
        "00:00.0",
        "00:00.0",
        (5, 5, 5, None, 16, 16),
        (345, 1785, 2619, 2619),
        (61.99, 400, 34),
        (True, False, None),
    ),
    "08_nvidia-smi-qx_upcloud_1xb200.xml": (
        1,
        "NVIDIA B200",
        183359,
        "00:05.0",
        "00:05.0",
        (5, 5, 5, None, 16, 16),
        (120, 1965, 3996, 3996),
        (145.36, 1000, 32),
        (True, False, "completed"),
    ),
    "09_nvidia-smi-qx_ovh_2xh100pcie.xml": (
        2,
        "NVIDIA H100 PCIe",
        81559,
        "00:06.0",
        "00:07.0",
        (5, 5, 5, None, 16, 16),
        (345, 1755, 1593, 1593),
        (52.63, 350, 40),
        (True, False, None),
    ),
    "10_nvidia-smi-qx_telegraf_a100-sxm4-v12.xml": (
        1,
        "NVIDIA A100-SXM4-80GB",
        81920,
        "01:00.0",
        "01:00.0",
        (4, 4, 4, 4, 16, 16),
        (1275, 1410, 1593, 1593),
        (67.03, 500, 27),
        (True, True, None),
    ),
    "11_nvidia-smi-qx_telegraf_a10g.xml": (
        1,
        "NVIDIA A10G",
        23028,
        "00:1E.0",
        "00:1E.0",
        (1, 4, None, None, 8, 16),
        (210, 1710, 405, 6251),
        (25.58, 300, 17),
        (True, None, None),
    ),
    "12_nvidia-smi-qx_telegraf_tesla-t4.xml": (
        1,
        "Tesla T4",
        15360,
        "00:1E.0",
        "00:1E.0",
        (3, 3, None, None, 8, 16),
        (585, 1590, 5000, 5001),
        (26.78, 70, 40),
        (True, None, None),
    ),
    "13_nvidia-smi-qx_telegraf_rtx-3090-v12.xml": (
        1,
        "NVIDIA GeForce RTX 3090",
        24576,
        "00:10.0",
        "00:10.0",
        (1, 4, 4, None, 16, 16),
        (0, 2100, 405, 9751),
        (27.23, 200, 37),
        (None, None, None),
    ),
    "14_nvidia-smi-qx_telegraf_rtx-3080-v13.xml": (
        1,
        "NVIDIA GeForce RTX 3080",
        10240,
        "0C:00.0",
        "0C:00.0",
        (4, 4, 4, 4, 16, 16),
        (1950, 2100, 9251, 9501),
        (139.62, 320, 27),
        (None, None, None),
    ),
    "15_nvidia-smi-q_8xrtxpro6000_text": (
        8,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        97887,
        "06:00.0",
        "F5:00.0",
        (1, 5, 5, 5, 16, 16),
        (180, 2430, 405, 12481),
        (39.17, 600, 26),
        (True, False, None),
    ),
}


@cache
def recorded(name: str) -> Inventory:
    """What is told of a file, named as `folder/stem`."""
    found = inventory_of(text(name))
    assert found is not None
    return found


def text(name: str) -> str:
    """The synthetic text, or the file with that stem."""
    if name in synthetic.TEXTS:
        return synthetic.TEXTS[name]
    folder, _, stem = name.partition("/")
    (path,) = (path for path in ((FOLDER or Path()) / folder).iterdir() if path.stem == stem)
    return path.read_text(encoding="utf-8")


def kinds(found: Inventory) -> dict[str, str | None]:
    """`gpu0 gpu1` -> what is between them; None where that was lost."""
    names = [f"gpu{gpu.index}" for gpu in found.gpus] + [card.name for card in found.adapters]
    told: dict[str, str | None] = {f"{a} {b}": None for a, b in combinations(names, 2)}
    return told | {f"{path.a} {path.b}": path.kind for path in found.paths}


def named(real: Iterable[str], made: Iterable[str] = ()) -> list[Any]:
    """Names of recorded and of synthetic files, as parameters of a test."""
    return [*(pytest.param(name, marks=needs_corpus) for name in real), *made]


@pytest.mark.parametrize("name", named(TABLES, synthetic.TABLES))
def test_tables_of_ways(name: str) -> None:
    counts, nodes, cells = {**TABLES, **synthetic.TABLES}[name]
    found = recorded(f"topo_logs/{name}")
    told = {"gpus": len(found.gpus), "cards": len(found.adapters), "paths": len(found.paths), "lost": len(found.lost)}
    assert told == counts
    assert [gpu.numa_node for gpu in found.gpus] == nodes
    assert {pair: kinds(found)[pair] for pair in cells} == cells


@pytest.mark.parametrize(
    "name", named([name for name in TABLES if name[:2] in ("03", "04", "05")], ["8_gpus_of_nvswitch"])
)
def test_in_tables_of_nvswitch_every_cell_is_alike(name: str) -> None:
    assert len(set(kinds(recorded(f"topo_logs/{name}")).values())) == 1


@needs_corpus
def test_the_second_table_of_a_file_says_why_there_is_no_access() -> None:
    (path,) = recorded("topo_logs/07_2x2080ti_pix_and_topo_p2p").paths
    assert (path.kind, path.peer_access, path.why_code) == ("PIX", False, NoAccess.UNSUPPORTED)


def test_rows_that_were_cut_off_are_named_as_lost() -> None:
    real = (
        ("13_dgxa100_12mlx5_pxb_truncated", "mlx5_2", "mlx5_11"),
        ("15_hgx_h100_8nic_pix_truncated", "NIC2", "NIC7"),
        ("16_hopper_12nic_lost_tab_PIXNODE", "GPU0", "NIC11"),
    )
    for name, first, last in (("8_gpus_8_cards_cut", "NIC2", "NIC7"), *(real if FOLDER else ())):
        (lost,) = recorded(f"topo_logs/{name}").lost
        assert holds(lost, "no rows", f"{first},") and f" {last}: " in lost


@pytest.mark.parametrize("name", named(TREES, synthetic.TREES))
def test_files_of_nccl(name: str) -> None:
    buses, nodes, link, cards, kind, cells, lost = {**TREES, **synthetic.TREES}[name]
    found = recorded(f"topo_xml/{name}")
    assert [gpu.pci_bus for gpu in found.gpus] == buses
    assert [gpu.numa_node for gpu in found.gpus] == nodes
    assert {(gpu.pcie_max_generation, gpu.pcie_max_lanes) for gpu in found.gpus} <= {link}
    assert [card.name for card in found.adapters] == cards
    assert {card.kind for card in found.adapters} <= {kind}
    assert {pair: kinds(found)[pair] for pair in cells} == cells
    assert any(lost in words for words in found.lost)


@needs_corpus
def test_a_network_that_nccl_measured_has_its_rate() -> None:
    (card,) = recorded("topo_xml/Azure+azhpc-images__ncv4-topo").adapters
    assert card.bytes_per_s == 100e9 / 8


@pytest.mark.parametrize("name", named(DRIVERS, synthetic.DRIVERS))
def test_what_the_driver_said(name: str) -> None:
    count, product, mebibytes, first, last, pcie, clocks, power, modes = {**DRIVERS, **synthetic.DRIVERS}[name]
    found = recorded(f"pcie_logs/{name}")
    gpu = found.gpus[0]
    assert (len(found.gpus), gpu.name, gpu.memory_bytes) == (count, product, mebibytes << 20)
    assert [str(each.pci_bus)[9:] for each in (gpu, found.gpus[-1])] == [first, last]
    assert pcie == (
        gpu.pcie_generation,
        gpu.pcie_max_generation,
        gpu.own_generation,
        gpu.slot_generation,
        gpu.pcie_lanes,
        gpu.pcie_max_lanes,
    )
    told = (gpu.sm_hz, gpu.sm_max_hz, gpu.memory_hz, gpu.memory_max_hz)
    assert told == tuple(megahertz * 1e6 for megahertz in clocks)
    assert (gpu.power_w, gpu.power_limit_w, gpu.temperature_c) == power
    assert (gpu.ecc, gpu.mig, gpu.fabric) == modes
    assert gpu.ecc_uncorrected == (0 if gpu.ecc else None)
    assert gpu.throttle == ()  # an idle GPU is not throttled
    assert len({each.uuid for each in found.gpus} - {None}) == count


@needs_corpus
def test_a_gpu_that_is_not_described_is_missed() -> None:
    (attached,) = recorded("pcie_logs/10_nvidia-smi-qx_telegraf_a100-sxm4-v12.xml").lost
    assert holds(attached, "4 GPUs", "1")


@needs_corpus
def test_an_idle_link_at_generation_1_is_not_taken_for_a_slow_one() -> None:
    """Two of eight T4 idle at generation 1, six were awake; what they can do at most is the same."""
    gpus = recorded("pcie_logs/04_nvidia-smi-qx_aws_g4dn_metal_8xt4_x8.xml").gpus
    assert [gpu.pcie_generation for gpu in gpus] == [1, 1, 3, 3, 3, 3, 3, 3]
    assert {(gpu.pcie_max_generation, gpu.under_load) for gpu in gpus} == {(3, False)}


def test_half_the_lanes_of_a_slot_are_seen_on_every_gpu() -> None:
    real = ["02_nvidia-smi-qx_aws_g6e48_8xl40s_gen4_x8of16.xml"] if FOLDER else []
    for name in ("8_gpus_with_half_the_lanes", *real):
        gpus = recorded(f"pcie_logs/{name}").gpus
        assert {(gpu.pcie_lanes, gpu.pcie_max_lanes) for gpu in gpus} == {(8, 16)}


def _gpus_of_lspci() -> Iterator[tuple[str, int | None]]:
    found = recorded("pcie_logs/16_lspci-vvv_8xrtxpro6000_pex890xx")
    yield from ((str(gpu.pci_bus), gpu.numa_node) for gpu in found.gpus)


@needs_corpus
def test_configuration_space_by_lspci() -> None:
    """Forty blocks of fifty: six of eight GPUs, at 2.5 GT/s for want of work, behind ports of a Gen 5 switch."""
    buses = [("06", 0), ("07", 0), ("75", 0), ("76", 0), ("84", 1), ("85", 1)]
    assert list(_gpus_of_lspci()) == [(f"0000:{bus}:00.0", node) for bus, node in buses]
    found = recorded("pcie_logs/16_lspci-vvv_8xrtxpro6000_pex890xx")
    for gpu in found.gpus:
        assert (gpu.pcie_generation, gpu.pcie_max_generation, gpu.slot_generation, gpu.own_generation) == (1, 5, 5, 5)
        assert (gpu.pcie_lanes, gpu.pcie_max_lanes, gpu.slot_lanes, gpu.packet_bytes) == (16, 16, 16, 256)
    near = {"gpu0 gpu1", "gpu2 gpu3", "gpu4 gpu5"}
    unknown = {"gpu0 gpu2", "gpu0 gpu3", "gpu1 gpu2", "gpu1 gpu3"}  # the root ports above are not in the text
    assert {pair for pair, kind in kinds(found).items() if kind == "PIX"} == near
    assert {pair for pair, kind in kinds(found).items() if kind is None} == unknown
    assert set(kinds(found).values()) == {"PIX", "SYS", None}
    assert len(found.lost) == len(unknown)


@needs_corpus
def test_blocks_of_lspci() -> None:
    devices = lspci.devices(text("pcie_logs/16_lspci-vvv_8xrtxpro6000_pex890xx"))
    assert len(devices) == 40
    assert {address for address, device in devices.items() if device.downgraded} == {
        address for address, _ in _gpus_of_lspci()
    }
    port = devices["0000:f2:00.0"]  # the last but one: a port whose partner is slower and narrower
    assert (port.generation, port.lanes, port.max_generation, port.max_lanes, port.buses) == (3, 8, 5, 16, (0xF3, 0xF3))
    assert port.redirects is False  # SrcValid and UpstreamFwd are on, what peers tell each other stays below
    assert [bridge.address for bridge in lspci.above(devices["0000:76:00.0"], devices)] == [
        "0000:71:00.0",
        "0000:72:03.0",
    ]


@needs_corpus
def test_two_records_of_one_machine_agree() -> None:
    """The table of ways and configuration space of the eight RTX PRO 6000, as far as the latter goes."""
    by_table = kinds(recorded("topo_logs/09_8xrtxpro6000_pix_node_sys_ansi"))
    by_space = kinds(recorded("pcie_logs/16_lspci-vvv_8xrtxpro6000_pex890xx"))
    assert {pair: by_table[pair] for pair, kind in by_space.items() if kind} == {
        pair: kind for pair, kind in by_space.items() if kind
    }


@needs_corpus
def test_every_file_was_written_down() -> None:
    stems: dict[str, dict[str, Any]] = {"topo_logs": TABLES, "topo_xml": TREES, "pcie_logs": DRIVERS}
    for folder, told in stems.items():
        there = {path.stem for path in ((FOLDER or Path()) / folder).iterdir()}
        assert there - set(told) <= {"16_lspci-vvv_8xrtxpro6000_pex890xx"}


@pytest.mark.parametrize(
    "name",
    named(
        [
            *(f"topo_logs/{name}" for name in TABLES),
            *(f"topo_xml/{name}" for name in TREES),
            *(f"pcie_logs/{name}" for name in list(DRIVERS)[::4]),
        ],
        synthetic.TEXTS,
    ),
)
def test_a_truncated_file_never_contradicts_the_whole(name: str) -> None:
    whole, all_of_it = recorded(name), text(name)
    nodes = {gpu.pci_bus or gpu.index: (gpu.name, gpu.memory_bytes) for gpu in whole.gpus}
    for part in range(1, 30):
        cut = inventory_of(all_of_it[: len(all_of_it) * part // 30]) or Inventory()
        known = {(gpu.pci_bus or gpu.index): (gpu.name, gpu.memory_bytes) for gpu in cut.gpus}
        told = {bus: gpu for bus, gpu in known.items() if gpu != ("unknown", None) and gpu[1] is not None}
        assert told.items() <= nodes.items()
        between = {f"{path.a} {path.b}": path.kind for path in cut.paths if path.kind != "unknown"}
        assert {pair for pair, kind in between.items() if kinds(whole).get(pair, kind) != kind} == set()
