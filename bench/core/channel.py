"""The control plane between ranks, apart from the data path: nothing that goes through it is timed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Channel(ABC):
    """Small Python objects between all ranks of the world, over whatever library the transport opened."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value in rank order, on rank 0; None on the others."""

    @abstractmethod
    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""

    def share(self, value: Any) -> list[Any]:
        """Every rank's value in rank order, on every rank."""
        shared: list[Any] = self.broadcast(self.gather(value))
        return shared


class SingleRankChannel(Channel):
    """The channel of a world of one rank."""

    def gather(self, value: Any) -> list[Any] | None:
        """The one value."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value
