"""workloads/*.yaml: from YAML to a Workload. Every mistake names file, line, column and key.

A file has `description`, `sources`, `preset` (another workload, whose keys hold where this one says nothing), and the
sections `model`, `training` and `parallel`. A figure that nobody read in a source is listed in `unverified`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.config import values
from bench.config.yaml_file import Loc, YamlFile, find, load, read
from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.core.option_parsers import one_of
from bench.core.plugins import nearest
from bench.core.units import parse_size
from bench.hardware import catalogue
from bench.predict.workload import COMPRESSIONS, OPTIMIZERS, RECOMPUTE, STRATEGIES, Mesh, ModelSizes, Span, Workload

_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MOST_DEEP = 5  # presets of presets


def count(typed: str) -> float:
    """A number above zero: 306M, 8.03B, 1e12, 602112 (decimal, unlike sizes of messages)."""
    match = _COUNT.fullmatch(typed)
    number = float(match[1]) * _THOUSANDS[match[2].upper()] if match else 0.0
    if not 0 < number < math.inf:
        raise UsageError(f"{typed!r} is not a number above zero such as 24, 306M or 8.03B")
    return number


def whole(typed: str) -> int:
    """A whole number above zero."""
    number = count(typed)
    if number != int(number):
        raise UsageError(f"{typed!r} is not a whole number above zero")
    return int(number)


def span(typed: str) -> Span:
    """`0.4`, or an interval, `0.3..0.5`; both ends above zero."""
    low, dots, high = typed.partition("..")
    ends = count(low.strip()), count((high if dots else low).strip())
    if ends[0] > ends[1]:
        raise UsageError(f"{typed!r} is no interval: its first end is the larger one")
    return ends


def fraction(typed: str) -> Span:
    """The same, at most 1."""
    ends = span(typed)
    if ends[1] > 1:
        raise UsageError(f"{typed!r} is above 1: it is a fraction of the data sheet's rate")
    return ends


def _strategy(typed: str) -> str:
    return one_of("strategy", STRATEGIES)({"fsdp": "zero3"}.get(typed, typed))


def _by_gpu(parse: Callable[[str], Span], all_alike: bool) -> Callable[[Any], Mapping[str, Span]]:
    """`{L40S: 0.3..0.4}`; one value for all GPUs where that has a meaning."""

    def parse_all(typed: Any) -> Mapping[str, Span]:
        if isinstance(typed, Mapping):
            return {catalogue.gpu(str(gpu)).name: values.one(parse)(value) for gpu, value in typed.items()}
        if all_alike:
            return {"": values.one(parse)(typed)}
        raise UsageError("lines of `GPU: value` must stand here, such as `L40S: 210`")

    return parse_all


_Reader = Callable[[Any], Any]
_dtype: _Reader = values.one(lambda typed: dtype_of(typed).name)
_TOP: Mapping[str, tuple[str, _Reader]] = {
    "description": ("description", values.one(values.text)),
    "sources": ("sources", lambda typed: tuple(map(values.one(values.text), values.listed(typed)))),
    "unverified": ("unverified", lambda typed: tuple(map(values.one(values.text), values.listed(typed)))),
    "preset": ("preset", values.one(values.text)),
}
# Section -> key -> (field, how it is read).
_SECTIONS: Mapping[str, Mapping[str, tuple[str, _Reader]]] = {
    "model": {
        "parameters": ("parameters", values.one(count)),
        "layers": ("layers", values.one(whole)),
        "hidden": ("hidden", values.one(whole)),
        "feedforward": ("feedforward", values.one(whole)),
        "heads": ("heads", values.one(whole)),
        "kv_heads": ("kv_heads", values.one(whole)),
        "vocabulary": ("vocabulary", values.one(whole)),
        "tokens": ("tokens", values.one(whole)),
        "gated": ("gated", values.one(values.switch)),
        "experts": ("experts", values.one(whole)),
        "active_experts": ("active_experts", values.one(whole)),
        "flops": ("flops_per_sample", values.one(count)),
    },
    "training": {
        "batch": ("batch", values.one(whole)),
        "accumulation": ("accumulation", values.one(whole)),
        "compute": ("compute", _dtype),
        "weights": ("weights", _dtype),
        "gradients": ("gradients", _dtype),
        "optimizer": ("optimizer", values.one(one_of("optimizer", tuple(OPTIMIZERS)))),
        "recompute": ("recompute", values.one(one_of("recomputation", RECOMPUTE))),
        "compression": ("compression", values.one(one_of("compression", COMPRESSIONS))),
        "rank": ("rank", values.one(whole)),
        "input": ("input_bytes", values.one(count)),
        "epoch": ("epoch_samples", values.one(whole)),
        "efficiency": ("efficiency", _by_gpu(fraction, all_alike=True)),
        "baselines": ("baselines", _by_gpu(span, all_alike=False)),
    },
    "parallel": {
        "strategy": ("strategy", values.one(_strategy)),
        "bucket": ("bucket_bytes", values.one(parse_size)),
        "overlap": ("overlap", values.one(values.switch)),
        "tensor": ("tensor", values.one(whole)),
        "pipeline": ("pipeline", values.one(whole)),
        "expert": ("expert", values.one(whole)),
        "shard": ("shard", values.one(whole)),
    },
}
_MESH = ("tensor", "pipeline", "expert", "shard")


def load_workload(name_or_path: str, folder: Path, settings: Sequence[str] = ()) -> Workload:
    """A workload by its name in `folder`, or by its path; `settings` ("training.batch=32") come on top.

    Raises UsageError naming line, column and key of the first mistake, or the setting at fault.
    """
    file = load(find("workload", name_or_path, folder))
    found = _merged(file, folder, 0)
    for setting in settings:
        found = _overlaid(found, _setting(setting))
    return _workload(file, found)


_Found = Mapping[str, Mapping[str, Any]]  # section ("" for the top) -> field -> value


def _merged(file: YamlFile, folder: Path, depth: int) -> _Found:
    """What a file says over what its preset says."""
    found = _read(file)
    preset = found[""].get("preset")
    if preset is None:
        return found
    if depth == _MOST_DEEP:
        raise file.fail(("preset",), f"presets of presets, {_MOST_DEEP} deep: write the values out")
    return _overlaid(_merged(load(find("workload", preset, folder)), folder, depth + 1), found)


def _overlaid(below: _Found, above: _Found) -> _Found:
    return {section: {**below.get(section, {}), **above.get(section, {})} for section in {**below, **above}}


def _read(file: YamlFile) -> _Found:
    """Every key of a file, read."""
    if not isinstance(file.value, dict):
        raise file.fail((), "lines of `key: value` must stand here")
    found: dict[str, dict[str, Any]] = {"": {}}
    for key in file.value:
        if key in _SECTIONS:
            if not isinstance(file.value[key], dict):
                raise file.fail((key,), "lines of `key: value` must stand here")
            found[key] = dict(_value(file, (key, inner), _SECTIONS[key]) for inner in file.value[key])
        else:
            found[""] |= [_value(file, (key,), _TOP, (*_TOP, *_SECTIONS))]
    return found


def _value(
    file: YamlFile, loc: Loc, keys: Mapping[str, tuple[str, _Reader]], known: Sequence[str] | None = None
) -> tuple[str, Any]:
    """(field, value) of one key."""
    key = str(loc[-1])
    if key not in keys:
        raise file.fail(loc, f"no key is called {key!r}{nearest(key, list(known or keys))}", key=True)
    field, reader = keys[key]
    try:
        return field, reader(file.typed(loc))
    except UsageError as error:
        raise file.fail(loc, str(error)) from None


def _setting(typed: str) -> _Found:
    """`training.batch=32` as a file would say it."""
    key, equals, value = typed.partition("=")
    section, dot, inner = key.strip().partition(".")
    if not (equals and dot) or section not in _SECTIONS:
        raise UsageError(f"--set {typed!r} is not like training.batch=32 (sections: {', '.join(_SECTIONS)})")
    if not value.strip():
        raise UsageError(f"--set {typed!r} has no value behind the equals sign")
    try:
        return _read(read(f"{section}: {{{inner}: {value}}}".encode(), Path("--set")))
    except UsageError as error:
        sentence = re.sub(r"^--set:\d+:\d+: ", "", str(error))
        raise UsageError(f"--set {typed}: {sentence}") from None


def _workload(file: YamlFile, found: _Found) -> Workload:
    """The dataclass; what a file as a whole gets wrong is told at its section."""
    top, model, training = found[""], found.get("model", {}), found.get("training", {})
    parallel = dict(found.get("parallel", {}))
    for section, field, have in (("model", "parameters", model), ("training", "batch", training)):
        if field not in have:
            raise file.fail((section,), f"the key '{section}.{field}' is missing")
    mesh = {key: parallel.pop(key) for key in _MESH if key in parallel}
    unverified = top.get("unverified", ())
    try:
        of_model = ModelSizes(**model)
    except UsageError as error:
        raise file.fail(("model",), str(error)) from None
    try:
        return Workload(
            name=file.path.stem,
            model=of_model,
            mesh=Mesh(**mesh),
            description=top.get("description", ""),
            sources=(*top.get("sources", ()), *(f"not read in a source: {each}" for each in unverified)),
            verified=not unverified,
            **training,
            **parallel,
        )
    except UsageError as error:
        raise file.fail(("parallel",) if "parallel" in found else ("training",), str(error)) from None
