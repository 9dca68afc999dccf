"""Find problems of a machine's links. Each rule checks some facts of a node.

A rule is a function that takes a node and yields findings. If a rule needs a fact that is unknown, its finding has the
severity "unknown", never "wrong".
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

    `nodes`: maps each host to its facts.

    This function does not compare the libraries of the nodes, because they are compared before a run starts.
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
    """Return a fact as text. For a list of GPUs, the text has the names of the models and the number of GPUs."""
    if not isinstance(value, list):
        return str(value)
    models = ", ".join(sorted({str(gpu.get("name")) for gpu in value}))
    return f"{models} ({len(value)})"
