"""One page for logs of like jobs: the hosts and pairs at fault are named, and nobody of a healthy cluster."""

from __future__ import annotations

import json
import random
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.diagnose import fleet_page
from bench.diagnose.fleet import Fleet, RunState, fleet_of
from bench.diagnose.host_evidence import FleetVerdict, JobOutcome, verdict_of
from bench.diagnose.localise import Diagnosis
from bench.diagnose.messages import FleetConclusion, FleetNote
from bench.figures import _fleet
from bench.logs import imports
from bench.logs.foreign import FAILED, OK, TRUNCATED, ForeignRow, ForeignRun
from bench.logs.messages import LogCode
from bench.logs.readers import _lines
from benchmarks.fleet import FAULTS, TOOL, falsely_named, is_right, judged
from tests.logs.corpus import needs_corpus, real
from tests.logs.synthetic_pairs import write_cluster

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = Path(__file__).parent / "golden_fleet.txt"


def run_of(
    hosts: Sequence[str], rate: float | None = 40e9, pattern: str = "alltoall", per_node: int = 1, status: str = OK
) -> tuple[str, ForeignRun]:
    """One run with its file; None: without figures."""
    rows = () if rate is None else (ForeignRow(1 << 30, busbw_bytes_per_s=rate),)
    num = len(hosts)
    run = ForeignRun(TOOL, pattern=pattern, num_ranks=num * per_node, num_nodes=num, status=status, rows=rows)
    return f"g{per_node}-{'-'.join(hosts)}.log", ForeignRun(**{**_plain(run), "hosts": tuple(hosts)})


def _plain(run: ForeignRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ForeignRun.__dataclass_fields__}


def cluster(num: int, bad: Mapping[tuple[int, int], float | None], **given: Any) -> list[tuple[str, ForeignRun]]:
    """All pairs of h0, h1, ...; `bad`: the rate of some, None for those without figures."""
    runs = []
    for a in range(num):
        for b in range(a + 1, num):
            rate = bad.get((a, b), 40e9 * (1 + 0.002 * ((a * 7 + b * 3) % 5 - 2)))
            runs.append(run_of((f"h{a}", f"h{b}"), rate, status=OK if rate else TRUNCATED, **given))
    return runs


def verdict(runs: list[tuple[str, ForeignRun]]) -> tuple[Fleet, FleetVerdict]:
    fleet = fleet_of(runs)
    return fleet, verdict_of(fleet)


def accused(found: FleetVerdict) -> list[str]:
    return [host.host for host in found.hosts if host.at_fault]


def test_a_healthy_cluster_has_no_accused() -> None:
    fleet, found = verdict(cluster(8, {}))
    assert (found.named, found.pairs) == ((), ())
    assert fleet_page.conclusion(fleet, found).code == FleetConclusion.ALL_WELL


def test_a_host_that_is_slow_with_all_is_named_with_its_ratio() -> None:
    _, found = verdict(cluster(6, {(2, other) if other > 2 else (other, 2): 24e9 for other in range(6) if other != 2}))
    assert accused(found) == ["h2"]
    assert found.hosts[0].ratio == pytest.approx(0.6, abs=0.03)
    assert all(pair.explained_by == ("h2",) for pair in found.pairs)


def test_a_host_that_fails_with_half_of_its_partners_is_named() -> None:
    _, found = verdict(cluster(10, {(0, 4): None, (2, 4): None, (4, 6): None, (4, 8): None}))
    assert accused(found) == ["h4"]
    assert found.hosts[0].lost_with == ("h0", "h2", "h6", "h8")
    assert found.hosts[0].counts[RunState.NO_FIGURES] == 4


def test_one_bad_pair_accuses_no_host_but_is_listed() -> None:
    for rate in (20e9, None):
        fleet, found = verdict(cluster(8, {(1, 5): rate}))
        assert not found.named
        assert [pair.hosts for pair in found.pairs] == [("h1", "h5")]
        assert fleet_page.conclusion(fleet, found).code == FleetConclusion.PAIRS_ONLY


def test_a_pair_that_is_bad_in_all_kinds_of_job_counts_once() -> None:
    runs = [run for per_node in (1, 2, 4, 8) for run in cluster(8, {(1, 5): None, (1, 6): None}, per_node=per_node)]
    _, found = verdict(runs)
    assert not accused(found)
    assert [pair.hosts for pair in found.pairs] == [("h1", "h5"), ("h1", "h6")]


def test_no_host_is_named_for_pairs_with_named_hosts_only() -> None:
    for seed in range(4):
        _, found = judged("two slow hosts", seed)
        named = {host.host for host in found.named}
        for host in found.named:
            others = {name for run in host.bad_runs for name in run.hosts} - {host.host}
            assert others - named, (seed, host.host)


def test_missing_runs_are_evidence_if_nearly_all_others_are_there() -> None:
    whole = cluster(8, {})
    without = [each for each in whole if each[1].hosts != ("h2", "h5")]
    fleet, found = verdict(without)
    assert [run.hosts for run in fleet.runs if run.state == RunState.MISSING] == [("h2", "h5")]
    assert not found.named
    half, _ = verdict(random.Random(1).sample(whole, 20))
    assert all(run.state != RunState.MISSING for run in half.runs)


def test_a_started_job_lacks_the_operations_that_its_log_does_not_reach() -> None:
    runs = cluster(8, {}) + [run for run in cluster(8, {}, pattern="sendrecv") if run[1].hosts != ("h0", "h3")]
    fleet, _ = verdict(runs)
    [missing] = [run for run in fleet.runs if run.state == RunState.MISSING]
    assert (missing.group.pattern, missing.hosts, missing.source) == ("sendrecv", ("h0", "h3"), "g1-h0-h3.log")


def test_two_network_tiers_accuse_nobody() -> None:
    """Pairs across the halves reach 0.8 of those inside: so many cannot be faults of links."""
    across = {(a, b): 32e9 for a in range(10) for b in range(a + 1, 10) if (a < 5) != (b < 5)}
    fleet, found = verdict(cluster(10, across))
    assert not found.named
    assert not found.pairs
    assert fleet.groups[0].compared


def test_rates_that_are_all_over_the_place_accuse_nobody() -> None:
    tiers = (40e9, 31e9, 24e9, 18e9)
    rates: dict[tuple[int, int], float | None] = {
        (a, b): tiers[(a + b) % 4] for a in range(10) for b in range(a + 1, 10)
    }
    fleet, found = verdict(cluster(10, rates))
    assert not found.named
    assert not found.pairs
    assert FleetNote.RATES_DIFFER in [note.code for note in fleet_page.notes(fleet, found)]


def test_a_slow_host_is_found_in_a_network_of_two_tiers() -> None:
    across = {(a, b): 32e9 for a in range(12) for b in range(a + 1, 12) if (a < 8) != (b < 8)}
    slow = {(min(3, other), max(3, other)): 18e9 for other in range(12) if other != 3}
    _, found = verdict(cluster(12, across | slow))
    assert accused(found) == [host.host for host in found.named] == ["h3"]


def test_a_faster_tier_does_not_make_the_others_slow() -> None:
    _, found = verdict(cluster(10, {(a, a + 1): 44e9 for a in range(0, 10, 2)}))
    assert not found.named
    assert not found.pairs


def test_evidence_counts_by_how_rare_it_is() -> None:
    slow = {(a, b): 25e9 for a, b in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (1, 8))}
    _, found = verdict(cluster(12, slow | {(10, 11): None}))
    assert found.weights[JobOutcome.LOST] > 1.5 * found.weights[JobOutcome.SLOW]


def test_runs_of_one_host_name_it() -> None:
    runs = [run_of((f"h{index}",), 20e9 if index == 3 else 40e9 + index * 1e7, per_node=8) for index in range(8)]
    _, found = verdict(runs)
    assert accused(found) == ["h3"]


def test_hosts_of_two_clusters_are_not_compared() -> None:
    small = [run_of(hosts, 10e9) for hosts in (("a0", "a1"), ("a0", "a2"), ("a1", "a2"), ("a0", "a3"), ("a1", "a3"))]
    fleet, found = verdict(cluster(6, {}) + small)
    assert (found.named, found.pairs) == ((), ())
    assert [group.key.kind.cluster for group in fleet.groups] == ["a0", "h0"]
    assert FleetNote.CLUSTERS in {note.code for note in fleet_page.notes(fleet, found)}
    _, found = verdict(cluster(6, {}) + small + [run_of(("a0", "h0"), 10e9)])
    assert found.pairs  # one job joins them: now the slow part of one cluster is told


def test_separate_pairs_are_one_cluster() -> None:
    pairs = [run_of((f"h{2 * k}", f"h{2 * k + 1}"), 20e9 if k == 3 else 40e9 + k * 1e7) for k in range(8)]
    fleet, found = verdict(pairs)
    assert [group.key.kind.cluster for group in fleet.groups] == [""]
    assert [pair.hosts for pair in found.pairs] == [("h6", "h7")]


def test_a_host_with_and_without_its_domain_is_one_host() -> None:
    runs = cluster(6, {})
    runs = [
        run_of([f"{host}.example.com" for host in run.hosts] if k % 3 else run.hosts) for k, (_, run) in enumerate(runs)
    ]
    assert fleet_of(runs).hosts == tuple(f"h{k}" for k in range(6))


def test_a_host_is_not_named_for_a_run_that_was_repeated_well() -> None:
    runs = [run_of((f"h{k}",), per_node=8) for k in range(8)]
    cut = run_of(("h3",), per_node=8, status=TRUNCATED)
    assert not verdict([*runs, cut])[1].named
    once = verdict([cut, *(each for each in runs if each[1].hosts != ("h3",))])[1]
    assert [host.host for host in once.named if host.suspected] == ["h3"]


def test_a_host_is_not_named_for_an_operation_that_it_never_began() -> None:
    runs = [run_of((f"h{k}",), pattern=pattern, per_node=8) for k in range(20) for pattern in ("alltoall", "allgather")]
    fleet, found = verdict(runs[:-1])
    assert sum(run.state == RunState.MISSING for run in fleet.runs) == 1
    assert not found.named


def test_hosts_of_a_log_without_names_come_from_its_file_name() -> None:
    source, run = run_of(("h1", "h2"))
    nameless = ForeignRun(**{**_plain(run), "hosts": ()})
    others = [each for each in cluster(5, {}) if each[1].hosts != ("h1", "h2")]
    assert ("h1", "h2") in {run.hosts for run in fleet_of([*others, (source, nameless)]).runs}
    odd = [(f"run{index}.log", run) for index, (_, run) in enumerate(others)]  # these names hold no hosts
    assert fleet_of([*odd, (source, nameless)]).num_unplaced == 1


def test_logs_without_their_last_lines_are_no_failures_if_most_are() -> None:
    cut = {"status": TRUNCATED}
    runs = [(source, ForeignRun(**{**_plain(run), **cut})) for source, run in cluster(6, {})]
    ended = LogCode.NO_REASON
    runs = [(source, ForeignRun(**{**_plain(run), "failure": Coded.of(ended)})) for source, run in runs]
    fleet, _ = verdict(runs)
    assert fleet.is_well
    few = cluster(6, {})
    few[3] = runs[3]
    assert Counter(run.state for run in fleet_of(few).runs)[RunState.FAILED] == 1


def test_wrong_data_and_errors_are_failures() -> None:
    runs = cluster(6, {})
    source, run = runs[0]
    runs[0] = source, ForeignRun(**{**_plain(run), "rows": (ForeignRow(1 << 30, busbw_bytes_per_s=4e10, num_wrong=3),)})
    source, run = runs[1]
    runs[1] = source, ForeignRun(**{**_plain(run), "status": FAILED})
    counts = Counter(each.state for each in fleet_of(runs).runs)
    assert (counts[RunState.FAILED], counts[RunState.WELL]) == (2, 13)


@pytest.mark.parametrize("fault", FAULTS)
def test_simulated_clusters(fault: str) -> None:
    """A small sample; benchmarks/fleet.py runs thousands."""
    right = 0
    for seed in range(8):
        true, found = judged(fault, seed)
        right += is_right(true, found)
        assert not any(host.at_fault for host in found.hosts if host.host in falsely_named(true, found)), seed
    assert right >= 7


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Exit code and output of `linkbench explain`."""

    def call(*args: str) -> tuple[int, str]:
        code = main(["explain", *args])
        return code, capsys.readouterr().out

    return call


def test_the_page_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, explained: Callable[..., tuple[int, str]]
) -> None:
    """The page in docs/explain.md."""
    monkeypatch.chdir(tmp_path)
    failing = {("node02", "node06"): "sendrecv", ("node04", "node06"): "alltoall", ("node06", "node09"): "sendrecv"}
    slow_pairs = {("node01", "node08"): 0.62}
    write_cluster(Path("logs"), 10, slow={"node03": 0.7}, slow_pairs=slow_pairs, failing=failing, kinds=(1, 4))
    code, text = explained("logs")
    assert code == 1
    assert text == GOLDEN.read_text(encoding="utf-8")
    assert text in (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    code, text = explained("logs", "--format", "json", "--plot", "pairs.png")
    document = json.loads(text)
    assert len(document["pages"]) == 2 * 90 - 2
    assert document["folder"]["conclusion_facts"]["at_fault"] == ["node03"]
    assert document["folder"]["conclusion_facts"]["suspected"] == ["node06"]
    assert Path("pairs.png").stat().st_size > 10_000
    assert "| node03 | at fault |" in explained("logs", "--format", "markdown")[1]


def test_a_map_of_pairs_counts_only_runs_of_two_different_hosts() -> None:
    runs = [*cluster(4, {}), run_of(("h0",)), run_of(("h0", "h0")), run_of(("h0", "h1", "h2"))]
    fleet, found = verdict(runs)
    [facts] = [text for text in _fleet.pairs(fleet, found).axes[0].texts if text.get_gid() == "facts"]
    assert facts.get_text().startswith("6 runs of 6 pairs")
    alone = [(f"{number}.log", run) for number, (_, run) in enumerate([run_of(("h0", "h0"))] * 6)]
    with pytest.raises(UsageError):
        _fleet.pairs(fleet_of(alone), found)


def test_runs_that_name_one_host_twice_name_nobody() -> None:
    """None of them has a place, so the fleet has no hosts."""
    fleet, found = verdict([run_of(("h0", "h0"))] * 6)
    assert (fleet.hosts, fleet.num_unplaced, fleet.is_one) == ((), 6, False)
    assert (found.hosts, found.named, found.pairs, found.diagnosis) == ((), (), (), Diagnosis((), ()))


def test_pages_and_single_files_are_as_before(tmp_path: Path, explained: Callable[..., tuple[int, str]]) -> None:
    write_cluster(tmp_path, 4)
    code, text = explained(str(tmp_path), "--format", "json")
    assert (code, json.loads(text)["folder"]["conclusion_code"]) == (0, FleetConclusion.ALL_WELL)
    assert explained(str(tmp_path), "--pages")[1].count(": alltoall") == 6
    one = next(tmp_path.iterdir())
    assert explained(str(one))[1].count(", by nccl-tests") == 2
    assert json.loads(explained(str(one), "--format", "json")[1])["folder"] is None


def corpus_runs(name: str, folder: Path) -> list[tuple[str, ForeignRun]]:
    """The runs of one of the corpus's archives."""
    with tarfile.open(real("fleet_logs", f"{name}.tar.gz")) as archive:
        for member in archive.getmembers():  # extractall(filter=...) needs Python 3.11.4
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    readers = imports.readers()
    logs = [imports.read(source, readers, _lines.results) for source in imports.sources([str(folder)])]
    return [(log.source.name, run) for log in logs for run in log.runs]


@needs_corpus
def test_the_healthy_fleet_is_never_accused(tmp_path: Path) -> None:
    """90 logs, whole and in 50 random subsets of 70 %."""
    runs = corpus_runs("pairs_10_nodes_healthy", tmp_path)
    fleet, found = verdict(runs)
    assert fleet.is_well
    assert len(fleet.hosts) == 10
    files = sorted({source for source, _ in runs})
    for seed in range(50):
        kept = set(random.Random(seed).sample(files, 63))
        _, found = verdict([run for run in runs if run[0] in kept])
        assert not found.named
        assert not found.pairs


@needs_corpus
def test_the_faulty_fleet_names_its_bad_nodes_first(tmp_path: Path) -> None:
    """Its owner's list of failures is not read: the nodes are those with most slow, failed or missing runs."""
    runs = [run for run in corpus_runs("pairs_17_nodes_faulty", tmp_path) if run[0].endswith(".log")]
    fleet, found = verdict(runs)
    bad = Counter(name for run in fleet.runs if run.state != RunState.WELL for name in run.hosts)
    lost = Counter(
        name for run in fleet.runs if run.state in (RunState.FAILED, RunState.NO_FIGURES) for name in run.hosts
    )
    assert [host.host for host in found.hosts[:2]] == [name for name, _ in bad.most_common(2)]
    assert {host.host[-3:] for host in found.hosts[:4]} == {"003", "016", "008", "004"}
    assert lost.most_common(1)[0][0].endswith("008")
    assert [host.host[-3:] for host in found.named] == ["003", "016", "008", "004"]
    named = {host.host for host in found.named}
    for host in found.named:
        assert {name for run in host.bad_runs for name in run.hosts} - named
    assert len(fleet_page.table(fleet, found, {}).splitlines()) <= 64
