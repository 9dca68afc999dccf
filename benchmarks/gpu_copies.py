"""What copies of ours reach on one GPU, beside what its link, its memory and its own copy can do: ratios of one run.

    python -m benchmarks.gpu_copies

Host and GPU, pinned, against the PCIe link as it runs under load, after encoding (at least 0.85), or against
nvbandwidth where BENCH_NVBANDWIDTH_PATH names its folder (within 2 %). The copying kernel against the GPU's own copy
within its memory (at least 0.95), bytes read plus written. Events against the host's clock for 16 copies of 64 MiB
(within 2 %). Two processes on one GPU through CUDA IPC against one process (within 5 %). Exit code 1 where one is
missed, 3 without a GPU or CuPy; what can not be told here is skipped, in words.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.core.errors import EXIT_REFUSED, RefusedError
from bench.core.program import Copies, Copy, Group
from bench.core.transport import Options, Reduction, Timing
from bench.core.world import Place
from bench.probes import nvml, sysfs
from bench.transports.cuda_copy import CudaCopy

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
SETS, BATCH, BATCHES = 4, 16, 21
# Giga-transfers per second of a lane, and the share that its coding leaves (PCIe 1-2: 8b/10b, 3-5: 128b/130b, 6: FLIT).
LANE = {1: (2.5, 0.8), 2: (5.0, 0.8), 3: (8.0, 128 / 130), 4: (16.0, 128 / 130), 5: (32.0, 128 / 130),
        6: (64.0, 236 / 256)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One ratio and what it must be; None where it can not be told, `words` say why."""

    what: str
    ratio: float | None
    least: float = 0.0
    most: float = float("inf")
    words: str = ""

    @property
    def missed(self) -> bool:
        """Is it outside?"""
        return self.ratio is not None and not self.least <= self.ratio <= self.most


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256, metavar="N", help="of the copies of each link (MiB, 256)")
    args = parser.parse_args()
    size = args.megabytes * MIB
    try:
        transport = CudaCopy(Place(0, 1, 0, 1, "direct"), Options(near_cpus=sysfs.cpus_beside))
    except RefusedError as error:
        reason = error if nvml.has_device() else "no NVIDIA GPU was found here: run this on a machine with one"
        print(f"gpu_copies: error: {reason}", file=sys.stderr)
        return EXIT_REFUSED
    for name, value in transport.facts().items():
        print(f"# {name}: {value}")
    lines = [*host_links(transport, size), clocks(transport)]
    own_s = seconds(transport, size, 0, 0)
    lines += within(transport, size, own_s)
    transport.close()
    lines.append(between_processes(size, own_s))
    for line in lines:
        shown = "skipped" if line.ratio is None else f"{line.ratio:7.3f}"
        asked = f"[{line.least:g} .. {line.most:g}]" if line.ratio is not None else ""
        print(f"{line.what:58} {shown:8} {asked:14} {'MISSED' if line.missed else ''} {line.words}")
    return int(any(line.missed for line in lines))


def timings(transport: CudaCopy, size: int, source_on: int | None, target_on: int | None, batch: int = BATCH,
            ) -> list[Timing]:  # fmt: skip
    """Batches of copies back to back, cold and after a warm-up."""
    steps = (Copies((Copy(0, 0, size, source_on, target_on),)),)
    compiled = transport.compile(
        steps, Group("me", (0,)), transport.allocate(size, size, SETS, steps), Reduction("uint8", "sum"), False
    )
    transport.time_batch(compiled, batch)
    found = [transport.time_batch(compiled, batch) for _ in range(BATCHES)]
    if compiled.release is not None:
        compiled.release()
    return found


def seconds(transport: CudaCopy, size: int, source_on: int | None, target_on: int | None) -> float:
    """Seconds of one copy, the median of batches."""
    return median(timing.seconds[0] for timing in timings(transport, size, source_on, target_on))


def host_links(transport: CudaCopy, size: int) -> list[Line]:
    """Both directions against the link, or against nvbandwidth."""
    rates = {"host_to_device": size / seconds(transport, size, None, 0),
             "device_to_host": size / seconds(transport, size, 0, None)}  # fmt: skip
    link, words = link_rate(transport)
    lines = []
    for way, rate in rates.items():
        reached = f"{rate / 1e9:.2f} GB/s"
        theirs = nvbandwidth(f"{way}_memcpy_ce", size)
        if theirs is not None:
            lines.append(Line(f"{way} / nvbandwidth", rate / theirs, 0.98, 1.02, f"{reached} of {theirs / 1e9:.2f}"))
        elif link is None:
            lines.append(Line(f"{way} / PCIe link", None, words=f"{reached}; {words}"))
        else:
            lines.append(Line(f"{way} / PCIe link", rate / link, 0.85, 1.0, f"{reached}; {words}"))
    return lines


def link_rate(transport: CudaCopy) -> tuple[float | None, str]:
    """Bytes per second of the link of this GPU after encoding, read while copies run; and how it comes."""
    bus = transport.facts()["gpu_pci_bus"]
    for _ in range(2):  # the first look also loads NVML, and copies may be done before it is there
        transport.stir()
        found = nvml.gpus(under_load=True).gpus
        transport.sync()
    # NVML writes the domain with eight digits, CUDA with four.
    gpu = next((one for one in found if one.pci_bus and one.pci_bus.lower().lstrip("0") == bus.lstrip("0")), None)
    if gpu is None or gpu.pcie_generation not in LANE or not gpu.pcie_lanes:
        return None, "NVML does not tell the link of this GPU"
    giga, coding = LANE[gpu.pcie_generation]
    rate = giga * 1e9 * coding * gpu.pcie_lanes / 8
    return rate, f"PCIe {gpu.pcie_generation} x{gpu.pcie_lanes} under load: {rate / 1e9:.2f} GB/s"


def nvbandwidth(test: str, size: int) -> float | None:
    """What nvbandwidth reaches in the same way, in bytes per second; None without it."""
    folder = os.environ.get("BENCH_NVBANDWIDTH_PATH")
    if not folder:
        return None
    words = (str(Path(folder) / "nvbandwidth"), "-t", test, "-b", str(size // MIB), "-i", "5")
    env = os.environ | {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    found = re.search(rf"^SUM {test}\s+([0-9.]+)", done.stdout, re.MULTILINE)
    if found is None:
        print(f"# nvbandwidth gave no figure of {test}: {(done.stderr or done.stdout).strip()[-200:]}")
        return None
    return float(found[1]) * 1e9


def clocks(transport: CudaCopy) -> Line:
    """The same batches by the GPU's events and by the host's clock."""
    found = timings(transport, 64 * MIB, None, 0, 16)
    ratio = median(timing.seconds[0] / timing.host_s[0] for timing in found)
    return Line("events / host clock, host to device, 16 x 64 MiB", ratio, 0.98, 1.02)


def within(transport: CudaCopy, size: int, own_s: float) -> list[Line]:
    """The kernel against the GPU's own copy, and both against the memory's peak; bytes read plus written."""
    kernel = CudaCopy(Place(0, 1, 0, 1, "direct"), Options(engine="sm"))
    kernel_s = seconds(kernel, size, 0, 0)
    kernel.close()
    lines = [Line("kernel / GPU's own copy, in its memory", own_s / kernel_s, 0.95, words=gbs(2 * size, kernel_s))]
    told = transport.facts()["gpu_memory_peak_bytes_per_s"]
    peak = float(told) if told != "unknown" else None
    for who, took_s in (("GPU's own copy", own_s), ("kernel", kernel_s)):
        share = None if peak is None else 2 * size / took_s / peak
        words = "the driver tells no clock of the memory" if peak is None else f"of {peak / 1e9:.0f} GB/s"
        lines.append(Line(f"{who} / peak of the memory", share, 0.0, 1.0, f"{gbs(2 * size, took_s)} {words}"))
    return lines


def between_processes(size: int, own_s: float) -> Line:
    """Two ranks on one GPU; the one that copies reaches into the other's memory."""
    what = "two processes by IPC / one process, on one GPU"
    # By its address, since a sandbox may not resolve its own name.
    words = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
             "--nproc-per-node", "2", "-m", "bench.peer_copy", "--sizes", str(size), "--mode", "pipelined",
             "--share-gpu", "1", "--format", "json")  # fmt: skip
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return Line(what, None, words=(done.stderr.strip().splitlines() or ["no output"])[-1])
    if not document["summaries"]:
        reasons: Sequence[Any] = document["skipped"] or document["failures"] or [{}]
        return Line(what, None, words=str(next(iter(reasons)).get("reason", done.stderr.strip()[-200:])))
    best_s = min(row["median_s"] for row in document["summaries"])
    return Line(what, own_s / best_s, 0.95, 1.05, gbs(2 * size, best_s))


def gbs(num_bytes: int, took_s: float) -> str:
    """A rate in words."""
    return f"{num_bytes / took_s / 1e9:.0f} GB/s"


if __name__ == "__main__":
    sys.exit(main())
