"""Collect the information about matrices of copies, for the verdict and the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.links import Bound
from bench.core.units import format_rate
from bench.explain.log_hints import Hint
from bench.hardware.bounds import copy_bounds
from bench.hardware.catalogue import gpu, gpu_links, gpus, instance, nvlink_bytes_per_s, pcie_bytes_per_s
from bench.hardware.machine import LogMachine
from bench.hardware.reference import CopyReference, same_machine
from bench.logs.foreign import ForeignRun, Matrix, Remark
from bench.logs.messages import LogCode

# Maps a copy's direction (logs/foreign.py) to the path of its data, and to whether the figure is the sum of both
# directions.
_PATHS = {
    "h2d": ("host", False),
    "d2h": ("host", False),
    "d2d": ("peer", False),
    "bidirectional_sum": ("peer", True),
    "fan": ("peers", False),
    "through_host": ("through host", False),
    "through_host_sum": ("through host", True),
}
# Directions without bounds: copies in both directions at once, and copies of pageable memory, which the driver copies
# through its own buffer.
_UNBOUNDED = ("bidirectional", "h2d_pageable", "d2h_pageable")
# The share of a link's raw rate that copies of hundreds of MB reach. Packet headers and flow control need the rest.
_LEAST_OF_LINK, _MOST_OF_LINK = 0.70, 0.95
_SLOWEST_NVLINK = 30e9
# The share of the rate of one pair's NVLinks that copies reach (24.2 of 25 and 48.4 of 50 GB/s: SpareCores on p3 and
# p3dn).
_LEAST_OF_NVLINK, _MOST_OF_NVLINK = 0.94, 0.97
_ROUNDING = 0.002
_MOST_NVLINKS_OF_PAIR = 6  # above this number, any rate would fit some number of NVLinks
_USUAL_NVLINK = 2  # generations 2, 3 and 4 have the same rate per link
_OF_ANOTHER_LINK = 1.5  # copies faster than this many times the host copies use another kind of link


@dataclass(frozen=True, slots=True)
class CopyTest:
    """One direction of copies, made by one engine: the copy engine or a kernel.

    `rates`: bytes per second for each pair (source, target).
    `bounds`: the bounds on the rate of these copies.
    """

    matrix: Matrix
    direction: str
    rates: dict[tuple[str, str], float]
    bounds: tuple[Bound, ...]

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that are the source or target of a pair."""
        return frozenset(end for pair in self.rates for end in pair if end.startswith("gpu"))

    @property
    def slowest(self) -> float:
        """The rate of the slowest pair in bytes per second."""
        return min(self.rates.values())

    @property
    def fastest(self) -> float:
        """The rate of the fastest pair in bytes per second."""
        return max(self.rates.values())


@dataclass(frozen=True, slots=True)
class CopyEvidence:
    """The copies of one run, with all information that a verdict or reason may use."""

    run: ForeignRun
    machine: LogMachine
    tests: tuple[CopyTest, ...]
    references: tuple[CopyReference, ...]
    hints: tuple[Hint, ...] = ()

    def test(self, direction: str, engine: str | None = "ce") -> CopyTest | None:
        """Return the test of a direction; None if the log has no such test.

        Only tests with the engine `engine`, or with an unknown engine, are considered. Tests of writes are preferred to
        tests of reads.
        """
        found = [test for test in self.tests if test.direction == direction and test.matrix.engine in (engine, None)]
        return next((test for test in found if "write" in test.matrix.name), found[0] if found else None)

    def named(self, name: str) -> CopyTest | None:
        """Return the test whose matrix has this name; None if there is no such test."""
        return next((test for test in self.tests if test.matrix.name == name), None)

    def hint(self, kind: str) -> Hint | None:
        """Return the first hint of this kind; None if there is no such hint."""
        return next((hint for hint in self.hints if hint.kind == kind), None)

    @property
    def waived_tests(self) -> list[Remark]:
        """The remarks about tests that the tool skipped."""
        return [remark for remark in self.run.remarks if remark.code == LogCode.WAIVED]

    @property
    def peer_copies_waived(self) -> bool:
        """Whether the tool skipped the copies between GPUs."""
        if any("device_to_device" in remark.facts["test"] for remark in self.waived_tests):
            return True
        cells = [cell for matrix in self.run.matrices if matrix.direction == "d2d" for cell in matrix.cells]
        return bool(cells) and all(cell.status == "waived" for cell in cells)


def copy_evidence(run: ForeignRun, machine: LogMachine, hints: Sequence[Hint] = ()) -> CopyEvidence:
    """Collect the evidence about the copies in a run's matrices."""
    tests = []
    for matrix in run.matrices:
        rates = _rates(matrix)
        if matrix.unit != "bytes_per_s" or not rates or matrix.direction not in (*_PATHS, *_UNBOUNDED):
            continue
        bounds: tuple[Bound, ...] = ()
        direction = str(matrix.direction)
        if direction == "d2d" and any("others" in (cell.src, cell.dst) for cell in matrix.cells):
            direction = "fan"
        if machine.links is not None and direction in _PATHS:
            bounds = copy_bounds(machine.links, *_PATHS[direction])
        tests.append(CopyTest(matrix, direction, rates, bounds))
    return CopyEvidence(run, machine, tuple(tests), same_machine(machine.gpu, machine.instance), tuple(hints))


def _rates(matrix: Matrix) -> dict[tuple[str, str], float]:
    """Return the rate of each pair in bytes per second, at the size at which the pair is fastest."""
    rates: dict[tuple[str, str], float] = {}
    for cell in matrix.cells:
        if cell.value is not None:
            pair = (cell.src, cell.dst)
            rates[pair] = max(rates.get(pair, 0.0), cell.value)
    return rates


def is_above(test: CopyTest, bound: Bound) -> bool:
    """Check whether the fastest pair exceeds a hard bound by more than the rounding error."""
    return bound.kind == "hard" and test.fastest * (1 - _ROUNDING) > bound.bytes_per_s


def rate_range(slowest: float, fastest: float) -> str:
    """Format a range of rates as `13.2 GB/s to 13.5 GB/s`.

    If both rates have the same text, this text is printed once.
    """
    low, high = format_rate(slowest), format_rate(fastest)
    return high if low == high else f"{low} to {high}"


def fitting_links(rate: float, newest: int = 6, ports: bool = True) -> str:
    """Name the PCIe links on which copies reach this rate, or "no known link".

    `rate`: bytes per second.

    `newest`: the newest PCIe generation that is possible.
    `ports`: whether to name NVLink ports with this rate if no PCIe link has this rate.
    """
    fitting = []
    for generation in range(3, newest + 1):
        for lanes in (4, 8, 16):
            if _LEAST_OF_LINK <= rate / pcie_bytes_per_s(generation, lanes) <= _MOST_OF_LINK:
                fitting.append(f"PCIe {generation} x{lanes}")
    if ports and rate > _SLOWEST_NVLINK and not fitting:
        rates = {links.nvlink_bytes_per_s for name in gpus() if (links := gpu_links(name, 2)).nvlink_generation}
        for port in sorted(filter(None, rates)):
            if _LEAST_OF_LINK <= rate / port <= _MOST_OF_LINK:
                fitting.append(f"an NVLink port of {format_rate(port)}")
    return " or ".join(fitting) or "no known link"


def fitting_nvlinks(evidence: CopyEvidence, rate: float) -> str | None:
    """Return how many NVLinks between two GPUs give this rate ("2 NVLinks of 25 GB/s"); None if no whole number fits.

    The result is also None if pairs of these GPUs have no NVLinks. The GPU model determines the generation of the
    NVLinks. If the GPU is unknown and copies from the host are much slower than `rate`, the usual NVLink generation is
    assumed.
    """
    machine, host = evidence.machine, evidence.test("h2d")
    generation = _USUAL_NVLINK
    if machine.gpu is not None:
        own = gpu(machine.gpu).nvlink_generation
        if not own or machine.links is None or machine.links.peer != "nvlink_mesh":
            return None
        generation = own
    elif host is None or rate < _OF_ANOTHER_LINK * host.fastest:
        return None
    one = nvlink_bytes_per_s(generation)
    number = round(rate / (_MOST_OF_NVLINK * one))
    if not 0 < number <= _MOST_NVLINKS_OF_PAIR or not _LEAST_OF_NVLINK <= rate / (number * one) <= 1 + _ROUNDING:
        return None
    return f"{number} NVLink{'s' if number > 1 else ''} of {format_rate(one)}"


def wiring(machine: LogMachine) -> str | None:
    """Describe how the machine connects its GPUs to PCIe.

    Return None if the machine is unknown and the possible machines connect their GPUs differently.
    """
    names = (machine.instance,) if machine.instance else machine.candidates
    links = {instance(name).pcie for name in names}
    if len(links) != 1 or (link := links.pop()) is None:
        return None
    verb = "connects" if len(names) == 1 else "connect"
    return f"{' and '.join(names)} {verb} GPUs at PCIe {link[0]} x{link[1]}"
