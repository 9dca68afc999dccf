"""Logs of other tools, read: which files there are, which tool wrote what is in them, and the runs that they hold.

A file is read once, as it comes, and never held as a whole; what is held are its runs.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from bench.core.errors import UsageError
from bench.core.pattern import Pattern
from bench.core.record import Record
from bench.logs.check import is_by_definition
from bench.logs.foreign import ForeignRun, Line, Reader
from bench.logs.jobs import ImportedJob, ImportOptions, Names, Origin, jobs_of
from bench.store import jsonl
from bench.store import runs as runs_store

__all__ = [
    "ImportedJob",
    "Log",
    "Source",
    "ImportOptions",
    "folder_of",
    "jobs",
    "kept",
    "marked",
    "read",
    "runs",
    "sources",
    "troubles",
]

STDIN = "-"
_CHUNK_BYTES = 1 << 18
_MOST_BEFORE, _LONGEST_BEFORE = 2000, 2000  # lines, and their characters, that are kept until a reader is found
_LONGEST_HINT = 64
_MOST_CONTROLS = 0.02  # of its first bytes
_ZIP = b"PK\x03\x04"  # what is in one may be stored as it was, and reads like a log from its middle
_OF_TEXT = bytes([0, 7, 8, 9, 10, 11, 12, 13, 27, *range(32, 256)])

_NOTHING_TOLD = ImportOptions()

# The lines of chunks; each stretch of the text is shown before its lines come.
Clean = Callable[[Iterable[bytes], Callable[[str], None]], Iterable[Line]]


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read: `name` as the user will know it. `found`: in a folder that was named, not by itself."""

    name: str
    path: Path | None  # None: standard input
    found: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """What one file gave. `trouble`: why it gave nothing, in a sentence; `unread`: it is empty or could not be read."""

    source: Source
    runs: tuple[ForeignRun, ...] = ()
    sha256: str = ""
    trouble: str | None = None
    unread: bool = False

    @property
    def to_be_said(self) -> bool:
        """Has it a sentence of its own: was it named, or may there have been a log in it?"""
        return self.trouble is not None and (self.unread or not self.source.found)


def sources(names: Sequence[str]) -> list[Source]:
    """The files that are meant, those of a folder in the order of their names, hidden ones left out.

    Raises UsageError when there is nothing of a name, or a folder that can not be looked into.
    """
    found: list[Source] = []
    for name in names:
        path = Path(name)
        if name == STDIN:
            found.append(Source("stdin", None))
        elif path.is_dir():
            found += _inside(path)
        elif path.exists():
            found.append(Source(name, path))
        else:
            raise UsageError(f"there is no file or folder {name}: give a log, a folder of logs, or - for stdin")
    return found


def _inside(folder: Path) -> Iterator[Source]:
    def refuse(error: OSError) -> None:
        raise UsageError(f"folder {error.filename} can not be read ({error.strerror})")

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield Source(str(path), path, found=True)


def read(source: Source, readers: Sequence[type[Reader]], clean: Clean, told: ImportOptions = _NOTHING_TOLD) -> Log:
    """All runs of one file, whatever it holds; never raises for what that is, nor for a file that can not be read.

    Raises UsageError where what is told can not be true of a run.
    """
    try:
        if source.path is None:
            return _read(source, sys.stdin.buffer, readers, clean, told)
        with source.path.open("rb") as file:
            return _read(source, file, readers, clean, told)
    except OSError as error:
        return Log(source, trouble=f"{source.name} can not be read ({error.strerror or error})", unread=True)


def _read(source: Source, file: IO[bytes], readers: Sequence[type[Reader]], clean: Clean, told: ImportOptions) -> Log:
    chunks = _Chunks(file)
    if chunks.binary:
        return Log(source, trouble=f"{source.name} is binary, not a log: unpack it, or name the tool's own output")
    found = tuple(map(told.of, runs(chunks, readers, clean)))
    if not chunks.begin:
        sentence = f"{source.name} is empty: the tool printed nothing, or its output went elsewhere"
        return Log(source, trouble=sentence, unread=True)
    if not found:
        tools = ", ".join(reader.tool for reader in readers)
        return Log(source, trouble=f"nothing in {source.name} was recognised; what is read: {tools}")
    return Log(source, found, chunks.digest.hexdigest())


def troubles(logs: Sequence[Log]) -> list[str]:
    """A sentence for each file that was named and gave nothing; one for all others, which were found in folders."""
    said = [log.trouble for log in logs if log.trouble and log.to_be_said]
    others = [log.source.name for log in logs if log.trouble and not log.to_be_said]
    if others:
        files = "file in a folder holds" if len(others) == 1 else "files in folders hold"
        said.append(f"{len(others)} {files} nothing that is known, such as {others[0]}")
    return said


def marked(run: ForeignRun, patterns: Mapping[str, Pattern]) -> ForeignRun:
    """The run with a word on each row whose busbw is not what its algbw makes it, as its record would have a flag."""
    pattern = patterns.get(run.pattern or "")
    rows = tuple(
        row
        if row.contradicts or is_by_definition(row, run, pattern)
        else replace(row, contradicts="its busbw is not algbw x the factor of so many ranks")
        for row in run.rows
    )
    return replace(run, rows=rows)


def jobs(logs: Iterable[Log], told: ImportOptions, patterns: Mapping[str, Pattern]) -> list[ImportedJob]:
    """What all logs hold, as jobs of one run. Raises UsageError where `told.instance` can not have held the ranks."""
    names = Names()
    found = []
    for log in logs:
        origin = Origin(log.source.name, log.sha256)
        found += [job for run in log.runs for job in jobs_of(run, origin, told, patterns, names)]
    return found


def folder_of(found: Sequence[ImportedJob], logs: Sequence[Log], results: Path, cluster: str | None) -> Path:
    """A new folder of a run in `results`, which has its plan and as yet no results file. Raises UsageError.

    The plan keeps the troubles of logs that gave nothing: no gate passes over what may have been in them.
    """
    folder = runs_store.create(results, runs_store.new_run_id(cluster or "imported", "logs"))
    sources = list(dict.fromkeys(job.header.imported["source"] for job in found))
    lost = [{"source": log.source.name, "what": log.trouble} for log in logs if log.to_be_said]
    plan = {"scenario": "import", "imported": sources, "troubles": lost, "cluster": {"name": cluster}}
    planned = [{"name": job.header.job, "case": []} for job in found]
    runs_store.write_plan(folder, {**plan, "jobs": planned, "skipped": []})
    return folder


def kept(job: ImportedJob, folder: Path) -> Iterator[Record]:
    """The job's records, which its results file in `folder` holds once all were asked for. Raises MeasurementError."""
    return jsonl.written(runs_store.results_file(folder, job.header.job), job.header, job.records())


def runs(chunks: Iterable[bytes], readers: Sequence[type[Reader]], clean: Clean) -> Iterator[ForeignRun]:
    """The runs in a text. A reader whose tool alone can have printed a line gets it and all that follows, until another
    reader knows a line as its own; the first also gets the lines before it, which may name hosts and the command.
    """
    watch = _Watch(readers)
    asleep = {kind: kind() for kind in readers}
    awake: Reader | None = None
    before: deque[Line] = deque(maxlen=_MOST_BEFORE)
    for line in clean(chunks, watch.look):
        for kind in watch.likely:
            if kind in asleep and asleep[kind].begins(line.text):
                if awake is not None:
                    yield from awake.finish()
                    asleep[type(awake)] = type(awake)()
                awake = asleep.pop(kind)
                for earlier in before:
                    yield from awake.feed(earlier)
                before.clear()
                break
        if awake is not None:
            yield from awake.feed(line)
        elif len(line.text) <= _LONGEST_BEFORE:
            before.append(line)
    if awake is not None:
        yield from awake.finish()


class _Watch:
    """Which readers may know a line of the latest stretch of a text: one of their hints is in it, or in what the line
    that it ends began with. To search a stretch is far cheaper than to ask every reader about every line.
    """

    def __init__(self, readers: Sequence[type[Reader]]) -> None:
        self._readers = readers
        self._end, self._begun = "", frozenset[type[Reader]]()
        self.likely: tuple[type[Reader], ...] = ()

    def look(self, text: str) -> None:
        """Another stretch."""
        seen = self._end + text.lower()
        hinted = frozenset(kind for kind in self._readers if _may_begin(kind, seen))
        self.likely = tuple(kind for kind in self._readers if kind in hinted or kind in self._begun)
        self._begun = hinted if "\n" in text else self._begun | hinted
        self._end = seen[-_LONGEST_HINT:]


def _may_begin(kind: type[Reader], text: str) -> bool:
    """A colour code may divide a word, so that one is no less than a hint."""
    return not kind.hints or "\x1b" in text or any(hint in text for hint in kind.hints)


class _Chunks:
    """A file as it comes, a chunk as soon as there is one: a pipe may end late. `digest`: of what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()
        self.begin = self._next()

    @property
    def binary(self) -> bool:
        """Does it begin with control characters that no log holds? NULs alone may be UTF-16, or a hole in a log."""
        if self.begin.startswith(_ZIP):
            return True
        found = self.begin.translate(None, _OF_TEXT)
        return len(found) > _MOST_CONTROLS * len(self.begin)

    def __iter__(self) -> Iterator[bytes]:
        chunk = self.begin
        while chunk:
            yield chunk
            chunk = self._next()

    def _next(self) -> bytes:
        read = getattr(self._file, "read1", self._file.read)
        chunk: bytes = read(_CHUNK_BYTES)
        self.digest.update(chunk)
        return chunk
