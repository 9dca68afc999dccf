"""AMD GPUs as the kernel lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.device_use import DeviceReading
from bench.probes import amd, nvml


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two CPUs and two GPUs, the second with sensors and counters."""

    def put(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")

    put("dev/kfd", "")
    nodes = "sys/class/kfd/kfd/topology/nodes"
    for node, simds, place in ((0, 0, 0), (1, 0, 0), (2, 1216, 0x0C00), (10, 1216, 0xA5 << 8 | 3 << 3 | 1)):
        put(f"{nodes}/{node}/properties", f"cpu_cores_count 0\nsimd_count {simds}\nlocation_id {place}\ndomain 0")
    gpu = "sys/bus/pci/devices/0000:a5:03.1"
    for name, text in (
        ("vendor", "0x1002"),
        ("gpu_busy_percent", "97"),
        ("mem_info_vram_used", "2097152"),
        ("pcie_replay_count", "4"),
        ("ras/umc_err_count", "ue: 1\nce: 20"),
        ("ras/xgmi_wafl_err_count", "ue: 0\nce: 3"),
        ("hwmon/hwmon7/power1_average", "650000000"),
        ("hwmon/hwmon7/temp1_input", "61000"),
        ("hwmon/hwmon7/temp2_input", "73000"),
        ("hwmon/hwmon7/freq1_input", "2100000000"),
        ("hwmon/hwmon7/freq2_input", "1300000000"),
    ):
        put(f"{gpu}/{name}", text)
    return tmp_path


def test_gpus_are_numbered_as_hip_numbers_them(machine: Path) -> None:
    both = ("0000:0c:00.0", "0000:a5:03.1")
    assert amd.addresses({}, machine) == both
    assert amd.addresses({"ROCR_VISIBLE_DEVICES": "1"}, machine) == both[1:]
    assert amd.addresses({"HIP_VISIBLE_DEVICES": "1,0", "CUDA_VISIBLE_DEVICES": "0"}, machine) == both[::-1]
    assert amd.addresses({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, machine) == both[1:]
    assert amd.addresses({"ROCR_VISIBLE_DEVICES": "GPU-abc"}, machine) == ()
    assert amd.addresses({"CUDA_VISIBLE_DEVICES": ""}, machine) == ()
    assert nvml.count_gpus({}, machine) == 2 and nvml.visible_addresses({}, machine) == both
    assert nvml.count_gpus({}, machine / "sys") == 0 and not amd.has_device(machine / "sys")


def test_the_drivers_files_tell_the_state_and_the_errors(machine: Path) -> None:
    reader = amd.open_reader("0000:A5:03.1", machine)
    assert reader is not None and reader.device == "gpu 0000:A5:03.1"
    assert reader.read() == DeviceReading(
        hz=2.1e9, memory_hz=1.3e9, power_w=650.0, temperature_c=73.0, busy=0.97, memory_bytes=2 << 20
    )
    assert reader.counters() == {"pcie_replays": 4, "ecc_uncorrected": 1, "ecc_corrected": 23}
    reader.close()


def test_files_that_are_missing_are_unknown(machine: Path) -> None:
    assert amd.open_reader("0000:0c:00.0", machine) is None, "another vendor's, or no such device"
    bare = amd.AmdReader("0000:0c:00.0", machine)
    assert bare.read() == DeviceReading() and bare.counters() == {}
