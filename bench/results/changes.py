"""What two runs do not have in common beside their figures: versions, variables, settings, machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.core.record import Header
from bench.results.launches import OF_ONE_START

# Another value every time, or an identity: they say nothing of what could change a figure.
_OF_A_MOMENT = frozenset(
    (
        "nodes.gpus.uuid",
        *(
            f"nodes.{when}.{what}"
            for when in ("gpus", "gpus_at_end")
            for what in ("index", "sm_hz", "memory_hz", "power_w", "temperature_c")
        ),
        "nodes.host",
        "nodes.available_memory_bytes",
        "nodes.gpus.index",
        "nodes.gpus.pci_bus",
        "nodes.numa_nodes.node",
        *(f"environment.{name}" for name in OF_ONE_START),
        "facts.nccl_init_s",
        "facts.nccl_first_call_s",
    )
)
_PARTS = ("versions", "facts", "environment", "settings")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs, by its path in the header: `versions.mpich`, `environment.NCCL_ALGO`, `nodes.cpu_model`.

    Values in words, several ones by commas (a run has many headers); None where a run does not have it at all.
    """

    what: str
    base: str | None
    new: str | None


def changes(base: Iterable[Header], new: Iterable[Header]) -> tuple[Change, ...]:
    """What differs between the headers of two runs, in the order in which headers tell it."""
    before, after = _values(base), _values(new)
    return tuple(
        Change(what, _words(before.get(what)), _words(after.get(what)))
        for what in dict.fromkeys([*before, *after])
        if before.get(what) != after.get(what)
    )


def _values(headers: Iterable[Header]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for header in headers:
        for what, value in _told(header):
            if value is not None and what not in _OF_A_MOMENT:
                found.setdefault(what, set()).add(str(value))
    return found


def _told(header: Header) -> Iterator[tuple[str, Any]]:
    for part in _PARTS:
        yield from _flat(part, getattr(header, part))
    yield "clock", header.clock
    yield "instance", header.instance
    rates = {name: value for name, value in header.links.items() if not isinstance(value, Mapping)}
    yield from _flat("links", rates)
    for host, node in header.nodes.items():
        yield "hosts", host
        yield from _flat("nodes", node)
    for rank in header.ranks:
        if rank.get("cpus") is not None:
            yield "ranks.cpus", "+".join(map(str, rank["cpus"]))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Plain data as (path, leaf); members of a list share their path."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _flat(f"{name}.{key}", member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _flat(name, member)
    else:
        yield name, value


def _words(values: set[str] | None) -> str | None:
    return None if values is None else ", ".join(sorted(values))
