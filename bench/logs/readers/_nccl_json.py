"""The JSON document of nccl-tests (-J), versions 1 to 3, as its source writes it: one object, often on one line.

Its `env`, the whole environment of the process, is never kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from bench.logs.foreign import ForeignRun
from bench.logs.readers._nccl_pattern import PROGRAM, PROGRAMS
from bench.logs.readers._nccl_rows import FIGURES, Fields, Half, RowLayout, element_type
from bench.logs.readers._nccl_run import NamedPattern, OpenRun, dotted

_BEGINS = re.compile(
    r'\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"|\{?\s*"version"\s*:\s*\d+\s*,?$|"start_time"\s*:\s*"\d{4}-\d\d-\d\d '
)
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}]')  # a text, or a brace outside of one
_LIKE_JSON = re.compile(r'["{}\[\]]|(?:[-+.\deE]+|true|false|null|-?nan|-?inf)[\s,\]}]*$')
_BARE = re.compile(r":(-?)(?:inf|nan)(?=[,}\s])")  # %lf of what is no number
_KEY = re.compile(r'[\s,]*"(\w+)"\s*:')
_GAP = re.compile(r"[\s,]*")
_KEYS = {"nccl_version", "config", "results"}
_NOTHING: Any = object()


class NcclJsonCollector:
    """Its lines as they come. `feed` says True when the document is whole."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._texts: list[str] = []
        self._depth = 0

    @staticmethod
    def begins(text: str) -> bool:
        """Its first line, or its first key where it was printed over many lines."""
        return _BEGINS.match(text) is not None

    def feed(self, text: str) -> bool | None:
        """Take a line in: is the document whole now? None where the line can be no part of one.

        A document whose opening brace was on a line of its own gets it back.
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
        """The run of the document, as far as it goes; none where it is another program's."""
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
    """A document that was cut: every value of it that is whole, and each of the results that is."""
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
    run.lose(
        run.line, f"line {run.line}: the JSON document is cut after {len(results)} results", "the JSON document is cut"
    )


def _whole_values(text: str, place: int) -> Iterator[tuple[Any, int]]:
    """Values that stand one after another, and where each ends; it stops where one is not whole."""
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
            run.lose(run.line, f"line {run.line}: a result of the document can not be read", "a result can not be read")
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
    local = [config.get(key) for key in ("nthreads", "ngpus")]
    each = min(int(local[0]) * int(local[1]), 1024) if all(isinstance(value, int) for value in local) else 1  # type: ignore[arg-type]
    devices = config.get("devices")
    for device in devices if isinstance(devices, list) else []:
        if not isinstance(device, dict) or not isinstance(device.get("rank"), int):
            continue
        host, group = str(device.get("hostname", "")), device.get("group")
        for rank in range(device["rank"], device["rank"] + max(each, 1)):  # only the first GPU of a process is listed
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
            run.fail(f"out of bounds values: {bounds['count']}")
    if isinstance(average, dict):
        run.average, run.average_line = _figure(average.get("bandwidth")), run.line
        if average.get("okay") == "false":
            run.fail("the average bus bandwidth is below what was demanded")
    errors = document.get("errors")
    for error in errors if isinstance(errors, list) else []:
        if isinstance(error, str) and error:
            run.fail(error[:300])
