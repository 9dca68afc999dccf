"""Read scenarios, which are YAML files that list the cases to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.config import schema, values
from bench.config.schema import Content, Entries, Key, NamedEntries, Section, Value, Values
from bench.config.yaml_file import find, load
from bench.core.case import FACTOR, FACTORS
from bench.core.factors import Factor
from bench.core.option_parsers import whole
from bench.core.units import parse_duration


@dataclass(frozen=True, slots=True)
class Measurement:
    """One entry of a scenario's `measure`. The run measures every combination of the entry's values.

    `transports`: None means the transports that suit the machine.
    `nodes`: None means all nodes of the cluster.
    `least_ranks`: worlds with fewer ranks are skipped.
    `values`: for each factor that the entry names, the values to measure. A factor that the entry does not name has its
        default value.
    `env`: for each environment variable, the values to measure.
    `tools`: other benchmarks to run as well.
    """

    patterns: tuple[str, ...]
    transports: tuple[str, ...] | None = None
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    nodes: tuple[int, ...] | None = None
    ranks_per_node: tuple[int | None, ...] = (None,)
    least_ranks: int = 1
    tools: tuple[str, ...] = ()
    env: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def values_of(self, varied: Factor) -> tuple[Any, ...]:
        """Return the values of a factor to measure."""
        return self.values.get(varied.name, (varied.default,))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario.

    `budget_s`: the time budget in seconds for one launch of all jobs together.
    `max_s`: seconds for one row.
    `launches`: the number of launches of each job.
    `text`: the unchanged text of the file, which is kept with the results.
    """

    name: str
    path: Path
    text: str
    measurements: tuple[Measurement, ...]
    description: str = ""
    budget_s: float | None = None
    max_s: float = FACTOR["max_s"].default
    launches: int = 1


def load_scenario(name_or_path: str, folder: Path) -> Scenario:
    """Return a scenario by its name in `folder`, or by its path.

    Raises UsageError with the line, the column and the key of a mistake.
    """
    file = load(find("scenario", name_or_path, folder))
    return Scenario(name=file.path.stem, path=file.path, text=file.text, **schema.read(file, _SCENARIO))


def _content(varied: Factor) -> Content:
    """Return the `Content` object that parses the values of a factor into a tuple.

    If the factor can have only one value in each entry of a scenario, the tuple has one element.
    """
    if varied.several:
        return Values(varied.parse, varied.split)
    if varied.merge is None:
        return Value(lambda typed: (varied.parse(typed),))
    merge = varied.merge
    return Values(varied.parse, varied.split, lambda parsed: (merge(parsed),))


def _measurement(**found: Any) -> Measurement:
    own = {name: found.pop(name) for name in _OWN_KEYS if name in found}
    return Measurement(values=found, **own)


_OWN_KEYS = {
    "patterns": Key(Values(values.pattern), ("patterns", "pattern"), required=True),
    "transports": Key(Values(FACTOR["transport"].parse, merge=values.transports), ("transports", "transport")),
    "tools": Key(Values(values.tool), ("tools", "tool")),
    "nodes": Key(Values(FACTOR["nodes"].parse)),
    "ranks_per_node": Key(Values(values.ranks_per_node)),
    "least_ranks": Key(Value(whole(1))),
    "env": Key(NamedEntries(values.variable_name, Values(values.variable))),
}
_FACTOR_KEYS = {each.name: Key(_content(each), each.keys) for each in FACTORS if each.keys}
_SCENARIO = Section(
    {
        "description": Key(Value(values.text)),
        "budget_s": Key(Value(parse_duration), ("budget",)),
        "max_s": Key(Value(parse_duration), ("max_seconds",)),
        "launches": Key(Value(whole(1))),
        "measurements": Key(Entries(Section({**_OWN_KEYS, **_FACTOR_KEYS}, _measurement)), ("measure",), required=True),
    }
)
