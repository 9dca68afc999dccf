"""Measure how busy a host is apart from a job's own ranks: other programs, other virtual machines, a CPU limit.

The load average does not show how busy a host is apart from the job, because it includes the job's own ranks. In a
container, the load average is that of the whole machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from bench.core.codes import Code, Coded

# A host is busy if one of its shares of CPU time exceeds the limit below. On idle machines, all shares are below 0.03
# (docs/metrics.md).
OTHERS_SHARE = 0.10
STOLEN_SHARE = 0.10
LIMITED_SHARE = 0.10  # of the ranks' time
# The kernel counts CPU time in steps of 10 ms, and samples it 100 to 1000 times a second.
_LEAST_S = 0.05


class BusyCause(Code):
    """Reasons why a host was busy with something other than the job's own ranks."""

    OTHERS = "other-programs", "other programs used {cpus:.2g} of {num_cpus} CPUs"
    STOLEN = "stolen", "the hypervisor gave {share:percent} of the CPU time to other machines"
    LIMITED = "cpu-limit", "a CPU limit stopped the ranks for {share:percent} of the time"


@dataclass(frozen=True, slots=True)
class HostUse:
    """CPU time of one host in an interval of `wall_s` seconds, summed over the `num_cpus` CPUs that ranks may use.

    `used_s`: CPU time of all programs, without interrupts.
    `ours_s`: CPU time of the job's `num_ranks` ranks on the host.
    `stolen_s`: time for which the hypervisor ran other virtual machines although a program of this host was ready to
        run.
    `limited_s`: time for which the CPU limit of the ranks' control group stopped them.
    """

    host: str
    wall_s: float
    num_cpus: int
    used_s: float
    stolen_s: float
    limited_s: float
    ours_s: float = 0.0
    num_ranks: int = 0

    @property
    def others_s(self) -> float:
        """The CPU time of programs that are not ranks of the job."""
        return max(0.0, self.used_s - self.ours_s)

    @property
    def others_share(self) -> float | None:
        """The share of the host's CPUs that other programs used, or None if the share is negligible."""
        return _share(self.others_s, self.wall_s * self.num_cpus, OTHERS_SHARE)

    @property
    def stolen_share(self) -> float | None:
        """The share of the CPU time that the hypervisor gave to other machines, or None if it is negligible."""
        return _share(self.stolen_s, self.wall_s * self.num_cpus, STOLEN_SHARE)

    @property
    def limited_share(self) -> float | None:
        """The share of time for which a CPU limit stopped the ranks, or None if the share is negligible."""
        return _share(self.limited_s, self.wall_s * max(1, self.num_ranks), LIMITED_SHARE)

    @property
    def is_busy(self) -> bool:
        """Whether something other than the job's ranks used a significant share of the host."""
        return any(share is not None for share in (self.others_share, self.stolen_share, self.limited_share))

    def causes(self) -> list[Coded]:
        """Return the reasons why the host was busy. The list is empty if the host was not busy."""
        causes = []
        if self.others_share is not None:
            cpus = self.others_share * self.num_cpus
            causes.append(Coded.of(BusyCause.OTHERS, cpus=cpus, num_cpus=self.num_cpus))
        if self.stolen_share is not None:
            causes.append(Coded.of(BusyCause.STOLEN, share=self.stolen_share))
        if self.limited_share is not None:
            causes.append(Coded.of(BusyCause.LIMITED, share=self.limited_share))
        return causes


def together(uses: Iterable[HostUse]) -> dict[str, HostUse]:
    """Return, for each host, the sum of its CPU times over all intervals."""
    found: dict[str, HostUse] = {}
    for use in uses:
        earlier = found.get(use.host)
        if earlier is None:
            found[use.host] = use
            continue
        sums = {name: value + getattr(earlier, name) for name, value in asdict(use).items() if name.endswith("_s")}
        found[use.host] = HostUse(
            host=use.host,
            num_cpus=max(use.num_cpus, earlier.num_cpus),
            num_ranks=max(use.num_ranks, earlier.num_ranks),
            **sums,
        )
    return found


def _share(part_s: float, whole_s: float, least_share: float) -> float | None:
    if part_s < _LEAST_S or whole_s <= 0 or part_s < least_share * whole_s:
        return None
    return min(1.0, part_s / whole_s)
