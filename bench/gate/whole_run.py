"""What is wrong with a run before any rule is asked: nothing there, failed jobs, another world, another place, old."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from bench.core import plugins
from bench.core.record import Flag, Header
from bench.core.units import format_duration
from bench.gate import gpu_count
from bench.gate.gate_input import GateInput, Whereabouts, fault, gpus_of, hosts, start, status_of
from bench.gate.rules import Expect, GateFault
from bench.hardware.catalogue import gpu_printed, instance, instances
from bench.logs.foreign import OK, TRUNCATED

_MOST_NAMED = 4
_NO_NUMBER = "was printed, but is no number"  # as logs/records.py says it of a row


def faults(run: GateInput, expect: Expect) -> Iterator[GateFault]:
    """Everything that is wrong with the run as a whole; with nothing measured, that and no more."""
    yield from _failed(run)
    if not run.document.summaries:
        yield GateFault("empty-run", "no row was measured")
        return
    yield from _unplanned(run)
    yield from (GateFault("truncated-file", warning) for warning in run.warnings)
    yield from run.unsound
    yield from _bad_rows(run)
    yield from _worlds(run, expect)
    yield from gpu_count.faults(run, expect)
    for job, header in run.document.headers.items():
        yield from _place(run, job, header, expect)
    yield from _age(run, expect)


def _unplanned(run: GateInput) -> Iterator[GateFault]:
    """Without its plan a run tells what is there, not what is missing; of logs, each that was read must be there."""
    if run.plan is None:
        yield GateFault("no-plan", "no plan.json lies beside its results: gate the folder of a run, as it was written")
        return
    there = {header.imported.get("source") for header in run.document.headers.values()}
    for source in run.plan.get("imported", ()):
        if source not in there:
            yield GateFault("failed-job", f"{source} was imported, and nothing of it is there")


def _failed(run: GateInput) -> Iterator[GateFault]:
    """Exit code 0 is no excuse: failed rows, and jobs that said why they failed."""
    told: set[tuple[str | None, str]] = set()
    on: set[tuple[object, ...]] = set()
    where = Whereabouts(run.document.headers)
    for row in run.document.failures:
        job, what, group = str(row.get("job")), str(row.get("what")), row.get("group")
        header = run.document.headers.get(job)
        named = (str(row["host"]),) if row.get("host") else ()
        hosts_ = named or (where.of_group(job, str(group)) if group else ())
        if (job, what, hosts_) not in on:  # the same of another node is that node's own
            on.add((job, what, hosts_))
            told.add((row.get("job"), what))
            yield GateFault(
                _name(header, what),
                what + (f" (host {named[0]})" if named else ""),
                row.get("job"),
                row.get("pattern"),
                row.get("mode"),
                row.get("payload_bytes"),
                group,
                hosts=named,
            )
    for name, end in run.outcomes.items():
        ended = end.get("what") or (f"ended with exit code {end['exit_code']}" if end.get("exit_code") else None)
        if ended and (name, ended) not in told:
            told.add((name, str(ended)))
            yield GateFault("failed-job", str(ended), name, hosts=(str(end["host"]),) if end.get("host") else ())
    for lost in (run.plan or {}).get("troubles") or ():  # an imported log that gave nothing
        yield GateFault("truncated-import", str(lost["what"] if isinstance(lost, dict) and "what" in lost else lost))
    yield from _untold(run, {start(str(job)) for job, _ in told})


def _name(header: Header | None, what: str) -> str:
    """Which failure a failed row is; of a log also a figure that was printed as nan or inf, and what a cut lost."""
    if header is None or not header.imported:
        return "failed-job"
    if what.endswith(_NO_NUMBER):
        return "not-a-number"
    return "truncated-import" if status_of(header) == TRUNCATED else "failed-job"


def _untold(run: GateInput, said: set[str]) -> Iterator[GateFault]:
    """Jobs that say nothing: neither rows nor a reason, no end, a log that did not end well. `said`: that failed."""
    there = {start(row.job) for row in run.document.summaries}
    silent = said | there | {start(str(row.get("job"))) for row in run.document.skipped}
    planned = dict(run.planned())
    for name in dict.fromkeys([*planned, *map(start, run.outcomes), *map(start, run.document.headers)]):
        if name not in silent:
            began = "was planned" if name in planned else "ended"
            yield GateFault("failed-job", f"it {began}, and there are neither results nor a reason", name)
        elif name in planned and planned[name].get("world") and name not in {*said, *run.outcomes}:
            yield GateFault("failed-job", "how it ended is not known: the run itself was ended before it", name)
    for job, header in run.document.headers.items():
        status = status_of(header)
        if status not in ("", OK) and job not in said:
            yield GateFault("truncated-import" if status == TRUNCATED else "failed-job", f"its log is {status}", job)


def _bad_rows(run: GateInput) -> Iterator[GateFault]:
    """What spoils trust in a run wherever it stands, whether a rule looks at the row or not."""
    for row in run.document.summaries:
        if row.verified is False or row.num_wrong:
            wrong = f"{row.num_wrong} elements" if row.num_wrong else "some elements"
            yield fault("wrong-data", f"{wrong} were wrong", row)
        if Flag.ABOVE_BOUND in row.flags:
            shown = f"{row.bound_fraction:.2f} of its bound" if row.bound_fraction else "above its bound"
            yield fault("above-bound", f"{shown}, {row.bound_name}", row, row.busbw_bytes_per_s, row.bound_bytes_per_s)


def _worlds(run: GateInput, expect: Expect) -> Iterator[GateFault]:
    planned = dict(run.planned())
    headers = run.document.headers
    for job, header in headers.items():
        world = planned.get(job, {}).get("world")  # a retest is of fewer hosts, by its plan
        if world and (header.num_nodes, header.ranks_per_node) != (world["num_nodes"], world["ranks_per_node"]):
            told = f"planned for {world['num_nodes']} nodes of {world['ranks_per_node']} ranks, measured on "
            yield GateFault("wrong-world", f"{told}{header.num_nodes} of {header.ranks_per_node}", job)
        elif not header.ranks and not header.modelled and not status_of(header):
            yield GateFault("wrong-world", "on which hosts its ranks were is not known", job)
        elif header.ranks and not header.modelled and len(hosts(header)) < (header.num_nodes or 0):
            told = f"{header.num_nodes} nodes were to take part; the ranks were on {', '.join(hosts(header))}"
            yield GateFault("wrong-world", told, job)
    for what, wanted, got in (
        ("nodes", expect.nodes, max(header.num_nodes or 0 for header in headers.values())),
        ("ranks", expect.ranks, max(header.num_ranks or 0 for header in headers.values())),
    ):
        if wanted is not None and got != wanted:
            yield GateFault("wrong-world", f"{wanted} {what} are expected, the most that took part are {got}")
    there = {host for header in headers.values() for host in hosts(header)}
    absent = [host for host in expect.hosts if host not in there]
    if absent:
        more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
        yield GateFault(
            "wrong-world", f"nothing was measured on {', '.join(absent[:_MOST_NAMED])}{more}", hosts=tuple(absent)
        )


def _place(run: GateInput, job: str, header: Header, expect: Expect) -> Iterator[GateFault]:
    """Is it the cluster, the hardware and the fabric that is expected? What is not known is not it."""
    cluster = (run.plan or {}).get("cluster", {}).get("name")
    for what, wanted, got in (
        ("cluster", expect.cluster, cluster),
        ("instance type", expect.instance, header.instance),
    ):
        if wanted and got != wanted:
            yield GateFault("wrong-cluster", f"{what} {wanted} is expected, it is {got or 'not known'}", job)
    yield from _other_gpu(job, header)
    if expect.gpu:
        names = gpus_of(header)
        other = sorted(name for name in names if expect.gpu not in name)
        if other or not names:
            told = f"there is {', '.join(other)}" if other else "none is known"
            yield GateFault("wrong-cluster", f"GPUs {expect.gpu} are expected, {told}", job)
    wanted = (_only_transport(header.pattern) or expect.transport) if expect.transport else ""
    if wanted and header.transport != wanted:
        yield GateFault("wrong-fabric", f"transport {wanted} is expected, it is {header.transport}", job)
    if expect.network and header.num_nodes != 1:
        yield from wrong_network(run, job, expect.network)


def _only_transport(pattern: str) -> str | None:
    """The one that a pattern has, whatever carries the others: copies of GPUs are no messages of a library."""
    known = pattern in plugins.names("pattern")
    return plugins.load("pattern", pattern).PATTERN.transport if known else None


def _other_gpu(job: str, header: Header) -> Iterator[GateFault]:
    """An instance type that was named, whose links bound the rows, and whose GPU is not the one that was there."""
    if header.instance not in instances():
        return
    wanted = instance(str(header.instance)).gpu
    names = [str(gpu.get("name")) for facts in header.nodes.values() for gpu in facts.get("gpus") or ()]
    names += str(header.facts.get("gpus") or "").split(", ")  # of a log
    there = sorted({known for name in names if name and (known := gpu_printed(name)) is not None})
    other = [name for name in there if name != wanted]
    if other:
        told = f"instance type {header.instance} was named, its GPU is {wanted}"
        yield GateFault("wrong-cluster", f"{told}; there is {', '.join(other)}", job)


def wrong_network(run: GateInput, job: str, wanted: str) -> Iterator[GateFault]:
    """The network of a job that has several nodes is another one, or nothing tells which it is."""
    networks = run.network_of(job)
    if networks != {wanted}:
        told = f"it is {', '.join(sorted(networks))}" if networks else "nothing tells which it was"
        yield GateFault("wrong-fabric", f"network {wanted} is demanded, {told}", job)


def _age(run: GateInput, expect: Expect) -> Iterator[GateFault]:
    if expect.max_age_s is None:
        return
    for job, header in run.document.headers.items():
        try:
            began = datetime.fromisoformat(header.started)
            age_s = (run.now - began).total_seconds()
        except (ValueError, TypeError):
            yield GateFault("stale", f"when it was measured is not known ({header.started!r})", job)
            continue
        if age_s > expect.max_age_s:
            told = f"measured {format_duration(age_s)} ago, {format_duration(expect.max_age_s)} are allowed"
            yield GateFault("stale", told, job)
        elif age_s < -86400:
            yield GateFault("stale", f"measured in the future ({header.started}): one of the clocks is wrong", job)
