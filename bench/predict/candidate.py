"""Evaluate one workload on some nodes of one instance type: the time, the bottleneck and the cost of a step, with the
evidence.

Each unknown quantity has a name and random draws (predict/draws.py). An unknown quantity of the workload has the same
draws on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, TypeVar

from bench.core.codes import Coded
from bench.core.errors import UnknownRateError, UsageError
from bench.core.links import NVLINK_PEERS, NodeLinks
from bench.hardware import catalogue, reference
from bench.hardware.catalogue import GpuModel, Instance, Price
from bench.predict import cost, predict
from bench.predict.compute import Compute, compute
from bench.predict.cost import Energy, Priced
from bench.predict.draws import DrawnRange, Draws, range_of
from bench.predict.goodput import Goodput
from bench.predict.kernels import RATES, Rates
from bench.predict.layout import CommGroup, Communication, ParallelLayout, layout
from bench.predict.memory import MemoryNeed, OutOfMemoryError, memory_need, refused
from bench.predict.messages import PredictRemark, Refusal
from bench.predict.operations import flops_per_sample
from bench.predict.predict import BASES, EfficiencyEvidence, Prediction
from bench.predict.step import StepTime, step
from bench.predict.training import communications
from bench.predict.workload import Workload

# Hidden communication slows the computation that hides it. Smallest, mean and largest time lost in this way / time of
# the hidden communication, measured on A100, H100, MI210 and MI250 (arXiv 2507.03114, 2025: 18.9 % on average, 40 % at
# most).
LOST_TO_OVERLAP = (0.0, 0.189, 0.4)
_OVERLAP = "overlap"
_NEGLIGIBLE = 0.1  # calls without a middle may take this share of all communication time

Result = TypeVar("Result")
Exchanges = tuple[tuple[Communication, Prediction], ...]


@dataclass(frozen=True, slots=True)
class SelectionQuestion:
    """The question that `select` evaluates for every machine.

    `rates`: the FLOP/s of matrix multiplication that the user's runs measured.
    `goodput`: failures and checkpoints, which lengthen the time of a sample by a factor that depends on the number of
    nodes.
    `energy`: the cost of energy that the prices do not include.
    `search_mesh`: whether each machine uses its fastest mesh (predict/mesh_search.py).
    """

    workload: Workload
    evidence: EfficiencyEvidence
    today: date
    region: str | None = None
    price_on: date | None = None
    prices: Mapping[str, float | Price] | None = None
    gpus_per_node: int | None = None
    rates: Rates = field(default_factory=dict)
    goodput: Goodput | None = None
    energy: Energy | None = None
    search_mesh: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """An unknown quantity, sampled at random: its description, and the command that would measure it."""

    description: str
    command: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """The result of evaluating one machine.

    Ranges are intervals at level CONFIDENCE in seconds, samples per second or dollars.

    `sample_s`, `sample_usd`: the time and the cost of a sample, with one value for each draw. Without a price,
        `sample_usd` is None.
    `exchanges`: every communication with its prediction.
    `bases`: the type of evidence for compute, exposed communication and feed. A part that the step does not have has
        the value "".
    `unknowns`: the unknown quantities, by the names of their draws.
    """

    instance: Instance
    gpu: GpuModel
    layout: ParallelLayout
    memory: MemoryNeed
    compute: Compute
    step: StepTime
    exchanges: Exchanges
    feed: Prediction | None
    priced: Priced
    sample_s: Any
    sample_usd: Any
    bases: Mapping[str, str]
    unknowns: Mapping[str, Unknown]
    verified: bool
    remarks: tuple[Coded, ...]

    @property
    def name(self) -> str:
        """The number of nodes and the instance type: `2 x p4d.24xlarge`, or `p4d.24xlarge` for one node."""
        nodes = self.layout.num_nodes
        return self.instance.name if nodes == 1 else f"{nodes} x {self.instance.name}"

    def range(self, part: str) -> DrawnRange:
        """Return the range of a part of the step.

        `part`: total_s, compute_s, bubble_s, exposed_s, feed_s or exchange_s.
        """
        return range_of(getattr(self.step, part))

    @property
    def has_middle(self) -> bool:
        """Whether the predictions of the machine's communication state a middle value, and not only an interval.

        Negligible calls are ignored.
        """
        return has_middle(self.exchanges)

    @property
    def samples_per_s(self) -> DrawnRange:
        """The samples per second of all GPUs together."""
        return range_of(1 / self.sample_s)

    @property
    def tokens_per_s(self) -> DrawnRange | None:
        """The total tokens per second of all GPUs, or None for a model without tokens."""
        tokens = self.layout.workload.model.tokens
        return None if tokens is None else range_of(tokens / self.sample_s)

    def usd(self, samples: float) -> DrawnRange | None:
        """Return the cost of `samples` samples in dollars, or None without a price."""
        return None if self.sample_usd is None else range_of(self.sample_usd * samples)

    @property
    def usd_per_million_tokens(self) -> DrawnRange | None:
        """The cost of a million tokens in dollars. Without a price or without tokens, the cost is None."""
        tokens = self.layout.workload.model.tokens
        return None if tokens is None else self.usd(1e6 / tokens)

    @property
    def model_flops_utilization(self) -> DrawnRange | None:
        """The rate of the model's operations, without repeated operations, divided by the data sheet's rate (MFU).

        The result is None if unknown.
        """
        workload = self.layout.workload
        rate = self.gpu.flops.get(RATES.get(workload.compute, ""))
        try:
            flops = flops_per_sample(workload.model, workload.lora)[0]
        except UsageError:
            return None
        return None if rate is None else range_of(flops / self.sample_s / self.layout.num_gpus / rate)

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all nodes, in dollars per hour."""
        per_s = self.priced.usd_per_s(self.layout.num_nodes)
        return None if per_s is None else per_s * 3600

    @property
    def usd_per_hour_waiting(self) -> DrawnRange | None:
        """The cost of the time in which the GPUs wait for communication, in dollars per hour."""
        if self.usd_per_hour is None:
            return None
        return range_of(self.usd_per_hour * self.step.exposed_s / self.step.total_s)

    @property
    def basis(self) -> str:
        """The types of evidence for all parts of the step, joined by `+`."""
        return "+".join(dict.fromkeys(filter(None, self.bases.values())))

    @property
    def bottleneck(self) -> str:
        """The name of the largest part of the step.

        If communication is the largest part, the name includes the bottleneck of its longest calls.
        """
        parts = {part: self.range(part).middle for part in ("compute_s", "bubble_s", "exposed_s", "feed_s")}
        largest = max(parts, key=lambda part: parts[part])
        if largest == "exposed_s" and self.exchanges:
            _, longest = max(self.exchanges, key=lambda pair: pair[0].calls * (pair[1].low_s + pair[1].high_s))
            return f"exchange: {longest.bottleneck}"
        return {"compute_s": "compute", "bubble_s": "pipeline bubble", "feed_s": "host-to-device feed"}[largest]


def candidate(instance: Instance, num_nodes: int, question: SelectionQuestion, draws: Draws) -> Candidate:
    """Evaluate one machine. Raises UsageError if the machine cannot run the workload."""
    workload, gpu = question.workload, catalogue.gpu(instance.gpu)
    per_node = question.gpus_per_node or instance.gpus
    if per_node > instance.gpus:
        raise UsageError.of(Refusal.GPUS_TOO_MANY, instance=instance.name, num_gpus=instance.gpus, requested=per_node)
    found = layout(workload, num_nodes, per_node)
    memory = memory_need(found)
    if gpu.memory_bytes is not None and refused(memory, gpu.memory_bytes):
        raise OutOfMemoryError(memory, gpu.memory_bytes, gpu.name)
    exchanges = predicted_exchanges(found, instance.links, question.evidence)
    computed = compute(found, gpu, draws, question.rates)
    feed, feed_remarks = _feed(found, instance, question.evidence)
    predictions = {id(prediction): prediction for _, prediction in exchanges}  # calls of the same size share one
    drawn = {key: draws.predicted(_links_name(each), each) for key, each in predictions.items()}
    seconds = {id(call): drawn[id(prediction)] for call, prediction in exchanges}
    times = step(
        found,
        computed.passes_s,
        computed.update_s,
        lambda call: seconds[id(call)],
        [call for call, _ in exchanges],
        draws.linear(_OVERLAP, *LOST_TO_OVERLAP),
        0.0 * draws.ones if feed is None else draws.predicted(f"copies {feed.machine}", feed),
        shares_link=instance.links.peer not in NVLINK_PEERS,
    )
    priced = cost.priced(instance, question.today, question.region, question.price_on, question.prices)
    if question.energy is not None:
        priced = question.energy.added(priced, instance.name)
    per_s = priced.usd_per_s(num_nodes)
    stretch = 1.0 if question.goodput is None else question.goodput.stretch(num_nodes)
    sample_s = stretch * times.total_s / found.samples
    remarks = [*_unpublished(gpu, exchanges), *feed_remarks]
    remarks += _unverified(workload, gpu, computed, exchanges, feed)
    remarks += priced.remarks
    if gpu.memory_bytes is not None and memory.total > gpu.memory_bytes:
        facts = {"least_gb": memory.least / 1e9, "estimated_gb": memory.total / 1e9}
        remarks.append(Coded.of(PredictRemark.MEMORY_TIGHT, **facts, memory_gb=gpu.memory_bytes / 1e9))
    return Candidate(
        instance=instance,
        gpu=gpu,
        layout=found,
        memory=memory,
        compute=computed,
        step=times,
        exchanges=exchanges,
        feed=feed,
        priced=priced,
        sample_s=sample_s,
        sample_usd=None if per_s is None else sample_s * per_s,
        bases={
            "compute": computed.basis,
            "exchange": max((prediction.basis for _, prediction in exchanges), key=BASES.index, default=""),
            "feed": feed.basis if feed else "",
        },
        unknowns=_unknowns(instance, computed, exchanges, feed, question),
        verified=_verified(workload, computed, exchanges, feed, priced),
        remarks=tuple(remarks),
    )


def predicted_exchanges(found: ParallelLayout, links: NodeLinks, evidence: EfficiencyEvidence) -> Exchanges:
    """Return every communication of a layout with the prediction of one call.

    Raises UsageError if a rate is unknown.
    """
    return tuple(_of_each(predict.curve, communications(found), links, evidence))


def centre_seconds(
    links: NodeLinks, evidence: EfficiencyEvidence, calls: Sequence[Communication]
) -> Mapping[int, float]:
    """Return the predicted seconds of each call (the centre of its interval), by the id of the call's object.

    Raises UsageError if a rate is unknown.
    """
    return {id(call): seconds for call, seconds in _of_each(predict.centres, calls, links, evidence)}


def _of_each(
    curve: Callable[..., Mapping[float, Result]],
    calls: Sequence[Communication],
    links: NodeLinks,
    evidence: EfficiencyEvidence,
) -> Iterator[tuple[Communication, Result]]:
    """Yield each call with the value that `curve` returns for the payload of this call.

    For each collective on a group, the curve is computed once for all payloads.
    """
    by_group: dict[tuple[str, CommGroup], list[Communication]] = {}
    for call in calls:
        by_group.setdefault((call.collective, call.group), []).append(call)
    for (collective, group), own_calls in by_group.items():
        sizes = tuple(dict.fromkeys(call.payload_bytes for call in own_calls))
        own_links = shared_links(links, group)
        try:
            values = curve(collective, sizes, own_links, group.num_nodes, group.per_node, evidence)
        except UnknownRateError as error:
            # `select` has no --links option, because it evaluates many machines. The user gives the rate in bench.yaml
            # instead.
            own = f"{{like: {links.instance}, links: {{{error.link}: 10GB/s}}}}"
            remedy = f"give it in bench.yaml, such as `instances: {{mine: {own}}}`, and select `mine`"
            raise UnknownRateError(error.link, error.whose, remedy) from None
        for call in own_calls:
            yield call, values[call.payload_bytes]


def shared_links(links: NodeLinks, group: CommGroup) -> NodeLinks:
    """If several groups send at the same time, return the links that one group can use.

    Each group gets an equal part of the node's NICs.
    """
    if group.num_nodes == 1 or group.side_by_side == 1 or links.nic_bytes_per_s is None:
        return links
    nics = links.num_nics or 1
    own = max(1, nics // group.side_by_side)
    return replace(links, num_nics=own, nic_bytes_per_s=links.nic_bytes_per_s * nics / group.side_by_side / own)


def has_middle(exchanges: Exchanges) -> bool:
    """Check whether nearly all predicted communication time comes from predictions with a middle value.

    Calls for which only an interval is known may take at most a tenth of the communication time.
    """
    total_s = without_middle_s = 0.0
    for call, prediction in exchanges:
        seconds = call.calls * prediction.centre_s
        total_s += seconds
        if prediction.middle_s is None:
            without_middle_s += seconds
    return without_middle_s <= _NEGLIGIBLE * total_s


def _feed(
    found: ParallelLayout, instance: Instance, evidence: EfficiencyEvidence
) -> tuple[Prediction | None, list[Coded]]:
    """Predict how long the copy of a step's input to one GPU takes while all GPUs of the node copy their inputs."""
    workload = found.workload
    if workload.input_bytes is None:
        return None, [Coded.of(PredictRemark.FEED_WITHOUT_INPUT)]
    num_bytes = workload.input_bytes * workload.batch * workload.accumulation
    try:
        return predict.copy("h2d", num_bytes, instance.links, evidence, found.gpus_per_node), []
    except UsageError:  # the rate of the PCIe link is unknown
        return None, [Coded.of(PredictRemark.FEED_WITHOUT_PCIE)]


def _links_name(prediction: Prediction) -> str:
    return f"links {prediction.machine} {prediction.link_class}"


def _unknowns(
    instance: Instance, computed: Compute, exchanges: Exchanges, feed: Prediction | None, question: SelectionQuestion
) -> dict[str, Unknown]:
    """Return the unknown quantities. The keys name the draws of these quantities."""
    name, gpu = instance.name, instance.gpu
    select = f"linkbench select --workload {question.workload.name} --runs results/RUN"
    baseline = f"train on one {gpu} alone, then give --set 'training.baselines={{{gpu}: SAMPLES_PER_S}}'"
    unknowns = {key: Unknown(description, baseline) for key, description in computed.unknowns.items()}
    matmul = f"matmul {gpu}"
    if matmul in unknowns:
        run = f"on {name}: linkbench run gpu_baseline; then {select}"
        unknowns[matmul] = Unknown(computed.unknowns[matmul], run)
    unknowns[_OVERLAP] = Unknown(
        "the slowdown of computation by hidden communication",
        "train with and without parallel.overlap and compare",
    )
    for call, prediction in exchanges:
        where, cluster = f"on {name}", ""
        if call.group.num_nodes > 1:
            where = f"from a cluster of {call.group.num_nodes} x {name} in bench.yaml"
            cluster = " --cluster CLUSTER"
        command = f"{where}: linkbench run bandwidth{cluster}; then {select}"
        description = f"the {call.collective} of {name} ({prediction.link_class})"
        unknowns.setdefault(_links_name(prediction), Unknown(description, command))
        shared = f"the efficiency of {prediction.link_class} links"
        unknowns.setdefault(f"pool {prediction.pool}", Unknown(shared, command))
    if feed is not None:
        command = f"on {name}: nvbandwidth -t host_to_device_memcpy_ce"
        unknowns[f"copies {feed.machine}"] = Unknown(f"host-to-device copies of {name}", command)
        unknowns.setdefault(f"pool {feed.pool}", Unknown("host-to-device copies", command))
    return unknowns


def _unpublished(gpu: GpuModel, exchanges: Exchanges) -> list[Coded]:
    """Return a remark on each collective for which only an interval is known.

    The interval has no middle, because no result of a similar collective is published.
    """
    if has_middle(exchanges):
        return []
    published = {(row.gpu, row.num_nodes > 1, row.pattern) for row in reference.collectives() if row.num_ranks > 1}
    remarks: list[Coded] = []
    for call, prediction in exchanges:
        across_nodes = call.group.num_nodes > 1
        if prediction.middle_s is not None or (gpu.name, across_nodes, call.collective) in published:
            continue
        remark = Coded.of(
            PredictRemark.NOTHING_PUBLISHED, collective=call.collective, gpu=gpu.name, across_nodes=across_nodes
        )
        if remark not in remarks:
            remarks.append(remark)
    return remarks


def _verified(
    workload: Workload, computed: Compute, exchanges: Exchanges, feed: Prediction | None, priced: Priced
) -> bool:
    predictions = [prediction for _, prediction in exchanges] + ([feed] if feed else [])
    price = priced.price is None or priced.price.verified
    return workload.verified and computed.verified and price and all(each.verified for each in predictions)


def _unverified(
    workload: Workload, gpu: GpuModel, computed: Compute, exchanges: Exchanges, feed: Prediction | None
) -> list[Coded]:
    """Return a remark that lists the figures without a source."""
    figures = []
    if not workload.verified:
        figures.append(f"the workload ({'; '.join(workload.unverified)})")
    if not computed.verified:
        figures.append(f"the rates or the memory bandwidth of {gpu.name}")
    for call, prediction in exchanges:
        links = f"the links of {call.collective}"
        if not prediction.verified and links not in figures:
            figures.append(links)
    if feed is not None and not feed.verified:
        figures.append("the link to the host")
    return [Coded.of(PredictRemark.UNVERIFIED, figures=figures)] if figures else []
