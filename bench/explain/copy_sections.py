"""Write the lines of a page about copies: what was measured, what is possible, and what others measured."""

from __future__ import annotations

from collections.abc import Iterator

from bench.core.codes import Coded
from bench.core.links import Bound, Limit
from bench.explain.copy_assessment import ONE_WAY, direction_name
from bench.explain.copy_evidence import CopyEvidence, CopyTest, fitting_links, fitting_nvlinks, rate_range, wiring
from bench.explain.messages import COPY_DIRECTIONS, BoundCode, OthersCode, ResultCode
from bench.explain.sections import bound_line, status_lines, tool_name
from bench.hardware.catalogue import gpu
from bench.hardware.reference import CopyReference

_MOST_OTHERS = 5
_NEWEST_PCIE = 6
_TOGETHER = (("h2d", "d2h"), ("d2d",), ("through_host",))  # directions with the same bounds are shown together


def title(evidence: CopyEvidence) -> str:
    """Return the title of the page: `copies, by nvbandwidth v0.5`."""
    return f"copies, by {tool_name(evidence.run)}"


def got(evidence: CopyEvidence) -> Iterator[Coded]:
    """Yield a line for each direction, then the latencies. If the copy engine was measured, its rates are shown."""
    yield from status_lines(evidence.run)
    for direction, name in COPY_DIRECTIONS.items():
        tests = [test for test in evidence.tests if test.direction == direction]
        by_engine = any(test.matrix.engine != "sm" for test in tests)
        for test in tests:
            if "all" not in test.matrix.name and not (by_engine and test.matrix.engine == "sm"):
                yield Coded.of(ResultCode.COPIES, direction=name, test=test.matrix.name, **_range(test))
    together = evidence.named("host_to_all_memcpy_ce")
    if together is not None:
        yield Coded.of(ResultCode.COPIES_TO_ALL, **_range(together))
    for matrix in () if evidence.tests else evidence.run.matrices:
        rates = [cell.value for cell in matrix.cells if cell.value is not None]
        if matrix.unit == "bytes_per_s" and matrix.direction == "local" and rates:
            yield Coded.of(ResultCode.LOCAL_COPIES, test=matrix.name, range=rate_range(min(rates), max(rates)))
    for matrix in evidence.run.matrices:
        seconds = [cell.value for cell in matrix.cells if cell.value is not None]
        if matrix.unit == "s" and matrix.direction in ("load", "d2d") and seconds:
            least, most = min(seconds) * 1e9, max(seconds) * 1e9
            yield Coded.of(ResultCode.LATENCY, test=matrix.name, least_ns=least, most_ns=most)
    yield Coded.of(ResultCode.MACHINE, machine=evidence.machine.how)


def possible(evidence: CopyEvidence) -> Iterator[Coded]:
    """Yield the bounds on the rate of copies. Each line also says which share of the bound each direction reached."""
    empty = True
    for directions in _TOGETHER:
        tests = [test for direction in directions if (test := evidence.test(direction)) is not None]
        if not tests:
            continue
        empty = False
        if not tests[0].bounds:
            yield _no_bound(evidence, tests[0])
        for bound in reversed(tests[0].bounds):
            named = bound.code == Limit.PCIE_PORT and evidence.machine.instance
            reached = ", ".join(f"{direction_name(test)} reached {_reached(test, bound)}" for test in tests)
            yield bound_line(bound, reached=reached, wiring=wiring(evidence.machine) if named else None)
    if empty:
        yield Coded.of(BoundCode.NO_COPY_RATE)


def others(evidence: CopyEvidence) -> Iterator[Coded]:
    """Yield the rates that others measured on this machine, or with this GPU."""
    for reference in evidence.references[:_MOST_OTHERS]:
        yield _reference(reference)
    if not evidence.references:
        yield Coded.of(OthersCode.NO_COPIES_KNOWN)


def _range(test: CopyTest) -> dict[str, object]:
    """Return the facts about a test's rates, and the number of its pairs or GPUs."""
    number, gpus = len(test.rates), len(test.gpus)
    if test.direction in ("d2d", "through_host"):
        count = f"{number} pairs"
    else:
        count = f"{gpus} GPU{'' if gpus == 1 else 's'}"
        if number > gpus:
            count = f"{number} values of {count}"
    slowest = test.slowest if test.fastest >= 1.01 * test.slowest else test.fastest
    return {
        "range": rate_range(slowest, test.fastest),
        "count": count,
        "slowest_rate": test.slowest,
        "fastest_rate": test.fastest,
    }


def _no_bound(evidence: CopyEvidence, test: CopyTest) -> Coded:
    """Return a line that says why no bound is known. The line also names the links that fit the measured rate."""
    own = gpu(evidence.machine.gpu) if evidence.machine.gpu else None
    name = direction_name(test)
    if own and own.c2c:
        return Coded.of(BoundCode.NO_COPY_BOUND, direction=name, shared_memory=True)
    nvlinks = fitting_nvlinks(evidence, test.fastest) if test.direction == "d2d" else None
    if nvlinks:
        fitting = f"{nvlinks} between two GPUs (NVLink 2 to 4)"
    else:
        newest = own.pcie[0] if own and own.pcie else _NEWEST_PCIE
        fitting = fitting_links(test.fastest, newest, ports=test.direction != "through_host")
    return Coded.of(BoundCode.NO_COPY_BOUND, direction=name, rate=test.fastest, fitting=fitting)


def _reached(test: CopyTest, bound: Bound) -> str:
    least, most = (f"{rate / bound.bytes_per_s:.0%}" for rate in (test.slowest, test.fastest))
    return most if least == most else f"{least} to {most}"


def _reference(reference: CopyReference) -> Coded:
    ranges = []
    for direction, name in ONE_WAY.items():
        if name in reference.rates:
            ranges.append(f"{COPY_DIRECTIONS[direction]} {rate_range(*reference.rates[name])}")
    generation, lanes = reference.pcie or (None, None)
    return Coded.of(
        OthersCode.COPIES,
        machine=reference.where,
        num_gpus=reference.gpus,
        gpu=reference.gpu,
        pcie_generation=generation,
        pcie_lanes=lanes,
        ranges=ranges,
        refused="peer" not in reference.rates and reference.gpus > 1,
        source=reference.source,
        version=reference.version,
    )
