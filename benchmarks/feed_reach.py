"""Compare the readers of `feed` with fio and with a C program on the same cold files, in turns.

    python benchmarks/feed_reach.py --folder /data --size 256M --rounds 15

Each round drops the files from the page cache before every reader. The order of readers is drawn anew in each round,
because a virtual disk can treat a reader by what came before it. Printed is, per reader, the median over rounds of (our
rate / its rate) with its 95 % interval, and the same of CPU times (its / ours). `--warm` leaves the files in the page
cache. fio and cc are needed.

Before each reader the disk is idle for `--pause`: many virtual disks allow a burst after a pause, and a program that
starts anew has a longer one than ours.

C does what `feed` does: the same system calls, each record into its own place of memory that begins at a page, has huge
pages as numpy's large arrays have, and was written just before, so that part of it is in the CPU's cache. `--unaligned`
moves our memory to 16 bytes after a page, where numpy's own arrays begin. fio reads every record into one place. That
is less work, so the C program does it too ("C, one place"). fio announces sequential reads by default; `fio` is without
this (fadvise_hint=0), as our reader, and `fio, announced` is with it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from bench.core import plugins
from bench.core.units import parse_size
from bench.datasets import page_cache
from bench.datasets.dataset_format import RecordLayout, aligned_array
from bench.datasets.passes import RecordPass
from bench.datasets.work_folder import WorkFolder, files_below
from bench.results import stats

NPY_HEADER = 128
SOURCE = Path(__file__).with_name("feed_reader.c")
AT_LEAST = 0.95
Times = tuple[float, float | None]  # seconds of a pass, and its CPU time; None: unknown
Reader = Callable[[], Times]


def main() -> None:
    """Write the files, read them in turns, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".", type=Path)
    parser.add_argument("--size", default="256M")
    parser.add_argument("--record", default="128K")
    parser.add_argument("--rounds", default=15, type=int)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--unaligned", action="store_true")
    parser.add_argument("--pause", default=0.5, type=float, help="seconds before each reader")
    parser.add_argument("--only", choices=("raw", "direct", "npy"), help="one row of the table")
    args = parser.parse_args()
    record_bytes = parse_size(args.record)
    num = parse_size(args.size) // record_bytes
    folder = WorkFolder(args.folder)
    try:
        with tempfile.TemporaryDirectory() as built:
            program = Path(built) / "feed_reader"
            subprocess.run(["cc", "-O2", "-o", str(program), str(SOURCE)], check=True)
            data = np.random.default_rng(1).integers(0, 256, (num, record_bytes), np.uint8)
            for row, name, direct in (("raw", "raw", False), ("direct", "raw", True), ("npy", "npy", False)):
                if not (direct and args.warm) and args.only in (None, row):
                    compare(folder, program, data, name, direct, args)
    finally:
        folder.close()


def compare(
    folder: WorkFolder, program: Path, data: np.ndarray, name: str, direct: bool, args: argparse.Namespace
) -> None:
    """Print one row: a format, with or without O_DIRECT."""
    found = plugins.load("dataset format", name).FORMAT
    layout = RecordLayout(folder.new("records"), len(data), data.shape[1], direct)
    found.write(layout, list(data))
    files = files_below(layout.folder)
    page_cache.sync(files)
    target = aligned_array(data.size + 16)[16:] if args.unaligned else aligned_array(data.size)
    ours = RecordPass(found, layout, target, "sequential", 0, 1)

    def our_seconds() -> Times:
        target.fill(1)  # as C does before it reads: part of it is in the CPU's cache then
        began, before = time.perf_counter(), time.thread_time()
        ours.run()
        used = time.thread_time() - before
        return time.perf_counter() - began, used

    readers: dict[str, Reader] = {
        "ours": our_seconds,
        "C": lambda: c_seconds(program, files, data, name, direct, "each"),
        "C, one place": lambda: c_seconds(program, files, data, name, direct, "over"),
        "fio": lambda: fio_seconds(layout.folder, data, name, direct, False),
        "fio, announced": lambda: fio_seconds(layout.folder, data, name, direct, True),
    }
    taken: dict[str, list[Times]] = {reader: [] for reader in readers}
    for turn in range(args.rounds):
        order = list(readers)
        random.Random(turn).shuffle(order)
        for reader in order:
            if args.warm:
                page_cache.load(files)
            else:
                page_cache.evict(files)
            if not args.warm and page_cache.num_resident(files):
                raise SystemExit(f"{layout.folder}: its files stay in the page cache; choose a folder on a disk")
            time.sleep(args.pause)
            taken[reader].append(readers[reader]())
    assert (target.reshape(data.shape) == data).all()
    title = f"{name}{', O_DIRECT' if direct else ''}"
    print(f"{title}: {data.size / median(seconds for seconds, _ in taken['ours']) / 1e9:.3f} GB/s")
    for reader in list(readers)[1:]:
        rate = data.size / median(seconds for seconds, _ in taken[reader]) / 1e9
        print(f"  {reader}: {rate:.3f} GB/s", flush=True)
        pairs = list(zip(taken["ours"], taken[reader], strict=True))
        show(f"ours / {reader}", [theirs[0] / own[0] for own, theirs in pairs])
        used = [theirs[1] / own[1] for own, theirs in pairs if own[1] and theirs[1]]
        if used:
            show(f"CPU time {reader} / ours", used)


def show(what: str, ratios: list[float]) -> None:
    """Print one ratio of rates."""
    low, high = stats.interval(ratios) or (float("nan"), float("nan"))
    word = "reached" if median(ratios) >= AT_LEAST else "below"
    print(f"  {what}: {median(ratios):.3f} ({low:.3f} to {high:.3f}), {AT_LEAST} {word}", flush=True)


def c_seconds(program: Path, files: Sequence[Path], data: np.ndarray, name: str, direct: bool, place: str) -> Times:
    """Run the C program. `place`: "each", a place for each record, or "over", one for all."""
    how = ["map" if name == "npy" else "direct" if direct else "read", str(NPY_HEADER), str(data.shape[1]), place]
    names = "".join(f"{path}\n" for path in files)
    done = subprocess.run([str(program), str(data.size), *how], input=names, capture_output=True, text=True, check=True)
    seconds, used = map(float, done.stdout.split())
    return seconds, used


def fio_seconds(folder: Path, data: np.ndarray, name: str, direct: bool, announced: bool) -> Times:
    """Run fio on the same files, one after the other, one read in flight. Return the seconds of as many bytes."""
    engine = "mmap" if name == "npy" else "psync"
    with tempfile.NamedTemporaryFile("w", suffix=".fio") as job:
        job.write(f"[feed]\nrw=read\nbs={data.shape[1]}\nioengine={engine}\ninvalidate=0\ndirect={int(direct)}\n")
        job.write(f"file_service_type=sequential\nfadvise_hint={int(announced)}\nopendir={folder}\n")
        job.flush()
        done = subprocess.run(
            ["fio", "--output-format=json", "--thread", job.name], capture_output=True, text=True, check=True
        )
    read = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    # fio counts its run time in ms; its completion latencies are in ns, but leave out opening the files.
    return float(read["runtime"]) * 1e-3 * data.size / read["io_bytes"], None


if __name__ == "__main__":
    main()
