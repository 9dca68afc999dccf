"""Scenarios: from YAML to what is to be measured, as config/clusters.py does with bench.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.config import values
from bench.config.keys import NEEDED, Entries, Key, Many, NamedEntries, One, Read, Section, whole
from bench.config.yaml_file import find, load
from bench.core import option_parsers
from bench.core.case import Case
from bench.core.units import parse_duration

_DEFAULT = Case(pattern="")


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


def load_scenario(name_or_path: str, folder: Path) -> Scenario:
    """A scenario by its name in `folder`, or by its path. Raises UsageError naming line, column and key."""
    file = load(find("scenario", name_or_path, folder))
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


_OPTION = values.OPTION

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
    ("least_ranks", "", (), One(option_parsers.whole(1))),
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
    ("env", "", (), NamedEntries(values.variable_name, Many(values.variable))),
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
        "description": Key(One(values.text), ""),
        "budget": Key(One(parse_duration), None),
        "max_seconds": Key(One(parse_duration), _DEFAULT.max_s),
        "launches": Key(One(option_parsers.whole(1)), 1),
        "measure": Key(Entries(_measure())),
    }
)
