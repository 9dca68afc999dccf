"""One workload on so many nodes of one instance type: the step's time, what limits it, what it costs, and how it comes.

Unknowns are drawn by name (predict/draws.py): those of the workload are the same draws on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from bench.core.errors import UsageError
from bench.core.links import NVLINK_PEERS
from bench.hardware import catalogue, reference
from bench.hardware.catalogue import GpuModel, Instance
from bench.predict import cost, predict
from bench.predict.compute import Compute, Rates, compute
from bench.predict.cost import Priced
from bench.predict.draws import DrawnRange, Draws, range_of
from bench.predict.exchanges import Exchanges, has_middle, predicted
from bench.predict.memory import DoesNotFitError, Need, need
from bench.predict.predict import BASES, EfficiencyEvidence, Prediction
from bench.predict.step import StepTime, step
from bench.predict.training import ParallelLayout, layout
from bench.predict.workload import Workload

# Of the time of hidden communication, what is lost again because computing beside it is slower: mean and most of what
# was measured on A100, H100, MI210 and MI250 (arXiv 2507.03114, 2025: 18.9 % on average, 40 % at most).
LOST_TO_OVERLAP = (0.0, 0.189, 0.4)
_OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class SelectionQuestion:
    """What is asked of every machine alike. `rates`: FLOP/s of products of matrices that own runs measured."""

    workload: Workload
    evidence: EfficiencyEvidence
    today: date
    region: str | None = None
    price_on: date | None = None
    prices: Mapping[str, float] | None = None
    gpus_per_node: int | None = None
    rates: Rates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer. Ranges are intervals of CONFIDENCE with their median; seconds, samples per second, dollars.

    `sample_s`, `sample_usd`: per sample, draw by draw; `sample_usd` None: no price is known. `exchanges`: every
    communication with its prediction. `bases`: what compute, exposed communication and feed rest on ("" where there is
    none). `unknowns`: name of a draw -> (what it is, the command that would measure it). `remarks`: what a reader must
    know.
    """

    instance: Instance
    gpu: GpuModel
    layout: ParallelLayout
    need: Need
    compute: Compute
    step: StepTime
    exchanges: Exchanges
    feed: Prediction | None
    priced: Priced
    sample_s: Any
    sample_usd: Any
    bases: Mapping[str, str]
    unknowns: Mapping[str, tuple[str, str]]
    verified: bool
    remarks: tuple[str, ...]

    @property
    def name(self) -> str:
        """`p4d.24xlarge`, `2 x p4d.24xlarge`."""
        nodes = self.layout.num_nodes
        return self.instance.name if nodes == 1 else f"{nodes} x {self.instance.name}"

    def range(self, part: str) -> DrawnRange:
        """Of a part of the step: total_s, compute_s, bubble_s, exposed_s, feed_s, exchange_s."""
        return range_of(getattr(self.step, part))

    @property
    def has_middle(self) -> bool:
        """Is more than an interval known of its communication, but for calls that hardly matter?"""
        return has_middle(self.exchanges)

    @property
    def samples_per_s(self) -> DrawnRange:
        """All GPUs together."""
        return range_of(1 / self.sample_s)

    def usd(self, samples: int) -> DrawnRange | None:
        """Of so many samples; None without a price."""
        return None if self.sample_usd is None else range_of(self.sample_usd * samples)

    @property
    def usd_per_hour(self) -> float | None:
        """Of all nodes."""
        per_s = self.priced.usd_per_s(self.layout.num_nodes)
        return None if per_s is None else per_s * 3600

    @property
    def usd_per_hour_waiting(self) -> DrawnRange | None:
        """Of every hour paid, what goes by while communication is waited for."""
        if self.usd_per_hour is None:
            return None
        return range_of(self.usd_per_hour * self.step.exposed_s / self.step.total_s)

    @property
    def basis(self) -> str:
        """Of the whole step: all that its parts rest on."""
        return "+".join(dict.fromkeys(filter(None, self.bases.values())))

    @property
    def bottleneck(self) -> str:
        """The largest part of the step by name; of the exposed communication, the link of its longest part."""
        parts = {part: self.range(part).middle for part in ("compute_s", "bubble_s", "exposed_s", "feed_s")}
        largest = max(parts, key=lambda part: parts[part])
        if largest == "exposed_s" and self.exchanges:
            _, longest = max(self.exchanges, key=lambda pair: pair[0].calls * (pair[1].low_s + pair[1].high_s))
            return f"exchange: {longest.bottleneck}"
        return {"compute_s": "compute", "bubble_s": "pipeline bubble", "feed_s": "host-to-device feed"}[largest]


def candidate(instance: Instance, num_nodes: int, question: SelectionQuestion, draws: Draws) -> Candidate:
    """Evaluate one machine. Raises UsageError, in one sentence, when it can not do it."""
    workload, gpu = question.workload, catalogue.gpu(instance.gpu)
    per_node = question.gpus_per_node or instance.gpus
    if per_node > instance.gpus:
        raise UsageError(
            f"{instance.name} has {instance.gpus} GPUs, not {per_node}: give --gpus {instance.gpus} or less"
        )
    found = layout(workload, num_nodes, per_node)
    needed = _fitting(found, gpu)
    exchanges = predicted(found, instance.links, question.evidence)
    computed = compute(found, gpu, draws, question.rates)
    feed, remarks = _feed(found, instance, question.evidence)
    seconds = {id(each): draws.predicted(_links_name(prediction), prediction) for each, prediction in exchanges}
    times = step(
        found,
        computed.passes_s,
        computed.update_s,
        lambda each: seconds[id(each)],
        [each for each, _ in exchanges],
        draws.linear(_OVERLAP, *LOST_TO_OVERLAP),
        0.0 * draws.ones if feed is None else draws.predicted(f"copies {feed.machine}", feed),
        shares_link=instance.links.peer not in NVLINK_PEERS,
    )
    priced = cost.priced(instance, question.today, question.region, question.price_on, question.prices)
    per_s = priced.usd_per_s(num_nodes)
    sample_s = times.total_s / found.samples
    return Candidate(
        instance=instance,
        gpu=gpu,
        layout=found,
        need=needed,
        compute=computed,
        step=times,
        exchanges=exchanges,
        feed=feed,
        priced=priced,
        sample_s=sample_s,
        sample_usd=None if per_s is None else sample_s * per_s,
        bases={
            "compute": computed.basis,
            "exchange": _weakest([prediction for _, prediction in exchanges]),
            "feed": feed.basis if feed else "",
        },
        unknowns=_unknowns(instance, computed, exchanges, feed, question),
        verified=_verified(workload, computed, exchanges, feed, priced),
        remarks=(
            *([] if has_middle(exchanges) else _unmeasured(gpu, exchanges)),
            *remarks,
            *_unverified(workload, gpu, computed, exchanges, feed),
            *priced.remarks,
        ),
    )


def _fitting(found: ParallelLayout, gpu: GpuModel) -> Need:
    needed = need(found)
    if gpu.memory_bytes is not None and needed.total > gpu.memory_bytes:
        raise DoesNotFitError(needed, gpu.memory_bytes, gpu.name)
    return needed


def _feed(
    found: ParallelLayout, instance: Instance, evidence: EfficiencyEvidence
) -> tuple[Prediction | None, list[str]]:
    """The copy of a step's input to one GPU while all GPUs of the node copy theirs."""
    workload = found.workload
    if workload.input_bytes is None:
        return None, ["the workload has no `training.input`: the host-to-device feed is left out"]
    num_bytes = workload.input_bytes * workload.batch * workload.accumulation
    try:
        return predict.copy("h2d", num_bytes, instance.links, evidence, found.gpus_per_node), []
    except UsageError:  # unknown: the PCIe link
        return None, ["the host-to-device feed is left out: the PCIe link is unknown"]


def _links_name(prediction: Prediction) -> str:
    return f"links {prediction.machine} {prediction.link_class}"


def _weakest(predictions: list[Prediction]) -> str:
    return max((each.basis for each in predictions), key=BASES.index, default="")


def _unknowns(
    instance: Instance, computed: Compute, exchanges: Exchanges, feed: Prediction | None, question: SelectionQuestion
) -> dict[str, tuple[str, str]]:
    """Name of a draw -> (what it is, how to measure it)."""
    name, gpu = instance.name, instance.gpu
    baseline = (
        f"train on one {gpu} alone and give its samples per second: --set 'training.baselines={{{gpu}: SAMPLES_PER_S}}'"
    )
    known = {each: (words, baseline) for each, words in computed.unknowns.items()}
    if f"matmul {gpu}" in known:
        run = f"python -m bench run gpu_baseline; then python -m bench select --workload {question.workload.name}"
        known[f"matmul {gpu}"] = (computed.unknowns[f"matmul {gpu}"], f"on {name}: {run} --runs results/RUN")
    known[_OVERLAP] = (
        "what hidden communication costs the computation beside it",
        "train with and without parallel.overlap and compare",
    )
    for each, prediction in exchanges:
        many = each.group.num_nodes > 1
        where = f"from a cluster of {each.group.num_nodes} x {name} in bench.yaml" if many else f"on {name}"
        run = f"python -m bench run bandwidth{' --cluster CLUSTER' if many else ''}"
        how = f"{where}: {run}; then python -m bench select --workload {question.workload.name} --runs results/RUN"
        what = f"the {each.collective} of {name} ({prediction.link_class})"
        known.setdefault(_links_name(prediction), (what, how))
        known.setdefault(f"pool {prediction.pool}", (f"what links of the class {prediction.link_class} reach", how))
    if feed is not None:
        how = f"on {name}: nvbandwidth -t host_to_device_memcpy_ce"
        known[f"copies {feed.machine}"] = (f"host-to-device copies of {name}", how)
        known.setdefault(f"pool {feed.pool}", ("host-to-device copies", how))
    return known


def _unmeasured(gpu: GpuModel, exchanges: Exchanges) -> list[str]:
    """Where nobody published a figure of this class, an interval stands in the place of a number, and it is said."""
    public = {(one.gpu, one.num_nodes > 1, one.pattern) for one in reference.collectives() if one.num_ranks > 1}
    vague = dict.fromkeys(
        f"no public figure of {each.collective} among several {gpu.name} "
        f"{'on several nodes' if each.group.num_nodes > 1 else 'of one node'} is known: its time is an interval from "
        "other machines, without a middle"
        for each, prediction in exchanges
        if prediction.middle_s is None and (gpu.name, each.group.num_nodes > 1, each.collective) not in public
    )
    return list(vague)


def _verified(
    workload: Workload, computed: Compute, exchanges: Exchanges, feed: Prediction | None, priced: Priced
) -> bool:
    predictions = [prediction for _, prediction in exchanges] + ([feed] if feed else [])
    price = priced.price is None or priced.price.verified
    return workload.verified and computed.verified and price and all(each.verified for each in predictions)


def _unverified(
    workload: Workload, gpu: GpuModel, computed: Compute, exchanges: Exchanges, feed: Prediction | None
) -> list[str]:
    """Which figures nobody read in a source."""
    doubtful = []
    if not workload.verified:
        doubtful.append(f"the workload ({'; '.join(each for each in workload.sources if each.startswith('not read'))})")
    if not computed.verified:
        doubtful.append(f"the rates or the memory bandwidth of {gpu.name}")
    doubtful += dict.fromkeys(
        f"the links that {each.collective} takes" for each, found in exchanges if not found.verified
    )
    if feed is not None and not feed.verified:
        doubtful.append("the link to the host")
    return [f"not read in a source (unverified): {', '.join(doubtful)}"] if doubtful else []
