"""Read DeepEP's tests (expert-parallel dispatch and combine): intranode, internode, low latency and elastic (V2).

According to the source of the tests, GB/s are 1e9 bytes per second. A rate counts the bytes that one rank sends or
receives. "NVL" counts bytes through NVLink, and also bytes that arrived by RDMA. "RDMA" counts bytes through NICs. "SO"
counts scale-out bytes, and "SU" counts scale-up bytes.
"""

from __future__ import annotations

import re

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_TUNING = re.compile(
    r"\[tuning\] (Best )?(?:(dispatch|combine)(?: \((FP8|BF16)\))?: )?SMs (\d{1,6}), NVL chunk (\w{1,20})"
)
_RDMA_CHUNK = re.compile(r", RDMA chunk (\w{1,20})")
_RATE = re.compile(r"([0-9.]{1,20}) GB/s(?: \((\w[\w ]{0,20})\)|(?=,))")
_TRANSMIT = re.compile(r"transmit: ([0-9.]{1,20}) us, notify: ([0-9.]{1,20}) us")
_SPLIT = re.compile(r"[:,] ([0-9.]{1,20}) \+ ([0-9.]{1,20}) us")  # notify + transmit
_ONE_TIME = re.compile(r", (?:t: |avg_t: )?([0-9.]{1,20}) us")
_RANK = re.compile(r"\[rank (\d{1,7})\] (?:Dispatch|Combine)")
_BANDWIDTH = re.compile(r"(Dispatch \+ combine|Dispatch|Combine) bandwidth: ([0-9.]{1,20}) GB/s, (avg_t=[^|]{1,120})")
_TIMES = re.compile(r"(avg|min|max)_t=([0-9.]{1,20}) us")
_HOOKS = re.compile(
    r"(Dispatch|Combine) send/recv time: ([0-9.]{1,20})(?: (?:=|\+) ([0-9.]{1,20}))?(?: \+ ([0-9.]{1,20}))? us"
)
_ELASTIC = re.compile(
    r"\S? ?EP: {1,4}(\d{1,7})/(\d{1,7}) \| ((?:\w+ )?(?:dispatch|combine)): ([0-9.]{1,20}) GB/s \(SO\), "
    r"([0-9.]{1,20}) GB/s \(SU\), ([0-9.]{1,20}) us, (\d{1,18}) bytes \| "
    r"(copy|reduce): ([0-9.]{1,20}) GB/s, ([0-9.]{1,20}) us"
)
_CONFIG = re.compile(r"\[config\] (.{1,300})$")
_TESTING = re.compile(r"\[testing\] Running with (?:FP8|BF16)")
_SETTING = re.compile(r"(\w+)=(\w+)")
_FAILED = re.compile(r"AssertionError|DeepEP (?:error|timeout)|DeepEP \w+ (?:check )?time-?out|RuntimeError: ")


class DeepEpCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-deepep",
        "the bytes per link depend on where the tokens' experts are, so neither NICs nor NVLink alone bound "
        "the printed rates",
    )
    TRIALS = "trials", "{num:n tuning trial} are not kept, only the best trial of each direction"
    COUNTS_OWN = "counts-own", "rates count the tokens for local experts, too, unless the test was told to ignore them"


class DeepEpRun(FiguresRun):
    """One start of a test. The output shows the best settings, and then a line for each rank."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._num_trials = 0
        self._ranks: set[int] = set()
        self._last_trial: tuple[int, str] | None = None

    def ended_by(self, text: str) -> bool:
        """Check whether the line is the configuration that the next start of the program prints."""
        return self.has_results and _CONFIG.match(text) is not None

    def take(self, line: int, text: str) -> None:
        """Read the settings, a tuning line, or a line of one rank."""
        if found := _CONFIG.match(text):
            self.settings |= dict(_SETTING.findall(found[1])[:20])
        elif found := _TUNING.match(text):
            self._take_tuning(line, text, found)
        elif text.startswith("[tuning]"):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 120))
        elif found := _RANK.match(text):
            self._take_rank(line, text, int(found[1]))
        elif found := _ELASTIC.search(text[:400]):
            self._take_elastic(line, found)
        elif _FAILED.search(text[:2000]):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text, 200))
        elif not _TESTING.match(text):
            self.note_common(line, text)

    def _take_tuning(self, line: int, text: str, found: re.Match[str]) -> None:
        if not found[1]:
            self._num_trials += 1
            self._last_trial = (line, text)
            return
        self._last_trial = None
        where = f"best {found[2] or 'settings'}" + (f" ({found[3]})" if found[3] else "")
        rates = _RATE.findall(text)
        if not rates:
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 120))
            return
        for printed, kind in rates:
            value = number(printed)
            self.add(
                f"bandwidth ({kind})" if kind else "bandwidth", value and value * 1e9, "bytes_per_s", where, line=line
            )
        behind = text[found.end() :]
        if times := _TRANSMIT.search(behind):
            transmit, notify = times[1], times[2]
        elif times := _SPLIT.search(behind):
            notify, transmit = times[1], times[2]
        elif times := _ONE_TIME.search(behind):
            transmit, notify = times[1], ""
        else:
            transmit = notify = ""
        for name, printed in (("time", transmit), ("notify time", notify)):
            value = number(printed)
            self.add(name, None if value is None else value * 1e-6, "s", where, line=line)
        chunk = _RDMA_CHUNK.match(behind)
        chunks = f"SMs {found[4]}, NVL chunk {found[5]}" + (f", RDMA chunk {chunk[1]}" if chunk else "")
        self.settings.setdefault(where, chunks)

    def _take_rank(self, line: int, text: str, rank: int) -> None:
        self._ranks.add(rank)
        where = f"rank {rank}"
        bandwidths = _BANDWIDTH.findall(text)
        hooks = _HOOKS.findall(text)
        for name, printed, times in bandwidths:
            value = number(printed)
            self.add(f"{name} bandwidth", value and value * 1e9, "bytes_per_s", where, line=line)
            for statistic, printed_time in _TIMES.findall(times):
                seconds = number(printed_time)
                word = {"avg": "mean", "min": "least", "max": "largest"}[statistic]
                self.add(f"{name} {word} time", None if seconds is None else seconds * 1e-6, "s", where, line=line)
        for name, *printed_times in hooks:
            given = [value for word in printed_times if (value := number(word)) is not None]
            labels = {1: ("send/recv",), 2: ("send", "recv")}.get(len(given), ("send/recv", "send", "recv"))
            for label, seconds in zip(labels, given, strict=True):
                self.add(f"{name} {label} time", seconds * 1e-6, "s", where, line=line)
        cut = (" bandwidth: " in text or "send/recv time: " in text) and text.count("|") >= len(bandwidths) + len(hooks)
        if cut or not (bandwidths or hooks):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 120))

    def _take_elastic(self, line: int, found: re.Match[str]) -> None:
        rank, ranks, name = int(found[1]), int(found[2]), found[3]
        self._ranks.add(rank)
        self.facts["num_ranks"] = ranks
        where = f"rank {rank}"
        self.translate(DeepEpCode.COUNTS_OWN)
        for label, printed in (("scale-out", found[4]), ("scale-up", found[5]), (found[8], found[9])):
            value = number(printed)
            self.add(f"{name} bandwidth ({label})", value and value * 1e9, "bytes_per_s", where, line=line)
        for label, printed in ((f"{name} time", found[6]), (f"{name} {found[8]} time", found[10])):
            value = number(printed)
            self.add(label, None if value is None else value * 1e-6, "s", where, line=line)

    def close(self) -> None:
        """Close the run: set the number of ranks if every rank printed a line, and add remarks about omitted data."""
        if self._num_trials:
            self.remark(None, DeepEpCode.TRIALS, num=self._num_trials)
        if self._last_trial is not None and not self.failures:
            line, _ = self._last_trial
            self.lose(line, LogCode.NEVER_FINISHED, test="tuning")
        if len(self._ranks) > 1 and self._ranks == set(range(len(self._ranks))):
            self.facts.setdefault("num_ranks", len(self._ranks))
        # The best settings come first, so that the page names them.
        self.figures.sort(key=lambda figure: not figure.where.startswith("best"))


class DeepEp(FiguresReader):
    """Reads a file that may contain several runs."""

    tool = "deepep"
    traits = LogTraits(without_bound=Coded.of(DeepEpCode.NO_BOUND))
    hints = ("[tuning] ", "] dispatch", "] combine", " gb/s (so)", "[testing] running with")
    new_run = DeepEpRun

    def begins(self, text: str) -> bool:
        """Check whether the line is a tuning line, a line of a rank, or a line of the functional tests."""
        text = text[:LONGEST_LINE].strip()
        if text.startswith("[tuning]"):
            return _TUNING.match(text) is not None
        if text.startswith("[rank "):
            return _RANK.match(text) is not None and (" bandwidth: " in text or " send/recv time: " in text)
        return _TESTING.match(text) is not None or _ELASTIC.search(text[:400]) is not None


READER = DeepEp
