"""`linkbench predict`, `validate` and `instances` as a user calls them: formats, files, errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.__main__ import main
from bench.predict.messages import PageNote

GOLDEN = Path(__file__).resolve().parent.parent / "predict"
ENDS = ("low_s", "middle_s", "high_s")
SITE = """\
clusters:
  half: {instance: p4d.24xlarge, nodes: 2, links: {nvlink: 150 GB/s}}
  cheap: {instance: ours}
  big: {instance: fat}
instances:
  p4d.24xlarge: {price: 18.5, price_date: 2026-10-01}
  ours: {like: p5.48xlarge, price: 30, links: {nvlink: 225 GB/s}}
  fat: {like: p5.48xlarge, nodes_per_leaf: 16, oversubscription: 4}
  same: {like: p4d.24xlarge}
  again: {like: same}
  half: {like: p4d.24xlarge, links: {nvlink: 150 GB/s}}
  bare: {gpu: L40S, gpus: 4, peers: pcie_p2p, links: {nic: 25 GB/s}, nics: 2}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "bench.yaml"
    path.write_text(SITE)
    return path


def rows(capsys: pytest.CaptureFixture[str], *argv: object) -> list[dict[str, Any]]:
    assert main([*map(str, argv), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found: list[dict[str, Any]] = document["rows"]
    return found


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([*map(str, argv)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err


def test_half_a_link_in_bench_yaml_slows_only_one_node(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    asked = ("predict", "--config", site, "--sizes", "1G", "--nodes", "1", "--algorithm", "ring")
    (half,) = rows(capsys, *asked, "--cluster", "half")
    (whole,) = rows(capsys, *asked, "--instance", "p4d.24xlarge")
    assert half["middle_s"] == pytest.approx(2 * whole["middle_s"], rel=0.15)
    assert half["ideal_s"] == pytest.approx(2 * whole["ideal_s"], rel=0.01)
    one = ("predict", "--config", site, "--sizes", "1G", "--nodes", "2", "--ranks-per-node", "1")
    assert rows(capsys, *one, "--cluster", "half") == rows(capsys, *one, "--instance", "p4d.24xlarge")


@pytest.mark.parametrize("nodes", [1, 2])
def test_copy_of_a_type_is_predicted_like_the_type(capsys: pytest.CaptureFixture[str], site: Path, nodes: int) -> None:
    asked = ("predict", "--config", site, "--sizes", "8,64M", "--patterns", "all", "--nodes", nodes, "--instance")
    theirs = rows(capsys, *asked, "p4d.24xlarge")
    assert rows(capsys, *asked, "same") == theirs and rows(capsys, *asked, "again") == theirs


def test_change_of_one_link_keeps_the_evidence_of_the_others(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    asked = ("predict", "--config", site, "--sizes", "64M", "--nodes", "2", "--patterns", "sendrecv", "--instance")
    (half,), (whole,) = rows(capsys, *asked, "half"), rows(capsys, *asked, "p4d.24xlarge")
    assert half["bottleneck"] == "NIC"
    assert [half[end] for end in ENDS] == pytest.approx([whole[end] for end in ENDS])


def test_copy_of_a_type_has_ratio_one(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    asked = ("select", "--config", str(site), "--workload", "vit-l-306m", "--nodes", "2", "--instances")
    assert main([*asked, "p4d.24xlarge,same", "--format", "json"]) == 0
    (verdict,) = (each for each in json.loads(capsys.readouterr().out)["verdicts"] if each["by"] == "time")
    assert (verdict["ratio_low"], verdict["ratio"], verdict["ratio_high"]) == (1, 1, 1)


def test_all_formats_show_the_same_modelled_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("predict", "--instance", "p5.48xlarge", "--nodes", "1,2", "--sizes", "1M,1G")
    listed = rows(capsys, *asked)
    assert all(row["modelled"] and row["low_s"] <= row["high_s"] for row in listed)
    assert [row["algorithm"] for row in listed if row["best"]] == ["nvls", "nvls", "double_tree", "double_tree"]
    path = tmp_path / "rows.csv"
    assert main([*map(str, asked), "--format", "csv", "--output", str(path)]) == 0
    lines = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(lines) == len(listed) and lines[0]["modelled"] == "true"
    assert float(lines[-1]["low_s"]) == listed[-1]["low_s"]
    for form in ("table", "markdown"):
        assert main([*map(str, asked), "--format", form]) == 0
        shown = capsys.readouterr().out
        assert shown.replace("\\", "").count("double_tree") == sum(row["algorithm"] == "double_tree" for row in listed)


def test_unverified_figures_have_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    for asked, unverified in (
        (["DGX A100", "--nodes", "2"], True),  # its NICs have no source
        (["p4d.24xlarge"], False),
    ):
        assert main(["predict", "--sizes", "1G", "--format", "json", "--instance", *asked]) == 0
        notes = json.loads(capsys.readouterr().out)["note_codes"]
        assert (PageNote.ROWS_UNVERIFIED in [note["code"] for note in notes]) is unverified


def test_other_algorithms_are_bounds_without_a_middle(capsys: pytest.CaptureFixture[str]) -> None:
    listed = rows(capsys, *P4D, "--gpus", "1024", "--sizes", "1G", "--algorithm", "all")
    bounds = {row["algorithm"]: row for row in listed if row["basis"] == "bound"}
    assert {"tree", "hierarchical", "halving_doubling", "recursive_doubling"} <= set(bounds)
    assert all(row["middle_s"] is None and row["high_s"] is None for row in bounds.values())
    assert "tree" not in {row["algorithm"] for row in rows(capsys, *P4D, "--nodes", "8", "--sizes", "1K,1G")}
    (best,) = (row for row in listed if row["best"])
    assert best["low_s"] >= min(row["ideal_s"] for row in listed)


def test_oversubscription_slows_traffic_between_leaves(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    asked = ("predict", "--config", site, "--sizes", "1G", "--patterns", "alltoall", "--nodes")
    for nodes, slower in ((16, False), (32, True)):
        fat = rows(capsys, *asked, nodes, "--instance", "fat")[0]
        flat = rows(capsys, *asked, nodes, "--instance", "p5.48xlarge")[0]
        assert (fat["ideal_s"] > 1.5 * flat["ideal_s"]) is slower


def test_plots_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "curves.png"
    rows(capsys, "predict", "--instance", "g6e.48xlarge", "--sizes", "1M:1G:8", "--algorithm", "all", "--plot", plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows(capsys, "validate", "--plot", tmp_path / "errors.svg")
    assert "<svg" in (tmp_path / "errors.svg").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "errors.svg"]


def test_isolated_point_is_drawn_as_a_marker() -> None:
    pytest.importorskip("matplotlib")
    from bench.figures import _predict as figure

    place = {"pattern": "allreduce", "num_nodes": 1, "ranks_per_node": 8, "algorithm": "ring", "high_s": 1.0}
    ends = {"busbw_low_bytes_per_s": 1e9, "busbw_high_bytes_per_s": 9e9}
    points = (None, 4e9, None, 5e9, 6e9)
    listed = [
        place | ends | {"payload_bytes": 1 << (20 + k), "busbw_bytes_per_s": each} for k, each in enumerate(points)
    ]
    (panel,) = figure.curves(listed, [], "a machine").axes
    marked = [line for line in panel.get_lines() if line.get_marker() not in ("", "None", None)]
    assert [1 << 21, 4.0] in [point for line in marked for point in np.asarray(line.get_xydata()).tolist()]


def test_validation_page_is_the_golden_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate"]) == 0
    assert capsys.readouterr().out == (GOLDEN / "golden_validate.txt").read_text(encoding="utf-8")


def test_validation_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "bench.validate/1" and len(document["rows"]) > 400
    assert document["targets"]["pcie-p2p"]["facts"]["met"]
    assert document["targets"]["nvswitch-nvls"]["facts"]["met"]
    assert all(row["modelled"] for row in document["rows"])


def test_instances_include_changes_by_bench_yaml(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    listed = {row["name"]: row for row in rows(capsys, "instances", "--config", site)}
    assert listed["p4d.24xlarge"]["usd_per_hour"] == 18.5 and listed["p4d.24xlarge"]["price_date"] == "2026-10-01"
    assert listed["ours"]["nvlink_bytes_per_s"] == 225e9 and listed["ours"]["own"]
    assert listed["fat"]["usd_per_hour"] is None  # the price of its parent is not inherited
    assert listed["bare"]["nics"] == 2 and listed["bare"]["peers"] == "pcie_p2p"
    assert not listed["p5.48xlarge"]["own"]


def test_price_history_and_x8_link_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {row["name"]: row for row in rows(capsys, "instances", "p4d.24xlarge", "g6e.48xlarge")}
    prices = [(each["date"], each["usd_per_hour"]) for each in listed["p4d.24xlarge"]["prices"]]
    assert prices[0][1] == 32.7726 and prices[-1] == ("2026-07-20", 21.957642)
    assert listed["g6e.48xlarge"]["pcie"] == [4, 8]


@pytest.mark.parametrize("filters", [("--gpu", "h100"), ("--peers", "host"), ("--min-gpus", "8", "--max-price", "20")])
def test_filters_select_instance_types(capsys: pytest.CaptureFixture[str], filters: tuple[str, ...]) -> None:
    left = rows(capsys, "instances", *filters)
    assert 0 < len(left) < len(rows(capsys, "instances"))
    for row in left:
        assert "H100" in row["gpu"] or row["peers"] == "host" or (row["gpus"] >= 8 and row["usd_per_hour"] <= 20)


P4D = ("predict", "--instance", "p4d.24xlarge")


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (("predict", "--instance", "p4d.24xlarg"), ("'p4d.24xlarg'", "'p4d.24xlarge'")),
        ((*P4D, "--gpus", "12"), ("12 GPUs", "--ranks-per-node")),
        ((*P4D, "--gpus", "1"), ("1 GPU", "2 or more")),
        ((*P4D, "--gpus", "32768"), ("32768", "16384")),
        ((*P4D, "--gpus", "16385"), ("16385", "16384")),
        ((*P4D, "--nodes", "2049"), ("2049 x 8", "16392", "16384")),
        ((*P4D, "--plot", "/nowhere/a.png"), ("--plot", "/nowhere")),
        ((*P4D, "--plot", "a.docx"), ("--plot", ".png")),
        ((*P4D, "--nodes", "-2"), ("--nodes", "'-2'")),
        ((*P4D, "--ranks-per-node", "9"), ("8 GPUs", "9")),
        ((*P4D, "--links", "nvlink=0GB/s"), ("'0GB/s'",)),
        ((*P4D, "--patterns", "allreduc"), ("'allreduc'", "'allreduce'")),
        ((*P4D, "--algorithm", "nvls"), ("'nvls'", "ring")),
        ((*P4D, "--runs", "/nowhere"), ("/nowhere",)),
        (("predict", "--cluster", "local"), ("'local'", "`instance:`")),
        (("instances", "--max-price", "cheap"), ("--max-price", "'cheap'")),
        (("instances", "--peers", "nvswich"), ("'nvswich'", "'nvswitch'")),
        (("instances", "--gpu", "H900"), ("filter",)),
    ],
)
def test_bad_input_is_one_line_with_its_facts(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    message = refused(capsys, *argv)
    assert [fact for fact in facts if fact not in message] == [], message


@pytest.mark.parametrize(
    ("entry", "fact"),
    [
        ("x: {gpu: L40S}", "like: p4d.24xlarge"),
        ("x: {like: p9}", "'p9'"),
        ("x: {like: p4d.24xlarge, price: -3}", "'-3'"),
        ("p4d.24xlarge: {price: 3, price_date: July}", "'July'"),
        ("p4d.24xlarge: {oversubscription: 0.5}", "'0.5'"),
        ("p4d.24xlarge: {peers: nvswich}", "'nvswitch'"),
        ("p4d.24xlarge: {prise: 3}", "'price'"),
    ],
)
def test_wrong_entry_of_bench_yaml_is_reported_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, entry: str, fact: str
) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(f"clusters: {{}}\ninstances:\n  {entry}\n")
    message = refused(capsys, "instances", "--config", path)
    assert fact in message and "bench.yaml" in message


def test_cluster_may_use_an_own_type_with_other_rates(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    asked = ("predict", "--config", site, "--sizes", "1G")
    own = rows(capsys, *asked, "--cluster", "cheap")
    theirs = rows(capsys, *asked, "--instance", "p5.48xlarge", "--links", "nvlink=225GB/s")
    assert [row["ideal_s"] for row in own] == [row["ideal_s"] for row in theirs]


def test_cluster_of_an_own_type_is_predicted_but_not_run(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    asked = ("predict", "--config", site, "--sizes", "1G", "--patterns", "alltoall", "--nodes", "32")
    assert rows(capsys, *asked, "--cluster", "big") == rows(capsys, *asked, "--instance", "fat")
    message = refused(capsys, "plan", "main", "--config", site, "--cluster", "big", "--model")
    assert "`links:`" in message
