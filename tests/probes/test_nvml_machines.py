"""NVML's answers of whole machines, below the real package: what a fake of ours could not know, it refuses."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.core.inventory import Gpu, NoAccess, NvLink
from bench.core.inventory import Path as Between
from bench.probes import nvml
from tests.fakes.nvml_library import NOT_SUPPORTED, NvmlLibrary, a_gpu, nvlinks

_COPY_BYTES = 256 << 20
Install = Callable[..., NvmlLibrary]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install([gpu, ...], pairs)`: NVML answers so."""

    def make(gpus: list[dict[str, Any]], pairs: dict[str, Callable[..., Any]] | None = None) -> NvmlLibrary:
        library = NvmlLibrary(gpus, pairs)
        library.install(monkeypatch)
        return library

    return make


def _pairs(level: int, status: int = 0, over_nvlink: int = 5) -> dict[str, Callable[..., Any]]:
    """Every two GPUs alike: nvmlGpuTopologyLevel_t, and two values of nvmlGpuP2PStatus_t."""
    return {
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: level,
        "nvmlDeviceGetP2PStatus": lambda a, b, index: {0: status, 2: over_nvlink}[index],
    }


def test_all_facts_of_an_h200(install: Install, tmp_path: Path) -> None:
    links = nvlinks(18, version=6, megabytes=26562)
    install([a_gpu("NVIDIA H200", "00000000:04:00.0", **links, nvmlDeviceGetGpuFabricInfoV={"state": 3, "status": 0})])
    found = nvml.gpus(tmp_path)
    assert found.gpus == (
        Gpu(
            0,
            "NVIDIA H200",
            141 << 30,
            "00000000:04:00.0",
            5,
            5,
            16,
            16,
            uuid="GPU-00000000:04:00.0",
            nvlinks=tuple(NvLink(link, True, 25e9, "switch", "NVLink 4.0") for link in range(18)),
            sm_hz=1755e6,
            sm_max_hz=1980e6,
            memory_hz=3201e6,
            memory_max_hz=3201e6,
            power_w=312.5,
            power_limit_w=700.0,
            temperature_c=41.0,
            ecc=True,
            ecc_uncorrected=2,
            mig=False,
            fabric="completed",
            own_generation=5,
        ),
    )
    assert (found.paths, found.driver, found.cuda) == ((), "580.10.01", "13.0")


def test_eight_h100_are_joined_by_the_links_that_both_have(install: Install, tmp_path: Path) -> None:
    down = {2: (3, 7)}
    gpus = [
        a_gpu(
            "NVIDIA H100 80GB HBM3",
            f"00000000:{bus:02X}:00.0",
            **nvlinks(18, version=6, megabytes=26562, down=down.get(index, ())),
        )
        for index, bus in enumerate((0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB))
    ]
    library = install(gpus, _pairs(50))
    found = nvml.gpus(tmp_path)
    kinds = {(path.a, path.b): path.kind for path in found.paths}
    assert len(kinds) == 28
    assert {pair for pair, kind in kinds.items() if kind == "NV16"} == {pair for pair in kinds if "gpu2" in pair}
    assert set(kinds.values()) == {"NV16", "NV18"}
    assert found.gpus[2].nvlinks[3] == NvLink(3, active=False)
    assert all(path.peer_access for path in found.paths)
    assert sum(library.asked.values()) < 1000  # about a hundred for each GPU, and one for each pair


def test_eight_l40s_behind_half_a_slot_are_idle_and_without_peer_access(install: Install, tmp_path: Path) -> None:
    gpus = [
        a_gpu(
            "NVIDIA L40S",
            f"00000000:{bus:02X}:00.0",
            nvmlDeviceGetMigMode=NOT_SUPPORTED,
            nvmlDeviceGetCurrPcieLinkGeneration=1,
            nvmlDeviceGetMaxPcieLinkGeneration=4,
            nvmlDeviceGetGpuMaxPcieLinkGeneration=4,
            nvmlDeviceGetCurrPcieLinkWidth=8,
        )
        for bus in range(0x9E, 0xAE, 2)
    ]
    install(gpus, _pairs(40, status=1))
    found = nvml.gpus(tmp_path)
    first = found.gpus[0]
    assert (first.pcie_generation, first.pcie_max_generation, first.pcie_lanes, first.pcie_max_lanes) == (1, 4, 8, 16)
    assert (first.mig, first.nvlinks, first.under_load) == (None, (), False)
    assert found.paths[0] == Between.between("gpu0", "gpu1", "NODE", False, NoAccess.CHIPSET)


def test_a_slot_that_holds_the_gpu_back_is_known_without_its_bridge(install: Install, tmp_path: Path) -> None:
    install([a_gpu("NVIDIA H100", "00000000:04:00.0", nvmlDeviceGetMaxPcieLinkGeneration=4)])
    (gpu,) = nvml.gpus(tmp_path).gpus
    assert (gpu.pcie_max_generation, gpu.own_generation, gpu.slot_generation, gpu.slot_lanes) == (4, 5, 4, None)


@pytest.mark.parametrize(("mask", "node"), [([0b100], 2), ([0, 1], 64), ([0b11], None), ([0], None)])
def test_the_near_node_is_nvmls_word_where_the_kernel_is_silent(
    install: Install, tmp_path: Path, mask: list[int], node: int | None
) -> None:
    near = {"nvmlDeviceGetMemoryAffinity": lambda size, scope: mask if (size, scope) == (16, 0) else NOT_SUPPORTED}
    install([a_gpu("NVIDIA H100", "00000000:04:00.0", **near)])
    assert nvml.gpus(tmp_path).gpus[0].numa_node == node


def test_mig_and_a_failed_fabric_are_reported(install: Install, tmp_path: Path) -> None:
    install(
        [
            a_gpu("A", "00000000:01:00.0", nvmlDeviceGetMigMode=(1, 1)),
            a_gpu("B", "00000000:02:00.0", nvmlDeviceGetGpuFabricInfoV={"state": 2, "status": 0}),
            a_gpu("C", "00000000:03:00.0", nvmlDeviceGetGpuFabricInfoV={"state": 3, "status": 999}),
            a_gpu("D", "00000000:04:00.0", nvmlDeviceGetGpuFabricInfoV={"state": 0, "status": 0}),
        ]
    )
    gpus = nvml.gpus(tmp_path).gpus
    assert gpus[0].mig is True
    assert [gpu.fabric for gpu in gpus] == [None, "in progress", "failed: 999", None]


def test_an_old_library_leaves_unknown_what_it_lacks_and_answers_by_old_names(install: Install, tmp_path: Path) -> None:
    new = (
        "nvmlDeviceGetGpuMaxPcieLinkGeneration",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
    )
    links = nvlinks(2, version=3, megabytes=0) | {"nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda link: NOT_SUPPORTED}
    old = (
        links
        | dict.fromkeys(new)
        | {
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4 | 0x80,
            "nvmlDeviceGetPowerManagementLimit": 250_000,
        }
    )
    gpus = [a_gpu("Tesla V100", f"00000000:0{bus}:00.0", **old) for bus in (6, 7)]
    install(gpus, {"nvmlDeviceGetTopologyCommonAncestor": lambda a, b: 20})
    found = nvml.gpus(tmp_path)
    (gpu, _) = found.gpus
    assert gpu.throttle == ("sw power cap", "hw power brake slowdown")
    assert gpu.power_limit_w == 250.0
    assert (gpu.mig, gpu.fabric, gpu.numa_node, gpu.own_generation) == (None, None, None, None)
    assert gpu.nvlinks == tuple(NvLink(link, True, 25e9, None, "NVLink 2.2") for link in range(2))
    assert found.paths == (Between("gpu0", "gpu1", "PXB", None, None),)


def test_links_between_gpus_have_names_and_are_counted(install: Install, tmp_path: Path) -> None:
    def ends(other: str) -> dict[str, Any]:
        far = {0: other, 1: other, 2: "00000000:0F:00.0"}  # the third leads to a GPU that is not shown here
        remote = {"nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda link: {"busId": far[link].encode()}}
        return nvlinks(3, version=3, megabytes=25781, far_end=0) | remote

    install(
        [
            a_gpu("V100", "00000000:06:00.0", **ends("00000000:07:00.0")),
            a_gpu("V100", "00000000:07:00.0", **ends("00000000:06:00.0")),
        ],
        _pairs(10),
    )
    found = nvml.gpus(tmp_path)
    assert [link.peer for link in found.gpus[0].nvlinks] == ["gpu1", "gpu1", "0000:0f:00.0"]
    assert found.paths == (Between("gpu0", "gpu1", "NV2", True),)


def test_hidden_ends_count_if_the_driver_reports_nvlink(install: Install, tmp_path: Path) -> None:
    hidden = nvlinks(18, version=6, megabytes=26562) | {
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda link: NOT_SUPPORTED
    }
    gpus = [a_gpu("H100", f"00000000:0{bus}:00.0", **hidden) for bus in (6, 7)]
    install(gpus, _pairs(30, over_nvlink=0))
    assert [path.kind for path in nvml.gpus(tmp_path).paths] == ["NV18"]
    install(gpus, _pairs(30, over_nvlink=5))
    assert [path.kind for path in nvml.gpus(tmp_path).paths] == ["PHB"]


def test_a_link_that_trained_slower_keeps_the_drivers_figure(install: Install, tmp_path: Path) -> None:
    install([a_gpu("H100", "00000000:06:00.0", **nvlinks(1, version=6, megabytes=20000))])
    assert nvml.gpus(tmp_path).gpus[0].nvlinks == (NvLink(0, True, 20e9, "switch", "driver"),)


def test_conditions_are_of_the_moment_and_take_few_questions(install: Install, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    library = install([a_gpu("H200", "00000000:06:00.0", nvmlDeviceGetCurrentClocksEventReasons=0x4)])
    assert nvml.conditions(tmp_path) == [
        {
            "index": 0,
            "pcie_generation": 5,
            "pcie_lanes": 16,
            "sm_hz": 1755e6,
            "memory_hz": 3201e6,
            "power_w": 312.5,
            "temperature_c": 41.0,
            "throttle": ["sw power cap"],
        }
    ]
    assert sum(library.asked.values()) < 14


def test_without_a_gpu_there_are_no_conditions(tmp_path: Path) -> None:
    assert nvml.conditions(tmp_path) == []


@pytest.mark.gpu
def test_a_real_gpu_has_the_facts_that_every_driver_reports(missing: Callable[[str, str], NoReturn]) -> None:
    if not nvml.has_device():
        missing("gpu", "no NVIDIA GPU was found")
    found = nvml.gpus()
    if found.reason is not None:
        missing("gpu", found.reason)
    assert (found.driver, found.cuda) != (None, None)
    sure = ("memory_bytes", "pci_bus", "uuid")
    assert {name for gpu in found.gpus for name in sure if getattr(gpu, name) is None} == set()
    # A sandbox may withhold these: then NVML itself has no answer either.
    withheld = {
        name: question
        for gpu in found.gpus
        for name, question in _MAY_BE_WITHHELD.items()
        if getattr(gpu, name) is None and _answers(gpu.index, *question)
    }
    assert withheld == {}
    assert [each["index"] for each in nvml.conditions()] == [gpu.index for gpu in found.gpus]
    assert len(found.paths) == len(found.gpus) * (len(found.gpus) - 1) // 2


_MAY_BE_WITHHELD: dict[str, tuple[Any, ...]] = {
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_max_generation": ("nvmlDeviceGetMaxPcieLinkGeneration",),
    "pcie_lanes": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie_max_lanes": ("nvmlDeviceGetMaxPcieLinkWidth",),
    "sm_max_hz": ("nvmlDeviceGetMaxClockInfo", 1),
    "memory_max_hz": ("nvmlDeviceGetMaxClockInfo", 2),
    "sm_hz": ("nvmlDeviceGetClockInfo", 1),
    "memory_hz": ("nvmlDeviceGetClockInfo", 2),
    "power_w": ("nvmlDeviceGetPowerUsage",),
    "temperature_c": ("nvmlDeviceGetTemperature", 0),
}


def _answers(index: int, question: str, *about: Any) -> bool:
    """Does NVML answer this of a GPU, asked without anything of ours?"""
    import pynvml

    pynvml.nvmlInit()
    try:
        getattr(pynvml, question)(pynvml.nvmlDeviceGetHandleByIndex(index), *about)
    except pynvml.NVMLError:
        return False
    finally:
        pynvml.nvmlShutdown()
    return True


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch and CuPy, as they are imported
def test_under_load_the_link_runs_at_what_both_ends_allow(missing: Callable[[str, str], NoReturn]) -> None:
    if not nvml.has_device():
        missing("gpu", "no NVIDIA GPU was found")
    copy = _with_torch() or _with_cupy() or missing("gpu", "neither PyTorch with CUDA nor CuPy is here")
    until = time.monotonic() + 10
    most, reached = 0, 0
    while (reached < most or most == 0 or reached == 0) and time.monotonic() < until:
        name = copy()
        gpu = next(each for each in nvml.gpus(under_load=True).gpus if name in f"{each.uuid} {each.pci_bus}".lower())
        assert gpu.under_load
        most, reached = gpu.pcie_max_generation or 0, max(reached, gpu.pcie_generation or 0)
    if not most or not reached:
        pytest.skip("NVML tells no generation of the link here")
    # A virtual machine may claim less of its slot than the link runs at.
    assert reached >= most, f"generation {reached} of {most}: the link of {name or 'GPU 0'} is slow, or NVML is"


def _with_torch() -> Callable[[], str] | None:
    """A function that queues copies to GPU 0 for some 100 ms, does not wait, and tells the GPU's UUID where it can."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda:0")

    def queue() -> str:
        torch.cuda.synchronize()
        for _ in range(16):
            device.copy_(host, non_blocking=True)
        return str(getattr(torch.cuda.get_device_properties(0), "uuid", "")).lower()

    return queue


def _with_cupy() -> Callable[[], str] | None:
    """The same; the name is the PCI address without its domain."""
    try:
        import cupy
    except ImportError:
        return None
    source, target = cupy.cuda.alloc_pinned_memory(_COPY_BYTES), cupy.cuda.alloc(_COPY_BYTES)
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)

    def queue() -> str:
        stream.synchronize()
        for _ in range(16):
            runtime.memcpyAsync(target.ptr, source.ptr, _COPY_BYTES, runtime.memcpyHostToDevice, stream.ptr)
        return str(cupy.cuda.Device(0).pci_bus_id).lower()[-7:]

    return queue
