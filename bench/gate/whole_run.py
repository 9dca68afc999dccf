"""Find faults of a run as a whole, for example missing measurements, failed jobs, or a cluster other than expected."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from bench.core import plugins
from bench.core.codes import UNCODED
from bench.core.record import Flag, Header
from bench.gate import gpu_count
from bench.gate.gate_input import GateInput, RowHosts, gpu_names, hosts, import_status, job_of_attempt
from bench.gate.messages import FaultCode
from bench.gate.rules import Expect, GateFault
from bench.hardware.catalogue import gpu_printed, instance, instances
from bench.logs.foreign import OK, TRUNCATED
from bench.logs.messages import LogCode

_CLOCK_ERROR_S = 86400.0  # the clocks of two machines may differ by at most this many seconds


def faults(run: GateInput, expect: Expect) -> Iterator[GateFault]:
    """Yield every fault of the run as a whole. If the run has no rows, no other faults are searched for."""
    yield from _failed(run)
    if not run.document.summaries:
        yield GateFault(FaultCode.NO_ROWS)
        return
    yield from _unplanned(run)
    yield from (GateFault(FaultCode.FILE_DAMAGED, {"text": warning}) for warning in run.warnings)
    yield from run.inconsistent
    yield from _bad_rows(run)
    yield from _worlds(run, expect)
    yield from gpu_count.faults(run, expect)
    for job, header in run.document.headers.items():
        yield from _place(run, job, header, expect)
    yield from _age(run, expect)


def _unplanned(run: GateInput) -> Iterator[GateFault]:
    """Yield faults about the plan.

    If the plan is missing, linkbench cannot tell which rows are missing. Each imported log that the plan names must
    have results.
    """
    if run.plan is None:
        yield GateFault(FaultCode.PLAN_ABSENT)
        return
    there = {header.imported.get("source") for header in run.document.headers.values()}
    for source in run.plan.get("imported", ()):
        if source not in there:
            yield GateFault(FaultCode.LOG_ABSENT, {"source": source})


def _failed(run: GateInput) -> Iterator[GateFault]:
    """Yield a fault for each failed row and each failed job. A job may have failed even if its exit code is 0."""
    seen = set()
    failed_jobs: set[str] = set()
    where = RowHosts(run.document.headers)
    for row in run.document.failures:
        job, group = str(row.get("job")), row.get("group")
        of: tuple[str, ...] = ()
        if row.get("host"):
            of = (str(row["host"]),)
        elif group:
            of = where.of_group(job, str(group))
        key = (job, *_identity(row), of)
        if key in seen:  # many rows may fail for one reason, but a failure of another node is reported separately
            continue
        seen |= {key, (job, *_identity(row))}
        failed_jobs.add(job_of_attempt(job))
        yield _row_fault(row, run.document.headers.get(job))
    for name, end in run.outcomes.items():
        on = (str(end["host"]),) if end.get("host") else ()
        if end.get("what"):
            key = (name, *_identity(end))
            if key not in seen:
                seen.add(key)
                yield GateFault(FaultCode.JOB_FAILED, _facts(end), name, hosts=on)
        elif end.get("exit_code"):
            yield GateFault(FaultCode.JOB_EXITED, {"exit_code": end["exit_code"]}, name, hosts=on)
        else:
            continue
        failed_jobs.add(job_of_attempt(name))
    for lost in (run.plan or {}).get("troubles") or ():
        yield GateFault(FaultCode.LOG_UNREAD, _facts(lost if isinstance(lost, dict) else {"what": lost}))
    yield from _without_result(run, failed_jobs)


def _identity(failed: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a key that identifies a failure. Equal failures have the same key.

    The key is the failure's code with its facts. If a failure has no code, the key is its text.
    """
    code = str(failed.get("code") or UNCODED)
    if code == UNCODED:
        return code, str(failed.get("what"))
    return code, json.dumps(failed.get("facts") or {}, sort_keys=True, default=str)


def _facts(failed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a recorded failure (text, code and facts) in the form that a fault needs."""
    return {
        "text": str(failed.get("what")),
        "failure": str(failed.get("code") or UNCODED),
        "failure_facts": failed.get("facts") or {},
    }


def _row_fault(row: Mapping[str, Any], header: Header | None) -> GateFault:
    """Return the fault that describes a failed row.

    In an imported run, a row also counts as failed if its figure is unreadable or if the log is truncated before the
    row.
    """
    code, facts = FaultCode.ROW_FAILED, _facts(row)
    on: tuple[str, ...] = ()
    if row.get("host"):
        code, on = FaultCode.ROW_FAILED_ON_HOST, (str(row["host"]),)
        facts["host"] = str(row["host"])
    if header is not None and header.imported:
        if row.get("code") == LogCode.UNREADABLE_FIGURE:
            code = FaultCode.FIGURE_PRINTED_ODD
        elif import_status(header) == TRUNCATED:
            code = FaultCode.LOG_ROWS_LOST
    return GateFault(
        code,
        facts,
        row.get("job"),
        row.get("pattern"),
        row.get("mode"),
        row.get("payload_bytes"),
        row.get("group"),
        hosts=on,
    )


def _without_result(run: GateInput, failed_jobs: set[str]) -> Iterator[GateFault]:
    """Yield a fault for each job that has no rows, if no failure or skipped row explains why.

    Also yield a fault for each job whose outcome is unknown, and for each imported log whose status is not "ok".
    """
    accounted = failed_jobs | {job_of_attempt(row.job) for row in run.document.summaries}
    accounted |= {job_of_attempt(str(row.get("job"))) for row in run.document.skipped}
    planned = run.planned()
    attempts = [*planned, *run.outcomes, *run.document.headers]
    for name in dict.fromkeys([*planned, *map(job_of_attempt, attempts[len(planned) :])]):
        if name not in accounted:
            code = FaultCode.JOB_PLANNED_ONLY if name in planned else FaultCode.JOB_WITHOUT_TRACE
            yield GateFault(code, job=name)
        elif name in planned and planned[name].get("world") and name not in failed_jobs | set(run.outcomes):
            yield GateFault(FaultCode.JOB_END_UNKNOWN, job=name)
    for job, header in run.document.headers.items():
        status = import_status(header)
        if status not in ("", OK) and job not in failed_jobs:
            code = FaultCode.LOG_TRUNCATED if status == TRUNCATED else FaultCode.LOG_FAILED
            yield GateFault(code, {"status": status}, job)


def _bad_rows(run: GateInput) -> Iterator[GateFault]:
    """Yield a fault for each row with wrong data, and for each row with a rate above a bound.

    Such rows make the whole run doubtful, also if no rule selects them.
    """
    for row in run.document.summaries:
        if row.num_wrong:
            yield GateFault.of_row(FaultCode.ELEMENTS_WRONG, row, num_wrong=row.num_wrong)
        elif row.verified is False:
            yield GateFault.of_row(FaultCode.SOME_WRONG, row)
        if Flag.ABOVE_BOUND in row.flags:
            figures = (row.busbw_bytes_per_s, row.bound_bytes_per_s)
            if row.bound_fraction:
                known = {"fraction": row.bound_fraction, "bound": row.bound_name}
                yield GateFault.of_row(FaultCode.OVER_BOUND, row, *figures, **known)
            else:
                yield GateFault.of_row(FaultCode.OVER_UNKNOWN_BOUND, row, *figures, bound=row.bound_name)


def _worlds(run: GateInput, expect: Expect) -> Iterator[GateFault]:
    planned = run.planned()
    headers = run.document.headers
    for job, header in headers.items():
        world = planned.get(job, {}).get("world")  # a retest may use fewer hosts
        if world and (header.num_nodes, header.ranks_per_node) != (world["num_nodes"], world["ranks_per_node"]):
            facts = {
                "planned_nodes": world["num_nodes"],
                "planned_ranks_per_node": world["ranks_per_node"],
                "num_nodes": header.num_nodes,
                "ranks_per_node": header.ranks_per_node,
            }
            yield GateFault(FaultCode.WORLD_NOT_AS_PLANNED, facts, job)
        elif not header.ranks and not header.modelled and not header.imported:
            yield GateFault(FaultCode.HOSTS_UNKNOWN, job=job)
        elif header.ranks and not header.modelled and len(hosts(header)) < (header.num_nodes or 0):
            yield GateFault(FaultCode.HOSTS_FEWER, {"num_nodes": header.num_nodes, "hosts": hosts(header)}, job)
    for code, wanted, got in (
        (FaultCode.NUM_NODES_UNEXPECTED, expect.nodes, max(header.num_nodes or 0 for header in headers.values())),
        (FaultCode.NUM_RANKS_UNEXPECTED, expect.ranks, max(header.num_ranks or 0 for header in headers.values())),
    ):
        if wanted is not None and got != wanted:
            yield GateFault(code, {"expected": wanted, "found": got})
    there = {host for header in headers.values() for host in hosts(header)}
    absent = tuple(host for host in expect.hosts if host not in there)
    if absent:
        yield GateFault(FaultCode.HOSTS_NOT_MEASURED, {"hosts": absent}, hosts=absent)


def _place(run: GateInput, job: str, header: Header, expect: Expect) -> Iterator[GateFault]:
    """Compare cluster, hardware and network with the expectations.

    If a value is unknown, it does not meet an expectation.
    """
    cluster = (run.plan or {}).get("cluster", {}).get("name")
    for unexpected, unknown, wanted, got in (
        (FaultCode.CLUSTER_UNEXPECTED, FaultCode.CLUSTER_UNKNOWN, expect.cluster, cluster),
        (FaultCode.INSTANCE_UNEXPECTED, FaultCode.INSTANCE_UNKNOWN, expect.instance, header.instance),
    ):
        if wanted and got != wanted:
            yield GateFault(unexpected if got else unknown, {"expected": wanted, "found": got}, job)
    yield from _other_gpu(job, header)
    if expect.gpu:
        names = set(gpu_names(header))
        other = sorted(name for name in names if expect.gpu not in name)
        if not names:
            yield GateFault(FaultCode.GPU_UNKNOWN, {"expected": expect.gpu}, job)
        elif other:
            yield GateFault(FaultCode.GPU_UNEXPECTED, {"expected": expect.gpu, "found": other}, job)
    if expect.transport:
        wanted = _only_transport(header.pattern) or expect.transport
        if header.transport != wanted:
            yield GateFault(FaultCode.TRANSPORT_UNEXPECTED, {"expected": wanted, "found": header.transport}, job)
    if expect.network and header.num_nodes != 1:
        yield from other_network(run, job, expect.network)


def _only_transport(pattern: str) -> str | None:
    """Return the transport of a pattern if only one transport can run the pattern, else None."""
    known = pattern in plugins.names("pattern")
    return plugins.load("pattern", pattern).PATTERN.transport if known else None


def _other_gpu(job: str, header: Header) -> Iterator[GateFault]:
    """Yield a fault if the GPUs of the nodes are not the GPUs of the run's instance type.

    The bounds of the run would be wrong, because they are computed from the links of this instance type.
    """
    if header.instance not in instances():
        return
    wanted = instance(str(header.instance)).gpu
    known = {gpu_printed(name) for name in gpu_names(header)} - {None}
    other = sorted(str(name) for name in known if name != wanted)
    if other:
        yield GateFault(
            FaultCode.GPU_NOT_OF_INSTANCE, {"instance": header.instance, "expected": wanted, "found": other}, job
        )


def other_network(run: GateInput, job: str, wanted: str) -> Iterator[GateFault]:
    """Yield a fault if the network between a job's nodes is unknown or differs from the expected network."""
    networks = run.network_of(job)
    if not networks:
        yield GateFault(FaultCode.NETWORK_UNKNOWN, {"expected": wanted}, job)
    elif networks != {wanted}:
        yield GateFault(FaultCode.NETWORK_OTHER, {"expected": wanted, "found": sorted(networks)}, job)


def _age(run: GateInput, expect: Expect) -> Iterator[GateFault]:
    if expect.max_age_s is None:
        return
    for job, header in run.document.headers.items():
        try:
            age_s = (run.now - datetime.fromisoformat(header.started)).total_seconds()
        except (ValueError, TypeError):
            yield GateFault(FaultCode.START_UNKNOWN, {"started": header.started}, job)
            continue
        if age_s > expect.max_age_s:
            yield GateFault(FaultCode.TOO_OLD, {"age_s": age_s, "most_s": expect.max_age_s}, job)
        elif age_s < -_CLOCK_ERROR_S:
            yield GateFault(FaultCode.IN_FUTURE, {"started": header.started}, job)
