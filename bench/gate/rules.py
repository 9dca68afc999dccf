"""A rules file as values: what a gate asks of a run, and the fault by which a run fails.

`gate/rules_file.py` reads the file; nothing in it is ever evaluated. `gate/messages.py` holds the names of failures.
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

    `side`: least, most, or not-slower (than the baseline; `value` is then the change that matters). `of`: what `value`
    is a share of (bound, reference, median); empty if `value` is in bytes per second or seconds. `text`: as typed.
    """

    metric: str
    side: str
    value: float
    of: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class GateRule:
    """Demands on the rows that match all selectors. An empty selector matches any row.

    Each of `sizes` must be there. In `spans` (first, last) every measured size is judged, and every requested size must
    be there. Sizes are bytes. `factors`: values of other factors that the job's case must have; they match no row of a
    pattern without such a factor, and no row from another tool's log, which does not record it. `groups` are shell
    patterns (node*). `modes` empty: pipelined for rates, isolated for times. `placement`: in_place or out_of_place.
    `modelled`: rows that nobody measured are judged, too.
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
    """What must be true of the whole run; an empty field demands nothing.

    `gpus_per_node`: the number that each node's driver shows, that bench.yaml gives, and that was measured.
    `max_age_s`: seconds.
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
    """A whole rules file.

    `diagnose`: True: pairs must be measured and accuse no part; False: pairs are not diagnosed; None: there may be no
    pairs, but they must not accuse any part. `baseline`: the run that `not slower than baseline` means. `publish`:
    demands on the run as a publication; a file without `rules` asks only these.
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
    """One way in which a run failed: what is wrong, and the row if it is one.

    `got`, `limit`: of a figure, in the unit of its demand. `hosts`: those that the fault is about, if they are known
    and the row does not say so. `accuses` False: the hosts are not accused, but too little is known to clear them.
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
        """A fault of a row."""
        return cls(code, facts, row.job, row.pattern, row.mode, row.payload_bytes, row.group, got, limit)

    @property
    def name(self) -> GateFailure:
        """The name of the failure."""
        return self.code.failure

    @property
    def what(self) -> str:
        """What is wrong, for people."""
        return self.code.words(self.facts)
