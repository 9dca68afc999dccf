"""Locate the ranks: the host, NIC and rack of each rank, and which pairs of ranks are comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any  # a NumPy array of one dimension, unless a docstring says otherwise

_LEAST_ROWS = 12  # a class needs at least this many rows


@dataclass(frozen=True, slots=True)
class Places:
    """For each rank, its host and its NIC. For each host, its rack. An unknown NIC is None."""

    hosts: tuple[str, ...]
    nics: tuple[str | None, ...]
    racks: Mapping[str, str] = field(default_factory=dict)

    def ports(self) -> dict[tuple[str, str | None], tuple[int, ...]]:
        """For each NIC, given as (host, NIC), return the ranks that use it, in rank order."""
        found: dict[tuple[str, str | None], list[int]] = {}
        for rank, port in enumerate(zip(self.hosts, self.nics, strict=True)):
            found.setdefault(port, []).append(rank)
        return {port: tuple(ranks) for port, ranks in found.items()}

    def link_ends(self, inside: bool) -> Array:
        """Return a number for each rank that identifies the rank's endpoint of a link.

        The endpoint of a link inside a host is the rank itself. The endpoint of a link between hosts is the NIC.
        """
        if inside:
            return np.arange(len(self.hosts))
        return index(list(zip(self.hosts, self.nics, strict=True)))

    def end_name(self, rank: int, inside: bool) -> str:
        """Return the name of the endpoint of a link.

        For a link inside a host, the name is `h1:rank3`. For a link between hosts, the name is `h1:eth0`, or `h1` if
        the host has only one NIC.
        """
        host = self.hosts[rank]
        if inside:
            return f"{host}:rank{rank}"
        several = len({nic for other, nic in self.ports() if other == host}) > 1
        return nic_name(host, self.nics[rank]) if several else host


def nic_name(host: str, nic: str | None) -> str:
    """Return the name of a NIC, such as `h1:eth0`, or only the name of the host if the NIC is unknown."""
    return f"{host}:{nic}" if nic else host


def index(labels: Sequence[Any]) -> Array:
    """Give each label a number. New labels are numbered from 0 in the order in which they appear.

    Equal labels get equal numbers.
    """
    known: dict[Any, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def pair_classes(src: Array, dst: Array, places: Places, inside: bool) -> Array:
    """Return the class of each row.

    Two rows have the same class if their pairs should be equally fast. Pairs inside a rack are one class, and pairs
    across racks are another class. With more than two hosts, each rail has its own class, and pairs across rails have
    another class. A class with few rows becomes part of the largest class.
    """
    hosts = places.hosts
    if inside:
        return np.zeros(len(src), dtype=np.int64)
    rack = index([places.racks.get(host, host if places.racks else "") for host in hosts])
    rail = index(places.nics)
    found = np.zeros(len(src), dtype=np.int64)
    if places.racks:
        found = np.where(rack[src] == rack[dst], 0, 1)
    if len(set(hosts)) > 2:
        across_rails = int(rail.max()) + 1
        found = found * (across_rails + 1) + np.where(rail[src] == rail[dst], rail[src], across_rails)
    counts = np.bincount(found)
    for number in np.flatnonzero((counts > 0) & (counts < min(_LEAST_ROWS, counts.max()))):
        found[found == number] = np.argmax(counts)
    return found


def hosts_with_one_partner(src: Array, dst: Array, places: Places) -> set[str]:
    """Return the hosts that were measured with only one other host."""
    host = index(places.hosts)
    names = list(dict.fromkeys(places.hosts))
    met = np.zeros((len(names), len(names)), dtype=bool)
    met[host[src], host[dst]] = met[host[dst], host[src]] = True
    return {names[number] for number in np.flatnonzero(met.sum(axis=1) == 1)}
