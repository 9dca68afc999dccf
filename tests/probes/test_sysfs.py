from collections.abc import Callable
from pathlib import Path

import pytest

from bench.probes import machine, sysfs

Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """`tree({"proc/meminfo": "..."})`: a root folder that holds these files."""

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return make


def _cache(index: int, level: int, kind: str, size: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
    return {f"{folder}/level": str(level), f"{folder}/type": kind, f"{folder}/size": size}


def test_the_last_level_cache_is_the_one_of_the_highest_level(tree: Tree) -> None:
    caches = _cache(0, 1, "Data", "48K") | _cache(1, 1, "Instruction", "64K")
    root = tree(caches | _cache(2, 2, "Unified", "2048K") | _cache(3, 3, "Unified", "105M"))
    assert sysfs.last_level_cache_bytes(root) == 105 << 20


def test_an_instruction_cache_or_one_of_unknown_size_is_never_the_last_level(tree: Tree) -> None:
    root = tree(_cache(0, 1, "Data", "32K") | _cache(1, 2, "Instruction", "1024K") | _cache(2, 3, "Unified", "?"))
    assert sysfs.last_level_cache_bytes(root) == 32 << 10


def test_an_empty_tree_answers_none_to_everything(tmp_path: Path) -> None:
    questions = (
        sysfs.last_level_cache_bytes,
        sysfs.num_cores,
        sysfs.num_sockets,
        sysfs.governor,
        sysfs.cpu_model,
        sysfs.memory_bytes,
        sysfs.product,
        sysfs.clock,
        machine.available_memory_bytes,
        machine.cpu_quota,
        machine.container,
    )
    assert [question(tmp_path) for question in questions] == [None] * len(questions)
    assert sysfs.numa_nodes(tmp_path) == ()
    assert sysfs.ports(tmp_path) == ()


def test_hardware_threads_of_one_core_count_once(tree: Tree) -> None:
    files: dict[str, str] = {}
    for cpu, (package, core) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1)]):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files |= {f"{folder}/physical_package_id": str(package), f"{folder}/core_id": str(core)}
    root = tree(files)
    assert (sysfs.num_cores(root), sysfs.num_sockets(root)) == (4, 2)


def test_memory_is_in_bytes(tree: Tree) -> None:
    root = tree({"proc/meminfo": "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB"})
    assert sysfs.memory_bytes(root) == 16 << 20
    assert machine.available_memory_bytes(root) == 8 << 20


def test_numa_nodes_come_by_number_with_their_cpus_and_memory(tree: Tree) -> None:
    files: dict[str, str] = {}
    for node in (10, 2):
        folder = f"sys/devices/system/node/node{node}"
        files |= {f"{folder}/cpulist": f"{node}-{node + 1}", f"{folder}/meminfo": f"Node {node} MemTotal:    1024 kB"}
    nodes = sysfs.numa_nodes(tree(files))
    assert nodes == (sysfs.NumaNode(2, "2-3", 1 << 20), sysfs.NumaNode(10, "10-11", 1 << 20))


def test_an_arm_processor_without_a_model_name_has_its_numbers(tree: Tree) -> None:
    root = tree({"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"})
    assert sysfs.cpu_model(root) == "implementer 0x41 part 0xd40"


def test_an_x86_processor_has_its_model_name(tree: Tree) -> None:
    root = tree({"proc/cpuinfo": "processor\t: 0\nflags\t\t:\nmodel name\t: AMD EPYC 7R13 Processor\n"})
    assert sysfs.cpu_model(root) == "AMD EPYC 7R13 Processor"


def test_the_speed_of_a_port_is_bytes_per_second_of_one_direction(tree: Tree) -> None:
    folder = "sys/class/net/ens32"
    files = {"speed": "100000", "mtu": "9001", "operstate": "up", "device/numa_node": "1"}
    root = tree({f"{folder}/{name}": text for name, text in files.items()})
    driver = root / "sys/bus/pci/drivers/ena"
    driver.mkdir(parents=True)
    (root / folder / "device/driver").symlink_to(driver)
    assert sysfs.ports(root) == (sysfs.Port("ens32", "ethernet", "up", 12.5e9, 9001, "ena", 1),)


@pytest.mark.parametrize("speed", ["-1", "", "0"])
def test_a_port_without_a_speed_has_none(tree: Tree, speed: str) -> None:
    root = tree({"sys/class/net/veth0/speed": speed, "sys/class/net/lo/speed": "1000"})
    (port,) = sysfs.ports(root)
    assert (port.name, port.kind, port.bytes_per_s, port.numa_node) == ("veth0", "virtual", None, None)


def test_an_infiniband_port_is_named_by_device_and_port(tree: Tree) -> None:
    folder = "sys/class/infiniband/mlx5_0"
    files = {"ports/1/rate": "200 Gb/sec (4X HDR)", "ports/1/state": "4: ACTIVE", "device/numa_node": "-1"}
    root = tree({f"{folder}/{name}": text for name, text in files.items()})
    assert sysfs.ports(root) == (sysfs.Port("mlx5_0:1", "infiniband", "active", 25e9, None, None, None),)


def test_a_memory_limit_of_a_container_bounds_what_is_available(tree: Tree) -> None:
    files = {
        "proc/meminfo": "MemAvailable:  1048576 kB",
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": str(100 << 20),
        "sys/fs/cgroup/memory.current": str(60 << 20),
        "sys/fs/cgroup/memory.stat": f"anon {30 << 20}\ninactive_file {20 << 20}",
    }
    assert machine.available_memory_bytes(tree(files)) == 60 << 20  # 100 - 60 taken, 20 of them files that can go


def test_a_limit_above_this_process_s_own_group_counts_too(tree: Tree) -> None:
    job = "sys/fs/cgroup/slurm/job_7"
    files = {
        "proc/meminfo": "MemAvailable:  1048576 kB",
        "proc/self/cgroup": "0::/slurm/job_7/step_0",
        f"{job}/memory.max": str(50 << 20),
        f"{job}/memory.current": str(10 << 20),
        f"{job}/step_0/memory.max": "max",
        f"{job}/step_0/memory.current": str(10 << 20),
    }
    assert machine.available_memory_bytes(tree(files)) == 40 << 20


def test_a_memory_limit_of_a_group_of_version_1_is_read_as_well(tree: Tree) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/box\n3:cpu,cpuacct:/box\n0::/",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(30 << 20),
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(10 << 20),
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "150000",
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
    }
    root = tree(files)
    assert machine.available_memory_bytes(root) == 20 << 20
    assert machine.cpu_quota(root) == 1.5


@pytest.mark.parametrize(("text", "cpus"), [("200000 100000", 2.0), ("max 100000", None), ("50000 100000", 0.5)])
def test_the_cpu_quota_is_in_cpus(tree: Tree, text: str, cpus: float | None) -> None:
    assert machine.cpu_quota(tree({"sys/fs/cgroup/cpu.max": text})) == cpus


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/1/cgroup": "0::/kubepods/burstable/pod1"}, "kubepods"),
        ({"proc/1/cgroup": "0::/init.scope"}, None),
    ],
)
def test_a_container_is_known_by_its_marks(tree: Tree, files: dict[str, str], kind: str | None) -> None:
    assert machine.container(tree(files)) == kind


def test_a_clock_is_one_boots_and_one_time_namespaces(tree: Tree) -> None:
    root = tree({"proc/sys/kernel/random/boot_id": "a4b5"})
    assert sysfs.clock(root) == "a4b5 time:[one]"
    namespace = root / "proc/self/ns/time"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("time:[4026531834]")
    assert sysfs.clock(root) == "a4b5 time:[4026531834]"


def test_the_cpus_beside_a_device_are_those_of_its_memory_node(tmp_path: Path) -> None:
    for address, node, cpus in (
        ("0000:81:00.0", "1", "48-50,96"),
        ("0000:01:00.0", "-1", "0-3"),
        ("0000:02:00.0", "0", "x"),
    ):
        device = tmp_path / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n", encoding="utf-8")
        (device / "local_cpulist").write_text(f"{cpus}\n", encoding="utf-8")
    assert sysfs.cpus_beside("0000:81:00.0", tmp_path) == (48, 49, 50, 96)
    unknown = ("0000:01:00.0", "0000:02:00.0", "0000:99:00.0")
    assert [sysfs.cpus_beside(address, tmp_path) for address in unknown] == [()] * 3
