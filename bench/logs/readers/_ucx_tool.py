"""Run ucx_perftest between two ranks: build its arguments, and convert its output to records.

A start measures one size. `rank/client_server.py` starts the program for each of the two ranks. UCX itself chooses a
transport: shared memory, TCP or an RDMA adapter (`UCX_TLS`, `UCX_NET_DEVICES`).

    pingpong    isolated    tag_lat: half a round trip
    pingpong    pipelined   tag_bw: messages of the size, `--window` of them in flight
    kv_pages    both        tag_bw: messages of a page (size / `--window`); t is the time of `--window` pages
"""

from __future__ import annotations

from dataclasses import replace

from bench.core.case import Case
from bench.core.codes import Code
from bench.core.errors import UsageError
from bench.core.log_traits import ComparedStatistic
from bench.core.record import Failure, Record, Skip
from bench.core.world import World
from bench.logs.foreign import OK, ForeignRun, read_all
from bench.logs.messages import ToolCode
from bench.logs.readers._lines import lines
from bench.logs.readers._ucx_reader import UcxPerftest
from bench.logs.tool import PLAIN, Build, Tool, record_of_case

_PLAIN = ("topology", "order", "aggressor", "share_gpu", "require", "schedule", "in_place", "direction")
_PAGES = "kv_pages"
_PAGE_ALIGNMENT_BYTES = 16
_TIMES = ("latency", "overhead")  # the words of the table's title
_MOST_BYTES, _MOST_MESSAGES, _LEAST_MESSAGES = 1 << 31, 10_000, 20  # of one start, unless the case has --iterations


class UcxToolCode(Code):
    """The reasons why ucx_perftest cannot measure a case."""

    ONE_PAIR = "one-pair-of-ranks", "{tool} measures between 2 ranks, there are {ranks}"
    UNEVEN_PAGES = "uneven-pages", "{size} bytes are not {window} pages of a multiple of 16 bytes"
    NO_ROW = "no-ucx-row", "{tool} printed no row of {size} bytes"


class UcxPerftestTool(Tool):
    """The program ucx_perftest."""

    title = "ucx_perftest"
    variable = "BENCH_UCX_PATH"
    transports = ("mpi", "mpi_cuda", "nccl", "nccl_direct")
    client_server = True
    remedy = "the package ucx-utils or UCX's own build has it (docs/tools.md)"
    compared = ComparedStatistic(rate_is_median=True)

    def program(self, case: Case) -> str:
        """Return "ucx_perftest" for messages between two ranks, else ""."""
        return "ucx_perftest" if case.pattern in ("pingpong", _PAGES) else ""

    def starts(self, case: Case) -> tuple[Case, ...]:
        """Return one case for each mode and size."""
        return tuple(replace(case, mode=mode, sizes=(size,)) for mode in case.modes for size in case.sizes)

    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Return the reason why the program cannot measure a case, or None if the case is supported."""
        if not self.program(case):
            return Skip.of(ToolCode.NO_PROGRAM, tool=self.title, pattern=case.pattern)
        plain = Case(case.pattern)
        for option in _PLAIN:
            value = getattr(case, option)
            if value != getattr(plain, option):
                name = option.replace("_", " ")
                return Skip.of(ToolCode.OPTION_UNSUPPORTED, tool=self.title, option=name, value=value)
        if world.num_ranks != 2:
            return Skip.of(UcxToolCode.ONE_PAIR, tool=self.title, ranks=world.num_ranks)
        for size in case.sizes:
            if case.pattern == _PAGES and size % (case.window * _PAGE_ALIGNMENT_BYTES):
                return Skip.of(UcxToolCode.UNEVEN_PAGES, size=size, window=case.window)
        return None

    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """Return the arguments that are the same for both ranks."""
        num_bytes = _message_bytes(case)
        num = case.iterations or max(_LEAST_MESSAGES, min(_MOST_MESSAGES, _MOST_BYTES // num_bytes))
        warmup = case.warmup if case.warmup is not None else num // 10
        words = ["-t", "tag_lat" if _is_latency(case) else "tag_bw"]
        words += ["-s", str(num_bytes), "-n", str(num), "-w", str(warmup)]
        words += [] if _is_latency(case) else ["-O", str(case.window)]
        return words + (["-m", "cuda"] if case.traits.on_gpu else [])

    def version(self, text: str) -> str | None:
        """Return None, because the program prints no version."""
        return None

    def facts(self, case: Case, text: str) -> dict[str, str]:
        """Return the type of the buffers' memory, host or device."""
        return {"memory": "device" if case.traits.on_gpu else "host"}

    def notes(self, case: Case) -> tuple[str, ...]:
        """Return how the values are defined."""
        if _is_latency(case):
            return ("its time is the mean of half a round trip",)
        if case.pattern == _PAGES:
            return ("its time is that of as many pages as are in flight, by the mean rate over all pages",)
        return ("its time is the size divided by the mean rate over all messages",)

    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """Return one record, because the case has only one size.

        If the program failed, this record contains the failure.

        Raises UsageError if the text is the output of another test.
        """
        runs = read_all(UcxPerftest(), lines([text]))
        wanted = "isolated" if _is_latency(case) else "pipelined"
        if any(dict(run.settings).get("mode") != wanted for run in runs if run.rows or run.figures):
            raise UsageError(f"it did not measure {wanted} messages")
        seconds = [found for run in runs if (found := _message_s(run, case))]
        if len(seconds) == 1:
            time_s = seconds[0] * case.sizes[0] / _message_bytes(case)
            figures = {"mean_s": time_s, "algbw_bytes_per_s": case.sizes[0] / time_s}
            return [record_of_case(case, world, reported=figures)]
        why = next((run.failure for run in runs if run.status != OK and run.failure is not None), None)
        if why is None:
            failure = Failure.of(UcxToolCode.NO_ROW, tool=self.title, size=_message_bytes(case))
        else:
            failure = Failure(f"{self.title}: {why.text}", code=why.code, facts=why.facts)
        return [record_of_case(case, world, failed=failure)]


def _is_latency(case: Case) -> bool:
    return case.pattern != _PAGES and case.mode == "isolated"


def _message_bytes(case: Case) -> int:
    return case.sizes[0] // (case.window if case.pattern == _PAGES else 1)


def _message_s(run: ForeignRun, case: Case) -> float | None:
    """Return the mean time of a message. The client of UCX 1.13 prints no size, so the requested size is used."""
    if run.rows:
        return next((row.time_s for row in run.rows if row.payload_bytes == _message_bytes(case)), None)
    return next((figure.value for figure in run.figures if figure.name in _TIMES), None)
