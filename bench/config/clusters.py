"""Read bench.yaml: the clusters and instance types of a site."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.config import schema, values
from bench.config.schema import Key, KeyMistake, NamedEntries, Section, Value, Values
from bench.config.site import InstanceTypes, OwnInstance, ran_as, site_of
from bench.config.yaml_file import load
from bench.core import plugins
from bench.core.case import FACTOR
from bench.core.errors import UsageError
from bench.core.units import parse_rate


@dataclass(frozen=True, slots=True)
class Cluster:
    """One entry of `clusters` in bench.yaml, which says where ranks run.

    `links`: link rates, in bytes per second, that replace the catalogue's rates.
    `site_instance`: the name of the instance type if bench.yaml defines it, else None.
    `differs`: why a run cannot use that type, or "" if a run can use it.
    `ranks_per_node`: None means one rank per GPU of the instance type. For a cluster without a type, None depends on
        the transport. A transport of GPU memory has one rank per GPU of this machine. For any other transport, the
        number of ranks is the number of CPUs, limited to the range from 2 to 8.
    `launcher`: "auto" means the usual launcher of the transport.
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
    """Return the clusters of a bench.yaml by name.

    Raises UsageError naming line, column and key of the first mistake.
    """
    file = load(path)
    site = schema.read(file, _SITE)
    own = site.get("instances", {})
    return {
        name: schema.build(file, ("clusters", name), partial(_cluster, name, keys, own))
        for name, keys in site["clusters"].items()
    }


def load_site(path: Path) -> InstanceTypes:
    """Return the catalogue's instance types. If bench.yaml exists, its changes and additions are included.

    Raises UsageError for the first mistake in the file.
    """
    if not path.exists():
        return site_of({})
    return site_of(schema.load(path, _SITE).get("instances", {}), path)


def cluster(path: Path, name: str) -> Cluster:
    """Return one cluster of a bench.yaml. The name `local` means this machine and needs no entry.

    If there is no such cluster, raises UsageError with the nearest name or with all names.
    """
    clusters = {"local": Cluster("local"), **load_clusters(path)}
    if name not in clusters:
        close = plugins.closest(name, list(clusters))
        add = "" if close else f"; `linkbench init --name {shlex.quote(name)}` adds this machine under that name"
        raise UsageError(f"{path} has no cluster {name!r}{plugins.nearest(name, list(clusters))}{add}")
    return clusters[name]


def _cluster(name: str, keys: Mapping[str, Any], own: Mapping[str, OwnInstance]) -> Cluster:
    """Make a cluster from the keys of its entry and the site's own instance types. Raises KeyMistake."""
    asked, hosts, launcher = keys.get("instance"), keys.get("hosts", ()), keys.get("launcher", "auto")
    try:
        instance, links, differs = ran_as(asked, own)
    except UsageError as error:
        raise KeyMistake("instance", str(error), at_value=True) from None
    nodes = keys.get("nodes") or len(hosts) or 1
    if keys.get("options") and launcher == "auto":
        raise KeyMistake("options", "options belong to one launcher: name it with `launcher:`")
    _check_hosts(hosts, launcher, nodes)
    if launcher == "direct" and nodes > 1:
        raise KeyMistake(
            "launcher", f"direct starts one local process, not {nodes} nodes: use torchrun, mpirun or slurm", True
        )
    _check_racks(keys.get("racks", {}), hosts)
    resolved = {
        "instance": instance,
        "nodes": nodes,
        "links": {**links, **keys.get("links", {})},
        "differs": differs,
        "site_instance": asked if asked in own else None,
    }
    return Cluster(name=name, **{**keys, **resolved})


def _check_hosts(hosts: tuple[str, ...], launcher: str, nodes: int) -> None:
    """Check that no host is named twice, that there is a host for each node, and that the launcher accepts hosts."""
    if not hosts:
        return
    if launcher != "auto" and plugins.load("launcher", launcher).LAUNCHER.remote:
        option = "nodelist: ..." if launcher == "slurm" else "node-selector: ..."
        raise KeyMistake("hosts", f"{launcher} chooses the hosts: omit `hosts:`, or give `options: {{{option}}}`")
    if len(hosts) < nodes:
        raise KeyMistake("hosts", f"{len(hosts)} hosts are named for {nodes} nodes: name all nodes, or omit `hosts:`")
    host, times = Counter(hosts).most_common(1)[0]
    if times > 1:
        raise KeyMistake("hosts", f"{host} is named twice: each host is one node")


def _check_racks(racks: Mapping[str, tuple[str, ...]], named: tuple[str, ...]) -> None:
    """Check that no host is in two racks.

    If `hosts:` is given, also check that every host of a rack is in `hosts:`.
    """
    rack_of: dict[str, str] = {}
    for rack, hosts in racks.items():
        for host in hosts:
            if host in rack_of:
                again = "twice" if rack_of[host] == rack else f"in {rack_of[host]} as well"
                raise KeyMistake(("racks", rack), f"{host} is {again}: a host is in one rack", at_value=True)
            if named and host not in named:
                unknown = f"{host} is not in `hosts:`{plugins.nearest(host, named)}"
                raise KeyMistake(("racks", rack), unknown, at_value=True)
            rack_of[host] = rack


_TEXT, _VARIABLE = Key(Value(values.text)), Value(values.variable)
_COUNT = Key(Value(FACTOR["nodes"].parse))
_HOSTS = Values(values.hosts, merge=values.all_hosts)
_RATES = Key(NamedEntries(values.link, Value(parse_rate)))

_CLUSTER = Section(
    {
        "instance": _TEXT,
        "nodes": _COUNT,
        "ranks_per_node": Key(Value(values.ranks_per_node)),
        "launcher": Key(Value(values.launcher)),
        "python": _TEXT,
        "mpirun": _TEXT,
        "setup": Key(Values(values.text)),
        "env": Key(NamedEntries(values.variable_name, _VARIABLE)),
        "options": Key(NamedEntries(values.option_name, _VARIABLE)),
        "hosts": Key(_HOSTS),
        "agent": Key(Values(values.text, values.words)),
        "port": Key(Value(values.port)),
        "links": _RATES,
        "nics": Key(Values(values.nic_name)),
        "racks": Key(NamedEntries(values.rack_name, _HOSTS)),
    }
)

_INSTANCE = Section(
    {
        "like": _TEXT,
        "gpu": _TEXT,
        "gpus": _COUNT,
        "peers": Key(Value(values.peers)),
        "links": _RATES,
        "nics": _COUNT,
        "nodes_per_leaf": _COUNT,
        "oversubscription": Key(Value(values.ratio)),
        "gpus_per_pcie_switch": _COUNT,
        "price": Key(Value(values.price)),
        "price_date": Key(Value(values.date)),
        "region": _TEXT,
    }
)


def _own_instance(name: str, keys: Mapping[str, Any]) -> OwnInstance:
    return OwnInstance(name, **keys)


_SITE = Section(
    {
        "clusters": Key(NamedEntries(values.cluster_name, _CLUSTER), required=True),
        "instances": Key(NamedEntries(values.text, _INSTANCE, _own_instance)),
    }
)
