"""Turn published training runs into observations of the fit (predict/effects.py)."""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import TYPE_CHECKING

from bench.hardware import catalogue
from bench.predict.candidate import LOST_TO_OVERLAP, Exchanges, predicted_exchanges
from bench.predict.compute import MEMORY_SHARE, update_bytes
from bench.predict.effects import EVERYTHING, TERMS, Effect, Observation, effects_of
from bench.predict.kernels import kernels, product_share
from bench.predict.layout import layout
from bench.predict.step import step
from bench.predict.training_runs import TrainingRun, runs

if TYPE_CHECKING:
    from bench.predict.predict import EfficiencyEvidence

_SMALL = 0.01  # change of an exponent from which the derivative is computed


def observations(evidence: EfficiencyEvidence) -> list[Observation]:
    """Return all published runs as observations, with communication predicted from `evidence`."""
    return [observation(run, exchanges_of(run, evidence)) for run in runs()]


def exchanges_of(run: TrainingRun, evidence: EfficiencyEvidence) -> Exchanges:
    """Return the predicted communication of a run."""
    found = layout(run.workload, run.num_nodes, run.gpus_per_node)
    return predicted_exchanges(found, catalogue.instance(run.instance).links, evidence)


def observation(run: TrainingRun, exchanges: Exchanges) -> Observation:
    """Return a run with its predicted time at the prior means, and the derivatives of this time."""
    import numpy as np

    workload, gpu = run.workload, catalogue.gpu(run.gpu)
    found = layout(workload, run.num_nodes, run.gpus_per_node)
    effects = effects_of(gpu, workload, product_share(gpu)[1])
    each = kernels(found, gpu)
    seconds = [
        value * exp(_mean(term, effects))
        for term, value in zip(TERMS, (each.products_s, each.attention_s, each.memory_s), strict=True)
    ]
    # The first entry is the prediction. Each other entry has one exponent changed.
    changed = np.ones((len(TERMS), len(TERMS) + 1))
    for k in range(len(TERMS)):
        changed[k, k + 1] = exp(_SMALL)
    passes_s = np.asarray(seconds) @ changed
    ones = np.ones(len(TERMS) + 1)
    share = sqrt(MEMORY_SHARE[0] * MEMORY_SHARE[1])
    update_s = update_bytes(found)[0] / (gpu.memory_bytes_per_s or inf) / share * ones
    by_call = {id(call): prediction.centre_s * ones for call, prediction in exchanges}
    times = step(
        found,
        passes_s,
        update_s,
        lambda call: by_call[id(call)],
        [call for call, _ in exchanges],
        LOST_TO_OVERLAP[1] * ones,
        0.0 * ones,
        shares_link=False,
    )
    total = np.asarray(times.total_s)
    measured = found.samples / found.num_gpus / run.samples_per_s_per_gpu
    return Observation(
        source=run.source,
        architecture=gpu.architecture,
        effects=effects,
        log_ratio=log(measured / float(total[0])),
        shares={term: log(float(total[k + 1] / total[0])) / _SMALL for k, term in enumerate(TERMS)},
        exchange_share=float(times.exposed_s[0] / total[0]),
    )


def _mean(term: str, effects: tuple[Effect, ...]) -> float:
    return sum(effect.mean for effect in effects if effect.target in (term, EVERYTHING))
