"""Define the settings of a search: the factors that it varies, and the values of these factors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.config.scenario import Measurement, Scenario
from bench.controller.jobs import Site
from bench.core import plugins
from bench.core.case import FACTOR, FACTORS, Case, applies, check_steps
from bench.core.errors import UsageError
from bench.core.factors import Factor
from bench.core.pattern import Pattern
from bench.core.plugins import closest
from bench.core.traits import auto_choices, traits
from bench.tune.engine import Setting
from bench.tune.messages import TuneError

_UNSET = "unset"
_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Varied:
    """A factor or an environment variable, and its values.

    The first value of a factor belongs to the baseline. None means that an environment variable is not set.
    """

    name: str
    values: tuple[Any, ...]
    factor: Factor | None = None  # None: an environment variable

    def show(self, number: int) -> str:
        """Return a value as text for people."""
        value = self.values[number]
        if self.factor is None:
            return _UNSET if value is None else str(value)
        return _DEFAULT if value == self.factor.default and not value else self.factor.show(value)


@dataclass(frozen=True, slots=True)
class TuneSpace:
    """The settings of a search.

    `case`: the case of the baseline.
    `varied`: the factors and environment variables that the search varies.
    """

    case: Case
    nodes: int | None
    ranks_per_node: int | None
    varied: tuple[Varied, ...]

    @property
    def num_values(self) -> tuple[int, ...]:
        """The number of values of each factor."""
        return tuple(len(each.values) for each in self.varied)

    def case_of(self, setting: Setting) -> Case:
        """Return the case of a setting."""
        own = [(each, each.values[number]) for each, number in zip(self.varied, setting, strict=True)]
        return replace(self.case, **{each.factor.name: value for each, value in own if each.factor is not None})

    def variables_of(self, setting: Setting) -> dict[str, str]:
        """Return the environment variables of a setting."""
        own = [(each, each.values[number]) for each, number in zip(self.varied, setting, strict=True)]
        return {each.name: value for each, value in own if each.factor is None and value is not None}

    def words_of(self, setting: Setting) -> dict[str, str]:
        """Return the values of a setting by factor, as text."""
        return {each.name: each.show(number) for each, number in zip(self.varied, setting, strict=True)}

    def scenario_of(self, settings: Sequence[Setting], launches: int = 1) -> Scenario:
        """Return a scenario with one entry for each setting."""
        entries = tuple(map(self._measurement, settings))
        text = self.yaml_of(settings)
        return Scenario("tune", Path("tune.yaml"), text, entries, max_s=self.case.max_s, launches=launches)

    def _measurement(self, setting: Setting) -> Measurement:
        case = self.case_of(setting)
        values = {each.name: (getattr(case, each.name),) for each in _set_factors(case)}
        return Measurement(
            patterns=(case.pattern,),
            transports=(case.transport,),
            values=values,
            nodes=None if self.nodes is None else (self.nodes,),
            ranks_per_node=(self.ranks_per_node,),
            env={name: (value,) for name, value in self.variables_of(setting).items()},
        )

    def yaml_of(self, settings: Sequence[Setting]) -> str:
        """Return the text of a scenario file that measures these settings."""
        lines = ["# Written by linkbench tune."]
        if self.case.max_s != FACTOR["max_s"].default:
            lines.append(f"max_seconds: {json.dumps(FACTOR['max_s'].show(self.case.max_s))}")
        lines.append("measure:")
        for setting in settings:
            case = self.case_of(setting)
            keys: list[tuple[str, Any]] = [("pattern", case.pattern), ("transport", case.transport)]
            keys += [("nodes", self.nodes)] if self.nodes else []
            keys += [("ranks_per_node", self.ranks_per_node)] if self.ranks_per_node else []
            keys += [(each.keys[0], each.show(getattr(case, each.name))) for each in _set_factors(case)]
            lines += [
                f"{'    ' if number else '  - '}{key}: {json.dumps(value)}" for number, (key, value) in enumerate(keys)
            ]
            if variables := self.variables_of(setting):
                lines.append(f"    env: {json.dumps(variables)}")
        return "\n".join(lines) + "\n"


def _set_factors(case: Case) -> Iterator[Factor]:
    """Yield the factors with values other than their defaults. A scenario's entry must name these factors."""
    for each in FACTORS:
        if each.keys and each.name != "max_s" and getattr(case, each.name) != each.default:
            yield each


def known_factors(pattern: Pattern) -> tuple[Factor, ...]:
    """Return the factors that a search with this pattern can fix or vary.

    These are the pattern's own factors and a few general factors.
    """
    own = tuple(each for each in FACTORS if each.keys and each.name in pattern.factors)
    shared = ("order", "max_s", "iterations") if pattern.trains else ("sizes", "cache", "max_s", "iterations")
    return (*own, *(FACTOR[name] for name in shared))


def varied_by_user(texts: Sequence[str], case: Case, pattern: Pattern) -> tuple[Varied, ...]:
    """Parse each `--try NAME=VALUE,VALUE`. Raises UsageError.

    NAME is a factor's name, its option, or its key in scenarios. In capitals, NAME is an environment variable. If a
    value has a comma, `;` separates the values. The value `default` means the factor's default.
    """
    found: dict[str, Varied] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        values = [value.strip() for value in rest.split(";" if ";" in rest else ",")]
        if not equals or not all(values):
            raise UsageError.of(TuneError.NO_VALUES, text=text)
        each = _varied(name.strip(), values, case, pattern)
        if len(each.values) < 2:
            raise UsageError.of(TuneError.NO_VALUES, text=text)
        if each.name in found:
            raise UsageError.of(TuneError.TWICE, name=name.strip())
        found[each.name] = each
    return tuple(found.values())


def _varied(name: str, texts: Sequence[str], case: Case, pattern: Pattern) -> Varied:
    factors = {word: each for each in known_factors(pattern) for word in _names_of(each)}
    if name in factors:
        return _of_factor(factors[name], texts, case, pattern)
    if not name.isupper():
        names = [each.name for each in known_factors(pattern)]
        close = closest(name, tuple(factors))
        hint = f" (did you mean {close!r}?)" if close else ""
        facts = {"name": name, "pattern": pattern.name, "nearest": hint, "known": names}
        raise UsageError.of(TuneError.NO_FACTOR, **facts)
    return _of_variable(name, texts)


def _names_of(each: Factor) -> set[str]:
    return {each.name, *each.keys, *(flag.lstrip("-") for flag in each.flags)}


def _of_variable(name: str, texts: Sequence[str]) -> Varied:
    values = [None if text == _UNSET else text for text in texts]
    return Varied(name, tuple(dict.fromkeys([None, *values])))


def _of_factor(each: Factor, texts: Sequence[str], case: Case, pattern: Pattern) -> Varied:
    if not applies(each, pattern, case.transport) or not each.several:
        raise UsageError.of(TuneError.NO_EFFECT, name=each.name, pattern=pattern.name, transport=case.transport)
    values = [each.default if text == _DEFAULT else _parsed(each, text) for text in texts]
    return Varied(each.name, tuple(dict.fromkeys([getattr(case, each.name), *values])), each)


def _parsed(each: Factor, text: str) -> Any:
    try:
        return each.parse(text)
    except UsageError as error:
        raise UsageError(f"--try {each.name}: {error}") from None


def usual(case: Case, pattern: Pattern) -> tuple[Varied, ...]:
    """Return the factors and variables that a search varies by default.

    The values come from the fields `tuned` of the factors and of the transport's traits.
    """
    found = [
        _of_factor(each, texts, case, pattern)
        for each in known_factors(pattern)
        if applies(each, pattern, case.transport) and (texts := _sensible(each, case))
    ]
    variables = [_of_variable(name, texts) for name, texts in case.traits.tuned] if pattern.trains else []
    return tuple(each for each in (*found, *variables) if len(each.values) > 1)


def _sensible(each: Factor, case: Case) -> list[str]:
    """Return the tuned values of a factor that are allowed in this case.

    If several values have the same effect, only one of them is returned.
    """
    texts = [text for text in each.tuned if _is_allowed(replace(case, **{each.name: each.parse(text)}))]
    timed = case.timed
    if each.name == "bucket" and timed is not None:  # every bucket size above that of all gradients gives one bucket
        whole = [text for text in texts if each.parse(text) >= timed.layers * timed.num_bytes]
        texts = [text for text in texts if text not in whole[1:]]
    return texts


def _is_allowed(case: Case) -> bool:
    try:
        check_steps(case)
    except UsageError:
        return False
    return True


def transport_of(pattern: Pattern, asked: str | None, site: Site) -> str:
    """Return the transport of a search.

    If the user requests a transport, the function returns this transport. If the pattern has only one transport, the
    function returns that one. In all other cases, the result is the first transport on this machine that can train.
    """
    if asked is not None:
        return plugins.check("transport", asked)
    if pattern.transport is not None:
        return pattern.transport
    on_gpu = site.cluster.instance is not None or site.machine.num_gpus > 0
    return next(name for name in auto_choices(on_gpu=on_gpu) if traits(name).launcher == "torchrun")
