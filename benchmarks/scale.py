"""The cost of 1,024 nodes of 8 ranks on one machine: plan, memory of rank 0, model and report.

    python -m benchmarks.scale [plan] [memory] [model] [report]

plan: every scenario on 1,024 nodes by each launcher, CPU seconds and memory of `linkbench plan`.
memory: memory of rank 0 while it gathers invented samples of 8,192 ranks, row after row, and of all pairs of 128 or 256
ranks.
model: seconds of one size of each pattern on 8,192 modelled ranks.
report: report, compare and plot of results with 8,192 ranks in the header, and of all pairs of 64 and 128 ranks.
Each part runs in processes of its own and prints their peak memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.core.case import Case
from bench.core.case_argv import from_argv
from bench.core.channel import Channel
from bench.core.pattern import Shape
from bench.core.record import Header, Record, Samples
from bench.core.topology import rounds
from bench.core.transport import Timing
from bench.core.world import RankInfo, World
from bench.rank import measure, modelled, sampling
from bench.rank.rows import PlannedRow
from bench.results import summary
from bench.store import jsonl

ROOT = Path(__file__).resolve().parent.parent
NODES, PER_NODE = 1024, 8
CLUSTERS = f"""clusters:
  slurm: {{instance: p5.48xlarge, nodes: {NODES}, ranks_per_node: {PER_NODE}, launcher: slurm}}
  mpirun: {{nodes: {NODES}, ranks_per_node: {PER_NODE}, launcher: mpirun, hosts: 'h[0-{NODES - 1}]'}}
  torchrun: {{nodes: {NODES}, ranks_per_node: {PER_NODE}, launcher: torchrun, hosts: 'h[0-{NODES - 1}]'}}
"""
PATTERNS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter",
            "barrier", "pingpong", "bisection", "sendrecv", "incast", "pairs")  # fmt: skip


def main() -> None:
    """Print one line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: dict[str, Callable[[], None]] = {"plan": plan, "memory": memory, "model": model, "report": report}
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all of them")
    for name in parser.parse_args().parts or parts:
        parts[name]()


def measured(what: str, work: Callable[[], Any], below: bool = False) -> None:
    """Run `work` in a process of its own; print its CPU seconds, peak memory (`below`: its children's) and result."""
    results: Any = multiprocessing.Queue()

    def child() -> None:
        result = work()
        used = resource.getrusage(resource.RUSAGE_CHILDREN if below else resource.RUSAGE_SELF)
        results.put((used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, result))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{what}: failed")
    seconds, mib, result = results.get()
    print(f"{what}: {seconds:.2f} s of CPU, {mib:.0f} MiB{f', {result}' if result else ''}", flush=True)


def bench(what: str, *words: str) -> None:
    """Run `linkbench` with these words."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench", *words]
    measured(what, partial(_call, command, env), below=True)


def _call(command: list[str], env: dict[str, str]) -> None:
    subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=True)


def plan() -> None:
    """Plan every scenario with each launcher, measured and modelled."""
    ways = (("slurm",), ("mpirun",), ("torchrun",), ("slurm", "--model"), ("mpirun", "--format", "json"))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.yaml"
        config.write_text(CLUSTERS)
        for scenario in sorted(file.stem for file in (ROOT / "scenarios").glob("*.yaml")):
            for words in ways:
                what = f"plan {scenario} {' '.join(words)}"
                bench(what, "plan", scenario, "--config", str(config), "--cluster", *words)


class Answers(Channel):
    """Rank 0's channel in a simulated world: the other ranks reply with rank 0's own values."""

    def __init__(self, num_ranks: int) -> None:
        """`num_ranks`: of the world."""
        self._num = num_ranks

    def gather(self, value: Any) -> list[Any]:
        """Slightly different copies of rank 0's value, one per rank, as separate objects like unpickled ones."""
        seconds = value.seconds if isinstance(value, Timing) else value
        gathered = [tuple(one * (1 + 1e-5 * rank) for one in seconds) for rank in range(self._num)]
        return [Timing(own, "made up") for own in gathered] if isinstance(value, Timing) else gathered

    def broadcast(self, value: Any) -> Any:
        """Rank 0's own."""
        return value


class MadeUp:
    """A transport with invented times. They always differ, so sampling continues to its limit."""

    def __init__(self, num_ranks: int) -> None:
        """`num_ranks`: of the world."""
        self.place, self.channel = RankInfo(0, num_ranks, 0, num_ranks, "direct"), Answers(num_ranks)

    def time_each(self, compiled: Any, num_calls: int) -> Timing:
        """From 1 to 7 ms."""
        return Timing(tuple(1e-3 * (1 + k % 7) for k in range(num_calls)), "made up")


def memory() -> None:
    """Memory of rank 0: 8,192 ranks in one group with more and more samples and rows; then all pairs."""
    measured("memory: the program alone", partial(len, ""))
    world = World(NODES, PER_NODE)
    for num_rows, num_samples in ((1, 100), (1, 1000), (1, 10000), (4, 1000)):
        what = f"memory: {world.num_ranks} ranks, {num_rows} rows of {num_samples} samples"
        measured(what, partial(_hold, world, "world", num_rows, num_samples))
    for num_ranks in (128, 256):
        measured(f"memory: all pairs of {num_ranks} ranks", partial(_hold, World(num_ranks, 1), "pairs", 1, 30))


def _hold(world: World, topology: str, num_rows: int, num_samples: int) -> str:
    """Process rows as rank 0 does, without printing: gather, keep, write, derive."""
    transport: Any = MadeUp(world.num_ranks)
    case = Case("allreduce", iterations=num_samples, warmup=5)
    rows, kept = summary.DocumentBuilder(50_000), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made-up.jsonl"
        writer = jsonl.Writer(path, header(world, topology))
        for _ in range(num_rows):
            for groups in rounds(world, topology):
                row = PlannedRow("isolated", Shape(len(groups[0].ranks), 64), (64,), groups, 1000.0)
                taken = sampling.take(
                    case, transport, row, None, 1, max(0, measure._KEPT_VALUES - kept), lambda _: None
                )
                kept += sum(
                    len(one.slowest) * len(group.ranks) for one, group in zip(taken.shares, groups, strict=True)
                )
                records = [
                    Record("isolated", (64,), 64, len(group.ranks), world.num_nodes, group.name, group.src, group.dst,
                           samples=Samples(one.slowest, one.by_rank, rank_mean_s=one.rank_mean_s,
                                           slowest_counts=one.slowest_counts))
                    for one, group in zip(taken.shares, groups, strict=True)
                ]  # fmt: skip
                writer.append(*records)
                for record in records:
                    rows.add("made-up", header(World(1, 1), topology), record)
        return f"file of {path.stat().st_size / 1e6:.1f} MB, {len(rows.summaries)} rows held"


def header(world: World, topology: str) -> Header:
    """A header with facts of every node and rank, as in a real run."""
    per = world.ranks_per_node
    pattern = "pairs" if topology == "pairs" else "allreduce"
    node = {"cpu": "AMD EPYC 7R13", "num_cpus": 96, "memory_bytes": 1 << 40}
    return Header(
        job="made-up", case=(pattern,), pattern=pattern, transport="mpi", dtype="float32", reduce_op="sum", root=None,
        direction="one-way", topology=topology, num_ranks=world.num_ranks, num_nodes=world.num_nodes,
        ranks_per_node=per, clock="host", modelled=False, started="2026-01-01T00:00:00+00:00",
        nodes={f"h{k}": node for k in range(world.num_nodes)},
        ranks=tuple({"host": f"h{k // per}", "local_rank": k % per, "process": 1000 + k, "cpus": list(range(12))}
                    for k in range(world.num_ranks)),
    )  # fmt: skip


def model() -> None:
    """One size, one mode, one round."""
    for name in PATTERNS:
        words = [name, "--transport", "model", "--instance", "p5.48xlarge", "--nodes", str(NODES),
                 "--ranks-per-node", str(PER_NODE), "--sizes", "16M", "--mode", "isolated"]  # fmt: skip
        measured(f"model {name}, one round of {NODES * PER_NODE} ranks", partial(_first_row, words))


def _first_row(words: list[str]) -> None:
    _, rows = modelled.header_and_rows(from_argv(words), words[0])
    next(rows)


def report() -> None:
    """Measure the commands that read a results file."""
    runs = [(f"{NODES * PER_NODE} ranks, 60 rows of 1000 samples", World(NODES, PER_NODE), "world", 60)]
    runs += [(f"all pairs of {num} ranks", World(num, 1), "pairs", 2) for num in (64, 128)]
    for what, world, topology, num_rows in runs:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "made-up.jsonl")
            measured(f"{what}: to write", partial(_write, Path(path), world, topology, num_rows))
            bench(f"{what}: report", "report", path)
            bench(f"{what}: report --format json", "report", path, "--format", "json")
            bench(f"{what}: plot", "plot", path, "--plots", folder)
            if topology == "world":
                bench(f"{what}: compare with itself", "compare", path, path)


def _write(path: Path, world: World, topology: str, num_rows: int) -> str:
    writer = jsonl.Writer(path, header(world, topology))
    for row in range(num_rows):
        mode = ("isolated", "pipelined")[row % 2]
        writer.append(*(replace(record, mode=mode) for record in _records(world, topology, row)))
    return f"file of {path.stat().st_size / 1e6:.1f} MB"


def _records(world: World, topology: str, row: int) -> Iterator[Record]:
    """Records of a row. World: 1,000 samples with the ranks' means and counts; pairs: 30 samples each."""
    for groups in rounds(world, topology):
        for group in groups:
            num = 30 if topology == "pairs" else 1000
            seconds = [1e-3 * (1 + 0.01 * ((k * 7919 + row) % 13)) for k in range(num)]
            means = () if topology == "pairs" else (1e-3,) * len(group.ranks)
            counts = () if topology == "pairs" else (0,) * len(group.ranks)
            size = 8 << row // 2 % 20
            yield Record("isolated", (size,), size, len(group.ranks), world.num_nodes, group.name, group.src, group.dst,
                         bus_factor=1.0, verified=True, num_wrong=0, stop_reason="ci",
                         samples=Samples(seconds, rank_mean_s=means, slowest_counts=counts))  # fmt: skip


if __name__ == "__main__":
    main()
