"""Are steps of all strategies predicted from exchanges on the same link? Two hosts, layers that sleep: a line for each.

    python -m benchmarks.step_strategies [--rates 400mbit,100mbit] [--link bridge] [--only fsdp2,tensor]
        [--records FOLDER]

For each rate, this script measures single exchanges (allreduce, allgather, reducescatter, messages) and then steps.
`predicted` is the time of `linkbench validate --steps`, which uses the exchanges and the times of the sleeping layers.
The last column is the error if the step without exchange, as measured, takes the place of the sleeping layers: it then
contains the strategy's own work.
Needs namespaces, as the tests of tests/testbed do.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.predict.validate_step import ValidatedStep, validated
from bench.results import collect
from benchmarks.step_truth import add_link_argument, ms, run_on_two_hosts

_SIZE = "256K"
_LAYERS = f"layers=8,forward=5ms,backward=11ms,bytes={_SIZE},activations={_SIZE}"
_EXCHANGES = (
    ("allreduce", ["--mode", "both", "--sizes", "128K,256K"]),
    ("allgather", ["--mode", "isolated", "--sizes", _SIZE]),
    ("reducescatter", ["--mode", "isolated", "--sizes", _SIZE]),
    ("pingpong", ["--mode", "isolated", "--sizes", _SIZE]),
)
_STEPS = {
    "ddp": ["--bucket", _SIZE],
    "ddp, 4 micro-batches": ["--bucket", _SIZE, "--micro-batches", "4"],
    "ddp, fp16": ["--bucket", _SIZE, "--hook", "fp16"],
    "tensor": ["--strategy", "tensor"],
    "fsdp2": ["--strategy", "fsdp2"],
    "1f1b, 4 micro-batches": ["--strategy", "pipeline", "--micro-batches", "4"],
    "1f1b, 8 micro-batches": ["--strategy", "pipeline", "--micro-batches", "8"],
    "gpipe, 4 micro-batches": ["--strategy", "pipeline", "--pipeline", "gpipe", "--micro-batches", "4"],
}


def main() -> None:
    """Print one line for each rate and step, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="400mbit,100mbit", metavar="LIST")
    add_link_argument(parser)
    parser.add_argument("--only", default="", metavar="LIST", help="steps whose names contain one of these words")
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER", help="keep the results files here, and use those there"
    )
    args = parser.parse_args()
    chosen = {name: options for name, options in _STEPS.items() if any(word in name for word in args.only.split(","))}
    print(
        "| rate | step | measured ms | predicted ms | error | exposed ms | predicted ms | error with own work |\n|"
        + "---|" * 8,
        flush=True,
    )
    with TemporaryDirectory() as scratch:
        for rate in args.rates.split(","):
            folder = (args.records or Path(scratch)) / rate
            folder.mkdir(parents=True, exist_ok=True)
            for pattern, options in _EXCHANGES:
                run_on_two_hosts(
                    rate, args.link, pattern, [*options, "--max-seconds", "1"], folder / f"{pattern}.jsonl"
                )
            links = collect.document(folder)
            for name, options in chosen.items():
                file = folder / "steps" / f"{name}.jsonl"
                file.parent.mkdir(exist_ok=True)
                run_on_two_hosts(rate, args.link, "step", ["--timed", _LAYERS, *options, "--max-seconds", "2"], file)
                (found,) = validated(collect.document(file), links)
                print(_line(rate, name, found), flush=True)


def _line(rate: str, name: str, found: ValidatedStep) -> str:
    assert found.predicted is not None and found.error is not None, found.reason
    measured, predicted = found.measured, found.predicted
    step = ms(measured.step_s), ms(predicted.step_s), f"{found.error:+.1%}"
    exposed = ms(measured.exposed_by_removal.seconds), ms(predicted.exposed_s)
    with_own_work = (predicted.exposed_s - measured.exposed_by_removal.seconds) / measured.step_s
    return "| " + " | ".join((rate, name, *step, *exposed, f"{with_own_work:+.1%}")) + " |"


if __name__ == "__main__":
    main()
