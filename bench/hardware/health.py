"""Find problems of a machine's links. Rules check the facts of a node, and report the facts that are unknown.

Each rule is a function from a node to findings. An unknown fact never leads to a finding "wrong". The rule reports it
as "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.core.inventory import from_facts
from bench.hardware import _health_links, _health_system
from bench.hardware._health_rule import SEVERITIES, HealthFinding, HealthNode, finding
from bench.hardware.messages import HealthCode

__all__ = ["SEVERITIES", "HealthFinding", "HealthNode", "findings", "findings_between"]


def findings(
    node: Mapping[str, Any], software: Mapping[str, str] | None = None, instance: str | None = None
) -> tuple[HealthFinding, ...]:
    """Return all findings about one node. Findings with the severity "wrong" come first.

    `node`: the facts of the node (`probes.machine.facts`).
    `software`: the versions of the node's Python libraries, by distribution name.
    `instance`: the node's declared instance type.
    """
    of = HealthNode(node, from_facts(node), software or {}, instance)
    rules = (*_health_links.RULES, *_health_system.RULES)
    found = [each for rule in rules for each in rule(of)]
    return tuple(sorted(found, key=lambda each: SEVERITIES.index(each.severity)))


def findings_between(nodes: Mapping[str, Mapping[str, Any]]) -> tuple[HealthFinding, ...]:
    """Return findings about differences between the nodes of a cluster.

    `nodes`: facts by host. The libraries of the nodes are compared before a run starts, and not by this function.
    """
    found = []
    for name, key in (("GPU driver", "gpu_driver"), ("GPUs", "gpus")):
        hosts_of: dict[str, list[str]] = {}
        for host, node in nodes.items():
            hosts_of.setdefault(_shown(node.get(key)), []).append(host)
        if len(hosts_of) > 1:
            evidence = "; ".join(f"{', '.join(hosts)}: {value}" for value, hosts in hosts_of.items())
            found.append(finding("unlike_nodes", "doubtful", HealthCode.UNLIKE_NODES, evidence, property=name))
    return tuple(found)


def _shown(value: object) -> str:
    """Return a fact as text. A list of GPUs becomes the number of GPUs and their models."""
    if not isinstance(value, list):
        return str(value)
    models = ", ".join(sorted({str(gpu.get("name")) for gpu in value}))
    return f"{models} ({len(value)})"
