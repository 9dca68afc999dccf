"""Run perftest between two hosts: build its arguments, and convert its output to records.

A start measures one size. `rank/client_server.py` starts the program on both hosts. Before the program's output,
client_server.py prints a line (`HostEnds`). The line has the two hosts, their RDMA adapters and the version of the
program.

    pipelined   ib_write_bw, ib_read_bw      mean rate of messages; up to `--window` messages are in flight
    isolated    ib_write_lat, ib_read_lat    median (t_typical): half a round trip of two writes; a whole read

Cases of transports for GPU memory run with `--use_cuda=0`, so the adapter reads and writes GPU memory itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from bench.core.case import Case
from bench.core.codes import Code
from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.log_traits import ComparedStatistic
from bench.core.record import Failure, Record, Skip
from bench.core.world import World
from bench.logs.foreign import OK, ForeignRow, ForeignRun, read_all
from bench.logs.messages import ToolCode
from bench.logs.readers._lines import lines
from bench.logs.readers._perftest_reader import Perftest
from bench.logs.tool import PLAIN, Build, HostEnd, HostEnds, Tool, record_of_case

_PLAIN = ("topology", "order", "aggressor", "share_gpu", "require", "schedule", "in_place")
_LEAST_ITERATIONS = 5


class PerftestToolCode(Code):
    """The reasons why perftest cannot measure a case."""

    TWO_HOSTS = "two-hosts", "{program} measures between two hosts with one rank each, not {nodes} x {ranks} ranks"
    BUILT_WITHOUT_CUDA = (
        "built-without-cuda",
        "this {program} was built without CUDA (--use_cuda), so it cannot use GPU memory; {remedy}",
    )
    ONE_WAY_LATENCY = "one-way-latency", "{program} has no two-way test; use mode: pipelined"
    NO_ROW = "no-row", "{tool} printed no row of {size} bytes"


class PerftestTool(Tool):
    """The bandwidth and latency programs of one verb."""

    variable = "BENCH_PERFTEST_PATH"
    transports = ("mpi", "mpi_cuda", "nccl", "nccl_direct")
    client_server = True
    needs_adapter = True
    marks = MappingProxyType({"cuda": b"use_cuda"})
    remedy = (
        "the package perftest has it without CUDA; for GPU memory, build it from github.com/linux-rdma/perftest by "
        "`./autogen.sh && ./configure CUDA_H_PATH=/usr/local/cuda/include/cuda.h && make` (docs/tools.md)"
    )
    compared = ComparedStatistic(rate_is_median=True)

    def __init__(self, verb: str) -> None:
        """Store the verb of the programs, "write" or "read"."""
        self._verb = verb
        self.title = f"perftest ({verb})"

    def program(self, case: Case) -> str:
        """Return a name such as ib_write_bw, or "" for all patterns except pingpong."""
        if case.pattern != "pingpong":
            return ""
        return f"ib_{self._verb}_{'lat' if case.mode == 'isolated' else 'bw'}"

    def starts(self, case: Case) -> tuple[Case, ...]:
        """Return one case for each mode and size."""
        return tuple(replace(case, mode=mode, sizes=(size,)) for mode in case.modes for size in case.sizes)

    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Return the reason why the programs cannot measure a case, or None if the case is supported.

        The programs measure messages between two ranks on different hosts, in linear order.
        """
        name = self.program(case)
        if not name:
            return Skip.of(ToolCode.NO_PROGRAM, tool=self.title, pattern=case.pattern)
        plain = Case(case.pattern)
        for option in _PLAIN:
            value = getattr(case, option)
            if value != getattr(plain, option):
                return Skip.of(ToolCode.OPTION_UNSUPPORTED, tool=name, option=option.replace("_", " "), value=value)
        if case.mode == "isolated" and case.direction == "two-way":
            return Skip.of(PerftestToolCode.ONE_WAY_LATENCY, program=name)
        if (world.num_nodes, world.ranks_per_node) != (2, 1):
            facts = {"nodes": world.num_nodes, "ranks": world.ranks_per_node}
            return Skip.of(PerftestToolCode.TWO_HOSTS, program=name, **facts)
        return None

    def build_lacks(self, case: Case, world: World, build: Build) -> Skip | None:
        """Return a reason if the case needs GPU memory and the program was built without CUDA."""
        if _in_gpu(case) and "cuda" not in build:
            return Skip.of(PerftestToolCode.BUILT_WITHOUT_CUDA, program=self.program(case), remedy=self.remedy)
        return None

    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """Return the arguments that are the same for the server and the client."""
        words = ["-F", "-s", str(case.sizes[0])]
        if case.iterations is not None:
            words += ["-n", str(max(case.iterations, _LEAST_ITERATIONS))]
        if case.mode != "isolated":
            words += ["--report_gbits", "-t", str(case.window)]
            words += ["-b"] * (case.direction == "two-way")
        if _in_gpu(case):
            words.append("--use_cuda=0")
        if case.nics:
            words += ["-d", case.nics[0]]
        return words

    def version(self, text: str) -> str | None:
        """Return the version of the program, such as `6.06`, from the line of the output that names both hosts."""
        ends = HostEnds.of_text(text)
        return ends.version or None if ends else None

    def facts(self, case: Case, text: str) -> dict[str, str]:
        """Return the memory type of the buffers.

        For each host, also return the adapter and the rate of the adapter's link.
        """
        found = {"memory": "device" if _in_gpu(case) else "host"}
        ends = HostEnds.of_text(text)
        if ends is not None:
            found["adapters"] = "; ".join(map(_shown, ends.ends))
        return found

    def links(self, text: str) -> NodeLinks | None:
        """Return a node whose only link is the slower of the two adapters, or None if a rate is unknown."""
        ends = HostEnds.of_text(text)
        rates = [end.bytes_per_s for end in ends.ends if end.bytes_per_s] if ends else []
        if ends is None or len(rates) < len(ends.ends):
            return None
        slower = min(ends.ends, key=lambda end: end.bytes_per_s or 0.0)
        source = f"sysfs: the rate of the link of {slower.adapter} on {slower.host}"
        return NodeLinks(
            instance="",
            gpus=1,
            peer="unknown",
            nic_bytes_per_s=slower.bytes_per_s,
            num_nics=1,
            nic_kind=slower.kind,
            sources=dict.fromkeys(("network", "nic"), source),
            verified=dict.fromkeys(("network", "nic"), True),
        )

    def notes(self, case: Case) -> tuple[str, ...]:
        """Return how the figures are defined."""
        if case.mode == "isolated":
            return (f"its time is the median (t_typical): {_ROUND[self._verb]}",)
        return ("its time is the size divided by the mean rate over all messages",)

    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """Return one record, because the case has only one size.

        If the program failed, this record contains the failure.

        Raises UsageError if the text is not output of the requested program.
        """
        runs = read_all(Perftest(), lines([text]))
        verbs = {dict(run.settings)["operation"] for run in runs if run.rows}
        modes = {dict(run.settings)["mode"] for run in runs if run.rows}
        if verbs - {self._verb} or modes - {case.mode}:
            raise UsageError(f"it measured {', '.join(sorted(verbs))}, not {self.program(case)}")
        rows = [row for run in runs for row in run.rows if row.payload_bytes == case.sizes[0]]
        if len(rows) == 1:
            return [record_of_case(case, world, reported=_reported(rows[0]))]
        return [record_of_case(case, world, failed=self._failure(runs, case))]

    def _failure(self, runs: Sequence[ForeignRun], case: Case) -> Failure:
        why = next((run.failure for run in runs if run.status != OK and run.failure is not None), None)
        if why is None:
            return Failure.of(PerftestToolCode.NO_ROW, tool=self.title, size=case.sizes[0])
        return Failure(f"{self.title}: {why.text}", code=why.code, facts=why.facts)


_ROUND = {"write": "half a round trip of two writes", "read": "a whole read, there and back"}


def _in_gpu(case: Case) -> bool:
    return case.traits.on_gpu


def _reported(row: ForeignRow) -> dict[str, float]:
    """Return the figures of a row. For a latency, the rate is the size of a message divided by the median time."""
    rate = row.algbw_bytes_per_s
    if rate is None and row.median_s and row.payload_bytes:
        rate = row.payload_bytes / row.median_s
    figures = {
        "median_s": row.median_s,
        "mean_s": row.time_s,
        "min_s": row.min_s,
        "max_s": row.max_s,
        "algbw_bytes_per_s": rate,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _shown(end: HostEnd) -> str:
    rate = f" {end.bytes_per_s * 8e-9:g} Gbit/s" if end.bytes_per_s else ""
    return f"{end.host} {end.adapter} {end.kind}{rate}"
