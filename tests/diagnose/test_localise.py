"""The slow part is named and nothing else: on simulated clusters with noise, from rows as they are stored."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from bench.diagnose.ladder import least_rounds, next_rounds
from bench.diagnose.localise import STAGES, Diagnosis, PairSamples, localise
from bench.diagnose.messages import Conclusion, DiagnosisNote, SlowPart
from bench.diagnose.page import conclusion
from bench.diagnose.pair_evidence import diagnosed, group_name, rows_of
from bench.diagnose.places import Places
from benchmarks.localise import FAULTS, SPEED, Cluster, both_orders, climb, draw, matrix, named, runs


def places(num_hosts: int, nics: int = 1, racks: int = 0) -> Places:
    hosts = tuple(f"h{rank // nics}" for rank in range(num_hosts * nics))
    cards = tuple(f"eth{rank % nics}" if nics > 1 else None for rank in range(len(hosts)))
    return Places(hosts, cards, {f"h{k}": f"r{k * racks // num_hosts}" for k in range(num_hosts)} if racks else {})


def finding(verdict: Diagnosis) -> tuple[str, dict[str, Any]]:
    """Code and facts of the only finding."""
    [part] = verdict.accused
    [found] = part.findings
    return found.code, dict(found.facts)


def full(where: Places, slow: dict[tuple[int, int], float], repeats: int = 2) -> PairSamples:
    """Every pair of ranks of different hosts, without noise: 1.0 or what `slow` says."""
    num = len(where.hosts)
    return PairSamples.of(
        [
            (a, b, slow.get((a, b), 1.0), repeat, 0)
            for repeat in range(repeats)
            for a in range(num)
            for b in range(num)
            if where.hosts[a] != where.hosts[b]
        ]
    )


def touching(where: Places, *ranks: int, share: float = SPEED) -> dict[tuple[int, int], float]:
    num = range(len(where.hosts))
    return {(a, b): share for a in num for b in num if a in ranks or b in ranks}


def test_ladders_name_what_is_slow_and_nothing_else() -> None:
    parts, hits, false, missed = runs(3 * len(FAULTS), 5000)
    assert (hits, false) == (parts, 0), missed


def test_a_single_pair_has_no_peers_and_clears_nothing() -> None:
    alone, compared = (localise(full(where, {}), where) for where in (places(2), places(3)))
    assert not alone.has_peers and alone.cleared_by_peers == () and conclusion(alone).code == Conclusion.NO_PEERS
    assert (
        compared.has_peers
        and len(compared.cleared_by_peers) == 3
        and conclusion(compared).code == Conclusion.NOTHING_SLOW
    )


def test_sixty_four_hosts() -> None:
    for seed in range(8):
        cluster = draw("two hosts" if seed % 2 else "none", seed, 64)
        verdict, _ = climb(cluster, seed)
        assert named(verdict) == cluster.faulty_parts, seed
        assert set(verdict.cleared) == set(cluster.places.hosts) - {name for _, name in cluster.faulty_parts}


@pytest.mark.parametrize("num_hosts", [2, 3, 4, 8, 9])
def test_data_without_noise_accuse_nothing(num_hosts: int) -> None:
    where = places(num_hosts)
    verdict = localise(full(where, {}), where)
    assert verdict.accused == () and verdict.suspects == () and len(verdict.cleared) == num_hosts


@pytest.mark.parametrize("num_hosts", [3, 4, 8, 9])
def test_a_slow_host_without_noise(num_hosts: int) -> None:
    where = places(num_hosts)
    verdict = localise(full(where, touching(where, 1)), where)
    assert named(verdict) == {("host", "h1")}
    code, facts = finding(verdict)
    assert code == SlowPart.HOST and facts["host"] == "h1" and facts["both"] and not facts["inside"]
    assert facts["sends"]["ratio"] == pytest.approx(0.80, abs=0.01)
    assert facts["sends"]["low"] <= facts["sends"]["ratio"] <= facts["sends"]["high"]


def test_ten_percent_is_the_limit() -> None:
    where = places(8)
    assert not localise(full(where, touching(where, 1, share=0.93), 4), where).accused
    assert localise(full(where, touching(where, 1, share=0.85), 4), where).accused


def test_of_two_hosts_either_end_of_the_slow_link_may_be_slow() -> None:
    where = places(2)
    verdict = localise(full(where, {(0, 1): SPEED}, 4), where)
    assert named(verdict) == {("link", "h0-h1")}
    code, facts = finding(verdict)
    assert code == SlowPart.LINK and facts["open_ends"] == ["h0", "h1"]
    assert facts["forward"]["ratio"] == pytest.approx(SPEED, abs=0.01) and facts["backward"] is None
    assert verdict.accused[0].ends == ("h0", "h1")


def test_two_hosts_with_equal_directions_show_nothing() -> None:
    where = places(2)
    assert not localise(full(where, {(0, 1): 0.5, (1, 0): 0.5}), where).accused


def test_a_link_must_be_slow_twice() -> None:
    where = places(8)
    once = full(where, {}, 2)
    once.bytes_per_s[0] = 0.5
    assert not localise(once, where).accused
    assert named(localise(full(where, {(0, 1): SPEED, (1, 0): SPEED}), where)) == {("link", "h0-h1")}


def test_all_nics_of_a_host_are_the_host_and_one_is_a_nic() -> None:
    where = places(6, nics=2)
    assert named(localise(full(where, touching(where, 2)), where)) == {("nic", "h1:eth0")}
    verdict = localise(full(where, touching(where, 2)), where)
    assert "h1:eth1" in verdict.cleared and "h1" not in verdict.cleared
    assert named(localise(full(where, touching(where, 2, 3)), where)) == {("host", "h1")}


def test_a_slow_rank_is_not_its_nic() -> None:
    hosts = tuple(f"h{rank // 4}" for rank in range(24))
    where = Places(hosts, (None,) * 24)
    verdict = localise(full(where, touching(where, 5)), where)
    assert [(one.kind, one.name) for one in verdict.accused] == [("host", "h1")]
    code, facts = finding(verdict)
    assert code == SlowPart.RANK and (facts["rank"], facts["host"]) == (5, "h1")


def test_pairs_across_racks_may_be_slower_and_a_slow_uplink_is_named() -> None:
    where = places(12, racks=3)
    across = {(a, b): 0.5 for a in range(12) for b in range(12) if a // 4 != b // 4}
    assert not localise(full(where, across), where).accused
    uplink = {pair: 0.35 if 4 <= pair[0] < 8 or 4 <= pair[1] < 8 else rate for pair, rate in across.items()}
    verdict = localise(full(where, uplink), where)
    assert named(verdict) == {("link", "uplink of r1")}
    code, facts = finding(verdict)
    assert code == SlowPart.RACK and facts["rack"] == "r1"
    assert verdict.accused[0].is_uplink and verdict.accused[0].ends == ("r1",)


def test_a_host_may_be_slow_only_as_a_receiver() -> None:
    where = places(6)
    verdict = localise(full(where, {(a, 3): SPEED for a in range(6)}), where)
    assert named(verdict) == {("host", "h3")}
    _, facts = finding(verdict)
    assert facts["receives"]["ratio"] == pytest.approx(0.80, abs=0.01) and facts["sends"] is None


def test_more_evidence_is_more_confidence() -> None:
    def confidence(repeats: int) -> float:
        evidence, where = matrix(6, {2: 0.86}, {}, repeats, 3)
        accused = localise(evidence, where).accused
        return accused[0].confidence if accused else 0.0

    assert confidence(1) <= confidence(4) <= confidence(16) and confidence(16) > 0.99


def test_contention_is_no_link() -> None:
    """Slow while others run and normal alone: noted, not accused."""
    where = places(8)
    rows = [(a, b, 1.0, 0, STAGES.index("screen")) for a in range(8) for b in range(8) if a != b]
    rows += [(a, b, 0.7, k, STAGES.index("links")) for k in range(4) for a, b in ((0, 1), (1, 0))]
    rows += [(a, b, 1.0, 9, STAGES.index("alone")) for _ in range(3) for a, b in ((0, 1), (1, 0))]
    rows = [(a, b, 0.7 if {a, b} == {0, 1} and stage == 1 else rate, k, stage) for a, b, rate, k, stage in rows]
    verdict = localise(PairSamples.of(rows), where)
    note = verdict.notes[0]
    assert not verdict.accused and note.code == DiagnosisNote.CONTENTION
    assert note.facts["link"] == "h0-h1"


def test_the_next_rounds_follow_from_the_evidence_alone() -> None:
    where = places(16, nics=2)
    first = next_rounds(PairSamples.of(()), where, 7)
    assert first == next_rounds(PairSamples.of(()), where, 7) != next_rounds(PairSamples.of(()), where, 8)
    for asked in first:
        ranks = [rank for pair in asked.pairs for rank in pair]
        assert len(ranks) == len(set(ranks))
    directed = {pair for asked in first for pair in asked.pairs}
    assert directed == {(b, a) for a, b in directed}
    assert len(first) == least_rounds(16, 2, 2)


def test_a_large_cluster_takes_few_rounds() -> None:
    assert least_rounds(1024, 8, 8) == 2 * (4 + 3)


def test_a_ladder_ends_even_with_pure_noise() -> None:
    cluster = Cluster(places(6), sigma=0.5, tail=0.3)
    _, rounds = climb(cluster, 1)
    assert rounds < 400


def test_stored_names_of_groups_lead_to_the_same_rows() -> None:
    assert rows_of(group_name("confirm", 12, 4, 0), 2.0, symmetric=False) == ((4, 0, 2.0, 12, STAGES.index("confirm")),)
    assert rows_of("0-3", 2.0, symmetric=True) == ((0, 3, 2.0, 0, 0), (3, 0, 2.0, 0, 0))
    assert rows_of("world", 2.0, symmetric=False) == ()


def test_a_matrix_of_many_hosts_with_many_faults() -> None:
    bad = {host: SPEED for host in random.Random(3).sample(range(256), 8)}
    evidence, where = matrix(256, bad, {(1, 2): SPEED}, 3, 3)
    truth = {("host", f"h{host}") for host in bad} | {("link", "h1-h2")}
    assert {1, 2}.isdisjoint(bad)
    assert both_orders(named(localise(evidence, where))) == truth
    assert np.isfinite([one.confidence for one in localise(evidence, where).accused]).all()


def test_copies_by_another_engine_are_evidence_of_their_own() -> None:
    header = {
        "transport": "cuda_copy",
        "topology": "pairs",
        "direction": "two-way",
        "clock": "device",
        "nodes": {},
        "num_ranks": 4,
        "ranks_per_node": 4,
        "ranks": (),
    }
    headers = {engine: header | {"case": ("peer_copy", "--engine", engine)} for engine in ("ce", "sm")}
    rows = [
        {
            "job": job,
            "src": a,
            "dst": b,
            "group": f"{a}-{b}",
            "median_s": 1e-3,
            "payload_bytes": 1 << 28,
            "algbw_bytes_per_s": rate,
            "busbw_bytes_per_s": rate,
            "verified": True,
            "mode": "pipelined",
            "ci_low_s": 1e-3,
            "min_s": 1e-3,
        }
        for job, rate in (("ce", 4e10), ("sm", 2e10))
        for a in range(4)
        for b in range(a + 1, 4)
    ]
    found = diagnosed(headers, rows)
    assert [each.jobs for each in found] == [("ce",), ("sm",)]
    assert all(each.schedule == "full" for each in found)
