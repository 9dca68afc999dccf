import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest

from bench.core.inventory import Gpu
from bench.probes import nvml
from tests.facts import holds


class _Unsupported(Exception):
    """Stands for pynvml.NVMLError."""


def _no(*_: Any) -> Any:
    raise _Unsupported("Not Supported")


def _fails(why: str) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise _Unsupported(why)

    return fail


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library that answers as a driver with two GPUs does; its answers can be replaced."""
    library = ModuleType("pynvml")
    answers = {
        "NVMLError": _Unsupported,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlSystemGetDriverVersion": lambda: b"570.86.15",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12080,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: f"NVIDIA H{handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=b"00000000:%02X:00.0" % handle),
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
        "nvmlDeviceGetMaxPcieLinkWidth": _no,
    }
    for name, answer in answers.items():
        setattr(library, name, answer)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with the device files of two GPUs."""
    (tmp_path / "dev").mkdir()
    for index in range(2):
        (tmp_path / f"dev/nvidia{index}").touch()
    return tmp_path


def test_gpus_have_name_memory_bus_and_link_and_unsupported_values_are_none(driver: ModuleType) -> None:
    found = nvml.gpus()
    assert found.gpus[1] == Gpu(1, "NVIDIA H1", 80 << 30, "00000000:01:00.0", 1, 5, 16, None)
    assert (len(found.gpus), found.driver, found.cuda, found.reason) == (2, "570.86.15", "12.8", None)


def test_gpus_on_the_bus_without_a_driver_are_reported(driver: ModuleType, tmp_path: Path) -> None:
    driver.nvmlInit = _fails("Driver Not Loaded")  # type: ignore[attr-defined]
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x8086", "0x030000")]):
        device = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    assert holds(str(nvml.gpus(tmp_path).reason), "1 NVIDIA GPUs", "PCI", "driver")


def test_without_a_driver_there_is_a_reason_and_no_gpu(driver: ModuleType, root: Path) -> None:
    for why in ("Driver Not Loaded", "RM has detected an NVML/RM version mismatch."):
        driver.nvmlInit = _fails(why)  # type: ignore[attr-defined]
        assert f"({why})" in str(nvml.gpus(root).reason) and "2 GPUs" in str(nvml.gpus(root).reason)
        assert nvml.count_gpus({}, root) == 0, "CUDA asks the same driver"


def test_where_nobody_can_ask_the_driver_its_device_files_count(driver: ModuleType, root: Path) -> None:
    """CUDA works in a container without NVML, and where a sandbox does not let it ask."""
    driver.nvmlInit = _fails("NVML Shared Library Not Found")  # type: ignore[attr-defined]
    assert nvml.count_gpus({}, root) == 2 and nvml.count_gpus({"CUDA_VISIBLE_DEVICES": "0"}, root) == 1
    assert "NVIDIA_DRIVER_CAPABILITIES" in str(nvml.gpus(root).reason)
    driver.nvmlInit = lambda: None  # type: ignore[attr-defined]
    driver.nvmlDeviceGetCount = _no  # type: ignore[attr-defined]
    assert nvml.count_gpus({}, root) == 2
    assert nvml.gpus(root).gpus == ()


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, root: Path, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert holds(str(nvml.gpus(tmp_path / "nowhere").reason), "nvidia-ml-py", "not installed")
    assert nvml.count_gpus({}, root) == 2


def test_a_driver_that_goes_away_or_answers_nothing_stops_nobody(driver: ModuleType, root: Path) -> None:
    driver.nvmlShutdown = _fails("Uninitialized")  # type: ignore[attr-defined]
    driver.nvmlDeviceGetName = lambda handle: b"\xff".decode()  # type: ignore[attr-defined]
    assert [gpu.name for gpu in nvml.gpus(root).gpus] == ["unknown", "unknown"]
    driver.nvmlDeviceGetHandleByIndex = _no  # type: ignore[attr-defined]
    assert nvml.gpus(root).reason


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({}, 2),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
    ],
)
@pytest.mark.usefixtures("driver")
def test_gpus_hidden_from_cuda_do_not_count(root: Path, env: dict[str, str], count: int) -> None:
    assert nvml.count_gpus(env, root) == count


@pytest.mark.parametrize(
    ("env", "indices"),
    [
        ({}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb,GPU-a"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),  # fits both
        ({"CUDA_VISIBLE_DEVICES": "MIG-aa"}, []),
        ({"CUDA_VISIBLE_DEVICES": "2"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_visible_gpus_have_addresses_in_the_order_of_cuda(
    driver: ModuleType, root: Path, env: dict[str, str], indices: list[int]
) -> None:
    driver.nvmlDeviceGetName = lambda handle: "NVIDIA H100"  # type: ignore[attr-defined]
    driver.nvmlDeviceGetUUID = lambda handle: ("GPU-aa", "GPU-bb")[handle]  # type: ignore[attr-defined]
    assert nvml.visible_addresses(env, root) == tuple(f"0000:{index:02x}:00.0" for index in indices)


def test_the_order_of_different_gpus_is_known_only_by_address(driver: ModuleType, root: Path, tmp_path: Path) -> None:
    assert nvml.visible_addresses({}, root) == ()
    assert len(nvml.visible_addresses({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, root)) == 2
    assert nvml.visible_addresses({}, tmp_path / "nowhere") == ()
    driver.nvmlInit = _fails("Driver Not Loaded")  # type: ignore[attr-defined]
    assert nvml.visible_addresses({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, root) == ()


@pytest.mark.usefixtures("driver")
def test_where_no_device_file_is_nothing_is_asked(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()  # the driver's package without a GPU
    assert nvml.count_gpus({}, tmp_path) == 0
    assert not nvml.has_device(tmp_path)


@pytest.mark.gpu
def test_the_gpus_of_this_machine_are_counted_alike_both_ways(missing: Callable[[str, str], NoReturn]) -> None:
    if not nvml.has_device():
        missing("gpu", "no NVIDIA GPU was found")
    if (why := nvml.gpus().reason) is not None:
        missing("gpu", why)
    assert nvml.count_gpus({}) == len(nvml.gpus().gpus) > 0
