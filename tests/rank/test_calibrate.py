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


class Slow:
    """A transport whose synchronisations take seconds on a clock that `beat` and the transport share."""

    clock, sync_method, carries_messages, place = "host", "barrier", True, SimpleNamespace(rank=0)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.beats_s = 0.0, [0.0]
        self.channel = SimpleNamespace(gather=lambda each: [each, each], broadcast=lambda value: value)
        monkeypatch.setattr(calibrate, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(calibrate, "perf_counter_ns", lambda: int(1e9 * self.now_s))

    def allocate(self, *_: Any) -> None:
        return None

    def compile(self, *_: Any) -> None:
        return None

    def before_each(self) -> None:
        self.now_s += 1.0

    def time_each(self, compiled: Any, num_calls: int) -> Any:
        for _ in range(num_calls):
            self.before_each()
        return SimpleNamespace(seconds=(0.5,) * num_calls)

    def beat(self) -> None:
        self.beats_s.append(self.now_s)


@pytest.mark.parametrize("part", ["messages", "synchronisation"])
def test_heartbeats_come_between_slow_synchronisations(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: Any = SimpleNamespace(several=False, of=lambda rank: SimpleNamespace(offsets=()))
    slow: Any = Slow(monkeypatch)
    if part == "messages":
        assert calibrate._message_s(slow, World(1, 2), slow.beat) == 0.25
        assert slow.now_s == 10, "no more than one round"
    else:
        assert calibrate._skew(slow, World(1, 2), clocks, slow.beat)["sync_skew_max_s"] == 0
        assert slow.now_s == 41, "a few of them"
    assert max(later - beat for beat, later in zip(slow.beats_s, [*slow.beats_s[1:], slow.now_s], strict=True)) <= 5
