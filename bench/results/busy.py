"""Find how much CPU time other programs used on the hosts of a run, and how many figures this affects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.host_use import HostUse, together
from bench.core.record import Flag, Header
from bench.results.document import Document

MATTERS = 0.05  # share of a run's figures; with fewer figures from busy hosts, the run is not called busy


@dataclass(frozen=True, slots=True)
class BusyRun:
    """The number of figures of a run that were measured while other programs used the hosts' CPUs.

    `hosts`: the busy hosts with their CPU use, the busiest host first. Only rows with the flag BUSY_HOST count.
    `num`: how many figures were measured on busy hosts.
    `of`: the number of figures for which the CPU load of the hosts is known.
    `num_unknown`: the number of figures for which the load is unknown. Older versions of linkbench and some systems do
        not count CPU time.
    """

    hosts: Mapping[str, HostUse]
    num: int
    of: int
    num_unknown: int
    programs: Sequence[str]

    @property
    def matters(self) -> bool:
        """Whether the share of figures from busy hosts is at least MATTERS."""
        return self.num > 0 and self.num >= MATTERS * self.of

    @property
    def is_known(self) -> bool:
        """Whether the load of the hosts is known for more than half of the figures."""
        return self.of > self.num_unknown

    def facts(self) -> dict[str, Any]:
        """Return the facts for a message that says how busy the hosts were."""
        host, use = next(iter(self.hosts.items()))
        return {
            "host": host,
            "num_hosts": len(self.hosts),
            "causes": [cause.text for cause in use.causes()],
            "codes": [cause.code for cause in use.causes()],
            "programs": ", ".join(self.programs) or None,
            "num": self.num,
            "of": self.of,
        }


def busy_run(document: Document) -> BusyRun:
    """Return how busy the hosts of a run were, from its measured rows."""
    measured = [row for row in document.summaries if not row.modelled and not row.imported]
    known = [row for row in measured if row.hosts]
    busy = [row for row in known if Flag.BUSY_HOST in row.flags]
    uses = together(use for row in busy for use in row.hosts if use.is_busy)
    ranked = sorted(uses.values(), key=lambda use: -_lost_share(use))
    hosts = {use.host: use for use in ranked}
    programs = _programs(document.headers, {row.job for row in busy}, next(iter(hosts), ""))
    return BusyRun(hosts, len(busy), len(known), len(measured) - len(known), programs)


def _lost_share(use: HostUse) -> float:
    return max(use.others_share or 0.0, use.stolen_share or 0.0, use.limited_share or 0.0)


def _programs(headers: Mapping[str, Header], jobs: Iterable[str], host: str) -> list[str]:
    """Return the names of other programs that ran on a host during these jobs.

    The program with most CPU time comes first.
    """
    most: dict[str, float] = {}
    for job in jobs:
        after = (headers[job].nodes.get(host) or {}).get("after") or {}
        for program in after.get("programs") or ():
            most[program["name"]] = max(program["cpus"], most.get(program["name"], 0.0))
    return sorted(most, key=lambda name: -most[name])[:3]
