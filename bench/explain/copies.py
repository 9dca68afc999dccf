"""Matrices of copies: each direction beside the link that it takes, pairs that differ, and what others measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.core.links import Bound
from bench.core.units import format_rate
from bench.explain.assessment import (
    ABOVE,
    FAR,
    LOW,
    NORMAL,
    TOO_MANY,
    UNJUDGED,
    Assessment,
    by_wider_bridge,
    contradiction,
    too_many,
    word_of_others,
)
from bench.explain.evidence import other_gpus
from bench.explain.log_evidence import Hint
from bench.hardware.bounds import copy_bounds
from bench.hardware.catalogue import gpu, gpu_links, gpus, instance, nvlink_bytes_per_s, pcie_bytes_per_s
from bench.hardware.machine import LogMachine
from bench.hardware.reference import CopyReference, same_machine
from bench.logs.foreign import TRUNCATED, ForeignRun, Matrix
from bench.logs.messages import LogCode

# Of a copy, by its direction (logs/foreign.py): the path, and whether the figure adds both directions.
_PATHS = {
    "h2d": ("host", False),
    "d2h": ("host", False),
    "d2d": ("peer", False),
    "bidirectional_sum": ("peer", True),
    "fan": ("peers", False),
    "through_host": ("through host", False),
    "through_host_sum": ("through host", True),
}
_TITLES = {
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "d2d": "GPU to GPU",
    "through_host": "GPU to GPU through the host",
}
_REFERENCE = {"h2d": "h2d", "d2h": "d2h", "d2d": "peer"}
# What copies of hundreds of MB reach of a link's raw rate: packet headers and flow control take the rest.
_LEAST_OF_LINK, _MOST_OF_LINK = 0.70, 0.95
# Of NVLink-C2C: to a GH200 0.82 to 0.92 from its own host, back 0.66 and 0.69 (NVIDIA/nvbandwidth's logs).
_USUAL_OF_C2C, _USUAL_OF_PORT = (0.65, "65 to 90 %"), (0.86, "80 to 90 %")
_ROUNDING = 0.002
_SLOWEST_NVLINK = 30e9
# What copies reach of the NVLinks of one pair (24.2 and 48.4 of 25 and 50 GB/s: SpareCores on p3 and p3dn).
_LEAST_OF_NVLINK, _MOST_OF_NVLINK = 0.94, 0.97
_MOST_NVLINKS_OF_PAIR = 6  # of more, any rate would fit some number
_USUAL_NVLINK = 2  # and 3 and 4: the generations of one rate
_OF_ANOTHER_LINK = 1.5  # times what host copies reach: such copies go by no link like the host's
_DIFFER = 1.2  # the best pair beside the worst, from where pairs have different links


@dataclass(frozen=True, slots=True)
class Way:
    """One direction by one engine: its values by (source, target), and the bounds of its path."""

    matrix: Matrix
    direction: str
    values: dict[tuple[str, str], float]
    bounds: tuple[Bound, ...]

    @property
    def gpus(self) -> frozenset[str]:
        """Names of the GPUs at either end of a pair."""
        return frozenset(end for pair in self.values for end in pair if end.startswith("gpu"))

    @property
    def least(self) -> float:
        """The smallest value, in the matrix's unit."""
        return min(self.values.values())

    @property
    def most(self) -> float:
        """The largest value, in the matrix's unit."""
        return max(self.values.values())


@dataclass(frozen=True, slots=True)
class Copying:
    """The matrices of one run."""

    run: ForeignRun
    machine: LogMachine
    ways: tuple[Way, ...]
    references: tuple[CopyReference, ...]
    hints: tuple[Hint, ...] = ()

    def way(self, direction: str, engine: str | None = "ce") -> Way | None:
        """The first matrix of a direction by an engine; by any where that one is not told."""
        found = [way for way in self.ways if way.direction == direction and way.matrix.engine in (engine, None)]
        return next((way for way in found if "write" in way.matrix.name), found[0] if found else None)

    def named(self, name: str) -> Way | None:
        """The matrix of a name."""
        return next((way for way in self.ways if way.matrix.name == name), None)

    @property
    def waived(self) -> bool:
        """Were copies between GPUs refused?"""
        tests = [remark.facts["test"] for remark in self.run.remarks if remark.code == LogCode.WAIVED]
        told = any("device_to_device" in test for test in tests)
        cells = [cell for each in self.run.matrices if each.direction == "d2d" for cell in each.cells]
        return told or (bool(cells) and all(cell.status == "waived" for cell in cells))


def gathered(run: ForeignRun, machine: LogMachine, hints: Sequence[Hint] = ()) -> Copying:
    """The bandwidths of a run's matrices beside their bounds and what others measured."""
    ways = []
    for matrix in run.matrices:
        values = {(cell.src, cell.dst): cell.value for cell in matrix.cells if cell.value is not None}
        if matrix.unit != "bytes_per_s" or not values or matrix.direction not in (*_PATHS, "bidirectional"):
            continue
        bounds: tuple[Bound, ...] = ()
        direction = str(matrix.direction)
        if direction == "d2d" and any("others" in (cell.src, cell.dst) for cell in matrix.cells):
            direction = "fan"
        if machine.links is not None and direction in _PATHS:
            bounds = copy_bounds(machine.links, *_PATHS[direction])
        ways.append(Way(matrix, direction, values, bounds))
    return Copying(run, machine, tuple(ways), same_machine(machine.gpu, machine.instance), tuple(hints))


def got(copying: Copying) -> Iterator[str]:
    """One line a direction: the copy engine's one-way figures, then the time of a load."""
    for direction, title in _TITLES.items():
        for way in copying.ways:
            alone = not any(other.direction == direction and other.matrix.engine != "sm" for other in copying.ways)
            if way.direction == direction and (alone or way.matrix.engine != "sm") and "all" not in way.matrix.name:
                yield f"{title}: {_range(way)} ({way.matrix.name})"
    together = copying.named("host_to_all_memcpy_ce")
    if together is not None:
        yield f"host to all GPUs at once: {_range(together)}, each"
    for matrix in copying.run.matrices:
        seconds = [cell.value for cell in matrix.cells if cell.value is not None]
        if matrix.unit == "s" and matrix.direction in ("load", "d2d") and seconds:
            yield f"{matrix.name}: {min(seconds) * 1e9:.0f} to {max(seconds) * 1e9:.0f} ns"


def _range(way: Way) -> str:
    count = f"{len(way.values)} pairs"
    if way.direction not in ("d2d", "through_host"):
        several = f"{len(way.values)} values of " if len(way.values) > len(way.gpus) else ""
        count = f"{several}{len(way.gpus)} GPU{'s' if len(way.gpus) != 1 else ''}"
    return f"{format_rate(way.most) if _alike(way) else span((way.least, way.most))}, {count}"


def possible(copying: Copying) -> Iterator[str]:
    """The bounds of each path, with the fraction that each direction reaches."""
    own = gpu(copying.machine.gpu) if copying.machine.gpu else None
    newest = own.pcie[0] if own and own.pcie else 6
    for directions in (("h2d", "d2h"), ("d2d",), ("through_host",)):
        ways = [way for direction in directions if (way := copying.way(direction)) is not None]
        if not ways:
            continue
        if not ways[0].bounds:
            most = ways[0].most
            joined = nvlinks(copying, most) if directions == ("d2d",) else None
            nvlink = directions != ("through_host",)
            fits = f"{joined} between two GPUs (NVLink 2 to 4)" if joined else fitting(most, newest, ports=nvlink)
            told = "host and GPU share one memory" if own and own.c2c else f"{format_rate(most)} fits {fits}"
            yield f"{_name(ways[0])}: no bound is known; {told}"
        for bound in reversed(ways[0].bounds):
            kind = "hard bound" if bound.kind == "hard" else "reference, may be exceeded"
            reached = ", ".join(f"{_name(way)} reached {_shares(way, bound)}" for way in ways)
            built = wired(copying.machine) if bound.name == "PCIe port" and copying.machine.instance else None
            why = f"{built}; {bound.why}" if built else bound.why
            yield f"{format_rate(bound.bytes_per_s)} by {bound.name} ({kind}), {reached}: {why} [{bound.source}]"


def _shares(way: Way, bound: Bound) -> str:
    least, most = (f"{rate / bound.bytes_per_s:.0%}" for rate in (way.least, way.most))
    return most if least == most else f"{least} to {most}"


def _alike(way: Way) -> bool:
    return way.most < 1.01 * way.least


def fitting(rate: float, newest: int = 6, ports: bool = True) -> str:
    """The PCIe links of which a rate is what copies reach; where there is none and NVLink may be, its `ports`."""
    links = [(generation, lanes) for generation in range(3, newest + 1) for lanes in (4, 8, 16)]
    fitting = [
        f"PCIe {generation} x{lanes}"
        for generation, lanes in links
        if _LEAST_OF_LINK <= rate / pcie_bytes_per_s(generation, lanes) <= _MOST_OF_LINK
    ]
    if ports and rate > _SLOWEST_NVLINK and not fitting:
        rates = {own.nvlink_bytes_per_s for name in gpus() if (own := gpu_links(name, 2)).nvlink_generation}
        near = [port for port in sorted(filter(None, rates)) if _LEAST_OF_LINK <= rate / port <= _MOST_OF_LINK]
        fitting = [f"an NVLink port of {format_rate(port)}" for port in near]
    return " or ".join(fitting) or "no link that is known"


def nvlinks(copying: Copying, rate: float) -> str | None:
    """The whole number of NVLinks of one pair that a rate is what copies reach of ("2 NVLinks of 25 GB/s"): of the
    GPU's generation where its links join single pairs, of any where the GPU is not known and host copies tell that its
    PCIe link is slower. None where it is no such number."""
    machine, host = copying.machine, copying.way("h2d")
    ours = gpu(machine.gpu).nvlink_generation if machine.gpu else None
    mesh = machine.links is not None and machine.links.peer == "nvlink_mesh"
    if machine.gpu is not None and (ours is None or not mesh):
        return None
    if machine.gpu is None and (host is None or rate < _OF_ANOTHER_LINK * host.most):
        return None
    each = nvlink_bytes_per_s(ours or _USUAL_NVLINK)
    number = round(rate / (_MOST_OF_NVLINK * each))
    if not 0 < number <= _MOST_NVLINKS_OF_PAIR or not _LEAST_OF_NVLINK <= rate / (number * each) <= 1 + _ROUNDING:
        return None
    return f"{number} NVLink{'s' if number > 1 else ''} of {format_rate(each)}"


def others(copying: Copying) -> Iterator[str]:
    """What others measured on this machine, or with this GPU."""
    for each in copying.references[:5]:
        rates = ", ".join(
            f"{_TITLES[ours]} {span(each.rates[name])}" for ours, name in _REFERENCE.items() if name in each.rates
        )
        link = f"PCIe {each.pcie[0]} x{each.pcie[1]} by nvidia-smi, " if each.pcie else ""
        without = "" if "peer" in each.rates or each.gpus < 2 else ", copies between GPUs refused"
        yield f"{each.where} ({each.gpus} x {each.gpu}): {link}{rates}{without} [{each.source}, {each.version}]"


def span(rates: tuple[float, float]) -> str:
    """`13.2 GB/s to 13.5 GB/s`; one of them where both read alike."""
    least, most = (format_rate(rate) for rate in rates)
    return most if least == most else f"{least} to {most}"


def stand(copying: Copying) -> Assessment:
    """The verdict: the worst direction decides."""
    if copying.run.status == "failed":
        return Assessment(UNJUDGED, "the tool failed; what it had printed before may be wrong, too.")
    if (why := contradiction(copying.machine, other_gpus(copying.run, copying.machine))) is not None:
        return Assessment(UNJUDGED, why)
    listed = sum(hint.kind == "device" for hint in copying.hints)
    told = max((len(way.gpus) for way in copying.ways), default=0)
    if 0 < listed < told and copying.run.status != TRUNCATED:  # a list that was cut may be longer
        said = f"the log lists {listed} GPU{'s' if listed > 1 else ''}, and its tables hold {told}"
        return Assessment(UNJUDGED, f"{said}: it contradicts itself, and no figure of it counts.")
    ways = [way for direction in _REFERENCE if (way := copying.way(direction)) is not None]
    detour = copying.way("through_host")
    if not ways and detour is not None:
        return _through_host(detour, copying.machine)
    if not ways:
        return Assessment(UNJUDGED, _nothing_to_judge(copying))
    over = [(way, bound) for way in copying.ways for bound in way.bounds if _over(way, bound)]
    if over:
        way, bound = over[0]
        return Assessment(
            ABOVE,
            f"{_name(way)}: {format_rate(way.most)} is {way.most / bound.bytes_per_s - 1:.0%} above the hard bound "
            f"{bound.name} ({format_rate(bound.bytes_per_s)}): {bound.why}. The figure or the machine is not what it "
            "is taken for.",
            way.most / bound.bytes_per_s,
        )
    judged = [found for way in ways if (found := _judged(copying, way)) is not None]
    if not judged:
        return Assessment(UNJUDGED, _unknown(copying.machine))
    return min(judged, key=lambda found: ((FAR, LOW, NORMAL).index(found.word), found.ratio or 0.0))


def _nothing_to_judge(copying: Copying) -> str:
    kernels = [way.matrix.name for way in copying.ways if way.direction in _REFERENCE and way.matrix.engine == "sm"]
    if kernels:
        return f"only copies by kernels were read ({', '.join(kernels[:3])}): run the copy engine's (ce) as well."
    return "no one-way bandwidth was read."


def _unknown(machine: LogMachine) -> str:
    if machine.gpu is None:
        return "the machine is not known, and so are its links: name it with --instance."
    if gpu(machine.gpu).c2c:
        return f"host and GPU of a {machine.gpu} share one memory, and no link between them bounds a copy."
    return f"the GPU is known ({machine.gpu}), and not how the machine links it: name the machine with --instance."


def _through_host(way: Way, machine: LogMachine) -> Assessment:
    """Two GPUs without peer access: each byte crosses the link of one, then that of the other."""
    bound = way.bounds[-1] if way.bounds else None
    if bound is None:
        return Assessment(UNJUDGED, _unknown(machine))
    share = way.least / bound.bytes_per_s
    word = NORMAL if share >= 0.3 else LOW if share >= 0.15 else FAR
    link = "the PCIe link" if bound.name == "PCIe port" else bound.name
    said = f"{format_rate(way.least)} is {share:.0%} of {link}; through host memory a copy crosses two links"
    return Assessment(word, f"{said}, one after the other in part, so that a third to a half of one is usual.", share)


def _over(way: Way, bound: Bound) -> bool:
    return bound.kind == "hard" and way.most * (1 - _ROUNDING) > bound.bytes_per_s


def _name(way: Way) -> str:
    return _TITLES.get(way.direction, way.direction)


def _judged(copying: Copying, way: Way) -> Assessment | None:
    """How a direction's slowest pair stands: beside the same machine's, else beside the link, which others with this
    GPU on this link may have shown to carry less."""
    name = _REFERENCE[way.direction]
    own = [each for each in copying.references if name in each.rates and each.instance == copying.machine.instance]
    if copying.machine.instance and own:
        return _beside(way, own[0], name)
    by_link, others = _beside_link(copying.machine, way), _beside_alike(copying, way, name)
    lifted = others is not None and others.word == NORMAL
    return others if by_link is None or (lifted and by_link.word != NORMAL) else by_link


def _beside_link(machine: LogMachine, way: Way) -> Assessment | None:
    """Beside the hard bound of its path; None where that is not known, or says nothing of single pairs."""
    if not way.bounds:
        return None
    # What copies reach of a link counts as all of it. Pairs of a mesh may have fewer links than the most.
    bound, links = way.bounds[-1], machine.links
    mesh = way.direction == "d2d" and links is not None and links.peer in ("nvlink_mesh", "nvlink_pairs")
    if mesh and links is not None and links.peer == "nvlink_mesh" and links.pair_bytes_per_s is None:
        return None
    if mesh and len(way.gpus) > 2 and by_wider_bridge(machine, way.most):
        return None
    rate, end = (way.most, "most") if mesh else (way.least, "least")
    share, usual = _USUAL_OF_C2C if bound.name == "NVLink-C2C" else _USUAL_OF_PORT
    ratio = rate / (share * bound.bytes_per_s)
    said = (
        f"{_name(way)}, {format_rate(rate)} at {end}, is {rate / bound.bytes_per_s:.0%} of {bound.name} "
        f"({format_rate(bound.bytes_per_s)}), where copies reach {usual}."
    )
    return Assessment(NORMAL if ratio >= 0.9 else LOW if ratio >= 0.6 else FAR, said, ratio)


def _beside_alike(copying: Copying, way: Way, name: str) -> Assessment | None:
    """Where the machine is not named: beside the best of those with this GPU, on the link that the machines that it may
    be have, or else that the GPU has at most. Whether a bridge joins two cards is not known of them."""
    machine = copying.machine
    if machine.gpu is None or (name == "peer" and machine.links is not None and machine.links.peer == "nvlink_pairs"):
        return None
    links = {instance(each).pcie for each in machine.candidates}
    link = links.pop() if len(links) == 1 else gpu(machine.gpu).pcie
    alike = [each for each in copying.references if name in each.rates and each.pcie == link is not None]
    if not alike:
        return None
    found = _beside(way, max(alike, key=lambda each: each.rates[name]), name)
    return replace(found, sentence=f"{found.sentence[:-1]}, if this machine is built like that one.")


def _beside(way: Way, own: CopyReference, name: str) -> Assessment:
    """Beside another's: the slowest pairs of both, or, where only theirs differ, the fastest: ours may be a choice of
    the pairs with the most links."""
    least, most = own.rates[name]
    differ = most > _DIFFER * least and way.most <= _DIFFER * way.least
    rate, theirs, end = (way.most, most, "most") if differ else (way.least, least, "least")
    ratio = rate / theirs
    said = f"{_name(way)}, {format_rate(rate)} at {end}, is {ratio:.0%} of "
    said += f"{format_rate(most)}, the most of the pairs" if differ else "what was measured"
    said += f" on {own.where} ({span(own.rates[name])})"
    if differ:
        said += ", whose pairs have different links"
    said = f"{said}. {too_many(ratio)}" if ratio > TOO_MANY else said
    return Assessment(word_of_others(ratio), f"{said}.", ratio)


def wired(machine: LogMachine) -> str | None:
    """How the machine (or each one that it may be) links its GPUs."""
    names = (machine.instance,) if machine.instance else machine.candidates
    links = {instance(name).pcie for name in names}
    if len(links) != 1 or (link := links.pop()) is None:
        return None
    return f"{' and '.join(names)} link{'s' if len(names) == 1 else ''} GPUs at PCIe {link[0]} x{link[1]}"


def remarks(copying: Copying) -> Iterator[str]:
    """What two-way figures mean."""
    if any(way.direction == "bidirectional" for way in copying.ways):
        yield "two-way figures between GPU and host are one direction's rate while the other is busy, not the sum"
    if any(way.direction == "bidirectional_sum" for way in copying.ways):
        yield "two-way figures between GPUs add both directions: half of one is what goes each way"
