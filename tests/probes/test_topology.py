"""Recorded texts of our own making, each with one thing wrong; and a machine from a tree and NVML below the package."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.inventory import Adapter, Gpu, Inventory, NoAccess, from_facts
from bench.core.inventory import Path as Between
from bench.probes import lspci, machine, nvml, smi, topo_matrix
from bench.probes.topology import inventory_of, of_machine
from tests.facts import holds
from tests.fakes.nvml_library import NvmlLibrary, a_gpu, nvlinks

TABBED = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tPIX\tSYS\t0-7\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tPIX\t8-15\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t
NIC1\tSYS\tPIX\tSYS\t X \t\t\t

NIC Legend:

  NIC0: mlx5_4
  NIC1: mlx5_5
"""
WAYS = {
    "gpu0 gpu1": "NV4",
    "gpu0 mlx5_4": "PIX",
    "gpu0 mlx5_5": "SYS",
    "gpu1 mlx5_4": "SYS",
    "gpu1 mlx5_5": "PIX",
    "mlx5_4 mlx5_5": "SYS",
}


def ways(text: str) -> dict[str, str]:
    """`gpu0 gpu1` -> what is between them."""
    found = inventory_of(text)
    assert found is not None
    return {f"{path.a} {path.b}": path.kind for path in found.paths}


def lost(text: str) -> tuple[str, ...]:
    """What is said to be lost."""
    found = inventory_of(text)
    assert found is not None
    return found.lost


def test_a_table_is_read_with_tabs_blanks_and_colours() -> None:
    assert ways(TABBED) == WAYS
    assert ways(TABBED.expandtabs(8)) == WAYS
    assert ways("$ nvidia-smi topo -m\n\x1b[4m" + TABBED.replace("\tGPU NUMA ID", "\tGPU NUMA ID\x1b[0m")) == WAYS
    found = inventory_of(TABBED)
    assert found is not None
    assert [gpu.numa_node for gpu in found.gpus] == [0, 1]


def test_words_that_lost_the_tab_between_them_are_two_cells() -> None:
    glued = TABBED.replace("PIX\tSYS\t0-7", "PIXSYS\t0-7")
    cut = glued[: glued.index("NIC0\tPIX")]
    assert ways(f"{cut}\n  NIC0: mlx5_4\n  NIC1: mlx5_5\n") == dict(list(WAYS.items())[:-1])


def test_an_unreadable_cell_is_read_from_its_partner_or_lost() -> None:
    once = TABBED.replace("PIX\tSYS\t0-7", "P?X\tSYS\t0-7")
    assert ways(once) == WAYS
    twice = once.replace("NIC0\tPIX", "NIC0\t???")
    assert ways(twice) == {pair: kind for pair, kind in WAYS.items() if pair != "gpu0 mlx5_4"}
    first, second, between = lost(twice)
    assert holds(first, "GPU0:", "NIC0") and holds(second, "NIC0:", "GPU0")
    assert holds(between, "gpu0 to mlx5_4:", "lost")


def test_a_row_with_a_cell_too_few_moves_nothing_into_another_column() -> None:
    blanks = TABBED.expandtabs(8).replace("GPU0     X      NV4     PIX     SYS", "GPU0     X      PIX     SYS")
    assert ways(blanks) == WAYS
    [row] = lost(blanks)
    assert holds(row, "GPU0:", "3", "4 columns")


def test_two_cells_that_contradict_each_other_are_no_fact() -> None:
    text = TABBED.replace("NIC0\tPIX", "NIC0\tPHB")
    assert ways(text) == {pair: kind for pair, kind in WAYS.items() if pair != "gpu0 mlx5_4"}
    [between] = lost(text)
    assert holds(between, "gpu0 to mlx5_4:", "contradicts")


@given(st.data())
def test_whatever_separators_get_lost_or_cut_no_cell_becomes_another(data: st.DataObject) -> None:
    text = TABBED if data.draw(st.booleans(), "tabs") else TABBED.expandtabs(8)
    gaps = [index for index, letter in enumerate(text) if letter in "\t "]
    for index in sorted(data.draw(st.sets(st.sampled_from(gaps), max_size=12), "lost"), reverse=True):
        text = text[:index] + text[index + 1 :]
    text = text[: data.draw(st.integers(text.index("\n") + 1, len(text)), "end")]
    text += "\n\n  NIC0: mlx5_4\n  NIC1: mlx5_5\n"
    if topo_matrix.recognises(text):
        told = ways(text)
        assert {pair: kind for pair, kind in told.items() if pair in WAYS and kind != WAYS[pair]} == {}


def test_a_table_without_its_command_proves_no_missing_access() -> None:
    table = " \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n"
    assert inventory_of(table) == Inventory((_of(0), _of(1)), nvlinks_told=False)
    (path,) = _found(f"nvidia-smi topo -p2p r\n{table}").paths
    assert path == Between.between("gpu0", "gpu1", "unknown", False, NoAccess.CHIPSET)
    assert _found(f"nvidia-smi topo -p2p n\n{table}").paths == ()
    assert _found(table.replace("CNS", "OK")).paths == (Between("gpu0", "gpu1", "unknown", True),)


def _of(index: int) -> Gpu:
    return Gpu(index, "unknown", None, None, None, None, None, None)


def _found(text: str) -> Inventory:
    found = inventory_of(text)
    assert found is not None
    return found


def test_nccls_file_has_links_to_switches_and_cascaded_bridges() -> None:
    gpu = '<pci busid="0000:{0}:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
    gpu += '<gpu dev="{1}" sm="90"><nvlink target="0000:f0:00.0" count="{2}" tclass="0x068000"/></gpu></pci>'
    text = (
        '<system version="1"><cpu numaid="1"><pci busid="0000:01:00.0" class="0x060400">'
        + gpu.format("03", 1, 18)
        + '<pci busid="0000:04:00.0" class="0x060400">'
        + '<pci busid="0000:05:00.0" class="0x020700"><nic><net name="mlx5_0" speed="400000"/></nic></pci></pci></pci>'
        + gpu.format("06", 0, 16)
        + "</cpu></system>"
    )
    found = _found(text)
    assert [(each.index, each.pci_bus, len(each.nvlinks)) for each in found.gpus] == [
        (0, "0000:06:00.0", 16),
        (1, "0000:03:00.0", 18),
    ]
    assert ways(text) == {"gpu1 mlx5_0": "PXB", "gpu1 gpu0": "NV16", "mlx5_0 gpu0": "PHB"}
    assert found.adapters == (Adapter("mlx5_0", "infiniband", 50e9, None, "0000:05:00.0", 1),)
    assert found.lost == ()
    [end] = _found(text[:-20]).lost
    assert holds(end, "XML", "not end")


DRIVER_TEXT = """\
==============NVSMI LOG==============

Driver Version                            : 520.61
Attached GPUs                             : 2
GPU 00000000:17:00.0
    Product Name                          : NVIDIA Example
    MIG Mode
        Current                           : Enabled
    PCI
        Bus Id                            : 00000000:17:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 3
                Device Max                : 5
                Host Max                  : N/A
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Throttle Reasons
        Idle                              : Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Active
    Ecc Errors
        Aggregate
            SRAM Uncorrectable            : 1
            DRAM Correctable              : 7
            DRAM Uncorrectable            : 2
    Fabric
        State                             : Completed
        Status                            : Insufficient Resources
"""


def test_sections_of_the_drivers_text_follow_from_indentation() -> None:
    found = _found(DRIVER_TEXT)
    [attached] = found.lost
    assert holds(attached, "2 GPUs", "1")
    assert replace(found, lost=()) == Inventory(
        (
            Gpu(
                0,
                "NVIDIA Example",
                None,
                "00000000:17:00.0",
                3,
                4,
                8,
                16,
                slot_generation=4,
                own_generation=5,
                throttle=("sw power cap", "hw thermal slowdown"),
                ecc_uncorrected=3,
                mig=True,
                fabric="failed: Insufficient Resources",
            ),
        ),
        nvlinks_told=False,
    )


def test_a_gpu_that_the_end_of_the_xml_cuts_off_is_missed() -> None:
    text = "<nvidia_smi_log><attached_gpus>2</attached_gpus>"
    text += '<gpu id="1"><product_name>A</product_name></gpu><gpu id="2"><product_name>B</pro'
    assert [gpu.name for gpu in smi.inventory(text).gpus] == ["A"]
    [attached] = smi.inventory(text).lost
    assert holds(attached, "2 GPUs", "1")


LSPCI = """\
00:01.0 PCI bridge: Example Root Port (rev 01) (prog-if 00 [Normal decode])
\tNUMA node: 0
\tBus: primary=00, secondary=01, subordinate=03, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #1, Speed 64GT/s, Width x4, ASPM L1
\t\tLnkSta:\tSpeed 64GT/s (ok), Width x4 (ok)

01:00.0 PCI bridge: Example Switch (prog-if 00 [Normal decode])
\tBus: primary=01, secondary=02, subordinate=03, sec-latency=0
\tCapabilities: [40] Express (v2) Upstream Port, MSI 00

02:00.0 PCI bridge: Example Switch (prog-if 00 [Normal decode])
\tBus: primary=02, secondary=03, subordinate=03, sec-latency=0
\t\tLnkCap:\tPort #1, Speed 16GT/s, Width x8, ASPM L1
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-

03:00.0 3D controller: NVIDIA Corporation Example (rev a1)
\tNUMA node: 0
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0
\t\tDevCtl:\tCorrErr+ NonFatalErr+
\t\t\tRlxdOrd+ ExtTag+
\t\t\tMaxPayload 128 bytes, MaxReadReq 512 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)

00:05.0 VGA compatible controller: NVIDIA Corporation Other (rev a1)
\tCapabilities: <access denied>
"""


def test_lspci_distinguishes_slot_and_card() -> None:
    found = _found(LSPCI)
    assert found.gpus[0] == Gpu(
        0,
        "NVIDIA Corporation Example",
        None,
        "0000:03:00.0",
        4,
        4,
        8,
        16,
        numa_node=0,
        slot_generation=4,
        slot_lanes=8,
        packet_bytes=128,
        own_generation=5,
    )
    assert lspci.devices(LSPCI)["0000:02:00.0"].redirects is True
    assert found.gpus[1].pcie_generation is None
    assert [path.kind for path in found.paths] == ["PHB"]


def test_lspci_without_root_reports_missing_links() -> None:
    [row] = lost(LSPCI[LSPCI.index("00:05.0") :])
    assert holds(row, "no capabilities:", "lspci", "root")


@pytest.mark.parametrize("text", ["", "hello", "GPU0 is warm\nGPU0 GPU1", "<html></html>", "01:00.0 something"])
def test_a_text_of_no_known_format_is_none(text: str) -> None:
    assert inventory_of(text) is None


@pytest.mark.parametrize("text", [TABBED, DRIVER_TEXT, LSPCI], ids=["topo", "driver", "lspci"])
def test_a_truncated_text_never_contradicts_the_whole(text: str) -> None:
    whole = ways(text)
    for end in range(len(text)):
        found = inventory_of(text[:end]) or Inventory()
        assert {path for path in found.paths if whole.get(f"{path.a} {path.b}", path.kind) != path.kind} == set()
        assert len(found.gpus) <= 2


def test_a_number_of_nvlinks_at_the_very_end_may_have_lost_a_digit() -> None:
    table = "\tGPU0\tGPU1\nGPU0\tX\tNV18"
    assert ways(f"{table}\n") == {"gpu0 gpu1": "NV18"}
    assert ways(table[:-1]) == {}


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, NvmlLibrary]:
    """8 GPUs on NVSwitch, two and an adapter below each PCI switch, four switches to a node."""
    node, gpus = tmp_path / "sys/devices/system/node", []
    for number in range(2):
        (node / f"node{number}").mkdir(parents=True)
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for switch in range(4):
        top = tmp_path / f"sys/devices/pci0000:{switch}0/0000:{switch}0:01.0/0000:{switch}1:00.0"
        for place in range(3):
            leaf = top / f"0000:{switch}2:0{place}.0/0000:{switch}{place + 3}:00.0"
            leaf.mkdir(parents=True)
            (leaf / "numa_node").write_text(str(switch // 2))
            (leaf.parent / "max_link_speed").write_text("16.0 GT/s PCIe")
            (leaf.parent / "max_link_width").write_text("16")
            for each in (leaf, *leaf.parents[:3]):
                if not (devices / each.name).exists():
                    (devices / each.name).symlink_to(each)
            if place < 2:
                gpus.append(a_gpu("H100", f"0000{leaf.name.upper()}", **nvlinks(18, version=6, megabytes=26562)))
            else:
                port = tmp_path / f"sys/class/infiniband/mlx5_{switch}/ports/1"
                port.mkdir(parents=True)
                (port / "rate").write_text("400 Gb/sec (4X NDR)")
                (port.parents[1] / "device").symlink_to(leaf)
    pairs: dict[str, Callable[..., int]] = {
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: 50,
        "nvmlDeviceGetP2PStatus": lambda a, b, index: 0,
    }
    library = NvmlLibrary(gpus, pairs)
    library.install(monkeypatch)
    return tmp_path, library


def test_a_machine_has_slots_and_paths_to_adapters(eight: tuple[Path, NvmlLibrary]) -> None:
    root, _ = eight
    found = of_machine(nvml.gpus(root), root)
    kinds = {(path.a, path.b): path.kind for path in found.paths}
    assert [kinds[f"gpu{gpu}", "mlx5_1"] for gpu in range(8)] == [
        "NODE",
        "NODE",
        "PIX",
        "PIX",
        "SYS",
        "SYS",
        "SYS",
        "SYS",
    ]
    assert kinds["gpu0", "gpu7"] == "NV18"
    assert len(kinds) == 28 + 32
    # The fake's links run at generation 5, more than these bridges claim: what they say is not believed.
    assert {(gpu.slot_generation, gpu.slot_lanes, gpu.numa_node) for gpu in found.gpus} == {
        (None, None, 0),
        (None, None, 1),
    }


def test_the_facts_of_a_machine_with_gpus_are_plain_data_and_become_the_same_inventory(
    eight: tuple[Path, NvmlLibrary],
) -> None:
    root, library = eight
    facts = machine.facts(root)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert from_facts(facts) == of_machine(nvml.gpus(root), root)
    assert from_facts(facts | {"gpus": [asdict(_of(0)) | {"later": 1}]}).gpus == (_of(0),)
    assert from_facts({}) == Inventory()
    asked = library.asked.copy()
    machine.facts(root)
    assert sum((library.asked - asked).values()) < 1000
