"""Define the data types of a rules file: what a gate demands of a run, and the faults by which a run fails.

`gate/rules_file.py` reads the file; no text of the file is ever evaluated as code. `gate/messages.py` has the names of
failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.gate.messages import FaultCode, GateFailure, PublicationRule
from bench.results.document import Summary

RATES, TIMES = ("busbw", "algbw"), ("time", "p95", "p99", "max", "min")
WEAKEST = "weakest"
METRICS = (*RATES, *TIMES, WEAKEST)
PLACEMENTS = ("in_place", "out_of_place")
NETWORKS = ("efa", "ib", "roce", "tcp")


@dataclass(frozen=True, slots=True)
class Demand:
    """One demand on one metric.

    `side`: "least", "most", or "not-slower" (than the baseline; `value` is then the relative change that matters).
    `of`: the quantity that `value` is a share of (bound, reference, median); empty if `value` is in bytes per second or
    seconds. `text`: the demand as typed.
    """

    metric: str
    side: str
    value: float
    of: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class GateRule:
    """A rule: demands on the rows that match all selectors. An empty selector matches any row.

    A row must exist for each of `sizes`. In `spans` (first, last) every measured size is judged, and every requested
    size must have a row. Sizes are bytes. `factors`: values of other factors that the job's case must have. They match
    no row of a pattern without such a factor, and no row from another tool's log, because a log does not record
    factors. `groups` are shell patterns (node*). `modes`: if empty, demands on rates judge pipelined rows, and demands
    on times judge isolated rows. `placement`: in_place or out_of_place. `modelled`: whether modelled rows are also
    judged.
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
    """The expectations of the whole run. An empty field sets no expectation.

    `gpus_per_node`: the number that each node's driver must show, that bench.yaml must give, and that must have been
    measured. `max_age_s`: the largest age of a figure in seconds.
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

    `diagnose`: if True, pairs must be measured and accuse no part. If False, pairs are not diagnosed. If None, pairs
    need not be measured, but measured pairs must not accuse any part. `baseline`: the run that `not slower than
    baseline` refers to. `publish`: demands on the run as a publication. A file without `rules` has only `publish`.
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
    """One way in which a run failed: what is wrong, and the row or job that it is about.

    `got`, `limit`: the measured figure and its limit, in the unit of the demand. `hosts`: the hosts that the fault is
    about, if they are known and do not follow from the row. `accuses`: if False, the fault does not accuse the hosts,
    but too little is known to clear them.
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
        """A description of what is wrong, as text."""
        return self.code.words(self.facts)
