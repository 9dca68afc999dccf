"""How long a collective or a copy will take on given links: an interval, a middle where one is known, and what it rests on.

The one engine is core/fabric.py with core/schedules.py: messages of an algorithm share links max-min fairly. Evidence
says only which part of a link's rate, and how long a step, machines of the same kind reached: it scales links, never
patterns, so that half a link is felt exactly by the patterns whose messages cross it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.core.fabric import NodeLinks

BASES = ("measured", "imported", "published", "bound")  # what a figure rests on, the surest first
CONFIDENCE = 0.9  # of every interval: as often should a measurement lie inside


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of one operation. `low_s` to `high_s` is an interval of CONFIDENCE; `middle_s` None: no point is known.

    `basis`: one of BASES. `rests_on`: the sources, in words, with their dates. `algorithm`: as core/schedules.py calls
    it; "" for a copy. `bottleneck`: the link that is full, in words ("NVLink port", "NIC", "PCIe link", "latency").
    `link_class`: see `link_class`. `pool`: a word for the evidence whose error is shared: in the ratio of two predictions
    of one pool it cancels. `spread`: the standard deviation of ln(seconds) that is not shared with `pool`.
    `verified`: were all figures of links and of evidence read in a source? `ideal_s`: what the links alone would take.
    """

    low_s: float
    middle_s: float | None
    high_s: float
    basis: str
    rests_on: tuple[str, ...]
    algorithm: str
    bottleneck: str
    link_class: str
    pool: str
    spread: float
    verified: bool
    ideal_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """One measured row as evidence: so long did one operation take on such links.

    `system`: whose machine; rows of one system are left out together. `basis`: "measured" (the user's own runs),
    "imported" or "published". `pattern`: a collective, or "h2d", "d2h" (copies; payload_bytes is then their size).
    """

    system: str
    basis: str
    source: str
    pattern: str
    links: NodeLinks
    num_nodes: int
    ranks_per_node: int
    payload_bytes: int
    seconds: float
    reduces: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known. An empty one leaves bounds and typical efficiencies."""

    points: tuple[Point, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __add__(self, other: Evidence) -> Evidence:
        """Both."""
        return Evidence(self.points + other.points, self.notes + other.notes)

    def without(self, system: str) -> Evidence:
        """All but one system's own rows."""
        return Evidence(tuple(each for each in self.points if each.system != system), self.notes)


def published() -> Evidence:
    """What hardware/reference.yaml tells (published measurements; those with a known defect are left out)."""
    raise NotImplementedError


def of_run(headers: Sequence[object], summaries: Sequence[object], system: str) -> Evidence:
    """What a run of this suite, or an imported log, measured: its rows on GPUs with right data and known links."""
    raise NotImplementedError


def link_class(links: NodeLinks, num_nodes: int, ranks_per_node: int) -> str:
    """The class of hardware that decides: nvswitch-nvls, nvswitch, nvlink-mesh, nvlink-pairs, pcie-p2p, no-p2p, memory,
    or network-<kind of NIC> when messages cross the network."""
    raise NotImplementedError


def collective(
    pattern: str,
    payload_bytes: float,
    links: NodeLinks,
    num_nodes: int,
    ranks_per_node: int,
    evidence: Evidence,
) -> Prediction:
    """One collective among num_nodes x ranks_per_node GPUs: the fastest of its algorithms.

    `payload_bytes`: S of docs/metrics.md (the larger of one rank's buffers). `pattern`: a collective of
    core/schedules.py, or "sendrecv" (each rank to the next, around). UsageError: unknown pattern, too many ranks per
    node, a rate that is unknown.
    """
    return curve(pattern, (payload_bytes,), links, num_nodes, ranks_per_node, evidence)[payload_bytes]


def curve(
    pattern: str,
    sizes: Sequence[float],
    links: NodeLinks,
    num_nodes: int,
    ranks_per_node: int,
    evidence: Evidence,
    algorithm: str | None = None,
) -> Mapping[float, Prediction]:
    """`collective` for many sizes at once (the schedule is solved once); `algorithm`: only that one."""
    raise NotImplementedError


def copy(direction: str, num_bytes: float, links: NodeLinks, evidence: Evidence, gpus_at_once: int = 1) -> Prediction:
    """A copy between host memory and one GPU, "h2d" or "d2h", while as many of the node's GPUs copy as well."""
    raise NotImplementedError
