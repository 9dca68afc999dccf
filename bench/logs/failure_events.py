"""Read failure events: messages about a failed job that may state a rank, a host and an operation.

Libraries, launchers and the kernel print such messages. Each format is a file in `logs/events/` that defines a class
`FORMAT`. A `SignFormat` is a table of regular expressions. Each expression recognises one type of message. The named
groups of an expression fill the fields of an event. A `DocumentFormat` reads a whole file, such as a dump.

The reader gets a text piece by piece and reads each piece once. A piece is split into lines only if it contains a hint,
which is a word that a format's messages contain. The number of events is limited, so the memory is limited as well.
Whatever a file contains, the reader raises no exception.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from bench.core import plugins
from bench.core.wrapping import quoted
from bench.logs.line_labels import rank_label, stream_of
from bench.logs.progress import NOTHING_LATER, UNCAUGHT, Course, Later, ProgressReader
from bench.logs.readers import _lines

LARGEST_DOCUMENT = 1 << 28  # the largest dump that is read, in bytes
_MOST_EVENTS = 20_000  # events that are kept for one file, at most
_MOST_ALIKE = 4_000  # events of one type that are kept for one file, at most
_LONGEST_LINE = 4_000
_LONGEST_PRINTED = 240
_LONGEST_HINT = 64
_HEAD = 4_096


class Role(StrEnum):
    """The role of a message.

    A message shows the cause of a failure, a consequence of a failure, or the state of a rank.
    """

    CAUSE = "cause"  # the message explains the failure: out of memory, a wrong call, a signal
    NETWORK = "network"  # a link or the peer failed; the message cannot tell which
    ABSENT = "absent"  # the message names ranks that did not reach the operation
    ENDED = "ended"  # a process ended, but the message does not say why
    WAITED = "waited"  # a rank waited until a time limit: a consequence
    PEER = "peer"  # a connection to another rank was lost: a consequence
    STOPPED = "stopped"  # the launcher ended the process: a consequence
    STATE = "state"  # how far a rank got
    PLACE = "place"  # the host and the process of a rank


@dataclass(frozen=True, slots=True)
class MessageKind:
    """One type of message, with its code, its role, its meaning, and the step that the user should take next.

    `what`: a template of the meaning.
    `step`: a template of the next step. Fields and facts of the event replace the placeholders in both templates
        (core/codes.py: fill_present).
    `weight`: the confidence, from 0 to 1, that a job with this message failed for this reason.
    `advisory`: whether programs also print this message if all goes well. An advisory message alone is not a failure.
    """

    code: str
    role: Role
    what: str
    weight: float = 0.5
    step: str = ""
    command: str = ""
    advisory: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One message. If the text does not state the value of a field, the field is None or empty.

    `time_s`: seconds since the start of the year, on the host's clock.
    `duration_s`: the seconds that the rank waited.
    `ranks`: the ranks that the message names as missing.
    `printed`: the text of the message, shortened if necessary.
    `label`: the rank that a launcher printed before the first line of the message.
    `later`: what happens in the file after the message.
    """

    kind: MessageKind
    line: int
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    time_s: float | None = None
    group: str | None = None
    operation: str | None = None
    seq: int | None = None
    peer: str | None = None
    duration_s: float | None = None
    ranks: tuple[int, ...] = ()
    printed: str = ""
    source: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    label: int | None = None
    later: Later = NOTHING_LATER

    @property
    def code(self) -> str:
        """The code of the event's kind."""
        return self.kind.code

    @property
    def role(self) -> Role:
        """The role of the event's kind."""
        return self.kind.role


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line of a log.

    `raw`: the line as it is in the file.
    `text`: the line without prefixes that launchers added.
    `label`: the rank that a launcher printed before the line.
    `before`: the previous line of the file, unchanged, or empty if this line is unknown.
    """

    number: int
    text: str
    raw: str
    label: int | None = None
    before: str = ""


class EventFormat(ABC):
    """Reads messages of one type from the lines of one file.

    A new reader is made for every file. A reader never raises an error.
    """

    hints: ClassVar[tuple[str, ...]]  # every line that the format reads contains one of these texts, as printed
    is_open = False  # whether the format must get the next line in any case, for example within a table
    claimed = 0  # the last line whose event the format yields later
    is_general = False  # whether the format gets only lines without an event of another format

    @abstractmethod
    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the events of one line."""

    def finish(self) -> Iterator[Event]:
        """Yield the events of messages that are incomplete when the file ends."""
        yield from ()


class DocumentFormat(ABC):
    """Reads a whole file at once, such as a dump."""

    @abstractmethod
    def begins(self, head: bytes) -> bool:
        """Check whether the first bytes of a file may be the beginning of a document of this format."""

    @abstractmethod
    def read(self, data: bytes, name: str) -> Iterator[Event]:
        """Yield the events of a document.

        A damaged document yields no event.

        `name`: the name of the file, which may contain the rank.
        """


@dataclass(frozen=True, slots=True)
class Sign:
    """A pattern that recognises one type of message.

    A named group of the pattern fills the field of the event with the same name: rank, pid, seq, host, group, operation
    or peer. The group `ranks` is a list of numbers. The group `time` is the time of the event, and the group `ms` or
    `seconds` is the duration. Any other named group becomes a fact of the event.
    """

    pattern: re.Pattern[str]
    kind: MessageKind


class SignFormat(EventFormat):
    """A format with a table of patterns, each for one type of message.

    The first pattern that matches a line determines the event of the line.
    """

    signs: ClassVar[tuple[Sign, ...]]

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield at most one event for a line."""
        for sign in self.signs:
            found = sign.pattern.search(line.text)
            if found is not None:
                yield self.completed(event_of(sign.kind, line, found), line)
                return

    def completed(self, event: Event, line: EventLine) -> Event:
        """Return the event with additional facts from other parts of the line."""
        return event


_ALTERNATIVE = re.compile(r"_\d$")
_INTEGERS = ("rank", "pid", "seq")
_TEXTS = ("host", "group", "operation", "peer")
_TIMES = re.compile(
    r"(?:^|[\[\s])(?:"
    r"[EWIF](?P<glog_month>\d{1,2}?)(?P<glog_day>\d{2})\s(?P<glog_time>\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)"
    r"|(?:\d{4})-(?P<month>\d{2})-(?P<day>\d{2})[T _](?P<time>\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?)"
    r"|(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}(?P<name_day>\d{1,2})\s"
    r"(?P<name_time>\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)"
    r")"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
_SRUN_LABEL = re.compile(r"^\s*(\d{1,6}):\s")
_TEST_LABEL = re.compile(r"^\s*(\d{1,6}): Test (?:command|timeout computed to be): ")  # printed by ctest before a test


def event_of(kind: MessageKind, line: EventLine, found: re.Match[str] | None = None, **fields: Any) -> Event:
    """Build an event from the named groups of a match, the line's time, and given fields. Given fields have precedence.

    A group named `name_2` fills the same field as the group `name`, because a regular expression cannot use a name
    twice.
    """
    values: dict[str, Any] = {"time_s": time_of(line.raw), "label": line.label}
    facts: dict[str, Any] = {}
    for name, text in (found.groupdict() if found is not None else {}).items():
        if text is None:
            continue
        name = _ALTERNATIVE.sub("", name)
        if name in _INTEGERS:
            values[name] = whole(text)
        elif name in _TEXTS:
            values[name] = text.strip()
        elif name == "ranks":
            values[name] = numbers(text)
        elif name == "ms":
            values["duration_s"] = float(text) / 1e3
        elif name == "seconds":
            values["duration_s"] = float(text)
        else:
            facts[name] = text.strip()
    facts |= fields.pop("facts", {})
    values |= fields
    values.setdefault("printed", line.text)
    values["printed"] = quoted(values["printed"].strip(), _LONGEST_PRINTED)
    return Event(kind, line.number, facts=facts, **values)


def whole(text: str) -> int | None:
    """Parse a whole number.

    Return None for a number with too many digits, because such a number shows that the text is damaged.
    """
    return int(text) if len(text) <= 20 else None


def numbers(text: str) -> tuple[int, ...]:
    """Parse a list of numbers such as "2, 5-7".

    For a range of more than 100,000 numbers, return only the first and the last number.
    """
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,7})(?:-(\d{1,7}))?", text):
        begin, end = int(first), int(last or first)
        found += range(begin, end + 1) if 0 <= end - begin < 100_000 else (begin, end)
    return tuple(dict.fromkeys(found))


def time_of(text: str) -> float | None:
    """Return the first date in a line in seconds since the start of the year, or None without a date."""
    found = _TIMES.search(text[:_LONGEST_LINE])
    if found is None:
        return None
    if found["name"]:
        month, day, clock = _MONTHS.index(found["name"]) + 1, int(found["name_day"]), found["name_time"]
    else:
        month = int(found["glog_month"] or found["month"])
        day, clock = int(found["glog_day"] or found["day"]), found["glog_time"] or found["time"]
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    return ((month * 31 + day) * 24 + int(hours)) * 3600 + int(minutes) * 60 + float(seconds)


class EventReader:
    """Reads the events of one file.

    The method `look` gets the pieces of the file's text in order (logs/readers/_lines.py).
    """

    def __init__(self) -> None:
        """Begin without any text."""
        self._formats = [made for made in map(_format, plugins.names("event")) if isinstance(made, EventFormat)]
        self._hints = [(hint, reader) for reader in self._formats for hint in reader.hints]
        self._events: list[Event] = []
        self._num_of: dict[str, int] = {}
        # an event -> the steps that were known before it, and the place of an equal event after further steps
        self._seen: dict[tuple[Any, ...], tuple[int, int | None]] = {}
        self._progress = ProgressReader()
        self._streams: dict[int, str | None] = {}  # the line of an event -> the process that printed it
        # a number before lines -> how often it occurred; a repeated number is a rank and not a line number
        self._labels: dict[int, int] = {}
        self._tests: set[int] = set()  # a number that is that of a test; ctest prints it before each line of the test
        self._times: dict[str, int] = {}  # a line without its numbers -> how often such a line occurred
        self._number = 1
        self._rest, self._end, self._before = "", "", ""
        self._unread: tuple[int, str] | None = None  # the first line and the text of the last piece without samples
        # the hints in the last piece; a line with such a hint may continue in the next piece
        self._near: list[tuple[str, EventFormat]] = []

    def look(self, text: str) -> None:
        """Read the next piece of the text."""
        seen = self._end + text
        self._end = seen[-_LONGEST_HINT:]
        found = [(hint, reader) for hint, reader in self._hints if hint in seen]
        near = list(dict.fromkeys([*self._near, *found]))
        self._near = found if "\n" in text else near
        if not near and not any(reader.is_open for reader in self._formats):
            self._skip(text)
            return
        begun = self._rest + text
        *whole_lines, rest = begun.split("\n")
        self._rest = rest[:_LONGEST_LINE]
        is_read = self._progress.wants(len(text))
        num_messages = self._progress.num_messages
        ends = [sign for sign in UNCAUGHT if sign in begun]
        begin = self._number
        for index, raw in enumerate(whole_lines):
            if ends and any(sign in raw for sign in ends):
                self._progress.read_end(self._number, raw)
            label = self._line(raw, near)
            if not is_read and self._progress.num_messages > num_messages:
                is_read = True
                for earlier in range(index):  # the program may have reported success shortly before
                    self._progress.read(begin + earlier, whole_lines[earlier], None)
                self._progress.begin_part()
            self._before = raw[:_LONGEST_LINE]
            if is_read:
                self._progress.read(self._number, raw, label)
            self._number += 1
        if whole_lines:
            self._unread = None
            if not is_read:
                self._sample(begin, begun)

    def events(self, source: str = "") -> tuple[Event, ...]:
        """Return all events of the text in order. Call this method once, after the last piece."""
        if self._unread is not None:
            begin, text = self._unread
            self._read_skipped(begin, self._progress.samples(text, is_last=True), is_sample=True)
        if self._rest:
            self._progress.read(self._number, self._rest, self._line(self._rest, self._hints))
            self._rest = ""
            self._number += 1
        for reader in self._formats:
            self._keep(reader.finish())
        found = sorted(self._events, key=lambda event: event.line)
        return tuple(replace(event, source=source, later=self._later(event)) for event in found)

    def course(self) -> Course:
        """Return the progress of the job. Call this method after `events`."""
        return self._progress.course(self._number - 1)

    def _later(self, event: Event) -> Later:
        return self._progress.later(event.line, self._stream_of(event), event.rank)

    def _stream_of(self, event: Event) -> str | None:
        """Return the process that printed the message of an event. The message may have begun on an earlier line."""
        return self._streams.get(event.line) or (str(event.label) if event.label is not None else None)

    def _skip(self, text: str) -> None:
        """Skip a piece of text that contains no known word, but keep its last line.

        The next piece of text may continue this line.
        """
        ended = text.count("\n")
        begun = self._rest + text
        if ended:
            self._before = begun[: begun.rfind("\n")].rpartition("\n")[2][:_LONGEST_LINE]
        if self._progress.wants(len(text)):
            self._read_skipped(self._number, enumerate(begun.split("\n")[:-1]))
        elif ended:
            self._sample(self._number, begun)
        self._rest = (text.rpartition("\n")[2] if ended else self._rest + text)[:_LONGEST_LINE]
        self._number += ended

    def _sample(self, begin: int, text: str) -> None:
        """Read samples of a skipped text at intervals, to see how far the job got.

        `events` reads the samples from the end of the file.
        """
        is_sampled = self._read_skipped(begin, self._progress.samples(text), is_sample=True)
        self._unread = None if is_sampled else (begin, text)

    def _read_skipped(self, begin: int, lines: Iterable[tuple[int, str]], is_sample: bool = False) -> bool:
        """Read these skipped lines, to see the progress of the job. Return whether there was at least one line."""
        number = None
        for number, raw in lines:
            label = self._srun_label(raw, not is_sample) if raw[:1].isdigit() or raw[:1] == " " else None
            self._progress.read(begin + number, raw, label)
        return number is not None

    def _line(self, raw: str, near: Iterable[tuple[str, EventFormat]]) -> int | None:
        """Read the events of a line. Return the rank that srun printed before the line."""
        readers = [reader for reader in self._formats if reader.is_open]
        readers += [reader for hint, reader in near if hint in raw]
        label = self._srun_label(raw) if raw[:1].isdigit() or raw[:1] == " " else None
        if not readers:
            return label
        raw = _lines.without_colours(raw[:_LONGEST_LINE])
        if self._is_frequent(raw) and not any(reader.is_open for reader in readers):
            return label
        rank = rank_label(raw)
        rank = label if rank is None else rank
        readers = sorted(dict.fromkeys(readers), key=lambda reader: reader.is_general)
        for piece in raw.split("\r") if "\r" in raw else (raw,):
            line = EventLine(self._number, _lines.clean(piece), raw, rank, self._before)
            found: list[Event] = []
            for reader in readers:
                is_read = any(event.line == self._number for event in found)
                is_read |= any(other.claimed == self._number for other in readers)
                if not (reader.is_general and is_read):
                    found += reader.read(line)
                if reader.claimed == self._number:
                    self._streams[self._number] = stream_of(raw, rank)
            self._keep(found, stream_of(raw, rank))
        return label

    def _is_frequent(self, raw: str) -> bool:
        """Check whether many earlier lines were the same as this line, apart from the numbers in the lines.

        Such lines are skipped, so that logs with millions of them can be read in seconds.
        """
        shape = _NUMBER.sub("#", raw)
        number = self._times.get(shape, 0)
        if number or len(self._times) < _MOST_EVENTS:
            self._times[shape] = number + 1
        return number >= _MOST_ALIKE

    def _srun_label(self, raw: str, is_new: bool = True) -> int | None:
        """Return the rank that `srun --label` printed before a line, or None.

        A line number looks like such a rank, but each line number occurs only once. A number that ctest prints is the
        number of a test.

        `is_new`: whether the line is read for the first time.
        """
        found = _SRUN_LABEL.match(raw)
        if found is None:
            return None
        rank = int(found[1])
        if _TEST_LABEL.match(raw):
            self._tests.add(rank)
        if rank in self._tests:
            return None
        if is_new and (rank in self._labels or len(self._labels) < _MOST_EVENTS):
            self._labels[rank] = self._labels.get(rank, 0) + 1
        return rank if self._labels.get(rank, 0) > 1 else None

    def _keep(self, events: Iterable[Event], stream: str | None = None) -> None:
        """Keep new events. If several events are equal, keep the first event.

        If the job made progress between equal events, also keep the last event.

        `stream`: the process that printed the line of the events.
        """
        for event in map(_with_label, events):
            number = self._num_of.get(event.code, 0)
            named = event.rank is not None or event.pid is not None
            reporter = event.facts.get("reported_by")
            where = (event.rank, event.host, event.pid, event.group, event.seq, event.ranks, reporter)
            attempt = self._progress.num_restarts if event.role not in (Role.STATE, Role.PLACE) else 0
            key = (event.code, event.kind.advisory, attempt, *where, "" if named else event.printed)
            steps, place = self._seen.get(key, (None, None))
            is_later = steps is not None and event.role not in (Role.STATE, Role.PLACE)
            if steps is not None and not (is_later and self._progress.num_marks > steps):
                continue
            if event.line == self._number:
                self._streams[event.line] = stream
            if place is not None:
                self._events[place] = event
            elif number >= _MOST_ALIKE or len(self._events) >= _MOST_EVENTS:
                continue
            else:
                self._events.append(event)
                self._num_of[event.code] = number + 1
                place = len(self._events) - 1 if steps is not None else None
            self._seen[key] = (self._progress.num_marks, place)
            if event.role not in (Role.STATE, Role.PLACE):
                own = stream if event.line == self._number else self._stream_of(event)
                self._progress.event_found(event.line, own)


def _with_label(event: Event) -> Event:
    """If the label of an event's first line names a rank, return the event with this rank.

    Events that already have a rank, and messages of launchers, do not change. A message about absent ranks comes from a
    rank that is present, so the label never names an absent rank.
    """
    if event.role == Role.ABSENT:
        reporter = event.rank if event.label is None else event.label
        if event.ranks or reporter is None:
            return event
        return replace(event, rank=None, facts={"reported_by": reporter, **event.facts})
    if event.label is None or event.rank is not None or event.ranks or event.role in (Role.STOPPED, Role.PLACE):
        return event
    return replace(event, rank=event.label)


def document_events(data: bytes, name: str) -> tuple[Event, ...]:
    """Return the events of a file that is a single document.

    Return an empty tuple if no format recognises the document. Never raises.
    """
    found: list[Event] = []
    for made in map(_format, plugins.names("event")):
        if isinstance(made, DocumentFormat) and made.begins(data[:_HEAD]):
            found += made.read(data, name)
    return tuple(replace(event, source=name) for event in found[:_MOST_EVENTS])


def may_be_document(head: bytes) -> bool:
    """Check whether the first bytes of a file look like a document of a known format."""
    formats = map(_format, plugins.names("event"))
    return any(isinstance(made, DocumentFormat) and made.begins(head[:_HEAD]) for made in formats)


def _format(name: str) -> EventFormat | DocumentFormat:
    made: EventFormat | DocumentFormat = plugins.load("event", name).FORMAT()
    return made
