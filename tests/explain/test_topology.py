"""Topologies in a log, beside it, and alone: evidence for reasons, and a page of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.__main__ import main
from bench.explain.messages import AssessmentCode, ResultVerdict
from bench.explain.topology import TopologyReader, near_adapters
from bench.explain.topology_page import topology_page
from tests.logs.corpus import needs_corpus, real
from tests.logs.synthetic_slow import P4D, P5, slow_log

Out = pytest.CaptureFixture[str]


def table(kinds: list[list[str]], nics: list[list[str]] | None = None) -> str:
    """`nvidia-smi topo -m` of GPUs, and the paths of each GPU to each NIC."""
    num, cards = len(kinds), nics or [[] for _ in kinds]
    heads = [f"GPU{index}" for index in range(num)] + [f"NIC{index}" for index in range(len(cards[0]))]
    lines = ["\t" + "\t".join([*heads, "CPU Affinity", "NUMA Affinity"])]
    for index in range(num):
        lines.append("\t".join([f"GPU{index}", *kinds[index], *cards[index], "0-47", "0"]))
    return "\n".join(lines) + "\n\n"


def switch(num: int = 8, kind: str = "NV12", odd: dict[int, str] | None = None) -> list[list[str]]:
    """All pairs by `kind`; pairs of the GPUs in `odd` by theirs."""
    odd = odd or {}
    cells = [[odd.get(a) or odd.get(b) or kind for b in range(num)] for a in range(num)]
    for index in range(num):
        cells[index][index] = "X"
    return cells


def bridges(*kinds: str) -> list[list[str]]:
    """Cards that a bridge joins in pairs."""
    num = 2 * len(kinds)
    cells = [[kinds[a // 2] if a // 2 == b // 2 else "SYS" for b in range(num)] for a in range(num)]
    for index in range(num):
        cells[index][index] = "X"
    return cells


def status(inactive: int = 0, gpu: int = 3, num: int = 8, links: int = 12) -> str:
    """`nvidia-smi nvlink -s`, with some links of one GPU inactive."""
    lines = []
    for number in range(num):
        lines.append(f"GPU {number}: NVIDIA A100-SXM4-40GB (UUID: GPU-{number})")
        for link in range(links):
            lines.append(f"\t Link {link}: " + ("<inactive>" if number == gpu and link < inactive else "25 GB/s"))
    return "\n".join(lines) + "\n"


def explained(
    capsys: Out, tmp_path: Path, *texts: str, options: tuple[str, ...] = ()
) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the pages of files with these texts."""
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(text)
    code = main(["explain", *map(str, files), "--format", "json", *options])
    return code, json.loads(capsys.readouterr().out)["pages"]


def reasons(page: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in page["reasons"]]


@pytest.mark.parametrize(
    ("text", "code", "verdict", "found"),
    [
        (table(switch()), 0, "normal", []),
        (table(switch(odd={7: "SYS"})), 1, "far-too-low", ["gpu-without-nvlink"]),
        (table(switch(odd={2: "NV10"})), 1, "far-too-low", ["fewer-nvlinks"]),
        (table(switch(4, "PHB")), 0, "normal-if", []),
        (table([["X", "NV4", "SYS"], ["NV4", "X", "SYS"], ["SYS", "SYS", "X"]]), 0, "normal-if", ["no-bridge"]),
        (table(bridges("NV12", "NV12")), 0, "normal", []),
        (table(bridges("NV12", "NV4")), 0, "normal-if", ["fewer-nvlinks"]),
        (status(), 0, "normal", []),
        (status(inactive=2), 1, "far-too-low", ["nvlink-down"]),
        (table(switch()) + status(inactive=12), 1, "far-too-low", ["nvlink-down"]),
    ],
    ids=[
        "switch",
        "gpu apart",
        "gpu with fewer",
        "no nvlink",
        "a card without bridge",
        "bridges",
        "a smaller bridge",
        "links",
        "links down",
        "both",
    ],
)
def test_a_topology_alone_is_a_page(
    capsys: Out, tmp_path: Path, text: str, code: int, verdict: str, found: list[str]
) -> None:
    exit_code, [page] = explained(capsys, tmp_path, text)
    assert (exit_code, page["standing_code"], reasons(page)) == (code, verdict, found)
    assert all(reason["step"] for reason in page["reasons"])


def test_the_nodes_of_one_file_have_a_page_each(capsys: Out, tmp_path: Path) -> None:
    _, pages = explained(capsys, tmp_path, table(switch()) + status() + table(switch(odd={1: "SYS"})) + status(2))
    assert [set(reasons(page)) for page in pages] == [set(), {"nvlink-down", "gpu-without-nvlink"}]
    _, pages = explained(capsys, tmp_path, table(switch()) + table(switch(odd={1: "SYS"})))
    assert [reasons(page) for page in pages] == [[], ["gpu-without-nvlink"]]


@pytest.mark.parametrize("same_file", [True, False])
def test_a_topology_with_a_log_names_the_gpu(capsys: Out, tmp_path: Path, same_file: bool) -> None:
    log, topology = slow_log(P4D, "allreduce", 0.5), table(switch(odd={5: "NV6"}))
    texts = (topology + log,) if same_file else (log, topology)
    code, [page] = explained(capsys, tmp_path, *texts)
    assert code == 0 and reasons(page)[0] == "topology-odd"
    assert page["reasons"][0]["facts"]["problem_code"] == "fewer-nvlinks"


def test_links_that_are_all_active_rule_out_missing_ones(capsys: Out, tmp_path: Path) -> None:
    _, [without] = explained(capsys, tmp_path, slow_log(P4D, "allreduce", 0.5))
    _, [beside] = explained(capsys, tmp_path, slow_log(P4D, "allreduce", 0.5), status())
    assert "part-of-nvlinks" in reasons(without) and "part-of-nvlinks" not in reasons(beside)


@pytest.mark.parametrize(("kind", "named"), [("PXB", False), ("SYS", True), ("NODE", True)])
def test_the_closest_nic_of_each_gpu_is_evidence_between_nodes(
    capsys: Out, tmp_path: Path, kind: str, named: bool
) -> None:
    nics = [[kind, "SYS"] for _ in range(8)]
    text = table(switch(kind="NV18"), nics)
    _, [page] = explained(
        capsys, tmp_path, slow_log(P5, "allreduce", 0.5, 2), text, options=("--instance", P5.instance)
    )
    assert ("far-nics" in reasons(page)) == named


def test_the_closest_adapters_of_a_gpu() -> None:
    reader = TopologyReader()
    for number, line in enumerate(table(switch(2), [["SYS", "PIX"], ["NODE", "NODE"]]).splitlines(), start=1):
        reader.read(number, line.strip())
    [topology] = reader.found
    assert near_adapters(topology.inventory) == {"gpu0": ("PIX", "NIC1"), "gpu1": ("NODE", "NIC0, NIC1")}


def test_the_reader_keeps_nothing_of_other_lines_and_is_bounded() -> None:
    reader = TopologyReader()
    for number in range(20_000):
        reader.read(number, f"GPU{number} NIC{number}" if number % 2 else "GPU 0: NVIDIA (UUID: GPU-1)")
    assert len(reader.found) <= 64


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_topologies_raise_nothing(data: st.DataObject) -> None:
    lines = (table(switch(4), [["PIX", "SYS"]] * 4) + status(2, num=4, links=4)).splitlines()
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(0, len(lines) - 1))
        cut = data.draw(st.integers(0, len(lines[place])))
        odd = data.draw(st.sampled_from(["", "GPU", "NV", "NV99999", " X ", "\t", "Link 3: ", "\x1b[4m", "\0", "é"]))
        lines[place] = lines[place][:cut] + odd + lines[place][cut + data.draw(st.integers(0, 9)) :]
        if data.draw(st.booleans()):
            lines.insert(data.draw(st.integers(0, len(lines))), lines[place])
    reader = TopologyReader()
    for number, line in enumerate(lines, start=1):
        reader.read(number, line.strip())
    for topology in reader.found:
        topology_page(topology, "file")


def test_a_topology_without_nvlink_is_judged_by_the_named_machine() -> None:
    reader = TopologyReader()
    for number, line in enumerate(table(switch(8, "PHB")).splitlines(), start=1):
        reader.read(number, line.strip())
    (topology,) = reader.found
    expected = {
        None: (ResultVerdict.NORMAL_IF, AssessmentCode.TOPOLOGY_WITHOUT_LINKS, True),
        "p4d.24xlarge": (ResultVerdict.FAR_TOO_LOW, AssessmentCode.TOPOLOGY_LACKS_NVLINK, False),
        "g6e.48xlarge": (ResultVerdict.NORMAL, AssessmentCode.TOPOLOGY_NEEDS_NO_NVLINK, True),
    }
    for named, (verdict, code, well) in expected.items():
        found, good = topology_page(topology, "file", named)
        assert (found.assessment.verdict, found.assessment.why.code, good) == (verdict, code, well)
        assert (found.decides is not None) == (named is None)


@needs_corpus
@pytest.mark.parametrize(
    ("folder", "name", "code"),
    [
        ("other_logs", "r12_good_nvlink_status.txt", 0),
        ("other_logs", "r30_bad_nvlink_status.txt", 1),
        ("other_logs", "i31_topo_a100_pxb.txt", 0),
        ("topo_logs", "16_hopper_12nic_lost_tab_PIXNODE.txt", 0),
    ],
)
def test_real_topologies(capsys: Out, folder: str, name: str, code: int) -> None:
    assert main(["explain", str(real(folder, name))]) == code
    capsys.readouterr()
