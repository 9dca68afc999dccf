"""workloads/*.yaml: what is trained, and how.

A file has `description`, `sources`, `preset` (another workload, whose keys hold unless this file sets them), and the
sections `model`, `training` and `parallel`. `unverified` lists the figures that were not read in a source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.config import schema, values
from bench.config.schema import Either, Key, NamedEntries, Section, Value, Values
from bench.config.yaml_file import YamlFile, find, load, read
from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.core.option_parsers import one_of, switch
from bench.core.units import parse_size
from bench.hardware import catalogue
from bench.predict.workload import COMPRESSIONS, OPTIMIZERS, RECOMPUTE, STRATEGIES, Mesh, ModelSizes, Span, Workload

_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MOST_DEEP = 5  # presets of presets
_MESH = ("tensor", "pipeline", "expert", "shard")

_Found = Mapping[str, Any]  # key -> value, or section -> field -> value


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
    """`0.4`, or an interval `0.3..0.5`; both ends above zero."""
    low, dots, high = typed.partition("..")
    ends = count(low.strip()), count((high if dots else low).strip())
    if ends[0] > ends[1]:
        raise UsageError(f"{typed!r} is not an interval: its first end is larger")
    return ends


def fraction(typed: str) -> Span:
    """A span of at most 1."""
    ends = span(typed)
    if ends[1] > 1:
        raise UsageError(f"{typed!r} is above 1: give a fraction of the data sheet's rate")
    return ends


def _strategy(typed: str) -> str:
    return one_of("strategy", STRATEGIES)({"fsdp": "zero3"}.get(typed, typed))


def _gpu(typed: str) -> str:
    return catalogue.gpu(typed).name


def _for_all_gpus(typed: str) -> Mapping[str, Span]:
    return {"": fraction(typed)}


def _needs_gpus(typed: str) -> Mapping[str, Span]:
    raise UsageError("expected a mapping (`GPU: value`), such as `L40S: 210`")


def _key(parse: Callable[[str], Any], *names: str) -> Key:
    return Key(Value(parse), names)


_DTYPE = _key(lambda typed: dtype_of(typed).name)
_SECTIONS = {
    "model": Section(
        {
            "parameters": _key(count),
            "layers": _key(whole),
            "hidden": _key(whole),
            "feedforward": _key(whole),
            "heads": _key(whole),
            "kv_heads": _key(whole),
            "vocabulary": _key(whole),
            "tokens": _key(whole),
            "gated": _key(switch),
            "experts": _key(whole),
            "active_experts": _key(whole),
            "flops_per_sample": _key(count, "flops"),
        }
    ),
    "training": Section(
        {
            "batch": _key(whole),
            "accumulation": _key(whole),
            "compute": _DTYPE,
            "weights": _DTYPE,
            "gradients": _DTYPE,
            "optimizer": _key(one_of("optimizer", tuple(OPTIMIZERS))),
            "recompute": _key(one_of("recomputation", RECOMPUTE)),
            "compression": _key(one_of("compression", COMPRESSIONS)),
            "rank": _key(whole),
            "input_bytes": _key(count, "input"),
            "epoch_samples": _key(whole, "epoch"),
            "efficiency": Key(Either(NamedEntries(_gpu, Value(fraction)), Value(_for_all_gpus))),
            "baselines": Key(Either(NamedEntries(_gpu, Value(span)), Value(_needs_gpus))),
        }
    ),
    "parallel": Section(
        {
            "strategy": _key(_strategy),
            "bucket_bytes": _key(parse_size, "bucket"),
            "overlap": _key(switch),
            **{name: _key(whole) for name in _MESH},
        }
    ),
}
WORKLOAD = Section(
    {
        "description": _key(values.text),
        "sources": Key(Values(values.text)),
        "unverified": Key(Values(values.text)),
        "preset": _key(values.text),
        **{name: Key(section) for name, section in _SECTIONS.items()},
    }
)


def load_workload(name_or_path: str, folder: Path, settings: Sequence[str] = ()) -> Workload:
    """A workload by its name in `folder`, or by its path; `settings` ("training.batch=32") override it.

    Raises UsageError naming line, column and key of the first mistake, or the setting that is wrong.
    """
    file = load(find("workload", name_or_path, folder))
    found = _with_presets(file, folder, 0)
    for setting in settings:
        found = _overlaid(found, _setting(setting))
    return _workload(file, found)


def _with_presets(file: YamlFile, folder: Path, depth: int) -> _Found:
    """The keys of a file over those of its preset."""
    found: _Found = schema.read(file, WORKLOAD)
    preset = found.get("preset")
    if preset is None:
        return found
    if depth == _MOST_DEEP:
        raise file.fail(("preset",), f"presets are nested {_MOST_DEEP} deep: write the values out")
    return _overlaid(_with_presets(load(find("workload", preset, folder)), folder, depth + 1), found)


def _overlaid(below: _Found, above: _Found) -> _Found:
    """Two sets of keys, of which `above` wins; sections are merged key by key."""
    merged = {**below, **above}
    for name in _SECTIONS:
        if name in below and name in above:
            merged[name] = {**below[name], **above[name]}
    return merged


def _setting(typed: str) -> _Found:
    """`training.batch=32` as a file would hold it."""
    key, equals, value = typed.partition("=")
    section, dot, inner = key.strip().partition(".")
    if not (equals and dot) or section not in _SECTIONS:
        raise UsageError(f"--set {typed!r} must look like training.batch=32 (sections: {', '.join(_SECTIONS)})")
    if not value.strip():
        raise UsageError(f"--set {typed!r} has no value after the equals sign")
    try:
        found: _Found = schema.read(read(f"{section}: {{{inner}: {value}}}".encode(), Path("--set")), WORKLOAD)
    except UsageError as error:
        place = re.match(r"--set:\d+:\d+: ", str(error))
        raise UsageError(f"--set {typed}: {str(error)[place.end() if place else 0 :]}") from None
    return found


def _workload(file: YamlFile, found: _Found) -> Workload:
    """The dataclass. A contradiction between keys is reported at its section."""
    model, training, parallel = (dict(found.get(name, {})) for name in _SECTIONS)
    for section, field, given in (("model", "parameters", model), ("training", "batch", training)):
        if field not in given:
            raise file.fail((section,), f"the key '{section}.{field}' is missing")
    mesh = {key: parallel.pop(key) for key in _MESH if key in parallel}
    unverified = found.get("unverified", ())
    made = partial(
        Workload,
        name=file.path.stem,
        model=schema.build(file, ("model",), partial(ModelSizes, **model)),
        mesh=Mesh(**mesh),
        description=found.get("description", ""),
        sources=(*found.get("sources", ()), *(f"not read in a source: {each}" for each in unverified)),
        verified=not unverified,
        **training,
        **parallel,
    )
    return schema.build(file, ("parallel",) if "parallel" in found else ("training",), made)
