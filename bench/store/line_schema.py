"""Check the lines of a results file. Types, ranges and nesting are checked before any value is used.

A file may be damaged, edited, or written by another program. A shape is a function that checks a value. Most shapes are
derived from the dataclasses into which the lines are read (core/record.py, core/inventory.py, core/links.py). A header
also has mappings whose keys are in no dataclass. Tables in this module define the shapes of the values in such
mappings. In such a mapping, every value may be null, which means unknown. The value of a key without a shape is
accepted if the value is not nested too deeply. Numbers must be finite and not negative, unless a table sets another
range for the key.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

from bench.core.device_use import DeviceUse
from bench.core.errors import UsageError
from bench.core.host_use import HostUse
from bench.core.inventory import Adapter, Gpu, NvLink, Path
from bench.core.links import NodeLinks
from bench.core.record import (
    BesideSamples,
    Contention,
    Failure,
    Header,
    OverlapSamples,
    ReadSamples,
    Record,
    Skip,
    StarvedRank,
    StepSamples,
    WrongData,
)
from bench.core.remarks import CodedRemark

MOST_NESTED = 12  # levels of lists and mappings in a value without a shape
_LARGEST = 1 << 63
_MOST_RANKS_BITS = 20  # of a run: tables by rank must fit the memory
SHOWN = 40  # most letters of a wrong value that a message shows
_MOST_FORMS = 256  # of mappings, to remember

# A shape returns None if the value matches, otherwise (position, expected value, the value); the position is like
# ".gpus[2].name".
Misfit = tuple[str, str, Any]
Shape = Callable[[Any], Misfit | None]


def text(value: Any) -> Misfit | None:
    """Check that the value is a string."""
    return None if isinstance(value, str) else ("", "str", value)


def flag(value: Any) -> Misfit | None:
    """Check that the value is true or false."""
    return None if isinstance(value, bool) else ("", "bool", value)


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A shape of finite numbers in a range.

    `limits`: the smallest and the largest value of each type that is accepted.
    `expected`: the range in words.
    """

    limits: Mapping[type[float], tuple[float, float]]
    expected: str

    def __call__(self, value: Any) -> Misfit | None:
        """Check the type and the range of the value."""
        for kind, (least, most) in self.limits.items():
            if isinstance(value, kind) and not isinstance(value, bool):
                if least <= value <= most:
                    return None
                finite = float not in self.limits or -_MOST[kind] <= value <= _MOST[kind]
                return "", self.expected if finite else "finite float", value
        return "", "float" if float in self.limits else "int", value


_MOST: dict[type[float], float] = {float: sys.float_info.max, int: 1 << 1000}  # the largest finite numbers
number = Number({kind: (0, most) for kind, most in _MOST.items()}, "float of 0 or more")
positive = Number({float: (math.ulp(0.0), _MOST[float]), int: (1, _MOST[int])}, "float above 0")
signed = Number({kind: (-most, most) for kind, most in _MOST.items()}, "finite float")


def whole(least: int, most: int = _LARGEST - 1) -> Number:
    """Return a check for an integer from `least` to `most`."""
    return Number({int: (least, most)}, f"int from {least} to 2^{(most + 1).bit_length() - 1}")


def limit(value: Any) -> Misfit | None:
    """Check that the value is a number of bytes, or a string such as `unlimited`."""
    return None if isinstance(value, str) else whole(0)(value)


def anything(value: Any) -> Misfit | None:
    """Accept any JSON value that has only finite numbers and at most MOST_NESTED levels of nesting."""
    level = [value]
    for _ in range(MOST_NESTED):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                inner += each.values()
            elif isinstance(each, (list, tuple)):
                inner += each
            elif isinstance(each, (int, float)) and not isinstance(each, bool) and (misfit := signed(each)):
                return misfit
        level = inner
        if not level:
            return None
    return "", f"nested at most {MOST_NESTED} deep", value


@dataclass(frozen=True, slots=True)
class _Open:
    """The checks that a mapping still needs if its keys and the types of its values are valid.

    `ranges`: the keys whose values must be in a range, each with its range.
    `others`: the other keys whose values must be checked, each with the shape of the value.
    """

    ranges: Sequence[tuple[str, float, float]]
    others: Sequence[tuple[str, Shape]]

    @classmethod
    def of(cls, accepted: Mapping[str, Any], shape_of: Callable[[str], Shape]) -> _Open:
        """Return the checks that a mapping with the same form as `accepted` still needs.

        `accepted`: a mapping that passed the whole check.
        """
        ranges, others = [], []
        for key, value in accepted.items():
            shape = shape_of(key)
            if isinstance(shape, Number) and type(value) in shape.limits:
                ranges.append((key, *shape.limits[type(value)]))
            elif value is not None and shape not in (text, flag):
                others.append((key, shape))
        return cls(ranges, others)

    def accepts(self, value: Mapping[str, Any]) -> bool:
        """Check the values of a mapping whose keys and types are already known to be valid."""
        for key, least, most in self.ranges:
            if not least <= value[key] <= most:
                return False
        return not any([shape(value[key]) for key, shape in self.others])


def remembering(check: Shape, shape_of: Callable[[str], Shape]) -> Shape:
    """Return a check with the same results as `check` that is faster if it has already seen a mapping of the same form.

    The form of a mapping is its keys and the types of their values. A file has many lines, but they have only a few
    different forms. After `check` has accepted a mapping, it is enough to check the numbers, lists and mappings in
    other mappings of the same form.

    `check`: a check for a mapping. Its result must depend only on the keys, and on whether each value has the shape of
        its key.
    `shape_of`: a function that returns the shape of a key.
    """
    forms: dict[tuple[Any, ...], _Open] = {}

    def quick(value: Any) -> Misfit | None:
        if type(value) is not dict:
            return check(value)
        form = (*value, *map(type, value.values()))
        known = forms.get(form)
        if known is not None and known.accepts(value):
            return None
        misfit = check(value)
        if misfit is None and known is None and len(forms) < _MOST_FORMS:
            forms[form] = _Open.of(value, shape_of)
        return misfit

    return quick


def nullable(shape: Shape) -> Shape:
    """Return a check that accepts null, and any value of this shape."""
    return lambda value: None if value is None else shape(value)


def each(shape: Shape, least: int = 0, most: int | None = None) -> Shape:
    """Return a check for a list. The list must have `least` to `most` values, and all values must have this shape."""

    def check(value: Any) -> Misfit | None:
        if not isinstance(value, (list, tuple)) or len(value) < least or (most is not None and len(value) > most):
            return "", "list" if most is None else f"list of {most}", value
        for index, item in enumerate(value):
            misfit = shape(item)
            if misfit is not None:
                return f"[{index}]{misfit[0]}", *misfit[1:]
        return None

    return check


def values(shape: Shape) -> Shape:
    """Return a check for a mapping. Any keys are valid, and all values must have this shape."""

    def check(value: Any) -> Misfit | None:
        if not isinstance(value, Mapping):
            return "", "mapping", value
        for key, item in value.items():
            misfit = shape(item)
            if misfit is not None:
                return f".{key[:SHOWN]}{misfit[0]}", *misfit[1:]
        return None

    return check


def keys(required: tuple[str, ...] = (), /, **shapes: Shape) -> Shape:
    """Return a check for a mapping. The value of each key must have the key's shape or be null.

    `required`: the keys that must be present and not null.
    """

    def check(value: Any) -> Misfit | None:
        if not isinstance(value, Mapping):
            return "", "mapping", value
        for key in required:
            if value.get(key) is None:
                return f".{key}", "present", None
        for key, item in value.items():
            misfit = None if item is None else shapes.get(key, anything)(item)
            if misfit is not None:
                return f".{key[:SHOWN]}{misfit[0]}", *misfit[1:]
        return None

    return check


def mode(value: Any) -> Misfit | None:
    """Check the mode of rows: isolated or pipelined."""
    return None if value in ("isolated", "pipelined") else ("", "isolated or pipelined", value)


def points(value: Any) -> Misfit | None:
    """Check measured (bytes, rate) pairs. No two pairs may have the same number of bytes."""
    misfit = each(each(positive, 2, 2))(value)
    if misfit is None and len({point[0] for point in value}) < len(value):
        return "", "pairs of different sizes", value
    return misfit


# Shapes of fields whose range is narrower or wider than their type allows, by the fields' names.
_RANGES: dict[str, Shape] = {
    **dict.fromkeys(("num_ranks", "num_nodes", "ranks_per_node"), whole(1, (1 << _MOST_RANKS_BITS) - 1)),
    "launch": whole(1),
    "calls_per_sample": whole(1),
    "samples_per_block": whole(1),
    "num_products": whole(1),
    "order": whole(1),
    "mode": mode,
    **dict.fromkeys(("alone_s", "product_alone_s", "product_s"), each(positive, 1)),
    "rates_bytes_per_s": each(number, 1),
    "needed_s": positive,
    "numa_node": whole(-1),
    "temperature_c": signed,
    "gpus": whole(1),
    "nvlink_nodes": whole(1),
    **dict.fromkeys(
        ("nvlink_bytes_per_s", "pair_bytes_per_s", "pcie_bytes_per_s", "nic_bytes_per_s", "memory_bytes_per_s"),
        positive,
    ),
}
_PLAIN: dict[str, Shape] = {"str": text, "bool": flag, "int": whole(0), "float": number, "Any": anything}
_NESTED = re.compile(r"(tuple|Sequence|Mapping)\[(?:str, )?([\w\[\], ]+?)(?:, \.\.\.)?\]")


def links(value: Any) -> Misfit | None:
    """Check the links of a node. The mapping is empty if the links are unknown."""
    misfit = of(NodeLinks)(value)
    if value == {} or misfit is not None:
        return None if value == {} else misfit
    try:
        NodeLinks.from_dict(value)
    except UsageError as error:
        return "", f"links ({error})", value
    return None


def header(value: Any) -> Misfit | None:
    """Check a header. If linkbench measured or modelled the run, its numbers of ranks and nodes must be consistent."""
    misfit = of(Header)(value)
    if misfit is not None or value.get("imported"):
        return misfit
    num_nodes, per_node = value["num_nodes"], value["ranks_per_node"]
    if num_nodes is None or per_node is None:
        return ".num_nodes" if num_nodes is None else ".ranks_per_node", "not null", None
    if value["num_ranks"] != num_nodes * per_node:
        return ".num_ranks", f"{num_nodes} nodes x {per_node} ranks", value["num_ranks"]
    return None


@cache
def of(kind: type, whole_one: bool = True) -> Shape:
    """Return the shape of a dataclass, from the annotations of its fields.

    Null is accepted only where an annotation allows None.

    `whole_one`: whether all fields without a default must be present. If False, a missing field causes an error only in
        the code that needs it.
    """
    shapes: dict[str, tuple[Shape, bool]] = {}
    for field in fields(kind):
        parts = str(field.type).split(" | ")
        free = _FREE.get(field.name) if kind is Header else None
        shapes[field.name] = free or _RANGES.get(field.name) or _of_part(parts[0]), "None" in parts
    required = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]

    def check(value: Any) -> Misfit | None:
        if not isinstance(value, Mapping):
            return "", "mapping", value
        for name in required if whole_one else ():
            if name not in value:
                return f".{name}", "present", None
        for name, item in value.items():
            shape, may_be_null = shapes.get(name, (anything, True))
            misfit = shape(item) if item is not None else None if may_be_null else ("", "not null", None)
            if misfit is not None:
                return f".{name[:SHOWN]}{misfit[0]}", *misfit[1:]
        return None

    return remembering(check, lambda name: shapes.get(name, (anything, True))[0])


def _of_part(part: str) -> Shape:
    if part in _PLAIN:
        return _PLAIN[part]
    if part == "Samples":
        return lambda value: _SAMPLES(value)
    if part in _KINDS:
        return lambda value: of(_KINDS[part], part not in ("NvLink", "Gpu", "Adapter", "Path"))(value)
    found = _NESTED.fullmatch(part)
    if found is None:
        return anything
    inner = nullable(_of_part(found[2])) if found[1] == "Mapping" else _of_part(found[2])
    return values(inner) if found[1] == "Mapping" else each(inner)


_OF_RECORDS = (
    Failure,
    Skip,
    WrongData,
    StarvedRank,
    Contention,
    OverlapSamples,
    BesideSamples,
    ReadSamples,
    StepSamples,
    HostUse,
    DeviceUse,
)
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (NvLink, Gpu, Adapter, Path, CodedRemark, *_OF_RECORDS)}
_REMARK = keys(("text",), line=whole(0), text=text, code=text, facts=values(anything))
_STATE = keys(
    load=each(number, 3, 3),
    num_running=whole(0),
    cpu_hz=number,
    num_throttled=whole(0),
    programs=each(keys(name=text, process=whole(0), cpus=number)),
)
_NODE = keys(
    **dict.fromkeys(("host", "product", "cpu_model", "governor", "container", "rack"), text),
    **dict.fromkeys(("gpu_driver", "gpu_cuda", "no_gpus_because", "told_by", "file"), text),
    **dict.fromkeys(("num_cpus", "num_cores", "num_sockets", "last_level_cache_bytes"), whole(0)),
    **dict.fromkeys(("memory_bytes", "available_memory_bytes", "shm_bytes", "shm_free_bytes"), whole(0)),
    **dict.fromkeys(("iommu", "gpu_driver_flavour", "hypervisor"), text),
    **dict.fromkeys(("acs", "peermem", "dmabuf", "verbs", "fabric_manager", "virtual_machine"), flag),
    max_locked_bytes=limit,
    cpu_quota=number,
    numa_nodes=each(keys(node=whole(0), cpus=text, memory_bytes=whole(0))),
    network_ports=each(keys(name=text, kind=text, state=text, driver=text, bytes_per_s=number, mtu_bytes=whole(0))),
    gpus=each(of(Gpu, False)),
    gpus_at_end=each(of(Gpu, False)),
    before=_STATE,
    after=_STATE,
    adapters=each(of(Adapter, False)),
    paths=each(of(Path, False)),
    lost=each(text),
)
_FIGURE = keys(("name", "unit", "where", "status", "line"), name=text, unit=text, where=text, status=text, value=signed)
_CLOCKS = values(values(nullable(signed)))
_FREE: dict[str, Shape] = {  # a header's mappings, whose annotations do not state their contents
    "nodes": values(_NODE),
    "ranks": each(keys(("host",), host=text, local_rank=whole(0), process=whole(0), cpus=each(whole(0)), nic=text)),
    "links": links,
    "settings": keys(
        **dict.fromkeys(("sync", "cache", "data", "launcher", "binding", "ci_method", "iteration_reduction"), text),
        **dict.fromkeys(("confidence", "budget_s", "max_s", "clock_resolution_s"), number),
        seed=signed,
        min_samples=whole(0),
        target_half_width=values(number),
    ),
    "calibration": keys(
        **dict.fromkeys(("message_s", "software_s", "sync_skew_p50_s", "sync_skew_p99_s", "sync_skew_max_s"), number),
        memcpy=points,
        clocks=_CLOCKS,
        no_bound_because=text,
    ),
    "imported": keys(
        **dict.fromkeys(("tool", "tool_version", "source", "sha256", "status", "failure", "failure_code"), text),
        line=whole(0),
        failure_facts=values(anything),
        translations=each(text),
        remarks=each(_REMARK),
        asked_bytes=each(whole(0)),
        figures=each(_FIGURE),
    ),
}


def seconds(value: Any) -> Misfit | None:
    """Check that the value is a list of numbers.

    Negative and infinite numbers are accepted. A row with negative or infinite times gets a flag, and no error.
    """
    good = isinstance(value, (list, tuple)) and set(map(type, value)) <= {float, int}
    return None if good else ("", "list of numbers", value)


_SAMPLES = keys(
    ("calls_per_sample", "loop"),
    **dict.fromkeys(("seconds", "warmup", "host_s", "enqueue_s", "skew_s"), seconds),
    by_rank=each(seconds),
    calls_per_sample=whole(1),
    loop=text,
    rank_mean_s=each(number),
    slowest_counts=each(whole(0)),
)
_CHECKS: dict[str, Shape] = {
    "header": header,
    "clocks": keys(("hosts",), hosts=_CLOCKS),
    "end": keys(("gpus",), gpus=values(each(of(Gpu, False))), hosts=values(_STATE)),
    "record": of(Record),
}
KINDS = tuple(_CHECKS)


def problem(kind: str, parsed: Mapping[str, Any]) -> str | None:
    """Return a text that says what is wrong in a line of this type (header, record, clocks, end).

    None if nothing is wrong.
    """
    misfit = _CHECKS[kind](parsed)
    return None if misfit is None else words(misfit)


def facts_problem(nodes: Mapping[str, Any]) -> str | None:
    """Return the error in the facts of the nodes, or None if all values match.

    `nodes`: the facts of each node, by the name of the host.
    """
    misfit = values(_NODE)(nodes)
    return None if misfit is None else words((f"nodes{misfit[0]}", *misfit[1:]))


def words(misfit: Misfit) -> str:
    """Return the error as text: the key, the expected value, and the beginning of the value."""
    where, expected, value = misfit
    if expected == "present":
        return f"{where.removeprefix('.')} is missing"
    return f"{where.removeprefix('.')} must be {expected}, not {_shown(value)}"


def _shown(value: Any) -> str:
    """Return the beginning of a value for a message. For a deeply nested value, return only its type."""
    if isinstance(value, (Mapping, list, tuple)) and len(value) and anything(value) is not None:
        return f"a nested {'mapping' if isinstance(value, Mapping) else 'list'}"
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return "a number above 2^63"
    return repr(value if not isinstance(value, str) else value[:SHOWN])[: 2 * SHOWN]
