"""Format figures and facts of a run as text for every text format: units, digits, marks and bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from string import ascii_lowercase

from bench.core import hostlist
from bench.core.case_argv import stored_value
from bench.core.record import Header
from bench.core.units import format_size
from bench.results.document import Summary
from bench.results.messages import FLAGS, MARKS
from bench.results.table import NOTHING as NOTHING

_MODES = {
    "isolated": "isolated: one operation at a time, each after a synchronisation",
    "pipelined": "pipelined: operations back to back, one completion",
}
STATISTICS = (
    "times: a sample is the time of the slowest rank; the columns are the median, its 95 % interval within this "
    "launch, and the nearest-rank p95"
)
IMPORTED = "imported: figures as the tool printed them, a mean of one launch; no samples, no interval, no verdict"
IDEAL = "ideal: the links alone, at full rate and without software"
EXPECTED = "expected: what `linkbench predict` expects of a real machine, in brackets its 90 % interval"
WIRE = "wire: bytes per second and direction through the NICs of one node, if no switch in the network reduces data"
_LIKE = {
    "nccl-tests": (
        "as nccl-tests: the time is the mean over all calls and over ranks (-a 1); all calls use one hot buffer"
    ),
    "osu": (
        "as OSU: each rank has a mean time; the columns are the average, minimum and maximum of these means; "
        "all calls use one hot buffer"
    ),
}


def like(header: Header) -> str:
    """Return the tool whose statistics a run shows (`--like`).

    The result is "" if the run shows linkbench's own statistics.
    """
    return str(stored_value(header.case, "like"))


def reading(modes: Sequence[str], tool: str, imported: bool = False, modelled: bool = False) -> list[str]:
    """Return how to read the columns, in one sentence each.

    `tool`: the tool whose statistics are shown, or "" for linkbench's statistics.
    """
    if imported:
        return [IMPORTED]
    statistics = IDEAL if modelled else STATISTICS
    return [_LIKE[tool]] if tool else [*(_MODES[mode] for mode in modes), statistics]


def significant(value: float, digits: int = 4) -> str:
    """Return a number with `digits` significant digits and without an exponent, such as 12.34, 1234567 or 0.001234."""
    if value == 0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{decimals}f}"


def microseconds(seconds: float | None) -> str:
    """Return a time in microseconds with 4 digits, or '-' if it is unknown."""
    return NOTHING if seconds is None else significant(seconds * 1e6)


def gigabytes(bytes_per_s: float | None) -> str:
    """Return a rate in GB/s (10^9 bytes per second), or '-' if it is unknown.

    The text has 4 digits, or 3 digits below 1 GB/s.
    """
    if bytes_per_s is None:
        return NOTHING
    rate = bytes_per_s / 1e9
    return "<0.001" if rate < 0.001 else significant(rate, 4 if rate >= 1 else 3)


def teraflops(flops_per_s: float | None) -> str:
    """Return a rate in TFLOP/s (10^12 operations per second) with 4 digits, or '-' if it is unknown."""
    return NOTHING if flops_per_s is None else significant(flops_per_s / 1e12)


def peak_share(row: Summary) -> str:
    """Return a row's FLOP/s in percent of the dense rate in the data sheet. Return '-' if the dense rate is unknown."""
    if row.flops_per_s is None or not row.peak_flops_per_s:
        return NOTHING
    return percent(row.flops_per_s / row.peak_flops_per_s)


def percent(fraction: float | None) -> str:
    """Return a fraction in percent with one decimal, or '-' if it is unknown."""
    return NOTHING if fraction is None else f"{100 * fraction:.1f}"


def size(summary: Summary) -> str:
    """Return the payload of a row in binary units, or '-' if the log of an imported row does not state the payload."""
    return NOTHING if summary.imported and not summary.payload_bytes else format_size(summary.payload_bytes)


def time(summary: Summary) -> str:
    """Return the median in microseconds. If another tool reports only a mean, return the mean with the mark `m`."""
    return microseconds(summary.mean_s if summary.median_s is None else summary.median_s)


def interval(low_s: float | None, high_s: float | None) -> str:
    """Return an interval in microseconds, `12.1..12.6`, or '-' if it is unknown."""
    return NOTHING if low_s is None or high_s is None else f"{microseconds(low_s)}..{microseconds(high_s)}"


def expected_time(row: Summary) -> str:
    """Return the time, in microseconds, that a real machine is expected to take, such as `8180 [7460..9050]`.

    Return '-' if it is unknown.
    """
    return _expected(row.expected_s, row.expected_low_s, row.expected_high_s, 1e6)


def expected_rate(row: Summary) -> str:
    """Return the busbw in GB/s that a real machine is expected to reach, `230 [207..252]`, or '-' if it is unknown."""
    low, high = row.expected_busbw_low_bytes_per_s, row.expected_busbw_high_bytes_per_s
    return _expected(row.expected_busbw_bytes_per_s, low, high, 1e-9)


def _expected(middle: float | None, low: float | None, high: float | None, factor: float) -> str:
    """Return the expected value, if known, and its interval in brackets. Each end of the interval has 3 digits."""
    if low is None or high is None:
        return NOTHING
    if high * factor < 0.01:
        return "<0.01"
    least = "<0.01" if low * factor < 0.01 else significant(low * factor, 3)
    interval_words = f"[{least}..{significant(high * factor, 3)}]"
    return interval_words if middle is None else f"{significant(middle * factor, 3)} {interval_words}"


def wrong(summaries: Iterable[Summary]) -> str:
    """Return how many elements of a line's rows were wrong.

    Return `modelled` if no data were sent. Return `N/A` if no element was checked.
    """
    rows = list(summaries)
    if any(row.verified is False for row in rows):
        return str(sum(row.num_wrong or 0 for row in rows) or "INVALID")
    if any(row.modelled for row in rows):
        return "modelled"
    return "N/A" if any(row.verified is None for row in rows) else "0"


@lru_cache(maxsize=1024)
def marks(flags: tuple[str, ...]) -> str:
    """Return the marks of these flags, the most serious first."""
    of_flags = {FLAGS[flag][0] for flag in flags if flag in FLAGS}
    return "".join(mark for mark in MARKS if mark in of_flags)


def letter(index: int) -> str:
    """Return the letter of a bound.

    `index`: the number of the bound, counted from 0. Bounds are numbered in the order in which the rows show them.
    """
    return ascii_lowercase[index % len(ascii_lowercase)]


def bound_ranges(summaries: Iterable[Summary]) -> dict[tuple[str, str], str]:
    """Return the range of each bound in GB/s as text, such as `12.50` or `11.62 to 44.27`. Keys are (name, kind)."""
    rates: dict[tuple[str, str], list[float]] = {}
    for row in summaries:
        if row.bound_name is not None and row.bound_kind is not None and row.bound_bytes_per_s is not None:
            rates.setdefault((row.bound_name, row.bound_kind), []).append(row.bound_bytes_per_s)
    found = {}
    for key, values in rates.items():
        ends = dict.fromkeys((gigabytes(min(values)), gigabytes(max(values))))
        found[key] = " to ".join(ends)
    return found


def facts(header: Header) -> list[tuple[str, str]]:
    """Return the names and values of the facts that identify a run: its case, hosts, GPUs, clock and versions."""
    world = _world(header)
    if header.topology != "world":
        world += f", topology {header.topology}"
    pairs = [
        ("pattern", f"{header.pattern} over {header.transport}, {world}"),
        ("case", " ".join(header.case)),
        ("hosts", hostlist.compress(header.nodes)),
        ("gpus", "" if header.modelled else _gpus(header)),
        ("instance", header.instance or ""),
        ("clock", ", ".join(filter(None, [header.clock, header.started and f"started {header.started}"]))),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
    ]
    return [(name, value) for name, value in pairs if value]


def _gpus(header: Header) -> str:
    """Return the GPUs of all hosts and their drivers.

    If the driver reports no GPU, return the GPU that a rank reported.
    """
    gpus: Counter[str] = Counter()
    for node in header.nodes.values():
        driver = f", driver {node['gpu_driver']}" if node.get("gpu_driver") else ""
        gpus.update(f"{gpu.get('name') or 'unknown'}{driver}" for gpu in node.get("gpus") or ())
    if not gpus:
        return str(header.facts.get("gpu") or "")
    return "; ".join(f"{number} x {name}" for name, number in gpus.items())


def job_line(job: str, header: Header) -> str:
    """Return the heading that distinguishes a job from other jobs of its run."""
    world = _world(header)
    topology = "" if header.topology == "world" else f", topology {header.topology}"
    kind = ", modelled" if header.modelled else ", imported" if header.imported else ""
    return f"{header.pattern} over {header.transport}, {world}{topology}{kind} [{job}]"


def modelled_line(header: Header) -> str | None:
    """Return a sentence that says that the run is modelled, or None if the run was measured."""
    if not header.modelled:
        return None
    where = f" of {header.instance}" if header.instance else ""
    return f"MODELLED: nothing was measured, every figure is arithmetic on the links{where}"


def modes_of(summaries: Iterable[Summary]) -> tuple[str, ...]:
    """Return the modes of the rows, `isolated` first."""
    return tuple(sorted({row.mode for row in summaries}))


def _world(header: Header) -> str:
    return f"{count(header.num_ranks, 'rank')} on {count(header.num_nodes, 'node')}"


def count(number: int | None, word: str) -> str:
    """Return a number with its noun: `1 rank`, `2 ranks`, `an unknown number of ranks`."""
    return f"{'an unknown number of' if number is None else number} {word}{'' if number == 1 else 's'}"
