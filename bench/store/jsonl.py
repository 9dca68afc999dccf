"""Results files: a header line, then one record per line, written as soon as it is measured.

Schema history (the `schema` key of each header line):
  bench.results/1   first version

A file is complete by itself. A launch that completes an earlier one appends a header of its own; records belong to the
header above them. A last line cut short (the process was killed, the disk was full) is left out and said.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from bench.core.errors import MeasurementError, UsageError
from bench.core.record import Failure, Header, Record, Samples

SCHEMA = "bench.results/1"
_RESOLUTION_DIGITS = 10  # 0.1 ns: finer than any clock here, and half the size on disk

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch's part of a results file."""

    header: Header
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """All that a results file holds, and what could not be read of it, in words."""

    attempts: tuple[Attempt, ...]
    warnings: tuple[str, ...] = ()


class Writer:
    """Appends a header and records to a results file, each safely on disk when the call returns."""

    def __init__(self, path: Path, header: Header) -> None:
        """Open (or continue) the file and write the header. Raises MeasurementError when it can not be written."""
        self._path = path
        self._write({"type": "header", "schema": SCHEMA, **asdict(header)}, fresh_line=_ends_torn(path))

    def append(self, record: Record) -> None:
        """Write one record. Raises MeasurementError when the disk is full."""
        line = {key: value for key, value in _plain(record).items() if value not in (None, [], {})}
        self._write({"type": "record", **line})

    def _write(self, line: Mapping[str, Any], fresh_line: bool = False) -> None:
        data = ("\n" * fresh_line + json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError("no space left on device")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise MeasurementError(
                f"results file {self._path} can not be written ({error.strerror or error}): "
                "make room or choose another place; the rows written before are kept"
            ) from None


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def _plain(record: Record) -> dict[str, Any]:
    plain = asdict(record)
    if record.samples is not None:
        samples = plain["samples"]
        for key in ("seconds", "warmup"):
            samples[key] = _rounded(samples[key])
        samples["by_rank"] = [_rounded(row) for row in samples["by_rank"]]
    return plain


def _rounded(seconds: Iterable[float]) -> list[float]:
    return [round(value, _RESOLUTION_DIGITS) for value in seconds]


def read(path: Path) -> Results:
    """Everything in a results file. Raises UsageError when it is not one, or of a newer schema than this program."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"results file {path} can not be read ({error.strerror})") from None
    attempts: list[Attempt] = []
    warnings = []
    header: Header | None = None
    records: list[Record] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            parsed = json.loads(line)
            kind = parsed.pop("type")
        except (ValueError, KeyError, AttributeError):
            if line.strip():
                warnings.append(f"{path}:{number}: a line cut short was left out; the rows before it are whole")
            continue
        if kind == "header":
            _check_schema(parsed.pop("schema", None), path, number)
            if header is not None:
                attempts.append(Attempt(header, tuple(records)))
            header, records = _header(parsed, path, number), []
        elif kind == "record" and header is not None:
            records.append(_record(parsed, path, number))
        else:
            raise UsageError(f"{path}:{number}: a line of type {kind!r} is not part of a results file")
    if header is None:
        raise UsageError(f"{path} is not a results file: it has no header line")
    return Results((*attempts, Attempt(header, tuple(records))), tuple(warnings))


def _check_schema(schema: str | None, path: Path, number: int) -> None:
    if schema != SCHEMA:
        raise UsageError(
            f"{path}:{number}: schema {schema!r} is not what this program reads ({SCHEMA}): use the one that wrote it"
        )


def _header(parsed: dict[str, Any], path: Path, number: int) -> Header:
    for key in ("case", "argv", "ranks", "notes"):
        parsed[key] = tuple(parsed.get(key) or ())
    return _build(Header, parsed, path, number)


def _record(parsed: dict[str, Any], path: Path, number: int) -> Record:
    parsed["requested_bytes"] = tuple(parsed.get("requested_bytes", ()))
    parsed["flags"] = tuple(parsed.get("flags", ()))
    if "samples" in parsed:
        samples = parsed["samples"]
        parsed["samples"] = Samples(
            seconds=tuple(samples["seconds"]),
            by_rank=tuple(tuple(row) for row in samples["by_rank"]),
            warmup=tuple(samples["warmup"]),
            calls_per_sample=samples["calls_per_sample"],
            loop=samples["loop"],
        )
    if "failed" in parsed:
        parsed["failed"] = Failure(**parsed["failed"])
    parsed.setdefault("payload_bytes", 0)
    return _build(Record, parsed, path, number)


def _build(kind: type[T], parsed: dict[str, Any], path: Path, number: int) -> T:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{key: value for key, value in parsed.items() if key in known})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}:{number}: not a whole {kind.__name__.lower()} line ({error})") from None
