"""Has each node the GPUs that it should have? What it shows is no measure: one that lost seven of eight shows one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.analysis._gate_input import Material, hosts
from bench.analysis.gate_rules import Expect, Fault
from bench.core.case import ON_GPUS
from bench.core.record import Header
from bench.hardware.bounds import shares_gpu
from bench.hardware.catalogue import instance, instances

Told = Mapping[str, int | None]  # host -> GPUs that its driver shows; None where it does not answer


def faults(run: Material, expect: Expect) -> Iterator[Fault]:
    """Of jobs on GPUs: fewer than the instance type has, or not as many as are expected or known to be there."""
    headers = run.document.headers
    measured = {job: header for job, header in headers.items()
                if header.transport in ON_GPUS and not header.modelled and not header.imported}  # fmt: skip
    told = {job: _told(header) for job, header in measured.items()}
    yield from _once(_lost(run, measured, told))
    if expect.gpus_per_node is not None and any(header.imported for header in headers.values()):
        yield Fault("wrong-world", f"{_expected(expect.gpus_per_node)}, and a log of another tool does not tell how "
                    "many the driver of each node shows: leave `gpus_per_node` out for it")  # fmt: skip
    elif expect.gpus_per_node is not None:
        yield from _once(_other(run, expect.gpus_per_node, measured, told))


def _told(header: Header) -> Told:
    """Of every host of a job, also of one whose facts are not there."""
    found: dict[str, int | None] = dict.fromkeys((*hosts(header), *header.nodes))
    for host, facts in header.nodes.items():
        if not facts.get("no_gpus_because") and isinstance(facts.get("gpus"), list):
            found[host] = len(facts["gpus"])
    return found


def _lost(run: Material, measured: Mapping[str, Header], told: Mapping[str, Told]) -> Iterator[Fault]:
    """A node may be given a part of its type's GPUs, as a container is: all that bench.yaml says, and no other number.

    Where the driver does not tell, the most that were measured are those that are there.
    """
    given = ((run.plan or {}).get("cluster") or {}).get("ranks_per_node")
    most = max(map(_used, measured.values()), default=0)
    for job, header in measured.items():
        if header.instance in instances():
            whole = instance(str(header.instance)).gpus
            for host, shown in told[job].items():
                there = most if shown is None else shown
                if there < whole and there != given:
                    has = f"the driver of {host} {_shows(shown)}"
                    has += f", and {most} took part at most" if shown is None else ""
                    yield Fault("wrong-world", f"{header.instance} has {whole} GPUs, {has}", hosts=(host,))


def _other(run: Material, wanted: int, measured: Mapping[str, Header], told: Mapping[str, Told]) -> Iterator[Fault]:
    expected = _expected(wanted)
    said = _said(run)
    if said is None:
        yield Fault("wrong-world", f"{expected}, and the site does not say how many there should be: name `instance:` "
                    "or `ranks_per_node:` of the cluster in bench.yaml")  # fmt: skip
    elif said != wanted:
        yield Fault("wrong-world", f"{expected}, bench.yaml says {said}")
    for each in told.values():
        for host, num in each.items():
            if num != wanted:
                yield Fault("wrong-world", f"{expected}, the driver of {host} {_shows(num)}", hosts=(host,))
    most = max(map(_used, measured.values()), default=0)
    if most != wanted or not all(told.values()):
        yield Fault("wrong-world", f"{expected}, the most that were measured {'is' if most == 1 else 'are'} {most}")


def _used(header: Header) -> int:
    """GPUs of each node that a job measured: one for each rank, unless several were on one."""
    return 1 if shares_gpu(header, ()) else header.ranks_per_node or 0


def _expected(wanted: int) -> str:
    return f"{wanted} GPU{'' if wanted == 1 else 's'} a node {'is' if wanted == 1 else 'are'} expected"


def _shows(num: int | None) -> str:
    return "does not tell them" if num is None else f"shows {num}"


def _said(run: Material) -> int | None:
    """GPUs of a node by the site's word: those of its instance type, else a rank for each."""
    cluster = (run.plan or {}).get("cluster") or {}
    if cluster.get("instance") in instances():
        return instance(str(cluster["instance"])).gpus
    ranks: int | None = cluster.get("ranks_per_node")
    return ranks


def _once(found: Iterator[Fault]) -> Iterator[Fault]:
    """Many jobs have the same nodes."""
    yield from dict.fromkeys(found)
