"""The thread that reads devices while rows are timed: what it condenses, what it costs, what NVML answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from bench.core.device_use import CPUS, DeviceReading, condensed
from bench.probes import _nvml_reader, nvml
from bench.probes.cpu_reader import CpuReader
from bench.probes.device_sampler import DeviceSampler
from tests.fakes.nvml_library import NOT_SUPPORTED, NvmlLibrary, a_gpu

BUS = "00000000:9E:00.0"


class Slow:
    """A device whose reading takes as long as NVML's calls may, mostly waiting, partly on a CPU."""

    device = "gpu slow"

    def __init__(self, waits_s: float, works_s: float) -> None:
        self._waits_s, self._works_s, self.total = waits_s, works_s, 0

    def read(self) -> DeviceReading:
        """Wait, then work."""
        time.sleep(self._waits_s)
        end = time.thread_time() + self._works_s
        while time.thread_time() < end:
            pass
        return DeviceReading(hz=1e9, throttle=("sw power cap",))

    def counters(self) -> Mapping[str, int]:
        """A counter that grows by 3 at each reading, and one that only the second reading knows."""
        self.total += 3
        return {"pcie_replays": self.total} | ({"late": 1} if self.total > 3 else {})

    def close(self) -> None:
        """Nothing to close."""


def test_readings_of_a_slow_library_cost_less_than_a_hundredth() -> None:
    sampler = DeviceSampler(Slow(waits_s=0.001, works_s=0.002), "here")
    sampler.begin()
    time.sleep(1.5)
    use = sampler.use()
    sampler.close()
    assert use.cost is not None and use.cost < 0.01 and use.num_readings >= 2
    assert use.interval_s is not None and use.interval_s > 0.1, "2 ms of CPU time every 20 ms would cost a tenth"
    assert use.counters == {"pcie_replays": 3} and use.was_throttled and use.throttled == {"sw power cap": 1.0}
    assert not any(thread.name == "device-sampler" for thread in threading.enumerate())


def test_a_fast_library_is_read_every_20_ms() -> None:
    sampler = DeviceSampler(Slow(waits_s=0.0, works_s=0.0), "here")
    for _ in range(2):  # row by row
        sampler.begin()
        time.sleep(0.5)
        use = sampler.use()
        assert 2 <= use.num_readings <= 26 and use.hz == 1e9
    sampler.close()


def test_a_row_that_is_shorter_than_the_interval_has_one_reading() -> None:
    sampler = DeviceSampler(Slow(waits_s=0.0, works_s=0.0), "here", interval_s=10.0)
    sampler.begin()
    use = sampler.use()
    sampler.close()
    assert use.num_readings == 1 and use.hz == 1e9


def test_settings_of_the_user_are_no_throttling() -> None:
    def use(*reasons: str) -> Any:
        readings = [DeviceReading(throttle=reasons)] + [DeviceReading()] * 9
        return condensed("h", "gpu", readings, {})

    assert use("hw thermal slowdown").was_throttled and not use("applications clocks setting").was_throttled
    one_of_many = condensed("h", "gpu", [DeviceReading(throttle=("hw slowdown",))] + [DeviceReading()] * 30, {})
    assert not one_of_many.was_throttled and one_of_many.throttled["hw slowdown"] == pytest.approx(1 / 31)


def test_readings_are_condensed_to_what_a_reader_needs() -> None:
    readings = [
        DeviceReading(hz=hz, power_w=power, temperature_c=heat, busy=busy, memory_bytes=size)
        for hz, power, heat, busy, size in (
            (1e9, 300.0, 50.0, 1.0, 5),
            (3e9, 700.0, 61.0, 0.5, 9),
            (2e9, None, 60.0, 0.9, 7),
        )
    ]
    use = condensed("h", "gpu", readings, {"xid": 1})
    assert (use.hz, use.least_hz, use.power_w, use.most_power_w, use.temperature_c) == (2e9, 1e9, 500.0, 700.0, 61.0)
    assert (use.busy, use.memory_bytes, use.counters) == (0.9, 9, {"xid": 1})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> NvmlLibrary:
    """A driver with two GPUs; counters grow from one question to the next."""
    monkeypatch.setattr(nvml, "has_device", lambda root=Path("/"): True)
    grown = SimpleNamespace(num=0)

    def fields(count: int) -> dict[tuple[int, int], int]:
        grown.num += 1
        everything = 0xFFFF_FFFF
        return {(38, 0): 1, (45, 0): 2, (163, 17): 10 * grown.num, (94, 0): grown.num, (138, everything): 4096}

    told = a_gpu(
        "NVIDIA H200",
        BUS,
        nvmlDeviceGetUtilizationRates={"gpu": 97, "memory": 40},
        nvmlDeviceGetCurrentClocksEventReasons=0x24,
        nvmlDeviceGetFieldValues=fields,
        nvmlDeviceGetTotalEccErrors=lambda kind, counter: {0: 7, 1: 0}[kind],
    )
    library = NvmlLibrary([a_gpu("NVIDIA H200", "00000000:1B:00.0"), told])
    library.install(monkeypatch)
    return library


def test_nvml_tells_the_state_and_the_counters_of_the_gpu_at_an_address(machine: NvmlLibrary) -> None:
    reader = _nvml_reader.open_reader("0000:9e:00.0")
    assert reader is not None and reader.device == "gpu 0000:9e:00.0"
    reading = reader.read()
    assert (reading.hz, reading.power_w, reading.temperature_c, reading.busy) == (1755e6, 312.5, 41.0, 0.97)
    assert reading.memory_bytes == 1 << 30 and reading.throttle == ("sw power cap", "sw thermal slowdown")
    first, second = reader.counters(), reader.counters()
    assert first["nvlink_crc_errors"] == 13 and second["nvlink_crc_errors"] == 23 and "nvlink_replays" not in first
    assert second["pcie_replays"] - first["pcie_replays"] == 1 and first["nvlink_sent_kib"] == 4096
    assert first["ecc_corrected"] == 7 and first["ecc_uncorrected"] == 0 and "xid" not in first
    before = machine.asked.total()
    reader.read()
    assert machine.asked["nvmlDeviceGetFieldValues"] == 2 and machine.asked.total() - before <= 8, "few calls a reading"
    reader.close()


def test_xid_events_are_counted(machine: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [SimpleNamespace(eventData=79), SimpleNamespace(eventData=48)]

    def wait(event_set: Any, timeout_ms: int) -> Any:
        assert timeout_ms == 0
        if not events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return events.pop()

    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", object)
    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", lambda handle, kinds, event_set: None)
    monkeypatch.setattr(pynvml, "nvmlEventSetFree", lambda event_set: None)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", wait)
    reader = _nvml_reader.open_reader(BUS)
    assert reader is not None and [reader.counters()["xid"] for _ in range(2)] == [2, 2]


def test_a_gpu_that_is_not_there_has_no_reader(machine: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _nvml_reader.open_reader("0000:aa:00.0") is None
    monkeypatch.setattr(nvml, "has_device", lambda root=Path("/"): False)
    assert _nvml_reader.open_reader(BUS) is None


def test_a_driver_that_tells_nothing_gives_readings_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "has_device", lambda root=Path("/"): True)
    silent = {name: NOT_SUPPORTED for name in a_gpu("x", BUS)} | {"nvmlDeviceGetPciInfo_v3": {"busId": BUS.encode()}}
    NvmlLibrary([silent]).install(monkeypatch)
    reader = _nvml_reader.open_reader(BUS)
    assert reader is not None and reader.read() == DeviceReading() and reader.counters() == {}


def test_the_cpus_of_a_host_are_read_from_files(tmp_path: Path) -> None:
    def put(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    def ticks(busy: int, idle: int) -> None:
        put("proc/stat", f"cpu  9 9 9 9\ncpu0 {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu1 0 0 0 9999 0 0 0 0 0 0\n")

    ticks(100, 100)
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2400000\n")
    put("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "5\n")
    put("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n")
    put("sys/class/thermal/thermal_zone0/temp", "71000\n")
    reader = CpuReader({0}, tmp_path)
    ticks(175, 125)
    reading = reader.read()
    assert reader.device == CPUS and (reading.hz, reading.temperature_c, reading.busy) == (2.4e9, 71.0, 0.75)
    before = reader.counters()
    put("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "8\n")
    assert reader.counters()["thermal_throttles"] - before["thermal_throttles"] == 3
    reader.close()
    assert CpuReader({0}, tmp_path / "empty").read() == DeviceReading()


def test_this_host_can_be_read() -> None:
    with contextlib.closing(CpuReader({0})) as reader:
        time.sleep(0.05)
        reading = reader.read()
    assert reading.busy is None or 0 <= reading.busy <= 1
