"""Rank machines for a recorded job by the predicted step (elsewhere.py, as in `job predict`) and the price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from bench.core.errors import UsageError
from bench.hardware.catalogue import Instance, Price
from bench.job.elsewhere import Elsewhere, RecordedSteps, on_instance
from bench.job.messages import RefusedJobCode
from bench.predict import cost
from bench.predict.candidate import Unknown
from bench.predict.cost import Priced
from bench.predict.draws import DrawnRange, Draws, range_of
from bench.predict.kernels import Rates
from bench.predict.messages import Refusal
from bench.predict.predict import EfficiencyEvidence
from bench.predict.select import PairDecision, Refused, metrics, verdict

if TYPE_CHECKING:
    from bench.config.site import InstanceTypes


@dataclass(frozen=True, slots=True)
class JobQuestion:
    """The evidence and the prices for all machines.

    `rates`: the FLOP/s of matrix products in the user's runs.
    """

    recorded: RecordedSteps
    evidence: EfficiencyEvidence
    rates: Rates
    today: date
    region: str | None = None
    price_on: date | None = None
    prices: Mapping[str, float | Price] | None = None


@dataclass(frozen=True)
class MachineForJob:
    """One machine with its predicted figures.

    `sample_s`: the time of a step in seconds for each random draw.
    `sample_usd`: the cost of a step in dollars for each random draw; None without a price.
    """

    instance: Instance
    elsewhere: Elsewhere
    priced: Priced
    sample_s: Any
    sample_usd: Any

    @property
    def name(self) -> str:
        """The number of nodes and the instance type; for one node, only the instance type."""
        nodes = self.elsewhere.num_nodes
        return self.instance.name if nodes == 1 else f"{nodes} x {self.instance.name}"

    @property
    def unknowns(self) -> Mapping[str, Unknown]:
        """The unknown quantities that widen this machine's intervals. The keys name the draws of these quantities."""
        return self.elsewhere.unknowns

    @property
    def step(self) -> DrawnRange:
        """The time of a step, in seconds."""
        return range_of(self.sample_s)

    def usd(self, steps: int) -> DrawnRange | None:
        """Return the price of this many steps in dollars; None without a price."""
        return None if self.sample_usd is None else range_of(self.sample_usd * steps)

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all nodes, in dollars per hour."""
        per_s = self.priced.usd_per_s(self.elsewhere.num_nodes)
        return None if per_s is None else per_s * 3600


@dataclass(frozen=True, slots=True)
class JobSelection:
    """The ranked machines, the best machine first. If the ranking is by cost, machines without a price come last."""

    question: JobQuestion
    by: str
    machines: tuple[MachineForJob, ...]
    refused: tuple[Refused, ...]
    verdicts: tuple[PairDecision, ...]


def select_for_job(
    question: JobQuestion, site: InstanceTypes, wanted: Sequence[tuple[str, int | None]], by: str = "cost"
) -> JobSelection:
    """Rank machines by cost or time.

    `wanted`: the machines as (instance type, number of nodes). None means the smallest number of nodes with enough
    GPUs.

    Raises UsageError if no machine can run the job, or if the ranking needs prices and no machine has one.
    """
    draws = Draws()
    found: list[MachineForJob] = []
    refused: list[Refused] = []
    for name, num_nodes in wanted:
        try:
            found.append(_machine(question, site, name, num_nodes, draws))
        except UsageError as error:
            refused.append(Refused(name, num_nodes or 1, error))
    if not found:
        reasons = "; ".join(dict.fromkeys(str(each.error) for each in refused[:4]))
        raise UsageError.of(RefusedJobCode.NO_MACHINE, reasons=reasons)
    if by == "cost" and all(each.sample_usd is None for each in found):
        facts = {
            "instances": list(dict.fromkeys(each.instance.name for each in found)),
            "reasons": list(dict.fromkeys(remark.text for each in found for remark in each.priced.remarks)),
        }
        raise UsageError.of(Refusal.NO_COST, **facts)
    ranked = sorted(found, key=lambda each: _key(each, by))
    verdicts = [
        verdict(metric, ranked[0], other, draws) for other in ranked[1:] for metric in metrics(by, ranked[0], other)
    ]
    return JobSelection(question, by, tuple(ranked), tuple(refused), tuple(verdicts))


def _machine(
    question: JobQuestion, site: InstanceTypes, name: str, num_nodes: int | None, draws: Draws
) -> MachineForJob:
    instance = site.instance(name)
    elsewhere = on_instance(question.recorded, site, name, num_nodes, question.evidence, question.rates)
    priced = cost.priced(instance, question.today, question.region, question.price_on, question.prices)
    per_s = priced.usd_per_s(elsewhere.num_nodes)
    step_s = elsewhere.step_s(draws)
    return MachineForJob(instance, elsewhere, priced, step_s, None if per_s is None else step_s * per_s)


def _key(each: MachineForJob, by: str) -> tuple[bool, float]:
    usd = each.usd(1)
    if by == "time" or usd is None:
        return by != "time", each.step.middle
    return False, usd.middle
