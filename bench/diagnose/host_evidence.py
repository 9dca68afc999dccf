"""Find the hosts that explain the slow, failed and missing runs of a fleet. Pairs of hosts explain the rest.

Each host gets a probability of being at fault. `localise` finds each host that is slow with all its partners, as in
`linkbench diagnose`. `localise` does not find hosts with failed runs. `localise` also does not find hosts that are slow
with only some partners. To find such hosts, the search compares how many runs of each host are slow or lost. There are
two hypotheses for every host:

- The host has no fault. Its runs are slow or lost as often as the runs of other hosts without a fault.
- The host is at fault. In at least one kind of job, its runs are slow or lost at a different rate than usual.

A bad run counts more if bad runs are rare on other hosts. For example, two failures are strong evidence if no other
pair fails. Many slow runs are weak evidence if slow runs are common. If one host of a bad run is known to be at fault,
the run counts less against the other host. If a pair had a bad run in one kind of job, the pair's runs in other kinds
of job are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import median

import numpy as np

from bench.diagnose.fleet import LOST, SLOW_SHARE, Fleet, FleetRun, GroupKey, JobKind, RunState
from bench.diagnose.localise import Diagnosis, PairSamples, localise
from bench.diagnose.places import Array, Places

# a host is accused or suspected from these confidences on; a sound host exceeds the first in 0.2 % of simulated
# clusters, and the second in 1.6 % (benchmarks/fleet.py)
AT_FAULT, SUSPECT = 0.95, 0.25
_PRIOR_AT_FAULT = 0.1  # expected number of hosts at fault before any evidence
_BACKGROUND = (0.5, 50.0)  # (bad runs, all runs) assumed of sound pairs, in addition to the measured runs
# weights of the outcomes well, slow, lost for a host at fault (prior of a Dirichlet distribution)
_OWN = (2.0, 0.5, 0.5)
# a host is at fault only if it has bad runs with this many partners, or with both partners if it has only two
_LEAST_PARTNERS = 3
_SURPRISE = 0.25  # a bad run with a probability below this needs an explanation
_MOST_CAPPED = 3.0  # larger figures are reduced to this many standard deviations above the usual rate
# the largest expected share of slow jobs, and of lost jobs: even a job of two hosts at fault may be well
_MOST_BAD = 0.45
_MOST_PASSES, _SETTLED, _NEGLIGIBLE = 20, 1e-3, 1e-3


class JobOutcome(IntEnum):
    """The outcome of a job on a set of hosts, which is the worst outcome of the job's operations."""

    WELL = 0
    SLOW = 1
    LOST = 2


@dataclass(frozen=True, slots=True)
class Unit:
    """A set of hosts, with the kind and the worst outcome of its job."""

    hosts: tuple[str, ...]
    kind: JobKind
    outcome: JobOutcome


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """A host and its runs.

    `confidence`: the probability that the host is at fault. A host is accused at 0.95 or more, and suspected at 0.25 or
        more.
    `ratio`: the bandwidth of the host divided by the bandwidth of its peers, if the host is slow with all of them.
    `counts`: for each state, the number of the host's runs in this state.
    `slow_with`: the other hosts in this host's slow runs.
    `lost_with`: the other hosts in this host's lost runs (failed, without figures, or missing).
    """

    host: str
    confidence: float
    ratio: float | None
    counts: Mapping[RunState, int]
    num_partners: int
    slow_with: tuple[str, ...]
    lost_with: tuple[str, ...]
    bad_runs: tuple[FleetRun, ...]

    @property
    def at_fault(self) -> bool:
        """Whether the host is accused."""
        return self.confidence >= AT_FAULT

    @property
    def suspected(self) -> bool:
        """Whether the host is suspected, but with too little confidence to be called at fault."""
        return SUSPECT <= self.confidence < AT_FAULT

    @property
    def num_bad(self) -> int:
        """The number of the host's slow and lost runs."""
        return len(self.bad_runs)


@dataclass(frozen=True, slots=True)
class PairEvidence:
    """A set of hosts with bad runs.

    `explained_by`: the hosts of the set that are at fault or suspected.
    `link`: whether the link between these hosts was found to be slow.
    """

    hosts: tuple[str, ...]
    num_runs: int
    bad_runs: tuple[FleetRun, ...]
    explained_by: tuple[str, ...]
    link: bool

    @property
    def least_share(self) -> float | None:
        """The lowest rate of the bad runs, as a share of the usual rate. None if no bad run has a figure."""
        return min((run.share for run in self.bad_runs if run.share is not None), default=None)


@dataclass(frozen=True, slots=True)
class FleetVerdict:
    """The hosts and pairs. Hosts and pairs with the strongest evidence of a fault come first.

    `diagnosis`: the result of `localise` for runs with figures.
    `weights`: factors for the odds that a host is at fault. One slow job of a host multiplies the odds by one factor,
        and one lost job by another factor.
    """

    hosts: tuple[HostEvidence, ...]
    pairs: tuple[PairEvidence, ...]
    diagnosis: Diagnosis
    weights: Mapping[JobOutcome, float]

    @property
    def named(self) -> tuple[HostEvidence, ...]:
        """The hosts that are at fault or suspected, in the order of `hosts`."""
        return tuple(host for host in self.hosts if host.confidence >= SUSPECT)


def verdict_of(fleet: Fleet) -> FleetVerdict:
    """Return the verdict on a fleet. Hosts are judged first.

    Pairs are then judged by the bad runs that no host explains.
    """
    diagnosis = _diagnosis(fleet)
    found = _Concentration(_units(fleet), fleet.hosts, _slow_with_all(fleet, diagnosis))
    confidences = found.confidences
    confidences |= _alone(fleet, confidences)
    named = {host for host, confidence in confidences.items() if confidence >= SUSPECT}
    ratios = {part.name: _ratio(part.findings[0].facts) for part in diagnosis.accused if part.kind == "host"}
    hosts = [_host_evidence(fleet, host, confidences[host], ratios.get(host)) for host in fleet.hosts]
    hosts.sort(key=lambda each: (-_tier(each), -each.num_bad, -each.confidence, each.host))
    links = {tuple(sorted(part.ends)) for part in diagnosis.accused if part.kind == "link"}
    return FleetVerdict(tuple(hosts), _pairs(fleet, named, links), diagnosis, found.weights())


def _alone(fleet: Fleet, confidences: Mapping[str, float]) -> dict[str, float]:
    """Return, for each host with bad single-host jobs, the confidence that the host is at fault.

    A slow job proves a fault. A single lost job is enough to suspect the host.

    A bad run does not count if the host has a good run of the same operation. If all lost runs of a host are missing
    (state MISSING), the host is not suspected.
    """
    found: dict[str, float] = {}
    for host in fleet.hosts:
        by_group: dict[GroupKey, list[RunState]] = {}
        for run in fleet.runs:
            if run.hosts == (host,):
                by_group.setdefault(run.group, []).append(run.state)
        own = [state for states in by_group.values() if RunState.WELL not in states for state in states]
        lost = sum(state in LOST for state in own)
        if RunState.SLOW in own:
            found[host] = 1.0
        elif lost > 1 and len(own) == sum(map(len, by_group.values())):
            found[host] = 0.99
        elif lost > own.count(RunState.MISSING):
            found[host] = max(confidences.get(host, 0.0), 0.5)
    return found


def _tier(host: HostEvidence) -> int:
    return 2 if host.at_fault else 1 if host.suspected else 0


def _diagnosis(fleet: Fleet) -> Diagnosis:
    """Apply `localise`, as in `linkbench diagnose`, to the rates of runs on two hosts.

    Each rate is divided by the usual rate of its group. The rate of a pair is used for both directions. Ratios far
    above 1 are reduced to a limit. If the limit did not exist, a faster network tier would make all other hosts look
    slow.
    """
    number = {host: index for index, host in enumerate(fleet.hosts)}
    noises = {group.key: group.noise for group in fleet.groups if group.compared and group.key.kind.num_nodes == 2}
    rows: list[tuple[int, int, float, int, int]] = []
    for run in fleet.runs:
        if run.share is None or run.group not in noises or run.state in LOST:
            continue
        first, second = (number[host] for host in run.hosts)
        share = min(run.share, math.exp(_MOST_CAPPED * noises[run.group]))
        rows += [(first, second, share, 0, 0), (second, first, share, 0, 0)]
    if not rows:
        return Diagnosis((), ())
    return localise(PairSamples.of(rows), Places(fleet.hosts, (None,) * len(fleet.hosts)))


def _slow_with_all(fleet: Fleet, diagnosis: Diagnosis) -> dict[str, float]:
    """Return the confidence of each host that `localise` accuses and that is slow in most of its runs.

    If most runs between the accused hosts are fast, these hosts are in another part of the network and have no fault.
    For hosts in another part of the network, the function returns an empty dictionary.
    """
    compared = {group.key for group in fleet.groups if group.compared}
    rated = [run for run in fleet.runs if run.share is not None and run.group in compared]
    accused = {part.name: part.confidence for part in diagnosis.accused if part.kind == "host"}
    among = [run.share or 0.0 for run in rated if len(run.hosts) > 1 and accused.keys() >= set(run.hosts)]
    if among and median(among) >= SLOW_SHARE:
        return {}
    found = {}
    for host, confidence in accused.items():
        shares = [run.share or 0.0 for run in rated if host in run.hosts]
        if shares and median(shares) < SLOW_SHARE:
            found[host] = confidence
    return found


def _ratio(facts: Mapping[str, Mapping[str, float] | None]) -> float | None:
    """Return the smaller of two ratios of a host: the ratio as sender and the ratio as receiver.

    The result is None if both ratios are unknown.
    """
    found = [side["ratio"] for side in (facts.get("sends"), facts.get("receives")) if side]
    return min(found, default=None)


def _units(fleet: Fleet) -> list[Unit]:
    """Return the jobs on several hosts. The outcome of a job is the worst outcome of the job's runs.

    If a set of hosts has several bad jobs, only the first bad job is returned.
    """
    worst: dict[tuple[tuple[str, ...], JobKind], JobOutcome] = {}
    for run in fleet.runs:
        if len(run.hosts) < 2:
            continue
        outcome = (
            JobOutcome.LOST if run.state in LOST else JobOutcome.SLOW if run.state == RunState.SLOW else JobOutcome.WELL
        )
        key = run.hosts, run.group.kind
        worst[key] = max(worst.get(key, JobOutcome.WELL), outcome)
    known_bad: set[tuple[str, ...]] = set()
    units = []
    for (hosts, kind), outcome in sorted(worst.items(), key=lambda item: (item[0][1], item[0][0])):
        if hosts not in known_bad:
            units.append(Unit(hosts, kind, outcome))
        if outcome:
            known_bad.add(hosts)
    return units


class _Concentration:
    """Computes the probability that a host is at fault, for each host, from the bad runs of all hosts.

    The probabilities depend on each other, because a fault of one host can explain bad runs of another host.
    """

    def __init__(self, units: Sequence[Unit], hosts: Sequence[str], named: dict[str, float]) -> None:
        """Compute `confidences`.

        `named`: the hosts that are slow with all their partners, each with the confidence in this finding.
        """
        self._number = {host: index for index, host in enumerate(hosts)}
        kinds = {kind: index for index, kind in enumerate(sorted({unit.kind for unit in units}))}
        self._num_kinds = len(kinds)
        self._kind = np.array([kinds[unit.kind] for unit in units], dtype=np.int64)
        self._outcome = np.array([unit.outcome for unit in units], dtype=np.int64)
        self._with = np.zeros((len(units), len(hosts)), dtype=bool)
        for row, unit in enumerate(units):
            self._with[row, [self._number[host] for host in unit.hosts]] = True
        self.confidences = dict.fromkeys(hosts, 0.0) | named
        self._chance = np.array([self.confidences[host] for host in hosts])
        self._search(hosts)

    def _search(self, hosts: Sequence[str]) -> None:
        """Update the confidence of one host after the other until no confidence changes.

        In each update, a bad job counts less if another host may have caused it.
        """
        given = {self._number[host]: confidence for host, confidence in self.confidences.items() if confidence}
        for _ in range(_MOST_PASSES):
            before = self._chance.copy()
            for index in range(len(hosts)):
                self._chance[index] = given.get(index) or self._confidence(index)
            if np.abs(self._chance - before).max(initial=0.0) < _SETTLED:  # a fleet may have no hosts
                break
        self.confidences = dict(zip(hosts, self._chance.tolist(), strict=True))

    def weights(self) -> dict[JobOutcome, float]:
        """Return the factor by which one slow or lost job multiplies the odds that its host is at fault.

        The result maps SLOW and LOST to one factor each. The two factors apply only if the other host of the job has no
        fault.
        """
        sound = np.where(self._with, 1 - self._chance, 1.0).prod(axis=1)
        found = {}
        for outcome, own in ((JobOutcome.SLOW, _OWN[1]), (JobOutcome.LOST, _OWN[2])):
            usual = (sound[self._outcome == outcome].sum() + _BACKGROUND[0]) / (sound.sum() + _BACKGROUND[1])
            found[outcome] = own / sum(_OWN) / usual
        return found

    def _confidence(self, host: int) -> float:
        """Return the probability that a host is at fault, given the outcomes of its jobs."""
        mine = self._with[:, host]
        bad = mine & (self._outcome > 0)
        if not bad.any():
            return 0.0
        expected = self._expected(host)
        surprising = bad & (expected[np.arange(len(expected)), self._outcome] < _SURPRISE)
        met = self._with[surprising].any(axis=0)
        partners = self._with[mine].any(axis=0)
        num_met, num_partners = int(met.sum()) - bool(met[host]), int(partners.sum()) - 1
        unnamed = self._chance < SUSPECT
        unnamed[host] = False
        if num_met < min(_LEAST_PARTNERS, max(num_partners, 2)) or not (met & unnamed).any():
            return 0.0
        log_odds = math.log((_PRIOR_AT_FAULT + self._chance.sum() - self._chance[host]) / len(self._number))
        for kind in range(self._num_kinds):
            rows = mine & (self._kind == kind)
            if rows.any():
                sound = np.log(expected[rows, self._outcome[rows]]).sum()
                counts = np.bincount(self._outcome[rows], minlength=len(JobOutcome))
                factor = _log_chance(counts) - sound
                # the host may be at fault in only some kinds of job
                log_odds += np.logaddexp(0.0, factor) - math.log(2)
        return float(1 / (1 + math.exp(-min(log_odds, 30.0))))

    def _expected(self, host: int) -> Array:
        """Return the probability of each outcome of each job, given that this host has no fault.

        Each probability is a sum. The first term is the usual probability of the outcome. The second term is the
        probability that other hosts at fault cause the outcome.
        """
        chance = self._chance.copy()
        chance[host] = 0.0
        rates = np.zeros((len(self._kind), len(JobOutcome)))
        others: Array = ~self._with[:, host] * np.where(self._with, 1 - chance, 1.0).prod(axis=1)
        for kind in range(self._num_kinds):
            of_kind = self._kind == kind
            for outcome in (JobOutcome.SLOW, JobOutcome.LOST):
                is_bad = self._outcome == outcome
                usual = (others[is_bad & of_kind].sum() + _BACKGROUND[0]) / (others[of_kind].sum() + _BACKGROUND[1])
                rate = np.full(len(self._kind), usual)
                for named in np.flatnonzero(chance > _NEGLIGIBLE):
                    own = self._with[:, named] & of_kind & ~self._with[:, host]
                    rate += chance[named] * self._with[:, named] * (own & is_bad).sum() / max(own.sum(), 1)
                rates[of_kind, outcome] = np.minimum(rate[of_kind], _MOST_BAD)
        rates[:, JobOutcome.WELL] = 1 - rates.sum(axis=1)
        return rates


def _log_chance(counts: Array) -> float:
    """For a host at fault, return the logarithm of the probability of these outcomes in this order.

    The probability is averaged over all possible rates of the outcomes (Dirichlet-multinomial distribution).
    """
    prior = np.array(_OWN)
    found = math.lgamma(prior.sum()) - math.lgamma(prior.sum() + counts.sum())
    return found + sum(math.lgamma(a + n) - math.lgamma(a) for a, n in zip(prior, counts, strict=True))


def _host_evidence(fleet: Fleet, host: str, confidence: float, ratio: float | None) -> HostEvidence:
    mine = [run for run in fleet.runs if host in run.hosts]
    bad = [run for run in mine if run.state != RunState.WELL]

    def partners(states: Sequence[RunState]) -> tuple[str, ...]:
        return tuple(sorted({name for run in bad if run.state in states for name in run.hosts if name != host}))

    return HostEvidence(
        host,
        confidence,
        ratio,
        Counter(run.state for run in mine),
        len({name for run in mine for name in run.hosts}) - 1,
        partners((RunState.SLOW,)),
        partners(LOST),
        tuple(bad),
    )


def _pairs(fleet: Fleet, named: set[str], links: set[tuple[str, ...]]) -> tuple[PairEvidence, ...]:
    by_hosts: dict[tuple[str, ...], list[FleetRun]] = {}
    for run in fleet.runs:
        by_hosts.setdefault(run.hosts, []).append(run)
    found = []
    for hosts, runs in by_hosts.items():
        bad = tuple(run for run in runs if run.state != RunState.WELL)
        if bad and len(hosts) > 1:
            found.append(PairEvidence(hosts, len(runs), bad, tuple(sorted(named.intersection(hosts))), hosts in links))
    found.sort(key=lambda pair: (bool(pair.explained_by), -len(pair.bad_runs), pair.least_share or 0.0, pair.hosts))
    return tuple(found)
