"""bench.yaml and scenarios: from YAML to the frozen dataclasses that the desk works with.

Every value goes, as it was typed, through the very function that reads it on a command line, and every error names
file, line, column and key. pydantic walks over the keys and appears in nothing that leaves this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.units import parse_duration, parse_rate
from bench.core.yaml_file import Loc, YamlFile, load
from bench.driver import values
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

    `transports` None: what suits the machine. `nodes` None: as many as the cluster has. `env` holds the values to try
    of each environment variable. `tools`: other people's benchmarks to run beside ours.
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
    file, keys_of = _site_keys(path)
    own = _own(keys_of)
    return {name: _cluster(file, name, keys, own) for name, keys in keys_of.clusters.items()}


def load_site(path: Path) -> Site:
    """The catalogue's instance types with those of a bench.yaml, if it is there. UsageError as above."""
    if not path.exists():
        return site_of({})
    _, keys_of = _site_keys(path)
    return site_of(_own(keys_of), path)


def _site_keys(path: Path) -> tuple[YamlFile, _SiteKeys]:
    file = load(path)
    return file, _validated(file, _SiteKeys, {0: _SiteKeys, 2: {"clusters": _ClusterKeys, "instances": _InstanceKeys}})


def _own(keys_of: _SiteKeys) -> dict[str, OwnInstance]:
    return {name: OwnInstance(name, **dict(keys)) for name, keys in keys_of.instances.items()}


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
    keys = _validated(file, _ScenarioKeys, {0: _ScenarioKeys, 2: _MeasureKeys})
    return Scenario(
        name=file.path.stem,
        path=file.path,
        description=keys.description,
        budget_s=keys.budget,
        max_s=keys.max_seconds,
        launches=keys.launches,
        measurements=tuple(Measurement(**dict(entry)) for entry in keys.measure),
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


def _cluster(file: YamlFile, name: str, keys: _ClusterKeys, own: Mapping[str, OwnInstance]) -> Cluster:
    loc: Loc = ("clusters", name)
    try:
        instance, links, differs = ran_as(keys.instance, own)
    except UsageError as error:
        raise file.fail((*loc, "instance"), str(error)) from None
    if keys.options and keys.launcher == "auto":
        raise file.fail((*loc, "options"), "options belong to one launcher: name it by `launcher:`", key=True)
    if keys.hosts and keys.launcher != "auto" and plugins.load("launcher", keys.launcher).LAUNCHER.remote:
        there = "nodelist: ..." if keys.launcher == "slurm" else "node-selector: ..."
        chosen = f"{keys.launcher} chooses the hosts by itself: leave `hosts:` out, or say `options: {{{there}}}`"
        raise file.fail((*loc, "hosts"), chosen, key=True)
    nodes = keys.nodes or len(keys.hosts) or 1
    if keys.hosts and len(keys.hosts) < nodes:
        named = f"{len(keys.hosts)} of the {nodes} nodes have a name here: name them all, or none"
        raise file.fail((*loc, "hosts"), named, key=True)
    twice = next((host for host, times in Counter(keys.hosts).items() if times > 1), None)
    if twice is not None:
        raise file.fail((*loc, "hosts"), f"{twice} is named twice: each host is one node", key=True)
    if keys.launcher == "direct" and nodes > 1:
        alone = f"direct starts one process here, not {nodes} nodes: name torchrun, mpirun or slurm"
        raise file.fail((*loc, "launcher"), alone)
    _check_racks(file, loc, keys)
    told = {"instance": instance, "nodes": nodes, "links": {**links, **keys.links}, "differs": differs,
            "site_instance": keys.instance if keys.instance in own else None}  # fmt: skip
    return Cluster(name=name, **dict(keys) | told)


def _check_racks(file: YamlFile, loc: Loc, keys: _ClusterKeys) -> None:
    """A host stands in one rack, and is one of those that are named, where they are."""
    of_host: dict[str, str] = {}
    known = set(keys.hosts)
    for rack, hosts in keys.racks.items():
        for host in hosts:
            if host in of_host:
                both = f"{host} is in {of_host[host]} as well" if of_host[host] != rack else f"{host} is named twice"
                raise file.fail((*loc, "racks", rack), f"{both}: a host stands in one rack")
            if known and host not in known:
                unknown = f"{host} is none of `hosts:`{plugins.nearest(host, keys.hosts)}"
                raise file.fail((*loc, "racks", rack), unknown)
            of_host[host] = rack


class _Mistake(ValueError):
    """What pydantic lets a validator raise; `below`: the index of the element at fault, where one of a list is."""

    def __init__(self, sentence: str, *below: int) -> None:
        super().__init__(sentence)
        self.below = below


def _one(parse: Callable[[str], Any]) -> PlainValidator:
    """One value, read by `parse`."""

    def read(typed: object) -> Any:
        try:
            return values.one(parse)(typed)
        except UsageError as error:
            raise _Mistake(str(error)) from None

    return PlainValidator(read)


def _many(parse: Callable[[str], Any], before: Callable[[object], list[Any]] = values.listed,
          after: Callable[[tuple[Any, ...]], Any] = tuple) -> PlainValidator:  # fmt: skip
    """One value or a list of them, each read by `parse`; `before` makes the list, `after` takes what was read."""

    def read(typed: object) -> Any:
        parsed: list[Any] = []
        try:
            parts = before(typed)
            for part in parts:
                parsed.append(values.one(parse)(part))
            return after(tuple(parsed))
        except UsageError as error:
            raise _Mistake(str(error), len(parsed)) from None  # beyond the list, when all were read

    return PlainValidator(read)


def _key(*names: str, default: Any = ...) -> Any:
    """A key under any of its names; the first is the one that errors teach."""
    return Field(default=default, validation_alias=AliasChoices(*names))


_OPTION = values.OPTION
_Text = Annotated[str, _one(values.text)]
_Texts = Annotated[tuple[str, ...], _many(values.text)]
_Hosts = Annotated[tuple[str, ...], _many(values.hosts, after=lambda read: sum(read, ()))]
_Value = Annotated[str, _one(values.variable)]
_Count = Annotated[int, _one(_OPTION["nodes"])]
_RanksPerNode = Annotated[int | None, _one(values.ranks_per_node)]
_Duration = Annotated[float, _one(parse_duration)]
_ClusterName = Annotated[str, _one(values.cluster_name)]
_Variable = Annotated[str, _one(values.variable_name)]


class _Keys(BaseModel):
    """A mapping that knows its keys; its fields are called as those of the dataclass it becomes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _ClusterKeys(_Keys):
    """One cluster."""

    instance: _Text | None = None
    nodes: _Count | None = None
    ranks_per_node: _RanksPerNode = None
    launcher: Annotated[str, _one(values.launcher)] = "auto"
    python: _Text | None = None
    mpirun: _Text | None = None
    setup: _Texts = ()
    env: dict[_Variable, _Value] = {}
    options: dict[Annotated[str, _one(values.option_name)], _Value] = {}
    hosts: _Hosts = ()
    agent: Annotated[tuple[str, ...], _many(values.text, before=values.words)] = ()
    port: Annotated[int, _one(values.port)] = 29500
    links: dict[Annotated[str, _one(values.link)], Annotated[float, _one(parse_rate)]] = {}
    nics: Annotated[tuple[str, ...], _many(values.nic_name)] = ()
    racks: dict[Annotated[str, _one(values.rack_name)], _Hosts] = {}


class _InstanceKeys(_Keys):
    """One instance type of the site's own, or what differs from the catalogue's."""

    like: _Text | None = None
    gpu: _Text | None = None
    gpus: _Count | None = None
    peers: Annotated[str | None, _one(values.peers)] = None
    links: dict[Annotated[str, _one(values.link)], Annotated[float, _one(parse_rate)]] = {}
    nics: _Count | None = None
    nodes_per_leaf: _Count | None = None
    oversubscription: Annotated[float | None, _one(values.ratio)] = None
    gpus_per_pcie_switch: _Count | None = None
    price: Annotated[float | None, _one(values.price)] = None
    price_date: Annotated[str | None, _one(values.date)] = None
    region: _Text | None = None


class _SiteKeys(_Keys):
    """A whole bench.yaml."""

    clusters: dict[_ClusterName, _ClusterKeys]
    instances: dict[_Text, _InstanceKeys] = {}


class _MeasureKeys(_Keys):
    """One entry of a scenario's `measure`."""

    patterns: Annotated[tuple[str, ...], _many(values.pattern)] = _key("patterns", "pattern")
    transports: Annotated[tuple[str, ...] | None, _many(_OPTION["transport"], after=values.transports)] = _key(
        "transports", "transport", default=None
    )
    sizes: Annotated[tuple[int, ...], _many(_OPTION["sizes"], after=values.sizes)] = _key(
        "sizes", "size", default=_DEFAULT.sizes
    )
    dtypes: Annotated[tuple[str, ...], _many(_OPTION["dtype"])] = _key("dtypes", "dtype", default=(_DEFAULT.dtype,))
    reduce_ops: Annotated[tuple[str, ...], _many(_OPTION["reduce_op"])] = _key(
        "ops", "op", default=(_DEFAULT.reduce_op,)
    )
    modes: Annotated[str, _one(_OPTION["mode"])] = _key("mode", default=_DEFAULT.mode)
    topologies: Annotated[tuple[str, ...], _many(_OPTION["topology"])] = _key(
        "topology", "topologies", default=(_DEFAULT.topology,)
    )
    orders: Annotated[tuple[str, ...], _many(_OPTION["order"], before=values.orders)] = _key(
        "order", "orders", default=(_DEFAULT.order,)
    )
    directions: Annotated[tuple[str, ...], _many(_OPTION["direction"])] = _key(
        "direction", "directions", default=(_DEFAULT.direction,)
    )
    in_place: Annotated[tuple[bool, ...], _many(values.switch)] = (_DEFAULT.in_place,)
    caches: Annotated[tuple[str, ...], _many(_OPTION["cache"])] = _key("cache", "caches", default=(_DEFAULT.cache,))
    roots: Annotated[tuple[int, ...], _many(_OPTION["root"])] = _key("roots", "root", default=(_DEFAULT.root,))
    thread_levels: Annotated[tuple[str, ...], _many(_OPTION["thread_level"])] = _key(
        "thread_level", "thread_levels", default=(_DEFAULT.thread_level,)
    )
    syncs: Annotated[tuple[str, ...], _many(_OPTION["sync"])] = _key("sync", "syncs", default=(_DEFAULT.sync,))
    loops: Annotated[tuple[str, ...], _many(_OPTION["loop"])] = _key("loop", "loops", default=(_DEFAULT.loop,))
    alignments: Annotated[tuple[int, ...], _many(_OPTION["alignment"])] = _key(
        "alignment", "alignments", default=(_DEFAULT.alignment,)
    )
    binds: Annotated[tuple[str, ...], _many(_OPTION["bind"])] = _key("bind", "binds", default=(_DEFAULT.bind,))
    schedule: Annotated[str, _one(_OPTION["schedule"])] = _DEFAULT.schedule
    like: Annotated[str, _one(_OPTION["like"])] = _DEFAULT.like
    tools: Annotated[tuple[str, ...], _many(values.tool)] = _key("tools", "tool", default=())
    window: Annotated[int, _one(_OPTION["window"])] = _DEFAULT.window
    matrix: Annotated[tuple[tuple[int, ...], ...], _many(_OPTION["matrix"], values.matrix, lambda read: read[0])] = ()
    nodes: Annotated[tuple[int, ...] | None, _many(_OPTION["nodes"])] = None
    ranks_per_node: Annotated[tuple[int | None, ...], _many(values.ranks_per_node)] = (None,)
    iterations: Annotated[int | None, _one(_OPTION["iterations"])] = None
    warmup: Annotated[int | None, _one(_OPTION["warmup"])] = None
    seed: Annotated[int, _one(_OPTION["seed"])] = _DEFAULT.seed
    aggressors: Annotated[tuple[str, ...], _many(_OPTION["aggressor"])] = _key(
        "aggressors", "aggressor", default=(_DEFAULT.aggressor,)
    )
    splits: Annotated[tuple[str, ...], _many(_OPTION["split"])] = _key("splits", "split", default=(_DEFAULT.split,))
    engines: Annotated[tuple[str, ...], _many(_OPTION["engine"])] = _key(
        "engine", "engines", default=(_DEFAULT.engine,)
    )
    accesses: Annotated[tuple[str, ...], _many(_OPTION["access"])] = _key(
        "access", "accesses", default=(_DEFAULT.access,)
    )
    memories: Annotated[tuple[str, ...], _many(_OPTION["memory"])] = _key(
        "memory", "memories", default=(_DEFAULT.memory,)
    )
    vias: Annotated[tuple[str, ...], _many(_OPTION["via"])] = _key("via", "vias", default=(_DEFAULT.via,))
    graphs: Annotated[tuple[bool, ...], _many(values.switch)] = _key("graph", "graphs", default=(_DEFAULT.graph,))
    tf32: Annotated[tuple[bool, ...], _many(values.switch)] = _key("tf32", default=(_DEFAULT.tf32,))
    share_gpu: Annotated[bool, _one(values.switch)] = _DEFAULT.share_gpu
    require: Annotated[tuple[tuple[str, str], ...], _one(_OPTION["require"])] = ()
    env: dict[_Variable, Annotated[tuple[str, ...], _many(values.variable)]] = {}


class _ScenarioKeys(_Keys):
    """A whole scenario file."""

    description: _Text = ""
    budget: Annotated[float | None, _one(parse_duration)] = None
    max_seconds: _Duration = _DEFAULT.max_s
    launches: _Count = 1
    measure: list[_MeasureKeys] = Field(min_length=1)


_Model = TypeVar("_Model", bound=_Keys)
_Levels = Mapping[int, type[_Keys] | Mapping[str, type[_Keys]]]  # known keys by depth, there by the first key
_UNKNOWN = ("extra_forbidden", "invalid_key")  # what pydantic calls a key that a model does not have


def _validated(file: YamlFile, model: type[_Model], levels: _Levels) -> _Model:
    """The keys of a file. `levels`: the keys known at each depth. UsageError: one mistake, a misspelt key first."""
    try:
        return model.model_validate(file.typed())
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        raise _told(file, min(errors, key=lambda error: error["type"] not in _UNKNOWN), levels) from None


def _told(file: YamlFile, error: ErrorDetails, levels: _Levels) -> UsageError:
    """pydantic's finding as our sentence, at its place in the file."""
    loc, kind = error["loc"], error["type"]
    if kind in _UNKNOWN:
        level = levels[len(loc) - 1]
        known = level[str(loc[0])] if isinstance(level, Mapping) else level
        return file.fail(loc, _unknown(str(loc[-1]), known), key=True)
    if kind == "missing":
        return file.fail(loc, f"the key {loc[-1]!r} is missing")
    if kind == "value_error":
        mistake = error["ctx"]["error"]
        if loc[-1] == "[key]":
            return file.fail(loc, str(mistake), key=True)
        return file.fail((*loc, *mistake.below), str(mistake))
    if kind in ("model_type", "dict_type"):
        return file.fail(loc, "lines of `key: value` must stand here")
    if kind in ("list_type", "too_short"):
        return file.fail(loc, "a list of at least one entry, each begun by '- ', must stand here")
    return file.fail(loc, error["msg"])


def _unknown(key: str, model: type[_Keys]) -> str:
    """Why a key is refused: nobody knows it, or it is there under its other name, too."""
    known = []
    for name, info in model.model_fields.items():
        choices = info.validation_alias.choices if isinstance(info.validation_alias, AliasChoices) else [name]
        if key in choices:
            return f"this key is also there as {choices[0]!r}: keep one of them"
        known.append(str(choices[0]))
    return f"no key is called {key!r}{plugins.nearest(key, known)}"
