"""Derive the communication of a training step: collective, payload, group, number of calls, and what computation can
hide each call.

Volumes follow Rajbhandari et al., "ZeRO" (SC20, section 7: stages 1 and 2 send as much as plain data parallelism, stage
3 sends 1.5 times as much), Shoeybi et al., "Megatron-LM" (2019, section 3: two allreduces of the activations per layer
and pass), Narayanan et al. (SC21: pipelines), Lepikhin et al., "GShard" (ICLR 2021: two alltoalls per layer and pass),
Vogels et al., "PowerSGD" (NeurIPS 2019) and Li et al., "PyTorch Distributed" (VLDB 2020: buckets).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.core.units import format_bytes
from bench.predict.messages import Refusal
from bench.predict.workload import Workload

# DistributedDataParallel uses a small first bucket to start the exchange early.
FIRST_BUCKET_BYTES = 1 << 20
_MOST_BUCKETS = 20_000


@dataclass(frozen=True, slots=True)
class CommGroup:
    """Ranks that communicate with each other: `per_node` on each of `num_nodes` nodes.

    `side_by_side`: the number of such groups on each node. They send at the same time and share the node's NICs.
    """

    name: str
    num_nodes: int
    per_node: int
    side_by_side: int

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.num_nodes * self.per_node

    def __str__(self) -> str:
        where = f"{self.num_nodes} x {self.per_node} GPUs" if self.num_nodes > 1 else f"{self.per_node} GPUs of a node"
        return f"{self.name} ({where})"


@dataclass(frozen=True, slots=True)
class Communication:
    """One kind of call that every rank makes `calls` times per step.

    `payload_bytes`: the payload S (docs/metrics.md) of one call. `forward`: the number of calls in the forward pass.
    `derivation`: how bytes and calls follow from the workload. `when` decides what can hide the call: "bucket"
    (gradients, during the backward pass), "unit" (weights or gradients of a layer, sent while another layer is
    computed), "pass" (the pass waits for the call), "hop" (a message to the next pipeline stage), "after" (the call
    follows the exchange of all gradients).
    """

    name: str
    collective: str
    payload_bytes: float
    group: CommGroup
    calls: int
    when: str
    derivation: str
    forward: int = 0

    @property
    def sent_bytes(self) -> float:
        """The bytes that busbw counts in a step: calls x S x bus factor.

        Without NVLS, these bytes pass through each rank's port.
        """
        return self.calls * self.payload_bytes * bus_factor(self.collective, self.group.size)

    @property
    def switched_bytes(self) -> float:
        """The bytes through one rank's port in a step if the switch reduces (NVLS): calls x S x (1 + 1/n).

        n is the number of the group's ranks on a node. The switch reads the whole buffer of each rank and returns one
        part of the sum to each rank, which then multicasts this part.
        """
        return self.calls * self.payload_bytes * (1 + 1 / self.group.per_node)


def bus_factor(collective: str, size: int) -> float:
    """Return the bytes through one rank's port divided by the payload, without NVLS (docs/metrics.md)."""
    others = (size - 1) / size
    return {"allreduce": 2 * others, "sendrecv": 1.0}.get(collective, others)


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """A workload on a number of GPUs.

    `dense`, `experts`: the numbers of dense and of expert parameters of one GPU before ZeRO shards them.
    """

    workload: Workload
    num_nodes: int
    gpus_per_node: int
    data: int
    dense: float
    experts: float

    @property
    def num_gpus(self) -> int:
        """The number of all GPUs together."""
        return self.num_nodes * self.gpus_per_node

    @property
    def samples(self) -> int:
        """The number of samples of one step on all GPUs together."""
        return self.workload.batch * self.workload.accumulation * self.data

    @property
    def activation_bytes(self) -> float:
        """The bytes of the activations of one micro-batch between two layers: batch x tokens x hidden elements of the
        compute type.
        """
        model = self.workload.model
        return self.workload.batch * (model.tokens or 0) * (model.hidden or 0) * width(self.workload.compute)

    @property
    def stage_layers(self) -> int:
        """The number of layers of one stage of the pipeline."""
        return (self.workload.model.layers or 1) // self.workload.mesh.pipeline

    def group(self, name: str) -> CommGroup:
        """Return the group called data, replicas, shard (of ZeRO 3), expert_data, tensor, pipeline or expert."""
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
        while size % per_node:  # the same number on each node
            per_node -= 1
        return CommGroup(name, size // per_node, per_node, self.gpus_per_node // per_node)

    def shards(self, part: str) -> int:
        """Return the number of ranks over which ZeRO shards the 'dense' or the 'experts' parameters."""
        if self.workload.strategy == "ddp":
            return 1
        if part == "experts":
            return self.data // self.workload.mesh.expert
        return self.workload.mesh.shard or self.data


def width(dtype: str) -> int:
    """Return the size of one element in bytes."""
    return dtype_of(dtype).num_bytes


def layout(workload: Workload, num_nodes: int, gpus_per_node: int) -> ParallelLayout:
    """Return the layout of a workload on this many GPUs.

    Raises UsageError if the workload's mesh does not fit this number of GPUs.
    """
    mesh, gpus = workload.mesh, num_nodes * gpus_per_node
    fixed = mesh.tensor * mesh.pipeline
    if gpus % fixed:
        raise UsageError.of(
            Refusal.MESH_NOT_DIVISOR,
            tensor=mesh.tensor,
            pipeline=mesh.pipeline,
            mesh_gpus=fixed,
            num_gpus=gpus,
            num_nodes=num_nodes,
            gpus_per_node=gpus_per_node,
        )
    data = gpus // fixed
    for name, size in (("expert", mesh.expert), ("shard", mesh.shard or 1)):
        if data % size:
            raise UsageError.of(Refusal.GROUP_NOT_DIVISOR, group=name, size=size, data_parallel=data, num_gpus=gpus)
    if mesh.tensor > gpus_per_node and mesh.tensor % gpus_per_node:
        raise UsageError.of(Refusal.TENSOR_ACROSS_NODES, tensor=mesh.tensor, gpus_per_node=gpus_per_node)
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
    """Return all communication of a step between GPUs. Groups of one rank send nothing."""
    every = [*_gradients(found), *_weights(found), *_tensor(found), *_experts(found), *_pipeline(found)]
    return tuple(each for each in every if each.group.size > 1 and each.payload_bytes > 0 and each.calls)


def _parts(found: ParallelLayout) -> Iterator[tuple[str, float, str]]:
    """Yield for dense parameters, and for expert parameters if there are any: a suffix for names, the number of
    parameters of one GPU, and the group of ranks that share them.
    """
    yield "", found.dense, "shard" if found.workload.strategy == "zero3" else "data"
    if found.experts:
        yield " of experts", found.experts, "expert_data"


def _gradients(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the calls that exchange gradients: in buckets once per step (DDP, ZeRO 1) or per micro-batch (ZeRO 2), or
    layer by layer (ZeRO 3).
    """
    workload = found.workload
    for suffix, parameters, group in _parts(found):
        if workload.strategy == "zero3":
            yield from _units(found, suffix, parameters, group)
            continue
        if workload.compression == "powersgd":
            yield from _powersgd(found, parameters, group)
            continue
        dtype = workload.gradients if workload.compression == "none" else workload.compression
        num_bytes = parameters * width(dtype)
        repetitions = workload.accumulation if workload.strategy == "zero2" else 1
        collective = "allreduce" if workload.strategy == "ddp" else "reducescatter"
        derivation = f"{parameters:.4g} parameters x {width(dtype)} bytes ({dtype}) = {num_bytes / 1e9:.4g} GB"
        for size, number in buckets(num_bytes, workload.bucket_bytes * width(dtype) / width(workload.gradients)):
            name = f"gradients{suffix}, buckets of {format_bytes(size)}"
            yield Communication(name, collective, size, found.group(group), number * repetitions, "bucket", derivation)


def buckets(num_bytes: float, bucket_bytes: float) -> tuple[tuple[float, int], ...]:
    """Return the sizes of DDP's buckets in bytes, each with the number of such buckets: a first bucket of 1 MiB, full
    buckets, and one bucket for the rest.

    Raises UsageError for a number of buckets that no training would use.
    """
    if num_bytes > _MOST_BUCKETS * bucket_bytes:
        raise UsageError.of(
            Refusal.BUCKETS_TOO_MANY,
            bucket_bytes=bucket_bytes,
            gigabytes=num_bytes / 1e9,
            most=_MOST_BUCKETS,
            least_bytes=num_bytes / _MOST_BUCKETS,
        )
    first = min(FIRST_BUCKET_BYTES, bucket_bytes, num_bytes)
    full, rest = divmod(num_bytes - first, bucket_bytes)
    found = ((first, 1), (bucket_bytes, int(full)), (rest, 1))
    return tuple((size, number) for size, number in found if size >= 1 and number)


def _powersgd(found: ParallelLayout, parameters: float, group: str) -> Iterator[Communication]:
    """Yield the calls of PowerSGD.

    For each n x m matrix of gradients, an n x r matrix and then an m x r matrix are reduced.
    """
    workload = found.workload
    rows, columns, whole = _matrix_sides(found)
    rank, number = workload.rank or 1, ceil(parameters * width(workload.gradients) / workload.bucket_bytes)
    for name, sides in (("P", rows), ("Q", columns)):
        size = rank * sides * width(workload.gradients) / number
        each = f"{width(workload.gradients)} bytes in {number} buckets"
        derivation = f"rank {rank} x {sides:.4g} rows of {whole} matrices x {each}"
        yield Communication(f"PowerSGD {name}", "allreduce", size, found.group(group), number, "bucket", derivation)


def _matrix_sides(found: ParallelLayout) -> tuple[float, float, int]:
    """Return the sum of n, the sum of m, and the number of matrices, over the n x m matrices of one GPU."""
    model, mesh = found.workload.model, found.workload.mesh
    hidden, feedforward = model.hidden or 0, model.feedforward or 0
    shared = hidden * (model.kv_heads or model.heads or 1) / (model.heads or 1)
    blocks = 3 if model.gated else 2
    rows = found.stage_layers * (2 * hidden + 2 * shared + blocks * feedforward) / mesh.tensor
    columns = found.stage_layers * (4 + blocks) * hidden
    tables = 2 * (model.vocabulary or 0) / fixed_parts(found)
    return rows + tables, columns + (2 * hidden if tables else 0), found.stage_layers * (4 + blocks)


def fixed_parts(found: ParallelLayout) -> int:
    """Return the number of parts into which tensor and pipeline parallelism split the model."""
    return found.workload.mesh.tensor * found.workload.mesh.pipeline


def _units(found: ParallelLayout, suffix: str, parameters: float, group: str) -> Iterator[Communication]:
    """Yield the calls of ZeRO 3: gather a layer's weights for the forward pass and again for the backward pass, and
    reduce-scatter its gradients.
    """
    workload, layers = found.workload, found.stage_layers
    repetitions = layers * workload.accumulation
    weights, gradients = (parameters / layers * width(each) for each in (workload.compute, workload.gradients))
    shard, replicas = found.group(group), found.group("replicas")
    layer = f"{parameters:.4g} parameters / {layers} layers"
    derivation = f"{layer} x {width(workload.compute)} bytes ({workload.compute}), in the forward and the backward pass"
    yield Communication(
        f"weights{suffix}", "allgather", weights, shard, 2 * repetitions, "unit", derivation, repetitions
    )
    derivation = f"{layer} x {width(workload.gradients)} bytes ({workload.gradients}), in the backward pass"
    yield Communication(f"gradients{suffix}", "reducescatter", gradients, shard, repetitions, "unit", derivation)
    if group == "shard" and replicas.size > 1:
        size = gradients / shard.size
        derivation = (
            f"each replica's part of {format_bytes(size)} among the {replicas.size} replicas of hybrid sharding"
        )
        yield Communication("gradients among replicas", "allreduce", size, replicas, repetitions, "unit", derivation)


def _weights(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the call of ZeRO 1 and 2 in which each rank gathers the weights that other ranks have updated."""
    if found.workload.strategy not in ("zero1", "zero2"):
        return
    for suffix, parameters, group in _parts(found):
        num_bytes = parameters * width(found.workload.compute)
        derivation = f"{parameters:.4g} parameters x {width(found.workload.compute)} bytes, after the update"
        yield Communication(
            f"updated weights{suffix}", "allgather", num_bytes, found.group(group), 1, "after", derivation
        )


def _passes(found: ParallelLayout) -> tuple[int, int, str]:
    """Return the number of blocking calls per layer in the forward pass and in the backward pass, and a description."""
    if found.workload.recompute == "full":
        return 2, 4, "2 forward, 2 backward, 2 in the repeated forward pass"
    if found.workload.recompute == "selective":
        return 2, 3, "2 forward, 2 backward, 1 in the repeated half of the forward pass"
    return 2, 2, "2 forward, 2 backward"


def _tensor(found: ParallelLayout) -> Iterator[Communication]:
    workload, size = found.workload, found.activation_bytes
    forward, backward, words = _passes(found)
    repetitions = found.stage_layers * workload.accumulation
    derivation = f"activations of a micro-batch, {format_bytes(size)}; per layer {words}"
    group = found.group("tensor")
    yield Communication(
        "activations (tensor)",
        "allreduce",
        size,
        group,
        repetitions * (forward + backward),
        "pass",
        derivation,
        repetitions * forward,
    )


def _experts(found: ParallelLayout) -> Iterator[Communication]:
    workload, model = found.workload, found.workload.model
    size = found.activation_bytes * model.active_experts / workload.mesh.tensor
    forward, backward, words = _passes(found)
    repetitions = found.stage_layers * workload.accumulation
    derivation = f"{model.active_experts} experts per token, {format_bytes(size)}; per layer {words}; even load"
    group = found.group("expert")
    yield Communication(
        "tokens to experts",
        "alltoall",
        size,
        group,
        repetitions * (forward + backward),
        "pass",
        derivation,
        repetitions * forward,
    )


def _pipeline(found: ParallelLayout) -> Iterator[Communication]:
    workload = found.workload
    size = found.activation_bytes / workload.mesh.tensor
    derivation = f"activations / tensor, {format_bytes(size)}; forward for each micro-batch, and back for its gradient"
    group = found.group("pipeline")
    calls = 2 * workload.accumulation
    yield Communication("stage to stage", "sendrecv", size, group, calls, "hop", derivation, workload.accumulation)
