"""Which host, NIC or link is slow? From pairs that were measured to names, each with a confidence.

Within a class of pairs that should be alike (one node, one rack, across) the logarithm of a pair's bandwidth is a
level, plus what the sender's and the receiver's part cost, plus what this link alone costs. Parts only ever slow a pair
down, so a part is suspected when even its better pairs are slow (docs/metrics.md, "Localisation"), the widest part that
explains them first: rack, host, NIC, rank, link. Rows that a ladder took to confirm a suspicion are what judges it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.diagnose import fit as fitting
from bench.diagnose import messages as words
from bench.diagnose.fit import Array, Level, PartRatio
from bench.diagnose.places import Places as Places

STAGES = ("", "screen", "node", "circle", "confirm", "links", "alone")  # '' is a schedule that asks nothing back
CONFIRM, LINKS, ALONE = (STAGES.index(name) for name in ("confirm", "links", "alone"))
ACCUSE = 0.99  # the least confidence
LEAST_CONFIRMING = 4  # rows of a direction, in a ladder
MOST_CONFIRMING = 24  # after which there are no better partners
LEAST_LINK_ROWS = 2  # repeats of a link


@dataclass(frozen=True, slots=True)
class PairSamples:
    """One row per measured pair and direction. `step`: rows of one round have one number; `stage`: index of STAGES."""

    src: Array
    dst: Array
    bytes_per_s: Array
    step: Array
    stage: Array

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, float, int, int]]) -> PairSamples:
        """From (src, dst, bytes per second, step, stage)."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * 5
        kinds = (np.int64, np.int64, np.float64, np.int64, np.int64)
        return cls(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)))

    def __len__(self) -> int:
        """How many rows."""
        return len(self.src)

    def taken(self, mask: Array) -> PairSamples:
        """Some of the rows."""
        return PairSamples(self.src[mask], self.dst[mask], self.bytes_per_s[mask], self.step[mask], self.stage[mask])


@dataclass(frozen=True, slots=True)
class Accused:
    """A slow part. `kind`: host, nic or link; `confidence`: the probability that it runs below 0.9 of its peers."""

    kind: str
    name: str
    confidence: float
    evidence: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """What a ladder should measure again: `ranks` of a part with others, or the `pairs` of a link."""

    ranks: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    within: bool = False  # inside a node
    alone: bool = False  # a link that is slow beside others: is it by itself?
    kind: str = ""  # host, nic or link
    name: str = ""
    hosts: tuple[str, ...] = ()  # it is in, or ends at


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is slow, which hosts (and NICs) are not, what is not settled yet, and what else the reader must know.

    `num_missing`: rounds of a ladder's first look at every host that were not measured.
    """

    accused: tuple[Accused, ...]
    cleared: tuple[str, ...]
    suspects: tuple[Suspect, ...] = ()
    notes: tuple[str, ...] = ()
    num_missing: int = 0

    @property
    def undecided(self) -> bool:
        """Nobody is accused, and not because there is nothing to find."""
        return not self.accused and bool(self.suspects or self.num_missing)


def localise(evidence: PairSamples, places: Places) -> Diagnosis:
    """The verdict on all rows. With no pair to compare with there is nobody to accuse."""
    host = words.index(places.hosts)
    between = host[evidence.src] != host[evidence.dst]
    parts = [_Part(evidence.taken(between != inside), places, inside) for inside in (False, True)]
    accused = sorted((one for part in parts for one in part.accused), key=lambda one: (-one.confidence, one.name))
    suspects = tuple(suspect for part in parts for suspect in part.suspects)
    return Diagnosis(
        _once(accused),
        _cleared(evidence, places, {one.name for one in accused}, suspects),
        suspects,
        tuple(note for part in parts for note in part.notes),
    )


class _Part:
    """The verdict on the pairs between hosts, or on those inside of them."""

    def __init__(self, rows: PairSamples, places: Places, inside: bool) -> None:
        self._rows, self._places, self._inside = rows, places, inside
        self._adaptive = bool((rows.stage > 0).any())
        self._ends = words.link_ends(places, inside)
        self.accused: list[Accused] = []
        self.suspects: list[Suspect] = []
        self.notes: list[str] = []
        if len(rows) < 2:
            return
        classes = words.classes(rows.src, rows.dst, places, inside)
        levels = _levels(rows, places, inside)
        self._fit = fitting.fit(np.log(rows.bytes_per_s), classes, rows.step, rows.stage < CONFIRM, levels)
        self._explained = np.zeros(len(rows), dtype=bool)  # by a part that is accused, or will be looked at again
        for index, level in enumerate(levels):
            for unit in self._fit.suspected(index):
                self._judge(index, level, unit)
        self._links()

    def _judge(self, index: int, level: Level, unit: int) -> None:
        """A rack, host, NIC or rank: slow as a sender, as a receiver, or both?"""
        found: list[tuple[str, PartRatio]] = []
        unsettled = False
        for direction in ("out", "in"):
            mine = self._fit.rows_of(index, direction, unit)
            taken = self._confirming(index, direction, mine) if self._adaptive else mine
            if not len(mine):
                continue
            if self._adaptive and len(taken) < LEAST_CONFIRMING:
                unsettled = True
                self._explained[mine] = True
                continue
            judged = self._fit.judge(index, direction, unit, taken)
            if judged.confidence >= ACCUSE and self._all_nics(index, direction, unit, taken):
                found.append((direction, judged))
            else:
                self._fit.acquit(index, direction, unit)
        if found:
            for groups in level.asked.values():  # what else its pairs do is laid to it as well
                self._explained[groups.rows(unit)] = True
            self.accused.append(Accused(*words.part(level, unit, found, self._places, self._inside)))
        elif unsettled:
            kind, name = words.part_name(level, unit, self._places)
            ranks = level.ranks[unit]
            self.suspects.append(
                Suspect(ranks=ranks, within=self._inside, kind=kind, name=name, hosts=self._hosts(ranks))
            )

    def _all_nics(self, index: int, direction: str, unit: int, taken: Array) -> bool:
        """Is a host slow by each of its NICs? Rows that were asked of one of them must not speak for all."""
        if self._inside or self._fit.levels[index].kind != "host":
            return True
        ends = self._ends[self._rows.src[taken] if direction == "out" else self._rows.dst[taken]]
        slow = self._fit.residual()[taken] + self._fit.effects[index][direction][unit] < fitting.SLOW
        return all(2 * slow[ends == end].sum() >= (ends == end).sum() for end in np.unique(ends))

    def _confirming(self, index: int, direction: str, mine: Array) -> Array:
        """The rows that were taken to judge a part: those with another end that is not suspected itself.

        Two slow parts are no slower together than one: beside another a slow part looks normal.
        """
        again = mine[self._rows.stage[mine] == CONFIRM]
        healthy = again[self._fit.free_end(index, direction, again)]
        return again if len(healthy) < LEAST_CONFIRMING and len(again) >= MOST_CONFIRMING else healthy

    def _links(self) -> None:
        """Pairs that stay slow when the parts at both ends are accounted for."""
        rows, residual, ends = self._rows, self._fit.residual(), self._ends
        a, b = ends[rows.src], ends[rows.dst]
        key = np.minimum(a, b) * (int(ends.max()) + 1) + np.maximum(a, b)
        links, which, counts = np.unique(key, return_inverse=True, return_counts=True)
        low = (residual < fitting.SLOW) & ~self._explained
        num_low = np.bincount(which[low], minlength=len(links))
        order, starts = np.argsort(which, kind="stable"), np.cumsum(counts) - counts
        found: dict[int, list[tuple[str, PartRatio]]] = {}
        enough = (num_low >= LEAST_LINK_ROWS) & (2 * num_low >= counts)
        if self._adaptive:  # half of what a link was drawn for, or what was asked of it since
            drawn = rows.stage < CONFIRM
            num_drawn = np.bincount(which[drawn], minlength=len(links))
            enough = 2 * np.bincount(which[low & drawn], minlength=len(links)) >= np.maximum(num_drawn, 1)
            enough |= np.bincount(which[rows.stage >= LINKS], minlength=len(links)) > 0
        for link in np.flatnonzero(enough):
            mine = order[starts[link] : starts[link] + counts[link]]
            slow = self._judge_link(mine, residual, len(links))
            if slow:
                found[int(link)] = slow
        self._name_links(found, key, links, which)

    def _judge_link(self, mine: Array, residual: Array, num_links: int) -> list[tuple[str, PartRatio]]:
        """In which directions (out: that of its first row) a link is slow; a ladder may have to look again first."""
        rows = self._rows
        again = mine[rows.stage[mine] >= LINKS] if self._adaptive else mine
        pairs = tuple({(int(s), int(d)): None for s, d in zip(rows.src[mine], rows.dst[mine], strict=True)})
        suspect = Suspect(
            pairs=pairs,
            within=self._inside,
            kind="link",
            name="-".join(self._names(mine[0])),
            hosts=self._hosts([rank for pair in pairs for rank in pair]),
        )
        if not len(again):
            self.suspects.append(suspect)
            return []
        forward = self._ends[rows.src[again]] == self._ends[rows.src[mine[0]]]
        ways = {"out": again[forward], "in": again[~forward]}
        ways = {way: taken for way, taken in ways.items() if (residual[taken] < fitting.SLOW).sum() >= LEAST_LINK_ROWS}
        slow: list[tuple[str, PartRatio]] = []
        for way, taken in ways.items():
            judged = self._fit.judge_link(residual[taken], num_links)
            if judged.confidence < ACCUSE and len(ways) == 2:  # both ways together
                both = self._fit.judge_link(residual[np.concatenate(list(ways.values()))], num_links)
                judged = replace(judged, confidence=both.confidence)
            alone = residual[taken[rows.stage[taken] == ALONE]]
            if judged.confidence >= ACCUSE and len(alone) and np.median(alone) > fitting.SLOW:
                self.notes.append(words.contended(self._names(mine[0]), judged))
            elif judged.confidence >= ACCUSE:
                slow.append((way, judged))
        if slow and self._adaptive and not (rows.stage[again] == ALONE).any():
            self.suspects.append(replace(suspect, alone=True))
            return []
        return slow

    def _hosts(self, ranks: Sequence[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._places.hosts[rank] for rank in ranks))

    def _names(self, row: int) -> tuple[str, str]:
        ranks = int(self._rows.src[row]), int(self._rows.dst[row])
        first, second = (words.end_name(rank, self._places, self._inside) for rank in ranks)
        return first, second

    def _name_links(
        self, found: dict[int, list[tuple[str, PartRatio]]], key: Array, links: Array, which: Array
    ) -> None:
        """Accuse each slow link; two hosts, all of whose rails between them are slow, once."""
        hosts, rows = words.index(self._places.hosts), self._rows
        first = {link: int(np.flatnonzero(which == link)[0]) for link in found}
        lone = words.lonely(rows.src, rows.dst, self._places) if not self._inside else set()
        together: dict[tuple[int, int], list[int]] = {}
        for link, row in first.items():
            a, b = sorted((int(hosts[rows.src[row]]), int(hosts[rows.dst[row]])))
            together.setdefault((a, b), []).append(link)
        for (a, b), members in together.items():
            both = np.isin(hosts[rows.src], (a, b)) & np.isin(hosts[rows.dst], (a, b))
            whole = not self._inside and len(members) > 1 and len(members) == len(np.unique(which[both]))
            for link in members[:1] if whole else members:
                row = first[link]
                at = self._places.hosts[rows.src[row]], self._places.hosts[rows.dst[row]]
                names = at if whole else self._names(row)
                open_ends = [name for name, host in zip(names, at, strict=True) if host in lone]
                name, confidence, evidence = words.link(names, found[link], open_ends)
                self.accused.append(Accused("link", name, confidence, evidence))


def _levels(rows: PairSamples, places: Places, inside: bool) -> list[Level]:
    """The parts that may be slow, the widest first."""
    hosts, ports = list(places.hosts), places.ports()
    every_rank = list(range(len(hosts)))
    if inside:
        named: list[tuple[str, list[object], int]] = [("host", [*hosts], 0), ("rank", [*every_rank], 2)]
        partner = np.array(every_rank)
    else:
        named = [("rack", [places.racks.get(host) for host in hosts], 2)] if len(set(places.racks.values())) > 2 else []
        named += [("host", [*hosts], 2)]
        named += [("nic", list(zip(hosts, places.nics, strict=True)), 2)] if len(ports) > len(set(hosts)) else []
        named += [("rank", [*every_rank], 2)] if len(hosts) > len(ports) else []
        partner = words.index(hosts)
    drawn = rows.stage < CONFIRM
    return [Level.of(kind, labels, rows.src, rows.dst, drawn, partner, least) for kind, labels, least in named]


def _once(accused: Sequence[Accused]) -> tuple[Accused, ...]:
    """Each part once: it may have been found between hosts and inside one."""
    found: dict[tuple[str, str], Accused] = {}
    for one in accused:
        known = found.get((one.kind, one.name))
        found[one.kind, one.name] = replace(known, evidence=f"{known.evidence}; {one.evidence}") if known else one
    return tuple(found.values())


def _cleared(evidence: PairSamples, places: Places, guilty: set[str], suspects: tuple[Suspect, ...]) -> tuple[str, ...]:
    """Hosts that were measured, and are not accused nor suspected still; of a host with a slow NIC, its other NICs."""
    measured = {places.hosts[rank] for rank in np.unique(np.concatenate((evidence.src, evidence.dst)))}
    measured -= {places.hosts[rank] for suspect in suspects for rank in suspect.ranks}
    nics: dict[str, list[str]] = {}
    for host, nic in places.ports():
        nics.setdefault(host, []).append(words.nic_name(host, nic))
    names: list[str] = []
    for host, own in nics.items():
        if host in measured and host not in guilty:
            names += [nic for nic in own if nic not in guilty] if guilty & set(own) else [host]
    return tuple(names)
