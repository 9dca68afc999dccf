"""What the GPUs are like after the last row, for whoever doubts the rows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, TypeVar

from bench.core.transport import Transport
from bench.probes import nvml

T = TypeVar("T")


class Ending:
    """A look at the GPUs of all hosts when the rows are done. All ranks in step; rank 0 learns what was seen."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._gpus: dict[str, list[dict[str, Any]]] = {}

    def watched(self, rows: Iterator[T]) -> Iterator[T]:
        """The same rows, and then the look, while the GPUs are awake."""
        yield from rows
        if self._transport.clock != "device" and self._transport.available_bytes() is None:
            return
        self._transport.keep_link_active()
        mine = (socket.gethostname(), nvml.conditions()) if self._transport.place.local_rank == 0 else None
        gathered = self._transport.channel.gather(mine) or []
        self._gpus = {one[0]: one[1] for one in gathered if one is not None}

    def gpus(self) -> dict[str, list[dict[str, Any]]]:
        """By host; {} where no GPU had a part in it."""
        return self._gpus
