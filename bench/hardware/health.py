"""What is wrong with a machine's links, by rules on the facts of a node; and what could not be told.

Each rule is a small function from a node to findings. A fact that is not known makes no finding of what is wrong: what
depends on it is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.core.inventory import from_facts
from bench.hardware import _health_links, _health_system
from bench.hardware._health_rule import SEVERITIES, HealthFinding, HealthNode

__all__ = ["SEVERITIES", "HealthFinding", "HealthNode", "findings", "findings_between"]


def findings(
    node: Mapping[str, Any], software: Mapping[str, str] | None = None, instance: str | None = None
) -> tuple[HealthFinding, ...]:
    """Everything that the rules say of one node, what is wrong first.

    `node`: what `probes.machine.facts` tells; `software`: versions of its libraries by their distribution's name;
    `instance`: the type that it is said to be.
    """
    of = HealthNode(node, from_facts(node), software or {}, instance)
    rules = (*_health_links.RULES, *_health_system.RULES)
    found = [finding for rule in rules for finding in rule(of)]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def findings_between(nodes: Mapping[str, Mapping[str, Any]]) -> tuple[HealthFinding, ...]:
    """What differs between the nodes of a cluster, by host; their libraries are compared before a run starts."""
    found = []
    for what, key in (("GPU driver", "gpu_driver"), ("GPUs", "gpus")):
        told: dict[str, list[str]] = {}
        for host, node in nodes.items():
            value = node.get(key)
            text = (
                ", ".join(sorted({str(g.get("name")) for g in value})) + f" ({len(value)})"
                if (isinstance(value, list))
                else str(value)
            )
            told.setdefault(text, []).append(host)
        if len(told) > 1:
            evidence = "; ".join(f"{', '.join(hosts)}: {value}" for value, hosts in told.items())
            found.append(
                HealthFinding(
                    "unlike_nodes",
                    "doubtful",
                    f"the nodes differ in their {what}",
                    evidence,
                    "the slowest of them sets the pace: install the same on all",
                )
            )
    return tuple(found)
