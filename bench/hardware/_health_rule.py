"""What rules about the health of a machine take and give, and words that several of them use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.core import hostlist
from bench.core.inventory import Adapter, Gpu, Inventory
from bench.hardware import live
from bench.hardware.catalogue import gpu, gpu_links, gpu_printed, instance, instances, yaml_file

SEVERITIES = ("wrong", "doubtful", "unknown")


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """What a rule found. `severity`: "wrong" costs what the machine should give, "doubtful" may, "unknown" could not be
    told. `what` and `remedy` are sentences, `evidence` the facts that it rests on; of the unknown it is why."""

    rule: str
    severity: str
    what: str
    evidence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class HealthNode:
    """One node: its facts as a header keeps them, the devices among them, and the libraries of its interpreter."""

    facts: Mapping[str, Any]
    found: Inventory
    software: Mapping[str, str] = field(default_factory=dict)
    instance: str | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Its GPUs."""
        return self.found.gpus

    def as_promised(self, each: Gpu) -> bool:
        """Is a GPU's PCIe link all that the instance type has? Many are built with half the lanes, or an older host."""
        if self.instance not in instances():
            return False
        promised, linked = instance(str(self.instance)).links.pcie_bytes_per_s, live.pcie_rate(each)
        return promised is not None and linked is not None and not live.is_less(linked, promised)

    @property
    def rdma_adapters(self) -> tuple[Adapter, ...]:
        """Active adapters that move data by themselves, and whose device files are not known to be missing."""
        return () if self.facts.get("verbs") is False else live.active_adapters(self.found)

    @property
    def adapters_by_rdma(self) -> bool:
        """Are there some among them that could reach GPU memory by themselves?"""
        return any(each.kind in ("infiniband", "roce") for each in self.rdma_adapters)

    @property
    def severity_of_rdma(self) -> str:
        """What it means that RDMA can not work: the Ethernet that clouds give to virtual machines is a function of such
        an adapter, and nobody need use it so."""
        plain = bool(self.facts.get("virtual_machine")) and all(each.kind == "roce" for each in self.rdma_adapters)
        return "doubtful" if plain else "wrong"

    def silent(self, who: str, what: str = "it") -> str:
        """Why something is unknown: `who` was asked and does not tell `what`; of a text, that nobody else was asked."""
        if self.found.told_by:
            return f"{self.found.told_by} does not tell {what}"
        return f"{who} do{'' if who.startswith('the GPUs') else 'es'} not tell {what}"


def names(gpus: Iterable[Gpu]) -> str:
    """`gpu0`, `gpu[0-3,5]`."""
    return hostlist.compress([f"gpu{each.index}" for each in gpus])


def num_nvlinks(each: Gpu) -> int | None:
    """NVLinks that a GPU of this model has where each leads to a switch or a peer; None where cards may lack them."""
    model = gpu_printed(each.name)
    if model is None or (generation := gpu(model).nvlink_generation) is None:
        return None
    links = gpu_links(model, 1)
    if links.peer not in ("nvswitch", "nvlink_mesh") or links.nvlink_bytes_per_s is None:
        return None
    one = float(yaml_file("links")["nvlink"][generation]["gbyte_per_s"]) * 1e9
    return round(links.nvlink_bytes_per_s / one)


def grouped(gpus: Iterable[Gpu], words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(`gpu[0-3]`, word): GPUs of which the same is to be said, together; those with an empty word are left out."""
    by_word: dict[str, list[Gpu]] = {}
    for each, word in zip(gpus, words, strict=True):
        by_word.setdefault(word, []).append(each)
    yield from ((names(alike), word) for word, alike in by_word.items() if word)
