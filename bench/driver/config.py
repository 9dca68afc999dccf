"""bench.yaml and scenarios: from YAML to the frozen dataclasses that the desk works with.

Every value goes, as it was typed, through the very function that reads it on a command line, and every error names
file, line, column and key (driver/keys.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.units import parse_duration, parse_rate
from bench.core.yaml_file import Loc, YamlFile, load
from bench.driver import values
from bench.driver.keys import NEEDED, Entries, Key, Many, Named, One, Read, Section, whole
from bench.driver.site import OwnInstance, Site, ran_as, site_of

_DEFAULT = Case(pattern="")


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


@dataclass(frozen=True, slots=True)
class Measurement:
    """One entry of a scenario's `measure`: the cross product of its tuples is measured. Sizes in bytes.

    `transports` None: what suits the machine. `nodes` None: as many as the cluster has. `least_ranks`: smaller worlds
    are left out. `env` holds the values to try of each environment variable. `tools`: other people's benchmarks to
    run beside ours.
    """

    patterns: tuple[str, ...]
    transports: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = _DEFAULT.sizes
    dtypes: tuple[str, ...] = (_DEFAULT.dtype,)
    reduce_ops: tuple[str, ...] = (_DEFAULT.reduce_op,)
    modes: str = _DEFAULT.mode
    topologies: tuple[str, ...] = (_DEFAULT.topology,)
    orders: tuple[str, ...] = (_DEFAULT.order,)
    directions: tuple[str, ...] = (_DEFAULT.direction,)
    in_place: tuple[bool, ...] = (_DEFAULT.in_place,)
    caches: tuple[str, ...] = (_DEFAULT.cache,)
    roots: tuple[int, ...] = (_DEFAULT.root,)
    thread_levels: tuple[str, ...] = (_DEFAULT.thread_level,)
    syncs: tuple[str, ...] = (_DEFAULT.sync,)
    loops: tuple[str, ...] = (_DEFAULT.loop,)
    alignments: tuple[int, ...] = (_DEFAULT.alignment,)
    binds: tuple[str, ...] = (_DEFAULT.bind,)
    schedule: str = _DEFAULT.schedule
    like: str = _DEFAULT.like
    tools: tuple[str, ...] = ()
    window: int = _DEFAULT.window
    matrix: tuple[tuple[int, ...], ...] = ()
    nodes: tuple[int, ...] | None = None
    ranks_per_node: tuple[int | None, ...] = (None,)
    least_ranks: int = 1
    iterations: int | None = None
    warmup: int | None = None
    seed: int = _DEFAULT.seed
    aggressors: tuple[str, ...] = (_DEFAULT.aggressor,)
    splits: tuple[str, ...] = (_DEFAULT.split,)
    engines: tuple[str, ...] = (_DEFAULT.engine,)
    accesses: tuple[str, ...] = (_DEFAULT.access,)
    memories: tuple[str, ...] = (_DEFAULT.memory,)
    vias: tuple[str, ...] = (_DEFAULT.via,)
    graphs: tuple[bool, ...] = (_DEFAULT.graph,)
    tf32: tuple[bool, ...] = (_DEFAULT.tf32,)
    share_gpu: bool = _DEFAULT.share_gpu
    require: tuple[tuple[str, str], ...] = ()
    env: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to measure. `budget_s`: for one launch of all of it; `max_s`: for a row.

    `launches`: how often each job runs.
    `text` is the file verbatim, to be kept with the results.
    """

    name: str
    path: Path
    description: str
    budget_s: float | None
    max_s: float
    launches: int
    measurements: tuple[Measurement, ...]
    text: str


def load_clusters(path: Path) -> Mapping[str, Cluster]:
    """The clusters of a bench.yaml by name. Raises UsageError naming line, column and key of the first mistake."""
    file, site = _site_keys(path)
    own = _own(site)
    return {name: _cluster(file, name, keys, own) for name, keys in site["clusters"].items()}


def load_site(path: Path) -> Site:
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


def load_scenario(name_or_path: str, folder: Path) -> Scenario:
    """A scenario by its name in `folder`, or by its path. Raises UsageError naming line, column and key."""
    file = load(_scenario_path(name_or_path, folder))
    keys = whole(file, _SCENARIO)
    return Scenario(
        name=file.path.stem,
        path=file.path,
        description=keys["description"],
        budget_s=keys["budget"],
        max_s=keys["max_seconds"],
        launches=keys["launches"],
        measurements=tuple(Measurement(**entry) for entry in keys["measure"]),
        text=file.text,
    )


def _scenario_path(name_or_path: str, folder: Path) -> Path:
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    if name_or_path not in known:
        raise UsageError(f"{folder} has no scenario {name_or_path!r}{plugins.nearest(name_or_path, known)}")
    return folder / f"{name_or_path}.yaml"


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
_RATES = Named(values.link, One(parse_rate))

_CLUSTER = Section(
    {
        "instance": Key(_TEXT, None),
        "nodes": Key(_COUNT, None),
        "ranks_per_node": Key(One(values.ranks_per_node), None),
        "launcher": Key(One(values.launcher), "auto"),
        "python": Key(_TEXT, None),
        "mpirun": Key(_TEXT, None),
        "setup": Key(Many(values.text), ()),
        "env": Key(Named(values.variable_name, _VALUE), {}),
        "options": Key(Named(values.option_name, _VALUE), {}),
        "hosts": Key(_HOSTS, ()),
        "agent": Key(Many(values.text, before=values.words), ()),
        "port": Key(One(values.port), 29500),
        "links": Key(_RATES, {}),
        "nics": Key(Many(values.nic_name), ()),
        "racks": Key(Named(values.rack_name, _HOSTS), {}),
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
    {"clusters": Key(Named(values.cluster_name, _CLUSTER)), "instances": Key(Named(values.text, _INSTANCE), {})}
)

# Of one entry of `measure`: the field of Measurement, its key ('': the same word), other names of it, how it is read.
_MEASURED: tuple[tuple[str, str, tuple[str, ...], Read], ...] = (
    ("patterns", "", ("pattern",), Many(values.pattern)),
    ("transports", "", ("transport",), Many(_OPTION["transport"], after=values.transports)),
    ("sizes", "", ("size",), Many(_OPTION["sizes"], after=values.sizes)),
    ("dtypes", "", ("dtype",), Many(_OPTION["dtype"])),
    ("reduce_ops", "ops", ("op",), Many(_OPTION["reduce_op"])),
    ("modes", "mode", (), One(_OPTION["mode"])),
    ("topologies", "topology", ("topologies",), Many(_OPTION["topology"])),
    ("orders", "order", ("orders",), Many(_OPTION["order"], before=values.orders)),
    ("directions", "direction", ("directions",), Many(_OPTION["direction"])),
    ("in_place", "", (), Many(values.switch)),
    ("caches", "cache", ("caches",), Many(_OPTION["cache"])),
    ("roots", "", ("root",), Many(_OPTION["root"])),
    ("thread_levels", "thread_level", ("thread_levels",), Many(_OPTION["thread_level"])),
    ("syncs", "sync", ("syncs",), Many(_OPTION["sync"])),
    ("loops", "loop", ("loops",), Many(_OPTION["loop"])),
    ("alignments", "alignment", ("alignments",), Many(_OPTION["alignment"])),
    ("binds", "bind", ("binds",), Many(_OPTION["bind"])),
    ("schedule", "", (), One(_OPTION["schedule"])),
    ("like", "", (), One(_OPTION["like"])),
    ("tools", "", ("tool",), Many(values.tool)),
    ("window", "", (), One(_OPTION["window"])),
    ("matrix", "", (), Many(_OPTION["matrix"], values.matrix, lambda read: read[0])),
    ("nodes", "", (), Many(_OPTION["nodes"])),
    ("ranks_per_node", "", (), Many(values.ranks_per_node)),
    ("least_ranks", "", (), _COUNT),
    ("iterations", "", (), One(_OPTION["iterations"])),
    ("warmup", "", (), One(_OPTION["warmup"])),
    ("seed", "", (), One(_OPTION["seed"])),
    ("aggressors", "", ("aggressor",), Many(_OPTION["aggressor"])),
    ("splits", "", ("split",), Many(_OPTION["split"])),
    ("engines", "engine", ("engines",), Many(_OPTION["engine"])),
    ("accesses", "access", ("accesses",), Many(_OPTION["access"])),
    ("memories", "memory", ("memories",), Many(_OPTION["memory"])),
    ("vias", "via", ("vias",), Many(_OPTION["via"])),
    ("graphs", "graph", ("graphs",), Many(values.switch)),
    ("tf32", "", (), Many(values.switch)),
    ("share_gpu", "", (), One(values.switch)),
    ("require", "", ("expect",), Many(_OPTION["require"], values.requirements, lambda read: read[0])),
    ("env", "", (), Named(values.variable_name, Many(values.variable))),
)


def _measure() -> Section:
    """The keys of an entry; what it leaves out is as Measurement says."""
    default: dict[str, Any] = {each.name: each.default for each in fields(Measurement)} | {"env": {}}
    return Section(
        {
            name: Key(read, NEEDED if default[name] is MISSING else default[name], key, others)
            for name, key, others, read in _MEASURED
        }
    )


_SCENARIO = Section(
    {
        "description": Key(_TEXT, ""),
        "budget": Key(One(parse_duration), None),
        "max_seconds": Key(One(parse_duration), _DEFAULT.max_s),
        "launches": Key(_COUNT, 1),
        "measure": Key(Entries(_measure())),
    }
)
