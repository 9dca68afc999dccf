"""Read why Kubernetes ended a pod: events and descriptions of pods (`kubectl get events`, `kubectl describe pod`)."""

from __future__ import annotations

import re
from dataclasses import replace

from bench.logs.events import _ends
from bench.logs.failure_events import Event, EventLine, MessageKind, Role, Sign, SignFormat

_EVICTED = MessageKind(
    "pod-evicted",
    Role.CAUSE,
    "Kubernetes evicted a pod<, {pod}>: {reason}",
    0.9,
    "request as much of this resource as the pod uses, and check what else runs on the node",
    "kubectl describe pod POD; kubectl describe node NODE",
)
_SIGNS = (
    (r"(?P<reason>[Tt]he node was low on resource: [\w-]+)", _EVICTED),
    (r"(?P<reason>[Tt]he node had condition: \[\w+\])", _EVICTED),
    (
        r"(?P<reason>(?:Pod|Container) .{0,100}(?:storage (?:usage|limit).{0,40}exceed|exceeded its local ephemeral "
        r"storage limit).*|Usage of EmptyDir volume .{1,100} exceeds.*)",
        _EVICTED,
    ),
    (r"(?P<reason>Preempted (?:by|in order to admit) .*)", _EVICTED),
    (
        r"\bReason:\s+OOMKilled|\bOOMKilled\b.*\bexit code:? 137",
        replace(
            _ends.HOST_MEMORY,
            what="a container used more memory than its limit",
            step="raise the container's memory limit, or lower the number of data-loader workers",
            command="kubectl describe pod POD",
        ),
    ),
    (
        r"(?:\bNodeNotReady\b|Node is not ready)",
        replace(
            _ends.NODE_LOST,
            what="Kubernetes lost a node: the node went down or the network failed",
            command="kubectl describe node NODE",
            advisory=True,  # nodes also print this when they start or are upgraded
        ),
    ),
)
_POD = re.compile(r"\bpod/(?P<pod>[\w.-]{1,253})")


class PodEvents(SignFormat):
    """Yields one event for each line. An event of the cluster names its pod."""

    hints = (
        "low on resource",
        "had condition",
        "torage usage",
        "torage limit",
        "EmptyDir",
        "Preempted",
        "OOMKilled",
        "NodeNotReady",
        "Node is not ready",
    )
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)

    def completed(self, event: Event, line: EventLine) -> Event:
        """Add the pod that the line names."""
        pod = _POD.search(line.raw)
        return event if pod is None else replace(event, facts={**event.facts, "pod": pod["pod"]})


FORMAT = PodEvents
