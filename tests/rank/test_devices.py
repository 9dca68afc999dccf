"""What devices did while a row was timed is in its record, and a soak compares burst and sustained times."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bench.core import plugins
from bench.core.case import Case
from bench.core.device_use import DeviceReading
from bench.core.record import BesideSamples, Flag, Record, Samples, StopReason
from bench.core.transport import Options
from bench.core.world import World
from bench.probes.device_sampler import DeviceSampler
from bench.rank import measure
from bench.results.times import from_samples
from bench.store import jsonl
from bench.transports import cuda_copy
from tests.gate.gate_runs import header
from tests.transports.test_cuda_copy import ALONE, cupy

__all__ = ["cupy"]  # a fixture
ROOT = Path(__file__).resolve().parent.parent.parent


class _Hot:
    """A GPU that is throttled for some readings."""

    device = "gpu hot"

    def __init__(self, *reasons: str) -> None:
        self._reading = DeviceReading(hz=1.2e9, temperature_c=88.0, throttle=reasons)

    def read(self) -> DeviceReading:
        """Always the same."""
        return self._reading

    def counters(self) -> Mapping[str, int]:
        """No errors."""
        return {"nvlink_crc_errors": 0}

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize(("reason", "flagged"), [("hw thermal slowdown", True), ("applications clocks setting", False)])
def test_a_row_that_throttled_says_so(reason: str, flagged: bool, tmp_path: Path) -> None:
    case = Case("host_device", "cuda_copy", (4096,), "uint8", iterations=3, warmup=1, mode="pipelined", direction="h2d")
    transport = cuda_copy.CudaCopy(ALONE, Options())
    pattern = plugins.load("pattern", case.pattern).PATTERN
    setting = measure.Setting(
        case,
        pattern,
        transport,
        World(1, 1),
        ("here",),
        1 << 18,
        1 << 28,
        lambda doing: None,
        samplers=(DeviceSampler(_Hot(reason), "here"),),
    )
    measurer = measure.Measurer(setting)
    ((record,),) = list(measurer.rows())
    measurer.close()
    transport.close()
    (use,) = record.devices
    assert (use.device, use.hz, use.temperature_c) == ("gpu hot", 1.2e9, 88.0) and use.throttled == {reason: 1.0}
    assert use.counters == {"nvlink_crc_errors": 0} and (Flag.THROTTLED in record.flags) == flagged
    kept = replace(record, beside=BesideSamples((((0.25, 0.5), (0.75, 1.0)),), 1))
    jsonl.Writer(tmp_path / "results.jsonl", header()).append(kept)
    (read,) = jsonl.read(tmp_path / "results.jsonl").attempts[0].records
    assert replace(read.devices[0], cost=use.cost, interval_s=use.interval_s) == use and read.beside is not None
    assert [list(ends) for ends in read.beside.ends_s[0]] == [[0.25, 0.5], [0.75, 1.0]]
    assert record.samples is not None and read.samples is not None
    assert list(read.samples.skew_s) == list(record.samples.skew_s) == [0.0, 0.0, 0.0]


def test_a_soak_compares_its_first_seconds_with_its_second_half() -> None:
    seconds = [0.001] * 700 + [0.012] * 60  # 10 calls a sample: 7.0 s of burst, then 7.2 s
    samples = Samples(seconds, calls_per_sample=10)
    row = Record("pipelined", (8,), 8, 1, 1, bus_factor=1.0, stop_reason=StopReason.SOAKED, samples=samples)
    times = from_samples(header(), row, samples)
    assert (times.burst_s, times.sustained_s) == (0.001, 0.012)
    other = from_samples(header(), replace(row, stop_reason=StopReason.CONVERGED), samples)
    assert (other.burst_s, other.sustained_s) == (None, None)


@pytest.mark.slow
@pytest.mark.torch
def test_a_soak_lasts_as_long_as_asked_and_reads_the_cpus(tmp_path: Path) -> None:
    words = ("--transport", "gloo", "--sizes", "64K", "--mode", "pipelined", "--soak", "1.5s", "--format", "json")
    done = subprocess.run(
        (sys.executable, "-m", "bench.allreduce", *words, "--records", str(tmp_path / "r.jsonl")),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["summaries"]
    assert row["stop_reason"] == "soak" and row["burst_s"] > 0 and row["sustained_s"] > 0
    (use,) = row["devices"]
    assert use["device"] == "cpus" and use["num_readings"] >= 5 and use["cost"] < 0.01
    (record,) = jsonl.read(tmp_path / "r.jsonl").attempts[0].records
    assert record.devices[0].num_readings == use["num_readings"]
