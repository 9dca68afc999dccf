"""Search the mesh of a workload that fits a machine's memory and trains fastest: tensor, pipeline, context and expert
parallelism, and the strategy of the data-parallel ranks.

Every mesh trains as many samples in a step as the workload's own, in micro-batches of the same size. All meshes that
fit are ranked by a rough time, in which every link reaches a typical share of its rate. The best of them and the
workload's own mesh are then predicted as `select` predicts them, and the fastest is chosen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import inf
from typing import Any

from bench.core.errors import UsageError
from bench.core.links import NVLINK_PEERS, NodeLinks
from bench.hardware import catalogue
from bench.hardware.catalogue import GpuModel, Instance
from bench.predict.algorithms import same_times
from bench.predict.candidate import LOST_TO_OVERLAP, SelectionQuestion, predicted_exchanges
from bench.predict.compute import compute
from bench.predict.draws import Draws
from bench.predict.layout import CommGroup, Communication, ParallelLayout, bus_factor, layout
from bench.predict.memory import MemoryNeed, OutOfMemoryError, memory_need, refused
from bench.predict.messages import Refusal
from bench.predict.step import step
from bench.predict.training import communications
from bench.predict.workload import STRATEGIES, Mesh, Workload

MOST_PIPELINE = 16  # stages
MOST_CONTEXT, LEAST_TOKENS = 16, 4096  # ranks that divide the tokens of a sample, and tokens of a rank
_PREDICTED, _CLOSE = 2, 1.1  # so many meshes are predicted, of those whose rough time is not longer by this factor
_TYPICAL, _START_S, _HOP_S = 0.75, 10e-6, 3e-6  # rough: share of a link's rate, start of a call, latency of a message
_HOST_SHARE = 0.4  # the same for GPUs without peer access, which copy through the host


@dataclass(slots=True)
class _Laid:
    """One mesh on a number of GPUs, with its memory. Its communication is computed when it is first needed."""

    layout: ParallelLayout
    memory: MemoryNeed
    known_calls: tuple[Communication, ...] | None = None
    known_traffic: tuple[_Traffic, ...] | None = None

    @property
    def calls(self) -> tuple[Communication, ...]:
        """All communication of a step."""
        if self.known_calls is None:
            self.known_calls = communications(self.layout)
        return self.known_calls

    @property
    def traffic(self) -> tuple[_Traffic, ...]:
        """The same, summed."""
        if self.known_traffic is None:
            self.known_traffic = _traffic(self.calls)
        return self.known_traffic

    @property
    def stretch(self) -> float:
        """The passes and the pipeline's bubble / the passes of a mesh without pipeline."""
        mesh, micro = self.layout.workload.mesh, self.layout.workload.accumulation
        return _unevenness(self.layout) * (1 + (mesh.pipeline - 1) / mesh.interleave / micro)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """All calls of one collective in one group that the same computation can hide (`Communication.when`)."""

    collective: str
    group: CommGroup
    when: str
    calls: int
    payload_bytes: float


class MeshSearch:
    """The searches of one question.

    Machines of the same shape share layouts, and machines with the same GPUs and links their result.
    """

    def __init__(self, question: SelectionQuestion) -> None:
        self._question = question
        self._laid: dict[tuple[int, int], list[_Laid]] = {}
        self._found: dict[Hashable, Workload | UsageError] = {}
        self._middle = Draws(1)  # one draw of each unknown: its middle

    def best(self, instance: Instance, num_nodes: int) -> Workload:
        """Return the workload with the mesh that is fastest on a machine.

        Meshes whose estimated memory exceeds the GPU's are chosen only if no other mesh is left.
        Raises UsageError if no mesh can run there.
        """
        per_node = self._question.gpus_per_node or instance.gpus
        key = (instance.gpu, same_times(instance.links), per_node, num_nodes)
        if key not in self._found:
            try:
                self._found[key] = self._search(instance, num_nodes, per_node)
            except UsageError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, UsageError):
            raise found
        return found

    def _search(self, instance: Instance, num_nodes: int, per_node: int) -> Workload:
        gpu, every, links = catalogue.gpu(instance.gpu), self._layouts(num_nodes, per_node), instance.links
        if not every:
            layout(self._question.workload, num_nodes, per_node)  # raises the error of the workload's own mesh
            raise UsageError.of(Refusal.NO_MESH, num_gpus=num_nodes * per_node)
        fitting = _fitting(every, gpu)
        passes_s = self._passes_s(fitting[0].layout, gpu)
        ranked = self._ranked(fitting, float(passes_s[0]), links)
        if len(ranked) == 1:
            return ranked[0].layout.workload
        return min(ranked, key=lambda each: self._predicted_s(each, passes_s, links)).layout.workload

    def _ranked(self, fitting: list[_Laid], passes_s: float, links: NodeLinks) -> list[_Laid]:
        """Return the meshes with the best rough times, and the workload's own mesh if it is not far behind."""
        rough: list[tuple[float, int, _Laid]] = []
        least = inf
        for index, each in sorted(enumerate(fitting), key=lambda pair: pair[1].stretch):
            if each.stretch * passes_s > least * _CLOSE:
                break  # too slow even without any communication
            seconds = _rough_s(each, passes_s, links)
            least = min(least, seconds)
            rough.append((seconds, index, each))
        close = sorted(one for one in rough if one[0] <= least * _CLOSE)
        own = self._question.workload
        is_own = [one for one in close[_PREDICTED:] if one[2].layout.workload is own]
        return [one[2] for one in (*close[:_PREDICTED], *is_own)]

    def _layouts(self, num_nodes: int, per_node: int) -> list[_Laid]:
        """Return all meshes on a number of GPUs, the workload's own first if it is possible there."""
        if (num_nodes, per_node) not in self._laid:
            found = []
            for workload in meshes(self._question.workload, num_nodes, per_node):
                try:
                    each = layout(workload, num_nodes, per_node)
                    found.append(_Laid(each, memory_need(each)))
                except UsageError:
                    continue  # this mesh is impossible for the model or for the number of GPUs
            self._laid[num_nodes, per_node] = found
        return self._laid[num_nodes, per_node]

    def _passes_s(self, found: ParallelLayout, gpu: GpuModel) -> Any:
        """Return the seconds of all passes. They are the same in every mesh whose stages have equally many layers."""
        return compute(found, gpu, self._middle, self._question.rates).passes_s / _unevenness(found)

    def _predicted_s(self, each: _Laid, passes_s: Any, links: NodeLinks) -> float:
        """Return the predicted seconds of a step without the optimizer's update and the feed, which meshes hardly
        change.
        """
        found, calls = each.layout, each.calls
        predicted = predicted_exchanges(found, links, self._question.evidence, calls)
        seconds = {id(call): one.centre_s + 0.0 * passes_s for call, one in predicted}
        lost, none, peers = LOST_TO_OVERLAP[1] + 0.0 * passes_s, 0.0 * passes_s, links.peer not in NVLINK_PEERS
        passes_s = passes_s * _unevenness(found)
        times = step(found, passes_s, none, lambda call: seconds[id(call)], calls, lost, none, shares_link=peers)
        return float(times.total_s[0])


def meshes(workload: Workload, num_nodes: int, gpus_per_node: int) -> Iterator[Workload]:
    """Yield the workload with every mesh and strategy that may suit a number of GPUs, its own first.

    Sizes are powers of two; tensor-parallel ranks stay on one node. A step keeps its samples per GPU, its micro-batch,
    its recomputation and its software. PowerSGD and other compression keep plain data parallelism.
    """
    yield workload
    model, own = workload.model, workload.mesh
    gpus = num_nodes * gpus_per_node
    per_gpu = Fraction(workload.accumulation, own.tensor * own.pipeline * own.context)  # micro-batches per GPU and step
    strategies = STRATEGIES if workload.compression == "none" else ("ddp",)
    sizes = product(
        _powers(min(gpus_per_node, model.heads or 1)),
        _powers(min(MOST_PIPELINE, model.layers or 1)),
        _powers(min(MOST_CONTEXT, (model.tokens or 0) // LEAST_TOKENS)),
        _powers(model.experts),
    )
    for tensor, pipeline, context, expert in sizes:
        parts = tensor * pipeline * context
        micro = per_gpu * parts
        divides = not gpus % parts and not (gpus // (tensor * pipeline)) % expert and micro.denominator == 1
        whole = not (model.kv_heads or tensor) % tensor and not (model.layers or pipeline) % pipeline
        if not divides or not whole or micro < pipeline:
            continue
        for strategy in strategies:
            if (strategy == "zero2" and micro == 1) or (gpus // (tensor * pipeline) == 1 and strategy != "ddp"):
                continue
            mesh = Mesh(tensor=tensor, pipeline=pipeline, context=context, expert=expert, sequence=own.sequence)
            if (mesh, strategy) == (own, workload.strategy):
                continue
            # A new mesh does not make the same program faster.
            software = workload.software or ("fused" if workload.fused else "pytorch")
            try:
                yield replace(workload, mesh=mesh, strategy=strategy, accumulation=int(micro), software=software)
            except UsageError:
                continue  # such as heads that the ranks do not divide


def _powers(most: int) -> list[int]:
    """Return the powers of two up to `most`, at least 1."""
    return [1 << power for power in range(max(most, 1).bit_length())]


def _fitting(every: list[_Laid], gpu: GpuModel) -> list[_Laid]:
    """Return the meshes whose estimated memory fits, else those that no lower bound excludes.

    Raises OutOfMemoryError if every mesh is excluded.
    """
    if gpu.memory_bytes is None:
        return every
    fitting = [each for each in every if each.memory.total <= gpu.memory_bytes]
    possible = fitting or [each for each in every if not refused(each.memory, gpu.memory_bytes)]
    if not possible:
        raise OutOfMemoryError(
            min((each.memory for each in every), key=lambda one: one.least), gpu.memory_bytes, gpu.name
        )
    return possible


def _unevenness(found: ParallelLayout) -> float:
    """Return the layers of the largest stage / the layers of a mean stage."""
    layers = found.workload.model.layers
    return found.stage_layers * found.workload.mesh.pipeline / layers if layers else 1.0


def _traffic(calls: Sequence[Communication]) -> tuple[_Traffic, ...]:
    totals: dict[tuple[str, CommGroup, str], list[float]] = {}
    for each in calls:
        total = totals.setdefault((each.collective, each.group, each.when), [0.0, 0.0])
        total[0] += each.calls
        total[1] += each.calls * each.payload_bytes
    return tuple(_Traffic(*key, int(number), size) for key, (number, size) in totals.items())


def _rough_s(each: _Laid, passes_s: float, links: NodeLinks) -> float:
    """Return the seconds of a step if every link reaches a typical share of its rate, and if the backward pass hides
    all buckets and both passes hide all layers' weights, as far as they last.
    """
    workload, passes_s = each.layout.workload, passes_s * _unevenness(each.layout)
    of: dict[str, float] = {}
    for one in each.traffic:
        of[one.when] = of.get(one.when, 0.0) + _rough_calls_s(one, links)
    waits = of.get("pass", 0.0) + of.get("hop", 0.0)
    bubble = (passes_s + waits) * (workload.mesh.pipeline - 1) / workload.mesh.interleave / workload.accumulation
    hiding = passes_s if workload.strategy == "zero2" else passes_s / workload.accumulation
    hidden = [of.get("bucket", 0.0), of.get("unit", 0.0)]
    by = [hiding * 2 / 3 if workload.overlap else 0.0, passes_s if workload.overlap else 0.0]
    exposed = sum(max(one - most, 0.0) for one, most in zip(hidden, by, strict=True))
    return passes_s + bubble + waits + of.get("ends", 0.0) + of.get("after", 0.0) + exposed


def _rough_calls_s(each: _Traffic, links: NodeLinks) -> float:
    group, size = each.group, each.payload_bytes
    start_s = each.calls * (_START_S + _HOP_S * (group.size - 1))
    sent = size * bus_factor(each.collective, group.size)
    peer, share = _peer_rate(links)
    inside_s = sent / (peer * share) if group.per_node > 1 else 0.0
    if group.num_nodes == 1:
        return start_s + inside_s
    if each.collective == "alltoall":  # all ranks of a node send what is for other nodes
        sent = size * group.per_node * (group.size - group.per_node) / group.size
    nics = (links.num_nics or 1) / group.side_by_side
    return start_s + max(sent / ((links.nic_bytes_per_s or 1.0) * nics * _TYPICAL), inside_s)


def _peer_rate(links: NodeLinks) -> tuple[float, float]:
    """Return the bytes per second of one GPU's links to its node, and the share that a collective reaches."""
    if links.peer in NVLINK_PEERS and links.nvlink_bytes_per_s:
        return links.nvlink_bytes_per_s, _TYPICAL
    rate = links.pcie_bytes_per_s or links.memory_bytes_per_s or 1.0
    return rate, _HOST_SHARE if links.peer == "host" else _TYPICAL
