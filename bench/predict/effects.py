"""Compute how much slower training is than the data sheet's rates allow, from effects fitted to published runs.

The seconds of a step are `products x e^a + attention x e^b + memory x e^c`, plus the predicted communication.
`products`, `attention` and `memory` are the seconds of predict/kernels.py. Each of the exponents a, b and c is a sum of
effects. The effects `products`, `attention` and `memory` are common to all runs. Other effects belong to a GPU model,
its architecture, an element type, the software, or a type of model. Each effect has a prior. Near the prior means, the
logarithm of the measured time is linear in the effects to first order. The fit is therefore one linear Gaussian
regression, in which sources and runs have noise of their own. (Robinson, "That BLUP is a good thing", 1991; Gelman and
Hill, "Data Analysis Using Regression and Multilevel/Hierarchical Models", 2007, chapter 12.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from typing import TYPE_CHECKING, Any

from bench.hardware.catalogue import GpuModel, yaml_file
from bench.predict.workload import LOW_PRECISION, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

TERMS = ("products", "attention", "memory")
RARE = ("experts", "adapters")
EVERYTHING = "everything"  # the target of an effect on all three terms
# Means and standard deviations of the priors, and standard deviations of the noise: round numbers. The deviations of
# the noise were chosen with regard to the held-out errors and intervals (docs/prediction.md).
_PRIOR = {"products": (log(1.2), 0.2), "attention": (log(1.5), 0.3), "memory": (log(1.1), 0.4)}
_SD = {
    "architecture": 0.07,
    "attention on": 0.25,
    "GPU": 0.05,
    "typical GPU": 0.07,  # a GPU whose best matrix product was never measured
    "experts": 0.25,
    "adapters": 0.2,
    "float8": 0.15,
    "float4": 0.2,
    "recomputation": 0.1,
    "fused software": 0.15,
    "compiled": 0.15,
}
SD_SOURCE = {EVERYTHING: 0.04, "attention": 0.25, "memory": 0.3}  # noise of a source: its software and settings
SD_PLACE = 0.05  # additional noise of a source on one architecture, on all terms
SD_RUN = 0.06  # noise of one run
SD_RARE = 0.15  # additional noise of one run with experts or adapters
SD_EXCHANGE = 0.3  # error of the predicted communication, as a share of it


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect: its name, the term of the step time that it slows down (or EVERYTHING), and its prior."""

    name: str
    target: str
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step for the fit.

    Steps of one `source` share one part of their noise. Steps of one source on one `architecture` share a second part
    of their noise.

    `effects`: the effects that apply to this step.
    `log_ratio`: ln(measured seconds / predicted seconds), where the prediction uses the prior means of all effects.
    `shares`: for each term, the derivative of ln(predicted seconds) with respect to the term's exponent.
    `exchange_share`: the part of the predicted time that is communication.
    """

    source: str
    architecture: str
    effects: tuple[Effect, ...]
    log_ratio: float
    shares: Mapping[str, float]
    exchange_share: float

    @property
    def rare(self) -> bool:
        """Whether the job has experts or adapters. Runs with experts or adapters differ more from each other."""
        return any(effect.name in RARE for effect in self.effects)

    def share(self, target: str) -> float:
        """Return the derivative of ln(predicted seconds) with respect to the exponent of `target`.

        If `target` is EVERYTHING, all three exponents change together.
        """
        return sum(self.shares.values()) if target == EVERYTHING else self.shares[target]


@dataclass(frozen=True, slots=True)
class FittedEffects:
    """The names and means of fitted effects, and the rows of the lower Cholesky factor of their covariance."""

    names: tuple[str, ...]
    means: tuple[float, ...]
    factor: tuple[tuple[float, ...], ...]

    def mean(self, effect: Effect) -> float:
        """Return the mean of an effect. If no run had the effect, return the mean of its prior."""
        return self.means[self.names.index(effect.name)] if effect.name in self.names else effect.mean


def effects_of(gpu: GpuModel, workload: Workload, share_from: str) -> tuple[Effect, ...]:
    """Return the effects that apply to a job on a GPU.

    `share_from`: the source of the GPU's best matrix product, see `kernels.product_share`. If the user measured
        this product, the effect of the GPU model has another name. The effect that was fitted to published runs does
        not apply, because these runs were compared with another product.
    """
    found = [Effect(name, name, *_PRIOR[name]) for name in TERMS]
    found.append(Effect(f"everything on {gpu.architecture}", EVERYTHING, 0.0, _SD["architecture"]))
    found.append(Effect(f"attention on {gpu.architecture}", "attention", 0.0, _SD["attention on"]))
    name = f"everything on {gpu.name}" + (", own product" if share_from == "measured" else "")
    found.append(Effect(name, EVERYTHING, 0.0, _SD["typical GPU" if share_from == "typical" else "GPU"]))
    if workload.compute in LOW_PRECISION:
        found.append(Effect(workload.compute, "products", 0.0, _SD[workload.compute]))
    for name, applies in (
        ("experts", workload.model.experts > 1),
        ("adapters", workload.lora is not None),
        ("recomputation", workload.recompute == "full"),
        ("fused software", workload.fused),
        ("compiled", workload.software == "compiled"),
    ):
        if applies:
            found.append(Effect(name, EVERYTHING, 0.0, _SD[name]))
    return tuple(found)


def fit(observations: Sequence[Observation]) -> FittedEffects:
    """Return the effects fitted to these runs. Without runs, all effects keep their priors."""
    import numpy as np

    known = {effect.name: effect for each in observations for effect in each.effects}
    names = sorted(known, key=lambda name: (name not in TERMS, name))
    prior = np.diag([known[name].deviation ** 2 for name in names])
    if not observations:
        return FittedEffects((), (), ())
    design = np.array([[_derivative(each, known[name]) for name in names] for each in observations])
    noise = _noise(observations)
    values = np.array([each.log_ratio for each in observations])
    gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + noise)
    means = np.array([known[name].mean for name in names]) + gain @ values
    covariance = prior - gain @ design @ prior
    factor = np.linalg.cholesky((covariance + covariance.T) / 2 + 1e-12 * np.eye(len(names)))
    return FittedEffects(
        tuple(names), tuple(float(each) for each in means), tuple(tuple(map(float, row)) for row in factor)
    )


def _derivative(each: Observation, effect: Effect) -> float:
    """Return the derivative of ln(predicted seconds) with respect to an effect.

    If the effect does not apply to this step, the result is 0.
    """
    return each.share(effect.target) if effect in each.effects else 0.0


def _noise(observations: Sequence[Observation]) -> NDArray[Any]:
    """Return the covariance of the noise.

    The noise consists of three parts: one per source, one per source and architecture, and one per run.
    """
    import numpy as np

    own = [SD_RUN**2 + SD_RARE**2 * each.rare + (SD_EXCHANGE * each.exchange_share) ** 2 for each in observations]
    noise = np.diag(own)
    source = np.array([each.source for each in observations])
    place = np.array([f"{each.source} {each.architecture}" for each in observations])
    whole = np.array([each.share(EVERYTHING) for each in observations])
    shared = SD_PLACE**2 * np.outer(whole, whole) * np.equal.outer(place, place)
    for target, deviation in SD_SOURCE.items():
        share = np.array([each.share(target) for each in observations])
        shared = shared + deviation**2 * np.outer(share, share) * np.equal.outer(source, source)
    return np.asarray(noise + shared)


@cache
def published_effects() -> FittedEffects:
    """Return the effects of all published runs, from hardware/training_fit.yaml (benchmarks/training_fit.py)."""
    file = yaml_file("training_fit")
    names = tuple(file["effects"])
    size = len(names)
    rows = [each["factor"] for each in file["effects"].values()]
    return FittedEffects(
        names,
        tuple(each["mean"] for each in file["effects"].values()),
        tuple(tuple(row) + (0.0,) * (size - len(row)) for row in rows),
    )
