"""Read published training runs (hardware/training.yaml): the job, the machine, and the stated throughput."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from bench.hardware import catalogue
from bench.hardware.catalogue import yaml_file
from bench.predict.operations import flops_per_sample
from bench.predict.workload import Mesh, ModelSizes, Workload

_MESH = ("tensor", "pipeline", "context", "interleave", "expert", "shard")


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A published run: the workload, the machine, and the measured samples per second of one GPU.

    `memory_gib`: the memory that one GPU used, in GiB. None means that the source does not state this memory.
    `release`: the version of the software, or "" if the source used only one version.
    """

    workload: Workload
    source: str
    instance: str
    gpu: str
    num_nodes: int
    gpus_per_node: int
    samples_per_s_per_gpu: float
    memory_gib: float | None
    release: str = ""

    @property
    def num_gpus(self) -> int:
        """The total number of GPUs on all nodes."""
        return self.num_nodes * self.gpus_per_node

    @property
    def architecture(self) -> str:
        """The architecture of the GPU, as the catalogue calls it."""
        return catalogue.gpu(self.gpu).architecture

    @property
    def model_family(self) -> str:
        """The name of the type of model, such as `gated below 10B`.

        The type depends on the feed-forward blocks and, for a dense model, on the size.
        """
        model = self.workload.model
        if model.experts > 1:
            return "experts"
        return f"{'gated' if model.gated else 'plain'} {'below' if model.parameters < 10e9 else 'above'} 10B"

    @property
    def family(self) -> str:
        """The class of the run: its source, the GPU's architecture, and the type of model."""
        return f"{self.source}, {self.architecture}, {self.model_family}"


@cache
def runs() -> tuple[TrainingRun, ...]:
    """Return all published runs, in the order of the file."""
    file = yaml_file("training")
    return tuple(_run(file, entry) for entry in file["runs"])


def _run(file: dict[str, Any], entry: dict[str, Any]) -> TrainingRun:
    sizes = ModelSizes(**file["models"][entry["model"]])
    workload = Workload(
        name=entry["note"],
        model=sizes,
        batch=entry["batch"],
        accumulation=entry["accumulation"],
        weights=entry["weights"],
        gradients=entry["weights"],
        compute=entry.get("compute", "bfloat16"),
        optimizer=entry.get("optimizer", "adamw"),
        recompute=entry["recompute"],
        strategy=entry["strategy"],
        lora=entry.get("lora"),
        software=entry.get("software", file["sources"][entry["source"]]["software"]),
        loss=entry.get("loss", "float32"),
        mesh=Mesh(**{name: entry[name] for name in _MESH if name in entry}),
    )
    if "tflops_per_gpu" in entry:
        samples_per_s = entry["tflops_per_gpu"] * 1e12 / flops_per_sample(sizes, workload.lora)[0]
    else:
        samples_per_s = entry["tokens_per_s_per_gpu"] / (sizes.tokens or 1)
    return TrainingRun(
        workload=workload,
        source=entry["source"],
        instance=entry["instance"],
        gpu=entry["gpu"],
        num_nodes=entry["nodes"],
        gpus_per_node=entry["gpus_per_node"],
        samples_per_s_per_gpu=samples_per_s,
        memory_gib=entry.get("memory_gib"),
        release=entry.get("release", ""),
    )
