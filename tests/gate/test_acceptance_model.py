"""The acceptance rules on modelled clusters of every instance type: healthy ones pass, one NIC at half rate fails."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from bench.core.case import Case
from bench.core.case_argv import to_argv
from bench.core.errors import UsageError
from bench.core.fabric import Fabric
from bench.core.links import NodeLinks
from bench.core.world import World
from bench.gate import rules_file
from bench.gate.gate import GateResult, gate
from bench.gate.gate_input import GateInput
from bench.gate.rules import Rules
from bench.gate.rules_file import load_rules
from bench.hardware import catalogue
from bench.rank import modelled
from bench.results import summary
from bench.results.document import Document
from tests.gate.gate_runs import NOW

GIB = 1 << 30
# The groups of the scenario `acceptance` that a model has, at its largest size.
ROWS = (
    ("allreduce", "node"),
    ("alltoall", "node"),
    ("allreduce", "rail"),
    ("alltoall", "rail"),
    ("allreduce", "world"),
    ("allgather", "world"),
    ("reducescatter", "world"),
    ("alltoall", "world"),
)
NODES = 2
# One of each kind of node; the others are slow tests.
KINDS = {
    "g4dn.12xlarge",
    "p3.16xlarge",
    "p4d.24xlarge",
    "p5.48xlarge",
    "g6e.48xlarge",
    "p6-b200.48xlarge",
    "Standard_ND96isr_MI300X_v5",
    "Standard_NC96ads_A100_v4",
    "GB200 NVL72",
}
# Unknown: how the accelerators reach each other, or the rate of the network.
BARE = {name: catalogue.node_links(name) for name in catalogue.instances()}
ONE_GPU = {name for name in BARE if catalogue.instance(name).gpus == 1}
UNKNOWN = {name for name, each in BARE.items() if each.peer == "unknown" or not each.nic_bytes_per_s}


@cache
def acceptance() -> Rules:
    """The rules on the busbw of 1 GiB, on modelled rows."""
    rules = load_rules(Path(rules_file.__file__).parents[2] / "rules" / "acceptance.yaml")
    chosen = [
        replace(rule, modelled=True)
        for rule in rules.rules
        if rule.sizes == (GIB,) and set(rule.patterns) & {pattern for pattern, _ in ROWS}
    ]
    assert len(chosen) == 4
    return replace(rules, rules=tuple(chosen), expect=type(rules.expect)(), diagnose=False)


def modelled_document(instance: str, rows: tuple[tuple[str, str], ...] = ROWS) -> Document:
    """What `linkbench run acceptance --model` gives."""
    jobs = []
    for pattern, topology in rows:
        name = f"{pattern}-{topology}"
        case = Case(pattern, "model", (GIB,), mode="pipelined", topology=topology, instance=instance, nodes=NODES)
        header, records = modelled.header_and_rows(case, name)
        header = replace(header, case=tuple(to_argv(case)))
        jobs.append((name, header, tuple(record for round_ in records for record in round_)))
    return summary.document(jobs)


def judged(document: Document, rules: Rules) -> GateResult:
    return gate(rules, GateInput(name="modelled", document=document, attempts=(), plan=None, now=NOW))


def names(verdict: GateResult) -> set[str]:
    return {str(fault.code) for demand in verdict.judged for fault in demand.faults}


class OneNicAtHalfRate(Fabric):
    """The last NIC of the last node is slow, in both directions."""

    def __init__(self, links: NodeLinks, world: World) -> None:
        super().__init__(links, world)
        nics = self.links_by_kind()["nic"]
        half = (nics.start + nics.stop) // 2
        self.capacity[[half - 1, nics.stop - 1]] /= 2


INSTANCES = [
    pytest.param(name, marks=() if name in KINDS else pytest.mark.slow)
    for name in catalogue.instances()
    if name not in UNKNOWN | ONE_GPU
]


@pytest.mark.parametrize("instance", INSTANCES)
def test_a_healthy_cluster_of_any_type_passes_and_one_with_a_slow_nic_fails(
    instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = modelled_document(instance)
    above = [row.bound_fraction for row in healthy.summaries if (row.bound_fraction or 0.0) > 1.0001]
    assert not above, "no row is above its bound"
    verdict = judged(healthy, acceptance())
    assert names(verdict) == set(), {fault.code: fault.facts for demand in verdict.judged for fault in demand.faults}
    assert all(demand.num_rows for demand in verdict.judged)
    if catalogue.node_links(instance).nvlink_nodes >= NODES:
        return  # these nodes exchange nothing through NICs
    monkeypatch.setattr(modelled, "Fabric", OneNicAtHalfRate)
    verdict = judged(modelled_document(instance, ROWS[2:4]), acceptance())
    assert "too-low" in {str(fault.name) for demand in verdict.judged for fault in demand.faults}


def test_nodes_with_one_gpu_have_no_groups_to_judge() -> None:
    for name in ONE_GPU - UNKNOWN:
        verdict = judged(modelled_document(name, ROWS[:4]), acceptance())
        assert {"rank-alone", "groups-too-few"} <= names(verdict), name


def test_unknown_types_cannot_be_modelled() -> None:
    for name in UNKNOWN:
        with pytest.raises(UsageError):
            modelled_document(name, ROWS[2:3])
