"""Choose the rounds of a ladder. A ladder measures pairs, and earlier results decide which pairs are measured next.

The next rounds depend only on earlier measurements, so linkbench can compute them again from a stored file.

A ladder measures pairs of hosts or ranks, always in both directions. The stages of a ladder have these names:

1. `screen` measures all hosts in a few random matchings. If there are few hosts, `screen` measures all pairs of hosts
   (every matching of the circle method). `node` measures pairs of ranks inside every node.
2. `confirm` measures suspected parts with healthy partners.
3. `links` measures suspected links again. If a link is slow again, `alone` measures this link without other traffic.
4. If one link is slow and the number of hosts is small enough, `circle` measures all links.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.core.topology import circle
from bench.diagnose.localise import STAGES, PairSamples, Places, Suspect, localise

Pairs = tuple[tuple[int, int], ...]  # (source, destination) of pairs that share no rank

_ALL_MATCHINGS = 16  # up to this many hosts, the screen measures every matching
_SOME_MATCHINGS = 4
# with few hosts, matchings are repeated until each host has 9 rows, but at most 4 times
_LEAST_MATCHINGS, _MOST_REPEATS = 9, 4
_NODE_MATCHINGS = 3
_CIRCLE_HOSTS = 128  # up to this many hosts, all links are measured as soon as one link is slow
_CONFIRMATIONS = 6
_LINK_REPEATS, _ALONE_REPEATS, _MOST_ALONE = 4, 3, 16


@dataclass(frozen=True, slots=True)
class LadderRound:
    """A round of a ladder: the pairs that exchange data at the same time, and the name of the stage."""

    stage: str
    pairs: Pairs


def next_rounds(evidence: PairSamples, places: Places, seed: int) -> tuple[LadderRound, ...]:
    """Return the rounds to measure next, or an empty tuple if the diagnosis is complete.

    `seed`: the seed of all random choices of a run.
    """
    random_ = random.Random(f"{seed}-{len(evidence)}")
    if not len(evidence):
        return first_rounds(places, random_)
    verdict = localise(evidence, places)
    done = {STAGES[stage] for stage in np.unique(evidence.stage)}
    parts = [suspect for suspect in verdict.suspects if suspect.ranks]
    if parts:
        return tuple(_confirm(parts, verdict.cleared, places, random_))
    again = [suspect for suspect in verdict.suspects if suspect.pairs and not suspect.alone]
    if again:
        return tuple(_both_ways("links", _disjoint([suspect.pairs[0] for suspect in again]), _LINK_REPEATS))
    alone = [suspect for suspect in verdict.suspects if suspect.alone]
    if alone:
        single = [(suspect.pairs[0],) for suspect in alone[:_MOST_ALONE]]
        return tuple(_both_ways("alone", single, _ALONE_REPEATS))
    num_hosts = len(set(places.hosts))
    slow_link = any(part.kind == "link" and not part.is_uplink for part in verdict.accused)
    if slow_link and "circle" not in done and _ALL_MATCHINGS < num_hosts <= _CIRCLE_HOSTS:
        return tuple(_matchings("circle", num_hosts, places, random_))
    return ()


def least_rounds(num_hosts: int, ranks_per_host: int, num_nics: int) -> int:
    """Return the number of rounds that a ladder needs if no part is slow."""
    hosts = tuple(f"h{rank // ranks_per_host}" for rank in range(num_hosts * ranks_per_host))
    nics = tuple(f"nic{rank % ranks_per_host % num_nics}" for rank in range(len(hosts)))
    return len(first_rounds(Places(hosts, nics), random.Random(1)))


def first_rounds(places: Places, random_: random.Random) -> tuple[LadderRound, ...]:
    """Return the rounds of the first test, between all hosts and inside all hosts.

    The number of rounds does not depend on the random choices.
    """
    return (*_screen(places, random_), *_nodes(places, random_))


def _screen(places: Places, random_: random.Random) -> Iterator[LadderRound]:
    num_hosts = len(set(places.hosts))
    if num_hosts > 1:
        most = num_hosts if num_hosts <= _ALL_MATCHINGS else _SOME_MATCHINGS
        yield from _matchings("screen", most, places, random_)


def _matchings(stage: str, most: int, places: Places, random_: random.Random) -> Iterator[LadderRound]:
    """Yield random rounds of the circle method, which pairs hosts. A round uses all rails.

    One rank of each NIC takes part.
    """
    rails = _rails(places)
    hosts = list(dict.fromkeys(places.hosts))
    order = tuple(random_.sample(range(len(hosts)), len(hosts)))
    every = circle(order)
    repeats = min(_MOST_REPEATS, -(-_LEAST_MATCHINGS // len(every))) if most >= len(every) else 1
    matchings = [every[k] for k in random_.sample(range(len(every)), min(most, len(every)))] * repeats
    for turn, matching in enumerate(matchings):
        pairs = [
            (own[turn % len(own)], other[turn % len(other)])
            for a, b in matching
            for own, other in zip(rails[hosts[a]], rails[hosts[b]], strict=False)
        ]
        yield from _both_ways(stage, [tuple(pairs)], 1)


def _nodes(places: Places, random_: random.Random) -> Iterator[LadderRound]:
    """Yield rounds with pairs of ranks inside nodes. All nodes measure at the same time.

    The pairs come from a few random matchings.
    """
    members = _members(places)
    least = min(map(len, members.values()))
    if least < 2:
        return
    matchings = list(circle(tuple(range(least))))
    random_.shuffle(matchings)
    for matching in matchings[:_NODE_MATCHINGS]:
        pairs = [(ranks[a], ranks[b]) for ranks in members.values() for a, b in matching]
        yield from _both_ways("node", [tuple(pairs)], 1)


def _confirm(
    suspects: Sequence[Suspect], healthy: Sequence[str], places: Places, random_: random.Random
) -> Iterator[LadderRound]:
    """Yield rounds that pair every suspect with a healthy partner. Each round pairs a suspect with another partner.

    The remaining hosts form pairs with each other, for comparison.
    """
    ranks_of: dict[str, set[int]] = {}
    for suspect in suspects:
        for rank in () if suspect.within else suspect.ranks:
            ranks_of.setdefault(places.hosts[rank], set()).add(rank)
    cleared = [host for host in healthy if host in _members(places) and host not in ranks_of]
    cleared = cleared or list(_members(places))
    random_.shuffle(cleared)
    for turn in range(_CONFIRMATIONS if ranks_of else 0):
        waiting = sorted(ranks_of)
        while waiting:
            start = turn % len(cleared)  # use each partner once before any is used again
            now, waiting = waiting[: len(cleared)], waiting[len(cleared) :]
            partners = cleared[start:] + cleared[:start]
            yield from _both_ways("confirm", [_with_partners(now, partners, ranks_of, places, turn)], 1)
    if any(suspect.within for suspect in suspects):
        yield from _confirm_within([suspect for suspect in suspects if suspect.within], places)


def _with_partners(
    suspects: Sequence[str], partners: Sequence[str], ranks_of: Mapping[str, set[int]], places: Places, turn: int
) -> Pairs:
    """Return the pairs of one round.

    If one rail of a host is suspected, this rail is paired with the same rail of the partner. The remaining hosts also
    form pairs.
    """
    rails = _rails(places)
    pairs: list[tuple[int, int]] = []
    used: set[str] = set()
    for host in suspects:
        partner = next((other for other in partners if other not in used and other != host), None)
        if partner is None or host in used:
            continue
        used |= {host, partner}
        for own, other in zip(rails[host], rails[partner], strict=False):
            suspected = [rank for rank in own if rank in ranks_of[host]]
            if suspected:
                pairs.append((suspected[turn % len(suspected)], other[turn % len(other)]))
    rest = [host for host in partners if host not in used and host not in ranks_of]
    for a, b in zip(rest[::2], rest[1::2], strict=False):
        for own, other in zip(rails[a], rails[b], strict=False):
            pairs.append((own[turn % len(own)], other[turn % len(other)]))
    return tuple(pairs)


def _confirm_within(suspects: Sequence[Suspect], places: Places) -> Iterator[LadderRound]:
    members = _members(places)
    hosts = {places.hosts[suspect.ranks[0]] for suspect in suspects}
    for turn in range(_CONFIRMATIONS):
        pairs = []
        for ranks in members.values():
            matchings = circle(ranks)
            wanted = ranks if places.hosts[ranks[0]] in hosts else ranks[:2]
            matching = matchings[turn % len(matchings)] if wanted == ranks else (ranks[:2],)
            pairs += [(a, b) for a, b in matching]
        yield from _both_ways("confirm", [tuple(pairs)], 1)


def _both_ways(stage: str, rounds: Iterable[Pairs], repeats: int) -> Iterator[LadderRound]:
    rounds = list(rounds)
    for _ in range(repeats):
        for pairs in rounds:
            yield LadderRound(stage, pairs)
            yield LadderRound(stage, tuple((b, a) for a, b in pairs))


def _disjoint(pairs: Sequence[tuple[int, int]]) -> list[Pairs]:
    """Divide pairs into few rounds (first-fit method). In each round, a rank is in at most one pair."""
    rounds: list[tuple[set[int], list[tuple[int, int]]]] = []
    for pair in pairs:
        for busy, taken in rounds:  # noqa: B007
            if not busy & set(pair):
                break
        else:
            busy, taken = set(), []
            rounds.append((busy, taken))
        busy |= set(pair)
        taken.append(pair)
    return [tuple(taken) for _, taken in rounds]


def _members(places: Places) -> dict[str, tuple[int, ...]]:
    """Map each host to its ranks."""
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(places.hosts):
        found.setdefault(host, []).append(rank)
    return {host: tuple(ranks) for host, ranks in found.items()}


def _rails(places: Places) -> dict[str, list[tuple[int, ...]]]:
    """For each host, return a list with one element per NIC: the ranks that use the NIC.

    NICs are in the order of their first ranks.
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for (host, _), ranks in places.ports().items():
        found.setdefault(host, []).append(ranks)
    return found
