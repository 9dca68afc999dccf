"""What others reached: every fact has a source and known hardware, and none is above its hard bound."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bench.core import plugins
from bench.explain.assessment import assess
from bench.explain.evidence import RunEvidence
from bench.explain.gather import gathered
from bench.explain.messages import ResultVerdict
from bench.hardware import reference
from bench.hardware.bounds import copy_bounds
from bench.hardware.catalogue import gpu_links, gpus, instance, instances, pcie_bytes_per_s, yaml_file
from bench.hardware.machine import machine_of
from bench.hardware.reference import (
    Reference,
    best_of_each,
    collectives,
    copies,
    is_same_measurement,
    limits,
    of_any_machine,
    same_machine,
    same_shape,
)
from bench.logs.foreign import ForeignRow, ForeignRun
from tests.logs import corpus

FILE = yaml.safe_load((Path(reference.__file__).parent / "reference.yaml").read_text())
ENTRIES = [*FILE["collectives"], *FILE["copies"], *FILE["limits"]]


def test_every_fact_names_a_source_that_exists_and_every_source_is_used() -> None:
    assert len(ENTRIES) > 100
    curves = yaml_file("curves")
    used = {entry["source"] for entry in (*ENTRIES, *curves["curves"], *curves["more"])}
    assert used >= set(FILE["sources"]) >= {entry["source"] for entry in ENTRIES}
    assert all(source["text"] and "date" in source for source in FILE["sources"].values())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry['gpu']}-{entry.get('pattern', '')}")
def test_every_fact_names_known_hardware(entry: dict[str, object]) -> None:
    assert entry["gpu"] in gpus()
    if "instance" in entry:
        assert entry["instance"] in instances()
        assert instance(str(entry["instance"])).gpu == entry["gpu"]
    if "pattern" in entry:
        assert entry["pattern"] in plugins.names("pattern")


def evidence_of(each: Reference) -> RunEvidence:
    """The reference as if it were a log of its machine."""
    rows = tuple(ForeignRow(size, busbw_bytes_per_s=rate) for size, rate in each.busbw.items())
    run = ForeignRun("nccl_tests", pattern=each.pattern, num_ranks=each.num_ranks, num_nodes=each.num_nodes, rows=rows)
    per_node = each.num_ranks // each.num_nodes
    machine = machine_of(each.instance, () if each.instance else (each.gpu,), (), per_node)
    return gathered(run, machine, plugins.load("pattern", each.pattern).PATTERN)


@pytest.mark.parametrize(
    "each", collectives(), ids=lambda each: f"{each.instance or each.gpu}-{each.pattern}-{each.num_ranks}"
)
def test_no_published_collective_is_above_a_hard_bound(each: Reference) -> None:
    found = evidence_of(each)
    assert not found.above
    assert assess(found).verdict != ResultVerdict.ABOVE
    if each.gpu != "B300-SXM" or each.num_nodes == 1:
        assert any(bound.kind == "hard" for bound in found.bounds)


@pytest.mark.parametrize("each", copies(), ids=lambda each: each.where)
def test_no_published_copy_is_above_its_link(each: reference.CopyReference) -> None:
    links = instance(each.instance).links if each.instance else gpu_links(each.gpu, each.gpus)
    for name, (least, most) in each.rates.items():
        bounds = copy_bounds(links, "peer" if name == "peer" else "host")
        hard = [bound for bound in bounds if bound.kind == "hard"]
        assert 0 < least <= most < hard[0].bytes_per_s, name


def test_a_published_link_is_as_it_was_linked_and_never_as_it_idles() -> None:
    for each in copies():
        if each.pcie is not None:
            raw = pcie_bytes_per_s(*each.pcie)
            assert each.pcie[0] > 1, "an idle GPU's current generation is no fact of its link"
            assert 0.35 < each.rates["h2d"][1] / raw < 0.95


def test_the_same_machine_comes_first_and_another_network_is_left_out() -> None:
    found = same_shape("allreduce", "A100-SXM4-40GB", "p4d.24xlarge", 2, 16)
    assert found[0].instance == "p4d.24xlarge"
    assert {each.network_bytes_per_s for each in found} == {50e9}
    assert any(each.instance == "p4de.24xlarge" for each in found)


def test_gpus_without_links_of_their_own_are_not_alike() -> None:
    assert {each.gpu for each in same_shape("allreduce", "RTX 4090", None, 1, 2)} == {"RTX 4090"}
    assert same_shape("allreduce", "L40S", None, 1, 8) == ()
    assert {each.gpu for each in same_shape("allreduce", "H200-SXM-141GB", None, 1, 8)} == {
        "H200-SXM-141GB",
        "H100-SXM5-80GB",
    }


def test_what_held_a_result_back_is_kept_apart() -> None:
    rings = [
        each for each in same_shape("allreduce", "H200-SXM-141GB", None, 1, 8) if each.limited == reference.NVLS_OFF
    ]
    assert [each.best[1] / 1e9 for each in rings] == [365.6]
    assert all(each.limited is None for each in best_of_each(of_any_machine("allreduce", 8, None)))


def test_a_point_is_near_within_a_factor_of_two() -> None:
    curve = next(each for each in collectives() if len(each.busbw) > 3)
    assert curve.near(1 << 30) == (1 << 30, curve.busbw[1 << 30])
    assert curve.near(3 << 28) == (1 << 30, curve.busbw[1 << 30])
    assert curve.near(1 << 10) is None


def test_copies_are_those_of_the_instance_or_of_its_gpu() -> None:
    assert [each.where for each in same_machine("L40S", "g6e.48xlarge")] == ["aws g6e.48xlarge"]
    assert len(same_machine("L40S", None)) > 2
    assert [limit.bytes_per_s for limit in limits("H100-SXM5-80GB")] == [460e9]
    assert limits(None) == ()


# Read in text, and in no table of the corpus: what is known of each, and no more than that may stand in the file.
READ = {
    ("nccl-tests-309", "allreduce", 32, 4, 365.84),
    ("nccl-tests-309-eight", "allreduce", 64, 8, 320.7),
    ("nccl-tests-309-eight", "allreduce", 16, 2, 466.73),
    ("chlc", "allreduce", 8, 1, 15.04),
    ("zhao-milan", "allreduce", 8, 1, 0.8),
    ("zhao-milan", "allreduce", 4, 1, 4.6),
    ("zhao-milan", "allreduce", 2, 1, 4.5),
    ("zhao-milan-p2p", "allreduce", 8, 1, 12.9),
    ("zhao-milan-p2p", "allreduce", 2, 1, 25.1),
    ("zhao-genoa", "allreduce", 8, 1, 10.6),
    ("zhao-genoa", "allreduce", 4, 1, 21.1),
    ("zhao-genoa", "allreduce", 2, 1, 18.5),
    ("zhao-genoa-p2p", "allreduce", 8, 1, 13.0),
    ("zhao-genoa-p2p", "allreduce", 4, 1, 25.7),
    ("stas-network", "allreduce", 8, 1, 1.44),
    ("stas-network", "allgather", 8, 1, 361.0),
    ("stas-network", "reducescatter", 8, 1, 363.0),
    ("stas-network", "allreduce", 8, 1, 845.7),
    ("stas-network", "allreduce", 32, 4, 381.8),
    ("voltage-park", "allreduce", 8, 1, 479.7),
    ("voltage-park", "allreduce", 32, 4, 330.9),
    ("nccl-527", "allreduce", 8, 1, 230.8),
    ("nccl-527", "allreduce", 16, 2, 57.2),
    ("nccl-527", "allreduce", 24, 3, 31.8),
    ("nccl-527", "allreduce", 32, 4, 29.6),
    ("rtx6kpro", "allreduce", 8, 1, 22.2),
    ("cluster-toolkit", "allgather", 16, 2, 188.9),
    ("nccl-tests-309", "allreduce", 16, 2, 450.37),
}


@corpus.needs_corpus
def test_every_figure_was_read_somewhere() -> None:
    with corpus.real(".", "published_results.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    names = ("busbw_GBps", "busbw_oop", "busbw_ip")
    known = {
        (int(row["msg_bytes"]), round(float(row[name]), 2))
        for row in rows
        for name in names
        if row[name] and row["msg_bytes"]
    }
    later = json.loads(corpus.real(".", "collectives_published.json").read_text(encoding="utf-8"))
    known |= {(int(row["bytes"]), round(float(row["published"]), 2)) for row in later}
    for entry in FILE["collectives"]:
        first = next(iter(entry["busbw"].values()))
        if any((size, round(rate, 2)) not in known for size, rate in entry["busbw"].items()):
            assert (entry["source"], entry["pattern"], entry["ranks"], entry["nodes"], first) in READ, entry
    with corpus.real(".", "instance_links.csv").open(encoding="utf-8") as stream:
        links = {row["instance"].replace("/", " "): row for row in csv.DictReader(stream)}
    for entry in FILE["copies"]:
        row = links[entry["where"]]
        for name, column in (("h2d", "h2d"), ("d2h", "d2h"), ("peer", "d2d_write_ce")):
            told = [row[f"{column}_min"], row[f"{column}_max"]]
            assert entry.get(name, ["", ""]) == [round(float(rate), 2) if rate else "" for rate in told], entry


def test_equal_digits_make_a_run_the_published_measurement_and_close_ones_do_not() -> None:
    published = next(each for each in collectives() if each.busbw == {8589934592: 235.26e9})
    seconds = {4: [34.731e-6]}
    assert is_same_measurement(published, {8589934592: [12e9, 235.262e9]}, seconds)
    assert not is_same_measurement(published, {8589934592: [235.27e9]}, seconds)
    assert not is_same_measurement(published, {8589934592: [235.26e9]}, {4: [34.75e-6]})
    assert not is_same_measurement(published, {}, seconds), "a size is missing"
    few = replace(published, busbw={8589934592: 235e9}, small_s={})
    assert not is_same_measurement(few, {8589934592: [235e9]}, {}), "three digits may agree by chance"
