"""The training workload: the sizes of the model, one training step, and the mesh of ranks.

The classes only store data. predict/workload_file.py reads the data from YAML, and predict/training.py derives the
collectives. Sizes are in bytes. Operations are in FLOP, and a multiplication and an addition are two operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.core.errors import UsageError
from bench.core.residual import Residual
from bench.predict.messages import Refusal

# The strategies by which data-parallel ranks divide their states: DDP (no division), or the stages of ZeRO (Rajbhandari
# et al., SC20). FSDP is stage 3.
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
# Bytes of state that an optimizer keeps per parameter, without the weight.
# adamw-bf16 keeps its moments in bfloat16 and no float32 copy of the weights.
OPTIMIZERS: Mapping[str, int] = {"adamw": 8, "adamw-bf16": 4, "momentum": 4, "sgd": 0}
# "selective": half of each layer's activations are computed again (half of the operators, or every second layer).
RECOMPUTE = ("none", "selective", "full")
# "fused": kernels fused by hand and communication overlapped, as in Megatron-LM, NeMo, Primus and llmq. "pytorch":
# FSDP, DeepSpeed and DDP with PyTorch's own kernels. "compiled": the same kernels, fused by torch.compile.
SOFTWARE = ("pytorch", "compiled", "fused")
# Bytes that the loss keeps per logit. "float32" keeps the logit in 2 bytes, and the logit, the logarithm of the softmax
# and the gradient in 4 bytes each. "compiled" keeps 2 + 4 bytes, because torch.compile fuses the copies of 4 bytes.
# "pieces" computes the loss in pieces, like Liger's kernels, and keeps nothing.
LOSSES: Mapping[str, int] = {"float32": 14, "compiled": 6, "pieces": 0}
COMPRESSIONS = ("none", "bfloat16", "float16", "powersgd")
# Types of matrix multiplications below 2 bytes. The rest of such a step (attention, activations, exchanges between
# ranks) uses bfloat16. float8 means FP8 or MXFP8; float4 means NVFP4 or MXFP4.
LOW_PRECISION = ("float8", "float4")
# The type of QLoRA's frozen weights: 4 bits, plus 0.127 bits for the quantised constants (Dettmers et al. 2023, section
# 3).
NF4 = "nf4"
NF4_BYTES = (4 + 0.127) / 8
# The parameters computed from the layer sizes may differ from `parameters` by this share.
_MOST_DISAGREEMENT = 0.05

Span = tuple[float, float]  # low and high end of an interval


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A model's parameters and layer sizes.

    None means unknown. If a calculation needs an unknown size, linkbench refuses the workload.

    `tokens`: the number of tokens of one sample.
    `head_size`: the width of one head, if this width differs from `hidden` / `heads`.
    `gated`: whether a feed-forward block has three matrices instead of two.
    `vocabulary`: None if the embedding and the output layer are negligible.
    `experts`: the number of feed-forward blocks per layer. A token uses `active_experts` of them.
    `flops_per_sample`: the operations of one forward and backward pass, if they cannot be computed from the layers.
    `patch`: the number of input elements of one token, if the tokens are not words.
    `classes`: the number of outputs of the last layer, if the outputs are not words.
    `blocks`, `channels`, `image`: the sizes of a residual network, which has no `layers` (core/residual.py).
    """

    parameters: float
    layers: int | None = None
    hidden: int | None = None
    feedforward: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    vocabulary: int | None = None
    tokens: int | None = None
    gated: bool = False
    experts: int = 1
    active_experts: int = 1
    flops_per_sample: float | None = None
    patch: int | None = None
    classes: int | None = None
    blocks: tuple[int, ...] = ()
    channels: int | None = None
    image: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for sizes that contradict each other."""
        if self.blocks:
            self._check_convolutions()
        if self.active_experts > self.experts:
            raise UsageError.of(Refusal.EXPERTS_ACTIVE, active=self.active_experts, experts=self.experts)
        by_layers = self.parameters_by_layers
        if by_layers is None:
            return
        if min(self._disagreements(by_layers)) > _MOST_DISAGREEMENT:
            raise UsageError.of(Refusal.PARAMETERS_DISAGREE, by_layers=by_layers, given=self.parameters)

    def _check_convolutions(self) -> None:
        if self.residual is None or self.layers is not None:
            raise UsageError.of(Refusal.CONVOLUTIONS_INCOMPLETE)
        by_layers = float(self.residual.parameters)
        if abs(by_layers / self.parameters - 1) > _MOST_DISAGREEMENT:
            raise UsageError.of(Refusal.PARAMETERS_DISAGREE, by_layers=by_layers, given=self.parameters)

    @property
    def residual(self) -> Residual | None:
        """The convolutional network with these sizes. None if the model is of another type, or if a size is unknown."""
        if not self.blocks or self.channels is None or self.image is None or self.classes is None:
            return None
        return Residual(self.blocks, self.channels, self.image, self.classes)

    @property
    def tied(self) -> bool:
        """Whether the embedding and the output layer share one matrix, according to the number of parameters."""
        if self.parameters_by_layers is None:
            return False
        apart, tied = self._disagreements(self.parameters_by_layers)
        return tied < apart

    def _disagreements(self, by_layers: float) -> tuple[float, float]:
        """Return the relative error of the number of parameters that the sizes imply.

        The first value assumes that the embedding and the output layer have separate matrices. The second value assumes
        that the embedding and the output layer share one matrix. Each error is computed with and without learned
        positions, and the smaller error is used.
        """
        once = by_layers - (self.hidden or 0) * (self.vocabulary or 0)
        positions = (self.hidden or 0) * (self.tokens or 0)
        apart, tied = (
            min(abs(each / self.parameters - 1), abs((each + positions) / self.parameters - 1))
            for each in (by_layers, once)
        )
        return apart, tied

    @property
    def attention_width(self) -> int | None:
        """The width of all heads together: heads x head_size, usually `hidden`."""
        if self.head_size is None or self.heads is None:
            return self.hidden
        return self.heads * self.head_size

    @property
    def shared_width(self) -> float:
        """The total width of all heads' keys, which equals that of all heads' values; 0 if `hidden` is unknown."""
        return (self.attention_width or 0) * (self.kv_heads or self.heads or 1) / (self.heads or 1)

    @property
    def attention_parameters(self) -> float | None:
        """The number of attention parameters per layer.

        Queries and output each have `hidden` x `attention_width` parameters. Keys and values each have `hidden` x
        `shared_width` parameters.
        """
        if self.hidden is None or self.attention_width is None:
            return None
        return self.hidden * (2 * self.attention_width + 2 * self.shared_width)

    @property
    def expert_parameters(self) -> float | None:
        """Parameters of one feed-forward block (one expert): two matrices, or three if gated."""
        if self.hidden is None or self.feedforward is None:
            return None
        return (3 if self.gated else 2) * self.hidden * self.feedforward

    @property
    def all_expert_parameters(self) -> float:
        """The parameters of all experts, which expert parallelism distributes, or 0 if there are no experts."""
        if self.experts == 1 or self.layers is None or self.expert_parameters is None:
            return 0.0
        return self.layers * self.experts * self.expert_parameters

    @property
    def parameters_by_layers(self) -> float | None:
        """The parameters of all matrices, the embedding and the output layer, without norms and biases.

        None if unknown.
        """
        attention, block = self.attention_parameters, self.expert_parameters
        if attention is None or block is None or self.layers is None or self.hidden is None:
            return None
        return self.layers * (attention + self.experts * block) + 2 * self.hidden * (self.vocabulary or 0)

    @property
    def active_parameters(self) -> float | None:
        """The parameters that multiply one token: all except the embedding (a look-up) and the inactive experts."""
        attention, block = self.attention_parameters, self.expert_parameters
        if attention is None or block is None or self.layers is None or self.hidden is None:
            return None
        return self.layers * (attention + self.active_experts * block) + self.hidden * (self.vocabulary or 0)


@dataclass(frozen=True, slots=True)
class Mesh:
    """The arrangement of ranks.

    The rank number runs first over tensor-parallel ranks, then over data-parallel ranks, and then over pipeline stages.

    `expert`: the number of data-parallel ranks that hold different experts.
    `shard`: the number of data-parallel ranks over which ZeRO shards. If it is smaller than the number of
        data-parallel ranks, there are several replicas (hybrid sharding). None means all data-parallel ranks.
    `sequence`: whether tensor-parallel ranks also divide the sequence outside of attention and the feed-forward block
        (sequence parallelism, Korthikanti et al. 2022). The number of bytes sent does not change.
    `context`: the number of ranks that divide the tokens of a sample. ZeRO also shards over these ranks.
    `interleave`: the number of parts of the model on each stage (interleaved schedule, Narayanan et al. 2021).
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    shard: int | None = None
    sequence: bool = True
    context: int = 1
    interleave: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """One training job.

    `batch`: the number of samples of one rank in a micro-batch.
    `accumulation`: the number of micro-batches in a step.

    `weights`, `gradients`: the stored element types.
    `compute`: the type of matrix multiplications and of weights that FSDP gathers.
    `bucket_bytes`: bytes of gradients that one call reduces. With DDP, None means torch's default: a first bucket
        of 1 MiB, and then buckets of 25 MiB. With ZeRO 1 and 2, None means the default of Megatron-LM.
    `overlap`: whether these calls run during the backward pass.
    `efficiency`: for each GPU model, the range (low, high) of the share that one GPU reaches of the data sheet's
        dense rate. The range of the key "" applies to all models.
    `baselines`: for each GPU model, the range (low, high) of the measured samples per second of one GPU.
    `lora`: the rank of the low-rank adapters of all matrices. All other weights are frozen (Hu et al. 2021).
    `software`: one of SOFTWARE, or None if unknown.
    `loss`: one of LOSSES.
    `sources`: the sources of the figures.
    `unverified`: the figures that were not read in a source.
    """

    name: str
    model: ModelSizes
    batch: int
    description: str = ""
    accumulation: int = 1
    weights: str = "float32"
    gradients: str = "float32"
    compute: str = "bfloat16"
    optimizer: str = "adamw"
    strategy: str = "ddp"
    bucket_bytes: int | None = None
    overlap: bool = True
    recompute: str = "none"
    compression: str = "none"
    rank: int | None = None
    lora: int | None = None
    software: str | None = None
    loss: str = "float32"
    mesh: Mesh = field(default_factory=Mesh)
    input_bytes: float | None = None
    epoch_samples: int | None = None
    efficiency: Mapping[str, Span] = field(default_factory=dict)
    baselines: Mapping[str, Span] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for settings that cannot be combined."""
        self._check_mesh()
        if self.compression != "none" and self.strategy != "ddp":
            raise UsageError.of(Refusal.COMPRESSION_WITHOUT_DDP, strategy=self.strategy)
        if self.weights == NF4 and self.lora is None:
            raise UsageError.of(Refusal.NF4_WITHOUT_LORA)
        if self.lora is not None and (self.model.layers is None or self.model.expert_parameters is None):
            raise UsageError.of(Refusal.LORA_WITHOUT_SIZES)
        if (self.compression == "powersgd") != (self.rank is not None):
            raise UsageError.of(Refusal.RANK_WITHOUT_POWERSGD)
        shapeless = self.model.parameters_by_layers is None or self.model.experts > 1
        if self.compression == "powersgd" and shapeless:
            raise UsageError.of(Refusal.POWERSGD_WITHOUT_SIZES)

    @property
    def verified(self) -> bool:
        """Whether all figures were read in a source."""
        return not self.unverified

    @property
    def state_bytes(self) -> int:
        """The bytes of the optimizer's state for each trained parameter.

        The state consists of the moments and, for weights narrower than float32, a float32 copy of the weights.
        """
        copied = self.weights != "float32" and self.optimizer != "adamw-bf16"
        return OPTIMIZERS[self.optimizer] + (4 if copied else 0)

    @property
    def fused(self) -> bool:
        """Whether the software fuses kernels.

        If the software is unknown, Megatron-LM (fused kernels) is assumed in two cases: for ZeRO 1, and for jobs
        without ZeRO that have several tensor-parallel ranks or several stages.
        """
        if self.software is not None:
            return self.software == "fused"
        split = max(self.mesh.tensor, self.mesh.pipeline) > 1
        return self.strategy == "zero1" or (self.strategy == "ddp" and split)

    @property
    def element(self) -> str:
        """The element type of activations.

        The exchanged weights and gradients of a layer also have this element type.
        """
        return "bfloat16" if self.compute in LOW_PRECISION else self.compute

    def _check_mesh(self) -> None:
        mesh, model = self.mesh, self.model
        divided = max(mesh.tensor, mesh.pipeline, mesh.expert, mesh.context) > 1 or self.strategy == "zero3"
        if model.blocks and divided:
            raise UsageError.of(Refusal.CONVOLUTIONS_DIVIDED)
        if mesh.expert > 1 and model.experts % mesh.expert:
            raise UsageError.of(Refusal.EXPERTS_NOT_DIVISIBLE, experts=model.experts, ranks=mesh.expert)
        if mesh.tensor > 1 and (model.heads is None or model.heads % mesh.tensor):
            raise UsageError.of(Refusal.HEADS_NOT_DIVISIBLE, heads=model.heads or "unknown", tensor=mesh.tensor)
        if mesh.pipeline > 1 and (model.layers is None or model.layers < mesh.pipeline):
            raise UsageError.of(Refusal.LAYERS_TOO_FEW, layers=model.layers or "unknown", pipeline=mesh.pipeline)
        if mesh.shard is not None and self.strategy != "zero3":
            raise UsageError.of(Refusal.SHARD_WITHOUT_ZERO3, strategy=self.strategy)
        if mesh.interleave > 1 and (mesh.pipeline == 1 or (model.layers or 0) < mesh.pipeline * mesh.interleave / 2):
            raise UsageError.of(
                Refusal.INTERLEAVE_TOO_LARGE,
                layers=model.layers or "unknown",
                pipeline=mesh.pipeline,
                interleave=mesh.interleave,
            )
        if mesh.context > 1 and (model.tokens or mesh.context) % mesh.context:
            raise UsageError.of(Refusal.TOKENS_NOT_DIVISIBLE, tokens=model.tokens or "unknown", context=mesh.context)
        needed = "hidden" if model.hidden is None else "tokens" if model.tokens is None else None
        if needed and max(mesh.tensor, mesh.pipeline, mesh.expert, mesh.context) > 1:
            raise UsageError.of(Refusal.ACTIVATIONS_UNKNOWN, field=needed)
