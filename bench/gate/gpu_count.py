"""Find faults in the number of GPUs per node.

For example, a node that lost seven of its eight GPUs reports one GPU. The reported number must therefore be compared
with an expected number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.core.record import Header
from bench.core.traits import traits
from bench.gate.gate_input import GateInput, hosts
from bench.gate.messages import FaultCode
from bench.gate.rules import Expect, GateFault
from bench.hardware.bounds import shares_gpu
from bench.hardware.catalogue import instance, instances


class _HostGpus(NamedTuple):
    """How many GPUs a host has, and how many of them a job used.

    `shown`: the number of GPUs that the driver reports, or None if the driver reports no GPUs.
    `used`: the largest number of GPUs that one job measured on the host.
    `confined`: whether the driver shows each rank only its own GPU (Slurm's --gpus-per-task). `shown` then equals
    `used`.
    """

    shown: int | None
    used: int
    confined: bool

    @property
    def certain(self) -> bool:
        """Whether the driver shows all GPUs of the host."""
        return self.shown is not None and not self.confined

    def code(self, shown: FaultCode, unreported: FaultCode, confined: FaultCode) -> FaultCode:
        """Choose one of three codes.

        Return `confined` if the driver shows each rank only its own GPU. Return `unreported` if the driver reports no
        GPUs. In all other cases, return `shown`.
        """
        if self.confined:
            return confined
        return unreported if self.shown is None else shown


_Counts = Mapping[str, Mapping[str, _HostGpus]]  # job -> host -> its GPUs


def faults(run: GateInput, expect: Expect) -> Iterator[GateFault]:
    """Yield a fault for each node with fewer GPUs than its instance type has.

    Also yield a fault for each unexpected number of GPUs.
    """
    headers = run.document.headers
    measured = {
        job: header
        for job, header in headers.items()
        if traits(header.transport).on_gpu and not header.modelled and not header.imported
    }
    counts = _counts(measured)
    # Many jobs have the same nodes, and each fault is reported only once.
    yield from dict.fromkeys(_lost(run, measured, counts))
    if expect.gpus_per_node is None:
        return
    if any(header.imported for header in headers.values()):
        yield GateFault(FaultCode.GPUS_EXPECTED_OF_LOG, {"expected": expect.gpus_per_node})
    else:
        yield from dict.fromkeys(_unexpected(run, expect.gpus_per_node, measured, counts))


def _counts(measured: Mapping[str, Header]) -> _Counts:
    """Count the GPUs of every host of each job. Hosts for which no facts were recorded are included."""
    shown = {job: _shown(header) for job, header in measured.items()}
    used: dict[str, int] = {}
    confined: set[str] = set()
    for job, header in measured.items():
        for host in hosts(header):
            used[host] = max(used.get(host, 0), _used(header))
            if 0 < (shown[job][host] or 0) < _used(header):
                confined.add(host)
    counts: dict[str, dict[str, _HostGpus]] = {}
    for job, of_job in shown.items():
        counts[job] = {}
        for host, num in of_job.items():
            most = used.get(host, 0)
            counts[job][host] = _HostGpus(most if host in confined else num, most, host in confined)
    return counts


def _shown(header: Header) -> dict[str, int | None]:
    found: dict[str, int | None] = dict.fromkeys((*hosts(header), *header.nodes))
    for host, facts in header.nodes.items():
        if not facts.get("no_gpus_because") and isinstance(facts.get("gpus"), list):
            found[host] = len(facts["gpus"])
    return found


def _lost(run: GateInput, measured: Mapping[str, Header], counts: _Counts) -> Iterator[GateFault]:
    """Yield a fault for each host with fewer GPUs than its instance type has.

    If bench.yaml states a smaller number, for example for a container, this number is no fault. If the driver reports
    no GPUs, the number of GPUs that jobs used is compared with the instance type. The host fails only if its driver
    shows all GPUs (`_HostGpus.certain`). If the driver may hide GPUs, the host can neither pass nor fail.
    """
    stated = ((run.plan or {}).get("cluster") or {}).get("ranks_per_node")
    for job, header in measured.items():
        if header.instance not in instances():
            continue
        whole = instance(str(header.instance)).gpus
        for host, gpus in counts[job].items():
            there = gpus.used if gpus.shown is None else gpus.shown
            if there < whole and there != stated:
                code = gpus.code(FaultCode.GPUS_LOST, FaultCode.GPUS_LOST_UNREPORTED, FaultCode.GPUS_LOST_CONFINED)
                facts = {"instance": header.instance, "num_gpus": whole, **_facts(host, gpus)}
                yield GateFault(code, facts, hosts=(host,), accuses=gpus.certain)


def _unexpected(run: GateInput, expected: int, measured: Mapping[str, Header], counts: _Counts) -> Iterator[GateFault]:
    """Yield a fault for each number of GPUs that differs from the expected number.

    Three numbers are checked: the number in bench.yaml, the number that each driver reports, and the number that the
    jobs used.
    """
    stated = _stated(run)
    if stated is None:
        yield GateFault(FaultCode.GPUS_EXPECTED_UNSTATED, {"expected": expected})
    elif stated != expected:
        yield GateFault(FaultCode.GPUS_EXPECTED_STATED, {"expected": expected, "stated": stated})
    for of_job in counts.values():
        for host, gpus in of_job.items():
            if gpus.shown != expected:
                code = gpus.code(
                    FaultCode.GPUS_EXPECTED_SHOWN,
                    FaultCode.GPUS_EXPECTED_UNREPORTED,
                    FaultCode.GPUS_EXPECTED_CONFINED,
                )
                too_few = gpus.certain and (gpus.shown or 0) < expected
                yield GateFault(code, {"expected": expected, **_facts(host, gpus)}, hosts=(host,), accuses=too_few)
    most = max(map(_used, measured.values()), default=0)
    if most != expected or not all(counts.values()):
        yield GateFault(FaultCode.GPUS_EXPECTED_MEASURED, {"expected": expected, "measured": most})


def _facts(host: str, gpus: _HostGpus) -> dict[str, object]:
    return {"host": host, "shown": gpus.shown, "used": gpus.used}


def _used(header: Header) -> int:
    """Return how many GPUs of each node a job measured: one for each rank, or only one if the ranks shared a GPU."""
    return 1 if shares_gpu(header, ()) else header.ranks_per_node or 0


def _stated(run: GateInput) -> int | None:
    """Return the number of GPUs per node according to bench.yaml, or None if unknown.

    The number is the value of the key `ranks_per_node`. If the key is missing, the function returns the number of GPUs
    of the instance type.
    """
    cluster = (run.plan or {}).get("cluster") or {}
    ranks: int | None = cluster.get("ranks_per_node")
    if ranks is None and cluster.get("instance") in instances():
        return instance(str(cluster["instance"])).gpus
    return ranks
