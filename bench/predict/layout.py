"""Distribute a workload over GPUs: groups of ranks, the part of the model on each rank, and the bytes of each call."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.predict.messages import Refusal
from bench.predict.workload import NF4, NF4_BYTES, Workload


@dataclass(frozen=True, slots=True)
class CommGroup:
    """A group of ranks that communicate with each other. The group has `per_node` ranks on each of `num_nodes` nodes.

    `side_by_side`: the number of groups of this type on each node. These groups send at the same time and share the
    node's NICs.
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
    """A communication call that every rank makes `calls` times per step.

    `payload_bytes`: the payload S (docs/metrics.md) of one call.
    `forward`: the number of calls in the forward pass.
    `derivation`: how bytes and calls follow from the workload.
    `when`: the type of computation that can hide the call:

    - "bucket": gradients, hidden by the backward pass
    - "unit": weights or gradients of a layer, hidden by the computation of another layer
    - "ends": weights or gradients outside the layers, not hidden
    - "pass": a call for which the pass waits
    - "hop": a message to the next pipeline stage
    - "after": a call after the exchange of all gradients
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
        """The bytes that busbw counts in a step: `calls x payload_bytes x bus_factor`.

        Without NVLS, these bytes pass through each rank's port.
        """
        return self.calls * self.payload_bytes * bus_factor(self.collective, self.group.size)

    @property
    def switched_bytes(self) -> float:
        """The bytes through one rank's port in a step if the switch adds the data (NVLS).

        The number is `calls x payload_bytes x (1 + 1/n)`, where n is the number of the group's ranks on a node. The
        switch reads the whole buffer of each rank and returns one part of the sum to each rank. Each rank then
        multicasts this part.
        """
        return self.calls * self.payload_bytes * (1 + 1 / self.group.per_node)


def bus_factor(collective: str, size: int) -> float:
    """Return the bytes through one rank's port for each byte of the payload, without NVLS (docs/metrics.md)."""
    others = (size - 1) / size
    return {"allreduce": 2 * others, "sendrecv": 1.0, "broadcast": 1.0}.get(collective, others)


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """A workload that is distributed over a number of GPUs.

    `data`: the number of ranks that train on different samples.
    `dense`, `experts`: the numbers of dense and expert parameters on one GPU, before ZeRO shards them.
    """

    workload: Workload
    num_nodes: int
    gpus_per_node: int
    data: int
    dense: float
    experts: float

    @property
    def num_gpus(self) -> int:
        """The total number of GPUs on all nodes."""
        return self.num_nodes * self.gpus_per_node

    @property
    def samples(self) -> int:
        """The number of samples of one step on all GPUs together."""
        return self.workload.batch * self.workload.accumulation * self.data

    @property
    def activation_bytes(self) -> float:
        """The bytes of one micro-batch's activations between two layers.

        The number of elements is `batch x tokens x hidden`, divided by the number of ranks that share the tokens of a
        sample.
        """
        model, shared = self.workload.model, self.workload.mesh.context
        return self.workload.batch * (model.tokens or 0) * (model.hidden or 0) * width(self.workload.element) / shared

    @property
    def replicas(self) -> int:
        """The number of ranks that have the same part of the model and train on different samples or tokens."""
        return self.data * self.workload.mesh.context

    @property
    def trained(self) -> float:
        """The number of trained dense parameters on one GPU: all of them, or only the adapters of LoRA."""
        rank = self.workload.lora
        if rank is None:
            return self.dense
        rows, columns, _ = layer_sides(self)
        return rank * (rows + columns / self.workload.mesh.tensor)

    @property
    def trained_experts(self) -> float:
        """The number of trained expert parameters on one GPU."""
        return self.experts if self.workload.lora is None else 0.0

    @property
    def stage_layers(self) -> int:
        """The number of layers in the largest pipeline stage."""
        return ceil((self.workload.model.layers or 1) / self.workload.mesh.pipeline)

    def group(self, name: str) -> CommGroup:
        """Return the group of this name.

        The names are data, replicas, shard (ZeRO 3), expert_data, tensor, context, pipeline and expert.
        """
        size, stride = self._size_and_stride(name)
        per_node = min(size, max(1, self.gpus_per_node // stride))
        while size % per_node:  # the same number on each node
            per_node -= 1
        return CommGroup(name, size // per_node, per_node, self.gpus_per_node // per_node)

    def _size_and_stride(self, name: str) -> tuple[int, int]:
        """Return the number of ranks in a group, and the step from one rank number of the group to the next."""
        mesh = self.workload.mesh
        shard = mesh.shard or self.replicas
        match name:
            case "data":
                return self.replicas, mesh.tensor
            case "shard":
                return shard, mesh.tensor
            case "replicas":
                return self.replicas // shard, mesh.tensor * shard
            case "expert_data":
                return self.replicas // mesh.expert, mesh.tensor * mesh.expert
            case "tensor":
                return mesh.tensor, 1
            case "context":
                return mesh.context, mesh.tensor
            case "expert":
                return mesh.expert, mesh.tensor
            case "pipeline":
                return mesh.pipeline, self.num_gpus // mesh.pipeline
        raise KeyError(name)

    def shards(self, part: str) -> int:
        """Return over how many ranks ZeRO shards the parameters of one type: 'dense' or 'experts'."""
        if self.workload.strategy == "ddp":
            return 1
        if part == "experts":
            return self.replicas // self.workload.mesh.expert
        return self.workload.mesh.shard or self.replicas


def width(dtype: str) -> float:
    """Return the size of one element in bytes."""
    return NF4_BYTES if dtype == NF4 else dtype_of(dtype).num_bytes


def layout(workload: Workload, num_nodes: int, gpus_per_node: int) -> ParallelLayout:
    """Return the layout of a workload on this many GPUs.

    Raises UsageError if the workload's mesh does not fit this number of GPUs.
    """
    mesh, gpus = workload.mesh, num_nodes * gpus_per_node
    fixed = mesh.tensor * mesh.pipeline
    if gpus % (fixed * mesh.context):
        raise UsageError.of(
            Refusal.MESH_NOT_DIVISOR,
            tensor=mesh.tensor,
            pipeline=mesh.pipeline,
            context=mesh.context if mesh.context > 1 else None,
            mesh_gpus=fixed * mesh.context,
            num_gpus=gpus,
            num_nodes=num_nodes,
            gpus_per_node=gpus_per_node,
        )
    data = gpus // (fixed * mesh.context)
    for name, size in (("expert", mesh.expert), ("shard", mesh.shard or 1)):
        if data * mesh.context % size:
            raise UsageError.of(
                Refusal.GROUP_NOT_DIVISOR, group=name, size=size, data_parallel=data * mesh.context, num_gpus=gpus
            )
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


def layer_sides(found: ParallelLayout) -> tuple[float, float, int]:
    """Return three values for the matrices in one GPU's layers: sum of rows, sum of columns, number of matrices."""
    model, mesh = found.workload.model, found.workload.mesh
    hidden, feedforward = model.hidden or 0, model.feedforward or 0
    blocks = 3 if model.gated else 2
    heads = 2 * (model.attention_width or 0) + 2 * model.shared_width
    rows = found.stage_layers * (heads + blocks * feedforward) / mesh.tensor
    columns = found.stage_layers * (4 + blocks) * hidden
    return rows, columns, found.stage_layers * (4 + blocks)


def fixed_parts(found: ParallelLayout) -> int:
    """Return the number of parts into which tensor and pipeline parallelism split the model."""
    return found.workload.mesh.tensor * found.workload.mesh.pipeline
