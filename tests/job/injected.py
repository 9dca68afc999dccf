"""Training jobs with a known cause of lost time, on hosts with shaped links, and what `job explain` says of them.

    python -m tests.job.injected make FOLDER [--first 12]     # resumes: cases that are there are left as they are
    python -m tests.job.injected compare FOLDER

A case is a folder with the trace and the clock readings of each rank, and `case.json`: what was injected, what should
be named, and the parts of the step as the program's own clock readings give them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.job import timed_job
from tests.testbed.hosts import Testbed

_COUNTS = {
    "clean": 15,
    "clean_tp": 5,
    "data_all": 5,
    "data_one": 4,
    "forward": 5,
    "backward": 6,
    "host": 5,
    "optimizer": 3,
    "slow_link": 6,
    "all": 6,
}
_MOST_TRIES = 8
# Not among the 60 of the acceptance: other causes that a trace without a device can show.
_EXTRA_COUNTS = {"random": 2, "periodic": 2, "one_bucket": 2, "late_tp": 2}


@dataclass(frozen=True)
class Expected:
    """One cause that should be named: by any of these codes, with this rank and segment where they are given."""

    codes: tuple[str, ...]
    rank: int | None = None
    segment: str | None = None


@dataclass(frozen=True)
class Case:
    """One job. rate: of each link, None for unshaped ones."""

    name: str
    kind: str
    seed: int
    num_ranks: int
    rate: str | None
    options: timed_job.Options
    expected: tuple[Expected, ...] = field(default=())


def cases() -> list[Case]:
    """Return the 60 cases, kinds in turn, so that the first twelve hold all of them; then the extra ones."""
    return [*_in_turn(_COUNTS, 1000), *_in_turn(_EXTRA_COUNTS, 2000)]


def _in_turn(counts: Mapping[str, int], first_seed: int) -> list[Case]:
    found: list[Case] = []
    for number in range(max(counts.values())):
        found += [_case(kind, number, first_seed + len(found) + k) for k, kind in enumerate(_kinds(counts, number))]
    return found


def _kinds(counts: Mapping[str, int], number: int) -> list[str]:
    return [kind for kind, count in counts.items() if number < count]


def _case(kind: str, number: int, seed: int) -> Case:  # noqa: C901  one branch per kind
    """Return a case with random sizes, times and ranks."""
    draw = random.Random(seed)
    num_ranks = draw.choice((2, 2, 3))
    if kind == "clean_tp":
        num_ranks = 2  # three ranks on two cores delay each other's blocking exchanges
    rank = draw.randrange(num_ranks)
    shape: dict[str, Any] = {
        "num_layers": draw.randint(5, 8),
        "forward_s": draw.uniform(0.003, 0.006),
        "backward_s": draw.uniform(0.008, 0.014),
        "layer_bytes": 1 << 16,
        "bucket_bytes": 1 << 16,
        "seed": seed,
    }
    late_s = draw.uniform(0.03, 0.08)
    one, everyone = [late_s if r == rank else 0.0 for r in range(num_ranks)], [late_s] * num_ranks
    network = Expected(("slow_link", "exchange_cannot_hide"))
    rate: str | None = "1gbit"
    expected: tuple[Expected, ...] = ()
    match kind:
        case "clean_tp" | "late_tp":
            rate = None
            shape |= {"strategy": "tp", "message_bytes": 1 << 12, "num_layers": draw.randint(3, 4)}
            shape |= {"forward_s": draw.uniform(0.01, 0.015), "backward_s": draw.uniform(0.02, 0.03)}
            if kind == "late_tp":
                shape["inject"] = {"backward": one}
                expected = (Expected(("late_rank",), rank, "backward"),)
        case "data_all":
            shape["inject"] = {"data": everyone}
            expected = (Expected(("late_input",)),)
        case "data_one":
            shape["inject"] = {"data": one}
            expected = (Expected(("late_rank", "late_input"), rank, "data"),)
        case "forward" | "backward" | "host" | "optimizer":
            shape["inject"] = {kind: one}
            expected = (Expected(("late_rank",), rank, kind),)
        case "slow_link":
            rate = draw.choice(("50mbit", "100mbit", "200mbit"))
            shape |= dict.fromkeys(("layer_bytes", "bucket_bytes"), 1 << (19 if rate == "200mbit" else 18))
            expected = (network,)
        case "all":
            rate = "100mbit"
            segment = draw.choice(("forward", "backward", "host"))
            shape |= dict.fromkeys(("layer_bytes", "bucket_bytes"), 1 << 18)
            shape["inject"] = {"data": [draw.uniform(0.02, 0.05)] * num_ranks, segment: one}
            expected = (Expected(("late_input",)), Expected(("late_rank",), rank, segment), network)
        case "random":
            shape |= {"inject": {"backward": one}, "rotate": True}
            expected = (Expected(("random_lateness",)),)
        case "periodic":
            shape |= {"inject": {"host": [2 * late_s] * num_ranks}, "every": 4}
            expected = (Expected(("periodic",)),)
        case "one_bucket":
            rate = "200mbit"
            shape |= {"layer_bytes": 1 << 17, "bucket_bytes": 1 << 24}
            expected = (Expected(("exchange_not_hidden",)),)
    return Case(f"{kind}_{number:02}", kind, seed, num_ranks, rate, timed_job.Options(**shape), expected)


def make(case: Case, folder: Path) -> None:
    """Run a case on one host per rank and store what it wrote, `case.json` last.

    A clean case that other work on this machine disturbed gets no `case.json`.
    """
    import torch._dynamo  # once, for all ranks: DistributedDataParallel needs it
    import torch.distributed  # noqa: F401

    folder.mkdir(parents=True, exist_ok=True)
    with Testbed(case.num_ranks, rate=case.rate) as bed:
        out = bed.shared / "out"
        out.mkdir()

        def work(rank: int) -> None:
            with contextlib.suppress(OSError):  # root only: ranks that wake up run before other work of this machine
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(case.num_ranks),
                LOCAL_RANK="0",
                MASTER_ADDR=bed.address("h0"),
                MASTER_PORT="29500",
                GLOO_SOCKET_IFNAME="eth0",
                KINETO_LOG_LEVEL="5",
            )
            timed_job.train(case.options, out)

        bed.fork(case.num_ranks, 1, work, timeout_s=120)
        for path in out.iterdir():
            shutil.copy(path, folder / path.name)
    measured = truth(folder)
    if not case.expected and _is_disturbed(measured):
        return
    document = {**asdict(case), "truth": measured}
    (folder / "case.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def truth(folder: Path) -> dict[str, Any]:
    """Return the parts of the step, as medians over steps, from the clock readings of all ranks.

    The imbalance of a rank is the time from its arrival to the last rank's; the exposed exchange is from there to the
    last end. With blocking exchanges both are sums over the exchanges of a step.
    """
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("stamps*.json"))]
    is_blocking = ranks[0]["options"]["strategy"] == "tp"
    steps = [_truth_of_step(step, is_blocking) for step in zip(*(rank["steps"] for rank in ranks), strict=True)]
    medians: dict[str, Any] = {"exposed_exchange_s": statistics.median(step["exposed_exchange_s"] for step in steps)}
    for name in ("imbalance_s", "data_wait_s", "step_s"):
        medians[name] = [statistics.median(step[name][rank] for step in steps) for rank in range(len(ranks))]
    return medians


def _truth_of_step(step: Sequence[Mapping[str, Any]], is_blocking: bool) -> dict[str, Any]:
    """Return the parts of one step from the clock readings of each rank in it."""
    exposed_s, imbalance_s = 0.0, [0.0] * len(step)
    by_exchange = list(zip(*(rank["exchanges"] for rank in step), strict=True))
    ends = [max(one["done"] for one in exchange) for exchange in by_exchange]
    phases = list(zip(by_exchange, ends, strict=True)) if is_blocking else [(by_exchange[-1], max(ends))]
    for exchange, end in phases:
        last_arrival = max(one["ready"] for one in exchange)
        exposed_s += end - last_arrival
        imbalance_s = [so_far + last_arrival - one["ready"] for so_far, one in zip(imbalance_s, exchange, strict=True)]
    return {
        "exposed_exchange_s": exposed_s,
        "imbalance_s": imbalance_s,
        "data_wait_s": [rank["data"] - rank["start"] for rank in step],
        "step_s": [rank["end"] - rank["start"] for rank in step],
    }


def _is_disturbed(measured: Mapping[str, Any]) -> bool:
    """Return whether the clock readings of a clean case show lost time, which then comes from this machine."""
    lost_s = max(measured["exposed_exchange_s"], *measured["imbalance_s"], *measured["data_wait_s"])
    spread_s = max(measured["step_s"]) - min(measured["step_s"])
    return bool(max(lost_s, spread_s) > 0.035 * min(measured["step_s"]))


def compare(folder: Path) -> int:
    """Print for each case whether its causes, and nothing else, were named. Returns the number of wrong cases."""
    from bench.job.explain import explain
    from bench.logs import step_traces

    num_wrong = 0
    for path in sorted(folder.glob("*/case.json")):
        case = json.loads(path.read_text())
        traces, remarks = step_traces.read(sorted(path.parent.glob("rank*.json.gz")))
        faults = [remark.code for remark in remarks] + judge(case, explain(traces))
        num_wrong += bool(faults)
        print(f"{case['name']:16} {'; '.join(map(str, faults)) or 'good'}")
    return num_wrong


def judge(case: Mapping[str, Any], explained: Any) -> list[str]:
    """Return what an explanation says wrongly of a case: causes, then times that differ by more than 5 % and 1 ms."""
    faults = []
    named = {cause.code: cause for cause in explained.causes if cause.code != "unknown"}
    if not case["expected"] and named:
        faults += [f"names {code} ({cause.gain_s * 1e3:.1f} ms)" for code, cause in named.items()]
    for expected in case["expected"]:
        causes = [named[code] for code in expected["codes"] if code in named]
        if not causes:
            faults.append(f"does not name {' or '.join(expected['codes'])} but {', '.join(named) or 'nothing'}")
        elif expected["rank"] is not None and not any(expected["rank"] in cause.ranks for cause in causes):
            faults.append(f"accuses {[cause.ranks for cause in causes]}, not rank {expected['rank']}")
        elif expected["segment"] is not None and expected["segment"] not in _segments(explained, expected["rank"]):
            faults.append(f"segment {_segments(explained, expected['rank'])}, not {expected['segment']}")
    return faults + _wrong_times(case, explained)


def _segments(explained: Any, rank: int) -> list[str]:
    """Return the segment in which a rank is late by most."""
    late_s: dict[str, float] = {}
    for late in explained.late:
        if late.rank == rank:
            late_s[str(late.segment)] = late_s.get(str(late.segment), 0.0) + late.late_s
    return [max(late_s, key=late_s.__getitem__)] if late_s else []


def _wrong_times(case: Mapping[str, Any], explained: Any) -> list[str]:
    """Compare medians over steps: data wait and imbalance of each rank, the exposed exchange of the last rank."""
    faults, got = [], {}
    for rank in range(case["num_ranks"]):
        for part in ("data_wait", "imbalance", "exposed_exchange"):
            values = [float(step.parts.get(part, 0.0)) for step in explained.steps if step.rank == rank]
            got[part, rank] = statistics.median(values) if values else float("nan")
    wanted = {(part, r): case["truth"][f"{part}_s"][r] for part, r in got if part != "exposed_exchange"}
    last = min(range(case["num_ranks"]), key=lambda r: case["truth"]["imbalance_s"][r])
    wanted["exposed_exchange", last] = case["truth"]["exposed_exchange_s"]
    for (part, rank), value in wanted.items():
        off = abs(got[part, rank] - value)
        if not off <= max(0.05 * value, 0.001):
            faults.append(f"{part} of rank {rank} {got[part, rank] * 1e3:.2f} ms, not {value * 1e3:.2f}")
    return faults


def main(argv: Sequence[str]) -> int:
    """Make cases or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("make", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=None, metavar="N", help="make the first N cases only")
    args = parser.parse_args(argv)
    if args.what == "compare":
        return 1 if compare(args.folder) else 0
    for case in cases()[: args.first]:
        folder = args.folder / case.name
        tries = 0
        while not (folder / "case.json").exists() and tries < _MOST_TRIES:
            make(case, folder)
            tries += 1
        print(f"{case.name}: {tries} tries", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
