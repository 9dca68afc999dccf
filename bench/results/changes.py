"""Find how two runs differ apart from their times: versions, environment variables, settings, machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.core.record import Header
from bench.results.launches import OF_ONE_START

# These fields differ at every start or identify one machine. They do not explain a difference between the times of two
# runs.
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
    """One difference between the headers of two runs.

    `what`: the path of the field, such as `versions.mpich`, `environment.NCCL_ALGO` or `nodes.cpu_model`.
    `base`, `new`: the value in each run, or None if no header of the run has the field. If the headers of a run have
        different values, all values are listed, separated by commas.
    """

    what: str
    base: str | None
    new: str | None


def changes(base: Iterable[Header], new: Iterable[Header]) -> tuple[Change, ...]:
    """Return the differences between the headers of two runs, in the order of the header's fields."""
    before, after = _values(base), _values(new)
    return tuple(
        Change(what, _words(before.get(what)), _words(after.get(what)))
        for what in dict.fromkeys([*before, *after])
        if before.get(what) != after.get(what)
    )


def _values(headers: Iterable[Header]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for header in headers:
        for what, value in _facts(header):
            if value is not None and what not in _OF_A_MOMENT:
                found.setdefault(what, set()).add(str(value))
    return found


def _facts(header: Header) -> Iterator[tuple[str, Any]]:
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
    """Yield each single value in nested data, with its path. Each member of a list has the path of the list."""
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
