"""Compare threads with the kernel's asynchronous I/O: the same reads in flight, on the same files, in turns.

    python benchmarks/feed_in_flight.py --folder /data --size 256M --in-flight 8 --rounds 9

Every reader reads all records, single files, with O_DIRECT in random order. `ours`: `feed` with so many workers, which
open and close each file. fio keeps the files open: with so many threads (psync), and with one thread that has so many
reads in flight by io_uring and by libaio. Printed is the median over rounds of (our rate / its rate) with its 95 %
interval, and each reader's rate. fio is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
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


def main() -> None:
    """Write the files and compare for each size of a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".", type=Path)
    parser.add_argument("--size", default="256M")
    parser.add_argument("--records", default="16K,128K")
    parser.add_argument("--in-flight", default=8, type=int)
    parser.add_argument("--rounds", default=9, type=int)
    parser.add_argument("--pause", default=0.5, type=float, help="seconds before each reader")
    args = parser.parse_args()
    folder = WorkFolder(args.folder)
    try:
        for record in args.records.split(","):
            compare(folder, parse_size(args.size), parse_size(record), args)
    finally:
        folder.close()


def compare(folder: WorkFolder, num_bytes: int, record_bytes: int, args: argparse.Namespace) -> None:
    """Print the rates of one size of a record."""
    found = plugins.load("dataset format", "raw").FORMAT
    data = np.random.default_rng(1).integers(0, 256, (num_bytes // record_bytes, record_bytes), np.uint8)
    layout = RecordLayout(folder.new("records"), len(data), record_bytes, direct_io=True)
    found.write(layout, list(data))
    page_cache.sync(files_below(layout.folder))
    page_cache.evict(files_below(layout.folder))
    target = aligned_array(data.size)
    ours = RecordPass(found, layout, target, "random", args.in_flight, 1)

    def our_seconds() -> float:
        began = time.perf_counter()
        ours.run()
        return time.perf_counter() - began

    readers: dict[str, Callable[[], float]] = {"ours": our_seconds}
    shares = [folder.new(f"share{number}") for number in range(args.in_flight)]
    for index, path in enumerate(files_below(layout.folder)):
        os.link(path, shares[index % len(shares)] / path.name)
    readers["fio psync"] = lambda: fio_seconds(layout, shares, "psync", data.size, 1)
    readers["fio io_uring"] = lambda: fio_seconds(layout, [layout.folder], "io_uring", data.size, args.in_flight)
    readers["fio libaio"] = lambda: fio_seconds(layout, [layout.folder], "libaio", data.size, args.in_flight)
    taken: dict[str, list[float]] = {reader: [] for reader in readers}
    for turn in range(args.rounds):
        order = list(readers)
        random.Random(turn).shuffle(order)
        for reader in order:
            time.sleep(args.pause)
            taken[reader].append(readers[reader]())
    assert (target.reshape(data.shape) == data).all()
    print(f"records of {record_bytes} bytes, {args.in_flight} in flight")
    for reader, seconds in taken.items():
        ratios = [theirs / own for own, theirs in zip(taken["ours"], seconds, strict=True)]
        low, high = stats.interval(ratios) or (float("nan"), float("nan"))
        rate = data.size / median(seconds) / 1e9
        print(f"  {reader}: {rate:.3f} GB/s; ours / it: {median(ratios):.3f} ({low:.3f} to {high:.3f})", flush=True)


def fio_seconds(layout: RecordLayout, folders: list[Path], engine: str, num_bytes: int, in_flight: int) -> float:
    """Run fio on the same files, with one thread for each folder. Return the seconds of as many bytes."""
    text = f"[global]\nrw=read\nbs={layout.record_bytes}\nioengine={engine}\ndirect=1\ninvalidate=0\nfadvise_hint=0\n"
    text += f"iodepth={in_flight}\nfile_service_type=random\n"
    text += "".join(f"[job{number}]\nopendir={folder}\n" for number, folder in enumerate(folders))
    with tempfile.NamedTemporaryFile("w", suffix=".fio") as job:
        job.write(text)
        job.flush()
        done = subprocess.run(
            ["fio", "--output-format=json", "--thread", job.name], capture_output=True, text=True, check=True
        )
    reads = [one["read"] for one in json.loads(done.stdout[done.stdout.index("{") :])["jobs"]]
    return max(read["runtime"] for read in reads) * 1e-3 * num_bytes / sum(read["io_bytes"] for read in reads)


if __name__ == "__main__":
    main()
