"""Does a trace of one link rate predict the step at another? Two to four hosts with shaped links, all pairs of rates.

    python -m benchmarks.job_link_rates FOLDER [--shapes one_bucket,...]     # goes on with what FOLDER lacks
    python -m benchmarks.job_link_rates FOLDER --table                       # Markdown, from what is there

For each shape of a job (layers that sleep, real gradients over Gloo: tests/job/timed_job.py) and each link rate, the
job is recorded, and this suite measures the exchange on the same links. `job predict` then predicts the step at each
rate from the trace of each other rate and the run at the rate to predict. The truth is the job's own clock there. Of
up to four recordings, the one that other programs disturbed least counts: whose layers take as long as they sleep, and
whose steps differ least.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.job.elsewhere import Elsewhere, RecordedSteps, factor_of
from bench.job.matching import job_of
from bench.job.measured_network import measured_network
from bench.logs import step_traces
from bench.results import collect
from tests.job import timed_job
from tests.testbed.hosts import Testbed

PAUSES = ("0s", "20ms")  # the burst of the testbed's links is earned within 11 ms at 100 Mbit/s
MOST_TRIES, UNDISTURBED = 4, 0.03
RATES = ("1gbit", "400mbit", "200mbit", "100mbit")
_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Shape:
    """A job: its number of ranks, one on each host, and what it does."""

    num_ranks: int
    options: timed_job.Options

    @property
    def exchanged_bytes(self) -> int:
        """The payload of its largest exchange."""
        if self.options.strategy == "tp":
            return self.options.message_bytes
        return max(self.options.bucket_bytes, self.options.layer_bytes)


def _ddp(num_layers: int, layer_bytes: int, bucket_bytes: int) -> timed_job.Options:
    return timed_job.Options(
        num_layers=num_layers, forward_s=0.006, backward_s=0.011, layer_bytes=layer_bytes, bucket_bytes=bucket_bytes
    )


SHAPES = {
    "small_buckets": Shape(2, _ddp(8, 256 * _KIB, 256 * _KIB)),
    "buckets": Shape(2, _ddp(8, _MIB, _MIB)),
    "two_buckets": Shape(2, _ddp(8, 512 * _KIB, 2 * _MIB)),
    "one_bucket": Shape(2, _ddp(8, 512 * _KIB, 4 * _MIB)),
    "three_hosts": Shape(3, _ddp(6, 512 * _KIB, 512 * _KIB)),
    "four_hosts": Shape(4, _ddp(6, 256 * _KIB, 512 * _KIB)),
    "blocking": Shape(
        2, timed_job.Options("tp", num_layers=4, forward_s=0.012, backward_s=0.024, message_bytes=256 * _KIB)
    ),
}


def make(shape: Shape, rate: str, folder: Path) -> None:
    """Record the job and measure its exchange at one rate; `done` is written last."""
    import torch._dynamo  # once, for all ranks: DistributedDataParallel needs it
    import torch.distributed  # noqa: F401

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Testbed(shape.num_ranks, rate=rate) as bed:
        out = bed.shared / "out"
        out.mkdir()

        def environment(rank: int) -> None:
            _before_others(shape.num_ranks)
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(shape.num_ranks),
                LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1",
                MASTER_ADDR=bed.address("h0"),
                MASTER_PORT="29500",
                GLOO_SOCKET_IFNAME="eth0",
                KINETO_LOG_LEVEL="5",
            )

        def measure(rank: int, pause: str) -> None:
            from bench.rank import main
            from bench.transports.gloo import Gloo

            environment(rank)
            Gloo.exits_at_once = False  # a forked rank reports its end to this process
            sizes = f"{shape.exchanged_bytes // 4},{shape.exchanged_bytes // 2},{shape.exchanged_bytes}"
            words = ["--transport", "gloo", "--sizes", sizes, "--launch", "1", *_measured(pause)]
            with contextlib.suppress(SystemExit):
                main.run_pattern("allreduce", [*words, "--records", str(out / "run" / f"{pause}.jsonl")])

        def train(rank: int) -> None:
            environment(rank)
            timed_job.train(shape.options, out)

        least = math.inf
        for _ in range(MOST_TRIES):
            bed.fork(shape.num_ranks, 1, train, timeout_s=120)
            found = disturbance(shape, out)
            if found < least:
                least = found
                shutil.copytree(out, folder, dirs_exist_ok=True)
            if found < UNDISTURBED:
                break
        (out / "run").mkdir()
        for pause in PAUSES:
            bed.fork(shape.num_ranks, 1, partial(measure, pause=pause), timeout_s=120)
        shutil.copytree(out / "run", folder / "run")
    (folder / "done").touch()


def _before_others(num_ranks: int) -> None:
    """Let ranks that wake up run before other work of this machine, as far as that is permitted."""
    with contextlib.suppress(OSError):
        if num_ranks <= (os.cpu_count() or 1):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        else:  # in turn with real-time priority, a rank would hold a core for 100 ms
            os.setpriority(os.PRIO_PROCESS, 0, -15)


def disturbance(shape: Shape, folder: Path) -> float:
    """Return how much other programs disturbed a job: the excess of its layers over their sleep, or the relative
    difference of its steps (the middle half), whichever is more.
    """
    options = shape.options
    ranks = _stamps(folder)
    forward_s = statistics.median(_work_s(options, step) for rank in ranks for step in rank["steps"])
    sleep_s = options.num_layers * (options.forward_s + (options.backward_s if options.strategy == "tp" else 0.0))
    low_s, middle_s, high_s = statistics.quantiles(_steps_s(ranks), n=4)
    return max(forward_s / sleep_s - 1, (high_s - low_s) / middle_s)


def _work_s(options: timed_job.Options, step: Mapping[str, Any]) -> float:
    """Return the forward pass; with blocking exchanges, the step without them."""
    if options.strategy == "tp":
        waits: float = sum(one["done"] - one["ready"] for one in step["exchanges"])
        return float(step["backward"] - step["data"]) - waits
    return float(step["forward"] - step["data"])


def _measured(pause: str) -> list[str]:
    """Return how calls are measured: back to back and one at a time, or one at a time after a rest."""
    if pause == "0s":
        return ["--mode", "both", "--max-seconds", "4"]
    return ["--mode", "isolated", "--max-seconds", "4", "--pause", pause]


@dataclass(frozen=True)
class Pair:
    """One prediction: rates, predicted and measured seconds of a step, error relative to the measured step."""

    shape: str
    rate_from: str
    rate_to: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1


def pairs(name: str, folder: Path) -> Iterator[Pair]:
    """Yield the predictions of all pairs of rates that are there."""
    rates = [rate for rate in RATES if (folder / name / rate / "done").exists()]
    for rate_from in rates:
        traces, _ = step_traces.read(sorted((folder / name / rate_from).glob("rank*.json.gz")))
        recorded = RecordedSteps(job_of(traces))
        for rate_to in rates:
            document = collect.document(folder / name / rate_to / "run")
            network = measured_network(recorded.job, rate_to, document.headers, document.summaries)
            found = Elsewhere(recorded, network, network.num_nodes, factor_of(None, None, None, {}))
            yield Pair(name, rate_from, rate_to, found.range.middle, measured_s(folder / name / rate_to))


def measured_s(folder: Path) -> float:
    """Return the median over steps of the slowest rank's step, by the job's own clock."""
    return statistics.median(_steps_s(_stamps(folder)))


def _stamps(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("stamps*.json"))]


def _steps_s(ranks: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the slowest rank's seconds of each step."""
    steps = zip(*(rank["steps"] for rank in ranks), strict=True)
    return [max(one["end"] - one["start"] for one in of_step) for of_step in steps]


def show(names: Sequence[str], folder: Path) -> None:
    """Print one row for each shape and rate to predict, one column for each rate of the trace."""
    print(f"| job | predicted at | measured | {' | '.join(f'from {rate}' for rate in RATES)} |")
    print(f"|---|---|---:|{'---:|' * len(RATES)}")
    errors = []
    for name in names:
        found = {(one.rate_from, one.rate_to): one for one in pairs(name, folder)}
        for rate_to in RATES:
            row = [found.get((rate_from, rate_to)) for rate_from in RATES]
            errors += [one.error for one in row if one]
            known = next((one for one in row if one), None)
            if known:
                cells = [f"{one.error:+.1%}" if one else "-" for one in row]
                print(f"| {name} | {rate_to} | {known.measured_s * 1e3:.0f} ms | {' | '.join(cells)} |")
    if errors:
        within = sum(abs(error) <= 0.05 for error in errors)
        largest = max(map(abs, errors))
        usual = statistics.median(map(abs, errors))
        print(f"\n{within} of {len(errors)} within 5 %; largest {largest:.1%}, median {usual:.1%}")


def main() -> None:
    """Make what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", default=",".join(SHAPES), metavar="A,B")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    names = args.shapes.split(",")
    if not args.table:
        for name in names:
            for rate in RATES:
                if not (args.folder / name / rate / "done").exists():
                    make(SHAPES[name], rate, args.folder / name / rate)
                    print(f"{name} {rate}", file=sys.stderr, flush=True)
    show(names, args.folder)


if __name__ == "__main__":
    main()
