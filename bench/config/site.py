"""The instance types that a site knows: those of the catalogue, as its bench.yaml changes them, and its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.plugins import nearest
from bench.hardware import catalogue
from bench.hardware.catalogue import Instance, Price


@dataclass(frozen=True, slots=True)
class OwnInstance:
    """One entry of bench.yaml's `instances`: what differs from `like` (else from the catalogue's type of this name).

    `links`: bytes per second by link; `price`: dollars per hour, as it stood at `price_date`.
    """

    name: str
    like: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    peers: str | None = None
    links: Mapping[str, float] = field(default_factory=dict)
    nics: int | None = None
    nodes_per_leaf: int | None = None
    oversubscription: float | None = None
    gpus_per_pcie_switch: int | None = None
    price: float | None = None
    price_date: str | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class InstanceTypes:
    """All instance types by name, the site's own last. `own`: the names that bench.yaml tells of."""

    instances: Mapping[str, Instance]
    own: tuple[str, ...] = ()

    def instance(self, name: str) -> Instance:
        """Raises UsageError with the nearest name when there is none of this one."""
        if name not in self.instances:
            raise UsageError(f"no instance type is called {name!r}{nearest(name, tuple(self.instances))}")
        return self.instances[name]

    def links(self, name: str, ranks_per_node: int) -> NodeLinks:
        """The links of one node. UsageError for an unknown name, and for more ranks than it has GPUs."""
        found = self.instance(name)
        if ranks_per_node > found.gpus:
            raise UsageError(f"{name} has {found.gpus} GPUs, not {ranks_per_node}: give {found.gpus} per node or less")
        return found.links


def site_of(own: Mapping[str, OwnInstance], path: Path | None = None) -> InstanceTypes:
    """The catalogue with a site's changes. UsageError naming `path` and the entry that can not be made out."""
    known = {name: catalogue.instance(name) for name in catalogue.instances()}
    for name, told in own.items():
        try:
            known[name] = changed(told, known)
        except UsageError as error:
            raise UsageError(f"{path or 'bench.yaml'}: instance {name!r}: {error}") from None
    return InstanceTypes(known, tuple(own))


def changed(told: OwnInstance, known: Mapping[str, Instance]) -> Instance:
    """One entry as an instance type. UsageError where nothing says what it is."""
    base = told.like or (told.name if told.name in known else None)
    if base is None and (told.gpu is None or told.gpus is None):
        raise UsageError("is not in the catalogue: say what it is like (`like: p4d.24xlarge`), or its `gpu` and `gpus`")
    if base is not None and base not in known:
        raise UsageError(f"no instance type is called {base!r}{nearest(base, tuple(known))}")
    found = known[base] if base is not None else _bare(told)
    links = found.links.with_rates(told.links)
    changes: dict[str, Any] = {"instance": told.name, "gpus": told.gpus or found.gpus, "like": links.like or base or ""}
    given = {
        "peer": told.peers,
        "num_nics": told.nics,
        "nodes_per_leaf": told.nodes_per_leaf,
        "oversubscription": told.oversubscription,
        "gpus_per_pcie_switch": told.gpus_per_pcie_switch,
    }
    changes |= {name: value for name, value in given.items() if value is not None}
    prices = found.prices
    if told.price is not None:
        prices = (Price(told.price, told.region or "own", told.price_date, "bench.yaml", True),)
    elif base != told.name and told.like is not None:
        prices = ()  # another machine costs what it costs: nobody's list price
    return replace(
        found,
        name=told.name,
        provider=found.provider if base == told.name else "own",
        gpu=catalogue.gpu(told.gpu).name if told.gpu else found.gpu,
        gpus=told.gpus or found.gpus,
        links=replace(links, **changes),
        prices=prices,
    )


def ran_as(name: str | None, own: Mapping[str, OwnInstance]) -> tuple[str | None, Mapping[str, float], str]:
    """(type of the catalogue, rates in place of its own) by which ranks know a cluster's instance type, and why none
    could: where it differs in more than rates and price, only predictions know it. UsageError: unknown name."""
    if name is None or name not in own:
        return (None if name is None else catalogue.instance(name).name), {}, ""
    told, known = own[name], catalogue.instances()
    base = told.like or (name if name in known else None)
    differs = ""
    if base is None or any(
        (
            told.gpu,
            told.gpus,
            told.peers,
            told.nics,
            told.nodes_per_leaf,
            told.oversubscription,
            told.gpus_per_pcie_switch,
        )
    ):
        differs = (
            f"{name} differs from the catalogue in more than rates and price: predict and select know it, a run "
            "does not; name the type that it is like, and give `links:` in the cluster"
        )
    return (catalogue.instance(base).name if base is not None else None), told.links, differs


def _bare(told: OwnInstance) -> Instance:
    """A machine of which only the GPUs are told."""
    assert told.gpu is not None and told.gpus is not None
    latency = catalogue.yaml_file("links")["latency"]
    seconds = {f"{name}_s": latency[name]["us"] * 1e-6 for name in ("peer", "host", "network")}
    links = replace(catalogue.gpu_links(told.gpu, told.gpus), network_reduces=False, **seconds)
    return Instance(told.name, "own", told.gpu, told.gpus, None, None, catalogue.gpu(told.gpu).pcie, "unknown", links)
