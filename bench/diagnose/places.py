"""Where ranks are, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Places:
    """Where each rank is: host and NIC (None where unknown) by rank, and the rack of hosts where it is known."""

    hosts: tuple[str, ...]
    nics: tuple[str | None, ...]
    racks: Mapping[str, str] = field(default_factory=dict)

    def ports(self) -> dict[tuple[str, str | None], tuple[int, ...]]:
        """(host, NIC) -> the ranks that use it, in rank order."""
        found: dict[tuple[str, str | None], list[int]] = {}
        for rank, port in enumerate(zip(self.hosts, self.nics, strict=True)):
            found.setdefault(port, []).append(rank)
        return {port: tuple(ranks) for port, ranks in found.items()}
