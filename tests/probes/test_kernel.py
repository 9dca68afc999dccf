from collections.abc import Callable
from pathlib import Path

import pytest

from bench.core.inventory import Adapter
from bench.probes import kernel
from bench.probes.adapters import adapters

Tree = Callable[[dict[str, str]], Path]
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1  Release Build"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1  Sat"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """`tree({"proc/cmdline": "..."})`: a root folder that holds these files; a name that ends in / is a folder."""

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_text(text + "\n")
        return tmp_path

    return make


def test_without_facts_everything_is_unknown(tmp_path: Path) -> None:
    questions = (
        kernel.iommu,
        kernel.peer_memory,
        kernel.driver_flavour,
        kernel.dmabuf,
        kernel.virtual_machine,
        kernel.hypervisor,
        kernel.fabric_manager,
    )
    assert [question(root=tmp_path) for question in questions] == [None] * len(questions)
    assert kernel.shared_memory_bytes(tmp_path) == (None, None)
    assert adapters(tmp_path) == ()


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"sys/bus/pci/devices/0000:03:00.0/iommu_group/type": "DMA-FQ"}, "on"),
        ({"sys/bus/pci/devices/0000:03:00.0/iommu_group/type": "identity"}, "passthrough"),
        ({"sys/kernel/iommu_groups/0/type": "identity", "sys/kernel/iommu_groups/1/type": "DMA"}, "on"),
        ({"sys/class/iommu/dmar0/x": "", "proc/cmdline": "root=/dev/sda intel_iommu=on iommu=pt"}, "passthrough"),
        ({"sys/class/iommu/dmar0/x": "", "proc/cmdline": "ro"}, "on"),
        ({"sys/class/iommu/": "", "proc/cmdline": "ro"}, "off"),
        ({"proc/cmdline": "ro intel_iommu=off"}, "off"),
        ({"proc/cmdline": "ro"}, None),
    ],
)
def test_the_iommu_type_of_the_devices_comes_before_the_kernel_command_line(
    tree: Tree, files: dict[str, str], state: str | None
) -> None:
    assert kernel.iommu(["0000:03:00.0", None], tree(files)) == state


@pytest.mark.parametrize(
    ("release", "version", "flavour", "dmabuf"),
    [
        ("6.8.0-45-generic", OPEN, "open", True),
        ("5.10.0", OPEN, "open", False),
        ("6.8.0", CLOSED, "proprietary", False),
        ("6.8.0", "something else", None, None),
    ],
)
def test_dmabuf_asks_for_a_kernel_and_the_open_modules(
    tree: Tree, release: str, version: str, flavour: str | None, dmabuf: bool | None
) -> None:
    root = tree({"proc/sys/kernel/osrelease": release, "proc/driver/nvidia/version": version})
    assert (kernel.driver_flavour(root), kernel.dmabuf(root)) == (flavour, dmabuf)


def test_either_module_gives_adapters_gpu_memory(tree: Tree) -> None:
    assert kernel.peer_memory(tree({"sys/module/nvidia/x": ""})) is False
    assert kernel.peer_memory(tree({"sys/module/nvidia_peermem/x": ""})) is True


def test_a_fabric_manager_is_only_missed_where_all_processes_are_seen(tree: Tree) -> None:
    assert kernel.fabric_manager(tree({"proc/1/comm": "python3", "proc/self/comm": "python3"})) is None
    assert kernel.fabric_manager(tree({"proc/1/comm": "systemd"})) is False
    assert kernel.fabric_manager(tree({"proc/77/comm": "nv-fabricmanage"})) is True


def test_a_virtual_machine_is_recognised_by_processor_or_vendor(tree: Tree) -> None:
    root = tree({"proc/cpuinfo": "flags\t\t: fpu vme", "sys/class/dmi/id/sys_vendor": "Amazon EC2"})
    assert (kernel.virtual_machine(root), kernel.hypervisor(root)) == (False, None)  # a `metal` instance
    tree({"proc/cpuinfo": "flags\t\t: fpu hypervisor vme"})
    assert (kernel.virtual_machine(root), kernel.hypervisor(root)) == (True, "Amazon EC2")


def test_limits_of_this_process_are_numbers_or_none_at_all() -> None:
    limit = kernel.max_locked_bytes()
    assert limit == "unlimited" or (isinstance(limit, int) and limit >= 0)


def test_adapters_have_kind_and_place(tmp_path: Path, tree: Tree) -> None:
    def device(address: str, node: str, driver: str) -> Path:
        path = tmp_path / "sys/devices/pci0000:00" / address
        path.mkdir(parents=True)
        (path / "numa_node").write_text(node)
        drivers = tmp_path / "sys/bus/pci/drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(drivers)
        return path

    at = {
        "mlx5_0": device("0000:01:00.0", "0", "mlx5_core"),
        "mlx5_1": device("0000:02:00.0", "1", "mlx5_core"),
        "rdmap0": device("0000:03:00.0", "-1", "efa"),
    }
    for name, rate, layer, state in (
        ("mlx5_0", "400 Gb/sec (4X NDR)", "InfiniBand", "4: ACTIVE"),
        ("mlx5_1", "100 Gb/sec (4X EDR)", "Ethernet", "1: DOWN"),
        ("rdmap0", "0 Gb/sec", "Unspecified", "4: ACTIVE"),
    ):
        port = f"sys/class/infiniband/{name}/ports/1"
        tree({f"{port}/rate": rate, f"{port}/link_layer": layer, f"{port}/state": state})
        (tmp_path / f"sys/class/infiniband/{name}/device").symlink_to(at[name])
    port = "sys/class/infiniband/mlx5_0/ports/2"
    tree({f"{port}/rate": "200 Gb/sec", f"{port}/link_layer": "InfiniBand", f"{port}/state": "4: ACTIVE"})
    virtio = device("0000:04:00.0", "0", "virtio-pci") / "virtio0"
    virtio.mkdir()
    for name, path in (("eth0", virtio), ("eth1", at["mlx5_1"]), ("lo", None)):
        tree({f"sys/class/net/{name}/operstate": "up", f"sys/class/net/{name}/speed": "25000"})
        if path is not None:
            (tmp_path / f"sys/class/net/{name}/device").symlink_to(path)
    assert adapters(tmp_path) == (
        Adapter("eth0", "ethernet", 25e9 / 8, "up", "0000:04:00.0", 0),
        Adapter("mlx5_0", "infiniband", 50e9, "active", "0000:01:00.0", 0),
        Adapter("mlx5_0:2", "infiniband", 25e9, "active", "0000:01:00.0", 0),
        Adapter("mlx5_1", "roce", 12.5e9, "down", "0000:02:00.0", 1),
        Adapter("rdmap0", "efa", None, "active", "0000:03:00.0", None),
    )


def test_device_files_of_rdma_adapters(tmp_path: Path) -> None:
    assert kernel.verbs(tmp_path) is None
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    assert kernel.verbs(tmp_path) is False
    (tmp_path / "dev/infiniband/uverbs0").touch()
    assert kernel.verbs(tmp_path) is True
