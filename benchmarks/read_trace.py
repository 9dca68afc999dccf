"""What does it cost to explain a job from large traces? 8 ranks of 200,000 events each by default.

    python -m benchmarks.read_trace [--ranks 8] [--events 200000] [--folder DIR]

Writes the files of a simulated job, then reads, matches and divides them in a process of its own, and prints seconds,
events per second and core, and the peak memory. Targets: 30 s and 1 GB on two cores, 100,000 events per second and
core. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

from bench.job.model import StepSegment
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule

MOST_S, MOST_BYTES, LEAST_EVENTS_PER_S = 30.0, 1e9, 100_000
EVENTS_PER_LAYER = 9  # two kernels with their launches, operators and arrows, and half an exchange
NUM_LAYERS = 1000


def write(folder: Path, num_ranks: int, num_events: int) -> None:
    """Write the files of a job with a late rank."""
    num_steps = max(num_events // (NUM_LAYERS * EVENTS_PER_LAYER), 1)
    late = (Late(1, StepSegment.BACKWARD, 5000),)
    schedule = Schedule(
        num_ranks=num_ranks, num_steps=num_steps, num_layers=NUM_LAYERS, layers_per_bucket=10, noise=0.01, late=late
    )
    synthetic.write(folder, schedule, Recording())


def explain(folder: Path) -> None:
    """Explain the job, and print what each stage costs."""
    from bench.job import lateness, parts
    from bench.job.matching import job_of
    from bench.logs import step_traces

    usage = resource.getrusage(resource.RUSAGE_SELF)
    begin, before_s = time.perf_counter(), usage.ru_utime + usage.ru_stime
    traces, _ = step_traces.read([folder])
    read_s = time.perf_counter() - begin
    job = job_of(traces)
    timelines = parts.timelines_of(job)
    parts.steps_of(job, timelines)
    late = lateness.late_ranks(lateness.late_of(job, timelines), 1e-4, job.num_steps)
    all_s = time.perf_counter() - begin
    usage = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = usage.ru_utime + usage.ru_stime - before_s + children.ru_utime + children.ru_stime
    num_events = sum(trace.num_events for trace in traces)
    memory = (usage.ru_maxrss + children.ru_maxrss) * 1024
    rate = num_events / cpu_s
    print(f"{len(traces)} ranks, {num_events} events, {sum(map(_size, folder.iterdir())) / 1e6:.0f} MB of JSON")
    print(f"read {read_s:.1f} s, all {all_s:.1f} s, CPU {cpu_s:.1f} s: {rate:.0f} events per second of CPU")
    print(f"peak memory {memory / 1e6:.0f} MB; late ranks: {[(one.rank, str(one.segment)) for one in late]}")
    sys.exit(all_s > MOST_S or memory > MOST_BYTES or rate < LEAST_EVENTS_PER_S)


def _size(path: Path) -> int:
    return path.stat().st_size


def main() -> int:
    """Write, then explain in a fresh process. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="keep the files here, and use those that are there")
    options = parser.parse_args()
    spawned = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            writer = spawned.Process(target=write, args=(folder, options.ranks, options.events))
            writer.start()
            writer.join()
        reader = spawned.Process(target=explain, args=(folder,))
        reader.start()
        reader.join()
    return reader.exitcode or 0


if __name__ == "__main__":
    sys.exit(main())
