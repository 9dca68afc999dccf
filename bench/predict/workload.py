"""What is trained, and how it is spread over GPUs: a model by its layers, a step, and the mesh of ranks.

Pure data: predict/workload_file.py reads it from YAML, predict/training.py turns it into collectives.
Sizes in bytes, counts as numbers, operations in FLOP (a multiplication and an addition are two).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.core.errors import UsageError

# How data-parallel ranks share what they keep; the stages of ZeRO (Rajbhandari et al., SC20), fsdp is stage 3.
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
# Bytes that an optimizer keeps for each parameter beside the weight, in float32, and passes over them in an update.
OPTIMIZERS: Mapping[str, int] = {"adamw": 8, "momentum": 4, "sgd": 0}
RECOMPUTE = ("none", "full")
COMPRESSIONS = ("none", "bfloat16", "float16", "powersgd")
# A layer's parameters by its sizes must agree with the number that is given.
_MOST_DISAGREEMENT = 0.05

Span = tuple[float, float]  # low and high ends of what is not known better


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A model by its parameters and the sizes of its layers; None: unknown, and what needs it is refused.

    `tokens`: of one sample. `gated`: three feed-forward matrices instead of two. `vocabulary` None: no embedding and no
    output layer that matter. `experts`: feed-forward blocks of a layer, of which a token goes through `active_experts`.
    `flops_per_sample`: of one forward and backward pass, where the layers do not say it.
    """

    parameters: float
    layers: int | None = None
    hidden: int | None = None
    feedforward: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocabulary: int | None = None
    tokens: int | None = None
    gated: bool = False
    experts: int = 1
    active_experts: int = 1
    flops_per_sample: float | None = None

    def __post_init__(self) -> None:
        """Refuse figures that contradict each other."""
        if self.active_experts > self.experts:
            raise UsageError(f"a token can not go through {self.active_experts} of {self.experts} experts")
        by_layers = self.parameters_by_layers
        if by_layers is not None and abs(by_layers / self.parameters - 1) > _MOST_DISAGREEMENT:
            raise UsageError(
                f"the layers have {by_layers:.4g} parameters, not {self.parameters:.4g}: correct `parameters`, the "
                "sizes, `gated` or `vocabulary`"
            )

    @property
    def attention_parameters(self) -> float | None:
        """Of one layer: h x h for queries and output, h x h x kv_heads / heads for keys and values."""
        if self.hidden is None:
            return None
        shared = (self.kv_heads or self.heads or 1) / (self.heads or 1)
        return self.hidden**2 * (2 + 2 * shared)

    @property
    def expert_parameters(self) -> float | None:
        """Of one feed-forward block (of which a layer of experts has several): two matrices, or three."""
        if self.hidden is None or self.feedforward is None:
            return None
        return (3 if self.gated else 2) * self.hidden * self.feedforward

    @property
    def all_expert_parameters(self) -> float:
        """Those that expert parallelism spreads: the feed-forward blocks of all experts; 0 without experts."""
        if self.experts == 1 or self.layers is None or self.expert_parameters is None:
            return 0.0
        return self.layers * self.experts * self.expert_parameters

    @property
    def parameters_by_layers(self) -> float | None:
        """Matrices of all layers, embedding and output layer, without norms and biases. None: sizes are unknown."""
        attention, block = self.attention_parameters, self.expert_parameters
        if attention is None or block is None or self.layers is None or self.hidden is None:
            return None
        return self.layers * (attention + self.experts * block) + 2 * self.hidden * (self.vocabulary or 0)

    @property
    def active_parameters(self) -> float | None:
        """Those that one token is multiplied with: all but the embedding (a look-up) and the experts not taken."""
        attention, block = self.attention_parameters, self.expert_parameters
        if attention is None or block is None or self.layers is None or self.hidden is None:
            return None
        return self.layers * (attention + self.active_experts * block) + self.hidden * (self.vocabulary or 0)


@dataclass(frozen=True, slots=True)
class Mesh:
    """How ranks are arranged: the tensor-parallel are neighbours, then come the data-parallel, outermost the pipeline.

    `expert`: so many of the data-parallel ranks hold different experts. `shard`: ZeRO spreads over so many of them and
    replicates the rest (hybrid sharding); None: over all.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """One training job. `batch`: samples of a data-parallel rank in a micro-batch; `accumulation` of them make a step.

    `weights`, `gradients`: element types kept; `compute`: of matrix multiplications (and of what FSDP gathers).
    `bucket_bytes`: gradients reduced together (DDP); `overlap`: while the backward pass goes on.
    `efficiency`: achieved fraction of a data sheet's dense rate on one GPU alone, by GPU model, "" for all (low, high).
    `baselines`: measured samples per second of one GPU alone, by GPU model (low, high).
    `sources`: where its figures come from; `verified`: all of them were read there.
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
    bucket_bytes: int = 25 << 20
    overlap: bool = True
    recompute: str = "none"
    compression: str = "none"
    rank: int | None = None
    mesh: Mesh = field(default_factory=Mesh)
    input_bytes: float | None = None
    epoch_samples: int | None = None
    efficiency: Mapping[str, Span] = field(default_factory=dict)
    baselines: Mapping[str, Span] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    verified: bool = True

    def __post_init__(self) -> None:
        """Refuse what can not be trained this way."""
        self._check_mesh()
        if self.compression != "none" and self.strategy != "ddp":
            raise UsageError(f"compression is DDP's: with strategy {self.strategy} give `compression: none`")
        if (self.compression == "powersgd") != (self.rank is not None):
            raise UsageError("`compression: powersgd` needs its `rank`, and nothing else has one")
        shapeless = self.model.parameters_by_layers is None or self.model.experts > 1
        if self.compression == "powersgd" and shapeless:
            raise UsageError(
                "PowerSGD's bytes follow from matrices: give layers, hidden and feedforward, and no experts"
            )

    def _check_mesh(self) -> None:
        mesh, model = self.mesh, self.model
        if mesh.expert > 1 and model.experts % mesh.expert:
            raise UsageError(f"{model.experts} experts can not be spread over {mesh.expert} ranks: give a divisor")
        if mesh.tensor > 1 and (model.heads is None or model.heads % mesh.tensor):
            raise UsageError(f"{model.heads or 'unknown'} heads can not be split over tensor: {mesh.tensor}")
        if mesh.pipeline > 1 and (model.layers is None or model.layers % mesh.pipeline):
            raise UsageError(f"{model.layers or 'unknown'} layers can not be split over pipeline: {mesh.pipeline}")
        if mesh.shard is not None and self.strategy != "zero3":
            raise UsageError(f"`shard` is hybrid sharding, which is strategy zero3's, not {self.strategy}'s")
        if mesh.pipeline > 1 and self.strategy == "zero3":
            raise UsageError("zero3 in a pipeline would gather the weights again for every micro-batch: give zero1")
        needed = "hidden" if model.hidden is None else "tokens" if model.tokens is None else None
        if needed and max(mesh.tensor, mesh.pipeline, mesh.expert) > 1:
            raise UsageError(f"tensor, pipeline and expert parallelism send activations: give `{needed}` of the model")
