"""The calibration before the first row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.core.world import World
from bench.rank import calibrate


def test_a_heartbeat_precedes_each_part_that_all_ranks_take_part_in(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def noted(part: str) -> Any:
        told.append(part)
        return {} if part == "_skew" else None

    for part in ("_copy_rate", "_message_s", "_software_s", "_enqueue_s", "_skew"):
        monkeypatch.setattr(calibrate, part, lambda *_, part=part: noted(part))
    transport: Any = SimpleNamespace(channel=SimpleNamespace(gather=lambda each: None))
    pattern: Any = None
    clocks: Any = None
    found = calibrate.calibrate(transport, World(1, 2), pattern, clocks, lambda doing: told.append("beat"))
    assert found == {}
    for part in ("_copy_rate", "_message_s", "_software_s", "_skew"):
        assert told[told.index(part) - 1] == "beat"
