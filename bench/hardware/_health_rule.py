"""Define the input and output of health rules, and functions that several rules use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.core import hostlist
from bench.core.codes import UNCODED
from bench.core.inventory import Adapter, Gpu, Inventory
from bench.hardware import live
from bench.hardware.catalogue import gpu, gpu_links, gpu_printed, instance, instances, yaml_file
from bench.hardware.messages import REMEDIES, HealthCode

SEVERITIES = ("wrong", "doubtful", "unknown")


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A finding of a rule.

    `severity`: "wrong" if the problem costs performance, "doubtful" if it may cost performance, or "unknown".

    `what`, `evidence`, `remedy`: texts that the page prints. For the severity "unknown", `evidence` says why the fact
    could not be determined.
    `code`, `facts`: the message `what` as a code with its facts, for program logic and tests.
    """

    rule: str
    severity: str
    what: str
    evidence: str
    remedy: str = ""
    code: str = UNCODED
    facts: Mapping[str, Any] = field(default_factory=dict)


def finding(
    rule: str, severity: str, code: HealthCode, evidence: str, remedy: str | None = None, **facts: Any
) -> HealthFinding:
    """Make a finding with the message of its code. `remedy`, if given, replaces the code's usual remedy."""
    usual = REMEDIES.get(code, "").format(**facts)
    return HealthFinding(rule, severity, code.words(facts), evidence, usual if remedy is None else remedy, code, facts)


@dataclass(frozen=True, slots=True)
class HealthNode:
    """The input of the health rules about one node.

    `facts`: the facts of the node, as in the header of a results file.
    `found`: the devices that the facts list.
    `software`: the versions of the node's Python libraries.
    `instance`: the declared instance type.
    """

    facts: Mapping[str, Any]
    found: Inventory
    software: Mapping[str, str] = field(default_factory=dict)
    instance: str | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The node's GPUs."""
        return self.found.gpus

    def as_promised(self, each: Gpu) -> bool:
        """Check whether a GPU's PCIe link has at least the rate of the declared instance type.

        In many instance types, the host connects only half of the GPU's lanes or has an older PCIe generation. In such
        an instance type, a link that is slower than the GPU allows is not a fault.
        """
        if self.instance not in instances():
            return False
        promised, linked = instance(str(self.instance)).links.pcie_bytes_per_s, live.pcie_rate(each)
        return promised is not None and linked is not None and not live.is_less(linked, promised)

    @property
    def rdma_adapters(self) -> tuple[Adapter, ...]:
        """The active RDMA adapters. The result is empty if the node is known to lack the device files of RDMA."""
        return () if self.facts.get("verbs") is False else live.active_adapters(self.found)

    @property
    def adapters_by_rdma(self) -> bool:
        """Whether any of `rdma_adapters` is InfiniBand or RoCE (not EFA)."""
        return any(each.kind in ("infiniband", "roce") for each in self.rdma_adapters)

    @property
    def severity_of_rdma(self) -> str:
        """The severity of a finding about RDMA: "wrong" or "doubtful".

        In a virtual machine of a cloud, a RoCE adapter might serve only as plain Ethernet. A finding about RDMA is then
        "doubtful".
        """
        plain = bool(self.facts.get("virtual_machine")) and all(each.kind == "roce" for each in self.rdma_adapters)
        return "doubtful" if plain else "wrong"

    def not_reported(self, source: str, what: str = "it") -> str:
        """Return a text such as "the driver does not report it", for a fact that is unknown.

        `source`: what should report the fact. If the facts come from a recorded text, the result names the program that
            wrote that text instead.
        `what`: the name of the fact.
        """
        return f"{self.found.told_by or source} does not report {what}"


def names(gpus: Iterable[Gpu]) -> str:
    """Return the names of GPUs as text, such as `gpu0` or `gpu[0-3,5]`."""
    return hostlist.compress([f"gpu{each.index}" for each in gpus])


def num_nvlinks(each: Gpu) -> int | None:
    """Return the number of NVLinks of this GPU model.

    Return None if the model is unknown, or if cards of this model may have unconnected NVLinks.
    """
    model = gpu_printed(each.name)
    if model is None or (generation := gpu(model).nvlink_generation) is None:
        return None
    links = gpu_links(model, 1)
    if links.peer not in ("nvswitch", "nvlink_mesh") or links.nvlink_bytes_per_s is None:
        return None
    one = float(yaml_file("links")["nvlink"][generation]["gbyte_per_s"]) * 1e9
    return round(links.nvlink_bytes_per_s / one)


def bridged_in_pairs(each: Gpu) -> bool:
    """Check whether cards of this model have NVLink only through a bridge between two cards.

    Many cards lack a bridge.
    """
    model = gpu_printed(each.name)
    return model is not None and gpu_links(model, 1).peer == "nvlink_pairs"


def grouped(gpus: Iterable[Gpu], texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Group GPUs that have the same text, and yield the GPUs' names and the text of each group.

    GPUs whose text is empty are left out.
    """
    by_text: dict[str, list[Gpu]] = {}
    for each, text in zip(gpus, texts, strict=True):
        by_text.setdefault(text, []).append(each)
    for text, found in by_text.items():
        if text:
            yield names(found), text
