"""Look up published results on the same hardware in reference.yaml.

Each result has a source and a date. The results serve for comparison and are not pass/fail limits. Rates are in bytes
per second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.hardware import catalogue
from bench.hardware.catalogue import source_of, yaml_file

NVLS_OFF = "NVLS off"  # `limited` of a result without NVLS, as reference.yaml spells it
_SAME_DIGITS = 5  # digits that a run and a published result must share to be the same measurement


@dataclass(frozen=True, slots=True)
class Reference:
    """A published collective.

    `busbw`: maps payloads in bytes to the bus bandwidth in bytes per second.
    `small_s`: maps small payloads in bytes to times in seconds.

    `network_bytes_per_s`: the total rate of a node's NICs. None if unknown, or if the result is from a single node.
    `peers`: "host" if the GPUs had no peer access and copied through host memory.
    `limited`: a text that says why the result is below the rates of the hardware.
    `limit`: the code of the reason in `limited`, if its effect on the links is known (LIMITS of curves.py).
    `compared`: whether logs are compared with this result. If False, only predictions use the result. Either the
        machine has an unusual driver or wiring, or the comparison with a log has not been tried yet.
    """

    gpu: str
    instance: str | None
    num_nodes: int
    num_ranks: int
    pattern: str
    busbw: Mapping[int, float]
    small_s: Mapping[int, float]
    network_bytes_per_s: float | None
    peers: str | None
    note: str | None
    limited: str | None
    source: str
    limit: str | None = None
    compared: bool = True

    @property
    def best(self) -> tuple[int, float]:
        """The payload with the highest rate, in bytes, and this rate in bytes per second."""
        return max(self.busbw.items(), key=lambda point: point[1])

    def near(self, payload_bytes: int) -> tuple[int, float] | None:
        """Return the published point whose size is nearest to `payload_bytes`.

        A point is a payload in bytes and its bus bandwidth in bytes per second. The result is None if no published size
        is within a factor of two.
        """
        within = [size for size in self.busbw if payload_bytes / 2 <= size <= payload_bytes * 2]
        if not within:
            return None
        size = min(within, key=lambda each: abs(each - payload_bytes))
        return size, self.busbw[size]


@dataclass(frozen=True, slots=True)
class CopyReference:
    """Results of nvbandwidth's copy-engine tests on one machine.

    Each test has the lowest and the highest measured rate.
    """

    where: str
    instance: str | None
    gpu: str
    gpus: int
    pcie: tuple[int, int] | None
    rates: Mapping[str, tuple[float, float]]  # h2d, d2h, peer
    version: str
    source: str


@dataclass(frozen=True, slots=True)
class AcceptanceFloor:
    """The lowest busbw that a published acceptance check accepts for an allreduce on one node."""

    gpu: str
    bytes_per_s: float
    source: str


@cache
def collectives() -> tuple[Reference, ...]:
    """Return every published collective, in the order of the file."""
    file = yaml_file("reference")
    return tuple(_reference(file, entry) for entry in file["collectives"])


@cache
def copies() -> tuple[CopyReference, ...]:
    """Return the published copies of every machine, in the order of the file."""
    file = yaml_file("reference")
    return tuple(_copies(file, entry) for entry in file["copies"])


def limits(gpu: str | None) -> tuple[AcceptanceFloor, ...]:
    """Return the lowest busbw that published acceptance checks accept for a GPU model."""
    file = yaml_file("reference")
    found = (each for each in file["limits"] if each["gpu"] == gpu)
    return tuple(AcceptanceFloor(each["gpu"], each["gbyte_per_s"] * 1e9, source_of(file, each)) for each in found)


def same_shape(
    pattern: str, gpu: str | None, instance: str | None, num_nodes: int, num_ranks: int
) -> tuple[Reference, ...]:
    """Return published results of this pattern with the same numbers of ranks and nodes.

    The first results are from the same instance type. Results of the same GPU follow, and then results of GPUs with the
    same links. For several nodes, a result is left out if its network is known to have another rate.
    """
    network = catalogue.node_network(instance) if instance and num_nodes > 1 else None
    ranked = []
    for each in collectives():
        if not each.compared or (each.pattern, each.num_nodes, each.num_ranks) != (pattern, num_nodes, num_ranks):
            continue
        if network and each.network_bytes_per_s and each.network_bytes_per_s != network:
            continue
        if instance and each.instance == instance:
            ranked.append((0, each))
        elif each.gpu == gpu:
            ranked.append((1, each))
        elif gpu and _links_of(each.gpu) == _links_of(gpu):
            ranked.append((2, each))
    ranked.sort(key=lambda pair: (pair[0], -pair[1].best[1]))
    return tuple(each for _, each in ranked)


def of_any_machine(pattern: str, num_ranks: int, num_nodes: int | None) -> tuple[Reference, ...]:
    """Return the published results that can be compared with logs of this pattern and this number of ranks."""
    alike = (each for each in collectives() if (each.pattern, each.num_ranks) == (pattern, num_ranks) and each.compared)
    return tuple(each for each in alike if num_nodes in (None, each.num_nodes))


def best_of_each(found: Iterable[Reference]) -> tuple[Reference, ...]:
    """Return each machine's fastest result without a known limitation, the fastest first."""
    best: dict[str, Reference] = {}
    for each in found:
        name = each.instance or each.gpu
        if each.limited is None and (name not in best or best[name].best[1] < each.best[1]):
            best[name] = each
    return tuple(sorted(best.values(), key=lambda each: -each.best[1]))


def is_same_measurement(
    reference: Reference, rates: Mapping[int, Collection[float]], seconds: Mapping[int, Collection[float]]
) -> bool:
    """Check whether a run is the published measurement itself. All published figures must agree in every digit.

    Two runs on equal machines do not agree in so many digits by chance.

    `rates`: maps payloads in bytes to the run's rates in bytes per second.
    `seconds`: maps payloads in bytes to the run's times in seconds.
    """
    num_digits = 0
    for published, own, unit in ((reference.busbw, rates, 1e9), (reference.small_s, seconds, 1e-6)):
        for size, figure in published.items():
            digits = f"{figure / unit:.10g}"
            if not any(_reads(value / unit, digits) for value in own.get(size, ())):
                return False
            num_digits += len(digits.replace(".", "").strip("0"))
    return num_digits >= _SAME_DIGITS


def _reads(value: float, digits: str) -> bool:
    """Check whether a value equals a published figure when it is rounded to as many decimals as the figure has.

    `digits`: the published figure as text.
    """
    decimals = len(digits.partition(".")[2])
    return abs(value - float(digits)) <= 0.5 * 10.0**-decimals + 1e-9


def same_machine(gpu: str | None, instance: str | None) -> tuple[CopyReference, ...]:
    """Return the published copies of this instance type or, if there are none, of every machine with this GPU."""
    if instance and (own := tuple(each for each in copies() if each.instance == instance)):
        return own
    return tuple(each for each in copies() if each.gpu == gpu)


@cache
def _links_of(gpu: str) -> tuple[Any, ...]:
    links = catalogue.gpu_links(gpu, 8)
    ports = (links.peer, links.nvlink_bytes_per_s, links.nvls)
    return ports if links.nvlink_bytes_per_s else (*ports, gpu)  # without NVLink, different models are not comparable


def _reference(file: Mapping[str, Any], entry: Mapping[str, Any]) -> Reference:
    instance, nodes = entry.get("instance"), entry["nodes"]
    network = entry["nic_gbyte_per_s"] * 1e9 if "nic_gbyte_per_s" in entry else None
    if network is None and instance is not None and nodes > 1:
        network = catalogue.node_network(instance)
    return Reference(
        gpu=entry["gpu"],
        instance=instance,
        num_nodes=nodes,
        num_ranks=entry["ranks"],
        pattern=entry["pattern"],
        busbw={size: rate * 1e9 for size, rate in entry["busbw"].items()},
        small_s={size: us * 1e-6 for size, us in entry.get("small_us", {}).items()},
        network_bytes_per_s=network,
        peers=entry.get("peers"),
        note=entry.get("note"),
        limited=entry.get("limited"),
        source=source_of(file, entry),
        limit=entry.get("limit"),
        compared=entry.get("compared", file["sources"][entry["source"]].get("compared", True)),
    )


def _copies(file: Mapping[str, Any], entry: Mapping[str, Any]) -> CopyReference:
    rates = {name: entry[name] for name in ("h2d", "d2h", "peer") if name in entry}
    return CopyReference(
        where=entry["where"],
        instance=entry.get("instance"),
        gpu=entry["gpu"],
        gpus=entry["gpus"],
        pcie=tuple(entry["pcie"]) if "pcie" in entry else None,
        rates={name: (least * 1e9, most * 1e9) for name, (least, most) in rates.items()},
        version=entry["version"],
        source=source_of(file, entry),
    )
