"""Names and sentences of a verdict, and which pairs are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bench.diagnose.fit import Array, Level, PartRatio
    from bench.diagnose.places import Places

_LEAST_ROWS = 12  # of a class that stands by itself


def classes(src: Array, dst: Array, places: Places, inside: bool) -> Array:
    """The class of each row: one rack or across; and rail by rail, where there are rails and hosts to compare in each.

    A class of few rows joins the others.
    """
    hosts = places.hosts
    if inside:
        return np.zeros(len(src), dtype=np.int64)
    rack = index([places.racks.get(host, host if places.racks else "") for host in hosts])
    rail = index(places.nics)
    num_hosts = len(set(hosts))
    told = np.where(rack[src] == rack[dst], 0, 1) if places.racks else np.zeros(len(src), dtype=np.int64)
    same_rail = rail[src] == rail[dst]
    if num_hosts > 2:
        told = told * (int(rail.max()) + 2) + np.where(same_rail, rail[src], int(rail.max()) + 1)
    counts = np.bincount(told)
    for number in np.flatnonzero((counts > 0) & (counts < min(_LEAST_ROWS, counts.max()))):
        told[told == number] = np.argmax(counts)
    return told


def index(labels: Sequence[Any]) -> Array:
    """The number of each label, in order of appearance."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def nic_name(host: str, nic: str | None) -> str:
    """`h1:eth0`; the host where its NIC is unknown."""
    return f"{host}:{nic}" if nic else host


def link_ends(places: Places, inside: bool) -> Array:
    """What a link ends at, of each rank: itself inside a host, else its NIC."""
    if inside:
        return np.arange(len(places.hosts))
    return index(list(zip(places.hosts, places.nics, strict=True)))


def end_name(rank: int, places: Places, inside: bool) -> str:
    """The name of a link's end."""
    several = len({nic for host, nic in places.ports() if host == places.hosts[rank]}) > 1
    if inside:
        return f"{places.hosts[rank]}:rank{rank}"
    return nic_name(places.hosts[rank], places.nics[rank]) if several else places.hosts[rank]


def lonely(src: Array, dst: Array, places: Places) -> set[str]:
    """Hosts that were measured with one other host only."""
    host = index(places.hosts)
    names = list(dict.fromkeys(places.hosts))
    known = np.zeros((len(names), len(names)), dtype=bool)
    known[host[src], host[dst]] = known[host[dst], host[src]] = True
    return {names[number] for number in np.flatnonzero(known.sum(axis=1) == 1)}


def part_name(level: Level, unit: int, places: Places) -> tuple[str, str]:
    """(kind, name) of a rack, host, NIC or rank."""
    label = level.labels[unit]
    if level.kind == "rack":
        return "link", f"uplink of {label}"
    if level.kind == "nic":
        return "nic", nic_name(*label)
    return "host", places.hosts[level.ranks[unit][0]]


def part(
    level: Level, unit: int, found: Sequence[tuple[str, PartRatio]], places: Places, inside: bool
) -> tuple[str, str, float, str]:
    """(kind, name, confidence, evidence) of a rack, host, NIC or rank."""
    label, rank = level.labels[unit], level.ranks[unit][0]
    verbs = {"out": "sends", "in": "receives"}
    measured = " and ".join(f"{verbs[direction]} {_ratio(judged)}" for direction, judged in found)
    if len(found) == 1:
        measured += f", {verbs['in' if found[0][0] == 'out' else 'out']} normally"
    kind, name = part_name(level, unit, places)
    confidence = max(judged.confidence for _, judged in found)
    if level.kind == "rack":
        return kind, name, confidence, f"rack {label} {measured} across racks"
    if level.kind == "nic":
        return kind, name, confidence, f"{name} {measured}; other NICs of {label[0]} are not slow"
    where = " inside the host" if inside else ""
    who = name if level.kind == "host" else f"rank {rank} of {name}, not the other ranks there,"
    return kind, name, confidence, f"{who} {measured}{where}"


def link(
    names: tuple[str, str], found: Sequence[tuple[str, PartRatio]], lonely: Sequence[str]
) -> tuple[str, float, str]:
    """(name, confidence, evidence) of a link. `lonely`: ends that were measured with nobody else."""
    a, b = names
    ways = {"out": f"{a} to {b}", "in": f"{b} to {a}"}
    said = " and ".join(f"{ways[direction]} runs {_ratio(judged)}" for direction, judged in found)
    if lonely:
        told = f"it may be {' or '.join(lonely)}: no third host tells the link from its ends"
    else:
        told = "both ends are normal with others"
    return f"{a}-{b}", max(judged.confidence for _, judged in found), f"{said}; {told}"


def contended(names: tuple[str, str], judged: PartRatio) -> str:
    """A link that is slow beside others and not by itself."""
    return (
        f"{names[0]}-{names[1]} runs {_ratio(judged)} while other pairs run, and normally by itself: "
        "contention, not the link"
    )


def _ratio(judged: PartRatio) -> str:
    rows = f"{judged.num_rows} measurements" if judged.num_rows > 1 else "one measurement"
    return f"at {judged.ratio:.2f} of its peers (95 % {judged.low:.2f} to {judged.high:.2f}, {rows})"
