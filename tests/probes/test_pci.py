"""The tree of PCI devices, built as the kernel builds it: folders below folders, and links to them by address."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.probes import pci

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """`tree("pci0000:00/0000:00:01.0/0000:01:00.0", numa_node="0")`: a device with these files, all above it too."""

    def make(path: str, config: bytes = b"", **files: str) -> Path:
        device = tmp_path / "sys/devices" / path
        device.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (device / name).write_text(text + "\n")
        if config:
            (device / "config").write_bytes(config)
        links = tmp_path / "sys/bus/pci/devices"
        links.mkdir(parents=True, exist_ok=True)
        while device.parent != tmp_path / "sys/devices":
            if not (links / device.name).exists():
                (links / device.name).symlink_to(device)
            device = device.parent
        return tmp_path

    return make


SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"  # root port, the switch's upper port
CASCADE = f"{SWITCH}/0000:02:02.0/0000:05:00.0"  # a switch below that switch
GPU = f"{SWITCH}/0000:02:00.0/0000:03:00.0"


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (f"{SWITCH}/0000:02:01.0/0000:04:00.0", "PIX"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.1", "PIX"),  # another function of the same card
        (f"{CASCADE}/0000:06:00.0/0000:07:00.0", "PXB"),
        ("pci0000:00/0000:00:03.0/0000:0a:00.0", "PHB"),
        ("pci0000:00/0000:00:1f.0", "PHB"),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", "NODE"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", "SYS"),
    ],
)
def test_the_path_between_devices_follows_from_their_common_bridges(tree: Tree, other: str, kind: str) -> None:
    tree(GPU, numa_node="0")
    root = tree(other, numa_node="1" if kind == "SYS" else "0")
    a, b = (pci.place(path.rpartition("/")[2], root) for path in (GPU, other))
    assert pci.between(a, b, 2) == pci.between(b, a, 2) == kind


def test_two_host_bridges_of_unknown_nodes_are_near_only_where_there_is_one_node(tree: Tree) -> None:
    tree(GPU, numa_node="-1")
    root = tree("pci0000:40/0000:41:00.0", numa_node="-1")
    a, b = pci.place("0000:03:00.0", root), pci.place("0000:41:00.0", root)
    assert [pci.between(a, b, num_nodes) for num_nodes in (1, 2, None)] == ["NODE", None, None]


def test_what_sys_does_not_show_is_unknown(tmp_path: Path) -> None:
    assert pci.place("0000:03:00.0", tmp_path) is None
    assert pci.between(None, None, 1) is None
    assert pci.slot(None, tmp_path) == (None, None)
    assert pci.packet_bytes("0000:03:00.0", tmp_path) is None
    assert pci.redirects("0000:03:00.0", tmp_path) is None


def test_the_slot_is_what_the_bridge_above_can_do(tree: Tree) -> None:
    tree(GPU)
    root = tree(GPU.rpartition("/")[0], max_link_speed="32.0 GT/s PCIe", max_link_width="8", vendor="0x1000")
    assert pci.slot("0000:03:00.0", root) == (5, 8)


@pytest.mark.parametrize("vendor", ["0x1b36", "0x15ad", "0x1414"])
def test_a_hypervisors_bridge_is_no_slot(tree: Tree, vendor: str) -> None:
    tree(GPU)
    root = tree(GPU.rpartition("/")[0], max_link_speed="2.5 GT/s PCIe", max_link_width="1", vendor=vendor)
    assert pci.slot("0000:03:00.0", root) == (None, None)


def test_a_virtual_machine_without_bridges_has_neither_slot_nor_acs(tree: Tree) -> None:
    root = tree("pci0000:00/0000:00:05.0", config=_config(256))
    assert pci.slot("0000:00:05.0", root) == (None, None)
    assert pci.redirects("0000:00:05.0", root) is None


def _config(payload: int, acs: int | None = None, size: int = 4096) -> bytes:
    """Configuration space with a power capability at 0x40, PCI Express at 0x60, and ACS at 0x140 behind another."""
    config = bytearray(4096)
    config[0x06] = 0x10
    config[0x34] = 0x40
    config[0x40:0x42] = bytes((0x01, 0x60))
    config[0x60:0x62] = bytes((0x10, 0x00))
    config[0x68:0x6A] = ((payload // 128).bit_length() - 1 << 5 | 0x0F).to_bytes(2, "little")
    config[0x100:0x104] = (0x140 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    if acs is not None:
        config[0x140:0x144] = (1 << 16 | 0x000D).to_bytes(4, "little")
        config[0x146:0x148] = acs.to_bytes(2, "little")
    return bytes(config[:size])


@pytest.mark.parametrize("payload", [128, 256, 512, 4096])
def test_the_payload_of_a_packet_is_in_the_control_register(tree: Tree, payload: int) -> None:
    assert pci.packet_bytes("0000:03:00.0", tree(GPU, config=_config(payload))) == payload


def test_without_root_capabilities_are_unreadable(tree: Tree) -> None:
    assert pci.packet_bytes("0000:03:00.0", tree(GPU, config=_config(256, size=64))) is None


@pytest.mark.parametrize(
    ("acs", "redirects"),
    [(None, False), (0b0010001, False), (0b0000100, True), (0b0001000, True), (0b0100000, True)],  # SV and UF: harmless
)
def test_acs_matters_where_a_bridge_sends_peers_up(tree: Tree, acs: int | None, redirects: bool) -> None:
    above = GPU.split("/")
    for end in (2, 3, 4):
        root = tree("/".join(above[:end]), config=_config(256, acs if end == 3 else None))
    tree(GPU)
    assert pci.redirects("0000:03:00.0", root) is redirects
    (root / "sys/devices" / "/".join(above[:2]) / "config").unlink()
    assert pci.redirects("0000:03:00.0", root) is (True if redirects else None)


@given(st.binary(max_size=400))
def test_configuration_space_of_any_bytes_ends(config: bytes) -> None:
    assert pci._express(config) is None or config[pci._express(config) or 0] == 0x10
    assert pci._redirected(config) in (None, True, False)


@pytest.mark.parametrize(
    ("told", "kernels"),
    [
        ("00000000:9E:00.0", "0000:9e:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("06:00.0", "0000:06:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("gpu0", None),
        (None, None),
        ("", None),
    ],
)
def test_addresses_have_one_form(told: str | None, kernels: str | None) -> None:
    assert pci.address(told) == kernels


def test_speeds_and_widths_of_every_writing() -> None:
    told = ("2.5 GT/s PCIe", "5.0 GT/s", "8GT/s", "16 GT/s", "32.0 GT/s PCIe", "64.0 GT/s PCIe", "Unknown", "", None)
    assert [pci.generation(speed) for speed in told] == [1, 2, 3, 4, 5, 6, None, None, None]
    assert [pci.lanes(width) for width in ("16", "x8", "16x", "0", "255", None)] == [16, 8, 16, None, None, None]
