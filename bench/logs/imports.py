"""Import logs of other tools as a linkbench run.

The import finds the files, recognises the tools, reads the runs and writes the records.

A file is read once, as a stream. Only the runs of the file are kept in memory.
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

from bench.core import plugins
from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.pattern import Pattern
from bench.core.record import Record
from bench.logs.archive_files import archive_kind, unpacked_files
from bench.logs.archives import ArchiveError, Unpacker, kind_of
from bench.logs.check import is_by_definition
from bench.logs.foreign import TRUNCATED, ForeignRun, Line, Reader
from bench.logs.jobs import ImportedJob, ImportOptions, Names, Origin, jobs_of
from bench.logs.messages import LogCode
from bench.store import jsonl
from bench.store import runs as runs_store

__all__ = [
    "ImportOptions",
    "ImportedJob",
    "Log",
    "Source",
    "folder_of",
    "jobs",
    "kept",
    "read",
    "readers",
    "runs",
    "sources",
    "troubles",
    "unpacked",
    "with_contradictions",
]

STDIN = "-"
_CHUNK_BYTES = 1 << 18
# lines, and characters per line, that are kept until a reader accepts a line
_MOST_BEFORE, _LONGEST_BEFORE = 2000, 2000
_LONGEST_HINT = 64
_MOST_CONTROLS = 0.02  # a file with a larger share of control characters in its first bytes is binary
_TAR = b"ustar"  # a tar archive contains several files, which would be read as a single log
# a zip archive may contain a log without compression, and the log would then be read from its middle
_ZIP = b"PK\x03\x04"
_OF_TEXT = bytes([0, 7, 8, 9, 10, 11, 12, 13, 27, *range(32, 256)])

# Problems that are reported even for files found in a folder, because a log may be lost there.
_UNREAD = (
    LogCode.FILE_EMPTY,
    LogCode.FILE_UNREADABLE,
    LogCode.ARCHIVE_CUT,
    LogCode.ARCHIVE_DAMAGED,
    LogCode.ARCHIVE_TOO_LARGE,
)
_NO_OPTIONS = ImportOptions()

# Converts chunks of bytes to lines. The second argument is called with each piece of the text before its lines are
# read.
Clean = Callable[[Iterable[bytes], Callable[[str], None]], Iterable[Line]]


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read.

    `name`: the name of the file as shown to the user.
    `found`: whether the user named only the folder of the file, or the archive that contains the file.
    `trouble`: the reason why the file cannot be read completely, if the file is an archive.
    """

    name: str
    path: Path | None  # None means standard input
    found: bool = False
    trouble: Coded | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """The runs of one file.

    `trouble`: the reason why the file has no runs, or why the end of the file is missing.
    """

    source: Source
    runs: tuple[ForeignRun, ...] = ()
    sha256: str = ""
    trouble: Coded | None = None

    @property
    def is_reported(self) -> bool:
        """Whether the problem of this file gets a sentence of its own.

        A file is reported if the user named it, if it is empty, or if it cannot be read.
        """
        if self.trouble is None:
            return False
        unread = self.trouble.code in _UNREAD
        return unread or not self.source.found


def readers() -> tuple[type[Reader], ...]:
    """Return the reader classes of all tools that have a reader."""
    found = (getattr(plugins.load("tool", name), "READER", None) for name in plugins.names("tool"))
    return tuple(reader for reader in found if reader is not None)


def sources(names: Sequence[str]) -> list[Source]:
    """Return the named files, and the files in the named folders.

    The files of a folder are sorted by name, and hidden files are left out.

    Raises UsageError for a name that does not exist, and for a folder that cannot be read.
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
            raise UsageError(f"there is no file or folder {name!r}: name a log, a folder of logs, or - for stdin")
    return found


def unpacked(sources: Iterable[Source]) -> Iterator[Source]:
    """Yield the files. In place of a tar or zip archive, yield the files in the archive.

    A file of an archive is a temporary file, which exists until the next file is requested.
    """
    for source in sources:
        if source.path is None or archive_kind(source.path) is None:
            yield source
            continue
        try:
            for name, file in unpacked_files(source.path):
                yield Source(f"{source.name}/{name.removeprefix('./')}", file, found=True)
        except ArchiveError as error:
            yield replace(source, trouble=_archive_trouble(source, error))
        except OSError as error:
            yield replace(source, trouble=_file_trouble(source, error))


def _inside(folder: Path) -> Iterator[Source]:
    def refuse(error: OSError) -> None:
        raise UsageError(f"folder {error.filename} cannot be read ({error.strerror})")

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield Source(str(path), path, found=True)


def read(source: Source, readers: Sequence[type[Reader]], clean: Clean, options: ImportOptions = _NO_OPTIONS) -> Log:
    """Return the runs of one file.

    Damaged contents or an unreadable file raise no error. Raises UsageError if the options contradict a run.
    """
    if source.trouble is not None:
        return Log(source, trouble=source.trouble)
    try:
        if source.path is None:
            return _read(source, sys.stdin.buffer, readers, clean, options)
        with source.path.open("rb") as file:
            return _read(source, file, readers, clean, options)
    except OSError as error:
        return Log(source, trouble=_file_trouble(source, error))


def _read(
    source: Source, file: IO[bytes], readers: Sequence[type[Reader]], clean: Clean, options: ImportOptions
) -> Log:
    try:
        return _read_chunks(source, _Chunks(file), readers, clean, options)
    except ArchiveError as error:
        return Log(source, trouble=_archive_trouble(source, error))


def _file_trouble(source: Source, error: OSError) -> Coded:
    return Coded.of(LogCode.FILE_UNREADABLE, source=source.name, error=str(error.strerror or error))


def _archive_trouble(source: Source, error: ArchiveError) -> Coded:
    if error.most is not None:
        return Coded.of(LogCode.ARCHIVE_TOO_LARGE, source=source.name, most=error.most)
    if error.is_cut:
        return Coded.of(LogCode.ARCHIVE_CUT, source=source.name, kind=error.kind)
    return Coded.of(LogCode.ARCHIVE_DAMAGED, source=source.name, kind=error.kind, error=error.error)


def _read_chunks(
    source: Source, chunks: _Chunks, readers: Sequence[type[Reader]], clean: Clean, options: ImportOptions
) -> Log:
    """Read a file in chunks.

    Raises ArchiveError if the file is a damaged archive. If the end of an archive is missing, the runs in the existing
    part are kept.
    """
    if chunks.binary:
        return Log(source, trouble=Coded.of(LogCode.FILE_BINARY, source=source.name))
    found = tuple(map(options.applied, runs(chunks, readers, clean)))
    if not chunks.begin:
        return Log(source, trouble=Coded.of(LogCode.FILE_EMPTY, source=source.name))
    if chunks.cut is not None:
        trouble = _archive_trouble(source, chunks.cut)
        whole, last = found[:-1], [replace(run, status=TRUNCATED) for run in found[-1:]]
        return Log(source, (*whole, *last), chunks.digest.hexdigest(), trouble)
    if not found:
        tools = [reader.tool for reader in readers]
        return Log(source, trouble=Coded.of(LogCode.NOT_RECOGNISED, source=source.name, tools=tools))
    return Log(source, found, chunks.digest.hexdigest())


def troubles(logs: Sequence[Log]) -> list[str]:
    """Return a sentence for each file whose problem needs a report of its own.

    One more sentence covers all other files without results.
    """
    sentences = [log.trouble.text for log in logs if log.trouble and log.is_reported]
    others = [log.source.name for log in logs if log.trouble and not log.is_reported]
    if others:
        files = "file" if len(others) == 1 else "files"
        sentences.append(f"skipped {len(others)} {files} without a known log, such as {others[0]}")
    return sentences


def with_contradictions(run: ForeignRun, patterns: Mapping[str, Pattern]) -> ForeignRun:
    """Mark each row whose busbw does not agree with its algbw. The mark becomes a flag of the record."""
    pattern = patterns.get(run.pattern or "")
    mark = Coded.of(LogCode.BUSBW_BY_OTHER_FACTOR)
    rows = []
    for row in run.rows:
        agrees = row.contradicts or is_by_definition(row, run, pattern)
        rows.append(row if agrees else replace(row, contradicts=mark))
    return replace(run, rows=tuple(rows))


def jobs(logs: Iterable[Log], options: ImportOptions, patterns: Mapping[str, Pattern]) -> list[ImportedJob]:
    """Return the jobs of one linkbench run, made from the runs in all logs.

    Raises UsageError if the instance type in `options` is impossible for this number of ranks.
    """
    names = Names()
    found = []
    for log in logs:
        origin = Origin(log.source.name, log.sha256)
        found += [job for run in log.runs for job in jobs_of(run, origin, options, patterns, names)]
    return found


def folder_of(found: Sequence[ImportedJob], logs: Sequence[Log], results: Path, cluster: str | None) -> Path:
    """Create the folder of a run in `results`, with its plan and without results files. Raises UsageError.

    The plan lists the logs that could not be read. A run with unreadable logs then fails every gate, because these logs
    may have contained rows.
    """
    folder = runs_store.create(results, runs_store.new_run_id(cluster or "imported", "logs"))
    sources = list(dict.fromkeys(job.header.imported["source"] for job in found))
    lost = []
    for log in logs:
        if log.trouble is not None and log.is_reported:
            lost.append({"source": log.source.name, "what": log.trouble.text, "code": str(log.trouble.code)})
    plan = {"scenario": "import", "imported": sources, "troubles": lost, "cluster": {"name": cluster}}
    planned = [{"name": job.header.job, "case": []} for job in found]
    runs_store.write_plan(folder, {**plan, "jobs": planned, "skipped": []})
    return folder


def kept(job: ImportedJob, folder: Path) -> Iterator[Record]:
    """Write the job's records to a results file in `folder`, and yield each record.

    The file is complete after the last record. Raises MeasurementError.
    """
    return jsonl.written(runs_store.results_file(folder, job.header.job), job.header, job.records())


def runs(chunks: Iterable[bytes], readers: Sequence[type[Reader]], clean: Clean) -> Iterator[ForeignRun]:
    """Yield the runs in a text.

    The input of a reader begins with a line that only the reader's tool can have printed. The input ends where the
    input of the next reader begins. The first reader also gets the lines before its input, because these lines may name
    hosts and the command.
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
    """Finds the readers that may accept a line of the latest piece of a text.

    Each reader has hints, which are words that its lines contain. Searching a piece for hints is far cheaper than
    checking every line with every reader. A line may begin in the previous piece, so the hints of the previous piece
    are also used.
    """

    def __init__(self, readers: Sequence[type[Reader]]) -> None:
        self._readers = readers
        self._end, self._begun = "", frozenset[type[Reader]]()
        self.likely: tuple[type[Reader], ...] = ()

    def look(self, text: str) -> None:
        """Look for hints in the next piece of the text."""
        seen = self._end + text.lower()
        hinted = frozenset(kind for kind in self._readers if _may_begin(kind, seen))
        self.likely = tuple(kind for kind in self._readers if kind in hinted or kind in self._begun)
        self._begun = hinted if "\n" in text else self._begun | hinted
        self._end = seen[-_LONGEST_HINT:]


def _may_begin(kind: type[Reader], text: str) -> bool:
    """Check whether one of a reader's hints is in the text.

    A colour code inside a hint hides the hint, so the result is True for any text with a colour code.
    """
    return not kind.hints or "\x1b" in text or any(hint in text for hint in kind.hints)


class _Chunks:
    """Yields the chunks of a file, or the unpacked chunks of an archive, as soon as they arrive.

    `digest`: the hash of the bytes that were read.
    `cut`: the error if the end of an archive is missing.

    Raises ArchiveError if the archive is damaged in another way.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()
        self.cut: ArchiveError | None = None
        self._pieces = self._read()
        self.begin = next(self._pieces, b"")

    @property
    def binary(self) -> bool:
        """Whether the file begins with control characters that logs do not contain.

        NUL characters are allowed, because the text may be UTF-16 or contain a gap of NUL characters.
        """
        if self.begin.startswith(_ZIP) or self.begin[257:262] == _TAR:
            return True
        found = self.begin.translate(None, _OF_TEXT)
        return len(found) > _MOST_CONTROLS * len(self.begin)

    def __iter__(self) -> Iterator[bytes]:
        if self.begin:
            yield self.begin
        yield from self._pieces

    def _read(self) -> Iterator[bytes]:
        """Yield the chunks of the file, unpacked if it is an archive."""
        chunk = self._next()
        kind = kind_of(chunk)
        if kind is None:
            while chunk:
                yield chunk
                chunk = self._next()
            return
        unpacker = Unpacker(kind)
        while chunk:
            yield from unpacker.feed(chunk)
            chunk = self._next()
        try:
            unpacker.finish()
        except ArchiveError as error:
            if not error.is_cut:
                raise
            self.cut = error

    def _next(self) -> bytes:
        read = getattr(self._file, "read1", self._file.read)
        chunk: bytes = read(_CHUNK_BYTES)
        self.digest.update(chunk)
        return chunk
