"""When a host counts as busy: other programs, other machines, CPU limits; never its own ranks or a short interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.core.host_use import BusyCause, HostUse, together

IDLE = HostUse("h", 1.0, 4, used_s=2.03, stolen_s=0.01, limited_s=0.0, ours_s=2.0, num_ranks=2)


@pytest.mark.parametrize(
    ("changed", "causes"),
    [
        ({}, []),
        ({"used_s": 1.9}, []),
        ({"used_s": 3.0}, [BusyCause.OTHERS]),
        ({"num_cpus": 64, "used_s": 5.0}, []),
        ({"wall_s": 0.05, "used_s": 0.13, "ours_s": 0.1}, []),
        ({"stolen_s": 0.6}, [BusyCause.STOLEN]),
        ({"limited_s": 0.6}, [BusyCause.LIMITED]),
        ({"used_s": 2.6, "stolen_s": 0.6}, [BusyCause.OTHERS, BusyCause.STOLEN]),
    ],
    ids=["idle", "ticks", "a program", "3 of 64 CPUs", "a short row", "steal", "a CPU limit", "two causes"],
)
def test_what_makes_a_host_busy(changed: dict[str, Any], causes: list[BusyCause]) -> None:
    use = replace(IDLE, **changed)
    assert [cause.code for cause in use.causes()] == causes
    assert use.is_busy == bool(causes)


def test_intervals_add_up_by_host() -> None:
    busy, other = replace(IDLE, used_s=4.0), replace(IDLE, host="g")
    uses = together([IDLE, busy, other])
    assert list(uses) == ["h", "g"]
    assert (uses["h"].wall_s, uses["h"].num_cpus, uses["h"].num_ranks) == (2.0, 4, 2)
    assert uses["h"].others_s == pytest.approx(2.03)
    assert uses["g"] == other
