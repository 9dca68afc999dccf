"""A training step as communication: which collective, how many bytes, among whom, how often, and what can hide it.

Volumes follow Rajbhandari et al., "ZeRO" (SC20, section 7: stages 1 and 2 send as much as plain data parallelism, stage
3 half as much again), Shoeybi et al., "Megatron-LM" (2019, section 3: two allreduces of the activations per layer and
pass), Narayanan et al. (SC21: pipelines), Lepikhin et al., "GShard" (ICLR 2021: two alltoalls per layer and pass),
Vogels et al., "PowerSGD" (NeurIPS 2019) and Li et al., "PyTorch Distributed" (VLDB 2020: buckets).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.core.units import format_bytes
from bench.predict.workload import Workload

# DistributedDataParallel begins with a small bucket, so that the exchange begins early.
FIRST_BUCKET_BYTES = 1 << 20
_MOST_BUCKETS = 20_000


@dataclass(frozen=True, slots=True)
class CommGroup:
    """Ranks that communicate with each other: `per_node` on each of `num_nodes` nodes.

    `side_by_side`: so many such groups share each node and send at the same time, so that they share its NICs.
    """

    name: str
    num_nodes: int
    per_node: int
    side_by_side: int

    @property
    def size(self) -> int:
        """How many ranks."""
        return self.num_nodes * self.per_node

    def __str__(self) -> str:
        where = f"{self.num_nodes} x {self.per_node} GPUs" if self.num_nodes > 1 else f"{self.per_node} GPUs of a node"
        return f"{self.name} ({where})"


@dataclass(frozen=True, slots=True)
class Communication:
    """One kind of call that every rank makes `calls` times a step.

    `payload_bytes`: S of docs/metrics.md of one call. `when`: "bucket" (gradients, as soon as the backward pass has
    them), "unit" (a layer's weights before it is needed or gradients after it: prefetched), "pass" (within forward and
    backward, nothing hides it), "hop" (to the next stage of a pipeline) or "after" (when all gradients are there).
    `forward`: how many of the calls are in the forward pass. `why`: the derivation of bytes and calls.
    """

    name: str
    collective: str
    payload_bytes: float
    group: CommGroup
    calls: int
    when: str
    why: str
    forward: int = 0

    @property
    def sent_bytes(self) -> float:
        """What busbw counts in a step: calls x S x bus factor; one rank's port carries it where no switch adds."""
        return self.calls * self.payload_bytes * bus_factor(self.collective, self.group.size)

    @property
    def switched_bytes(self) -> float:
        """What one rank's port carries in a step where the node's switch adds (NVLS): calls x S x (1 + 1/n).

        n: ranks of the group on a node. Each port has its whole buffer read and gets one part of the sum to spread.
        """
        return self.calls * self.payload_bytes * (1 + 1 / self.group.per_node)


def bus_factor(collective: str, size: int) -> float:
    """Bytes through one rank's port / payload, as docs/metrics.md has it (of reductions without a switch's help)."""
    others = (size - 1) / size
    return {"allreduce": 2 * others, "sendrecv": 1.0}.get(collective, others)


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """A workload on so many GPUs. `dense`, `experts`: parameters that one GPU works with, before ZeRO spreads them."""

    workload: Workload
    num_nodes: int
    gpus_per_node: int
    data: int
    dense: float
    experts: float

    @property
    def num_gpus(self) -> int:
        """All GPUs together."""
        return self.num_nodes * self.gpus_per_node

    @property
    def samples(self) -> int:
        """Of one step, all GPUs together."""
        return self.workload.batch * self.workload.accumulation * self.data

    @property
    def activation_bytes(self) -> float:
        """Of one micro-batch between two layers: batch x tokens x hidden in the type that is computed with."""
        model = self.workload.model
        return self.workload.batch * (model.tokens or 0) * (model.hidden or 0) * width(self.workload.compute)

    @property
    def stage_layers(self) -> int:
        """Layers of one stage of the pipeline."""
        return (self.workload.model.layers or 1) // self.workload.mesh.pipeline

    def group(self, name: str) -> CommGroup:
        """data, replicas, shard (ZeRO 3's), expert_data, tensor, pipeline, expert."""
        mesh = self.workload.mesh
        shard = mesh.shard or self.data
        size, stride = {
            "data": (self.data, mesh.tensor),
            "shard": (shard, mesh.tensor),
            "replicas": (self.data // shard, mesh.tensor * shard),
            "expert_data": (self.data // mesh.expert, mesh.tensor * mesh.expert),
            "tensor": (mesh.tensor, 1),
            "expert": (mesh.expert, mesh.tensor),
            "pipeline": (mesh.pipeline, self.num_gpus // mesh.pipeline),
        }[name]
        per_node = min(size, max(1, self.gpus_per_node // stride))
        while size % per_node:  # as many on each node
            per_node -= 1
        return CommGroup(name, size // per_node, per_node, self.gpus_per_node // per_node)

    def shards(self, part: str) -> int:
        """Over how many ranks ZeRO spreads the 'dense' or the 'experts' parameters."""
        if self.workload.strategy == "ddp":
            return 1
        if part == "experts":
            return self.data // self.workload.mesh.expert
        return self.workload.mesh.shard or self.data


def width(dtype: str) -> int:
    """Bytes of one element."""
    return dtype_of(dtype).num_bytes


def layout(workload: Workload, num_nodes: int, gpus_per_node: int) -> ParallelLayout:
    """The workload on this many GPUs. Raises UsageError when the mesh does not divide them."""
    mesh, gpus = workload.mesh, num_nodes * gpus_per_node
    fixed = mesh.tensor * mesh.pipeline
    if gpus % fixed:
        raise UsageError(
            f"tensor {mesh.tensor} x pipeline {mesh.pipeline} = {fixed} GPUs do not divide the {gpus} of {num_nodes} x "
            f"{gpus_per_node}: give a multiple of {fixed} GPUs, or another mesh"
        )
    data = gpus // fixed
    for name, size in (("expert", mesh.expert), ("shard", mesh.shard or 1)):
        if data % size:
            raise UsageError(f"{name}: {size} does not divide the {data} data-parallel ranks of {gpus} GPUs")
    if mesh.tensor > gpus_per_node and mesh.tensor % gpus_per_node:
        raise UsageError(f"tensor: {mesh.tensor} is no multiple of the {gpus_per_node} GPUs of a node")
    experts = workload.model.all_expert_parameters
    return ParallelLayout(
        workload=workload,
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        data=data,
        dense=(workload.model.parameters - experts) / fixed,
        experts=experts / fixed / mesh.expert,
    )


def communications(found: ParallelLayout) -> tuple[Communication, ...]:
    """Everything that a step sends between GPUs; groups of one rank send nothing."""
    every = [*_gradients(found), *_weights(found), *_tensor(found), *_experts(found), *_pipeline(found)]
    return tuple(each for each in every if each.group.size > 1 and each.payload_bytes > 0 and each.calls)


def _parts(found: ParallelLayout) -> Iterator[tuple[str, float, str]]:
    """(words, parameters of a GPU, the group that holds them in common) of dense and expert parameters."""
    yield "", found.dense, "shard" if found.workload.strategy == "zero3" else "data"
    if found.experts:
        yield " of experts", found.experts, "expert_data"


def _gradients(found: ParallelLayout) -> Iterator[Communication]:
    """What is reduced at the end of a step (DDP, ZeRO 1) or of each micro-batch (ZeRO 2), in buckets; or by layers."""
    workload = found.workload
    for words, parameters, group in _parts(found):
        if workload.strategy == "zero3":
            yield from _units(found, words, parameters, group)
            continue
        if workload.compression == "powersgd":
            yield from _powersgd(found, parameters, group)
            continue
        dtype = workload.gradients if workload.compression == "none" else workload.compression
        num_bytes = parameters * width(dtype)
        often = workload.accumulation if workload.strategy == "zero2" else 1
        collective = "allreduce" if workload.strategy == "ddp" else "reducescatter"
        why = f"{parameters:.4g} parameters x {width(dtype)} bytes ({dtype}) = {num_bytes / 1e9:.4g} GB"
        for size, number in buckets(num_bytes, workload.bucket_bytes * width(dtype) / width(workload.gradients)):
            name = f"gradients{words}, buckets of {format_bytes(size)}"
            yield Communication(name, collective, size, found.group(group), number * often, "bucket", why)


def buckets(num_bytes: float, bucket_bytes: float) -> tuple[tuple[float, int], ...]:
    """(bytes, how many) of DDP's buckets: a first one of 1 MiB, full ones, the rest in one more.

    UsageError for so many that no training would use them.
    """
    if num_bytes > _MOST_BUCKETS * bucket_bytes:
        raise UsageError(
            f"buckets of {format_bytes(bucket_bytes)} for {num_bytes / 1e9:.3g} GB are more than {_MOST_BUCKETS}: give "
            f"parallel.bucket of {format_bytes(num_bytes / _MOST_BUCKETS)} or more"
        )
    first = min(FIRST_BUCKET_BYTES, bucket_bytes, num_bytes)
    full, rest = divmod(num_bytes - first, bucket_bytes)
    found = ((first, 1), (bucket_bytes, int(full)), (rest, 1))
    return tuple((size, number) for size, number in found if size >= 1 and number)


def _powersgd(found: ParallelLayout, parameters: float, group: str) -> Iterator[Communication]:
    """Of each n x m matrix a n x r and a m x r one is reduced instead, one after the other; the rest as it is."""
    workload = found.workload
    rows, columns, whole = _matrix_sides(found)
    rank, number = workload.rank or 1, ceil(parameters * width(workload.gradients) / workload.bucket_bytes)
    for name, sides in (("P", rows), ("Q", columns)):
        size = rank * sides * width(workload.gradients) / number
        each = f"{width(workload.gradients)} bytes in {number} buckets"
        why = f"rank {rank} x {sides:.4g} rows of {whole} matrices x {each}"
        yield Communication(f"PowerSGD {name}", "allreduce", size, found.group(group), number, "bucket", why)


def _matrix_sides(found: ParallelLayout) -> tuple[float, float, int]:
    """(sum of n, sum of m, number) over the matrices that one GPU works with."""
    model, mesh = found.workload.model, found.workload.mesh
    hidden, feedforward = model.hidden or 0, model.feedforward or 0
    shared = hidden * (model.kv_heads or model.heads or 1) / (model.heads or 1)
    blocks = 3 if model.gated else 2
    rows = found.stage_layers * (2 * hidden + 2 * shared + blocks * feedforward) / mesh.tensor
    columns = found.stage_layers * (4 + blocks) * hidden
    tables = 2 * (model.vocabulary or 0) / fixed_parts(found)
    return rows + tables, columns + (2 * hidden if tables else 0), found.stage_layers * (4 + blocks)


def fixed_parts(found: ParallelLayout) -> int:
    """Into how many parts tensor and pipeline parallelism split the model."""
    return found.workload.mesh.tensor * found.workload.mesh.pipeline


def _units(found: ParallelLayout, words: str, parameters: float, group: str) -> Iterator[Communication]:
    """ZeRO 3: a layer's weights are gathered for forward and again for backward, its gradients are scattered."""
    workload, layers = found.workload, found.stage_layers
    often = layers * workload.accumulation
    weights, gradients = (parameters / layers * width(each) for each in (workload.compute, workload.gradients))
    shard, replicas = found.group(group), found.group("replicas")
    each = f"{parameters:.4g} parameters / {layers} layers"
    why = f"{each} x {width(workload.compute)} bytes ({workload.compute}), forward and again backward"
    yield Communication(f"weights{words}", "allgather", weights, shard, 2 * often, "unit", why, often)
    why = f"{each} x {width(workload.gradients)} bytes ({workload.gradients}), backward"
    yield Communication(f"gradients{words}", "reducescatter", gradients, shard, often, "unit", why)
    if group == "shard" and replicas.size > 1:
        size = gradients / shard.size
        why = f"each replica's part of {format_bytes(size)} among the {replicas.size} replicas of hybrid sharding"
        yield Communication("gradients among replicas", "allreduce", size, replicas, often, "unit", why)


def _weights(found: ParallelLayout) -> Iterator[Communication]:
    """ZeRO 1 and 2: each rank has updated its part of the weights and gathers the others'."""
    if found.workload.strategy not in ("zero1", "zero2"):
        return
    for words, parameters, group in _parts(found):
        num_bytes = parameters * width(found.workload.compute)
        why = f"{parameters:.4g} parameters x {width(found.workload.compute)} bytes, when all are updated"
        yield Communication(f"updated weights{words}", "allgather", num_bytes, found.group(group), 1, "after", why)


def _passes(found: ParallelLayout) -> tuple[int, int, str]:
    """Of blocking calls per layer: (in forward, in backward, words)."""
    again = 2 if found.workload.recompute == "full" else 0
    return 2, 2 + again, "2 forward, 2 backward" + (", 2 in the forward pass made again" if again else "")


def _tensor(found: ParallelLayout) -> Iterator[Communication]:
    workload, size = found.workload, found.activation_bytes
    forward, backward, words = _passes(found)
    often = found.stage_layers * workload.accumulation
    why = f"activations of a micro-batch, {format_bytes(size)}; per layer {words}"
    group = found.group("tensor")
    yield Communication(
        "activations (tensor)", "allreduce", size, group, often * (forward + backward), "pass", why, often * forward
    )


def _experts(found: ParallelLayout) -> Iterator[Communication]:
    workload, model = found.workload, found.workload.model
    size = found.activation_bytes * model.active_experts / workload.mesh.tensor
    forward, backward, words = _passes(found)
    often = found.stage_layers * workload.accumulation
    why = f"{model.active_experts} experts per token, {format_bytes(size)}; per layer {words}; experts evenly loaded"
    group = found.group("expert")
    yield Communication(
        "tokens to experts", "alltoall", size, group, often * (forward + backward), "pass", why, often * forward
    )


def _pipeline(found: ParallelLayout) -> Iterator[Communication]:
    workload = found.workload
    size = found.activation_bytes / workload.mesh.tensor
    why = f"activations / tensor, {format_bytes(size)}; each micro-batch forward and its gradient backward"
    group = found.group("pipeline")
    calls = 2 * workload.accumulation
    yield Communication("stage to stage", "sendrecv", size, group, calls, "hop", why, workload.accumulation)
