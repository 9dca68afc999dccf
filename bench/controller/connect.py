"""Which hosts get through to which, and whose clock is off: from what each of them saw of the others to findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bench.controller.host_checks import PreflightFinding
from bench.probes.ports import PeerReply

_CLOCK_S = 1.0
_MOST_NAMED = 4
_OPEN = "open the ports above 1023 between the hosts in both directions (cables, routes, firewall)"

Reach = Mapping[str, Mapping[str, PeerReply]]  # [a][b]: what b was when a asked
_Failed = dict[tuple[str, str], str]


def judge(reached: Reach, silent: Mapping[str, str]) -> list[PreflightFinding]:
    """Everything that is wrong between hosts, in the fewest words: whole hosts, then pairs, then clocks.

    `silent`: hosts that could not take part, and why.
    """
    found = [
        PreflightFinding(
            (host,), f"host {host} could not try its ports ({why}): see what became of it since it answered first"
        )
        for host, why in silent.items()
    ]
    failed = {
        (a, b): to.error for a, peers in reached.items() for b, to in peers.items() if to.error and b not in silent
    }
    cut, rest = _whole_hosts(reached, failed)
    return [*found, *cut, *_pairs(rest), *_clocks(reached)]


def _whole_hosts(reached: Reach, failed: _Failed) -> tuple[list[PreflightFinding], _Failed]:
    """Hosts that no other one reaches, or that reach no other one; and the failures that this does not explain."""
    found: list[PreflightFinding] = []
    explained: set[tuple[str, str]] = set()
    for host in reached:
        inward, outward = ([pair for pair in failed if pair[side] == host] for side in (1, 0))
        asked = sum(host in peers for peers in reached.values())
        deaf = 1 < asked == len(inward)
        mute = 1 < len(reached[host]) == len(outward)
        explained |= {*(inward if deaf else ()), *(outward if mute else ())}
        if deaf:
            found.append(
                PreflightFinding((host,), f"no other host can connect to host {host} ({failed[inward[0]]}): {_OPEN}")
            )
        elif mute:
            found.append(
                PreflightFinding((host,), f"host {host} can not connect to any other ({failed[outward[0]]}): {_OPEN}")
            )
    return found, {pair: why for pair, why in failed.items() if pair not in explained}


def _pairs(failed: _Failed) -> list[PreflightFinding]:
    found = []
    for (a, b), why in failed.items():
        if (b, a) not in failed:
            found.append(PreflightFinding((a, b), f"host {a} can not connect to host {b} ({why}): {_OPEN}"))
        elif a < b:
            found.append(PreflightFinding((a, b), f"hosts {a} and {b} can not connect to each other ({why}): {_OPEN}"))
    more = len(found) - _MOST_NAMED
    return found[:_MOST_NAMED] + (
        [PreflightFinding((), f"{more} more pairs of hosts can not connect")] if more > 0 else []
    )


def _clocks(reached: Reach) -> list[PreflightFinding]:
    """Hosts that most of the others find to be off by more than a second, beyond what the round trip leaves open."""
    off: dict[str, list[float]] = {}
    seen: Counter[str] = Counter()
    for a, peers in reached.items():
        for b, to in peers.items():
            if to.clock_offset_s is None or to.round_trip_s is None:
                continue
            seen.update((a, b))
            if abs(to.clock_offset_s) - to.round_trip_s / 2 > _CLOCK_S:
                off.setdefault(b, []).append(to.clock_offset_s)
                off.setdefault(a, []).append(-to.clock_offset_s)
    guilty = [host for host in reached if 2 * len(off.get(host, ())) > seen[host]]
    if len(guilty) == 2 and len(reached) == 2:  # nobody knows which of two is right
        apart_s = abs(off[guilty[0]][0])
        what = f"the clocks of hosts {guilty[0]} and {guilty[1]} are {apart_s:.1f} s apart: let chrony or ntpd set them"
        return [PreflightFinding(tuple(guilty), what)]
    return [
        PreflightFinding(
            (host,),
            f"the clock of host {host} is {abs(sorted(off[host])[len(off[host]) // 2]):.1f} s "
            f"{'ahead of' if off[host][0] > 0 else 'behind'} the others': let chrony or ntpd set it",
        )
        for host in guilty
    ]
