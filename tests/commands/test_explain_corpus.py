"""`linkbench explain` on whole logs, synthetic and published ones: its page says what an expert would."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.hardware.bounds import copy_bounds
from bench.hardware.catalogue import instance, instances
from tests.logs import corpus

Out = pytest.CaptureFixture[str]

# Log, options, exit code, what its page says (blanks are one blank), what it must not say.
PAGES: tuple[tuple[str, tuple[str, ...], int, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "nccl_logs/20_",
        ("--instance", "p5.48xlarge"),
        0,
        (
            "8 ranks on 1 node",
            "483 GB/s of busbw at 16 GiB",
            "700 GB/s by NVLink port, in-network reduction (hard bound)",
            "reached 107%",
            "Where you stand: NORMAL",
            "with NVLS the switch adds",
        ),
        ("What to do next", "To see it"),
    ),
    (
        "nccl_logs/16_",
        (),
        0,
        (
            "p4d.24xlarge: the log says that it runs on P4d",
            "23.4 GB/s each way through each node's NICs",
            "NCCL 2.9.9",
            "4 NICs with GPU Direct RDMA",
            "93.8 GB/s by network (hard bound), reached 47%",
            "Where you stand: LOW",
            "1. old software",
        ),
        ("a node uses", "sockets"),
    ),
    (
        "nccl_logs/17_",
        ("--instance", "p4de.24xlarge"),
        0,
        (
            "16 ranks on 2 nodes",
            "93.8 GB/s by network (hard bound), reached 84%",
            "Where you stand: NORMAL",
        ),
        ("a node uses",),
    ),
    (
        "nccl_logs/43_",
        (),
        0,
        (
            "49.3 GB/s each way through each node's NICs",
            "Where you stand: FAR TOO LOW",
            "1. a node uses one 400 Gb/s NIC",
            "99% of one 400 Gb/s NIC (50 GB/s)",
            "held back: one NIC for eight GPUs",
            "still holds warm-up",
        ),
        (),
    ),
    (
        "nccl_logs/36_",
        (),
        0,
        (
            "RTX 2080 Ti",
            "4 GB/s of busbw",
            "reached 25%",
            "Where you stand: LIKE THE ONLY KNOWN RESULT",
            "1. GPUs talk through host memory",
        ),
        (),
    ),
    ("nccl_logs/62_", (), 0, ("RTX 4090", "Where you stand: LOW", "3.87 GB/s", "1. GPUs talk through host memory"), ()),
    (
        "nccl_logs/45_",
        (),
        0,
        (
            "217 GB/s at 8 GiB",
            "Where you stand: FAR TOO LOW",
            "1. the environment tells NCCL what to do: NCCL_TOPO_FILE",
            "NCCL opened 2 channels",
            "the figure alone does not tell, the log does",
            "env -u NCCL_TOPO_FILE all_reduce_perf",
        ),
        (),
    ),
    ("nccl_logs/44_", (), 0, ("Where you stand: NORMAL", "217 GB/s of busbw"), ("NVLink bridge, or it is not used",)),
    (
        "nccl_logs/53_",
        (),
        1,
        (
            "WRONG DATA in 36 of 36 rows",
            "every element of every one of 4 ranks",
            "CAN NOT BE JUDGED",
            "1. wrong data: nothing else counts",
        ),
        ("GB/s of busbw",),
    ),
    (
        "nccl_logs/33_",
        ("--instance", "GB200 NVL72"),
        0,
        (
            "72 ranks on 18 nodes",
            "847 GB/s of busbw at 8 GiB",
            "1.75 TB/s by NVLink port, in-network reduction",
            "Where you stand: LIKE THE ONLY KNOWN RESULT",
        ),
        ("NICs carry",),
    ),
    ("nccl_logs/10_", (), 0, ("CAN NOT BE JUDGED", "what its NICs carry is not known", "the sizes are too small"), ()),
    (
        "nccl_logs/09_",
        ("--instance", "p4d.24xlarge"),
        0,
        (
            "CAN NOT BE JUDGED",
            "the sizes are too small: at 32 MiB",
        ),
        ("PCIe roots may", "paired across"),
    ),
    (
        "nccl_logs/43_",
        ("--instance", "p4d.24xlarge"),
        0,
        (
            "CAN NOT BE JUDGED",
            "p4d.24xlarge has A100-SXM4-40GB, and the log names H200-SXM-141GB",
        ),
        ("(hard bound)", "The likeliest reasons"),
    ),
    (
        "nccl_logs/46_",
        (),
        0,
        (
            "CAN NOT BE JUDGED",
            "ranks 0 and 1 are both on lab device 0",
            "1. ranks share a GPU",
        ),
        ("(hard bound)",),
    ),
    ("nccl_logs/24_", (), 0, ("LIKE THE ONLY KNOWN RESULT", "That only result is itself 67% of the bound"), ()),
    ("nccl_logs/08_", (), 0, ("the sizes are too small to show the links", "rises by 20%"), ()),
    ("nccl_logs/34_", ("--instance", "GB200 NVL72"), 0, ("450 GB/s by NVLink-C2C",), ("PCIe link",)),
    ("nccl_logs/22_", (), 0, ("Others came near on p5.48xlarge", "candidates to try"), ()),
    ("nccl_logs/21_", (), 1, ("explain the whole log, if there is one",), ("The likeliest reasons",)),
    ("p2p_logs/06_", ("--instance", "p3.16xlarge"), 0, ("48.5 GB/s at most, is 100% of", "NORMAL"), ("200%",)),
    ("nccl_logs/32_", ("--instance", "DGX H100"), 0, ("96 ranks on 12 nodes", "switches that reduce", "NORMAL"), ()),
    ("nccl_logs/49_", (), 1, ("status: failed", "CAN NOT BE JUDGED", "1. CUDA failed"), ()),
    ("nccl_logs/23_", (), 0, ("CAN NOT BE JUDGED", "339 GB/s with 200 GB/s of NICs per node (a3-megagpu-8g)"), ()),
    (
        "nvbandwidth_logs/06_",
        ("--instance", "g6e.48xlarge"),
        0,
        (
            "17 tests were waived",
            "15.8 GB/s by PCIe port (hard bound), host to GPU reached 85%",
            "stand: NORMAL",
            "43% of PCIe 4 x16",
            "g6e.48xlarge links GPUs at PCIe 4 x8, so that this is how the machine is built",
            "GPUs can not reach each other directly",
            "kernels write to the host more slowly",
        ),
        (),
    ),
    (
        "nvbandwidth_logs/14_",
        ("--instance", "a2-highgpu-8g"),
        0,
        (
            "300 GB/s by NVLink port (hard bound), GPU to GPU reached 88% to 91%",
            "Where you stand: NORMAL",
            "GPUs share their way to the host",
            "half of one is what goes each way",
        ),
        ("are slow",),
    ),
    ("nvbandwidth_logs/11_", ("--instance", "p3dn.24xlarge"), 0, ("NORMAL", "32 of 56 pairs"), ("are slow",)),
    ("nvbandwidth_logs/19_", ("--instance", "Standard_NC96ads_A100_v4"), 0, ("NORMAL", "4 of 12 pairs"), ()),
    ("nvbandwidth_logs/05_", (), 1, ("1. the NVSwitch fabric is not up", "nvidia-fabricmanager"), ()),
    ("nvbandwidth_logs/09_", (), 1, ("1. the data that arrived were wrong", "IOMMU"), ("take the node out",)),
    ("nvbandwidth_logs/22_", (), 0, ("Where you stand: NORMAL", "if this machine is built like that one"), ()),
    ("nvbandwidth_logs/11_", (), 0, ("48.4 GB/s fits 2 NVLinks of 25 GB/s",), ("PCIe 5 x16",)),
    (
        "nvbandwidth_logs/01_",
        (),
        0,
        (
            "6 values of 3 GPUs",
            "450 GB/s by NVLink-C2C",
            "the log lists 1 GPU, and its tables hold 3",
        ),
        ("PCIe",),
    ),
    ("p2p_logs/06_", (), 0, ("NORMAL", "fits 2 NVLinks of 25 GB/s"), ("the machine is not known",)),
    ("nccl_logs/25_", (), 1, ("4 nodes, by host names that may be those of pods", "give it: --num-nodes"), ()),
    (
        "p2p_logs/01_",
        (),
        0,
        (
            "through the host: 5.72 GB/s",
            "36% of the PCIe link",
            "CANNOT Access Peer (line 6)",
        ),
        ("waived", "without a value"),
    ),
)


def log_of(begin: str) -> str:
    folder, _, name = begin.partition("/")
    [found] = corpus.real(folder, "").glob(f"{name}*")
    return str(found)


# Synthetic log, options, exit code, assessment, number of ranks and nodes, begin of the first reason.
SYNTHETIC: tuple[tuple[str, str, int, str, int | None, int | None, str], ...] = (
    ("nccl_logs/allreduce_8_gpus.txt", "", 0, "normal", 8, 1, ""),
    ("nccl_logs/allreduce_2_nodes.txt", "--instance p5.48xlarge", 0, "normal", 16, 2, ""),
    ("nccl_logs/allreduce_2_nodes_one_nic.txt", "", 0, "far too low", 16, 2, ""),
    ("nccl_logs/allreduce_2_nodes.txt", "--instance p4d.24xlarge", 0, "can not be judged", 16, 2, ""),
    ("nccl_logs/allreduce_2_gpus.txt", "", 0, "normal", 2, 1, "GPUs talk through host memory"),
    ("nccl_logs/allreduce_16_nodes_small_sizes.txt", "", 0, "can not be judged", 128, 16, "the sizes are too small"),
    ("nccl_logs/rows_split_by_messages.txt", "", 0, "normal", 2, 1, ""),
    ("nccl_logs/two_ranks_on_one_gpu.txt", "", 0, "can not be judged", 2, 1, "ranks share a GPU"),
    ("nccl_logs/wrong_data.txt", "", 1, "can not be judged", 4, None, "wrong data"),
    ("nccl_logs/crash.txt", "", 1, "can not be judged", 2, 1, "CUDA failed"),
    ("nccl_logs/rows_left_out.txt", "", 1, "can not be judged", 32, 4, ""),
    ("nvbandwidth_logs/json_with_devices.txt", "", 0, "normal", None, None, ""),
    ("nvbandwidth_logs/json_of_an_error.txt", "", 1, "can not be judged", None, None, "the NVSwitch fabric is not up"),
    ("nvbandwidth_logs/json_of_wrong_data.txt", "", 1, "can not be judged", None, None, "the data that arrived were"),
    ("p2p_logs/linked_pairs.txt", "", 0, "normal", None, None, ""),
    ("p2p_logs/no_peer_access.txt", "", 0, "normal", None, None, "GPUs can"),
)


@pytest.mark.parametrize(("name", "options", "code", "word", "ranks", "nodes", "reason"), SYNTHETIC)
def test_the_page_of_a_synthetic_log_has_its_assessment_and_its_reason(
    name: str, options: str, code: int, word: str, ranks: int | None, nodes: int | None, reason: str, capsys: Out
) -> None:
    log = corpus.synthetic(*name.split("/"))
    assert main(["explain", str(log), *options.split(), "--format", "json"]) == code
    [page] = json.loads(capsys.readouterr().out)["pages"]
    assert (page["standing"], page["num_ranks"], page["num_nodes"]) == (word, ranks, nodes)
    first = page["reasons"][0]["what"] if page["reasons"] else ""
    assert first.startswith(reason)


@corpus.needs_corpus
@pytest.mark.parametrize(("begin", "options", "code", "says", "not_said"), PAGES, ids=[page[0] for page in PAGES])
def test_a_page_says_what_an_expert_would(
    begin: str, options: tuple[str, ...], code: int, says: tuple[str, ...], not_said: tuple[str, ...], capsys: Out
) -> None:
    assert main(["explain", log_of(begin), *options]) == code
    page = " ".join(capsys.readouterr().out.split())
    assert [words for words in says if words not in page] == []
    assert [words for words in not_said if words in page] == []


@pytest.mark.parametrize("folder", ["nccl_logs", "nvbandwidth_logs", "p2p_logs", "osu_logs"])
def test_no_log_is_above_what_its_gpus_can(folder: str, capsys: Out) -> None:
    main(["explain", *map(str, corpus.paths([folder])), "--format", "json"])
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert len(pages) > 3
    assert [page["source"] for page in pages if page["standing"] == "above what is possible"] == []


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
    options = next(page[1] for page in PAGES if page[0] == begin)
    main(["explain", log_of(begin), *options])
    text = (Path(__file__).resolve().parent.parent.parent / "docs" / "explain.md").read_text(encoding="utf-8")
    assert f"```\n{capsys.readouterr().out}```\n" in text
