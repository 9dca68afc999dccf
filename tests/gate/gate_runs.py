"""A small run that passes its rules, for tests to break: allreduce on 2 x 2 ranks, and pairs of 6 hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.core.case_argv import from_argv
from bench.core.contention import rounds
from bench.core.record import Failure, Header, Record, Samples
from bench.core.world import World
from bench.gate.gate import GateResult, gate
from bench.gate.gate_input import GateInput
from bench.gate.messages import FaultCode
from bench.gate.remeasured import Retest
from bench.gate.rules_file import load_rules
from bench.results import summary
from bench.results.document import Document, Summary

NOW = datetime(2026, 1, 3, tzinfo=UTC)
STARTED = "2026-01-02T03:04:05+00:00"
SIZES = (1 << 20, 1 << 21)
RULES = """
rules:
  - name: world
    pattern: allreduce
    transport: mpi
    sizes: [1M, 2M]
    busbw: at least 50% of bound
    time: at most 1ms
    p95: at most 1ms
"""


def times(middle_s: float, num: int = 400) -> Samples:
    """`num` samples within 2 % of a time, in no order."""
    seconds = tuple(middle_s * (1 + 0.0001 * (index * 7919 % 200)) for index in range(num))
    return Samples(seconds, calls_per_sample=1, loop="compiled")


def record(mode: str, size: int, seconds: Samples | None = None, **overrides: Any) -> Record:
    """A verified, converged row; at 100 us a MiB on 4 ranks."""
    given: dict[str, Any] = {
        "mode": mode,
        "requested_bytes": (size,),
        "payload_bytes": size,
        "num_ranks": 4,
        "num_nodes": 2,
        "bus_factor": 1.5,
        "rank_bytes": 1.5 * size,
        "node_bytes": 1.0 * size,
        "min_steps": 2,
        "verified": True,
        "num_wrong": 0,
        "stop_reason": "converged",
    }
    if not {"reported", "failed", "skipped"} & set(overrides):
        given["samples"] = seconds or times(1e-4 * size / (1 << 20) * (1.01 if mode == "isolated" else 1))
    return Record(**(given | overrides))


def header(job: str = "allreduce-mpi-2x2", case: Sequence[str] | None = None, **overrides: Any) -> Header:
    """A header of an allreduce over MPI on h0 and h1."""
    nodes, per_node = overrides.get("num_nodes", 2), overrides.get("ranks_per_node", 2)
    given: dict[str, Any] = {
        "job": job,
        "case": tuple(case or ("allreduce", "--transport", "mpi", "--sizes", "1M,2M")),
        "pattern": "allreduce",
        "transport": "mpi",
        "dtype": "float32",
        "reduce_op": "sum",
        "root": None,
        "direction": None,
        "topology": "world",
        "num_ranks": nodes * per_node,
        "num_nodes": nodes,
        "ranks_per_node": per_node,
        "clock": "host",
        "modelled": False,
        "started": STARTED,
        "instance": "toy.2x",
        "ranks": tuple(
            {"host": f"h{rank // per_node}", "local_rank": rank % per_node} for rank in range(nodes * per_node)
        ),
        "nodes": {f"h{node}": {"gpus": [{"name": "NVIDIA H100"}]} for node in range(nodes)},
    }
    return Header(**(given | overrides))


def bounded(row: Summary) -> Summary:
    """A row with a hard bound of 20 GB/s, of which a good row reaches 0.78."""
    rate = row.busbw_bytes_per_s
    return replace(
        row,
        bound_bytes_per_s=20e9,
        bound_name="network",
        bound_kind="hard",
        bound_fraction=rate / 20e9 if rate else None,
    )


@dataclass
class Run:
    """A run before it is judged. Tests change it, then ask for its verdict."""

    jobs: list[tuple[str, Header, list[Record]]] = field(default_factory=list)
    plan: dict[str, Any] | None = None
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    networks: dict[str, frozenset[str]] = field(default_factory=dict)
    baseline: Document | None = None
    retests: tuple[Retest, ...] = ()
    edit: Callable[[Summary], Summary] = lambda row: row

    def document(self) -> Document:
        """The document, with bounds and edits."""
        found = summary.document([(job, head, tuple(records)) for job, head, records in self.jobs])
        return replace(found, summaries=tuple(self.edit(bounded(row)) for row in found.summaries))

    def gate_input(self, **overrides: Any) -> GateInput:
        """The gate's input."""
        given: dict[str, Any] = {
            "name": "run",
            "document": self.document(),
            "attempts": tuple((job, head, tuple(records)) for job, head, records in self.jobs),
            "plan": self.plan,
            "now": NOW,
            "outcomes": self.outcomes,
            "warnings": self.warnings,
            "networks": self.networks,
            "baseline": self.baseline,
        }
        return GateInput(**(given | overrides))

    def headers(self, **changed: Any) -> None:
        """Change every header."""
        self.jobs = [(job, replace(head, **changed), records) for job, head, records in self.jobs]

    def records(self, choose: Callable[[Record], bool], change: Callable[[Record], Record | None]) -> None:
        """Change the chosen records, or remove them."""
        for _, _, records in self.jobs:
            records[:] = [new for old in records if (new := change(old) if choose(old) else old) is not None]


def good() -> Run:
    """Allreduce of two sizes in both modes; planned, and complete."""
    head = header()
    records = [record(mode, size) for size in SIZES for mode in ("isolated", "pipelined")]
    plan = {
        "cluster": {"name": "toy"},
        "scenario": "toy",
        "skipped": [],
        "jobs": [{"name": head.job, "case": list(head.case), "world": {"num_nodes": 2, "ranks_per_node": 2}}],
    }
    return Run([(head.job, head, records)], plan, {head.job: {"exit_code": 0, "seconds": 1.0, "what": None}})


def imported(status: str = "ok", tool: str = "nccl_tests") -> Run:
    """An imported log of nccl-tests: two sizes, a mean and a rate each. `status`: how the run ended."""
    origin: dict[str, Any] = {"tool": tool, "source": "a.log", "line": 1, "status": status, "failure": None}
    head = header("a-allreduce", ["all_reduce_perf"], transport=tool, clock="", started="", ranks=(), imported=origin)
    rows = [
        record(
            "pipelined",
            size,
            reported={"mean_s": 1e-4 * size / (1 << 20), "busbw_bytes_per_s": 15e9, "algbw_bytes_per_s": 10e9},
        )
        for size in SIZES
    ]
    if status != "ok":
        rows.append(record("pipelined", 0, reported=None, failed=Failure("rows were left out")))
    jobs: list[dict[str, Any]] = [{"name": "a-allreduce", "case": []}]
    plan = {"cluster": {"name": None}, "scenario": "import", "imported": ["a.log"], "jobs": jobs, "skipped": []}
    return Run([("a-allreduce", head, rows)], plan)


def pairs(
    slow: Mapping[int, float], ranks: Iterable[int] = range(6), job: str = "pairs-mpi-6x1", ladder: str = ""
) -> tuple[str, Header, list[Record]]:
    """Every pair of hosts of one rank each. `slow`: host -> its share of the rate. `ladder`: the stage of a ladder."""
    ranks = list(ranks)
    words = ["pairs", "--transport", "mpi", "--sizes", "1M", "--mode", "pipelined"]
    words += ["--schedule", "ladder"] if ladder else []
    head = header(
        job,
        words,
        pattern="pairs",
        topology="pairs",
        direction="one-way",
        num_nodes=len(ranks),
        ranks_per_node=1,
        ranks=tuple({"host": f"h{rank}", "local_rank": 0} for rank in ranks),
        nodes={f"h{rank}": {"gpus": [{"name": "NVIDIA H100"}]} for rank in ranks},
    )
    records: list[Record] = []
    asked = rounds(from_argv(words), World(len(ranks), 1), "pairs") if not ladder else ()
    named = {(group.ranks[0], group.ranks[1]): group.name for groups in asked for group in groups}
    everybody = {
        (src, dst): f"{ladder}{6 * src + dst}:{src}-{dst}"
        for src in range(len(ranks))
        for dst in range(len(ranks))
        if src != dst
    }
    for (src, dst), group in (everybody if ladder else named).items():
        share = min(slow.get(ranks[src], 1.0), slow.get(ranks[dst], 1.0))
        middle_s = 1e-4 / share * (1 + 0.003 * ((5 * src + 3 * dst) % 7))
        records.append(
            record(
                "pipelined",
                1 << 20,
                times(middle_s, 60),
                group=group,
                src=src,
                dst=dst,
                num_ranks=2,
                num_nodes=2,
                bus_factor=1.0,
                rank_bytes=1.0 * (1 << 20),
                node_bytes=1.0 * (1 << 20),
                min_steps=1,
            )
        )
    return job, head, records


def judge(run: Run, folder: Path, rules: str = RULES, **overrides: Any) -> GateResult:
    """The verdict by rules as a user writes them."""
    path = folder / "rules.yaml"
    path.write_text(rules, encoding="utf-8")
    return gate(load_rules(path), run.gate_input(**overrides), run.retests)


def old(days: float) -> str:
    """The time so many days ago."""
    return (NOW - timedelta(days=days)).isoformat()


def codes(verdict: GateResult) -> dict[str, list[FaultCode]]:
    """Name of a failure -> the codes of its faults, each once."""
    found: dict[str, list[FaultCode]] = {}
    for fault in verdict.all_faults:
        of_name = found.setdefault(fault.name, [])
        if fault.code not in of_name:
            of_name.append(fault.code)
    return found
