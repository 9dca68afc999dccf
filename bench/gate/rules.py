"""What a gate asks of a run: rules as plain values, and the name of every way to fail.

A rules file is read by gate/rules_file.py; nothing in it is ever evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

# Every way to fail. The names are stable: CI systems and people search for them.
FAILURES: Mapping[str, str] = MappingProxyType(
    {
        # the run as a whole
        "empty-run": "nothing was measured",
        "unreadable-run": "the run's files can not be read",
        "no-plan": "nothing tells what was to be measured, so that nothing tells what is missing",
        "failed-job": "a job or a row failed, was interrupted, or left no results, whatever its exit code was",
        "truncated-file": "a results file was cut: rows may be lost",
        "truncated-import": "an imported log was cut, is empty or could not be read: rows may be lost",
        "wrong-world": "fewer (or other) ranks, nodes, hosts or GPUs took part than were planned or are expected, or "
        "than the named instance type has",
        "wrong-cluster": "another cluster, instance type or GPU than expected, or it is not known which",
        "stale": "the figures are older than `max_age`, or their age is not known",
        "slow-part": "a host, NIC or link runs below 0.9 of its peers",
        "undecided-part": "a suspicion was not followed to its end, or pairs were not looked at: nobody is cleared",
        # what must be there
        "missing-rows": "rows that a rule asks for are not there",
        "size-skipped": "a size that was asked for was skipped",
        "wrong-fabric": "measured over another transport or network than the rule demands, or it is not known over "
        "which",
        "no-baseline": "the run to compare with lacks the row, or the two can not be compared",
        # what a row is
        "imported": "the row is one figure of another tool's log, and the rule does not say `imported: true`",
        "inconsistent": "the row contradicts its header: edited, or written by a broken program",
        "modelled": "the row was modelled, not measured",
        "wrong-data": "wrong data arrived",
        "unverified": "nobody checked the data",
        "not-a-number": "the figure is not there, not a number, or infinite",
        "zero": "the figure is zero or below",
        "one-rank": "one rank by itself: nothing crossed a link",
        "shared-gpu": "several ranks were on one GPU: it shows that things work, not how fast",
        "through-host": "copied through the host's memory, as two GPUs do not reach each other",
        "too-few-samples": "fewer samples than the rule's `samples`",
        "no-interval": "too few independent samples for a 95 % interval",
        "not-converged": "the row's time ended before its interval was narrow enough",
        "above-bound": "faster than physics: the bound, the clock or the data is wrong",
        "contradicts": "the row and another can not both be right",
        "tail-not-known": "a percentile of too few samples (p95 takes 72, p99 takes 368)",
        # what the figure is
        "no-bound": "a share of a bound is asked for, and no bound is known",
        "no-reference": "a share of a published figure is asked for, and none is known",
        "too-low": "below the least that the rule asks for",
        "too-high": "above the most that the rule allows",
        "slower": "significantly slower than the run to compare with",
        "inconclusive": "neither slower nor as fast as the run to compare with can be shown",
        "too-few-launches": "fewer than 5 launches of either run: no verdict on faster or slower",
    }
)

# What a rule may knowingly put up with; everything else always fails.
ALLOWED = ("unverified", "one-rank", "too-few-samples", "no-interval", "not-converged", "contradicts", "through-host")

RATES, TIMES = ("busbw", "algbw"), ("time", "p95", "p99", "max", "min")
WEAKEST = "weakest"
METRICS = (*RATES, *TIMES, WEAKEST)
NETWORKS = ("efa", "ib", "roce", "tcp")


@dataclass(frozen=True, slots=True)
class Demand:
    """One demand on one metric. `side`: least, most, or not-slower (than the baseline, `value` is the change that
    matters). `of`: what `value` is a share of (bound, reference, median); '' for bytes per second or seconds."""

    metric: str
    side: str
    value: float
    of: str = ""
    text: str = ""  # as it was typed


@dataclass(frozen=True, slots=True)
class GateRule:
    """Demands on the rows that all of its selectors fit; an empty selector fits any.

    `sizes` must each be there; of `spans` (first, last) every row counts, and what was asked for must be there. Bytes.
    `factors`: the values of other factors that a job's case must have. Rows of a pattern that lacks such a factor, and
    rows of another tool's log, never match.
    `modes` empty: what the metric means (pipelined for rates, isolated for times).
    """

    name: str
    patterns: tuple[str, ...]
    limits: tuple[Demand, ...]
    sizes: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    transports: tuple[str, ...] = ()
    network: str = ""
    modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    reduce_ops: tuple[str, ...] = ()
    topologies: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    factors: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()  # shell patterns: node*
    nodes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    samples: int = 10
    imported: bool = False
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Expect:
    """What must be true of the whole run; empty is no demand. `max_age_s` in seconds.

    `gpus_per_node`: by each node's driver, by the site's own word, and by the ranks that were measured.
    """

    cluster: str = ""
    instance: str = ""
    gpu: str = ""
    transport: str = ""
    network: str = ""
    nodes: int | None = None
    ranks: int | None = None
    gpus_per_node: int | None = None
    hosts: tuple[str, ...] = ()
    max_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """A whole rules file. `diagnose`: True pairs must be there and accuse nobody; False they are not asked; None they
    may accuse nobody where they are there. `baseline`: the run that `not slower than baseline` means."""

    name: str
    rules: tuple[GateRule, ...]
    description: str = ""
    expect: Expect = Expect()
    diagnose: bool | None = None
    baseline: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class GateFault:
    """One way in which a run failed: its name (a key of FAILURES), what is wrong, and the row, where it is one.

    `hosts`: those that it is about, where that is known and the row does not tell. `accuses` False: nothing bad is
    known of them, only too little.
    """

    name: str
    what: str
    job: str | None = None
    pattern: str | None = None
    mode: str | None = None
    payload_bytes: int | None = None
    group: str | None = None
    got: float | None = None
    limit: float | None = None
    hosts: tuple[str, ...] = ()
    accuses: bool = True
