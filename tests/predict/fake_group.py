"""Real modules on torch's fake process group: one process runs one rank of any mesh, and its collectives are recorded.

The modules are torch's own; only their sizes come from a workload. So what they exchange can be compared with what
`communications` derives from the same workload.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from bench.predict.layout import ParallelLayout
from bench.predict.workload import Mesh, ModelSizes, Workload

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Name of torch's operator, our collective, and whether S is the operator's input or its output.
_OPERATORS = {
    "allreduce_": "allreduce",
    "all_reduce": "allreduce",
    "broadcast_": "broadcast",
    "_allgather_base_": "allgather",
    "all_gather_into_tensor": "allgather",
    "_reduce_scatter_base_": "reducescatter",
    "reduce_scatter_tensor": "reducescatter",
    "all_to_all_single": "alltoall",
    "alltoall_base_": "alltoall",
    "send": "sendrecv",
}
_NO_EXCHANGE = {"wait_tensor", "_wrap_tensor_autograd", "recv_", "barrier", "monitored_barrier_"}

Calls = Counter[tuple[str, float, int, int]]  # collective, S, nodes, ranks per node


@dataclass(frozen=True)
class _Made:
    collective: str
    num_bytes: int
    ranks: tuple[int, ...]


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records what this rank exchanges. An operator of c10d that it does not know fails."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[_Made] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        if "c10d" in space and name not in _NO_EXCHANGE:
            self.made.append(self._call(_OPERATORS[name], name, args))
        return func(*args, **(kwargs or {}))

    def _call(self, collective: str, name: str, args: Any) -> _Made:
        group = next(found for found in map(_group, args[::-1]) if found is not None)
        ranks = tuple(dist.get_process_group_ranks(group))
        tensors = args[0] if isinstance(args[0], list | tuple) else [args[0]]
        if name == "_reduce_scatter_base_":
            tensors = [args[1]]
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if name == "all_gather_into_tensor":
            num_bytes *= len(ranks)
        return _Made(collective, num_bytes, ranks)


def _group(argument: Any) -> ProcessGroup | None:
    if isinstance(argument, torch.ScriptObject):
        try:
            return ProcessGroup.unbox(argument)
        except RuntimeError:
            return None
    if isinstance(argument, str):
        try:
            return dist.distributed_c10d._resolve_process_group(argument)
        except (RuntimeError, ValueError):
            return None
    return None


# -- modules


class Attention(nn.Module):  # type: ignore[misc]
    """Attention with separate matrices, as Llama has it."""

    def __init__(self, model: ModelSizes) -> None:
        super().__init__()
        hidden, heads = model.hidden, model.heads
        assert hidden and heads
        self.width = hidden // heads
        shared = self.width * (model.kv_heads or heads)
        self.q, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(hidden, shared, bias=False) for _ in range(2))

    def forward(self, values: Any) -> Any:
        q, k, v = (part(values).unflatten(-1, (-1, self.width)).transpose(1, 2) for part in (self.q, self.k, self.v))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(found.transpose(1, 2).flatten(2))


class Gated(nn.Module):  # type: ignore[misc]
    """A feed-forward block of three matrices."""

    def __init__(self, model: ModelSizes) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(model.hidden, model.feedforward, bias=False) for _ in range(2))
        self.w2 = nn.Linear(model.feedforward, model.hidden, bias=False)

    def forward(self, values: Any) -> Any:
        return self.w2(nn.functional.silu(self.w1(values)) * self.w3(values))


class LocalExperts(nn.Module):  # type: ignore[misc]
    """The experts of this rank, each with the same number of tokens."""

    def __init__(self, model: ModelSizes, number: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Gated(model) for _ in range(number))

    def forward(self, tokens: Any) -> Any:
        parts = tokens.chunk(len(self.blocks))
        return torch.cat([block(part) for block, part in zip(self.blocks, parts, strict=True)])


class Experts(nn.Module):  # type: ignore[misc]
    """A block of experts with an even, fixed load. `group`: the ranks that divide the experts, or None."""

    def __init__(self, model: ModelSizes, group: Any, num_local: int) -> None:
        super().__init__()
        self.router = nn.Linear(model.hidden, model.experts, bias=False)
        self.experts = LocalExperts(model, num_local)
        self.active, self.group = model.active_experts, group

    def forward(self, values: Any) -> Any:
        weight = self.router(values).softmax(-1)[..., :1]
        tokens = self._exchanged(values.flatten(0, 1).repeat_interleave(self.active, 0))
        tokens = self._exchanged(self.experts(tokens))
        return weight * tokens.view(-1, self.active, tokens.shape[-1]).sum(1).view_as(values)

    def _exchanged(self, tokens: Any) -> Any:
        if self.group is None:
            return tokens
        even = [len(tokens) // self.group.size()] * self.group.size()
        return all_to_all_single_autograd(tokens.contiguous(), even, even, self.group)


class Block(nn.Module):  # type: ignore[misc]
    """A layer of a decoder."""

    def __init__(self, model: ModelSizes, group: Any, num_local: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.RMSNorm(model.hidden), Attention(model), nn.RMSNorm(model.hidden)
        self.block = Experts(model, group, num_local) if model.experts > 1 else Gated(model)

    def forward(self, values: Any) -> Any:
        values = values + self.attention(self.norm1(values))
        return values + self.block(self.norm2(values))


class Layers(nn.Module):  # type: ignore[misc]
    """Layers one after the other, each computed again in the backward pass if `again` says so."""

    def __init__(self, layers: Sequence[nn.Module], recompute: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.every = {"none": 0, "selective": 2, "full": 1}[recompute]

    def forward(self, values: Any) -> Any:
        for number, layer in enumerate(self.layers):
            again = self.every and number % self.every == 0
            values = checkpoint(layer, values, use_reentrant=False) if again else layer(values)
        return values


class Decoder(nn.Module):  # type: ignore[misc]
    """A language model: embedding, layers, norm, output layer."""

    def __init__(self, workload: Workload, group: Any = None) -> None:
        super().__init__()
        model, local = workload.model, workload.model.experts // workload.mesh.expert
        assert model.vocabulary and model.layers
        self.embedding = nn.Embedding(model.vocabulary, model.hidden)
        self.layers = Layers([Block(model, group, local) for _ in range(model.layers or 0)], workload.recompute)
        self.norm, self.output = nn.RMSNorm(model.hidden), nn.Linear(model.hidden, model.vocabulary, bias=False)
        if model.tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.output(self.norm(self.layers(self.embedding(tokens))))

    @staticmethod
    def batch(workload: Workload) -> Any:
        return torch.zeros(workload.batch, workload.model.tokens, dtype=torch.long)


class Vision(nn.Module):  # type: ignore[misc]
    """An encoder of patches with torch's own layers, a class token and a table of positions."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        model = workload.model
        self.patch = nn.Linear(model.patch, model.hidden)
        self.table = nn.Parameter(torch.zeros(model.tokens, model.hidden))
        each = {"d_model": model.hidden, "nhead": model.heads, "dim_feedforward": model.feedforward}
        layers = [
            nn.TransformerEncoderLayer(**each, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
            for _ in range(model.layers or 0)
        ]
        self.layers = Layers(layers, workload.recompute)
        self.norm, self.output = nn.LayerNorm(model.hidden), nn.Linear(model.hidden, model.classes)

    def forward(self, patches: Any) -> Any:
        return self.output(self.norm(self.layers(self.patch(patches) + self.table))[:, 0])

    @staticmethod
    def batch(workload: Workload) -> Any:
        return torch.zeros(workload.batch, workload.model.tokens, workload.model.patch)


class Bottleneck(nn.Module):  # type: ignore[misc]
    """A block of a residual network, as torchvision has it."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner)
        self.downsample = None
        if stride != 1 or inputs != 4 * inner:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner)
            )

    def forward(self, values: Any) -> Any:
        found = self.bn1(self.conv1(values)).relu()
        found = self.bn2(self.conv2(found)).relu()
        found = self.bn3(self.conv3(found))
        return (found + (values if self.downsample is None else self.downsample(values))).relu()


class Convolutional(nn.Module):  # type: ignore[misc]
    """A residual network, as torchvision has it."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        model = workload.model
        width = model.channels
        assert width is not None
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, inputs = [], width
        for stage, number in enumerate(model.blocks):
            for block in range(number):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
                inputs = 4 * (width << stage)
        self.layers, self.fc = nn.Sequential(*blocks), nn.Linear(inputs, model.classes)

    def forward(self, images: Any) -> Any:
        found = self.layers(self.pool(self.bn1(self.conv1(images)).relu()))
        return self.fc(found.mean((2, 3)))

    @staticmethod
    def batch(workload: Workload) -> Any:
        return torch.zeros(workload.batch, 3, workload.model.image, workload.model.image)


def model_class(workload: Workload) -> Any:
    """Return the kind of module that has the workload's layers."""
    if workload.model.blocks:
        return Convolutional
    return Decoder if workload.model.vocabulary else Vision


def resized(workload: Workload, sizes: Mapping[str, Any]) -> ModelSizes:
    """Return the workload's model in other sizes, with as many parameters as torch's modules of these sizes have."""
    given = {key: getattr(workload.model, key) for key in ModelSizes.__dataclass_fields__}
    model = SimpleNamespace(**given | dict(sizes), tied=False)
    with torch.device("meta"):
        modules = model_class(workload)(SimpleNamespace(model=model, mesh=Mesh(), recompute="none"))
    parameters = sum(weight.numel() for weight in modules.parameters())
    return replace(workload.model, parameters=float(parameters), **sizes)


class Stage(PipelineStage):  # type: ignore[misc]
    """A stage whose neighbours know the shapes of its messages, too."""

    def _warmup_backward_result(self, received_result: Any = None) -> Any:
        return torch.ones(1, dtype=torch.int32)


# -- one rank of a job


@contextmanager
def fake_world(num_ranks: int, rank: int) -> Iterator[None]:
    """Be one rank of a world in which no other rank exists."""
    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def derived(calls: Sequence[Any]) -> Calls:
    """Return the derived communication in the form that `recorded` has."""
    found: Calls = Counter()
    for each in calls:
        found[each.collective, each.payload_bytes, each.group.num_nodes, each.group.per_node] += each.calls
    return found


def recorded(made: Sequence[_Made], gpus_per_node: int) -> Calls:
    """Return how often each call was made."""
    found: Calls = Counter()
    for each in made:
        nodes = Counter(rank // gpus_per_node for rank in each.ranks)
        [per_node] = set(nodes.values())
        found[each.collective, float(each.num_bytes), len(nodes), per_node] += 1
    return found


def of_buckets(found: ParallelLayout, rank: int, *, broadcasts: bool = False) -> Calls:
    """Return the calls of DistributedDataParallel with the workload's buckets, and of ZeRO 1's optimizer on request."""
    workload = found.workload
    recorder = Recorder()
    with fake_world(found.num_gpus, rank):
        model = model_class(workload)(workload).to(_DTYPES[workload.weights])
        given = {} if workload.bucket_bytes is None else {"bucket_cap_mb": workload.bucket_bytes / (1 << 20)}
        parallel = DistributedDataParallel(model, **given)

        parallel.register_comm_hook(None, lambda _, bucket: _reduced(bucket.buffer()))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.0) if broadcasts else None
        for _ in range(3):  # torch forms its buckets after the first step, and agrees on them in the second
            recorder.made.clear()
            with recorder:
                for micro in range(workload.accumulation):
                    last = micro == workload.accumulation - 1
                    parallel.require_backward_grad_sync = last
                    parallel(_batch(workload)).sum().backward()
                if optimizer:
                    optimizer.step()
    return recorded(recorder.made, found.gpus_per_node)


def of_mesh(found: ParallelLayout, rank: int) -> Calls:
    """Return the calls of FSDP2, hybrid sharding, tensor and expert parallelism."""
    workload = found.workload
    mesh, recorder = workload.mesh, Recorder()
    with fake_world(found.num_gpus, rank):
        shard = mesh.shard or found.data
        names = ("replicas", "outer", "expert", "tensor")
        sizes = (found.data // shard, shard // mesh.expert, mesh.expert, mesh.tensor)
        device_mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        group = device_mesh["expert"].get_group() if mesh.expert > 1 else None
        model = Decoder(workload, group) if workload.model.vocabulary else Vision(workload)
        model = model.to(_DTYPES[workload.weights if workload.strategy == "zero3" else workload.compute])
        if mesh.tensor > 1:
            _divide_matrices(model, device_mesh["tensor"], sequence=mesh.sequence)
        if workload.strategy == "zero3":
            _shard(model, device_mesh, workload)
        with recorder, set_checkpoint_early_stop(False):
            for _ in range(workload.accumulation):
                out = model(_batch(workload))
                (out.to_local() if isinstance(out, DTensor) else out).float().sum().backward()
            if workload.strategy != "zero3":
                _reduce_norms(model)
    return recorded(recorder.made, found.gpus_per_node)


def of_pipeline(found: ParallelLayout, rank: int, schedule: str) -> Calls:
    """Return what one stage of a pipeline exchanges: messages, and with ZeRO 3 weights and gradients of its layers."""
    workload = found.workload
    recorder, stages = Recorder(), workload.mesh.pipeline
    with fake_world(found.num_gpus, rank):
        device_mesh = init_device_mesh("cpu", (stages, found.num_gpus // stages), mesh_dim_names=("pipeline", "rest"))
        model = workload.model
        assert model.tokens and model.hidden
        layers = Layers([Block(model, None, 1) for _ in range(found.stage_layers)], workload.recompute)
        sharded = workload.strategy == "zero3"
        layers = layers.to(_DTYPES[workload.weights if sharded else workload.compute])
        if sharded:  # as torchtitan does: a stage keeps the weights that it gathered
            policy = MixedPrecisionPolicy(_DTYPES[workload.compute], _DTYPES[workload.gradients])
            for layer in (*layers.layers, layers):
                fully_shard(layer, mesh=device_mesh["rest"], mp_policy=policy, reshard_after_forward=False)
        values = torch.zeros(
            workload.batch, model.tokens, model.hidden, dtype=_DTYPES[workload.compute], requires_grad=True
        )
        number = device_mesh.get_local_rank("pipeline")
        group = device_mesh.get_group("pipeline")
        stage = Stage(layers, number, stages, torch.device("cpu"), input_args=values, output_args=values, group=group)
        run: Callable[..., Any] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[schedule](
            stage, workload.accumulation, loss_fn=lambda out, _: out.float().sum()
        ).step
        whole = values.repeat(workload.accumulation, 1, 1)
        target = {"target": whole} if number == stages - 1 else {}
        for _ in range(2):  # in the first, stages agree on the shapes of their messages
            recorder.made.clear()
            with recorder:
                run(*([whole] if number == 0 else []), **target)
    return recorded(recorder.made, found.gpus_per_node)


def _reduced(gradients: Any) -> Any:
    """Reduce a bucket. The fake group's own futures never end, so DDP gets one that has ended."""
    dist.all_reduce(gradients)
    future: Any = torch.futures.Future()
    future.set_result(gradients)
    return future


def _batch(workload: Workload) -> Any:
    return model_class(workload).batch(workload)


def _divide_matrices(model: Any, mesh: DeviceMesh, *, sequence: bool) -> None:
    between = Shard(1) if sequence else Replicate()
    whole = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    for layer in model.layers.layers:
        plan: dict[str, Any] = {"attention": whole, "block": whole}
        plan |= {f"attention.{name}": ColwiseParallel() for name in "qkv"}
        plan |= {f"block.{name}": ColwiseParallel() for name in ("w1", "w3")}
        plan |= {name: RowwiseParallel(output_layouts=between) for name in ("attention.o", "block.w2")}
        plan |= {name: SequenceParallel() for name in ("norm1", "norm2") if sequence}
        parallelize_module(layer, mesh, plan)
    ends: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "output": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends | ({"norm": SequenceParallel()} if sequence else {}))


def _reduce_norms(model: Any) -> None:
    """Add up the gradients of norms, of which each rank has those of its part of the sequence. FSDP does it itself."""
    for weight in model.parameters():
        gradient = weight.grad
        if isinstance(gradient, DTensor) and gradient.placements[0].is_partial():
            gradient.redistribute(placements=[Replicate()]).to_local()


def _shard(model: Any, device_mesh: DeviceMesh, workload: Workload) -> None:
    mesh = workload.mesh
    policy = MixedPrecisionPolicy(_DTYPES[workload.compute], _DTYPES[workload.gradients])
    if mesh.expert > 1:
        # FSDP has a mesh of one dimension per group of ranks, so the ranks of all experts are one dimension here.
        data = device_mesh["outer", "expert"]._flatten("data")
        for layer in model.layers.layers:
            fully_shard(layer.block.experts, mesh=device_mesh["outer"], mp_policy=policy)
    elif mesh.shard is not None:
        data = device_mesh["replicas", "outer"]
    else:
        data = device_mesh["outer"]
    for layer in model.layers.layers:
        fully_shard(layer, mesh=data, mp_policy=policy)
    fully_shard(model, mesh=data, mp_policy=policy)
