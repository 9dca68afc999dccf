"""`linkbench explain` on whole logs, synthetic and published ones: its page says what an expert would."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.hardware.bounds import copy_bounds
from bench.hardware.catalogue import instance, instances
from tests.logs import corpus

Out = pytest.CaptureFixture[str]
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """What the first page about a log holds. Numbers agree within 3 %.

    `why`: the code of the verdict's sentence. `reasons`: the first ones, in order. `facts`: of a line, reason or the
    verdict, by its code; of several lines with one code any may have them. `absent`: codes of no line or reason.
    """

    log: str
    verdict: str
    why: str = ""
    options: tuple[str, ...] = ()
    exit_code: int = 0
    reasons: tuple[str, ...] = ()
    facts: Mapping[str, Facts] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


def on(name: str) -> tuple[str, str]:
    return ("--instance", name)


GB = 1e9
PAGES = (
    Expected(
        "nccl_logs/20_",
        "normal",
        options=on("p5.48xlarge"),
        facts={
            "best-row": {"rate": 483 * GB, "size_bytes": 16 << 30},
            "bound": {"bound_rate": 700 * GB, "hard": True},
            "above-port": {"port_rate": 450 * GB},
            "num": {"num_ranks": 8, "num_nodes": 1, "share": 0.69},
        },
        absent=("no-nvls",),
    ),
    Expected(
        "nccl_logs/16_",
        "normal",
        facts={
            "nic-rate": {"rate": 23.4 * GB},
            "log-facts": {
                "log_facts": ["NCCL 2.9.9", "network AWS Libfabric", "4 NICs with GPUDirect RDMA", "8 channels"]
            },
            "bound": {"bound_rate": 93.8 * GB, "hard": True, "share": 0.47},
        },
        absent=("fewer-nics", "tcp-sockets", "maybe-tcp-sockets"),
    ),
    Expected(
        "nccl_logs/17_",
        "normal",
        options=on("p4de.24xlarge"),
        facts={"num": {"num_ranks": 16, "num_nodes": 2}, "bound": {"bound_rate": 93.8 * GB, "share": 0.84}},
        absent=("fewer-nics",),
    ),
    Expected(
        "nccl_logs/43_",
        "far-too-low",
        reasons=("fewer-nics",),
        facts={
            "nic-rate": {"rate": 49.3 * GB},
            "fewer-nics": {"share": 0.99, "nics": "one 400 Gb/s NIC", "nics_rate": 50 * GB},
            "own-source": {},
            "first-row-warming": {},
        },
    ),
    Expected(
        "nccl_logs/36_",  # the only result of such cards
        "cannot-be-judged",
        "only-itself",
        reasons=("through-host",),
        facts={"best-row": {"rate": 4 * GB}, "bound": {"bound": "PCIe port without NVLink bridge", "hard": False}},
    ),
    Expected("nccl_logs/62_", "low", reasons=("through-host",), facts={"result": {"rate": 3.87 * GB}}),
    Expected(
        "nccl_logs/45_",
        "far-too-low",
        reasons=("nccl-settings",),
        facts={
            "nccl-settings": {"names": ["NCCL_TOPO_FILE"]},
            "few-channels": {"num_channels": 2, "pcie_share": 0.91},
            "result": {"rate": 217 * GB, "size_bytes": 8 << 30},
        },
    ),
    Expected("nccl_logs/44_", "normal", facts={"best-row": {"rate": 217 * GB}}, absent=("no-bridge",)),
    Expected(
        "nccl_logs/53_",
        "failed",
        "wrong-data",
        exit_code=1,
        reasons=("wrong-data",),
        facts={"wrong-data": {"num_wrong_rows": 36, "num_rows": 36, "all_elements": True, "num_ranks": 4}},
        absent=("best-row",),
    ),
    Expected(
        "nccl_logs/33_",
        "cannot-be-judged",
        "only-itself",
        options=on("GB200 NVL72"),
        facts={
            "num": {"num_ranks": 72, "num_nodes": 18},
            "best-row": {"rate": 847 * GB, "size_bytes": 8 << 30},
            "bound": {"bound_rate": 1.75e12},
        },
        absent=("nic-rate",),
    ),
    Expected("nccl_logs/10_", "cannot-be-judged", "nics-unknown", facts={"own-source": {}}),
    Expected(
        "nccl_logs/09_",
        "normal",
        "compared-with-results",
        options=on("p4d.24xlarge"),
        facts={"sizes-too-small": {"largest_bytes": 32 << 20}},
        absent=("crossed-nics",),
    ),
    Expected(
        "nccl_logs/43_",
        "cannot-be-judged",
        "other-machine",
        options=on("p4d.24xlarge"),
        facts={"other-machine": {"gpu": "A100-SXM4-40GB", "other_gpus": ["H200-SXM-141GB"]}},
        absent=("bound", "fewer-nics"),
    ),
    Expected(
        "nccl_logs/46_",
        "cannot-be-judged",
        "shared-gpu",
        reasons=("shared-gpu",),
        facts={"shared-gpu": {"log_text": "ranks 0 and 1 are both on lab device 0 [0000:02:00]"}},
        absent=("bound",),
    ),
    Expected("nccl_logs/24_", "cannot-be-judged", "only-itself", facts={"own-source": {}}),
    Expected("nccl_logs/08_", "normal", reasons=("sizes-too-small",), facts={"sizes-too-small": {"gain": 0.20}}),
    Expected(
        "nccl_logs/34_", "cannot-be-judged", "only-itself", options=on("GB200 NVL72"), absent=("narrow-pcie-link",)
    ),
    Expected(
        "nccl_logs/22_",
        "normal",
        "near-best-of-anyone",
        facts={"near-best-of-anyone": {"machine": "p5.48xlarge"}},
    ),
    Expected(
        "nccl_logs/21_",
        "normal-if",
        "normal-on-machines",
        exit_code=1,
        facts={"status": {"truncated": True}},
        reasons=(),
    ),
    Expected(
        "p2p_logs/06_",
        "normal",
        options=on("p3.16xlarge"),
        facts={"copy-compared-with-machine": {"rate": 48.5 * GB, "end": "most", "ratio": 1.0}},
    ),
    Expected(
        "nccl_logs/32_",
        "normal",
        options=on("DGX H100"),
        facts={"num": {"num_ranks": 96, "num_nodes": 12}, "bound": {}},
    ),
    Expected(
        "nccl_logs/49_",
        "failed",
        exit_code=1,
        reasons=("cuda-failed",),
        facts={"status": {"status": "failed"}},
    ),
    Expected("nccl_logs/23_", "normal-if", "normal-with-nics"),
    Expected(
        "nvbandwidth_logs/06_",
        "normal",
        options=on("g6e.48xlarge"),
        reasons=("narrow-pcie-link", "no-peer-access", "slow-kernel-copies"),
        facts={
            "waived-tests": {"num_tests": 17},
            "bound": {"bound": "PCIe port", "bound_rate": 15.75 * GB, "hard": True},
            "narrow-pcie-link": {"share": 0.43, "generation": 4, "lanes": 16},
        },
    ),
    Expected(
        "nvbandwidth_logs/14_",
        "normal",
        options=on("a2-highgpu-8g"),
        facts={"bound": {"bound_rate": 300 * GB, "hard": True}, "shared-uplink": {}, "sum-of-two-ways": {}},
        absent=("slow-pairs",),
    ),
    Expected(
        "nvbandwidth_logs/11_",
        "normal",
        options=on("p3dn.24xlarge"),
        facts={"peer-access-for-some-pairs": {"num_reached": 32, "num_pairs": 56}},
        absent=("slow-pairs",),
    ),
    Expected(
        "nvbandwidth_logs/19_",
        "normal",
        options=on("Standard_NC96ads_A100_v4"),
        facts={"peer-access-for-some-pairs": {"num_reached": 4, "num_pairs": 12}},
    ),
    Expected("nvbandwidth_logs/05_", "failed", exit_code=1, reasons=("fabric-not-ready",)),
    Expected("nvbandwidth_logs/09_", "failed", exit_code=1, reasons=("wrong-data-between-gpus",)),
    Expected("nvbandwidth_logs/22_", "normal", facts={"copy-compared-with-machine": {"same_build": True}}),
    Expected(
        "nvbandwidth_logs/11_",
        "normal-if",
        facts={"no-copy-bound": {"fitting": "2 NVLinks of 25 GB/s between two GPUs (NVLink 2 to 4)"}},
    ),
    Expected(
        "nvbandwidth_logs/01_",
        "cannot-be-judged",
        "gpu-counts-differ",
        facts={
            "copies": {"count": "6 values of 3 GPUs"},
            "bound": {"bound": "NVLink-C2C", "bound_rate": 450 * GB},
            "gpu-counts-differ": {"num_listed": 1, "num_measured": 3},
        },
    ),
    Expected("p2p_logs/06_", "normal", facts={"few-nvlinks": {"nvlinks": "2 NVLinks of 25 GB/s"}}),
    Expected("nccl_logs/25_", "failed", exit_code=1, facts={"nodes-may-be-pods": {"num_nodes": 4}}),
    Expected(
        "p2p_logs/01_",
        "normal",
        "copy-through-host",
        facts={
            "no-peer-access": {
                "log_text": "CANNOT Access Peer",
                "log_line": 6,
                "through_host": "5.7 GB/s to 5.71 GB/s",
            },
            "copy-through-host": {"share": 0.36},
        },
    ),
)


def log_of(begin: str) -> str:
    folder, _, name = begin.partition("/")
    [found] = corpus.real(folder, "").glob(f"{name}*")
    return str(found)


# Synthetic log, options, exit code, assessment, number of ranks and nodes, code of the first reason.
SYNTHETIC: tuple[tuple[str, str, int, str, int | None, int | None, str], ...] = (
    ("nccl_logs/allreduce_8_gpus.txt", "", 0, "normal", 8, 1, ""),
    ("nccl_logs/allreduce_2_nodes.txt", "--instance p5.48xlarge", 0, "normal", 16, 2, ""),
    ("nccl_logs/allreduce_2_nodes_one_nic.txt", "", 0, "far too low", 16, 2, "fewer-nics"),
    ("nccl_logs/allreduce_2_nodes.txt", "--instance p4d.24xlarge", 0, "can not be judged", 16, 2, ""),
    ("nccl_logs/allreduce_2_gpus.txt", "", 0, "normal", 2, 1, "through-host"),
    ("nccl_logs/allreduce_16_nodes_small_sizes.txt", "", 0, "can not be judged", 128, 16, "sizes-too-small"),
    ("nccl_logs/rows_split_by_messages.txt", "", 0, "normal", 2, 1, ""),
    ("nccl_logs/two_ranks_on_one_gpu.txt", "", 0, "can not be judged", 2, 1, "shared-gpu"),
    ("nccl_logs/wrong_data.txt", "", 1, "failed", 4, None, "wrong-data"),
    ("nccl_logs/crash.txt", "", 1, "failed", 2, 1, "cuda-failed"),
    ("nccl_logs/rows_left_out.txt", "", 1, "like the only known result", 32, 4, ""),
    ("nvbandwidth_logs/json_with_devices.txt", "", 0, "normal", None, None, ""),
    ("nvbandwidth_logs/json_of_an_error.txt", "", 1, "failed", None, None, "fabric-not-ready"),
    ("nvbandwidth_logs/json_of_wrong_data.txt", "", 1, "failed", None, None, "wrong-data-between-gpus"),
    ("p2p_logs/linked_pairs.txt", "", 0, "normal", None, None, "few-nvlinks"),
    ("p2p_logs/no_peer_access.txt", "", 0, "normal", None, None, "no-peer-access"),
)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("name", "options", "code", "word", "ranks", "nodes", "reason"), SYNTHETIC)
def test_the_page_of_a_synthetic_log_has_its_assessment_and_its_reason(
    name: str, options: str, code: int, word: str, ranks: int | None, nodes: int | None, reason: str, capsys: Out
) -> None:
    log = corpus.synthetic(*name.split("/"))
    assert main(["explain", str(log), *options.split(), "--format", "json"]) == code
    [page] = json.loads(capsys.readouterr().out)["pages"]
    assert (page["standing"], page["num_ranks"], page["num_nodes"]) == (word, ranks, nodes)
    first = page["reasons"][0]["code"] if page["reasons"] else ""
    assert first == reason


def coded(page: Mapping[str, Any]) -> dict[str, list[Facts]]:
    """Code -> the facts of each line, reason, note and verdict with it; "num" is the page itself."""
    lines = [line for name in ("got", "possible", "others", "remarks") for line in page[f"{name}_codes"]]
    lines += [*page["reasons"], {"code": page["because_code"], "facts": page["because_facts"]}]
    found: dict[str, list[Facts]] = {"num": [page]}
    for line in lines:
        found.setdefault(line["code"], []).append(line["facts"])
    return found


def holds(facts: Facts, wanted: Facts) -> bool:
    """Are all wanted facts there?"""
    for name, value in wanted.items():
        number = isinstance(value, float)
        if name not in facts or facts[name] != (pytest.approx(value, rel=0.03) if number else value):
            return False
    return True


@pytest.mark.thin(2)
@corpus.needs_corpus
@pytest.mark.parametrize("page", PAGES, ids=[page.log for page in PAGES])
def test_a_page_says_what_an_expert_would(page: Expected, capsys: Out) -> None:
    assert main(["explain", log_of(page.log), *page.options, "--format", "json"]) == page.exit_code
    first = json.loads(capsys.readouterr().out)["pages"][0]
    assert (first["standing_code"], first["because_code"]) == (page.verdict, page.why or first["because_code"])
    assert tuple(reason["code"] for reason in first["reasons"])[: len(page.reasons)] == page.reasons
    found = coded(first)
    for code, wanted in page.facts.items():
        assert any(holds(facts, wanted) for facts in found.get(code, ())), (code, wanted, found.get(code))
    assert not set(page.absent) & set(found)


@pytest.mark.parametrize("folder", ["nccl_logs", "nvbandwidth_logs", "p2p_logs", "osu_logs"])
def test_no_log_is_above_what_its_gpus_can(folder: str, capsys: Out) -> None:
    main(["explain", *map(str, corpus.paths([folder])), "--format", "json"])
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert len(pages) > 3
    assert not [page["title"] for page in pages if page["standing_code"] == "above"]


@corpus.needs_corpus
def test_no_published_copy_is_above_the_links_of_its_instance() -> None:
    checked = 0
    with corpus.real(".", "published_results.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            named = re.search(r"instance: \w+/(\S+)", row["source"])
            begin = row["collective"].split("_to_")[0] + row["collective"].partition("_to_")[2][:1]
            path = {"hostd": "host", "deviceh": "host", "deviced": "peer"}.get(begin)
            one_way = "bidirectional" not in row["collective"] and row["unit"] == "GB/s"
            if row["kind"] != "nvbandwidth" or not named or named[1] not in instances() or not path or not one_way:
                continue
            hard = [bound for bound in copy_bounds(instance(named[1]).links, path) if bound.kind == "hard"]
            assert float(row["max_value"]) * 1e9 <= hard[0].bytes_per_s, row
            checked += 1
    assert checked > 20


@corpus.needs_corpus
@pytest.mark.parametrize("begin", ["nccl_logs/43_", "nvbandwidth_logs/06_"])
def test_the_pages_in_the_documentation_are_what_is_printed(begin: str, capsys: Out) -> None:
    options = next(page.options for page in PAGES if page.log == begin)
    main(["explain", log_of(begin), *options])
    text = (Path(__file__).resolve().parent.parent.parent / "docs" / "explain.md").read_text(encoding="utf-8")
    assert f"```\n{capsys.readouterr().out}```\n" in text
