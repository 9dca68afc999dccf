"""How often does `compare` call equal runs different, and how often does it find a change? Simulated calls.

    python -m benchmarks.compare_power --comparisons 400

Both runs have 14 rows. The log median of a row of a launch is the sum of an error of the launch, an error of the row
and, if the machine drifts, a random walk from launch to launch that both sides share. The same launches are compared
three times: as they are (a false alarm is any row, or all rows together, called slower or faster), with all rows of NEW
10 % slower, and with one row of NEW 20 % slower. `auto` compares after each number of launches in `alternate.LOOKS`, as
`compare --run` does. To save time, a comparison draws 399 ways to assign the launches, and rows are judged only where
the joint test finds a change, because no verdict of slower or faster exists otherwise. `--check` passes the same
launches as two whole runs to `compare.compare`, which draws 4,999 ways, and counts the different answers.

The launches depend only on the setting, the number and the seed, so two versions of the project can be compared.
`--apart` compares launches in turn as if they were not, which is all that versions before decision 26 can do.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.controller import alternate
from bench.core.record import Header, Record, Samples
from bench.results import compare, inference, joint_test, summary
from bench.results.document import DOCUMENT_SCHEMA, Document
from bench.results.inference import ComparisonVerdict

NUM_ROWS = 14
OF_ALL, OF_ROW = 0.1, 0.2
DELTA = 0.05
LEAST_PAIRS = 8
_MOST_WAYS = 399
_CHANGED = (ComparisonVerdict.SLOWER, ComparisonVerdict.FASTER)
_TIMES_FAR = 5
_SECONDS = 1e-5

Values = npt.NDArray[np.float64]
Case = tuple[Values, Values, int | None]  # BASE, NEW, and the row that changed
Judge = Callable[[Values, Values, float, bool], list[str]]


@dataclass(frozen=True, slots=True)
class Setting:
    """Errors of log medians: standard deviations, the share that is five times as large, and the drift per launch."""

    name: str
    of_launch: float
    of_row: float
    far: float = 0.0
    drift: float = 0.0
    in_turn: bool = False

    def sides(self, number: int, rng: np.random.Generator) -> tuple[Values, Values]:
        """Return the log medians of both sides, each of shape (number, NUM_ROWS), without a change."""

        def errors(sigma: float, *shape: int) -> Values:
            drawn: Values = rng.normal(0, sigma, shape) * np.where(rng.random(shape) < self.far, _TIMES_FAR, 1)
            return drawn

        drifted = np.cumsum(rng.normal(0, self.drift, number))[:, None]
        base, new = (
            errors(self.of_launch, number, 1) + errors(self.of_row, number, NUM_ROWS) + drifted for _ in range(2)
        )
        return base, new


# Without pairs, a drift is a real difference of the two runs, so it is simulated in turn only.
SETTINGS = (
    Setting("6 and 5 %", 0.06, 0.05),
    Setting("5 and 5 %, one in ten far off", 0.05, 0.05, 0.1),
    Setting("6 and 5 %, in turn", 0.06, 0.05, in_turn=True),
    Setting("5 and 5 %, one in ten far off, in turn", 0.05, 0.05, 0.1, in_turn=True),
    Setting("6 and 5 %, drift of 5 %, in turn", 0.06, 0.05, 0.0, 0.05, in_turn=True),
    Setting("4 and 4 %, one in ten far off, drift of 5 %, in turn", 0.04, 0.04, 0.1, 0.05, in_turn=True),
)


def main() -> None:
    """Print the shares of false alarms and of changes found, for each setting and number of launches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=400, metavar="N", help="for each setting and number (400)")
    parser.add_argument("--launches", nargs="+", default=["5", "10", "20", "auto"], metavar="N", help="5 10 20 auto")
    parser.add_argument("--settings", nargs="+", type=int, default=range(len(SETTINGS)), metavar="K", help="all")
    parser.add_argument("--apart", action="store_true", help="do not tell compare that launches were in turn")
    parser.add_argument("--equal", action="store_true", help="count false alarms only")
    parser.add_argument("--check", action="store_true", help="compare whole runs, too (slow)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"shares of {args.comparisons} calls: false alarms, 10 % of all rows, 20 % of one row")
    for k in args.settings:
        for number in args.launches:
            setting = SETTINGS[k]
            in_turn = setting.in_turn and not args.apart
            looks = alternate.LOOKS if number == "auto" else (int(number),)
            fdr = alternate.FDR_OF_LOOK if number == "auto" else compare.FDR
            num_cases = 1 if args.equal else 3
            found, differ = np.zeros(num_cases), np.zeros(num_cases, dtype=int)
            for draw in range(args.comparisons):
                rng = np.random.default_rng((args.seed, k, looks[-1], number == "auto", draw))
                sides = setting.sides(looks[-1], rng)
                cases = changed(*sides, int(rng.integers(NUM_ROWS)))[:num_cases]
                answers = [is_found(*case, looks, fdr, in_turn, judged) for case in cases]
                found += answers
                if args.check:
                    differ += np.not_equal(answers, [is_found(*case, looks, fdr, in_turn, whole) for case in cases])
            words = " ".join(f"{100 * share:6.1f}" for share in found / args.comparisons)
            print(f"{setting.name:54} {number:>4} {words}{f'   other: {differ}' if args.check else ''}", flush=True)


def changed(base: Values, new: Values, row: int) -> tuple[Case, ...]:
    """Return the three cases of the same launches: equal sides, all rows slower, and `row` slower."""
    slower = new.copy()
    slower[:, row] += math.log1p(OF_ROW)
    return (base, new, None), (base, new + math.log1p(OF_ALL), NUM_ROWS), (base, slower, row)


def is_found(
    base: Values, new: Values, place: int | None, looks: Sequence[int], fdr: float, in_turn: bool, judge: Judge
) -> bool:
    """Return whether the call's last comparison finds the change at `place`; None is any change.

    Places are rows; NUM_ROWS is all rows together.
    """
    for look in looks:
        verdicts = judge(base[:look], new[:look], fdr, in_turn)
        if any(verdict in _CHANGED for verdict in verdicts):
            break
        if all(verdict == ComparisonVerdict.EQUIVALENT for verdict in verdicts):
            break
    if place is None:
        return any(verdict in _CHANGED for verdict in verdicts)
    return verdicts[place] == ComparisonVerdict.SLOWER


def judged(base: Values, new: Values, fdr: float, in_turn: bool) -> list[str]:
    """Return the verdicts of the rows, then that of all rows together, from the joint test.

    Without a change, rows are judged only if all rows together are equivalent: else this look does not end the call.
    """
    turn: dict[str, Any] = {"paired": True} if in_turn and len(base) >= LEAST_PAIRS else {}
    test = joint_test.joint_test(base, new, fdr, _MOST_WAYS, **turn)
    together = inference.verdict(test.ratio, (test.ratio_low, test.ratio_high), test.p, DELTA, fdr)
    if test.p > fdr and together != ComparisonVerdict.EQUIVALENT:
        return [ComparisonVerdict.INCONCLUSIVE] * (NUM_ROWS + 1)
    verdicts: list[str] = []
    for row, of_row in enumerate(test.rows):
        ratio, *interval = inference.time_ratio(np.exp(base[:, row]).tolist(), np.exp(new[:, row]).tolist())
        p = max(test.p, of_row.p_corrected)
        verdicts.append(inference.verdict(ratio, (interval[0], interval[1]), p, DELTA, fdr))
    return [*verdicts, together]


def whole(base: Values, new: Values, fdr: float, in_turn: bool) -> list[str]:
    """As `judged`, by `compare.compare` from two whole runs."""
    turn: dict[str, Any] = {"in_turn": True} if in_turn else {}
    found = compare.compare(run(base), run(new), delta=DELTA, fdr=fdr, **turn)
    return [*(row.verdict for row in found.rows), str(found.verdict_together)]


def run(logs: Values) -> Document:
    """Return a run with these log medians: one job for each launch, one size for each row."""
    headers, rows = {}, []
    for launch, medians in enumerate(_SECONDS * np.exp(logs), start=1):
        job = f"allreduce-{launch}"
        headers[job] = replace(_HEADER, job=job, launch=launch)
        for number, seconds in enumerate(medians):
            rows.append(replace(_ROW, job=job, payload_bytes=64 << number, median_s=float(seconds)))
    return Document(DOCUMENT_SCHEMA, headers, tuple(rows))


_HEADER = Header(
    job="allreduce-1", case=("allreduce", "--transport", "mpi"), pattern="allreduce", transport="mpi", dtype="float32",
    reduce_op="sum", root=None, direction=None, topology="world", num_ranks=2, num_nodes=1, ranks_per_node=2,
    clock="host", modelled=False, started="2026-01-02T03:04:05+00:00",
    ranks=({"host": "host0", "local_rank": 0}, {"host": "host0", "local_rank": 1}),
)  # fmt: skip
_SAMPLES = tuple(_SECONDS * (1 + 0.001 * number) for number in range(30))
_ROW = summary.summarise(
    "allreduce-1",
    _HEADER,
    Record(
        mode="isolated", requested_bytes=(64,), payload_bytes=64, num_ranks=2, num_nodes=1, bus_factor=1.0,
        rank_bytes=64.0, node_bytes=0.0, min_steps=1, cache="hot", verified=True, num_wrong=0,
        stop_reason="converged", samples=Samples(_SAMPLES, by_rank=(_SAMPLES, _SAMPLES)),
    ),
)  # fmt: skip


if __name__ == "__main__":
    main()
