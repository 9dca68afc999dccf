"""Read iperf3: throughput of TCP, UDP and SCTP streams between two hosts, as text, JSON or JSON lines.

According to the program's source, prefixes of bits are powers of ten (Gbits is 1e9), and prefixes of bytes are powers
of two (MBytes is 2^20). The first result of a run is the sum of the rates at the receivers. The figures of single
intervals become results only if the summary is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRun, Line, Reader
from bench.logs.messages import LogCode
from bench.logs.readers._document import JsonCollector, figure, listing, mapping
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresRun, number
from bench.logs.readers._lines import FENCE
from bench.logs.readers._run_notes import shown

_CONNECTING = re.compile(r"Connecting to host (\S{1,255}), port \d{1,5}$")
_ACCEPTED = re.compile(r"Accepted connection from (\S{1,255}), port \d{1,5}$")
_LISTENING = re.compile(r"Server listening on (?:UDP )?\d{1,5}")
_VERSION = re.compile(r"iperf (3\.\S{1,20})$")
_TITLES = re.compile(r"\[ ID\](?:\[Role\])? Interval {5,40}Transfer {2,20}(?:Bitrate|Bandwidth)")
_ROW = re.compile(
    r"(?:\[ *(\d{1,5}|SUM)\])?(?:\[([TR]X-[CS])\])?\s*([0-9.]{1,12})-([0-9.]{1,12})\s+sec\s+"
    r"([0-9.]{1,20}) ([KMGT]?)Bytes\s+([0-9.]{1,20}) ([KMGT]?)(bits|Bytes)/sec(.*)$"
)
_LIKE_ROW = re.compile(r"(?:\[ *(?:\d{1,5}|SUM)\])?(?:\[[TR]X-[CS]\])?\s*[0-9.]+-[0-9.]+\s+sec")
_DATAGRAMS = re.compile(r"\s*([0-9.]{1,20}) ms\s+(\d{1,15})/(\d{1,15}) \(([0-9.e+-]{1,12})%\)")
_RETRANSMITS = re.compile(r"\s*(\d{1,12})\s")
_ERROR = re.compile(r"iperf3: (?:error|interrupt) - (.{1,300})")
_DOCUMENT = re.compile(r'\{?\s*"start"\s*:\s*\{(?:\s*"connected")?')
_EVENT = re.compile(r'\{"event":\s*"(start|interval|end|error|server_output_\w+)",\s*"data":')
_BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_SUMS = {
    "sum_received": "received",
    "sum_sent": "sent",
    "sum": "transferred",
    "sum_received_bidir_reverse": "received, reverse direction",
    "sum_sent_bidir_reverse": "sent, reverse direction",
    "sum_bidir_reverse": "transferred, reverse direction",
}
_OTHER_ENDS = {
    "sum_received": "sum_sent",
    "sum_sent": "sum_received",
    "sum_received_bidir_reverse": "sum_sent_bidir_reverse",
    "sum_sent_bidir_reverse": "sum_received_bidir_reverse",
}


class IperfCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-iperf3",
        "the rate depends on the CPU, the kernel and the number of streams as well as on the NIC, which is not printed",
    )
    NO_SUMMARY = "no-summary", "the final summary is missing, so the intervals are kept"
    DOCUMENT_CUT = "document-cut", "the JSON document is cut or damaged; it was not read"
    OTHER_END_UNKNOWN = (
        "other-end-unknown",
        "linkbench left out `{side}`: this server did not learn the figures of the other end, and printed 0",
    )
    UNITS = "units", "bits are counted in powers of ten, bytes in powers of two"


class IperfRun(FiguresRun):
    """One test, printed as text or as a document."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._titles = 0
        self._summary: list[tuple[int, re.Match[str]]] = []
        self._intervals: list[tuple[int, re.Match[str]]] = []
        self._accepted = False  # whether this end is the server
        self.over = False
        self.from_document = False

    @property
    def has_results(self) -> bool:
        """Whether a row was read."""
        return bool(self.figures or self._summary or self._intervals)

    def ended_by(self, text: str) -> bool:
        """Check whether the line begins the next test, for example with a new connection after rows of results."""
        return (self.over or self.has_results or bool(self.failures)) and _TITLES.match(text) is None

    def take(self, line: int, text: str) -> None:
        """Read a line of text output."""
        if found := _CONNECTING.match(text) or _ACCEPTED.match(text):
            self.settings.setdefault("peer", found[1])
            self._accepted |= text.startswith("Accepted")
        elif found := _VERSION.match(text):
            self.facts["tool_version"] = found[1]
        elif _TITLES.match(text):
            self._titles += 1
        elif found := _ROW.match(text):
            ending = found[10].split()[-1:]
            summed = ending in (["sender"], ["receiver"])
            if summed or (self._titles > 1 and self._intervals):
                self._summary.append((line, found))
            elif len(self._intervals) < 100_000:
                self._intervals.append((line, found))
        elif _LIKE_ROW.match(text):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
        elif found := _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(found[1]))
        elif text.startswith("iperf Done"):
            self.over = True
        else:
            self.note_common(line, text)

    def take_document(self, document: dict[str, Any]) -> None:
        """Read the figures of `-J`."""
        self.from_document = self.over = True
        end = mapping(document.get("end"))
        self._take_start(mapping(document.get("start")))
        if isinstance(error := document.get("error"), str) and error:
            self.fail(self.line, LogCode.TOOL_ERROR, printed=shown(error))
        for key, name in _SUMS.items():
            if key in end and not (key == "sum" and "sum_received" in end):
                self._take_sum(name, "all streams", mapping(end[key]), mapping(end.get(_OTHER_ENDS.get(key, ""))))
        for place, stream in enumerate(listing(end.get("streams"))):
            for key, name in (("receiver", "received"), ("sender", "sent"), ("udp", "transferred")):
                if key in mapping(stream):
                    values = mapping(stream[key])
                    socket = values.get("socket")
                    other = mapping(mapping(stream).get({"receiver": "sender", "sender": "receiver"}.get(key, "")))
                    self._take_sum(name, f"stream {socket if isinstance(socket, int) else place}", values, other)
        if not self.figures:
            self._take_intervals(listing(document.get("intervals")))
        cpu = mapping(end.get("cpu_utilization_percent"))
        for key, where in (("host_total", "this host"), ("remote_total", "the other host")):
            self.add("CPU utilisation", figure(cpu.get(key)), "percent", where)

    def _take_start(self, start: dict[str, Any]) -> None:
        if isinstance(version := start.get("version"), str):
            self.facts["tool_version"] = version.removeprefix("iperf ")
        peer = mapping(start.get("connecting_to") or start.get("accepted_connection")).get("host")
        self._accepted = "accepted_connection" in start
        if isinstance(peer, str):
            self.settings["peer"] = peer
        test = mapping(start.get("test_start"))
        for key in ("protocol", "num_streams", "reverse", "bidir"):
            if isinstance(test.get(key), str | int):
                self.settings[key] = str(test[key])

    def _take_intervals(self, intervals: list[Any]) -> None:
        """Keep the intervals of a document whose summary is missing."""
        if intervals and not self.failures:
            self.lose(self.line, IperfCode.NO_SUMMARY)
        for interval in intervals[:1000]:
            values = mapping(mapping(interval).get("sum"))
            first, last = figure(values.get("start")), figure(values.get("end"))
            rate = figure(values.get("bits_per_second"))
            if first is not None and last is not None and rate is not None and rate >= 0:
                self.add(f"interval {first:.2f} to {last:.2f} s", rate / 8, "bytes_per_s", "all streams")

    def _take_sum(self, name: str, where: str, values: dict[str, Any], other: dict[str, Any]) -> None:
        """Add the figures of one end. `other`: the values of the other end of the connection."""
        rate = figure(values.get("bits_per_second"))
        if rate is None or rate < 0:
            return
        is_own = name.startswith("received") and "lost_packets" in values  # all packets of a test by UDP may be lost
        if self._accepted and rate == 0 and not is_own and (figure(other.get("bits_per_second")) or 0.0) > 0:
            self.translate(IperfCode.OTHER_END_UNKNOWN, side=name.split(",")[0])
            return
        self.add(name, rate / 8, "bytes_per_s", where, line=self.line)
        for key, label, unit, scale in (
            ("retransmits", "retransmits", "count", 1.0),
            ("jitter_ms", "jitter", "s", 1e-3),
            ("lost_packets", "lost datagrams", "count", 1.0),
            ("lost_percent", "lost datagrams", "percent", 1.0),
        ):
            value = figure(values.get(key))
            if value is not None:
                self.add(f"{name}, {label}", value * scale, unit, where, line=self.line)

    def close(self) -> None:
        """Add the summary of the text output, with the received sum first. Without a summary, add the intervals."""
        summary, self._summary = self._summary, []
        intervals, self._intervals = self._intervals, []
        if summary or intervals:
            self.translate(IperfCode.UNITS)
        summary.sort(key=lambda row: (row[1][1] != "SUM", "receiver" not in row[1][10]))
        known = {found.group(1, 2) for _, found in summary if number(found[7])}
        for line, found in summary:
            words = found[10].split()
            side = {"sender": "sent", "receiver": "received"}.get(words[-1] if words else "", "transferred")
            is_own = side == "received" and "ms" in words  # UDP's jitter: all packets may be lost
            if self._accepted and not is_own and not number(found[7]) and found.group(1, 2) in known:
                self.translate(IperfCode.OTHER_END_UNKNOWN, side=side)
                continue
            role = f", {found[2]}" if found[2] else ""
            self._take_row(line, found, side + role)
        if summary or self.from_document:
            return
        if intervals and not self.failures:
            self.lose(intervals[-1][0], IperfCode.NO_SUMMARY)
        sums = [row for row in intervals if row[1][1] == "SUM"] or intervals
        for line, found in sums[:1000]:
            self._take_row(line, found, f"interval {found[3]} to {found[4]} s")

    def _take_row(self, line: int, found: re.Match[str], name: str) -> None:
        where = "all streams" if found[1] == "SUM" else f"stream {found[1]}" if found[1] else ""
        value = number(found[7])
        if value is None:
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(found[0], 100))
            return
        rate = value * _BITS[found[8]] / 8 if found[9] == "bits" else value * _BYTES[found[8]]
        self.add(name, rate, "bytes_per_s", where, line=line)
        if datagrams := _DATAGRAMS.match(found[10]):
            jitter, lost = number(datagrams[1]), number(datagrams[4])
            self.add(f"{name}, jitter", None if jitter is None else jitter * 1e-3, "s", where, line=line)
            self.add(f"{name}, lost datagrams", lost, "percent", where, line=line)
        elif retransmits := _RETRANSMITS.match(found[10] + " "):
            self.add(f"{name}, retransmits", float(retransmits[1]), "count", where, line=line)


class Iperf3(Reader):
    """Reads a file that may contain several tests."""

    tool = "iperf3"
    traits = LogTraits(host_memory=True, without_bound=Coded.of(IperfCode.NO_BOUND))
    hints = ("connecting to host", "accepted connection", "interval   ", "iperf", '"start"', '"event"')

    def __init__(self) -> None:
        self._run: IperfRun | None = None
        self._document: JsonCollector | None = None
        self._events: dict[str, Any] | None = None
        self._events_line = 0

    def begins(self, text: str) -> bool:
        """Check whether iperf3 printed the line.

        The line may be a connection, the titles of columns, an error, or the first key of a document.
        """
        text = text[: 2 * LONGEST_LINE].strip()
        if text[:1] in ("{", '"'):
            return _DOCUMENT.match(text) is not None or _EVENT.match(text) is not None
        forms = (_CONNECTING, _ACCEPTED, _TITLES, _ERROR)
        return any(form.match(text) is not None for form in forms)

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield the tests that end with this line."""
        text = line.text.strip()
        if not text:
            return
        if self._document is not None:
            if self._document.feed(text):
                yield from self._end_document()
        elif event := _EVENT.match(text):
            yield from self._take_event(line.number, event[1], text)
        elif _DOCUMENT.match(text):
            yield from self.finish()
            self._document = JsonCollector(line.number)
            if self._document.feed(text):
                yield from self._end_document()
        else:
            yield from self._take_text(line.number, text)

    def _take_text(self, number_: int, text: str) -> Iterator[ForeignRun]:
        text = text[:LONGEST_LINE]
        if self.begins(text):
            if self._run is not None and not _ERROR.match(text) and self._run.ended_by(text):
                yield from self.finish()
            if self._run is None:
                self._run = IperfRun(number_)
        elif self._run is not None and self._run.has_results and text.startswith(FENCE):
            yield from self.finish()
        if self._run is not None and not _LISTENING.match(text):
            self._run.take(number_, text)

    def _take_event(self, line: int, kind: str, text: str) -> Iterator[ForeignRun]:
        """Read one line of `--json-stream`."""
        try:
            data = json.loads(text)["data"]
        except (ValueError, KeyError, TypeError, RecursionError):
            data = None
        if kind == "start" or self._events is None:
            yield from self.finish()
            self._events, self._events_line = {"intervals": []}, line
        if kind == "interval":
            if len(self._events["intervals"]) < 1000:
                self._events["intervals"].append(data)
        else:
            self._events[kind] = data
        if kind == "end":
            yield from self._end_events()

    def _end_events(self) -> Iterator[ForeignRun]:
        events, self._events = self._events, None
        if events is not None:
            run = IperfRun(self._events_line)
            run.take_document(events)
            yield run.run(self.tool)

    def _end_document(self) -> Iterator[ForeignRun]:
        collector, self._document = self._document, None
        if collector is None:
            return
        document = collector.read()
        run = IperfRun(collector.line)
        if document is None:
            run.lose(collector.line, IperfCode.DOCUMENT_CUT)
        elif not {"end", "intervals"} & set(document):
            return  # another program wrote the document
        else:
            run.take_document(document)
        yield run.run(self.tool)

    def finish(self) -> Iterator[ForeignRun]:
        """Close the test, because the file has ended or the next test begins."""
        run, self._run = self._run, None
        if run is not None:
            yield run.run(self.tool)
        yield from self._end_events()
        yield from self._end_document()


READER = Iperf3
