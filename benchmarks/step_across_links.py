"""Is a step predicted from allreduces on another link? Two hosts, layers that sleep: a line for each pair of links.

    python -m benchmarks.step_across_links [--rates 1gbit,400mbit,200mbit,100mbit] [--link bridge]
        [--records FOLDER]

Each rate has a step of 8 buckets of 1 MiB (benchmarks/step_truth.py) and allreduces of 1 MiB back to back. `own`
predicts the step from the allreduces on its own link. For other links the time of a bucket is scaled by the ratio of
the rates, as the time of a large message on a link that is nothing but slower. Needs namespaces.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.core.training_step import timed_layers
from bench.predict.validate_step import predicted, validated
from benchmarks.step_truth import BUCKET_BYTES, LAYERS, add_link_argument, allreduces, bits_per_s, measured


def main() -> None:
    """Print one line for each pair of rates, as Markdown, and the median error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit,400mbit,200mbit,100mbit", metavar="LIST")
    add_link_argument(parser)
    words = "keep the results files here, and use those there: step_truth has the same names"
    parser.add_argument("--records", type=Path, metavar="FOLDER", help=words)
    args = parser.parse_args()
    rates = args.rates.split(",")
    timed = timed_layers(LAYERS)
    assert timed is not None
    steps_s, bucket_s = {}, {}
    print("| step on | from | measured ms | predicted ms | error |\n|" + "---|" * 5, flush=True)
    errors = []
    with TemporaryDirectory() as scratch:
        folder = args.records or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for rate in rates:
            step, links = folder / f"{rate}-0.jsonl", folder / f"{rate}-allreduce.jsonl"
            steps = measured(rate, args.link, LAYERS, "", step)
            (found,) = validated(steps, allreduces(rate, args.link, links))
            assert found.predicted is not None
            steps_s[rate] = found.measured.step_s
            bucket_s[rate] = found.predicted.bucket_s[BUCKET_BYTES]
            print(_line(rate, "own", steps_s[rate], found.predicted.step_s), flush=True)
    for rate in rates:
        for other in rates:
            if other != rate:
                seconds = bucket_s[other] * bits_per_s(other) / bits_per_s(rate)
                expected = predicted(timed, {}, 2, BUCKET_BYTES, {BUCKET_BYTES: seconds}).step_s
                errors.append(abs(expected / steps_s[rate] - 1))
                print(_line(rate, other, steps_s[rate], expected), flush=True)
    if errors:
        print(f"median error of other links {median(errors):.1%}, largest {max(errors):.1%}")


def _line(rate: str, other: str, step_s: float, expected_s: float) -> str:
    return f"| {rate} | {other} | {step_s * 1e3:.1f} | {expected_s * 1e3:.1f} | {expected_s / step_s - 1:+.1%} |"


if __name__ == "__main__":
    main()
