"""Stands in for the programs of nccl-tests: takes their options, prints their tables, moves nothing.

The figures are its own: a call takes 10 us (in place 11) and 100 GB/s. `STANDIN` is the version, then what goes wrong:
wrong, reduced, hangs, cut, dies, other-type. Words: the program's name, then its options.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

BLOCKS = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
COMBINE = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
TYPES = {"float": 4, "half": 2, "double": 8, "bfloat16": 2, "int8": 1}
MISHAP_FROM = 4096  # larger sizes show what goes wrong


@dataclass
class Started:
    """One start of a program, of `processes` processes of `gpus` GPUs each."""

    program: str
    given: Mapping[str, str]
    version: str
    mishaps: frozenset[str]
    say: Callable[[str], None]
    processes: int
    results: list[dict[str, Any]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    num_wrong: int = 0

    @property
    def name(self) -> str:
        """all_reduce"""
        return self.program.removesuffix("_mpi").removesuffix("_perf")

    @property
    def ranks(self) -> int:
        """GPUs of all processes."""
        return self.processes * int(self.given.get("g", "1"))

    @property
    def dtype(self) -> str:
        """What it measures, whatever it was asked for."""
        return "float" if "other-type" in self.mishaps else self.given.get("d", "float")


def run(words: Sequence[str], told: str, say: Callable[[str], None], processes: int = 1) -> int:
    """Print what rank 0 prints; the exit code."""
    version, *mishaps = told.split()
    given = {word[1]: value for word, value in zip(words[1::2], words[2::2], strict=True)}
    one = Started(words[0], given, version, frozenset(mishaps), say, processes)
    banner(one)
    for size in sizes(given):
        if "reduced" in one.mishaps and size > 1 << 20:
            break
        if size > MISHAP_FROM and (code := mishap(one)) is not None:
            return code
        row(one, size)
    footer(one)
    if "J" in given:
        Path(given["J"]).write_text(document(one, words))
    return 1 if one.num_wrong else 0


def sizes(given: Mapping[str, str]) -> Iterator[int]:
    """As its loop makes them."""
    size, factor = int(given["b"]), int(given.get("f", "1"))
    while size <= int(given["e"]):
        yield size
        size = size * factor if factor > 1 else size + int(given["i"])


def banner(one: Started) -> None:
    """What stands above the rows."""
    given, old = one.given, one.version == "2.13"
    if not old:
        one.say(f"# nccl-tests version {one.version} nccl-headers=22907 nccl-library=22907")
        one.say(f"# Collective test starting: {one.program}")
    step = f"{given['f']}(factor)" if "f" in given else f"{given['i']}(bytes)"
    one.say(
        f"# nThread 1 nGpus {given.get('g', 1)} minBytes {given['b']} maxBytes {given['e']} step: {step} "
        f"warmup iters: {given.get('w', 1)} iters: {given.get('n', 20)} agg iters: 1 validation: {given.get('c', 1)} "
        f"graph: {given.get('G', 0)}{'' if old else ' unalign: 0'}"
    )
    one.say("#\n# Using devices")
    for rank in range(one.ranks):
        bus = "[0x07]" if old else f"[0000:{7 + rank:02x}:00]"
        one.say(f"#  Rank {rank:2d} Group  0 Pid {41 + rank:6d} on      node7 device {rank:2d} {bus} NVIDIA A100")
    if "reduced" in one.mishaps:
        one.say(f"#\n# Reducing maxBytes to {1 << 20} due to memory limitation")
    half = ["time", "algbw", "busbw", "#wrong"] + ["i_min", "i_max", "i_p99", "i_cv%"] * ("I" in given)
    one.say("#\n#       size         count      type   redop    root  " + "  ".join(half * 2))
    one.say("#        (B)    (elements)                            (us)  (GB/s)  (GB/s)          (us)  (GB/s)  (GB/s)")


def mishap(one: Started) -> int | None:
    """What happens in the place of a row; None where nothing does."""
    if "hangs" in one.mishaps:
        child = subprocess.Popen(["sleep", "300"])
        Path(os.environ["STANDIN_PIDS"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(300)
    if "dies" in one.mishaps:
        one.say("node7: Test NCCL failure common.cu:419 'unhandled system error / '")
        return 3
    return 0 if "cut" in one.mishaps else None


def row(one: Started, size: int) -> None:
    """One size, out of place and in place."""
    element, ranks = TYPES[one.dtype], one.ranks
    blocks = one.name in BLOCKS
    count = size // (16 * ranks) * 16 // element if blocks else size // element
    payload = count * element * (ranks if blocks else 1)
    root = int(one.given.get("r", "0")) if one.name in ROOTED else -1
    operation = one.given.get("o", "sum") if one.name in COMBINE else "none"
    result: dict[str, Any] = {"size": payload, "count": count, "type": one.dtype, "redop": operation, "root": str(root)}
    line = f"{payload:12d}  {count:12d}  {one.dtype:>8}  {operation:>6}  {root:6d}"
    for in_place in (False, True):
        time_us = mean_us(payload, in_place)
        algbw = payload / time_us / 1e3
        busbw = algbw * factor(one.name, ranks)
        one.rates.append(busbw)
        wrong = 3 if "wrong" in one.mishaps and size > MISHAP_FROM and not in_place else 0
        one.num_wrong += wrong
        unchecked = in_place and one.name in ("alltoall", "sendrecv")
        said = "N/A" if unchecked else wrong
        line += f"  {figure(time_us, 7):>7}  {figure(algbw, 6):>6}  {figure(busbw, 6):>6}  {said:>6}"
        key = "in_place" if in_place else "out_of_place"
        result[key] = {"time": time_us, "alg_bw": algbw, "bus_bw": busbw, "nwrong": None if unchecked else wrong}
        if "I" in one.given:
            calls = range(int(one.given.get("n", "20")))
            own = [[time_us + call + process for call in calls] for process in range(one.processes)]
            line += "".join(f"  {figure(value, 7):>7}" for value in (own[-1][0], own[-1][-1], own[-1][-1], 1.0))
            result[f"{key}_per_iter"] = {"skipped_iterations": 0, "times_us": own[-1]}
            if one.processes > 1:
                result[f"{key}_per_iter"]["per_process_max_times_us"] = own
    one.results.append(result)
    one.say(line)


def mean_us(size: int, in_place: bool) -> float:
    """The time of a call."""
    return 10.0 + in_place + size / 100e3


def factor(name: str, ranks: int) -> float:
    """busbw / algbw"""
    if name == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if name in BLOCKS else 1.0


def figure(value: float, width: int) -> str:
    """As many digits as fit."""
    texts = (f"{value:.{digits}f}" for digits in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{value:.1e}")


def footer(one: Started) -> None:
    """What stands below the rows."""
    one.say(f"# Out of bounds values : {one.num_wrong} {'FAILED' if one.num_wrong else 'OK'}")
    one.say(f"# Avg bus bandwidth    : {sum(one.rates) / len(one.rates):g} \n#")
    if one.version != "2.13":
        one.say(f"# Collective test concluded: {one.program}")


def document(one: Started, words: Sequence[str]) -> str:
    """The file of -J."""
    given = one.given
    devices = [
        {"rank": rank, "group": 0, "pid": 41, "hostname": "node7", "device": rank, "device_info": "NVIDIA A100"}
        for rank in range(one.processes)
    ]
    config = {
        "nthreads": 1,
        "ngpus": int(given.get("g", "1")),
        "minimum_bytes": int(given["b"]),
        "maximum_bytes": int(given["e"]),
        "step_factor": int(given.get("f", "2")),
        "devices": devices,
    }
    average = {"bandwidth": sum(one.rates) / len(one.rates), "okay": "unchecked"}
    return json.dumps(
        {
            "version": 3,
            "start_time": "2026-01-02 03:04:05",
            "args": list(words),
            "env": ["SECRET=hunter2"],
            "nccl_version": 22907,
            "config": config,
            "results": one.results,
            "out_of_bounds": {"count": one.num_wrong, "okay": str(not one.num_wrong).lower()},
            "average_bus_bandwidth": average,
            "errors": [],
            "end_time": "2026-01-02 03:04:06",
        }
    )


def of_mpi(*names: str) -> int | None:
    """The first of some variables that is there, where the program "has" MPI."""
    told = (os.environ.get(name) for name in names if "STANDIN_MPI" in os.environ)
    return next((int(value) for value in islice(filter(None, told), 1)), None)


if __name__ == "__main__":
    if of_mpi("PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        sys.exit(1 if "wrong" in os.environ["STANDIN"] else 0)
    sys.exit(
        run(
            sys.argv[1:],
            os.environ.get("STANDIN", "2.19.6"),
            lambda line: print(line, flush=True),
            of_mpi("PMI_SIZE", "OMPI_COMM_WORLD_SIZE") or 1,
        )
    )
