"""Read why Kubernetes ended or did not start a pod: events and descriptions of pods.

The commands `kubectl get events` and `kubectl describe pod` print these events and descriptions.
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
_NODE_SHUT_DOWN = MessageKind(
    "node-shut-down",
    Role.CAUSE,
    "the node of a pod<, {pod},> was shut down, so the kubelet ended the pod: the cloud took the node away (spot or "
    "preemptible), or somebody drained or restarted it",
    0.85,
    "look at the cloud's record of this node; on spot nodes, save checkpoints often and let the operator restart pods",
    "kubectl describe node NODE; kubectl get events --field-selector involvedObject.kind=Node",
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
_MEMORY = replace(
    _ends.HOST_MEMORY,
    what="a container used more memory than its limit",
    step="raise the container's memory limit, or lower the number of data-loader workers",
    command="kubectl describe pod POD",
)
_EARLIER_MEMORY = replace(_MEMORY, advisory=True)  # of a container that runs again
_SIGNS = (
    (r"Failed to pull image \"(?P<image>[^\"]{1,500})\": (?P<reason>.*)", _NO_IMAGE),
    (
        r"(?P<reason>\b0/\d+ nodes are (?:un)?available: .*?|no nodes available to schedule pods)\.?"
        r"(?: preemption: .*)?$",
        _NO_NODE,
    ),
    (r"(?P<reason>[Tt]he node was low on resource: [\w-]+)", _EVICTED),
    (r"Pod was terminated in response to imminent node shutdown", _NODE_SHUT_DOWN),
    (r"(?P<reason>[Tt]he node had condition: \[\w+\])", _EVICTED),
    (
        r"(?P<reason>(?:Pod|Container) .{0,100}(?:storage (?:usage|limit).{0,40}exceed|exceeded its local ephemeral "
        r"storage limit).*|Usage of EmptyDir volume .{1,100} exceeds.*)",
        _EVICTED,
    ),
    (r"(?P<reason>Preempted (?:by|in order to admit) .*)", _EVICTED),
    (
        r"\bReason:\s+OOMKilled|\bOOMKilled\b.*\bexit code:? 137",
        _MEMORY,
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
_ASKED = re.compile(  # the command before its output, unless it names several pods
    r"\bkubectl .{0,200}?\bpods?[ /](?:-n \S{1,100} )?(?P<pod>[a-z0-9][\w.-]{0,252})(?! {1,4}[a-z0-9])(?![\w.,-])"
)
_ROW = re.compile(r"^(?P<pod>[a-z0-9][a-z0-9.-]{0,252})\s{1,40}(?:Failed|\d{1,3}/\d{1,3})\s")  # of `kubectl get pods`
_NAME = re.compile(r"^Name:\s{1,40}(?P<pod>[a-z0-9][a-z0-9.-]{0,252})\s*$")  # the first line of a description
_ASSIGNED = re.compile(r"Successfully assigned (?:[\w.-]{1,253}/)?(?P<pod>[\w.-]{1,253}) to ")
_PULLED = re.compile(
    r"Successfully pulled image \"(?P<image>[^\"]{1,500})\"|"
    r"Container image \"(?P<image_2>[^\"]{1,500})\" already present on machine"
)
_STARTED = re.compile(r"(?:Started|Created) container\b|Container (?:started|created)\b")
_GOES_ON = re.compile(
    r"^(?:\S{1,80}\s{1,40})?(?P<pod>[a-z0-9][\w.-]{0,252})\s{1,40}\d{1,3}/\d{1,3}\s{1,40}"
    r"(?:Running|Completed|Succeeded)\s"
)  # `kubectl get pods`
_STATE = re.compile(r"^\s*(?P<last>Last )?State:\s{1,40}(?P<state>\w{1,40})")
_LONGEST_STATE = 6  # lines from a container's last state to the reason for its end
_LONGEST_DESCRIPTION = 300  # lines
_MOST_KEPT = 4_000


class PodEvents(SignFormat):
    """Yields one event for each line. An event that the cluster reports names its pod.

    A message that a pod lacks a node or an image is not a failure if the text also says that the pod got one, or that
    its containers started. A message without a pod's name may be about any pod, because `kubectl describe pod` names
    its pod only at the beginning. If a container runs now, an earlier end of this container is not a failure.
    """

    hints = (
        "nodes are available: ",
        "nodes are unavailable: ",
        "no nodes available to schedule",
        "Successfully assigned",
        "Failed to pull image",
        "Successfully pulled image",
        "already present on machine",
        "Started container",
        "Created container",
        "Container started",
        "Container created",
        "Name: ",
        "State: ",
        "low on resource",
        "had condition",
        "torage usage",
        "torage limit",
        "EmptyDir",
        "Preempted",
        " Running ",
        " Completed ",
        " Succeeded ",
        "OOMKilled",
        "NodeNotReady",
        "Node is not ready",
        "imminent node shutdown",
    )
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)

    def __init__(self) -> None:
        """Start without a pod."""
        self._waiting: list[Event] = []
        self._placed: set[str | None] = set()  # pods with a node; None is a pod without a name
        self._pulled: set[tuple[str | None, str]] = set()  # a pod, and an image that it got
        self._went_on: set[str | None] = set()  # pods that run or completed
        self._described: tuple[int, str] | None = None  # the line and the pod of the last description
        self._state = ""  # the present state of the container that is described
        self._last_state = 0  # the line with the last state of a container that runs now

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the events of one line, except those of pods without a node or image."""
        if (found := _NAME.match(line.raw)) is not None:
            self._described = (line.number, found["pod"])
            return
        if (state := _STATE.match(line.raw)) is not None:
            if state["last"] is None:
                self._state = state["state"]
            self._last_state = line.number if state["last"] and self._state == "Running" else 0
            return
        if (listed := _GOES_ON.match(line.raw)) is not None:
            if len(self._went_on) < _MOST_KEPT:
                self._went_on.add(listed["pod"])
            return
        pod = self._pod(line)
        self._read_success(line.text, pod)
        for event in super().read(line):
            if event.kind is _MEMORY and self._last_state and line.number - self._last_state <= _LONGEST_STATE:
                yield replace(event, kind=_EARLIER_MEMORY)
            elif event.kind not in (_NO_NODE, _NO_IMAGE, _NODE_SHUT_DOWN):
                yield event
            elif len(self._waiting) < _MOST_KEPT:
                self._waiting.append(event if pod is None else replace(event, facts={**event.facts, "pod": pod}))

    def finish(self) -> Iterator[Event]:
        """Yield the events of pods that never got a node or image, or that lost their node and did not restart."""
        yield from (event for event in self._waiting if not self._is_solved(event))

    def _pod(self, line: EventLine) -> str | None:
        """Return the name of the pod.

        The name is in the line, in the command before the line, or in the description around the line.
        """
        found = _POD.search(line.raw) or _ROW.match(line.raw) or _ASKED.search(line.before)
        if found is not None:
            return found["pod"]
        if self._described is None or line.number - self._described[0] > _LONGEST_DESCRIPTION:
            return None
        return self._described[1]

    def _read_success(self, text: str, pod: str | None) -> None:
        """Record a success of a pod: it got a node, it got an image, or its containers started."""
        if len(self._placed) >= _MOST_KEPT or len(self._pulled) >= _MOST_KEPT:
            return
        if (assigned := _ASSIGNED.search(text)) is not None:
            self._placed.add(assigned["pod"])
        elif (pulled := _PULLED.search(text)) is not None:
            self._placed.add(pod)
            self._pulled.add((pod, pulled["image"] or pulled["image_2"]))
        elif _STARTED.search(text):
            self._placed.add(pod)
            # another container of the pod may lack its image, but then the kubelet repeats that it cannot pull it
            self._waiting = [event for event in self._waiting if not _is_over(event, pod)]

    def _is_solved(self, event: Event) -> bool:
        """Whether the problem in the event was solved: the pod got its node or its image, or it ran."""
        pod = event.facts.get("pod")
        if pod is not None and pod in self._went_on:
            return True
        if event.kind is _NODE_SHUT_DOWN:
            return False
        if event.kind is _NO_IMAGE:
            pods = {of for of, image in self._pulled if image == event.facts["image"]}
        else:
            pods = self._placed
        return bool(pods) if pod is None else bool(pods & {pod, None})

    def completed(self, event: Event, line: EventLine) -> Event:
        """Add the pod to the event if the line names the pod.

        For a node that shuts down, the command before the line or the description around the line may also name the
        pod.
        """
        named = _POD.search(line.raw) or _ROW.match(line.raw)
        pod = self._pod(line) if named is not None or event.kind is _NODE_SHUT_DOWN else None
        return event if pod is None else replace(event, facts={**event.facts, "pod": pod})


FORMAT = PodEvents


def _is_over(event: Event, started: str | None) -> bool:
    """Whether the problem of the event is over, because the pod `started` has started. A pod without a name is None."""
    pod = event.facts.get("pod")
    if event.kind is _NODE_SHUT_DOWN:
        return pod is not None and pod == started
    return event.kind is _NO_IMAGE and (pod is None or started is None or pod == started)
