"""Read and write results files: a header line, then one line per record.

Each record is written as soon as it is measured.

Schema history (the `schema` key of each header line):
  bench.results/1   first version
  bench.results/2   `seconds` is omitted if it follows from `by_rank`, as the maximum over ranks; `rank_mean_s` and
                    `slowest_counts` in records without `by_rank`; `launch` in the header
  bench.results/3   `contention` of rows with aggressors; a line of type `clocks` after the rows, which replaces the
                    header's `calibration.clocks`; `clock_bound_s` of one-way rows
  bench.results/4   `imported` in the header of rows from another tool's log; `num_ranks`, `num_nodes` and
                    `ranks_per_node` may then be null, and `started` and `dtype` empty, if they are unknown
  bench.results/5   `host_s` and `enqueue_s` in samples timed by a device's clock; `compared` of each row: full or
                    sampled; a line of type `end` after the rows: each host's GPUs at the end, added to its facts in the
                    header as `gpus_at_end`; `overlap` of rows with concurrent matrix products
  bench.results/6   `skipped` is {`code`, `facts`, `text`} (until 5: only the text); `failed` has `code` and `facts`;
                    `reads` of rows that read a data set; `step` of rows that are training steps;
                    `checkpoint` of rows that are bursts of checkpoints;
                    `remarks` of the header are its `notes` with codes and facts; `first_wrong`: the first wrong data
                    of a row (until 5: in a flag "wrong: ..."); `starved`: the ranks of a row that lacked CPU time;
                    `hosts`: CPU time of a row's hosts; `hosts` in the line of type `end`: each host after the last
                    row, added to its facts in the header as `after`; `recorded_s` of rows that replay a job;
                    `beside` of copies that ran at the same time; `skew_s` in samples;
                    `devices`: what GPUs or CPUs did while a row was timed

A file can be read without any other file. If a later launch continues an interrupted launch, it appends its own header
and records to the same file. A record belongs to the last header before it. A truncated line (the process was killed,
the disk was full) is skipped with a warning. Any other line that does not fit the schema (store/line_schema.py) raises
an error that names the line.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson

from bench.core.device_use import DeviceUse
from bench.core.errors import MeasurementError, UsageError
from bench.core.host_use import HostUse
from bench.core.record import (
    BesideSamples,
    CheckpointSamples,
    Contention,
    Failure,
    Header,
    OverlapSamples,
    ReadSamples,
    Record,
    Samples,
    Skip,
    StarvedRank,
    StepSamples,
    WrongData,
)
from bench.core.remarks import CodedRemark
from bench.core.training_step import check_samples
from bench.store import line_schema, older

SCHEMA = "bench.results/6"
_AT_ONCE = 256  # records per fsync
_READABLE = (*(f"bench.results/{number}" for number in range(1, 6)), SCHEMA)
_ALWAYS = ("num_ranks", "num_nodes")  # keys that are written even if unknown, because a record without them is invalid
_OF_HEADER = dict.fromkeys(each.name for each in fields(Header))  # in order
_OF_RECORD: dict[str, Any] = {each.name: each.default for each in fields(Record)}  # in order, with their defaults
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
# 0.1 ns is finer than any clock in use; these digits need half as much disk space as all digits
_RESOLUTION_DIGITS = 10
_PARTS: dict[str, type] = {
    "contention": Contention,
    "overlap": OverlapSamples,
    "beside": BesideSamples,
    "reads": ReadSamples,
    "step": StepSamples,
    "checkpoint": CheckpointSamples,
    "skipped": Skip,
    "failed": Failure,
    "first_wrong": WrongData,
}
_LISTS: dict[str, type] = {"starved": StarvedRank, "hosts": HostUse, "devices": DeviceUse}

_NESTED = frozenset((*_PARTS, *_LISTS))
_OF_MODELLED = frozenset({"seconds", "calls_per_sample", "loop"})  # keys of samples without ranks and warm-up

GpusAtEnd = Mapping[str, Sequence[Mapping[str, Any]]]  # by host
HostsAtEnd = Mapping[str, Mapping[str, Any]]  # by host
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The part of a results file that one launch wrote."""

    header: Header
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The contents of a results file, and warnings about lines that could not be read."""

    attempts: tuple[Attempt, ...]
    warnings: tuple[str, ...] = ()


class Writer:
    """Appends a header and records to a results file. When a method returns, the data are on disk."""

    def __init__(self, path: Path, header: Header) -> None:
        """Open or continue the file and write the header. Raises MeasurementError if the file cannot be written."""
        self._path = path
        self._write(_headed(header))

    def append(self, *records: Record) -> None:
        """Write records, with one fsync for every _AT_ONCE records. Raises MeasurementError if the disk is full."""
        for first in range(0, len(records), _AT_ONCE):
            self._write(*map(_fields, records[first : first + _AT_ONCE]))

    def clocks(self, clocks: Mapping[str, Mapping[str, float]]) -> None:
        """Write the clocks of each host after the last row. Raises MeasurementError if the disk is full."""
        self._write({"type": "clocks", "hosts": clocks})

    def end(self, gpus: GpusAtEnd, hosts: HostsAtEnd | None = None) -> None:
        """Write the state of each host and its GPUs after the last row. Raises MeasurementError if the disk is full."""
        self._write({"type": "end", "gpus": gpus, "hosts": hosts or {}})

    def _write(self, *lines: Mapping[str, Any]) -> None:
        # After a truncated line, new lines would be unreadable, too.
        data = ("\n" * _ends_torn(self._path) + "".join(map(_line, lines))).encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError("no space left on device")
                if stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe, such as /dev/stdout, has no fsync
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _not_written(self._path, error) from None


def written(path: Path, header: Header, records: Iterable[Record]) -> Iterator[Record]:
    """Write a new file of imported records. Yield each record after it is written.

    The file is not synchronised (fsync). After a power failure, the user can repeat the import. Raises MeasurementError
    if the file cannot be written. If the iterator `records` raises an exception, this function raises the same
    exception.
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
    """Return the line of a record. Unknown and empty fields are left out."""
    held = ((name, getattr(record, name)) for name in _OF_RECORD)
    told = {name: value for name, value in held if value not in (None, [], {}) or name in _ALWAYS}
    told.pop("starved")
    told.pop("hosts")
    told.pop("devices")
    if record.starved:
        told["starved"] = [asdict(rank) for rank in record.starved]
    if record.hosts:
        told["hosts"] = [_short(use) for use in record.hosts]
    if record.devices:
        told["devices"] = [_short(use, 6) for use in record.devices]
    for name in ("skipped", "failed", "first_wrong", "reads", "checkpoint"):
        if getattr(record, name) is not None:
            told[name] = asdict(getattr(record, name))
    told |= _beside_others(record)
    if record.step is not None:
        told["step"] = _step(record.step)
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
            "skew_s": _rounded(samples.skew_s),
        }
        told["samples"] = {key: value for key, value in taken.items() if value not in ([], ())}
    return {"type": "record", **told}


def _beside_others(record: Record) -> dict[str, Any]:
    """Return the fields about what ran at the same time as the samples: aggressors, matrix products or other copies."""
    told: dict[str, Any] = {}
    if record.contention is not None:
        told["contention"] = asdict(record.contention) | {"alone_s": _rounded(record.contention.alone_s)}
    if record.overlap is not None:
        sides = ("alone_s", "product_alone_s", "product_s")
        told["overlap"] = asdict(record.overlap) | {side: _rounded(getattr(record.overlap, side)) for side in sides}
    if record.beside is not None:
        ends = [[_rounded(ends) for ends in own] for own in record.beside.ends_s]
        told["beside"] = asdict(record.beside) | {"ends_s": ends}
    return told


def _step(step: StepSamples) -> dict[str, Any]:
    return asdict(step) | {
        "twins_s": {variant: _rounded(seconds) for variant, seconds in step.twins_s.items()},
        "full_s": [_rounded(own) for own in step.full_s],
        "segments_s": {name: [_rounded(own) for own in by_rank] for name, by_rank in step.segments_s.items()},
        "bucket_ready_s": _rounded(step.bucket_ready_s),
        "bucket_done_s": _rounded(step.bucket_done_s),
        "exposed_s": [_rounded(own) for own in step.exposed_s],
    }


def _short(use: HostUse | DeviceUse, digits: int = 3) -> dict[str, Any]:
    return {name: round(value, digits) if isinstance(value, float) else value for name, value in asdict(use).items()}


def _implied(samples: Samples) -> bool:
    """Check whether each value of `seconds` is the maximum over all ranks in `by_rank`.

    In this case, `seconds` is not written, because a reader can compute it from `by_rank`.
    """
    return bool(samples.by_rank) and array("d", np.max(samples.by_rank, axis=0)) == samples.seconds


def _rounded(seconds: Iterable[float]) -> list[float]:
    return [round(value, _RESOLUTION_DIGITS) for value in seconds]


def read(path: Path) -> Results:
    """Read a results file.

    Raises UsageError with the line if the file is damaged, has a newer schema, or is not a results file.
    """
    attempts: list[Attempt] = []
    warnings: list[str] = []
    header: Header | None = None
    records: list[Record] = []
    for number, parsed in _lines(path, warnings):
        kind = _checked(parsed, header is not None, path, number)
        if header is None or kind == "header":
            if header is not None:
                attempts.append(Attempt(header, tuple(records)))
            header, records = _header(parsed), []
        elif kind == "clocks":
            header = with_clocks(header, parsed["hosts"])
        elif kind == "end":
            header = with_end(header, parsed["gpus"], parsed.get("hosts") or {})
        else:
            records.append(_record(parsed, path, number))
    if header is None:
        raise UsageError(f"{path} is not a results file: it has no header line; `linkbench import` reads logs")
    return Results((*attempts, Attempt(header, tuple(records))), tuple(warnings))


def _checked(parsed: dict[str, Any], headed: bool, path: Path, number: int) -> str:
    """Update a line to the current schema, and return its type. Raises UsageError if the line is invalid.

    `headed`: whether the file has a header before this line.
    """
    kind = parsed.pop("type", None)
    if not isinstance(kind, str) or kind not in line_schema.KINDS or not (headed or kind == "header"):
        where = "" if headed else " before its header"
        raise UsageError(f"{path}:{number}: a results file has no lines of type {str(kind)[:40]!r}{where}")
    if kind == "header":
        _check_schema(parsed.pop("schema", None), path, number)
        older.update_header(parsed)
    elif kind == "record":
        older.update_record(parsed)
    problem = line_schema.problem(kind, parsed)
    if problem is not None:
        raise UsageError(f"{path}:{number}: invalid {kind} line ({problem})")
    return kind


def with_clocks(header: Header, clocks: Mapping[str, Mapping[str, float]]) -> Header:
    """Return the header with its clocks replaced by `clocks`, which were measured after the last row."""
    return replace(header, calibration={**header.calibration, "clocks": clocks})


def with_end(header: Header, gpus: GpusAtEnd, hosts: HostsAtEnd) -> Header:
    """Return the header with more facts about its nodes: the state of each host and its GPUs after the last row."""
    nodes = {}
    for host, node in header.nodes.items():
        at_end = {"gpus_at_end": gpus.get(host), "after": hosts.get(host)}
        nodes[host] = {**node, **{name: value for name, value in at_end.items() if value is not None}}
    return replace(header, nodes=nodes)


def _lines(path: Path, warnings: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for every line that is a JSON object.

    Any line that is not a JSON object adds a warning.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    parsed = _parsed(line)
                except ValueError:
                    parsed = None
                except RecursionError:
                    raise UsageError(f"{path}:{number}: lists or mappings are nested too deeply") from None
                if isinstance(parsed, dict):
                    yield number, parsed
                elif line.strip():
                    warnings.append(f"{path}:{number}: skipped a truncated line; the rows before it are complete")
    except OSError as error:
        raise UsageError(f"results file {path} cannot be read ({error.strerror})") from None


def _parsed(line: bytes) -> Any:
    """Return the value of a line of JSON.

    Raises ValueError if the line is not valid JSON, or RecursionError if a value is nested too deeply.

    The library orjson reads long lists of samples seven times as fast as json. A line that orjson rejects is read with
    json, because only json accepts values such as Infinity.
    """
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(line)


def _check_schema(schema: str | None, path: Path, number: int) -> None:
    if schema not in _READABLE:
        raise UsageError(
            f"{path}:{number}: schema {str(schema)[:40]!r} cannot be read (this is {SCHEMA}): "
            "use the version that wrote it"
        )


def _header(parsed: Mapping[str, Any]) -> Header:
    """Return the header of a line that fits the schema."""
    values = {name: value for name, value in parsed.items() if name in _OF_HEADER}
    for name in ("case", "argv", "ranks", "notes"):
        values[name] = tuple(values.get(name, ()))
    values["remarks"] = tuple(_made(CodedRemark, remark) for remark in values.get("remarks", ()))
    return Header(**values)


def _record(values: dict[str, Any], path: Path, number: int) -> Record:
    """Return the record of a line that fits the schema. `values`: the content of the line, which this function changes.

    Raises UsageError if the record's parts contradict each other.
    """
    for name in ("requested_bytes", "flags"):
        values[name] = tuple(values.get(name, ()))
    try:
        if not _NESTED.isdisjoint(values):
            _make_parts(values)
        if values.get("samples") is not None:
            values["samples"] = _samples(values["samples"])
            if values.get("step") is not None:
                check_samples(values["step"], values["samples"])
        held: Iterator[Any] = map(values.get, _OF_RECORD, _OF_RECORD.values())
        return Record(*held)  # keywords would take three times as long
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}:{number}: invalid record line ({error})") from None


def _make_parts(values: dict[str, Any]) -> None:
    """Replace the plain values of a record's parts by dataclasses.

    Raises TypeError or ValueError if the values of a part contradict each other.
    """
    for name, kind in _PARTS.items():
        if values.get(name) is not None:
            values[name] = _made(kind, values[name])
    for name, kind in _LISTS.items():
        if name in values:
            values[name] = tuple(_made(kind, each) for each in values[name])
    contention = values.get("contention")
    if contention is not None and len(contention.busy) not in (0, len(contention.rates_bytes_per_s)):
        raise ValueError("contention has different numbers of blocks")


def _made(kind: type[T], plain: Mapping[str, Any]) -> T:
    """Return a dataclass from plain values. Keys that the dataclass lacks, from other versions, are ignored."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: plain[name] for name in names if name in plain})


def _samples(plain: Mapping[str, Any]) -> Samples:
    """Return the samples of a record.

    Raises ValueError if lists that must have equal lengths differ, and OverflowError if a number is above 1e308.
    """
    if plain.keys() <= _OF_MODELLED:  # a run may have tens of thousands of modelled rows, so this case must be fast
        return Samples(plain.get("seconds") or (), calls_per_sample=plain["calls_per_sample"], loop=plain["loop"])
    by_rank = tuple(array("d", own) for own in plain.get("by_rank") or ())
    if any(len(own) != len(by_rank[0]) for own in by_rank):
        raise ValueError("the ranks have different numbers of samples")
    seconds = plain.get("seconds") or (array("d", np.max(by_rank, axis=0).tobytes()) if by_rank else [])
    if by_rank and len(by_rank[0]) != len(seconds):
        raise ValueError("the ranks have different numbers of samples")
    on_host = [plain.get(key) or () for key in ("host_s", "enqueue_s", "skew_s")]
    if any(len(own) not in (0, len(seconds)) for own in on_host):
        raise ValueError("host_s, enqueue_s and skew_s must have one value per sample")
    return Samples(
        seconds=seconds,
        by_rank=by_rank,
        warmup=plain.get("warmup") or (),
        calls_per_sample=plain["calls_per_sample"],
        loop=plain["loop"],
        rank_mean_s=tuple(plain.get("rank_mean_s") or ()),
        slowest_counts=tuple(plain.get("slowest_counts") or ()),
        host_s=on_host[0],
        enqueue_s=on_host[1],
        skew_s=on_host[2],
    )
