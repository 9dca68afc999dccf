"""Read traces of jobs from files, folders and archives.

Each format is a file in `logs/traces/` that defines a `READER`. A reader recognises its format by the first bytes of a
file. Only one file is read at a time. If a file cannot be read, the result contains a remark about the file. The
content of a file is never executed and never causes an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bench.core import plugins
from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.step_trace import RankTrace
from bench.logs.archive_files import archive_kind, unpacked_files
from bench.logs.archives import ArchiveError
from bench.logs.trace_messages import TraceCode
from bench.logs.traces import _open

_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_DEEPEST = 3  # an archive may contain archives, and an archive that contains itself would never end
_NO_TRACES = (".txt", ".md", ".csv", ".tsv", ".yaml", ".yml", ".py", ".sh", ".png", ".svg", ".html")


class TraceReader(Protocol):
    """The interface of a file in `logs/traces/`."""

    name: str

    def recognises(self, path: Path, head: bytes) -> bool:
        """Check whether a file has this format, by its first unpacked bytes."""

    def read(self, path: Path) -> Iterable[RankTrace]:
        """Read the ranks of a file.

        A damaged file gives a remark. Raises OSError, or NoTraceError if the file has no trace.
        """


def read(paths: Iterable[Path]) -> tuple[list[RankTrace], list[Coded]]:
    """Return the ranks of all files, and remarks on files that could not be read.

    Raises UsageError if a path does not exist.
    """
    traces: list[RankTrace] = []
    remarks: list[Coded] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
        found = _in_folder(path) if path.is_dir() else [(str(path), path)]
        for name, file in found:
            traces += _of_file(name, file, remarks, named=path == file)
    return traces, remarks


def formats(path: Path) -> set[str]:
    """Return the names of the formats of a file, or of all files in a folder.

    The format of an archive is "archive", because an archive may contain traces or logs.
    """
    if path.is_dir():
        return {name for _, file in _in_folder(path) for name in formats(file)}
    try:
        head = _open.head(path)
        if head and archive_kind(path):
            return {"archive"}
        return {one.name for one in readers() if head and one.recognises(path, head)}
    except (OSError, EOFError):
        return set()


def readers() -> list[TraceReader]:
    """Return all readers."""
    return [plugins.load("trace", name).READER for name in plugins.names("trace")]


def _in_folder(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder and its subfolders that may be traces."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in _NO_TRACES and not path.name.startswith("."):
            yield str(path), path


def _of_file(name: str, path: Path, remarks: list[Coded], named: bool, depth: int = 0) -> Iterator[RankTrace]:
    """Yield the ranks of a file or an archive.

    `named`: whether the user named this file. If the user named a file that is not a trace, a remark says so.
    `depth`: how many archives contain the file, one inside another.
    """
    try:
        head = _open.head(path)
        if not head:
            remarks.append(Coded.of(TraceCode.EMPTY, source=name))
        elif archive_kind(path):
            yield from _of_archive(name, path, remarks, depth)
        elif any(one.recognises(path, head) for one in readers()):
            yield from _of_trace(name, path, head)
        elif head.startswith(_PICKLES):
            remarks.append(Coded.of(TraceCode.PICKLE, source=name))
        elif named:
            remarks.append(Coded.of(TraceCode.UNKNOWN, source=name))
    except _open.NoTraceError as error:
        remarks += _renamed([error.remark], name)
    except (OSError, EOFError, ArchiveError) as error:
        remarks.append(_damage(name, error))


def _damage(name: str, error: Exception) -> Coded:
    """Return the remark about a file that cannot be read completely."""
    if not isinstance(error, ArchiveError):
        return Coded.of(TraceCode.UNREADABLE, source=name, error=str(error))
    if error.most is not None:
        return Coded.of(TraceCode.ARCHIVE_LIMIT, source=name, most=error.most)
    return Coded.of(TraceCode.UNREADABLE, source=name, error=error.error or error.kind)


def _of_trace(name: str, path: Path, head: bytes) -> Iterator[RankTrace]:
    """Yield the ranks of a trace. `name`, the name that the user knows, replaces the path in traces and remarks."""
    reader = next(one for one in readers() if one.recognises(path, head))
    for trace in reader.read(path):
        if name == str(path):
            yield trace
        else:
            yield replace(trace, source=name, remarks=tuple(_renamed(trace.remarks, name)))


def _renamed(remarks: Iterable[Coded], name: str) -> Iterator[Coded]:
    """Yield the remarks with `name` as the name of their file. For example, `name` is the name inside an archive."""
    for remark in remarks:
        codes = {code.value: code for code in TraceCode}
        if remark.code in codes and "source" in remark.facts:
            yield Coded.of(codes[remark.code], **{**remark.facts, "source": name})
        else:
            yield remark


def _of_archive(name: str, path: Path, remarks: list[Coded], depth: int) -> Iterator[RankTrace]:
    """Yield the ranks of the files in an archive. An archive that is nested too deeply has no ranks."""
    if depth >= _DEEPEST:
        return
    for member, file in unpacked_files(path, without=_NO_TRACES):
        yield from _of_file(f"{name}:{member}", file, remarks, named=False, depth=depth + 1)
