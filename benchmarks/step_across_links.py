"""Is a step predicted from the same step on another link? Two hosts, layers that sleep: a line for each pair of links.

    python -m benchmarks.step_across_links [--rates 1gbit,400mbit,200mbit,100mbit] [--link bridge]
        [--records FOLDER]

Each rate has a step of 8 buckets of 1 MiB (benchmarks/step_truth.py) and allreduces of 1 MiB, alone and back to back. A
prediction takes from the step on the other link when each bucket is ready and how long a rank works after the last
exchange. From the allreduces on its own link, it takes how long the exchange of a bucket lasts. Needs namespaces.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.core.record import StepSamples
from bench.results.document import Summary
from bench.store import jsonl
from benchmarks.step_truth import LAYERS, add_link_argument, allreduces, measured


def main() -> None:
    """Print one line for each pair of rates, as Markdown, and the median error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit,400mbit,200mbit,100mbit", metavar="LIST")
    add_link_argument(parser)
    words = "keep the results files here, and use those there: step_truth has the same names"
    parser.add_argument("--records", type=Path, metavar="FOLDER", help=words)
    args = parser.parse_args()
    rates = args.rates.split(",")
    steps, alone_s, queued_s = {}, {}, {}
    with TemporaryDirectory() as scratch:
        folder = args.records or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for rate in rates:
            steps[rate] = _step(rate, args.link, folder / f"{rate}-0.jsonl")
            rows = allreduces(rate, args.link, folder / f"{rate}-allreduce.jsonl").summaries
            alone_s[rate], queued_s[rate] = (_median(rows, mode) for mode in ("isolated", "pipelined"))
    print("| step on | from the step on | measured ms | predicted ms | error |\n|" + "---|" * 5)
    errors = []
    for rate in rates:
        for other in rates:
            step_s = steps[rate][0]
            expected_s = _predicted(*steps[other], alone_s[rate], queued_s[rate])
            errors.append(abs(expected_s / step_s - 1))
            cells = f"{step_s * 1e3:.1f} | {expected_s * 1e3:.1f} | {expected_s / step_s - 1:+.1%}"
            print(f"| {rate} | {other} | {cells} |")
    print(f"median error {median(errors):.1%}, largest {max(errors):.1%}")


def _step(rate: str, link: str, file: Path) -> tuple[float, StepSamples]:
    """Return the median step with clocks, of the slowest rank, and its samples."""
    measured(rate, link, LAYERS, [], file)
    (attempt,) = jsonl.read(file).attempts
    (record,) = (one for one in attempt.records if one.step is not None)
    assert record.step is not None
    return median(max(of_ranks) for of_ranks in zip(*record.step.full_s, strict=True)), record.step


def _median(rows: Sequence[Summary], mode: str) -> float:
    (found,) = (row.median_s for row in rows if row.mode == mode)
    assert found is not None
    return found


def _predicted(step_s: float, step: StepSamples, alone_s: float, queued_s: float) -> float:
    """Return a step whose buckets are ready as in `step`, and exchanged one by one.

    `alone_s`, `queued_s`: the seconds of a bucket alone, and behind another one.
    """
    done_s = 0.0
    for ready_s in step.bucket_ready_s:
        done_s = done_s + queued_s if done_s > ready_s else ready_s + alone_s
    return done_s + step_s - step.bucket_done_s[-1]


if __name__ == "__main__":
    main()
