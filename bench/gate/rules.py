"""Define the contents of a rules file, which are the demands on a run. Also define the faults that make a run fail.

`gate/rules_file.py` reads the file. No text of the file is ever evaluated as code. The module `gate/messages.py` has
the names of failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.gate.messages import FaultCode, GateFailure
from bench.gate.publication_rules import PublicationRule
from bench.results.document import Summary

RATES, TIMES = ("busbw", "algbw"), ("time", "p95", "p99", "max", "min")
WEAKEST = "weakest"
METRICS = (*RATES, *TIMES, WEAKEST)
PLACEMENTS = ("in_place", "out_of_place")
NETWORKS = ("efa", "ib", "roce", "tcp")


@dataclass(frozen=True, slots=True)
class Demand:
    """One demand on one metric.

    `side`: "least", "most", or "not-slower". For "not-slower", the figure is compared with the baseline, and `value` is
    the largest tolerated change.
    `of`: "baseline" for the side "not-slower"; "bound", "reference" or "median" if `value` is a share of this quantity.
    If `of` is empty, `value` is in bytes per second or in seconds.
    `text`: the demand as the user typed it.
    """

    metric: str
    side: str
    value: float
    of: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class GateRule:
    """A rule: demands on all rows that match the rule's selectors. An empty selector matches any row.

    `sizes`: message sizes in bytes. The run must have a row of each of these sizes.
    `spans`: ranges of sizes, as (smallest, largest) in bytes. Every measured size in a range is judged, and every
    requested size in a range must have a row.
    `factors`: the values that the rule requires of other options of the job's case. If a pattern does not have such an
    option, none of its rows match. Rows of other tools' logs never match, because these logs do not record the options.
    `groups`: names of groups, as shell patterns (node*).
    `modes`: the modes to judge. If `modes` is empty, demands on rates judge pipelined rows, and demands on times judge
    isolated rows.
    `placement`: in_place or out_of_place.
    `modelled`: if True, modelled rows are judged as well.
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
    groups: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    samples: int = 10
    imported: bool = False
    placement: str = ""
    modelled: bool = False
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Expect:
    """What a rules file expects of the whole run. An empty field means that nothing is expected.

    `gpus_per_node`: the expected number of GPUs. Each node's driver must report this number, bench.yaml must state it,
        and a job must have used as many GPUs on a node.
    `max_age_s`: the largest age of a figure in seconds.
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
    """The contents of a rules file.

    `diagnose`: if True, pairs must be measured, and the diagnosis of these pairs must find no slow part. If None, pairs
    need not be measured, but the diagnosis of measured pairs must find no slow part. If False, there is no diagnosis of
    pairs.
    `baseline`: the run that `not slower than baseline` refers to.
    `publish`: the publication rules that the run must follow. If a file has no `rules`, it only has publication rules.
    """

    name: str
    rules: tuple[GateRule, ...] = ()
    description: str = ""
    expect: Expect = Expect()
    diagnose: bool | None = None
    baseline: str = ""
    publish: tuple[PublicationRule, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class GateFault:
    """One fault of a run: what is wrong, and in which row or job.

    `got`, `limit`: the measured figure and the limit of the demand, in the demand's unit.
    `hosts`: the hosts that the fault concerns, if they are known and cannot be derived from the row.
    `accuses`: whether the fault makes these hosts fail. If False, the hosts do not fail because of the fault, but they
        cannot pass either.
    """

    code: FaultCode
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    job: str | None = None
    pattern: str | None = None
    mode: str | None = None
    payload_bytes: int | None = None
    group: str | None = None
    got: float | None = None
    limit: float | None = None
    hosts: tuple[str, ...] = ()
    accuses: bool = True

    @classmethod
    def of_row(
        cls, code: FaultCode, row: Summary, got: float | None = None, limit: float | None = None, /, **facts: Any
    ) -> GateFault:
        """Build a fault of a row."""
        return cls(code, facts, row.job, row.pattern, row.mode, row.payload_bytes, row.group, got, limit)

    @property
    def name(self) -> GateFailure:
        """The name of the failure."""
        return self.code.failure

    @property
    def what(self) -> str:
        """A description of the fault, as text."""
        return self.code.words(self.facts)
