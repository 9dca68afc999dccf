"""Has each node the GPUs that it should have? What it shows is no measure: one that lost seven of eight shows one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.analysis._gate_input import Material
from bench.analysis.gate_rules import Expect, Fault
from bench.core.case import ON_GPUS
from bench.core.record import Header
from bench.hardware.catalogue import instance, instances

Told = Mapping[str, int | None]  # host -> GPUs that its driver shows; None where it does not answer


def faults(run: Material, expect: Expect) -> Iterator[Fault]:
    """Of jobs on GPUs: fewer than the instance type has, or not as many as are expected or known to be there."""
    measured = {job: header for job, header in run.document.headers.items()
                if header.transport in ON_GPUS and not header.modelled and not header.imported}  # fmt: skip
    told = {job: _told(header) for job, header in measured.items()}
    yield from _once(_lost(measured, told))
    if expect.gpus_per_node is not None:
        yield from _once(_other(run, expect.gpus_per_node, measured, told))


def _told(header: Header) -> Told:
    return {
        host: None if facts.get("no_gpus_because") or not isinstance(facts.get("gpus"), list) else len(facts["gpus"])
        for host, facts in header.nodes.items()
    }


def _lost(measured: Mapping[str, Header], told: Mapping[str, Told]) -> Iterator[Fault]:
    for job, header in measured.items():
        if header.instance in instances():
            whole = instance(str(header.instance)).gpus
            for host, num in told[job].items():
                if num is not None and num < whole:
                    yield Fault("wrong-world", f"{header.instance} has {whole} GPUs, the driver of {host} shows {num}")


def _other(run: Material, wanted: int, measured: Mapping[str, Header], told: Mapping[str, Told]) -> Iterator[Fault]:
    expected = f"{wanted} GPU{'' if wanted == 1 else 's'} a node {'is' if wanted == 1 else 'are'} expected"
    said = _said(run)
    if said is None:
        yield Fault("wrong-world", f"{expected}, and the site does not say how many there should be: name `instance:` "
                    "or `ranks_per_node:` of the cluster in bench.yaml")  # fmt: skip
    elif said != wanted:
        yield Fault("wrong-world", f"{expected}, bench.yaml says {said}")
    for each in told.values():
        for host, num in each.items():
            if num != wanted:
                shown = "does not tell them" if num is None else f"shows {num}"
                yield Fault("wrong-world", f"{expected}, the driver of {host} {shown}")
    most = max((header.ranks_per_node or 0 for header in measured.values()), default=0)
    if most != wanted or not all(told.values()):
        yield Fault("wrong-world", f"{expected}, the most that were measured {'is' if most == 1 else 'are'} {most}")


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
