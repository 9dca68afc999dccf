"""Read workload files, workloads/*.yaml.

A file has the sections `model`, `training` and `parallel`, and the keys `description`, `sources`, `preset` and
`unverified`. `preset` names a workload file that supplies missing keys. `unverified` lists the figures that were not
read in a source.
"""

from __future__ import annotations

import json
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
from bench.predict.messages import Refusal
from bench.predict.model_config import sizes_of
from bench.predict.workload import (
    COMPRESSIONS,
    LOSSES,
    LOW_PRECISION,
    NF4,
    OPTIMIZERS,
    RECOMPUTE,
    SOFTWARE,
    STRATEGIES,
    Mesh,
    ModelSizes,
    Span,
    Workload,
)

_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MOST_DEEP = 5  # at most this many presets, each of which names the next
_MESH = ("tensor", "pipeline", "expert", "shard", "context", "interleave")
_LOW_NAMES = {"fp8": "float8", "mxfp8": "float8", "fp4": "float4", "mxfp4": "float4", "nvfp4": "float4"}

_Found = Mapping[str, Any]  # the value of each key, or the values of each section by field


def count(typed: str) -> float:
    """Return a number above zero: 306M, 8.03B, 1e12, 602112.

    Suffixes are decimal, unlike the suffixes of message sizes.
    """
    match = _COUNT.fullmatch(typed)
    number = float(match[1]) * _THOUSANDS[match[2].upper()] if match else 0.0
    if not 0 < number < math.inf:
        raise UsageError.of(Refusal.COUNT_INVALID, typed=typed)
    return number


def whole(typed: str) -> int:
    """Return an integer above zero."""
    number = count(typed)
    if number != int(number):
        raise UsageError.of(Refusal.WHOLE_INVALID, typed=typed)
    return int(number)


def span(typed: str) -> Span:
    """Return a number such as `0.4` or an interval such as `0.3..0.5`, above zero."""
    low, dots, high = typed.partition("..")
    ends = count(low.strip()), count((high if dots else low).strip())
    if ends[0] > ends[1]:
        raise UsageError.of(Refusal.INTERVAL_REVERSED, typed=typed)
    return ends


def fraction(typed: str) -> Span:
    """Return a number or an interval whose values are at most 1."""
    ends = span(typed)
    if ends[1] > 1:
        raise UsageError.of(Refusal.FRACTION_ABOVE_ONE, typed=typed)
    return ends


def _strategy(typed: str) -> str:
    return one_of("strategy", STRATEGIES)({"fsdp": "zero3"}.get(typed, typed))


def _gpu(typed: str) -> str:
    return catalogue.gpu(typed).name


def _for_all_gpus(typed: str) -> Mapping[str, Span]:
    return {"": fraction(typed)}


def _needs_gpus(typed: str) -> Mapping[str, Span]:
    raise UsageError.of(Refusal.BASELINES_WITHOUT_GPUS)


def _key(parse: Callable[[str], Any], *names: str) -> Key:
    return Key(Value(parse), names)


def _matrix_type(typed: str) -> str:
    name = _LOW_NAMES.get(typed.lower(), typed)
    return name if name in LOW_PRECISION else dtype_of(typed).name


def _weight_type(typed: str) -> str:
    return NF4 if typed.lower() == NF4 else dtype_of(typed).name


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
            "head_size": _key(whole),
            "vocabulary": _key(whole),
            "tokens": _key(whole),
            "gated": _key(switch),
            "experts": _key(whole),
            "active_experts": _key(whole),
            "flops_per_sample": _key(count, "flops"),
            "patch": _key(whole),
            "classes": _key(whole),
            "blocks": Key(Values(whole)),
            "channels": _key(whole),
            "image": _key(whole),
        }
    ),
    "training": Section(
        {
            "batch": _key(whole),
            "accumulation": _key(whole),
            "compute": _key(_matrix_type),
            "weights": _key(_weight_type),
            "gradients": _DTYPE,
            "optimizer": _key(one_of("optimizer", tuple(OPTIMIZERS))),
            "recompute": _key(one_of("recomputation", RECOMPUTE)),
            "compression": _key(one_of("compression", COMPRESSIONS)),
            "rank": _key(whole),
            "lora": _key(whole),
            "software": _key(one_of("software", SOFTWARE)),
            "loss": _key(one_of("loss", tuple(LOSSES))),
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
            "sequence": _key(switch),
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
    """Load a workload by its name in `folder` or by its path.

    `settings`, such as "training.batch=32", replace values of the file.

    Raises UsageError with line, column and key of the first error, or with the wrong setting.
    """
    if Path(name_or_path).suffix == ".json":
        raise UsageError.of(Refusal.CONFIG_NO_WORKLOAD, path=name_or_path)
    file = load(find("workload", name_or_path, folder))
    found = _with_presets(file, folder, 0)
    for setting in settings:
        found = _merged(found, _setting(setting))
    return _workload(file, found)


def from_config(path: Path, settings: Sequence[str] = ()) -> Workload:
    """Make a workload from a model's config.json: one sample per rank and micro-batch, ZeRO 3, and the `settings`.

    Raises UsageError if the file cannot be read or has an unsupported type of model.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError.of(Refusal.CONFIG_NOT_READ, path=str(path), error=error.strerror) from None
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise UsageError.of(Refusal.CONFIG_UNREADABLE, path=str(path))
    sizes = sizes_of(config, str(path))
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    found: _Found = {
        "description": f"{config['model_type']} by its configuration, {sizes['tokens']} tokens per sample",
        "model": sizes,
        "training": {"batch": 1},
        "parallel": {"strategy": "zero3"},
    }
    for setting in settings:
        found = _merged(found, _setting(setting))
    return _workload(read(b"{}", Path(f"{name}.json")), found)


def _with_presets(file: YamlFile, folder: Path, depth: int) -> _Found:
    """Return the keys of a file and of its preset.

    If the file and its preset have the same key, the file's value is used.
    """
    found: _Found = schema.read(file, WORKLOAD)
    preset = found.get("preset")
    if preset is None:
        return found
    if depth == _MOST_DEEP:
        raise file.fail(("preset",), Refusal.PRESETS_TOO_DEEP.words({"most": _MOST_DEEP}))
    return _merged(_with_presets(load(find("workload", preset, folder)), folder, depth + 1), found)


def _merged(below: _Found, above: _Found) -> _Found:
    """Merge two sets of keys. Sections are merged key by key.

    If both sets have the same key, the value in `above` is used.
    """
    merged = {**below, **above}
    for name in _SECTIONS:
        if name in below and name in above:
            merged[name] = {**below[name], **above[name]}
    return merged


def _setting(typed: str) -> _Found:
    """Return the keys and values of a setting such as `training.batch=32`."""
    key, equals, value = typed.partition("=")
    section, dot, inner = key.strip().partition(".")
    if not (equals and dot) or section not in _SECTIONS:
        raise UsageError.of(Refusal.SETTING_INVALID, typed=typed, sections=list(_SECTIONS))
    if not value.strip():
        raise UsageError.of(Refusal.SETTING_EMPTY, typed=typed)
    try:
        found: _Found = schema.read(read(f"{section}: {{{inner}: {value}}}".encode(), Path("--set")), WORKLOAD)
    except UsageError as error:
        place = re.match(r"--set:\d+:\d+: ", str(error))
        mistake = str(error)[place.end() if place else 0 :]
        raise UsageError.of(Refusal.SETTING_WRONG, typed=typed, error=mistake) from None
    return found


def _workload(file: YamlFile, found: _Found) -> Workload:
    """Build the workload. If keys contradict each other, the error names the section of these keys."""
    model, training, parallel = (dict(found.get(name, {})) for name in _SECTIONS)
    for section, field, given in (("model", "parameters", model), ("training", "batch", training)):
        if field not in given:
            raise file.fail((section,), Refusal.KEY_MISSING.words({"key": f"{section}.{field}"}))
    mesh = {key: parallel.pop(key) for key in (*_MESH, "sequence") if key in parallel}
    make = partial(
        Workload,
        name=file.path.stem,
        model=schema.build(file, ("model",), partial(ModelSizes, **model)),
        mesh=Mesh(**mesh),
        description=found.get("description", ""),
        sources=found.get("sources", ()),
        unverified=found.get("unverified", ()),
        **training,
        **parallel,
    )
    return schema.build(file, ("parallel",) if "parallel" in found else ("training",), make)
