"""The instance types of a site: the catalogue with the changes of bench.yaml, and the site's own types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.hardware import catalogue
from bench.hardware.catalogue import Instance, Price


@dataclass(frozen=True, slots=True)
class OwnInstance:
    """One entry of `instances` in bench.yaml.

    The entry lists the properties in which the type differs from the instance type that `like` names. If `like` is
    None, the entry changes the catalogue's type of the same name. A field that is None keeps the value of the type on
    which the entry is based.

    `links`: the rate of each link in bytes per second.
    `price`: dollars per hour on `price_date`.
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
    """All instance types by name. The site's own types come after the catalogue's types.

    `own`: the names of the types that bench.yaml defines.
    """

    instances: Mapping[str, Instance]
    own: tuple[str, ...] = ()

    def instance(self, name: str) -> Instance:
        """Return the instance type with this name, which may be abbreviated.

        Raises UsageError if no instance type or more than one instance type matches `name`.
        """
        return self.instances[catalogue.full_name(name, tuple(self.instances))]

    def links(self, name: str, ranks_per_node: int) -> NodeLinks:
        """Return the links of one node.

        Raises UsageError if the name is unknown or if `ranks_per_node` exceeds the number of GPUs.
        """
        found = self.instance(name)
        if ranks_per_node > found.gpus:
            raise UsageError(
                f"{name} has {found.gpus} GPUs, not {ranks_per_node}: give at most {found.gpus} ranks per node"
            )
        return found.links


def site_of(own: Mapping[str, OwnInstance], path: Path | None = None) -> InstanceTypes:
    """Return the catalogue with the changes that a site makes.

    Raises UsageError naming `path` and the incomplete entry.
    """
    known = {name: catalogue.instance(name) for name in catalogue.instances()}
    for name, entry in own.items():
        try:
            known[name] = changed(entry, known)
        except UsageError as error:
            raise UsageError(f"{path or 'bench.yaml'}: instance {name!r}: {error}") from None
    return InstanceTypes(known, tuple(own))


def changed(entry: OwnInstance, known: Mapping[str, Instance]) -> Instance:
    """Return the instance type that an entry describes. Raises UsageError if the description is incomplete."""
    base = entry.like or (entry.name if entry.name in known else None)
    if base is None and (entry.gpu is None or entry.gpus is None):
        raise UsageError(
            "is not in the catalogue: name a similar type (`like: p4d.24xlarge`), or give its `gpu` and `gpus`"
        )
    if base is not None:
        base = catalogue.full_name(base, tuple(known))
    found = known[base] if base is not None else _bare(entry)
    links = found.links.with_rates(entry.links)
    changes: dict[str, Any] = {
        "instance": entry.name,
        "gpus": entry.gpus or found.gpus,
        "like": links.like or base or "",
    }
    given = {
        "peer": entry.peers,
        "num_nics": entry.nics,
        "nodes_per_leaf": entry.nodes_per_leaf,
        "oversubscription": entry.oversubscription,
        "gpus_per_pcie_switch": entry.gpus_per_pcie_switch,
    }
    changes |= {name: value for name, value in given.items() if value is not None}
    prices = found.prices
    if entry.price is not None:
        prices = (Price(entry.price, entry.region or "own", entry.price_date, "bench.yaml", True),)
    elif base != entry.name and entry.like is not None:
        prices = ()  # the list price belongs to another machine
    return replace(
        found,
        name=entry.name,
        provider=found.provider if base == entry.name else "own",
        gpu=catalogue.gpu(entry.gpu).name if entry.gpu else found.gpu,
        gpus=entry.gpus or found.gpus,
        links=replace(links, **changes),
        prices=prices,
    )


def ran_as(name: str | None, own: Mapping[str, OwnInstance]) -> tuple[str | None, Mapping[str, float], str]:
    """Return the catalogue's type for a run, the site's link rates, and the reason if a run cannot use the type.

    The reason is '' if a run can use the type. bench.yaml may change the rates and the price of a type. If bench.yaml
    changes any other property, only predictions can use the type. Raises UsageError for an unknown name.
    """
    if name is None or name not in own:
        return (None if name is None else catalogue.instance(name).name), {}, ""
    entry, known = own[name], catalogue.instances()
    base = entry.like or (name if name in known else None)
    differs = ""
    if base is None or any(
        (
            entry.gpu,
            entry.gpus,
            entry.peers,
            entry.nics,
            entry.nodes_per_leaf,
            entry.oversubscription,
            entry.gpus_per_pcie_switch,
        )
    ):
        differs = (
            f"{name} differs from the catalogue in more than rates and price, which only predict and select can use: "
            "for a run, name a similar type and give `links:` in the cluster"
        )
    return (catalogue.instance(base).name if base is not None else None), entry.links, differs


def _bare(entry: OwnInstance) -> Instance:
    """Return the instance type for an entry that names GPUs but has no field `like`."""
    assert entry.gpu is not None and entry.gpus is not None
    latency = catalogue.yaml_file("links")["latency"]
    seconds = {f"{name}_s": latency[name]["us"] * 1e-6 for name in ("peer", "host", "network")}
    links = replace(catalogue.gpu_links(entry.gpu, entry.gpus), network_reduces=False, **seconds)
    return Instance(
        entry.name, "own", entry.gpu, entry.gpus, None, None, catalogue.gpu(entry.gpu).pcie, "unknown", links
    )
