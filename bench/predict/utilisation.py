"""The achieved share of the data sheet's dense rate in training, from published runs (hardware/training.yaml).

The logarithm of a share is the sum of random effects: one for all runs, one of the GPU's architecture, one of the
source (its software and settings), one of the recomputation, one of each combination, and the rest of each run.
Their standard deviations below are round assumptions, not fitted. The prediction is the best linear one given the runs
(Robinson, "That BLUP is a good thing", 1991): an architecture with few sources stays near the mean of all, and a
hundred runs of one source weigh little more than ten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log, sqrt
from typing import Any

from bench.hardware import catalogue
from bench.hardware.catalogue import GpuModel, yaml_file
from bench.predict.operations import REPEATED_PASSES, flops_per_sample
from bench.predict.workload import Mesh, ModelSizes, Workload

PRIOR_SHARE = 0.5  # before any run is known: half of the data sheet
_SD_ALL = 0.2
_SD_ARCHITECTURE = 0.2
_SD_SOURCE = 0.12
_SD_RECOMPUTE = 0.12
_SD_COMBINATION = 0.06  # of architecture, source and recomputation
_SD_RUN = 0.06
_SD_OTHER_CHIP = 0.15  # a GPU of a known architecture of which no run is published
_SD_OTHER_KIND = 0.15  # a kind of model (model_kind) of which no run is published


def model_kind(model: ModelSizes) -> str:
    """Return the kind of model whose shares are alike: a language model has a vocabulary."""
    return "other" if model.vocabulary is None else "language"


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A published run: the workload, the machine, and the measured samples per second of one GPU.

    `memory_gib`: the memory that one GPU used, in GiB; None if the source does not print it.
    """

    workload: Workload
    source: str
    instance: str
    gpu: str
    num_nodes: int
    gpus_per_node: int
    samples_per_s_per_gpu: float
    share: float
    memory_gib: float | None

    @property
    def architecture(self) -> str:
        """The architecture of the GPU, as the catalogue calls it."""
        return catalogue.gpu(self.gpu).architecture

    @property
    def model_family(self) -> str:
        """A name of the model's kind: its feed-forward blocks and its size."""
        model = self.workload.model
        return f"{'gated' if model.gated else 'plain'} {'below' if model.parameters < 10e9 else 'above'} 10B"


@dataclass(frozen=True, slots=True)
class SharePrediction:
    """The predicted share: its median, and the standard deviations of its logarithm.

    `sd_gpu`: the part that differs between architectures. `sd_shared`: the rest, the same for all GPUs that run one
    job, so that it cancels in a ratio. `num_runs`, `num_sources`: the runs of this architecture.
    """

    median: float
    sd_gpu: float
    sd_shared: float
    num_runs: int
    num_sources: int


@cache
def runs() -> tuple[TrainingRun, ...]:
    """Return all published runs, in the order of the file."""
    file = yaml_file("training")
    return tuple(_run(file, entry) for entry in file["runs"])


def predicted_share(
    gpu: GpuModel, recompute: str, kind: str, without: Callable[[TrainingRun], bool] | None = None
) -> SharePrediction:
    """Return the predicted share of the operations, the repeated ones included, for a source that is not published.

    `kind`: model_kind of the trained model. `without`: tells the runs that must not be used.
    """
    if without is None:
        return _known(gpu.name, recompute, kind)
    return _from([run for run in runs() if not without(run)], gpu, recompute, kind)


@cache
def _known(gpu: str, recompute: str, kind: str) -> SharePrediction:
    return _from(runs(), catalogue.gpu(gpu), recompute, kind)


def _from(known: Sequence[TrainingRun], gpu: GpuModel, recompute: str, kind: str) -> SharePrediction:
    import numpy as np

    cells: dict[tuple[str, str, str], list[float]] = {}
    for run in known:
        cells.setdefault((run.architecture, run.source, run.workload.recompute), []).append(
            log(run.share / PRIOR_SHARE)
        )
    asked = (gpu.architecture, "", recompute)
    own_chip = any(run.gpu == gpu.name for run in known)
    extra = 0.0 if own_chip else _SD_OTHER_CHIP
    own = [run for run in known if run.architecture == gpu.architecture]
    counted = len(own), len({run.source for run in own})
    residual = _SD_SOURCE**2 + _SD_COMBINATION**2 + _SD_RUN**2
    own_kind = any(model_kind(run.workload.model) == kind for run in known)
    of_kind = 0.0 if own_kind else _SD_OTHER_KIND**2
    if not cells:
        gpu_sd = sqrt(_SD_ARCHITECTURE**2 + extra**2)
        shared = _SD_ALL**2 + _SD_RECOMPUTE**2 + residual + of_kind
        return SharePrediction(PRIOR_SHARE, gpu_sd, sqrt(shared), *counted)
    keys = list(cells)
    noise = np.diag([_SD_COMBINATION**2 + _SD_RUN**2 / len(cells[key]) for key in keys])
    weights = np.linalg.inv(np.array([[_shared(a, b) for b in keys] for a in keys]) + noise)
    means = np.array([float(np.median(cells[key])) for key in keys])
    towards = np.array([_shared(asked, key) for key in keys])
    architecture = np.array([_SD_ARCHITECTURE**2 * (asked[0] == key[0]) for key in keys])
    known_part = _SD_ALL**2 + _SD_ARCHITECTURE**2 + _SD_RECOMPUTE**2
    variance = known_part - float(towards @ weights @ towards) + residual
    of_gpu = _SD_ARCHITECTURE**2 - float(architecture @ weights @ architecture)
    of_gpu = min(of_gpu, variance / 2)
    centre = PRIOR_SHARE * exp(float(towards @ weights @ means))
    return SharePrediction(min(centre, 1.0), sqrt(of_gpu + extra**2), sqrt(variance - of_gpu + of_kind), *counted)


def _shared(a: tuple[str, str, str], b: tuple[str, str, str]) -> float:
    """Return the covariance of the effects that two combinations share."""
    architecture, source, recompute = (x == y for x, y in zip(a, b, strict=True))
    return (
        _SD_ALL**2
        + _SD_ARCHITECTURE**2 * architecture
        + _SD_SOURCE**2 * (source and bool(a[1]))
        + _SD_RECOMPUTE**2 * recompute
    )


def _run(file: dict[str, Any], entry: dict[str, Any]) -> TrainingRun:
    sizes = ModelSizes(**file["models"][entry["model"]])
    workload = Workload(
        name=entry["note"],
        model=sizes,
        batch=entry["batch"],
        accumulation=entry["accumulation"],
        weights=entry["weights"],
        gradients=entry["weights"],
        recompute=entry["recompute"],
        strategy=entry["strategy"],
        mesh=Mesh(tensor=entry.get("tensor", 1), pipeline=entry.get("pipeline", 1)),
    )
    flops = flops_per_sample(sizes)[0]
    if "tflops_per_gpu" in entry:
        samples_per_s = entry["tflops_per_gpu"] * 1e12 / flops
    else:
        samples_per_s = entry["tokens_per_s_per_gpu"] / (sizes.tokens or 1)
    rate = catalogue.gpu(entry["gpu"]).flops["bf16"]
    return TrainingRun(
        workload=workload,
        source=entry["source"],
        instance=entry["instance"],
        gpu=entry["gpu"],
        num_nodes=entry["nodes"],
        gpus_per_node=entry["gpus_per_node"],
        samples_per_s_per_gpu=samples_per_s,
        share=samples_per_s * flops * REPEATED_PASSES[entry["recompute"]] / rate,
        memory_gib=entry.get("memory_gib"),
    )
