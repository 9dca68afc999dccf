"""Search for the mesh that fits in a machine's memory and trains a workload fastest.

A mesh consists of tensor, pipeline, context and expert parallelism, and the strategy of the data-parallel ranks.

Every mesh has the same number of samples per step and the same size of micro-batches as the workload's own mesh. All
meshes that fit are ranked by a rough time, in which every link reaches a typical share of its rate. The search then
predicts the step of the best meshes and of the workload's own mesh, in the same way as `select`. It chooses the fastest
mesh.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

from bench.core.errors import UsageError
from bench.core.links import NVLINK_PEERS, NodeLinks
from bench.hardware import catalogue
from bench.hardware.catalogue import GpuModel, Instance
from bench.predict.algorithms import same_times
from bench.predict.candidate import LOST_TO_OVERLAP, SelectionQuestion, centre_seconds
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
_PREDICTED, _CLOSE = 2, 1.1  # number of meshes to predict, and limit of their rough time / the shortest rough time
_TYPICAL, _START_S, _HOP_S = 0.75, 10e-6, 3e-6  # rough: share of a link's rate, start of a call, latency of a message
_WHEN = ("pass", "hop", "bucket", "unit", "ends", "after")  # values of Communication.when
_HOST_SHARE = 0.4  # like _TYPICAL, but for GPUs without peer access, which copy through the host


@dataclass(frozen=True, slots=True)
class _Laid:
    """One mesh on a given number of GPUs, with its memory and all communication calls of a step."""

    layout: ParallelLayout
    memory: MemoryNeed
    calls: tuple[Communication, ...]


class _Meshes:
    """All meshes that are possible on a number of GPUs, and the arrays from which their rough times are computed.

    Calls of a mesh are combined if they have the same collective, group and `Communication.when`. Each array has one
    element for each combined call.

    `_starts_s`: the start-up times and latencies of the messages, in seconds.
    `_inside`, `_outside`: the bytes through a rank's links inside its node, and through its NIC.
    `_beside`: the number of groups that share the NICs.
    `_crosses`: whether the group has several nodes.
    `_place`: a number that identifies a mesh and a value of `Communication.when`.
    """

    def __init__(self, every: Sequence[_Laid]) -> None:
        import numpy as np

        self.every = every
        self._memory_totals = [each.memory.total for each in every]
        rows = [
            (at * len(_WHEN) + _WHEN.index(when), *row) for at, one in enumerate(every) for when, *row in _traffic(one)
        ]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 6).T
        self._place = columns[0].astype(np.int64)
        self._starts_s, self._inside, self._outside, self._beside, self._crosses = columns[1:]
        workloads = [one.layout.workload for one in every]
        self._uneven = np.array([_unevenness(one.layout) for one in every])
        self._micro = np.array([float(each.accumulation) for each in workloads])
        self._later = np.array([float(each.mesh.pipeline - 1) for each in workloads])
        self._parts = np.array([float(each.mesh.interleave) for each in workloads])
        self._overlap = np.array([each.overlap for each in workloads])
        self._by_all = np.array([each.strategy == "zero2" for each in workloads])

    def fitting(self, gpu: GpuModel) -> list[int]:
        """Return the meshes whose estimated memory fits. If no estimate fits, return the meshes whose lower bound fits.

        Raises OutOfMemoryError if no lower bound fits.
        """
        if gpu.memory_bytes is None:
            return [*range(len(self.every))]
        fitting = [at for at, total in enumerate(self._memory_totals) if total <= gpu.memory_bytes]
        possible = fitting or [at for at, one in enumerate(self.every) if not refused(one.memory, gpu.memory_bytes)]
        if not possible:
            smallest = min((each.memory for each in self.every), key=lambda one: one.least)
            raise OutOfMemoryError(smallest, gpu.memory_bytes, gpu.name)
        return possible

    def rough_s(self, passes_s: float, links: NodeLinks) -> Any:
        """Return a rough step time for each mesh, in seconds.

        Every link is assumed to reach a typical share of its rate. The exchange of buckets can overlap only with the
        backward pass. The exchange of weights can overlap with both passes.
        """
        import numpy as np

        peer, share = _peer_rate(links)
        inside_s = self._inside / (peer * share)
        nics = (links.num_nics or 1) / self._beside
        outside_s = self._outside / ((links.nic_bytes_per_s or 1.0) * nics * _TYPICAL)
        seconds = self._starts_s + np.where(self._crosses > 0, np.maximum(outside_s, inside_s), inside_s)
        summed = np.bincount(self._place, weights=seconds, minlength=len(self.every) * len(_WHEN))
        of = dict(zip(_WHEN, summed.reshape(-1, len(_WHEN)).T, strict=True))
        passes = passes_s * self._uneven
        waits = of["pass"] + of["hop"]
        bubble = (passes + waits) * self._later / self._parts / self._micro
        hiding = np.where(self._by_all, passes, passes / self._micro)
        buckets = np.maximum(of["bucket"] - np.where(self._overlap, hiding * 2 / 3, 0.0), 0.0)
        units = np.maximum(of["unit"] - np.where(self._overlap, passes, 0.0), 0.0)
        return passes + bubble + waits + of["ends"] + of["after"] + (buckets + units)


class MeshSearch:
    """A search for the fastest mesh on each machine, for one question of `select`.

    Machines with the same numbers of nodes and GPUs share layouts. Machines with the same GPUs and links share results.
    """

    def __init__(self, question: SelectionQuestion) -> None:
        self._question = question
        self._laid: dict[tuple[int, int], _Meshes] = {}
        self._found: dict[Hashable, Workload | UsageError] = {}
        self._passes: dict[tuple[str, int], Any] = {}
        self._middle = Draws(1)  # one draw of each unknown: its middle

    def best(self, instance: Instance, num_nodes: int) -> Workload:
        """Return the workload with the mesh that is fastest on a machine.

        If the estimated memory of no mesh fits in the GPU's memory, the function considers the meshes whose lower bound
        fits. Raises UsageError if no mesh can run on this machine.
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
        gpu, laid, links = catalogue.gpu(instance.gpu), self._meshes(num_nodes, per_node), instance.links
        if not laid.every:
            communications(layout(self._question.workload, num_nodes, per_node))  # raises the error of its own mesh
            raise UsageError.of(Refusal.NO_MESH, num_gpus=num_nodes * per_node)
        fitting = laid.fitting(gpu)
        passes_s = self._passes_s(laid.every[fitting[0]].layout, gpu)
        ranked = self._ranked(laid, fitting, float(passes_s[0]), links)
        if len(ranked) == 1:
            return ranked[0].layout.workload
        return min(ranked, key=lambda each: self._predicted_s(each, passes_s, links)).layout.workload

    def _ranked(self, laid: _Meshes, fitting: Sequence[int], passes_s: float, links: NodeLinks) -> list[_Laid]:
        """Return the meshes with the best rough times. Add the workload's own mesh if its rough time is similar."""
        rough_s = laid.rough_s(passes_s, links).tolist()
        least = min(rough_s[index] for index in fitting)
        close = sorted((rough_s[index], index) for index in fitting if rough_s[index] <= least * _CLOSE)
        ranked = [laid.every[index] for _, index in close]
        own = self._question.workload
        return ranked[:_PREDICTED] + [one for one in ranked[_PREDICTED:] if one.layout.workload is own]

    def _meshes(self, num_nodes: int, per_node: int) -> _Meshes:
        """Return all meshes on a number of GPUs.

        The workload's own mesh comes first, if this number of GPUs allows it.
        """
        if (num_nodes, per_node) not in self._laid:
            found = []
            for workload in meshes(self._question.workload, num_nodes, per_node):
                try:
                    each = layout(workload, num_nodes, per_node)
                    found.append(_Laid(each, memory_need(each), communications(each)))
                except UsageError:
                    continue  # this mesh is impossible for the model or for the number of GPUs
            self._laid[num_nodes, per_node] = _Meshes(found)
        return self._laid[num_nodes, per_node]

    def _passes_s(self, found: ParallelLayout, gpu: GpuModel) -> Any:
        """Return the duration of all passes in seconds. All stages are assumed to have the same number of layers.

        This time is equal for all meshes.
        """
        key = gpu.name, id(found)  # `_laid` keeps the layouts
        if key not in self._passes:
            middle = compute(found, gpu, self._middle, self._question.rates)
            self._passes[key] = middle.passes_s / _unevenness(found)
        return self._passes[key]

    def _predicted_s(self, each: _Laid, passes_s: Any, links: NodeLinks) -> float:
        """Return the predicted duration of a step in seconds, without the optimizer's update and the feed.

        The times of the optimizer's update and of the feed depend little on the mesh.
        """
        found, calls = each.layout, each.calls
        lost, none, peers = LOST_TO_OVERLAP[1] + 0.0 * passes_s, 0.0 * passes_s, links.peer not in NVLINK_PEERS
        centres = centre_seconds(links, self._question.evidence, calls)
        seconds = {call: centre + none for call, centre in centres.items()}
        passes_s = passes_s * _unevenness(found)
        times = step(found, passes_s, none, lambda call: seconds[id(call)], calls, lost, none, shares_link=peers)
        return float(times.total_s[0])


def meshes(workload: Workload, num_nodes: int, gpus_per_node: int) -> Iterator[Workload]:
    """Yield the workload with each combination of mesh and strategy that may suit a number of GPUs.

    The first result is the workload with its own mesh.

    Sizes are powers of two, and tensor-parallel ranks stay on one node. The samples per GPU, the micro-batch size, the
    recomputation and the software stay unchanged. With compression, the strategy stays DDP.
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
            # The software stays the same, because an unknown software would depend on the strategy (`Workload.fused`).
            software = workload.software or ("fused" if workload.fused else "pytorch")
            try:
                yield replace(workload, mesh=mesh, strategy=strategy, accumulation=int(micro), software=software)
            except UsageError:
                continue  # such as heads that the ranks do not divide


def _powers(most: int) -> list[int]:
    """Return the powers of two up to `most`, at least 1."""
    return [1 << power for power in range(max(most, 1).bit_length())]


def _unevenness(found: ParallelLayout) -> float:
    """Return the number of layers of the largest stage, divided by the mean number of layers per stage."""
    layers = found.workload.model.layers
    return found.stage_layers * found.workload.mesh.pipeline / layers if layers else 1.0


def _traffic(each: _Laid) -> list[tuple[str, float, float, float, int, bool]]:
    """Return the rows of one mesh for the arrays of `_Meshes`.

    A row has `Communication.when`, and then one value for each array.
    """
    totals: dict[tuple[str, CommGroup, str], list[float]] = {}
    for call in each.calls:
        total = totals.setdefault((call.collective, call.group, call.when), [0.0, 0.0])
        total[0] += call.calls
        total[1] += call.calls * call.payload_bytes
    rows = []
    for (collective, group, when), (calls, size) in totals.items():
        start_s = int(calls) * (_START_S + _HOP_S * (group.size - 1))
        sent = outside = size * bus_factor(collective, group.size)
        if collective == "alltoall":  # all ranks of a node send data to other nodes
            outside = size * group.per_node * (group.size - group.per_node) / group.size
        inside = sent if group.per_node > 1 else 0.0
        rows.append((when, start_s, inside, outside, group.side_by_side, group.num_nodes > 1))
    return rows


def _peer_rate(links: NodeLinks) -> tuple[float, float]:
    """Return the rate of one GPU's links to its node, and the typical share of this rate in collectives.

    The rate is in bytes per second.
    """
    if links.peer in NVLINK_PEERS and links.nvlink_bytes_per_s:
        return links.nvlink_bytes_per_s, _TYPICAL
    rate = links.pcie_bytes_per_s or links.memory_bytes_per_s or 1.0
    return rate, _HOST_SHARE if links.peer == "host" else _TYPICAL
