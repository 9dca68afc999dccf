"""Read the output of nvbandwidth v0.1 to v0.8, text or JSON: matrices of copies between host and GPUs.

GB/s is 1e9 bytes per second. A printed latency is the round-trip time of a load. The reader only checks the printed
sums and does not store them, because their definition changed. Since v0.6, the printed sum of a two-way test between
GPUs includes both directions. The reader uses the status of each test, because the program exits with 0 even if a test
failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRun, Line, Reader
from bench.logs.messages import LogCode
from bench.logs.readers import _grid, _nvb_json
from bench.logs.readers._nvb_run import NvbandwidthRun
from bench.logs.readers._run_notes import shown

_VERSION = re.compile(r"nvbandwidth Version: (\S+)")
_RUNNING = re.compile(r"Running ([a-z0-9_]{3,80})\.$")
_KNOWN = re.compile(r"Running (?:multinode_)?(?:host_|device_|all_|one_|bisect_)[a-z0-9_]+\.$")
_TITLE = re.compile(
    r"(?:(?:memcpy|multicast) (?:CE|SM|local) .*bandwidth \(GB/s\)|memory latency .*\(ns\)"
    r"|Device to Device Latency .*\(ns\)|Bisect benchmarking,.*)$"
)
_PART = re.compile(r"\b(?:Read|Write)([12])\b|\b(Total) bandwidth\b")
_PART_OF_KEY = re.compile(r"_(?:read[12]|write[12]|total)$")
_SUM = re.compile(r"SUM (\S+) (\d+(?:\.\d+)?(?:e[+-]?\d+)?)$")
_WAIVED = re.compile(r"(?:Waived:|Waiving )\s*(.*?)\.?$")
_ERROR = re.compile(
    r"\[(?:CUDA_ERROR_\w+|cudaError\w*)\].*|NVML_ERROR: .*|ASSERT in expression .*|(?:ERROR|Error): .*"
    r"|Invalid value when checking the pattern at .*"
)
_CORRUPT = re.compile(r"Invalid value when checking the pattern at \S+")
_DEVICE = re.compile(r"Device (\d+): (.+?)(?: \([0-9a-fA-F:.]+\))?$")
_PROCESS = re.compile(r"Process +\d+ \((\S+)\): device \d+: (.+?)(?: \([0-9a-fA-F:.]+\))?$")
_LEFT_OUT = re.compile(r"\[?(?:\.{3,}|…)\]?$")


class Nvbandwidth(Reader):
    """Reads text and JSON. A file may contain several runs."""

    tool = "nvbandwidth"
    traits = LogTraits(copies=True)
    hints = ("nvbandwidth", "running ", "checking the pattern", "(row)", "(column)")

    def __init__(self) -> None:
        self._run: NvbandwidthRun | None = None
        self._document: _nvb_json.NvbandwidthJsonCollector | None = None
        self._corrupt: Line | None = None  # a message that is printed before its document
        self._last = 0

    def begins(self, text: str) -> bool:
        """Check whether the line is a banner, a test, a message about wrong data, or the start of a JSON document."""
        text = text.strip()
        if any(form.match(text) for form in (_VERSION, _nvb_json.BEGINS, _KNOWN, _CORRUPT)):
            return True
        return _TITLE.match(text) is not None and ("(row)" in text or "(column)" in text)

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield the runs that end with this line."""
        self._last = line.number
        text = line.text.strip()
        if self._document is not None and not (_VERSION.match(text) or _nvb_json.BEGINS.match(text)):
            self._document.feed(line)
            if self._document.closed or self._document.too_long:
                yield from self._close()
            return
        if _nvb_json.BEGINS.match(text):
            yield from self._close()
            self._document = _nvb_json.NvbandwidthJsonCollector(line)
            self._document.feed(line)
            if self._document.closed:
                yield from self._close()
        elif found := _VERSION.match(text):
            yield from self._close()
            self._run = NvbandwidthRun(line.number, version=found[1])
        elif _CORRUPT.match(text) and self._run is None:
            self._corrupt = line
        elif self._run is not None or self.begins(text) or _LEFT_OUT.match(text):
            self._run = self._run or NvbandwidthRun(line.number)
            _read(self._run, line.number, text)

    def finish(self) -> Iterator[ForeignRun]:
        """Yield the run that is incomplete at the end of the file."""
        yield from self._close()
        if self._corrupt is not None:
            self._run, line = NvbandwidthRun(self._corrupt.number), self._corrupt
            self._corrupt = None
            self._run.fail(line.number, LogCode.TOOL_ERROR, printed=shown(line.text))
            yield from self._close()

    def _close(self) -> Iterator[ForeignRun]:
        document, run = self._document, self._run
        self._document = self._run = None
        if run is not None and not run.empty:
            run.close_test(self._last)
            yield run.run()
        if document is not None:
            found = NvbandwidthRun(document.line)
            if self._corrupt is not None:
                found.fail(self._corrupt.number, LogCode.TOOL_ERROR, printed=shown(self._corrupt.text))
                self._corrupt = None
            _nvb_json.add_document(found, document, self._last)
            yield found.run()


def _read(run: NvbandwidthRun, number: int, text: str) -> None:
    """Read one line of the text output."""
    words = text.split()
    if run.grid is not None and run.grid.take(words, number):
        return
    if run.title is not None and run.grid is None and (grid := _grid.begin(words, number)) is not None:
        run.grid = grid
    elif found := _RUNNING.match(text):
        run.close_test(number)
        run.test, run.test_line = found[1], number
    elif _TITLE.match(text):
        run.close_grid(number)
        run.title, run.tables = text, run.tables + 1
        part = _PART.search(text)
        run.part = (part[1] or "total") if part else ""
    elif found := _SUM.match(text):
        run.close_grid(number, _PART_OF_KEY.sub("", found[1]))
        run.check_sum(found[1], float(found[2]), number, 0.0051)
    elif found := _WAIVED.match(text):
        run.close_test(number)
        run.waived(number, found[1])
    elif _ERROR.match(text):
        run.fail(number, LogCode.TOOL_ERROR, printed=shown(text))
    elif _LEFT_OUT.match(text):
        run.close_grid(number)
        run.lose(number, LogCode.LINES_LEFT_OUT)
    else:
        _read_banner(run, text)


def _read_banner(run: NvbandwidthRun, text: str) -> None:
    if found := _DEVICE.match(text):
        run.gpus.setdefault(found[2])
        if found[1] == "0" and run.before_device:
            run.hosts.setdefault(run.before_device)
    elif found := _PROCESS.match(text):
        run.hosts.setdefault(found[1])
        run.gpus.setdefault(found[2])
    elif text.startswith("CUDA Runtime Version: "):
        run.settings["cuda"] = _nvb_json.cuda_version(text.rpartition(" ")[2])
    elif text.startswith("Driver Version: "):
        run.settings["driver"] = text.rpartition(" ")[2][:80]
    run.before_device = text if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,253}", text) else None
