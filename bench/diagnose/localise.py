"""Find slow hosts, NICs and links in measured pairs, each with a confidence.

Comparable pairs form a class, for example the pairs inside nodes, the pairs inside racks, or the pairs across racks. In
this model, the logarithm of a pair's bandwidth is the sum of these terms: the normal level of the pair's class, the
effects of the sender's parts, the effects of the receiver's parts, and the effect of the link. A slow part can only
make its pairs slower. If even the faster pairs of a part are slow, the part is suspected (docs/metrics.md,
"Localisation"). The search tries racks first, then hosts, NICs, ranks and links. The search suspects the first part
that explains the slow pairs. A ladder (ladder.py) measures a suspected part again. Only the rows of the new measurement
decide whether the part is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.core.codes import Coded
from bench.diagnose import fit as fitting
from bench.diagnose.fit import Level, PartRatio
from bench.diagnose.messages import DiagnosisNote, SlowPart
from bench.diagnose.places import Array, hosts_with_one_partner, index, nic_name, pair_classes
from bench.diagnose.places import Places as Places

# "" means that the schedule was fixed beforehand
STAGES = ("", "screen", "node", "circle", "confirm", "links", "alone")
CONFIRM, LINKS, ALONE = (STAGES.index(name) for name in ("confirm", "links", "alone"))
ACCUSE = 0.99  # a part is accused from this confidence on
LEAST_CONFIRMING = 4  # a ladder needs this many rows per direction to decide about a part
MOST_CONFIRMING = 24  # from this many rows on, rows with unhealthy partners are used as well
LEAST_LINK_ROWS = 2  # a link is accused only with at least this many slow rows


@dataclass(frozen=True, slots=True)
class PairSamples:
    """One row per measured pair and direction.

    `step`: the number of the round in which the pair was measured.
    `stage`: the stage in which the pair was measured, as an index in STAGES.
    """

    src: Array
    dst: Array
    bytes_per_s: Array
    step: Array
    stage: Array

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, float, int, int]]) -> PairSamples:
        """Build samples from rows. Each row is (src, dst, bytes per second, step, stage)."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * 5
        kinds = (np.int64, np.int64, np.float64, np.int64, np.int64)
        return cls(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.src)

    def taken(self, mask: Array) -> PairSamples:
        """Return the rows that a boolean mask selects."""
        return PairSamples(self.src[mask], self.dst[mask], self.bytes_per_s[mask], self.step[mask], self.stage[mask])


@dataclass(frozen=True, slots=True)
class Accused:
    """A slow part.

    `kind`: host, nic or link.
    `confidence`: the probability that the bandwidth of the part is below 0.9 of the bandwidth of its peers.
    `findings`: for each finding, a code of SlowPart and facts. There are two findings if the part is slow both between
        hosts and inside a host.
    `ends`: for a link, the names of its two ends. For any other part, the part's name.
    """

    kind: str
    name: str
    confidence: float
    findings: tuple[Coded, ...]
    ends: tuple[str, ...] = ()

    @property
    def evidence(self) -> str:
        """The findings as text."""
        return "; ".join(finding.text for finding in self.findings)

    @property
    def is_uplink(self) -> bool:
        """Whether the part is the uplink that connects a rack with all other racks."""
        return any(finding.code == SlowPart.RACK for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A part that a ladder should measure again. For a link, `pairs` is set. For any other part, `ranks` is set."""

    ranks: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    within: bool = False  # the pairs are inside a node
    alone: bool = False  # the link is slow while other links are in use: measure it without other traffic
    kind: str = ""  # host, nic or link
    name: str = ""
    hosts: tuple[str, ...] = ()  # the hosts of its ranks or pairs


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The slow parts (`accused`), the healthy hosts and NICs (`cleared`), the suspected parts, and notes.

    `num_missing`: the number of missing rounds in a ladder's first test. The first test covers every host.
    `has_peers`: whether more than one pair of ranks was measured. With a single pair, no comparison is possible.
    """

    accused: tuple[Accused, ...]
    cleared: tuple[str, ...]
    suspects: tuple[Suspect, ...] = ()
    notes: tuple[Coded, ...] = ()
    num_missing: int = 0
    has_peers: bool = True

    @property
    def cleared_by_peers(self) -> tuple[str, ...]:
        """The hosts that are healthy because they are as fast as other hosts.

        The result is empty if there were no other hosts to compare with. A gate rule that demands a rate can clear
        hosts even without other hosts.
        """
        return self.cleared if self.has_peers else ()

    @property
    def undecided(self) -> bool:
        """Whether the search is incomplete and has not found a slow part yet."""
        return not self.accused and bool(self.suspects or self.num_missing)


def localise(evidence: PairSamples, places: Places) -> Diagnosis:
    """Find the slow parts, separately in the pairs between hosts and in the pairs inside hosts.

    If no pairs are comparable, no part is called slow.
    """
    host = index(places.hosts)
    between = host[evidence.src] != host[evidence.dst]
    searches = [_Search(evidence.taken(between != inside), places, inside) for inside in (False, True)]
    accused: list[Accused] = []
    suspects: list[Suspect] = []
    notes: list[Coded] = []
    for search in searches:
        accused += search.accused
        suspects += search.suspects
        notes += search.notes
    accused.sort(key=lambda part: (-part.confidence, part.name))
    has_peers = len({frozenset(pair) for pair in zip(evidence.src.tolist(), evidence.dst.tolist(), strict=True)}) > 1
    cleared = _cleared(evidence, places, {part.name for part in accused}, suspects)
    return Diagnosis(_once(accused), cleared, tuple(suspects), tuple(notes), has_peers=has_peers)


class _Search:
    """The search for slow parts, either in the pairs between hosts or in the pairs inside hosts."""

    def __init__(self, rows: PairSamples, places: Places, inside: bool) -> None:
        self._rows, self._places, self._inside = rows, places, inside
        self._adaptive = bool((rows.stage > 0).any())
        self._ends = places.link_ends(inside)
        self.accused: list[Accused] = []
        self.suspects: list[Suspect] = []
        self.notes: list[Coded] = []
        if len(rows) < 2:
            return
        classes = pair_classes(rows.src, rows.dst, places, inside)
        levels = _levels(rows, places, inside)
        self._fit = fitting.fit(np.log(rows.bytes_per_s), classes, rows.step, rows.stage < CONFIRM, levels)
        # rows whose slowness is due to a part that is accused or will be measured again
        self._explained = np.zeros(len(rows), dtype=bool)
        for number, level in enumerate(levels):
            for unit in self._fit.suspected(number):
                self._judge(number, level, unit)
        self._judge_links()

    def _judge(self, number: int, level: Level, unit: int) -> None:
        """Decide whether a rack, host, NIC or rank is slow, and whether as a sender, as a receiver, or as both."""
        slow: dict[str, PartRatio] = {}
        unsettled = False
        for direction in ("out", "in"):
            mine = self._fit.rows_of(number, direction, unit)
            taken = self._confirming(number, direction, mine) if self._adaptive else mine
            if not len(mine):
                continue
            if self._adaptive and len(taken) < LEAST_CONFIRMING:
                unsettled = True
                self._explained[mine] = True
                continue
            ratio = self._fit.part_ratio(number, direction, unit, taken)
            if ratio.confidence >= ACCUSE and self._all_nics(number, direction, unit, taken):
                slow[direction] = ratio
            else:
                self._fit.clear(number, direction, unit)
        if slow:
            for groups in level.asked.values():  # all pairs of the part count as explained
                self._explained[groups.rows(unit)] = True
            self._accuse(level, unit, slow)
        elif unsettled:
            kind, name = _part_name(level, unit, self._places)
            ranks = level.ranks[unit]
            hosts = self._hosts(ranks)
            self.suspects.append(Suspect(ranks=ranks, within=self._inside, kind=kind, name=name, hosts=hosts))

    def _accuse(self, level: Level, unit: int, slow: Mapping[str, PartRatio]) -> None:
        kind, name = _part_name(level, unit, self._places)
        label, rank = level.labels[unit], level.ranks[unit][0]
        facts: dict[str, Any] = {"sends": _facts(slow.get("out")), "receives": _facts(slow.get("in"))}
        facts |= {"both": len(slow) == 2, "inside": self._inside}
        end = name
        if level.kind == "rack":
            finding = Coded.of(SlowPart.RACK, rack=label, **facts)
            end = str(label)
        elif level.kind == "nic":
            finding = Coded.of(SlowPart.NIC, nic=name, host=label[0], **facts)
        elif level.kind == "rank":
            finding = Coded.of(SlowPart.RANK, rank=rank, host=name, **facts)
        else:
            finding = Coded.of(SlowPart.HOST, host=name, **facts)
        confidence = max(ratio.confidence for ratio in slow.values())
        self.accused.append(Accused(kind, name, confidence, (finding,), (end,)))

    def _all_nics(self, number: int, direction: str, unit: int, taken: Array) -> bool:
        """Check whether a host is slow through each of its NICs.

        A host with only one slow NIC must not be called slow.
        """
        if self._inside or self._fit.levels[number].kind != "host":
            return True
        ends = self._ends[self._rows.src[taken] if direction == "out" else self._rows.dst[taken]]
        slow = self._fit.residual()[taken] + self._fit.effects[number][direction][unit] < fitting.SLOW
        return all(2 * slow[ends == end].sum() >= (ends == end).sum() for end in np.unique(ends))

    def _confirming(self, number: int, direction: str, mine: Array) -> Array:
        """Return the rows that decide about a suspected part.

        These rows come from measurements that tested this part with healthy partners. A pair of two slow parts is only
        as slow as a pair with one slow part. A test with a slow partner would therefore not show whether this part is
        slow.
        """
        again = mine[self._rows.stage[mine] == CONFIRM]
        healthy = again[self._fit.other_end_clear(number, direction, again)]
        return again if len(healthy) < LEAST_CONFIRMING and len(again) >= MOST_CONFIRMING else healthy

    def _judge_links(self) -> None:
        """Find slow links.

        A link is slow if its pairs are slower than expected from the parts at its two ends.
        """
        rows, residual, ends = self._rows, self._fit.residual(), self._ends
        a, b = ends[rows.src], ends[rows.dst]
        key = np.minimum(a, b) * (int(ends.max()) + 1) + np.maximum(a, b)
        links, which, counts = np.unique(key, return_inverse=True, return_counts=True)
        low = (residual < fitting.SLOW) & ~self._explained
        num_low = np.bincount(which[low], minlength=len(links))
        order, starts = np.argsort(which, kind="stable"), np.cumsum(counts) - counts
        enough = (num_low >= LEAST_LINK_ROWS) & (2 * num_low >= counts)
        # Either at least half of the rows before any suspicion are slow, or later rows were measured for this link.
        if self._adaptive:
            drawn = rows.stage < CONFIRM
            num_drawn = np.bincount(which[drawn], minlength=len(links))
            enough = 2 * np.bincount(which[low & drawn], minlength=len(links)) >= np.maximum(num_drawn, 1)
            enough |= np.bincount(which[rows.stage >= LINKS], minlength=len(links)) > 0
        found: dict[int, dict[str, PartRatio]] = {}
        for link in np.flatnonzero(enough):
            mine = order[starts[link] : starts[link] + counts[link]]
            slow = self._slow_directions(mine, residual, len(links))
            if slow:
                found[int(link)] = slow
        self._accuse_links(found, which)

    def _slow_directions(self, mine: Array, residual: Array, num_links: int) -> dict[str, PartRatio]:
        """Return the ratio of each slow direction of a link.

        The key "out" means the direction of the link's first row. The result is empty if no direction is slow. The
        result is also empty if a ladder must measure the link again.
        """
        rows = self._rows
        again = mine[rows.stage[mine] >= LINKS] if self._adaptive else mine
        pairs = tuple({(int(s), int(d)): None for s, d in zip(rows.src[mine], rows.dst[mine], strict=True)})
        suspect = Suspect(
            pairs=pairs,
            within=self._inside,
            kind="link",
            name="-".join(self._end_names(mine[0])),
            hosts=self._hosts([rank for pair in pairs for rank in pair]),
        )
        if not len(again):
            self.suspects.append(suspect)
            return {}
        forward = self._ends[rows.src[again]] == self._ends[rows.src[mine[0]]]
        directions = {"out": again[forward], "in": again[~forward]}
        for direction, taken in list(directions.items()):
            if (residual[taken] < fitting.SLOW).sum() < LEAST_LINK_ROWS:
                del directions[direction]
        slow: dict[str, PartRatio] = {}
        for direction, taken in directions.items():
            ratio = self._fit.link_ratio(residual[taken], num_links)
            if ratio.confidence < ACCUSE and len(directions) == 2:
                together = self._fit.link_ratio(residual[np.concatenate(list(directions.values()))], num_links)
                ratio = replace(ratio, confidence=together.confidence)
            alone = residual[taken[rows.stage[taken] == ALONE]]
            if ratio.confidence >= ACCUSE and len(alone) and np.median(alone) > fitting.SLOW:
                name = "-".join(self._end_names(mine[0]))
                self.notes.append(Coded.of(DiagnosisNote.CONTENTION, link=name, loaded=_facts(ratio)))
            elif ratio.confidence >= ACCUSE:
                slow[direction] = ratio
        if slow and self._adaptive and not (rows.stage[again] == ALONE).any():
            self.suspects.append(replace(suspect, alone=True))
            return {}
        return slow

    def _hosts(self, ranks: Sequence[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._places.hosts[rank] for rank in ranks))

    def _end_names(self, row: int) -> tuple[str, str]:
        src, dst = int(self._rows.src[row]), int(self._rows.dst[row])
        return self._places.end_name(src, self._inside), self._places.end_name(dst, self._inside)

    def _accuse_links(self, found: Mapping[int, Mapping[str, PartRatio]], which: Array) -> None:
        """Accuse each slow link.

        If all rails between two hosts are slow, report one slow link between the two hosts instead of several slow
        rails.
        """
        hosts, rows = index(self._places.hosts), self._rows
        first = {link: int(np.flatnonzero(which == link)[0]) for link in found}
        lone: set[str] = set()
        if not self._inside:
            lone = hosts_with_one_partner(rows.src, rows.dst, self._places)
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
                names = at if whole else self._end_names(row)
                open_ends = [name for name, host in zip(names, at, strict=True) if host in lone]
                self._accuse_link(names, found[link], open_ends)

    def _accuse_link(self, names: tuple[str, str], slow: Mapping[str, PartRatio], open_ends: list[str]) -> None:
        """Accuse a link.

        `open_ends`: the ends of the link that may be slow instead of the link itself. The host at an open end was
            measured only together with the host at the other end.
        """
        finding = Coded.of(
            SlowPart.LINK,
            first=names[0],
            second=names[1],
            forward=_facts(slow.get("out")),
            backward=_facts(slow.get("in")),
            both=len(slow) == 2,
            open_ends=open_ends,
        )
        confidence = max(ratio.confidence for ratio in slow.values())
        self.accused.append(Accused("link", "-".join(names), confidence, (finding,), names))


def _facts(ratio: PartRatio | None) -> dict[str, Any] | None:
    """Return a ratio as a dictionary of plain values, or None if there is no ratio."""
    if ratio is None:
        return None
    return {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "num_rows": ratio.num_rows}


def _part_name(level: Level, unit: int, places: Places) -> tuple[str, str]:
    """Return the kind and the name of a rack, host, NIC or rank."""
    label = level.labels[unit]
    if level.kind == "rack":
        return "link", f"uplink of {label}"
    if level.kind == "nic":
        return "nic", nic_name(*label)
    return "host", places.hosts[level.ranks[unit][0]]


def _levels(rows: PairSamples, places: Places, inside: bool) -> list[Level]:
    """Return a Level for each kind of part that may be slow (rack, host, NIC or rank). The largest parts come first.

    A part can be suspected only if it was measured with enough partners. The required number depends on the kind of
    part.
    """
    hosts, ports = list(places.hosts), places.ports()
    every_rank = list(range(len(hosts)))
    kinds: list[tuple[str, list[object], int]] = []
    if inside:
        kinds = [("host", [*hosts], 0), ("rank", [*every_rank], 2)]
        partner = np.array(every_rank)
    else:
        if len(set(places.racks.values())) > 2:
            kinds.append(("rack", [places.racks.get(host) for host in hosts], 2))
        kinds.append(("host", [*hosts], 2))
        if len(ports) > len(set(hosts)):
            kinds.append(("nic", list(zip(hosts, places.nics, strict=True)), 2))
        if len(hosts) > len(ports):
            kinds.append(("rank", [*every_rank], 2))
        partner = index(hosts)
    drawn = rows.stage < CONFIRM
    return [Level.of(kind, labels, rows.src, rows.dst, drawn, partner, least) for kind, labels, least in kinds]


def _once(accused: Sequence[Accused]) -> tuple[Accused, ...]:
    """If a part is slow both between hosts and inside a host, merge its two findings into one."""
    found: dict[tuple[str, str], Accused] = {}
    for part in accused:
        known = found.get((part.kind, part.name))
        found[part.kind, part.name] = replace(known, findings=known.findings + part.findings) if known else part
    return tuple(found.values())


def _cleared(evidence: PairSamples, places: Places, accused: set[str], suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """Return the measured hosts that are neither slow nor suspected.

    If only one NIC of a host is slow, return the host's healthy NICs instead of the host.
    """
    measured = {places.hosts[rank] for rank in np.unique(np.concatenate((evidence.src, evidence.dst)))}
    measured -= {places.hosts[rank] for suspect in suspects for rank in suspect.ranks}
    nics: dict[str, list[str]] = {}
    for host, nic in places.ports():
        nics.setdefault(host, []).append(nic_name(host, nic))
    names: list[str] = []
    for host, own in nics.items():
        if host not in measured or host in accused:
            continue
        if accused & set(own):
            names += [nic for nic in own if nic not in accused]
        else:
            names.append(host)
    return tuple(names)
