"""The control plane between ranks, separate from the data path. Messages of the control plane are never timed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Channel(ABC):
    """A channel for small Python objects between all ranks of the world.

    The transport's own library moves the objects.
    """

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks in rank order on rank 0. Return None on other ranks."""

    @abstractmethod
    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""

    def share(self, value: Any) -> list[Any]:
        """Return every rank's value in rank order, on every rank."""
        shared: list[Any] = self.broadcast(self.gather(value))
        return shared


class SingleRankChannel(Channel):
    """The control channel in a world that has only one rank."""

    def gather(self, value: Any) -> list[Any] | None:
        """Return a list with the value of this single rank."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """Return `value` itself, because there are no other ranks."""
        return value
