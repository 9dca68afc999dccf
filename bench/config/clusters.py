"""bench.yaml: from YAML to the clusters and instance types that the desk works with.

Every value goes, as it was typed, through the very function that reads it on a command line, and every error names
file, line, column and key (config/keys.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.config import values
from bench.config.keys import Key, Many, NamedEntries, One, Section, whole
from bench.config.site import InstanceTypes, OwnInstance, ran_as, site_of
from bench.config.yaml_file import Loc, YamlFile, load
from bench.core import plugins
from bench.core.errors import UsageError
from bench.core.units import parse_rate


@dataclass(frozen=True, slots=True)
class Cluster:
    """One entry of bench.yaml: where ranks run. `links` in bytes per second, in place of the catalogue's figures.

    `site_instance`: the instance type where it is the site's own; `differs`: why ranks could not know it.
    `ranks_per_node` None: one per GPU (of the instance type, where it is named), else one per CPU of the machine at
    hand, at least 2. `launcher` "auto": the one that the transport names.
    """

    name: str
    instance: str | None = None
    nodes: int = 1
    ranks_per_node: int | None = None
    launcher: str = "auto"
    python: str | None = None
    mpirun: str | None = None
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    port: int = 29500
    links: Mapping[str, float] = field(default_factory=dict)
    nics: tuple[str, ...] = ()
    racks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    site_instance: str | None = None
    differs: str = ""


def load_clusters(path: Path) -> Mapping[str, Cluster]:
    """The clusters of a bench.yaml by name. Raises UsageError naming line, column and key of the first mistake."""
    file, site = _site_keys(path)
    own = _own(site)
    return {name: _cluster(file, name, keys, own) for name, keys in site["clusters"].items()}


def load_site(path: Path) -> InstanceTypes:
    """The catalogue's instance types with those of a bench.yaml, if it is there. UsageError as above."""
    if not path.exists():
        return site_of({})
    return site_of(_own(_site_keys(path)[1]), path)


def _site_keys(path: Path) -> tuple[YamlFile, Mapping[str, Any]]:
    file = load(path)
    return file, whole(file, _SITE)


def _own(site: Mapping[str, Any]) -> dict[str, OwnInstance]:
    return {name: OwnInstance(name, **keys) for name, keys in site["instances"].items()}


def cluster(path: Path, name: str) -> Cluster:
    """One cluster of a bench.yaml; UsageError with the nearest name, or all of them, when it has none of that name.

    `local`, this machine as it is, is there without being written down.
    """
    clusters = {"local": Cluster("local"), **load_clusters(path)}
    if name not in clusters:
        raise UsageError(f"{path} has no cluster {name!r}{plugins.nearest(name, list(clusters))}")
    return clusters[name]


def _cluster(file: YamlFile, name: str, keys: Mapping[str, Any], own: Mapping[str, OwnInstance]) -> Cluster:
    loc: Loc = ("clusters", name)
    try:
        instance, links, differs = ran_as(keys["instance"], own)
    except UsageError as error:
        raise file.fail((*loc, "instance"), str(error)) from None
    if keys["options"] and keys["launcher"] == "auto":
        raise file.fail((*loc, "options"), "options belong to one launcher: name it by `launcher:`", key=True)
    if keys["hosts"] and keys["launcher"] != "auto" and plugins.load("launcher", keys["launcher"]).LAUNCHER.remote:
        there = "nodelist: ..." if keys["launcher"] == "slurm" else "node-selector: ..."
        chosen = f"{keys['launcher']} chooses the hosts by itself: leave `hosts:` out, or say `options: {{{there}}}`"
        raise file.fail((*loc, "hosts"), chosen, key=True)
    nodes = keys["nodes"] or len(keys["hosts"]) or 1
    if keys["hosts"] and len(keys["hosts"]) < nodes:
        named = f"{len(keys['hosts'])} of the {nodes} nodes have a name here: name them all, or none"
        raise file.fail((*loc, "hosts"), named, key=True)
    twice = next((host for host, times in Counter(keys["hosts"]).items() if times > 1), None)
    if twice is not None:
        raise file.fail((*loc, "hosts"), f"{twice} is named twice: each host is one node", key=True)
    if keys["launcher"] == "direct" and nodes > 1:
        alone = f"direct starts one process here, not {nodes} nodes: name torchrun, mpirun or slurm"
        raise file.fail((*loc, "launcher"), alone)
    _check_racks(file, loc, keys)
    told = {
        "instance": instance,
        "nodes": nodes,
        "links": {**links, **keys["links"]},
        "differs": differs,
        "site_instance": keys["instance"] if keys["instance"] in own else None,
    }
    return Cluster(name=name, **{**keys, **told})


def _check_racks(file: YamlFile, loc: Loc, keys: Mapping[str, Any]) -> None:
    """A host stands in one rack, and is one of those that are named, where they are."""
    of_host: dict[str, str] = {}
    known = set(keys["hosts"])
    for rack, hosts in keys["racks"].items():
        for host in hosts:
            if host in of_host:
                both = f"{host} is in {of_host[host]} as well" if of_host[host] != rack else f"{host} is named twice"
                raise file.fail((*loc, "racks", rack), f"{both}: a host stands in one rack")
            if known and host not in known:
                unknown = f"{host} is none of `hosts:`{plugins.nearest(host, keys['hosts'])}"
                raise file.fail((*loc, "racks", rack), unknown)
            of_host[host] = rack


_OPTION = values.OPTION
_TEXT, _VALUE = One(values.text), One(values.variable)
_COUNT = One(_OPTION["nodes"])
_HOSTS = Many(values.hosts, after=lambda read: sum(read, ()))
_RATES = NamedEntries(values.link, One(parse_rate))

_CLUSTER = Section(
    {
        "instance": Key(_TEXT, None),
        "nodes": Key(_COUNT, None),
        "ranks_per_node": Key(One(values.ranks_per_node), None),
        "launcher": Key(One(values.launcher), "auto"),
        "python": Key(_TEXT, None),
        "mpirun": Key(_TEXT, None),
        "setup": Key(Many(values.text), ()),
        "env": Key(NamedEntries(values.variable_name, _VALUE), {}),
        "options": Key(NamedEntries(values.option_name, _VALUE), {}),
        "hosts": Key(_HOSTS, ()),
        "agent": Key(Many(values.text, before=values.words), ()),
        "port": Key(One(values.port), 29500),
        "links": Key(_RATES, {}),
        "nics": Key(Many(values.nic_name), ()),
        "racks": Key(NamedEntries(values.rack_name, _HOSTS), {}),
    }
)

_INSTANCE = Section(
    {
        "like": Key(_TEXT, None),
        "gpu": Key(_TEXT, None),
        "gpus": Key(_COUNT, None),
        "peers": Key(One(values.peers), None),
        "links": Key(_RATES, {}),
        "nics": Key(_COUNT, None),
        "nodes_per_leaf": Key(_COUNT, None),
        "oversubscription": Key(One(values.ratio), None),
        "gpus_per_pcie_switch": Key(_COUNT, None),
        "price": Key(One(values.price), None),
        "price_date": Key(One(values.date), None),
        "region": Key(_TEXT, None),
    }
)

_SITE = Section(
    {
        "clusters": Key(NamedEntries(values.cluster_name, _CLUSTER)),
        "instances": Key(NamedEntries(values.text, _INSTANCE), {}),
    }
)
