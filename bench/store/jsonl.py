"""Results files: a header line, then one record per line, written as soon as it is measured.

Schema history (the `schema` key of each header line):
  bench.results/1   first version
  bench.results/2   `seconds` is omitted if `by_rank` is kept: it is the maximum of each sample; `rank_mean_s` and
                    `slowest_counts` if it is not; `launch` in the header
  bench.results/3   `contention` of rows with aggressors; a line of type `clocks` after the rows, which replaces the
                    header's `calibration.clocks`; `clock_bound_s` of one-way rows
  bench.results/4   `imported` in the header of rows from another tool's log; `num_ranks`, `num_nodes` and
                    `ranks_per_node` may then be null, and `started` and `dtype` empty: unknown
  bench.results/5   `host_s` and `enqueue_s` in samples timed by a device's clock; `compared` of each row: full or
                    sampled; a line of type `end` after the rows: each host's GPUs at the end, added to its facts in the
                    header as `gpus_at_end`; `overlap` of rows with concurrent matrix products
  bench.results/6   `skipped` is {`code`, `facts`, `text`}, before only the text; `failed` has `code` and `facts`;
                    `remarks` of the header are its `notes` with codes and facts; `first_wrong`: the first wrong data
                    of a row, before in a flag "wrong: ..."

A file is complete by itself. A launch that completes an earlier one appends its own header; records belong to the
header above them. A truncated last line (the process was killed, the disk was full) is skipped with a warning.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bench.core.errors import MeasurementError, UsageError
from bench.core.record import Contention, Failure, Header, OverlapSamples, Record, Samples, Skip, WrongData
from bench.core.remarks import CodedRemark
from bench.store import older

SCHEMA = "bench.results/6"
_AT_ONCE = 256  # records per fsync
_READABLE = (*(f"bench.results/{number}" for number in range(1, 6)), SCHEMA)
_ALWAYS = ("num_ranks", "num_nodes")  # written even if unknown: a line without them is invalid
_TIMES = ("seconds", "host_s", "enqueue_s")
_OF_HEADER, _OF_RECORD = (tuple(each.name for each in fields(kind)) for kind in (Header, Record))
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_RESOLUTION_DIGITS = 10  # 0.1 ns: finer than any clock here, and half the size on disk
_PLAIN: dict[str, type | tuple[type, ...]] = {"str": str, "bool": bool, "int": int, "float": (int, float)}
_MANY = re.compile(r"(tuple|Mapping)\[(?:str, )?(\w+)(?:, \.\.\.)?\]")
_LARGEST = 1 << 1000  # larger numbers do not fit in a float

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch's part of a results file."""

    header: Header
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The contents of a results file, and warnings about lines that could not be read."""

    attempts: tuple[Attempt, ...]
    warnings: tuple[str, ...] = ()


class Writer:
    """Appends a header and records to a results file. Each is on disk when the call returns."""

    def __init__(self, path: Path, header: Header) -> None:
        """Open or continue the file and write the header. Raises MeasurementError if that fails."""
        self._path = path
        self._write(_headed(header), fresh_line=_ends_torn(path))

    def append(self, *records: Record) -> None:
        """Write records, several at once. Raises MeasurementError if the disk is full."""
        for first in range(0, len(records), _AT_ONCE):
            self._write(*map(_fields, records[first : first + _AT_ONCE]))

    def clocks(self, clocks: Mapping[str, Mapping[str, float]]) -> None:
        """Write the clocks of each host after the last row. Raises MeasurementError if the disk is full."""
        self._write({"type": "clocks", "hosts": clocks})

    def end(self, gpus: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Write the state of each host's GPUs after the last row. Raises MeasurementError if the disk is full."""
        self._write({"type": "end", "gpus": gpus})

    def _write(self, *lines: Mapping[str, Any], fresh_line: bool = False) -> None:
        data = ("\n" * fresh_line + "".join(map(_line, lines))).encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError("no space left on device")
                if stat.S_ISREG(os.fstat(descriptor).st_mode):  # not /dev/stdout, when that is a pipe
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _not_written(self._path, error) from None


def written(path: Path, header: Header, records: Iterable[Record]) -> Iterator[Record]:
    """Write a new file of imported records, yielding each one when it is written.

    There is no fsync: after a power failure the log can be imported again. Raises MeasurementError if the file cannot
    be written; exceptions of `records` pass through.
    """
    with _telling(path):
        file = path.open("w", encoding="utf-8")
    try:
        with _telling(path):
            file.write(_line(_headed(header)))
        for record in records:
            with _telling(path):
                file.write(_line(_fields(record)))
            yield record
    finally:
        with _telling(path):
            file.close()


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _not_written(path, error, ", and import again: the file may be incomplete") from None


def _not_written(path: Path, error: OSError, then: str = "; the rows written before are kept") -> MeasurementError:
    return MeasurementError(
        f"results file {path} cannot be written ({error.strerror or error}): free space or choose another path{then}"
    )


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def _line(told: Mapping[str, Any]) -> str:
    return _ENCODER.encode(told) + "\n"


def _headed(header: Header) -> dict[str, Any]:
    told = {name: getattr(header, name) for name in _OF_HEADER}
    return {"type": "header", "schema": SCHEMA, **told, "remarks": [asdict(remark) for remark in header.remarks]}


def _fields(record: Record) -> dict[str, Any]:
    """The line of a record, without unknown and empty fields."""
    held = ((name, getattr(record, name)) for name in _OF_RECORD)
    told = {name: value for name, value in held if value not in (None, [], {}) or name in _ALWAYS}
    if record.skipped is not None:
        told["skipped"] = asdict(record.skipped)
    if record.failed is not None:
        told["failed"] = asdict(record.failed)
    if record.first_wrong is not None:
        told["first_wrong"] = asdict(record.first_wrong)
    if record.contention is not None:
        told["contention"] = asdict(record.contention) | {"alone_s": _rounded(record.contention.alone_s)}
    if record.overlap is not None:
        sides = ("alone_s", "product_alone_s", "product_s")
        told["overlap"] = asdict(record.overlap) | {side: _rounded(getattr(record.overlap, side)) for side in sides}
    if record.samples is not None:
        samples = record.samples
        taken = {
            "seconds": [] if _implied(samples) else _rounded(samples.seconds),
            "by_rank": [_rounded(own) for own in samples.by_rank],
            "warmup": _rounded(samples.warmup),
            "calls_per_sample": samples.calls_per_sample,
            "loop": samples.loop,
            "rank_mean_s": samples.rank_mean_s,
            "slowest_counts": samples.slowest_counts,
            "host_s": _rounded(samples.host_s),
            "enqueue_s": _rounded(samples.enqueue_s),
        }
        told["samples"] = {key: value for key, value in taken.items() if value not in ([], ())}
    return {"type": "record", **told}


def _implied(samples: Samples) -> bool:
    """Are the seconds the maximum over ranks? If so, they need not be written."""
    return bool(samples.by_rank) and array("d", np.max(samples.by_rank, axis=0)) == samples.seconds


def _rounded(seconds: Iterable[float]) -> list[float]:
    return [round(value, _RESOLUTION_DIGITS) for value in seconds]


def read(path: Path) -> Results:
    """Read a results file. Raises UsageError if it is not one or has a newer schema."""
    attempts: list[Attempt] = []
    warnings: list[str] = []
    header: Header | None = None
    records: list[Record] = []
    for number, parsed in _lines(path, warnings):
        kind = parsed.pop("type", None)
        if kind == "header":
            _check_schema(parsed.pop("schema", None), path, number)
            if header is not None:
                attempts.append(Attempt(header, tuple(records)))
            header, records = _header(parsed, path, number), []
        elif kind == "clocks" and header is not None:
            header = with_clocks(header, parsed.get("hosts", {}))
        elif kind == "end" and header is not None:
            header = with_gpus_at_end(header, _gpus_at_end(parsed, path, number))
        elif kind == "record" and header is not None:
            records.append(_record(parsed, path, number))
        else:
            raise UsageError(f"{path}:{number}: a results file has no lines of type {kind!r}")
    if header is None:
        raise UsageError(f"{path} is not a results file: it has no header line")
    return Results((*attempts, Attempt(header, tuple(records))), tuple(warnings))


def with_clocks(header: Header, clocks: Mapping[str, Mapping[str, float]]) -> Header:
    """The header with the clocks measured after the last row."""
    return replace(header, calibration={**header.calibration, "clocks": clocks})


def with_gpus_at_end(header: Header, gpus: Mapping[str, Sequence[Mapping[str, Any]]]) -> Header:
    """The header with the state of each host's GPUs after the last row."""
    nodes = {
        host: {**node, **({"gpus_at_end": gpus[host]} if host in gpus else {})} for host, node in header.nodes.items()
    }
    return replace(header, nodes=nodes)


def _gpus_at_end(parsed: Mapping[str, Any], path: Path, number: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    gpus = parsed.get("gpus")
    if not isinstance(gpus, Mapping) or not all(
        isinstance(each, list) and all(isinstance(gpu, Mapping) for gpu in each) for each in gpus.values()
    ):
        raise UsageError(f"{path}:{number}: invalid end line (gpus is {str(gpus)[:40]!r})")
    return gpus


def _lines(path: Path, warnings: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object) of every valid line, one at a time, because a file may be large. Invalid lines add a warning."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    parsed = json.loads(line.decode("utf-8", errors="replace"))
                except ValueError:
                    parsed = None
                if isinstance(parsed, dict):
                    yield number, parsed
                elif line.strip():
                    warnings.append(f"{path}:{number}: skipped a truncated line; the rows before it are complete")
    except OSError as error:
        raise UsageError(f"results file {path} cannot be read ({error.strerror})") from None


def _check_schema(schema: str | None, path: Path, number: int) -> None:
    if schema not in _READABLE:
        raise UsageError(
            f"{path}:{number}: schema {schema!r} cannot be read (this is {SCHEMA}): use the version that wrote it"
        )


def _header(parsed: dict[str, Any], path: Path, number: int) -> Header:
    for key in ("case", "argv", "ranks", "notes"):
        parsed[key] = tuple(parsed.get(key) or ())
    try:
        parsed["remarks"] = tuple(CodedRemark(**remark) for remark in parsed.get("remarks") or ())
    except TypeError as error:
        raise UsageError(f"{path}:{number}: not a whole header line (remarks: {error})") from None
    if isinstance(parsed.get("imported"), dict):
        parsed["imported"] = older.imported(parsed["imported"])
    return _build(Header, parsed, path, number)


def _record(parsed: dict[str, Any], path: Path, number: int) -> Record:
    try:
        parsed["requested_bytes"] = tuple(parsed.get("requested_bytes", ()))
        parsed["flags"] = tuple(parsed.get("flags", ()))
        if "samples" in parsed:
            parsed["samples"] = _samples(parsed["samples"])
        if "contention" in parsed:
            parsed["contention"] = Contention(**parsed["contention"])
        if "overlap" in parsed:
            parsed["overlap"] = OverlapSamples(**parsed["overlap"])
        if "skipped" in parsed:
            skipped = parsed["skipped"]
            parsed["skipped"] = Skip.uncoded(skipped) if isinstance(skipped, str) else Skip(**skipped)
        if "failed" in parsed:
            parsed["failed"] = Failure(**older.failure(parsed["failed"]))
        if "first_wrong" in parsed:
            parsed["first_wrong"] = WrongData(**parsed["first_wrong"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}:{number}: invalid record line ({error})") from None
    parsed.setdefault("payload_bytes", 0)
    return _build(Record, parsed, path, number)


def _samples(told: Mapping[str, Any]) -> Samples:
    """Raise TypeError, ValueError or KeyError if the values are not samples."""
    if any(bool in map(type, own) for own in (*(told.get(key, ()) for key in _TIMES), *told.get("by_rank", ()))):
        raise ValueError("true and false are not seconds")
    by_rank = tuple(array("d", own) for own in told.get("by_rank", ()))
    seconds = told.get("seconds") or ([] if not by_rank else np.max(by_rank, axis=0))
    if any(len(own) != len(seconds) for own in by_rank):
        raise ValueError("the ranks have different numbers of samples")
    on_host = [told.get(key, ()) for key in ("host_s", "enqueue_s")]
    if any(len(own) not in (0, len(seconds)) for own in on_host):
        raise ValueError("host_s and enqueue_s must have one value per sample")
    return Samples(
        seconds=seconds,
        by_rank=by_rank,
        warmup=told.get("warmup", ()),
        calls_per_sample=told["calls_per_sample"],
        loop=told["loop"],
        rank_mean_s=tuple(told.get("rank_mean_s", ())),
        slowest_counts=tuple(told.get("slowest_counts", ())),
        host_s=on_host[0],
        enqueue_s=on_host[1],
    )


def _build(kind: type[T], parsed: dict[str, Any], path: Path, number: int) -> T:
    problem = _type_error(kind, parsed, null_allowed=kind is Header)
    if problem is not None:
        raise UsageError(f"{path}:{number}: invalid {kind.__name__.lower()} line ({problem})")
    known = _types(kind)  # type: ignore[arg-type]  # a class is hashable
    try:
        return kind(**{key: value for key, value in parsed.items() if key in known})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}:{number}: invalid {kind.__name__.lower()} line ({error})") from None


def _type_error(kind: type, parsed: Mapping[str, Any], null_allowed: bool) -> str | None:
    """The first field with a value of a wrong type, as text; None if there is none.

    The expected types are those of the dataclass: `float | None`, `Mapping[str, float]`. The check exists because a
    file may have been edited.
    """
    for name, parts in _types(kind).items():
        if name not in parsed:
            continue
        value = parsed[name]
        if value is None and (null_allowed or "None" in parts):
            continue
        if not any(_is(value, part) for part in parts):
            return f"{name} must be {' or '.join(parts)}, not {str(value)[:40]!r}"
    return None


@lru_cache
def _types(kind: type) -> Mapping[str, Sequence[str]]:
    """The possible types of each field of a dataclass, as text."""
    return {field.name: str(field.type).split(" | ") for field in fields(kind)}


def _is(value: object, part: str) -> bool:
    if part == "None":
        return value is None
    if part in _PLAIN:
        if isinstance(value, int) and (isinstance(value, bool) != (part == "bool") or abs(value) > _LARGEST):
            return False
        return isinstance(value, _PLAIN[part])
    if part.startswith("Mapping") and not isinstance(value, Mapping):
        return False
    many = _MANY.fullmatch(part)
    if many is None or many[2] not in _PLAIN:
        return True
    if isinstance(value, Mapping):
        return all(each is None or _is(each, many[2]) for each in value.values())
    return isinstance(value, tuple) and all(_is(each, many[2]) for each in value)
