"""Has each node the GPUs that it should have? What it shows is no measure: one that lost seven of eight shows one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.core.record import Header
from bench.core.traits import traits
from bench.gate.gate_input import GateInput, hosts
from bench.gate.rules import Expect, GateFault
from bench.hardware.bounds import shares_gpu
from bench.hardware.catalogue import instance, instances


class _Host(NamedTuple):
    """GPUs of a host: as its driver tells (None: it does not), the most that a job measured there; `known`: it has no
    more than `shown`."""

    shown: int | None
    used: int
    known: bool
    words: str


_Told = Mapping[str, Mapping[str, _Host]]  # of each job


def faults(run: GateInput, expect: Expect) -> Iterator[GateFault]:
    """Of jobs on GPUs: fewer than the instance type has, or not as many as are expected or known to be there."""
    headers = run.document.headers
    measured = {
        job: header
        for job, header in headers.items()
        if traits(header.transport).on_gpu and not header.modelled and not header.imported
    }
    told = _told(measured)
    yield from _once(_lost(run, measured, told))
    if expect.gpus_per_node is not None and any(header.imported for header in headers.values()):
        yield GateFault(
            "wrong-world",
            f"{_expected(expect.gpus_per_node)}, and a log of another tool does not tell how "
            "many the driver of each node shows: leave `gpus_per_node` out for it",
        )
    elif expect.gpus_per_node is not None:
        yield from _once(_other(run, expect.gpus_per_node, measured, told))


def _told(measured: Mapping[str, Header]) -> _Told:
    """Of every host of a job, also of one whose facts are not there."""
    shown = {job: _shown(header) for job, header in measured.items()}
    used, confined = dict[str, int](), set[str]()
    for job, header in measured.items():
        for host in hosts(header):
            used[host] = max(used.get(host, 0), _used(header))
            if 0 < (shown[job][host] or 0) < _used(header):
                confined.add(host)  # each rank may use and see its own GPU alone, as Slurm's --gpus-per-task has it
    return {
        job: {host: _host(host, num, used.get(host, 0), host in confined) for host, num in each.items()}
        for job, each in shown.items()
    }


def _shown(header: Header) -> dict[str, int | None]:
    found: dict[str, int | None] = dict.fromkeys((*hosts(header), *header.nodes))
    for host, facts in header.nodes.items():
        if not facts.get("no_gpus_because") and isinstance(facts.get("gpus"), list):
            found[host] = len(facts["gpus"])
    return found


def _host(name: str, shown: int | None, used: int, confined: bool) -> _Host:
    if confined:
        return _Host(used, used, False, f"the driver of {name} shows each rank a part, and {used} took part at most")
    words = f"the driver of {name} {'does not tell them' if shown is None else f'shows {shown}'}"
    return _Host(shown, used, shown is not None, words)


def _lost(run: GateInput, measured: Mapping[str, Header], told: _Told) -> Iterator[GateFault]:
    """A node may be given a part of its type's GPUs, as a container is: all that bench.yaml says, and no other number.

    Where the driver does not tell, the most that were measured are those that are there, and no node is accused.
    """
    given = ((run.plan or {}).get("cluster") or {}).get("ranks_per_node")
    for job, header in measured.items():
        if header.instance in instances():
            whole = instance(str(header.instance)).gpus
            for host, each in told[job].items():
                there = each.used if each.shown is None else each.shown
                if there < whole and there != given:
                    more = f", and {each.used} took part at most" if each.shown is None else ""
                    what = f"{header.instance} has {whole} GPUs, {each.words}{more}"
                    yield GateFault("wrong-world", what, hosts=(host,), accuses=each.known)


def _other(run: GateInput, wanted: int, measured: Mapping[str, Header], told: _Told) -> Iterator[GateFault]:
    expected = _expected(wanted)
    said = _said(run)
    if said is None:
        yield GateFault(
            "wrong-world",
            f"{expected}, and the site does not say how many there should be: name `instance:` "
            "or `ranks_per_node:` of the cluster in bench.yaml",
        )
    elif said != wanted:
        yield GateFault("wrong-world", f"{expected}, bench.yaml says {said}")
    for each in told.values():
        for name, host in each.items():
            if host.shown != wanted:
                few = host.known and (host.shown or 0) < wanted
                yield GateFault("wrong-world", f"{expected}, {host.words}", hosts=(name,), accuses=few)
    most = max(map(_used, measured.values()), default=0)
    if most != wanted or not all(told.values()):
        yield GateFault("wrong-world", f"{expected}, the most that were measured {'is' if most == 1 else 'are'} {most}")


def _used(header: Header) -> int:
    """GPUs of each node that a job measured: one for each rank, unless several were on one."""
    return 1 if shares_gpu(header, ()) else header.ranks_per_node or 0


def _expected(wanted: int) -> str:
    return f"{wanted} GPU{'' if wanted == 1 else 's'} a node {'is' if wanted == 1 else 'are'} expected"


def _said(run: GateInput) -> int | None:
    """GPUs of a node by the site's word: a rank for each where it says how many ranks, else those of its type."""
    cluster = (run.plan or {}).get("cluster") or {}
    ranks: int | None = cluster.get("ranks_per_node")
    if ranks is None and cluster.get("instance") in instances():
        return instance(str(cluster["instance"])).gpus
    return ranks


def _once(found: Iterator[GateFault]) -> Iterator[GateFault]:
    """Many jobs have the same nodes."""
    yield from dict.fromkeys(found)
