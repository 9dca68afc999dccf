"""Read the YAML file of a gate's rules.

Demands have a fixed form, such as `at least 80% of bound`. Regular expressions parse the demands. No text is evaluated
as code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.config import schema, values
from bench.config.schema import Entries, Key, KeyMistake, Section, Value, Values
from bench.config.yaml_file import load
from bench.core.case import FACTORS
from bench.core.errors import UsageError
from bench.core.factors import Factor
from bench.core.option_parsers import one_of, switch, whole
from bench.core.plugins import nearest
from bench.core.sweep import parse_sizes
from bench.core.units import parse_duration, parse_rate, parse_size
from bench.gate.messages import ALLOWED, FAILURES
from bench.gate.publication_rules import PublicationRule
from bench.gate.rules import (
    METRICS,
    NETWORKS,
    PLACEMENTS,
    RATES,
    TIMES,
    WEAKEST,
    Demand,
    Expect,
    GateRule,
    Rules,
)

_DEMAND = re.compile(r"(at least|at most) +(.+)")
_SHARE = re.compile(r"(\d+(?:\.\d+)?) ?% of (\w+)")
_BASELINE = re.compile(r"not slower than baseline(?: by (\d+(?:\.\d+)?) ?%)?")
_DAYS = re.compile(r"(\d+(?:\.\d+)?) ?d")
_DELTA = 0.05
_FORM = (
    "write `at least 400 GB/s`, `at most 30us`, `at least 80% of bound` (or of reference), `at least 90% of median`, "
    "or `not slower than baseline by 5%`"
)
# For each metric, the quantities that a share may refer to.
_OF = {**dict.fromkeys(RATES, ("bound", "reference")), **dict.fromkeys(TIMES, ("reference",)), WEAKEST: ("median",)}


def load_rules(path: Path) -> Rules:
    """Read the rules of a file. Raises UsageError that names the line, column and key of the first mistake."""
    file = load(path)
    rules: Rules = replace(schema.read(file, _RULES), text=file.text, name=path.stem)
    return rules


def _rules(rules: tuple[GateRule, ...] = (), allow: tuple[str, ...] = (), **found: Any) -> Rules:
    """Build the rules of a whole file. The failures in `allow` are allowed in every rule."""
    if not rules and "publish" not in found:
        raise UsageError("the key 'rules' is missing (or 'publish', for demands on a publication)")
    names = [rule.name for rule in rules]
    for number, name in enumerate(names):
        if name in names[:number]:
            twice = f"two rules are called {name!r}: give this one its own `name:`"
            raise KeyMistake(("rules", number), twice, at_value=True)
    everywhere = frozenset(allow)
    return Rules(name="", rules=tuple(replace(rule, allow=rule.allow | everywhere) for rule in rules), **found)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes in bytes.

    `exact`: message sizes that must each have a row. `spans`: ranges of sizes, from the first to the last. `text`: the
    sizes as typed.
    """

    exact: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    text: str


def _rule(**found: Any) -> GateRule:
    """Build one rule. The demands of the rule keep the order of the file."""
    limits = tuple(found.pop(metric) for metric in list(found) if metric in METRICS)
    if not limits:
        raise UsageError(f"the rule demands nothing: give one of {', '.join(METRICS)}")
    sizes = found.pop("sizes", _Sizes((), (), ""))
    name = found.pop("name", None) or _name(found, sizes.text)
    allow = frozenset(found.pop("allow", ()))
    factors = {each.name: found.pop(each.name) for each in _FACTORS if each.name in found}
    typed = {field: factors.pop(factor) for factor, field in _OWN_FIELDS.items() if factor in factors}
    return GateRule(
        name=name,
        limits=limits,
        sizes=sizes.exact,
        spans=sizes.spans,
        allow=allow,
        factors=factors,
        **typed,
        **found,
    )


def _name(found: Mapping[str, Any], sizes: str) -> str:
    """Make a name from the selectors of a rule that has no name."""
    parts = [", ".join(found["patterns"])]
    parts += [", ".join(map(str, found[key])) for key in ("transports", *_NAMING) if key in found]
    parts += [f"{found[key][0]} {key}" for key in ("nodes", "ranks") if key in found]
    return " ".join([*parts, sizes] if sizes else parts)


def _demand(metric: str, typed: str) -> Demand:
    """Parse the demand of one metric. `typed`: what the file says after `metric:`."""
    text = " ".join(typed.split())
    compared = _BASELINE.fullmatch(text)
    if compared:
        if metric != "time":
            raise UsageError("runs are compared by their times: write `time: not slower than baseline`")
        return Demand(metric, "not-slower", float(compared[1]) / 100 if compared[1] else _DELTA, "baseline", text)
    demand = _DEMAND.fullmatch(text)
    if demand is None:
        raise UsageError(f"{typed!r} is not a demand: {_FORM}")
    side = demand[1].split()[1]
    share = _SHARE.fullmatch(demand[2])
    if share is None:
        return Demand(metric, side, _quantity(metric, demand[2]), "", text)
    if share[2] not in _OF[metric]:
        raise UsageError(f"{metric} can be a share of {' or '.join(_OF[metric])}, not of {share[2]!r}")
    value = float(share[1]) / 100
    if value <= 0:
        raise UsageError("a share of 0% demands nothing")
    if not math.isfinite(value):
        raise UsageError("a share must be a finite number")
    return Demand(metric, side, value, share[2], text)


def _quantity(metric: str, text: str) -> float:
    """Parse a quantity: bytes per second if it is a rate, seconds if it is a time."""
    if metric == WEAKEST:
        raise UsageError("weakest is a share: write `at least 90% of median`")
    if not re.search(r"[A-Za-z]", text):
        raise UsageError(f"{text!r} has no unit: {'GB/s or Gbit/s' if metric in RATES else 'us, ms or s'}")
    return parse_rate(text) if metric in RATES else parse_duration(text)


def _size(text: str) -> _Sizes:
    """Parse sizes. Each size in `1M` or `8:1G:4` must have a row. `1M:1G` is a range of sizes."""
    if text.count(":") != 1:
        return _Sizes(parse_sizes(text), (), text)
    first, last = map(parse_size, text.split(":"))
    if last < first:
        raise UsageError(f"sizes {text!r} end before they begin")
    return _Sizes((), ((first, last),), text)


def _all_sizes(parsed: tuple[_Sizes, ...]) -> _Sizes:
    exact = {size for each in parsed for size in each.exact}
    spans = tuple(span for each in parsed for span in each.spans)
    return _Sizes(tuple(sorted(exact)), spans, ", ".join(each.text for each in parsed))


def _allowed(word: str) -> str:
    if word not in ALLOWED:
        problem = "always fails the gate" if word in FAILURES else "is not the name of a failure"
        raise UsageError(f"{word!r} {problem}; a rule can allow: {', '.join(ALLOWED)}")
    return word


def _publication_rule(word: str) -> PublicationRule:
    known = list(map(str, PublicationRule))
    if word not in known:
        raise UsageError(f"there is no publication rule {word!r}{nearest(word, known)}; there are {', '.join(known)}")
    return list(PublicationRule)[known.index(word)]


def _age(text: str) -> float:
    """Parse an age such as `7d` or `36h` into seconds."""
    days = _DAYS.fullmatch(text)
    seconds = float(days[1]) * 86400 if days else parse_duration(text)
    if not math.isfinite(seconds):
        raise UsageError(f"age {text[:20]!r} must be a finite number")
    return seconds


# The factors that rows and headers store themselves, with their fields in a rule. Other factors are compared with the
# case of a job.
_OWN_FIELDS = {
    "mode": "modes",
    "dtype": "dtypes",
    "reduce_op": "reduce_ops",
    "topology": "topologies",
    "direction": "directions",
}
_FACTORS = sorted((each for each in FACTORS if each.selectable), key=lambda each: each.name_rank or 0)
_NAMING = [each.name for each in _FACTORS if each.name not in ("mode", "dtype", "reduce_op")]
_SPECIAL: dict[str, Callable[[str], Any]] = {
    "mode": one_of("mode", ("isolated", "pipelined")),  # a row has one of the two modes, never both
    "direction": values.judged_direction,
}


def _selector(selected: Factor) -> Key:
    return Key(Values(_SPECIAL.get(selected.name, selected.parse)), selected.keys)


_COUNTS = Key(Values(whole(1)))
_COUNT = Key(Value(whole(1)))
_NETWORK = Key(Value(one_of("network", NETWORKS)))
_TEXT = Key(Value(values.text))
_RULE = Section(
    {
        "name": _TEXT,
        "patterns": Key(Values(values.judged_pattern), ("pattern", "patterns"), required=True),
        "sizes": Key(Values(_size, merge=_all_sizes)),
        "transports": Key(Values(values.transport), ("transport", "transports")),
        "network": _NETWORK,
        **{each.name: _selector(each) for each in _FACTORS},
        "groups": Key(Values(values.text), ("group", "groups")),
        "nodes": _COUNTS,
        "ranks": _COUNTS,
        "samples": _COUNT,
        "imported": Key(Value(switch)),
        "placement": Key(Value(one_of("placement", PLACEMENTS))),
        "modelled": Key(Value(switch)),
        "allow": Key(Values(_allowed)),
        **{metric: Key(Value(partial(_demand, metric))) for metric in METRICS},
    },
    _rule,
)
_EXPECT = Section(
    {
        "cluster": Key(Value(values.cluster_name)),
        "instance": _TEXT,
        "gpu": _TEXT,
        "transport": Key(Value(values.transport)),
        "network": _NETWORK,
        "nodes": _COUNT,
        "ranks": _COUNT,
        "gpus_per_node": _COUNT,
        "hosts": Key(Values(values.hosts, merge=values.all_hosts)),
        "max_age_s": Key(Value(_age), ("max_age",)),
    },
    Expect,
)
_RULES = Section(
    {
        "description": _TEXT,
        "expect": Key(_EXPECT),
        "baseline": _TEXT,
        "diagnose": Key(Value(switch)),
        "allow": Key(Values(_allowed)),
        "rules": Key(Entries(_RULE)),
        "publish": Key(Values(_publication_rule)),
    },
    _rules,
)
