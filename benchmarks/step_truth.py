"""Does `step` find what was put in? Two hosts with a shaped link, layers that sleep, known delays: a line for each.

    python -m benchmarks.step_truth [--rates 1gbit,400mbit,100mbit] [--link bridge] [--only nothing,forward]
        [--bucket-view 1] [--records FOLDER]

A step has 8 buckets of 1 MiB. `formula` is the exposed exchange that `linkbench validate --steps` predicts from
allreduces of 1 MiB on the same link. Without an injected delay, this is max(b + a, b / k + a + (k - 1) q) - b, with b
seconds of backward pass and k equal buckets, each of which takes a seconds alone and q behind another. `by clocks` and
`by removal` are the two views of the suite, in ms. Needs namespaces, as the tests of tests/testbed do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.predict.validate_step import ValidatedStep, validated
from bench.results import collect
from bench.results.document import Document
from tests.testbed.hosts import Testbed

NUM_BUCKETS, BUCKET_BYTES, FORWARD_S, BACKWARD_S = 8, 1 << 20, 5e-3, 11e-3
LAYERS = f"layers={NUM_BUCKETS},forward={FORWARD_S}s,backward={BACKWARD_S}s,bytes=1M"
INJECTED = (
    ("nothing", LAYERS, ""),
    ("data 40 ms", f"{LAYERS},data=40ms", ""),
    ("rank 1 backward 60 ms", LAYERS, "rank=1,segment=backward,delay=60ms"),
    ("rank 1 forward 60 ms", LAYERS, "rank=1,segment=forward,delay=60ms"),
)


def main() -> None:
    """Print one line for each rate and injection, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit,400mbit,100mbit", metavar="LIST")
    add_link_argument(parser)
    parser.add_argument("--only", default="", metavar="LIST", help="injections whose names contain one of these words")
    parser.add_argument("--bucket-view", default="0", choices=("0", "1"), help="1: DDP copies no gradients")
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER", help="keep the results files here, and use those there"
    )
    args = parser.parse_args()
    print("| rate | injected | step | data | formula | by clocks | by removal | /formula | /clocks | late |")
    print("|" + "---|" * 10, flush=True)
    with TemporaryDirectory() as scratch:
        folder = args.records or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for rate in args.rates.split(","):
            links = allreduces(rate, args.link, folder / f"{rate}-allreduce.jsonl")
            for number, (what, layers, inject) in enumerate(INJECTED):
                if not any(word in what for word in args.only.split(",")):
                    continue
                options = ["--bucket-view", args.bucket_view, *(["--inject", inject] if inject else [])]
                steps = measured(rate, args.link, layers, options, folder / f"{rate}-{number}.jsonl")
                (found,) = validated(steps, links)
                print(line(rate, what, found), flush=True)


def add_link_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --link."""
    words = (
        "what limits the rate: a queue of the kernel (a burst of 128 KB passes at once), or the testbed's own switch"
    )
    parser.add_argument("--link", default="bridge", choices=("bridge", "switch"), help=words)


def allreduces(rate: str, link: str, file: Path) -> Document:
    """Measure allreduces of a bucket, alone and back to back."""
    options = ["--sizes", str(BUCKET_BYTES), "--max-seconds", "3"]
    run_on_two_hosts(rate, link, "allreduce", options, file)
    return collect.document(file)


def measured(rate: str, link: str, layers: str, options: list[str], file: Path) -> Document:
    """Run the step on two hosts."""
    words = ["--timed", layers, "--bucket", str(BUCKET_BYTES), "--max-seconds", "2"]
    run_on_two_hosts(rate, link, "step", [*words, *options], file)
    return collect.document(file)


def run_on_two_hosts(rate: str, link: str, pattern: str, options: list[str], file: Path) -> None:
    """Measure a pattern over Gloo on two hosts, unless the file is there. Their links have this rate."""
    import torch._dynamo  # once, for all ranks: DistributedDataParallel needs it
    import torch.distributed  # noqa: F401

    if file.exists():
        return
    with Testbed(2, rate=rate, delay_s=0.0 if link == "switch" else None) as bed:

        def train(rank: int) -> None:
            from bench.rank import main
            from bench.transports.gloo import Gloo

            Gloo.exits_at_once = False  # a forked rank reports its end to this process
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1",
                MASTER_ADDR=bed.address("h0"),
                MASTER_PORT="29500",
                GLOO_SOCKET_IFNAME="eth0",
            )
            words = ["--transport", "gloo", *options, "--records", str(file), "--output", "/dev/null"]
            with contextlib.suppress(SystemExit):
                main.run_pattern(pattern, words)

        bed.fork(2, 1, train, timeout_s=300)


def line(rate: str, what: str, validation: ValidatedStep) -> str:
    """Return one line of the table."""
    assert validation.predicted is not None, validation.reason
    found, exposed_s = validation.measured, validation.predicted.exposed_s
    cost = found.exposed_by_removal
    known = cost.low_s is not None and cost.high_s is not None
    interval = f" [{ms(cost.low_s)}..{ms(cost.high_s)}]" if known else ""
    late = "" if found.late_rank is None else f"rank {found.late_rank}, {found.late_segment} {ms(found.late_s)}"
    data_s = max(found.parts_s["data_wait"])
    times = (ms(found.step_s), f"{data_s * 1e3:.2f}", ms(exposed_s), ms(cost.inside_s))
    ratios = f"{cost.seconds / exposed_s:.3f}", f"{cost.seconds / cost.inside_s:.3f}"
    return "| " + " | ".join((rate, what, *times, f"{ms(cost.seconds)}{interval}", *ratios, late)) + " |"


def ms(seconds: float | None) -> str:
    """Return seconds in milliseconds."""
    return "" if seconds is None else f"{seconds * 1e3:.1f}"


if __name__ == "__main__":
    main()
