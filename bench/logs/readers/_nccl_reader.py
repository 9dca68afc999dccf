"""Read the text or JSON output of any version of nccl-tests and rccl-tests, even from damaged logs.

The size of a row is S as defined in docs/metrics.md. The time of a row is the average of the ranks' mean times. Rates
are in 10^9 bytes per second. Each line gives two rows: one out of place, and one in place. The algbw of hypercube is
converted to linkbench's definition.

The JSON document (-J, versions 1 to 3) is one object, often on one line. The document's `env`, the full environment of
the process, is never stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRun, Line, Reader
from bench.logs.messages import LogCode
from bench.logs.readers._nccl_messages import NcclCode
from bench.logs.readers._nccl_pattern import PROGRAM, PROGRAMS, NamedPattern
from bench.logs.readers._nccl_rows import FIGURES, Fields, Half, RowLayout, element_type
from bench.logs.readers._nccl_run import LONGEST_PIECE, OpenRun, dotted
from bench.logs.readers._nccl_text import Text, begins_run, whole_row
from bench.logs.readers._run_notes import shown

_BEGINS = re.compile(
    r'\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"|\{?\s*"version"\s*:\s*\d+\s*,?$|"start_time"\s*:\s*"\d{4}-\d\d-\d\d '
)
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}]')  # a string, or a brace outside a string
_LIKE_JSON = re.compile(r'["{}\[\]]|(?:[-+.\deE]+|true|false|null|-?nan|-?inf)[\s,\]}]*$')
_BARE = re.compile(r":(-?)(?:inf|nan)(?=[,}\s])")  # the output of %lf for nan or inf
_KEY = re.compile(r'[\s,]*"(\w+)"\s*:')
_GAP = re.compile(r"[\s,]*")
_KEYS = {"nccl_version", "config", "results"}
_NOTHING: Any = object()
_NO_RUNS: tuple[ForeignRun, ...] = ()
_STATISTICS = {
    "mean_s": "nccl_tests_s",
    "algbw_bytes_per_s": "nccl_tests_algbw_bytes_per_s",
    "busbw_bytes_per_s": "nccl_tests_busbw_bytes_per_s",
}


class NcclTests(Reader):
    """Reads text, and also JSON documents that are embedded in text."""

    tool = "nccl_tests"
    traits = LogTraits(gpu_collectives=True, rings=True, statistics=_STATISTICS)
    other_tools = MappingProxyType({"rccl_tests": LogTraits(gpu_collectives=True, statistics=_STATISTICS)})

    def __init__(self) -> None:
        self._text = Text()
        self._document: NcclJsonCollector | None = None

    def begins(self, text: str) -> bool:
        """Check whether the line is a command, banner, device, header, footer, failure or data line.

        The first line of a JSON document is also accepted.
        """
        if text[:1].isdigit():
            return len(text) <= LONGEST_PIECE and whole_row(text.split()) is not None
        if text[:1] in ("{", '"'):
            return NcclJsonCollector.begins(text)
        return begins_run(text)

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield the runs that end with this line."""
        number, text = line
        if text:
            if self._document is not None or (text[0] in '{"' and NcclJsonCollector.begins(text)):
                self._read_json(number, text)
            else:
                self._text.read(number, text)
            if self._text.done:
                return self._take()
        return iter(_NO_RUNS)

    def finish(self) -> Iterator[ForeignRun]:
        """Yield the runs that are incomplete at the end of the file."""
        found = self._document.finish() if self._document is not None else []
        self._document = None
        self._text.close(at_end=True)
        self._text.done += found
        return self._take()

    def _take(self) -> Iterator[ForeignRun]:
        done, self._text.done = self._text.done, []
        return iter(done)

    def _read_json(self, number: int, text: str) -> None:
        """Read a line of a JSON document.

        If the line cannot belong to the document, the document ends, and the line is read as text.
        """
        if self._document is None:
            self._document = NcclJsonCollector(number)
        taken = self._document.feed(text)
        if taken is False:
            return
        found, self._document = self._document.finish(), None
        if found:
            self._text.close()
            self._text.done += found
        if taken is None:
            self._text.read(number, text)


class NcclJsonCollector:
    """Collects the lines of one document."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._texts: list[str] = []
        self._depth = 0

    @staticmethod
    def begins(text: str) -> bool:
        """Check whether the line is the first line of a document, or the first key of a document of several lines."""
        return _BEGINS.match(text) is not None

    def feed(self, text: str) -> bool | None:
        """Add a line. Return whether the document is now complete.

        If the line cannot be part of a document, return None. If the opening brace was on an earlier line, this method
        adds an opening brace.
        """
        if not self._texts and text[0] != "{":
            text = "{" + text
        if not _LIKE_JSON.match(text):
            return None
        self._texts.append(text)
        for token in _TOKEN.finditer(text):
            self._depth += {"{": 1, "}": -1}.get(token[0], 0)
        return self._depth <= 0

    def finish(self) -> list[ForeignRun]:
        """Return a list with the run that the document describes.

        If the document is damaged, the run contains only the readable part. The list is empty if another program wrote
        the document.
        """
        text = _BARE.sub(r':"\1nan"', "\n".join(self._texts))
        run = OpenRun(self._line)
        whole = _parsed(text)
        if isinstance(whole, dict):
            if not set(whole) >= _KEYS:
                return []
            _fill(run, whole)
        elif not all(f'"{key}"' in text for key in _KEYS - {"results"}):
            return []
        else:
            _salvage(run, text)
        return [run.close()]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _salvage(run: OpenRun, text: str) -> None:
    """Read the complete values and results of a document whose end is missing."""
    document: dict[str, Any] = {}
    place = text.find("{") + 1
    while (key := _KEY.match(text, place)) is not None:
        if key[1] == "results":
            document["results"] = list(_whole_values(text, text.find("[", key.end()) + 1))
            break
        value = next(_whole_values(text, key.end()), _NOTHING)
        if value is _NOTHING:
            break
        document[key[1]] = value[0]
        place = value[1]
    results = [value for value, _ in document.pop("results", [])]
    _fill(run, {**document, "results": results})
    run.lose(run.line, NcclCode.DOCUMENT_CUT, num=len(results))


def _whole_values(text: str, place: int) -> Iterator[tuple[Any, int]]:
    """Yield each value, together with the position in the text where the value ends. Stop at an incomplete value."""
    decoder = json.JSONDecoder()
    while place:
        gap = _GAP.match(text, place)
        try:
            value, place = decoder.raw_decode(text, gap.end() if gap else place)
        except (ValueError, RecursionError):
            return
        yield value, place


def _fill(run: OpenRun, document: dict[str, Any]) -> None:
    arguments = document.get("args")
    name = PROGRAM.search(str(arguments[0])) if isinstance(arguments, list) and arguments else None
    if name:
        run.named = NamedPattern(PROGRAMS[name[1]], f"{name[1]}_perf", run.line)
    if isinstance(code := document.get("nccl_version"), int):
        run.settings["nccl"] = dotted(code)
    config = document.get("config")
    if isinstance(config, dict):
        _read_config(run, config)
    results = document.get("results")
    for result in results if isinstance(results, list) else []:
        fields = _fields(run, result)
        if fields is None:
            run.lose(run.line, NcclCode.RESULT_UNREADABLE)
        else:
            run.add(fields, run.line)
    _read_end(run, document)


def _read_config(run: OpenRun, config: dict[str, Any]) -> None:
    words = {
        "nthreads": "threads",
        "ngpus": "gpus_per_thread",
        "minimum_bytes": "min_bytes",
        "maximum_bytes": "max_bytes",
        "step_factor": "step",
        "step_bytes": "step",
        "warmup_iters": "warmup_iters",
        "iterations": "iters",
        "aggregated_iterations": "agg_iters",
        "validation": "validation",
        "graph": "graph",
    }
    run.settings.update({ours: str(config[key]) for key, ours in words.items() if isinstance(config.get(key), int)})
    run.settings["step_kind"] = "factor" if "step_factor" in config else "bytes"
    threads, gpus = config.get("nthreads"), config.get("ngpus")
    each = min(threads * gpus, 1024) if isinstance(threads, int) and isinstance(gpus, int) else 1
    devices = config.get("devices")
    for device in devices if isinstance(devices, list) else []:
        if not isinstance(device, dict) or not isinstance(device.get("rank"), int):
            continue
        host, group = str(device.get("hostname", "")), device.get("group")
        # the document lists only the first GPU of a process
        for rank in range(device["rank"], device["rank"] + max(each, 1)):
            run.ranks[rank] = (group if isinstance(group, int) else 0, host, device["rank"])
        run.hosts[host] = None
        if isinstance(device.get("device_info"), str) and device["device_info"]:
            run.gpus[device["device_info"]] = None


def _fields(run: OpenRun, result: Any) -> Fields | None:
    if not isinstance(result, dict):
        return None
    size, count, word = result.get("size"), result.get("count"), result.get("type")
    dtype = element_type(word) if isinstance(word, str) else None
    root = str(result.get("root", "-1")).strip()
    if not isinstance(size, int) or not isinstance(count, int) or size < 0 or count < 0 or dtype is None:
        return None
    if not re.fullmatch(r"-?\d{1,9}", root):
        return None
    placed = [result.get("out_of_place"), result.get("in_place")]
    halves = [_half(run, value) for value in placed if isinstance(value, dict)]
    if not halves:
        return None
    run.shape = RowLayout(halves=1 if not isinstance(placed[0], dict) else 2)
    operation = result.get("redop")
    reduce_op = operation if isinstance(operation, str) and operation not in ("", "none") else None
    return Fields(size, count, dtype, reduce_op, None if int(root) < 0 else int(root), tuple(halves))


def _half(run: OpenRun, placed: dict[str, Any]) -> Half:
    if "cpu_time" in placed:
        run.title = ("cputime",)
    wrong = _figure(placed.get("nwrong"))
    keys = ("cpu_time" if "cpu_time" in placed else "time", "alg_bw", "bus_bw")
    figures = [_figure(placed.get(key)) for key in keys]
    unreadable = tuple(
        name for name, key, value in zip(FIGURES, keys, figures, strict=True) if key in placed and value is None
    )
    time_us, algbw, busbw = figures
    return Half(time_us, algbw, busbw, None if wrong is None else int(wrong), wrong is not None, unreadable)


def _figure(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e300 else None


def _read_end(run: OpenRun, document: dict[str, Any]) -> None:
    bounds, average = document.get("out_of_bounds"), document.get("average_bus_bandwidth")
    if isinstance(bounds, dict) and isinstance(bounds.get("count"), int):
        run.footer = True
        run.settings["out_of_bounds"] = str(bounds["count"])
        if bounds["count"]:
            run.add_failure(run.line, NcclCode.OUT_OF_BOUNDS, values=bounds["count"], verdict="FAILED")
    if isinstance(average, dict):
        run.average, run.average_line = _figure(average.get("bandwidth")), run.line
        if average.get("okay") == "false":
            run.add_failure(run.line, NcclCode.BELOW_DEMANDED)
    errors = document.get("errors")
    for error in errors if isinstance(errors, list) else []:
        if isinstance(error, str) and error:
            run.add_failure(None, LogCode.TOOL_ERROR, printed=shown(error))
