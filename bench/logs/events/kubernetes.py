"""Read why Kubernetes ended or did not start a pod: events and descriptions of pods.

`kubectl get events` and `kubectl describe pod` print them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
_NO_NODE = MessageKind(
    "pod-not-scheduled",
    Role.CAUSE,
    "Kubernetes found no node for a pod<, {pod}>: {reason}",
    0.6,  # a pod of another job may wait while this job fails
    "free what the message names, or request less of it; if no node offers this resource, check its device plugin",
    "kubectl describe nodes | grep -A 12 'Allocated resources'",
)
_NO_IMAGE = MessageKind(
    "image-not-pulled",
    Role.CAUSE,
    "Kubernetes could not pull the image {image} of a pod<, {pod}>: {reason}",
    0.6,
    "correct the image's name or tag, or give the pod a secret for its registry",
    "kubectl describe pod POD",
)
_SIGNS = (
    (r"Failed to pull image \"(?P<image>[^\"]{1,500})\": (?P<reason>.*)", _NO_IMAGE),
    (
        r"(?P<reason>\b0/\d+ nodes are (?:un)?available: .*?|no nodes available to schedule pods)\.?"
        r"(?: preemption: .*)?$",
        _NO_NODE,
    ),
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
_ASSIGNED = re.compile(r"Successfully assigned (?:[\w.-]{1,253}/)?(?P<pod>[\w.-]{1,253}) to ")
_PULLED = re.compile(r"Successfully pulled image \"(?P<image>[^\"]{1,500})\"")
_MOST_KEPT = 4_000


class PodEvents(SignFormat):
    """Yields one event for each line. An event of the cluster names its pod.

    A pod without a node or image is no failure if the text also says that the pod got a node or the image.
    """

    hints = (
        "nodes are available: ",
        "nodes are unavailable: ",
        "no nodes available to schedule",
        "Successfully assigned",
        "Failed to pull image",
        "Successfully pulled image",
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

    def __init__(self) -> None:
        """Start without a pod."""
        self._waiting: list[Event] = []
        self._assigned: set[str] = set()
        self._pulled: set[str] = set()

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the events of one line, except those of pods without a node or image."""
        if (found := _ASSIGNED.search(line.text)) is not None and len(self._assigned) < _MOST_KEPT:
            self._assigned.add(found["pod"])
        if (found := _PULLED.search(line.text)) is not None and len(self._pulled) < _MOST_KEPT:
            self._pulled.add(found["image"])
        for event in super().read(line):
            if event.kind not in (_NO_NODE, _NO_IMAGE):
                yield event
            elif len(self._waiting) < _MOST_KEPT:
                self._waiting.append(event)

    def finish(self) -> Iterator[Event]:
        """Yield the events of pods that got no node or no image."""
        yield from (event for event in self._waiting if not self._is_solved(event))

    def _is_solved(self, event: Event) -> bool:
        """Whether the pod got its node or its image. `kubectl describe pod` does not name its pod in these events."""
        if event.kind is _NO_IMAGE:
            return event.facts["image"] in self._pulled
        pod = event.facts.get("pod")
        return bool(self._assigned) if pod is None else pod in self._assigned

    def completed(self, event: Event, line: EventLine) -> Event:
        """Add the pod that the line names."""
        pod = _POD.search(line.raw)
        return event if pod is None else replace(event, facts={**event.facts, "pod": pod["pod"]})


FORMAT = PodEvents
