"""Read a gate's rules file: YAML to frozen dataclasses. Every mistake names its file, line, column and key.

A demand is a sentence of a fixed form, such as `at least 80% of bound`. It is parsed, never evaluated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.config import values
from bench.config.yaml_file import Loc, YamlFile, load
from bench.core import plugins
from bench.core.errors import UsageError
from bench.core.option_parsers import one_of, whole
from bench.core.plugins import nearest
from bench.core.sweep import parse_sizes
from bench.core.units import parse_duration, parse_rate, parse_size
from bench.gate.messages import ALLOWED, FAILURES, PublicationRule
from bench.gate.rules import (
    METRICS,
    NETWORKS,
    RATES,
    TIMES,
    WEAKEST,
    Demand,
    Expect,
    GateRule,
    Rules,
)

Parse = Callable[[Any], Any]
_DEMAND = re.compile(r"(at least|at most) +(.+)")
_SHARE = re.compile(r"(\d+(?:\.\d+)?) ?% of (\w+)")
_BASELINE = re.compile(r"not slower than baseline(?: by (\d+(?:\.\d+)?) ?%)?")
_DAYS = re.compile(r"(\d+(?:\.\d+)?) ?d")
_DELTA = 0.05
_NAMING = ("transports", "topologies", "directions", "engines", "accesses", "memories", "vias")  # by their own words
# For each metric, what a demand may ask a share of.
_OF = {**dict.fromkeys(RATES, ("bound", "reference")), **dict.fromkeys(TIMES, ("reference",)), WEAKEST: ("median",)}


def load_rules(path: Path) -> Rules:
    """The rules of a file. Raises UsageError with line, column and key of the first mistake."""
    file = load(path)
    top = _mapping(file, (), _TOP)
    if "rules" not in top and "publish" not in top:
        raise file.fail((), "the key 'rules' is missing (or 'publish', for demands on a publication)")
    expect = _expect(file) if "expect" in top else Expect()
    return Rules(
        name=path.stem,
        description=_read(file, ("description",), _one(values.text), ""),
        rules=_rules(file) if "rules" in top else (),
        expect=expect,
        diagnose=_read(file, ("diagnose",), _one(values.switch), None),
        baseline=_read(file, ("baseline",), _one(values.text), ""),
        publish=_read(file, ("publish",), _many(_publication_rule), ()),
        text=file.text,
    )


def _rules(file: YamlFile) -> tuple[GateRule, ...]:
    entries = file.value["rules"]
    if not isinstance(entries, list) or not entries:
        raise file.fail(("rules",), "expected a list of at least one rule, each on a line that begins with '- '")
    everywhere = _read(file, ("allow",), _many(_allowed), ())
    rules: list[GateRule] = []
    for number in range(len(entries)):
        rule = _rule(file, ("rules", number), number, everywhere)
        if any(rule.name == other.name for other in rules):
            raise file.fail(("rules", number), f"two rules are called {rule.name!r}: give this one its own `name:`")
        rules.append(rule)
    return tuple(rules)


def _rule(file: YamlFile, loc: Loc, number: int, everywhere: tuple[str, ...]) -> GateRule:
    keys = _mapping(file, loc, (*_SELECTORS, *METRICS))
    if "pattern" not in keys and "patterns" not in keys:
        raise file.fail(loc, "a rule needs `pattern:` (or `patterns:`)")
    for plural, single in (("patterns", "pattern"), ("transports", "transport")):
        if plural in keys and single in keys:
            raise file.fail((*loc, plural), f"the rule also has {single!r}: keep one of them", key=True)
    given: dict[str, Any] = {}
    for key in keys:
        if key in _SELECTORS:
            field, parse = _SELECTORS[key]
            given[field] = _read(file, (*loc, key), parse, None)
    sizes, spans = given.pop("all_sizes", ((), ()))
    limits = tuple(_read(file, (*loc, key), _one(_demand(key)), None) for key in keys if key in METRICS)
    if not limits:
        raise file.fail(loc, f"the rule has no demand: give one of {', '.join(METRICS)}")
    allow = frozenset((*everywhere, *given.pop("allow", ())))
    name = given.pop("name", None) or _named(given, file.typed(loc).get("sizes"), number)
    return GateRule(name=name, limits=limits, sizes=sizes, spans=spans, allow=allow, **given)


def _named(given: Mapping[str, Any], sizes: Any, number: int) -> str:
    """The name of a rule without `name:`: what it selects."""
    parts = [", ".join(given["patterns"])]
    parts += [", ".join(map(str, given[key])) for key in _NAMING if given.get(key)]
    parts += [f"{given[key][0]} {key}" for key in ("nodes", "ranks") if given.get(key)]
    if sizes:
        parts.append(", ".join(sizes) if isinstance(sizes, list) else sizes)
    return " ".join(parts) or f"rule {number + 1}"


def _demand(metric: str) -> Callable[[str], Demand]:
    """The parser of `metric: DEMAND`."""

    def read(typed: str) -> Demand:
        text = " ".join(typed.split())
        compared = _BASELINE.fullmatch(text)
        if compared:
            if metric != "time":
                raise UsageError("only times are compared with a baseline: write `time: not slower than baseline`")
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
        if value <= 0 or not math.isfinite(value):
            raise UsageError(f"a share must be above 0% and finite: {_FORM}")
        return Demand(metric, side, value, share[2], text)

    return read


_FORM = (
    "write `at least 400 GB/s`, `at most 30us`, `at least 80% of bound` (or of reference), `at least 90% of median`, "
    "or `not slower than baseline by 5%`"
)


def _quantity(metric: str, text: str) -> float:
    if metric == WEAKEST:
        raise UsageError("weakest takes a share: write `at least 90% of median`")
    if not re.search(r"[A-Za-z]", text):
        raise UsageError(f"{text!r} has no unit: {'GB/s or Gbit/s' if metric in RATES else 'us, ms or s'}")
    return parse_rate(text) if metric in RATES else parse_duration(text)


def _expect(file: YamlFile) -> Expect:
    given = {}
    for key in _mapping(file, ("expect",), _EXPECT):
        field, parse = _EXPECT[key]
        given[field] = _read(file, ("expect", key), parse, None)
    return Expect(**given)


def _mapping(file: YamlFile, loc: Loc, known: Any) -> list[str]:
    """The keys of a mapping, all of them known."""
    value = file.value
    for part in loc:
        value = value[part]
    if not isinstance(value, dict):
        raise file.fail(loc, "expected a mapping (`key: value`)")
    for key in value:
        if key not in known:
            raise file.fail((*loc, key), f"there is no key {key!r}{nearest(str(key), list(known))}", key=True)
    return list(value)


def _read(file: YamlFile, loc: Loc, parse: Parse, default: Any) -> Any:
    if loc not in file.places:
        return default
    try:
        return parse(file.typed(loc))
    except UsageError as error:
        raise file.fail(loc, str(error)) from None


def _one(parse: Callable[[str], Any]) -> Parse:
    return values.one(parse)


def _many(parse: Callable[[str], Any]) -> Parse:
    return lambda typed: tuple(values.one(parse)(part) for part in values.listed(typed))


def _sizes(typed: Any) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Each size of `1M` and `8:1G:4` must be there; `1M:1G` is a span of sizes."""
    exact: set[int] = set()
    spans = []
    for part in values.listed(typed):
        text = values.one(str)(part)
        if text.count(":") == 1:
            first, last = map(parse_size, text.split(":"))
            if last < first:
                raise UsageError(f"sizes {text!r}: the last size is below the first")
            spans.append((first, last))
        else:
            exact |= set(parse_sizes(text))
    return tuple(sorted(exact)), tuple(spans)


def _allowed(word: str) -> str:
    if word not in ALLOWED:
        reason = "cannot be allowed" if word in FAILURES else "is not the name of a failure"
        raise UsageError(f"{word!r} {reason}; a rule can allow: {', '.join(ALLOWED)}")
    return word


def _age(text: str) -> float:
    days = _DAYS.fullmatch(text)
    seconds = float(days[1]) * 86400 if days else parse_duration(text)
    if not math.isfinite(seconds):
        raise UsageError(f"an age of {text[:20]!r} is not finite")
    return seconds


def _publication_rule(word: str) -> PublicationRule:
    known = list(map(str, PublicationRule))
    if word not in known:
        raise UsageError(f"there is no publication rule {word!r}{nearest(word, known)}; there are {', '.join(known)}")
    return list(PublicationRule)[known.index(word)]


def _transport(word: str) -> str:
    return plugins.check("transport", word)


_TOP = ("description", "expect", "baseline", "diagnose", "allow", "rules", "publish")
_SELECTORS: dict[str, tuple[str, Parse]] = {
    "name": ("name", _one(values.text)),
    "pattern": ("patterns", _many(values.judged_pattern)),
    "patterns": ("patterns", _many(values.judged_pattern)),
    "sizes": ("all_sizes", _sizes),
    "transport": ("transports", _many(_transport)),
    "transports": ("transports", _many(_transport)),
    "network": ("network", _one(one_of("network", NETWORKS))),
    "mode": ("modes", _many(one_of("mode", ("isolated", "pipelined")))),
    "dtype": ("dtypes", _many(values.OPTION["dtype"])),
    "op": ("reduce_ops", _many(values.OPTION["reduce_op"])),
    "topology": ("topologies", _many(values.OPTION["topology"])),
    "direction": ("directions", _many(values.judged_direction)),
    "engine": ("engines", _many(values.OPTION["engine"])),
    "access": ("accesses", _many(values.OPTION["access"])),
    "memory": ("memories", _many(values.OPTION["memory"])),
    "via": ("vias", _many(values.OPTION["via"])),
    "group": ("groups", _many(values.text)),
    "nodes": ("nodes", _many(whole(1))),
    "ranks": ("ranks", _many(whole(1))),
    "samples": ("samples", _one(whole(1))),
    "imported": ("imported", _one(values.switch)),
    "allow": ("allow", _many(_allowed)),
}
_EXPECT: dict[str, tuple[str, Parse]] = {
    "cluster": ("cluster", _one(values.cluster_name)),
    "instance": ("instance", _one(values.text)),
    "gpu": ("gpu", _one(values.text)),
    "transport": ("transport", _one(_transport)),
    "network": ("network", _one(one_of("network", NETWORKS))),
    "nodes": ("nodes", _one(whole(1))),
    "ranks": ("ranks", _one(whole(1))),
    "gpus_per_node": ("gpus_per_node", _one(whole(1))),
    "hosts": ("hosts", lambda typed: sum(_many(values.hosts)(typed), ())),
    "max_age": ("max_age_s", _one(_age)),
}
