"""The rules about what must be told: what was asked, where it ran, how time was taken, what it can be at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.core.case import Case, own_case
from bench.core.contention import rounds
from bench.core.errors import BenchError
from bench.core.record import Flag, Header, known
from bench.core.traits import traits
from bench.core.world import World
from bench.gate.lint_input import LintInput, LintRow, RuleOffence, launch_of
from bench.hardware.bounds import bounds_of
from bench.results.summary import BOUND_TOLERANCE

# What a host's facts must name; a value may be unknown (null), a key that is not there was never asked.
_NODE_KEYS = (
    "cpu_model",
    "num_cpus",
    "num_cores",
    "num_sockets",
    "governor",
    "memory_bytes",
    "numa_nodes",
    "network_ports",
    "gpus",
    "gpu_driver",
    "gpu_cuda",
    "container",
    "last_level_cache_bytes",
)
_GPU_KEYS = ("name", "memory_bytes", "pcie_generation", "pcie_max_generation", "pcie_lanes", "pcie_max_lanes")
_VERSIONS = ("bench", "commit", "python", "kernel")

_TIMING = {
    "sync": "what synchronised the ranks before an isolated call",
    "rank_reduction": "how the ranks' times were made one",
    "iteration_reduction": "how the samples were made one",
    "cache": "whether caches were hot or cold",
}
_SKEW = ("sync_skew_p50_s", ("sync_skew_p99_s", "sync_skew_max_s"))  # the maximum where n is too small for p99


def nothing_is_left_out(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 2: each asked size, mode and group is there or says why not; used and available parts are told."""
    yield from run.mismatches
    for name, case, header in _asked(run):
        if _failed(run, name):
            continue  # and the report says how
        if header is None:
            yield RuleOffence("planned, but there are neither results nor a reason", name)
        elif case is not None:
            yield from _absent(run, name, case, header)
    yield from _without_reason(run)
    for job, header in run.measured:
        for host, facts in header.nodes.items():
            if not facts.get("num_cpus") or facts.get("gpus") is None:
                yield RuleOffence(f"how many CPUs and GPUs there are on {host} beside those used is not told", job)


def _failed(run: LintInput, name: str) -> bool:
    whole = (row for row in run.document.failures if row.get("requested_bytes") is None)
    return bool(run.outcomes.get(name, {}).get("what")) or any(row.get("job") == name for row in whole)


def _without_reason(run: LintInput) -> Iterator[RuleOffence]:
    for row in run.document.skipped:
        if not row.get("reason"):
            place = (row.get(key) for key in ("job", "mode", "payload_bytes", "group"))
            yield RuleOffence("skipped without a reason", *place)
    for skip in (run.plan or {}).get("skipped", ()):
        if not skip.get("reason"):
            yield RuleOffence(f"{skip.get('what', 'something')} was left out of the plan without a reason")


def _asked(run: LintInput) -> Iterator[tuple[str, Case | None, Header | None]]:
    """(job, what was asked of it, its first header); None for what can not be read or is not there."""
    headers: dict[str, Header] = {}
    for job, header, _ in run.told:
        headers.setdefault(launch_of(job), header)
    planned = {job["name"]: job["case"] for job in (run.plan or {}).get("jobs", ())}
    for name in dict.fromkeys((*planned, *headers)):
        words = planned.get(name) or headers[name].case
        yield name, own_case(words), headers.get(name)


def _absent(run: LintInput, name: str, case: Case, header: Header) -> Iterator[RuleOffence]:
    try:
        in_time = rounds(case, World(known(header.num_nodes), known(header.ranks_per_node)), header.topology)
    except BenchError:  # a header that was edited, or a topology that this program does not know
        yield RuleOffence("which groups of ranks were to be measured can not be told from the header", name)
        return
    present = {
        (size, record.mode, record.group)
        for job, _, records in run.told
        if launch_of(job) == name
        for record in records
        for size in record.requested_bytes
    }
    if case.schedule == "ladder" and header.topology == "pairs":
        # Which pairs are measured follows from what was seen, and at the largest size only.
        largest = max(case.sizes)
        for mode in case.modes:
            if not any((size, one) == (largest, mode) for size, one, _ in present):
                yield RuleOffence("asked for, but the ladder has no row, nor a reason", name, mode, largest)
        return
    for size in case.sizes:
        for mode in case.modes:
            for group in (group.name for groups in in_time for group in groups):
                if (size, mode, group) not in present:
                    yield RuleOffence(
                        "asked for, but neither measured nor skipped with a reason", name, mode, size, group
                    )


def environment_is_told(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 9: the hardware, the software, the environment, the hosts, the seed, the beginning and the end."""
    for job, header, _ in run.told:
        for what in _missing_facts(header):
            yield RuleOffence(f"not recorded: {what}", job)
    if run.plan is None:
        return
    if not run.plan.get("scenario_text"):
        yield RuleOffence("not recorded: the scenario, word for word (plan.json: scenario_text)")
    for name in dict.fromkeys(launch_of(job) for job, _, _ in run.told):
        if run.outcomes.get(name, {}).get("seconds") is None:
            yield RuleOffence("not recorded: when it ended (outcomes.json: seconds)", name)


def _missing_facts(header: Header) -> Iterator[str]:
    told = {"commit": header.versions.get("source"), **header.versions}  # files without git name themselves
    yield from (f"versions.{name}" for name in _VERSIONS if not told.get(name))
    if not header.started:
        yield "when it began (started)"
    if header.facts.get("tool"):  # its host and its library are those of our own jobs beside it
        return
    if header.settings.get("seed") is None:
        yield "the seed of the data (settings.seed)"
    if header.modelled:
        if not header.links:
            yield "the links that it was modelled on (links)"
        return
    its = traits(header.transport)
    yield from (f"versions.{name}" for name in its.required_versions if not header.versions.get(name))
    yield from (f"facts.{name}" for name in its.required_facts if not header.facts.get(name))
    if not header.settings.get("launcher"):
        yield "what started the ranks (settings.launcher)"
    if len(header.nodes) != header.num_nodes:
        yield f"the facts of each of {header.num_nodes} hosts (nodes)"
    yield from _missing_hardware(header)
    if len(header.ranks) != header.num_ranks or not all(rank.get("host") and rank.get("cpus") for rank in header.ranks):
        yield "the host and the CPU mask of each rank (ranks)"


def _missing_hardware(header: Header) -> Iterator[str]:
    for host, facts in header.nodes.items():
        yield from (f"nodes.{host}.{key}" for key in _NODE_KEYS if key not in facts)
        gpus: list[Mapping[str, Any]] = list(facts.get("gpus") or ())
        if traits(header.transport).on_gpu and not gpus:
            yield f"nodes.{host}.gpus: the bytes moved between GPUs"
        for gpu in gpus:
            yield from (f"nodes.{host}.gpus[{gpu.get('index')}].{key}" for key in _GPU_KEYS if key not in gpu)


def timing_is_told(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 10: mode, clock, synchronisation and its skew, reductions, calls per sample, warm-up, cache."""
    for job, header in run.measured:
        if not header.clock:
            yield RuleOffence("not recorded: the clock", job)
        for key, meaning in _TIMING.items():
            if not header.settings.get(key):
                yield RuleOffence(f"not recorded: {meaning} (settings.{key})", job)
        yield from _missing_skew(job, header)
    for row in run.timed:
        yield from map(row.fault, _untold_timing(row))


def _missing_skew(job: str, header: Header) -> Iterator[RuleOffence]:
    """Only ranks that are synchronised, by a library that completes on the host, can tell how far apart they start."""
    if known(header.num_ranks) < 2 or header.clock != "host" or header.settings.get("sync") == "none":
        return
    middle, tails = _SKEW
    if header.calibration.get(middle) is None or all(header.calibration.get(tail) is None for tail in tails):
        yield RuleOffence(
            f"not recorded: how far apart ranks start (calibration.{middle}, .{tails[0]} or .{tails[1]})", job
        )


def _untold_timing(row: LintRow) -> Iterator[str]:
    record, samples = row.record, row.record.samples
    assert samples is not None
    if record.mode not in ("isolated", "pipelined"):
        yield f"the mode {record.mode!r} is neither isolated nor pipelined"
    if samples.calls_per_sample < 1 or (record.mode == "isolated" and samples.calls_per_sample != 1):
        yield f"{samples.calls_per_sample} calls per sample are not what {record.mode} mode means"
    if not samples.loop:
        yield "not recorded: what took the samples (loop)"
    if not samples.warmup:
        yield "not recorded: the warm-up that was left out of the samples"
    knows_cache = any(facts.get("last_level_cache_bytes") for facts in row.header.nodes.values())
    if knows_cache and record.cache not in ("hot", "cold"):
        yield "not recorded: whether this row's buffers were hot or cold"


def bounds_are_told(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 11: each bandwidth has its bound, with the link that sets it and how it was computed; or the reason why not.

    A row that shows none may say why in its header: calibration.no_bound_because.
    """
    for row in run.rows:
        shown = row.summary
        if shown.busbw_bytes_per_s is None or row.record.samples is None:
            continue
        if shown.bound_bytes_per_s is None or not shown.bound_name:
            if not row.header.calibration.get("no_bound_because"):
                yield row.fault("a bandwidth without a bound, and without a reason (calibration.no_bound_because)")
            continue
        known = [bound for bound in bounds_of(row.header, row.record) if bound.name == shown.bound_name]
        if not any(bound.why and bound.source for bound in known):
            yield row.fault(f"the bound {shown.bound_name!r} is not one that this run's links and calibration give")
        if (
            shown.busbw_bytes_per_s > shown.bound_bytes_per_s * (1 + BOUND_TOLERANCE)
            and shown.bound_kind == "hard"
            and Flag.ABOVE_BOUND not in shown.flags
        ):
            yield row.fault("above a hard bound, and not marked")
