"""Ratios of our copies on one GPU to the rates of its link, its memory and its own copy engine, in one run.

    python -m benchmarks.gpu_copies               # all parts: a minute or two, three at most
    python -m benchmarks.gpu_copies links memory  # some of them

`links`: copies between pinned host memory and the GPU. Their rate is compared with the PCIe link under load, after
encoding (at least 0.85), or with nvbandwidth if BENCH_NVBANDWIDTH_PATH names its folder (within 2 %). GPU events are
compared with the host's clock for the same batches of 16 (within 2 %). Copies in both directions at once show the rate
of each direction. `memory`: the copying kernel compared with the GPU's own copy within its memory (at least 0.95),
bytes read plus written, and both compared with the memory's peak. `processes`: two processes on one GPU through CUDA
IPC, compared with one process that holds both ends (within 5 %). `nccl`: the cost of an NCCL call with one rank, and
our part of it.

Every copied byte is compared. Each line is printed as soon as it is measured; after a failure the other parts still
run. Exit code 0: every target is reached, or cannot be measured here for a printed reason; 1: a target is missed, or
the time limit was reached (stderr then begins with "Timeout" and shows the stack); 3: no GPU or no CuPy; 4: something
failed, even if targets are also missed.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import monotonic

from bench.core.dtypes import dtype_of
from bench.core.errors import (
    EXIT_DONE,
    EXIT_MEASUREMENT,
    EXIT_REFUSED,
    EXIT_TERMINATED,
    EXIT_VERDICT,
    MeasurementError,
    RefusedError,
)
from bench.core.inventory import Inventory
from bench.core.payload import CopyData
from bench.core.program import Copy, CopyStep, Group
from bench.core.transport import Compiled, Options, Reduction, Timing
from bench.core.units import format_size
from bench.core.world import RankInfo
from bench.hardware import catalogue, live
from bench.probes import nvml, sysfs
from bench.transports.cuda_copy import CudaCopy
from benchmarks import gpu_started
from benchmarks.gpu_lines import FAILED, MISSED, UNKNOWN, Line, NotHereError, attempt, failed

MIB = 1 << 20
SETS, BATCH, BATCHES, MOST_S = 2, 16, 21, 3.0
DEADLINE_S, CHILD_S = 175.0, 60.0
WAYS: dict[str, tuple[int | None, int | None]] = {"host to GPU": (None, 0), "GPU to host": (0, None)}
TESTS = {"host to GPU": "host_to_device_memcpy_ce", "GPU to host": "device_to_host_memcpy_ce"}
ALONE, ME = RankInfo(0, 1, 0, 1, "direct"), Group("me", (0,))


class Bench:
    """The parts, each a sequence of lines. Later lines may use the results of earlier ones."""

    def __init__(self, sizes: Sequence[int], began: float) -> None:
        """`sizes`: bytes of the copies. Copies between processes use the second largest."""
        self._sizes, self._began = sizes, began
        self._some = sorted(sizes)[-2:][0]
        self._own_s: dict[int, float] = {}  # rate of the GPU's own copy, by size

    def links(self) -> Iterator[Line]:
        """Copies between host and GPU."""
        transport = CudaCopy(ALONE, Options(near_cpus=sysfs.cpus_beside, near_node=sysfs.node_beside))
        try:
            link, source = link_rate(transport)
        except Exception as error:  # the rates are still useful
            link, source = None, f"the link is unknown here ({error})"
        for size in self._sizes:
            for way, ends in WAYS.items():
                what = f"{way}, {format_size(size)}"
                try:
                    found = timings(transport, size, *ends)
                except Exception as error:
                    yield failed(what, error)
                    continue
                yield self._against_link(what, way, size, size / middle(found), link, source)
                clocks = median(one.seconds[0] / one.host_s[0] for one in found)
                yield Line(f"{what}: events / host's clock, {BATCH} copies", clocks, (0.98, 1.02))
        yield attempt(f"both ways at once, {format_size(self._some)}", lambda: both_ways(transport, self._some))
        transport.close()

    def _against_link(self, what: str, way: str, size: int, rate: float, link: float | None, source: str) -> Line:
        try:
            theirs = gpu_started.nvbandwidth(TESTS[way], size, self._left_s())
        except NotHereError as error:
            return Line(f"{what} / nvbandwidth", None, (0.98, 1.02), str(error), UNKNOWN)
        except (MeasurementError, OSError) as error:
            return failed(f"{what} / nvbandwidth", error)
        if theirs is not None:
            return Line(f"{what} / nvbandwidth", rate / theirs, (0.98, 1.02), f"{gbs(rate)} of {gbs(theirs)}")
        return Line(f"{what} / PCIe link", link and rate / link, (0.85, 1.0), f"{gbs(rate)}; {source}")

    def memory(self) -> Iterator[Line]:
        """Copies within the GPU."""
        engines = {engine: CudaCopy(ALONE, Options(engine=engine)) for engine in ("ce", "sm")}
        peak, source = memory_peak(engines["ce"])
        for size in self._sizes:
            took_s: dict[str, float] = {}
            for engine, name in (("ce", "GPU's own copy"), ("sm", "kernel")):
                what = f"{name}, {format_size(size)}"
                try:
                    took_s[engine] = middle(timings(engines[engine], size, 0, 0))
                except Exception as error:
                    yield failed(what, error)
                    continue
                rate = 2 * size / took_s[engine]
                yield Line(
                    f"{what} / memory's peak", peak and rate / peak, None, f"{gbs(rate)} read + written; {source}"
                )
            if len(took_s) == 2:
                self._own_s[size] = took_s["ce"]
                yield Line(f"kernel / GPU's own copy, {format_size(size)}", took_s["ce"] / took_s["sm"],
                           (0.95, float("inf")))  # fmt: skip
        for transport in engines.values():
            transport.close()

    def processes(self) -> Iterator[Line]:
        """Two processes on one GPU."""
        size = self._some
        what = f"two processes by IPC / one process, {format_size(size)}"

        def against_one() -> Line:
            took_s = gpu_started.peer_copy_s("ipc", size, self._left_s())
            one_s = gpu_started.peer_copy_s("process", size, self._left_s())
            alone = f", alone on the GPU {gbs(2 * size / self._own_s[size])}" if size in self._own_s else ""
            words = f"{gbs(2 * size / took_s)} of {gbs(2 * size / one_s)} read + written{alone}"
            return Line(what, one_s / took_s, (0.95, 1.05), words)

        yield attempt(what, against_one, (0.95, 1.05))

    def nccl(self) -> Iterator[Line]:
        """The software cost of a call."""
        what = "a call of NCCL, one rank, 8 bytes"

        def cost() -> Line:
            us = {name: seconds * 1e6 for name, seconds in gpu_started.nccl_call(self._left_s()).items()}
            ours = us["issue_s"] - us["bare_issue_s"]
            return Line(what, words=(
                f"issued in {us['issue_s']:.2f} us, torch's own call in {us['bare_issue_s']:.2f}: ours {ours:+.2f}; "
                f"an isolated call {us['isolated_s']:.2f} us by events, {us['isolated_host_s']:.2f} on the host's clock"
            ))  # fmt: skip

        yield attempt(what, cost)

    def _left_s(self) -> float:
        """Seconds left for a program that starts now."""
        return max(1.0, min(CHILD_S, DEADLINE_S - 5 - (monotonic() - self._began)))


def main() -> int:
    """Measure, print, judge."""
    parts = ("links", "memory", "processes", "nccl")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], metavar="PART",
                        help=f"of {', '.join(parts)}; default: all of them")  # fmt: skip
    parser.add_argument("--megabytes", default="64,256,1024", type=whole_numbers, metavar="N,N,...",
                        help="sizes of the copies, MiB (%(default)s)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines to this file, too")
    args = parser.parse_args()
    bench = Bench([size * MIB for size in args.megabytes], monotonic())
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(EXIT_TERMINATED))  # also ends the child program
    # A CUDA call that never returns cannot be interrupted. The process can only be ended, with its stack printed.
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True, file=2)
    try:
        return judged(bench, args.parts or parts, args.json)
    except RefusedError as error:
        reason = error if nvml.has_device() else "no NVIDIA GPU was found here: run this on a machine with one"
        print(f"gpu_copies: error: {reason}", file=sys.stderr)
        return EXIT_REFUSED
    finally:
        faulthandler.cancel_dump_traceback_later()


def whole_numbers(text: str) -> list[int]:
    """`64,256`; ValueError for anything else."""
    found = [int(word) for word in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def judged(bench: Bench, parts: Sequence[str], file: Path | None = None) -> int:
    """Print the lines of these parts as they come, and keep them in `file`. Returns the exit code.

    Raises RefusedError if no part can run.
    """
    transport = CudaCopy(ALONE, Options(near_cpus=sysfs.cpus_beside, near_node=sysfs.node_beside))
    for name, value in transport.facts().items():
        print(f"# {name}: {value}")
    for note in transport.notes:
        print(f"# {note}")
    transport.close()
    del transport
    lines: list[Line] = []

    def show(line: Line) -> None:
        print(line, flush=True)
        lines.append(line)
        if file is not None:  # as soon as it is measured: a later line may never come
            file.write_text(json.dumps([one.plain() for one in lines], indent=1), encoding="utf-8")

    for part in parts:
        try:
            for line in getattr(bench, part)():
                show(line)
        except Exception as error:  # measure the other parts after any error
            show(failed(part, error))
    verdicts = [line.verdict for line in lines]
    counted = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    print(f"# {len(verdicts)} lines: {counted}")
    return EXIT_MEASUREMENT if FAILED in verdicts else EXIT_VERDICT if MISSED in verdicts else EXIT_DONE


def compiled(transport: CudaCopy, size: int, *ways: tuple[int | None, int | None]) -> Compiled:
    """Simultaneous copies, one for each direction; ends as in `core.program.Copy`."""
    copies = [Copy(0, 0, size, *ends, k * size, k * size) for k, ends in enumerate(ways)]
    steps, num_bytes = (CopyStep(tuple(copies)),), size * len(ways)
    buffers = transport.allocate(num_bytes, num_bytes, SETS, steps)
    return transport.compile(steps, ME, buffers, Reduction("uint8", "sum"), False)


def batches(transport: CudaCopy, copies: Compiled) -> Iterator[Timing]:
    """Batches back to back after a warm-up batch, for a few seconds. Raises MeasurementError for wrong data."""
    buffers, noise = copies.keep[0], CopyData(dtype_of("uint8"), (0,), 1).sent(0)
    size = buffers.send_bytes
    for index in range(SETS):
        buffers.fill("send", index, 0, size, noise)
        buffers.write("recv", index, 0xA5)
    transport.time_batch(copies, BATCH)
    began = monotonic()
    for done in range(BATCHES):
        if done >= 5 and monotonic() - began > MOST_S:
            break
        yield transport.time_batch(copies, BATCH)
    wrong = sum(buffers.count_wrong("recv", index, 0, size, noise, 1).num_wrong for index in range(SETS))
    if wrong:
        raise MeasurementError(f"{wrong} of {SETS * size} bytes arrived wrong")


def timings(transport: CudaCopy, size: int, source_on: int | None, target_on: int | None) -> list[Timing]:
    """Timings of copies in one direction."""
    copies = compiled(transport, size, (source_on, target_on))
    found = list(batches(transport, copies))
    copies.native.close()
    return found


def middle(found: Sequence[Timing]) -> float:
    """Seconds of one copy: the median over batches."""
    return median(timing.seconds[0] for timing in found)


def both_ways(transport: CudaCopy, size: int) -> Line:
    """The rate of each direction, until its own end, while the other direction also copies."""
    copies = compiled(transport, size, *WAYS.values())
    ends_s = [copies.native.ends_s() for _ in batches(transport, copies)]
    copies.native.close()
    rates = [BATCH * size / median(times) for times in zip(*ends_s, strict=True)]
    together = 2 * BATCH * size / median(map(max, ends_s))
    words = ", ".join(f"{way} {gbs(rate)}" for way, rate in zip(WAYS, rates, strict=True))
    return Line(
        f"both ways at once, {format_size(size)}", words=f"{words}; {gbs(together)} together until the later end"
    )


def link_rate(transport: CudaCopy) -> tuple[float | None, str]:
    """(bytes per second of this GPU's link after encoding, read while copies run; source of the figure)."""
    bus = transport.facts()["gpu_pci_bus"]
    for _ in range(2):  # the first reading also loads NVML, and the copies may end before that
        transport.keep_link_active()
        found = nvml.gpus(under_load=True)
        transport.sync()
    # NVML writes the domain with eight digits, CUDA with four.
    gpu = next((one for one in found.gpus if one.pci_bus and one.pci_bus.lower().lstrip("0") == bus.lstrip("0")), None)
    rate = None if gpu is None else live.pcie_rate(gpu)
    if gpu is None or rate is None:
        return None, f"NVML does not report the link of this GPU{f' ({found.reason})' if found.reason else ''}"
    return rate, f"{live.pcie_source((gpu,), Inventory(gpus=found.gpus))}: {gbs(rate)}"


def memory_peak(transport: CudaCopy) -> tuple[float | None, str]:
    """(bytes per second of this GPU's memory, source of the figure)."""
    facts = transport.facts()
    model, reported = catalogue.gpu_printed(facts["gpu"]), facts["gpu_memory_peak_bytes_per_s"]
    sheet = None if model is None else catalogue.gpu(model).memory_bytes_per_s
    clock = "the driver reports no memory clock" if reported == "unknown" else f"{gbs(float(reported))} by its clock"
    if sheet is not None:
        return sheet, f"{model}: {gbs(sheet)}, {clock}"
    return (None if reported == "unknown" else float(reported)), clock


def gbs(bytes_per_s: float) -> str:
    """A rate as text."""
    return f"{bytes_per_s / 1e9:.1f} GB/s"


if __name__ == "__main__":
    sys.exit(main())
