"""`linkbench doctor`: what it says of machines' links, and by which exit code."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.commands.doctor import _loaded, recorded_page
from bench.core.wrapping import PIPED_WIDTH
from bench.hardware import machine_page
from bench.hardware.health import findings
from bench.hardware.promises import promises
from bench.probes import machine
from tests.facts import holds
from tests.hardware.machines import gpu, hgx, loaded, node, sandbox
from tests.logs import corpus
from tests.probes import synthetic_machines as synthetic


def header_of(path: Path, facts: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"header": {"nodes": {"h0": facts}}}) + "\n")
    return path


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["doctor", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_page_about_a_healthy_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys, "--facts", str(header_of(tmp_path / "a.jsonl", hgx())))
    text = " ".join(out.split())
    assert code == 0
    assert holds(text, "h0", "gpu[0-3]:", "NVIDIA H100 80GB HBM3", "80 GiB", "NUMA node 0")
    assert holds(text, "NVLink:", "gpu[0-7]:", "18 of 18", "switch", "450 GB/s")
    assert holds(text, "18 NVLinks", "NV18", "gpu0-gpu1, gpu0-gpu2, gpu0-gpu3, gpu0-gpu4", "24", "450 GB/s")
    assert holds(text, "all-reduce", "1 GiB", "busbw", "gpu[0-7]:", "700 GB/s")
    assert holds(text, "problems", "none") and "unknown:" not in text
    assert max(map(len, out.splitlines())) <= PIPED_WIDTH


def test_what_is_wrong_has_its_evidence_its_remedy_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = header_of(tmp_path / "a.jsonl", hgx(shm_bytes=64 << 20, governor=None))
    code, out, _ = doctor(capsys, "--facts", str(file))
    text = " ".join(out.split())
    assert code == 1
    assert holds(text, "/dev/shm", "64 MiB", "8 GPUs", "--shm-size") and "unknown: " in text
    code, out, _ = doctor(capsys, "--facts", str(file), "--format", "json")
    told = json.loads(out)
    assert (code, told["schema"], told["findings"], told["hosts"]) == (1, "bench.doctor/1", [], {})
    page = told["machines"]["h0"]
    assert [each["severity"] for each in page["findings"]] == ["wrong", "unknown"]
    assert [each["code"] for each in page["findings"]] == ["shared-memory", "governor-unknown"]
    assert page["facts"]["shm_bytes"] == 64 << 20 and page["promises"][0]["bounds"][0]["kind"] == "reference"


def test_equal_hosts_have_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {"h0": hgx(), "h1": hgx(), "h2": hgx(shm_bytes=1 << 20)}
    (tmp_path / "a.jsonl").write_text(json.dumps({"nodes": nodes}) + "\n")
    code, out, _ = doctor(capsys, "--facts", str(tmp_path / "a.jsonl"))
    assert code == 1 and [line for line in out.splitlines() if line.startswith("machine")] == [
        "machines h[0-1]",
        "machine h2",
    ]


def test_a_doubt_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys, "--facts", str(header_of(tmp_path / "a.jsonl", hgx(governor="powersave"))))
    assert code == 0 and holds(out, "doubtful:", "governor: powersave", "cpupower frequency-set -g performance")


def test_a_file_without_a_machine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("hello")
    code, _, err = doctor(capsys, "--facts", str(tmp_path / "a"))
    assert code == 2 and f"--facts {tmp_path / 'a'}" in err
    code, _, err = doctor(capsys, "--facts", str(tmp_path / "b"))
    assert code == 2 and f"--facts {tmp_path / 'b'}" in err


def test_output_without_devices_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text('<nvidia_smi_log><gpu id="x"><pci>')  # cut off
    code, _, err = doctor(capsys, "--facts", str(tmp_path / "a"))
    assert code == 2 and f"--facts {tmp_path / 'a'}" in err


@pytest.mark.parametrize(
    "damage",
    [
        {"gpus": 5},
        {"gpus": "x"},
        {"gpus": [5]},
        {"gpus": {"a": 1}},
        {"numa_nodes": 7},
        {"shm_bytes": "much"},
        {"max_locked_bytes": [1]},
        {"paths": [{"a": "gpu0", "b": "gpu1", "kind": 18}]},
    ],
)
def test_facts_of_a_wrong_kind_are_refused_in_one_sentence(
    damage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = header_of(tmp_path / "a.jsonl", hgx() | damage)
    code, out, err = doctor(capsys, "--facts", str(file))
    assert code == 2 and out == "" and str(file) in err and err.count("\n") == 1


def test_an_error_of_the_suite_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("an error in a rule")

    monkeypatch.setattr("bench.commands.doctor.promises", broken)
    args = argparse.Namespace(format="json")
    with pytest.raises(KeyError):
        recorded_page(header_of(tmp_path / "a.jsonl", hgx()), None, args)


def test_facts_by_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(_TABLE.encode())))
    code, out, _ = doctor(capsys, "--facts", "-")
    assert code == 0 and "machine stdin" in out and "NV6" in out


def test_load_without_a_gpu_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reason = "no driver answers"
    bare = node([], [], no_gpus_because=reason)
    assert _loaded(bare, sys.executable) == bare
    err = capsys.readouterr().err
    assert err.startswith("--load: ") and err.endswith(f": {reason}\n")


def test_this_machine_has_a_page_after_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = doctor(capsys, "--results", str(tmp_path), "--format", "json")
    told = json.loads(out)
    here = machine.facts()
    assert list(told["machines"]) == list(told["hosts"]) == [here["host"]]
    assert told["machines"][here["host"]]["facts"]["num_cpus"] == here["num_cpus"]
    assert "node" not in told["hosts"][here["host"]]  # said once
    wrong = [each for each in told["machines"][here["host"]]["findings"] if each["severity"] == "wrong"]
    assert code == (3 if any(each["refuses"] for each in told["findings"]) else 1 if wrong else 0)


_SWITCH = """<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s"
 link_width="16">{}</pci></cpu></system>"""
_CARD = """<pci busid="0000:0{}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>"""


def page_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *words: str) -> str:
    (tmp_path / "there.txt").write_text(text)
    code, out, _ = doctor(capsys, "--facts", str(tmp_path / "there.txt"), *words)
    assert code == 0
    return " ".join(out.split())


def test_a_topology_without_nvlinks_bounds_no_traffic_that_they_may_carry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page_of(tmp_path, capsys, _SWITCH.format("".join(_CARD.format(k) for k in (2, 3, 4))))
    assert holds(text, "all-reduce", "1 GiB", "gpu[0-2]:", "unknown")
    assert holds(text, "PCIe,", "NVLinks", "PIX", "gpu0-gpu1, gpu0-gpu2, gpu1-gpu2:", "unknown")
    assert holds(text, "host to GPU", "gpu[0-2]:", "31.5 GB/s")  # that way has no NVLinks
    assert holds(text, "PCIe 4 x16:", "there.txt", "maximum")
    assert "this machine" not in text and "idle: " not in text


_TEXT = """==============NVSMI LOG==============
Driver Version                            : 599.10
CUDA Version                              : 13.9

Attached GPUs                             : 1
GPU 00000000:17:00.0
    Product Name                          : NVIDIA Example
"""
_XML = """<nvidia_smi_log><driver_version>599.10</driver_version><cuda_version>13.9</cuda_version>
<attached_gpus>1</attached_gpus><gpu id="00000000:17:00.0"><product_name>NVIDIA Example</product_name></gpu>
</nvidia_smi_log>"""


@pytest.mark.parametrize("text", [_TEXT, _XML])
def test_versions_stand_in_what_nvidia_smi_printed(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = page_of(tmp_path, capsys, text)
    assert holds(told, "driver:", "599.10", "CUDA 13.9") and "which CUDA" not in told


def test_only_the_recorded_text_is_named_as_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = page_of(tmp_path, capsys, _TEXT)
    assert holds(told, "nvidia-smi -q", "report")
    assert "/sys" not in told and not holds(told, "driver does not") and "idle" not in told


def recorded(folder: str, tmp_path: Path, stem: str = "*") -> list[Path]:
    """Files of a folder: synthetic ones, and other people's if they are here."""
    for name, text in synthetic.TEXTS.items():
        file = tmp_path / f"{name}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    roots = [tmp_path, *([corpus.FOLDER] if corpus.FOLDER else [])]
    return [path for root in roots for path in sorted((root / folder).glob(stem)) if "lspci" not in path.name]


@pytest.mark.slow
def test_recorded_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for file in recorded("pcie_logs", tmp_path):
        _, out, _ = doctor(capsys, "--facts", str(file))
        assert "driver: unknown" not in out and "CUDA unknown" not in out, file.name


_TABLE = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity
GPU0\t X \tNV6\tNV6\tPIX\t0-7
GPU1\tNV6\t X \tNV6\tSYS\t0-7
GPU2\tNV6\tNV6\t X \tSYS\t0-7
NIC0\tPIX\tSYS\tSYS\t X
"""


def test_a_table_has_nvlinks_without_rates_and_adapters_without_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = page_of(tmp_path, capsys, _TABLE)
    assert holds(told, "NVLink: gpu[0-2]:", "NV6", "every", "unknown")
    assert holds(told, "adapters:", "1", "unknown", "(NIC0)") and "idle" not in told
    half = _TABLE.replace("NV6\tNV6\tPIX", "NV6\tSYS\tPIX").replace("NV6\tNV6\t X", "SYS\tNV6\t X")
    partly = page_of(tmp_path, capsys, half)
    assert holds(partly, "gpu[0,2]: NV6 to gpu1,", "unknown", "gpu1: NV6", "every")
    without = page_of(tmp_path, capsys, _TABLE.replace("NV6", "SYS"))
    assert holds(without, "NVLink: gpu[0-2]: none")


_BLOCK = """{} 3D controller: NVIDIA Corporation Example (rev a1)
\tControl: I/O-
\tNUMA node: 0
"""


def test_unreported_pairs_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = page_of(tmp_path, capsys, "".join(map(_BLOCK.format, ("00:01.0", "00:02.0", "41:00.0"))))
    assert holds(told, "1 pair PHB", "unknown", "2 pairs unknown")
    assert holds(told, "missing", "gpu0 to gpu2:", "root ports")
    assert holds(told, "NVLink: gpu[0-2]: unknown", "lspci -vvv")


def test_a_recorded_text_is_named_in_place_of_the_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = page_of(tmp_path, capsys, '<system version="1"><cpu numaid="0"><pci busid="0000:00:16.0"/></cpu></system>')
    assert holds(told, "GPUs: none", "NCCL's file") and holds(told, "1 PCI devices", "class")


def test_a_file_is_named_as_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = header_of(tmp_path / "a.jsonl", hgx(gpus=[gpu(k) for k in range(8)]))
    _, out, _ = doctor(capsys, "--facts", str(file))
    text = " ".join(out.split())
    assert holds(text, "PCIe 5 x16:", "a.jsonl", "NVML", "sysfs", "idle")
    assert holds(text, "NVLink", "a.jsonl, by NVML", "links")
    assert "this machine" not in text


def test_recorded_topologies_of_machines_with_nvlink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = recorded("topo_xml", tmp_path, "8_gpus*")
    for name in ("p4d-24xl", "p4de-24xl", "ndv2", "ndv4", "ndv5"):
        files += recorded("topo_xml", tmp_path, f"*{name}-topo.xml")
    for file in files:
        code, out, _ = doctor(capsys, "--facts", str(file))
        text = " ".join(out.split())
        assert code in (0, 1) and "this machine" not in text, file.name
        assert holds(text, "all-reduce", "1 GiB", "gpu[0-7]:", "unknown"), file.name


def test_a_file_is_held_to_an_instance_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(header_of(tmp_path / "a.jsonl", hgx(gpus=[loaded(k) for k in range(7)])))
    code, out, _ = doctor(capsys, "--facts", file, "--instance", "p5.48xlarge")
    assert code == 1 and holds(out, "wrong:", "7", "8 GPUs", "p5.48xlarge")
    code, out, _ = doctor(capsys, "--facts", file)
    assert code == 0 and "p5.48xlarge" not in out
    code, _, told = doctor(capsys, "--facts", file, "--instance", "p5.48xlrge")
    assert code == 2 and holds(told, "'p5.48xlrge'", "'p5.48xlarge'")


@corpus.needs_corpus
def test_the_pcie_of_p4d_by_nvidia_smi_by_nccl_and_by_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    (smi,) = corpus.real("pcie_logs", "").glob("*p4d*")
    (nccl,) = corpus.real("topo_xml", "").glob("*p4d-24xl-topo.xml")
    pages = [
        " ".join(doctor(capsys, "--facts", str(file), *words)[1].split())
        for file in (smi, nccl)
        for words in ((), ("--instance", "p4d.24xlarge"))
    ]
    rates = [re.findall(r"host to GPU and back, each way, gpu\[0-7\]: (\S+) GB/s", page) for page in pages]
    assert rates == [["31.5"], ["15.8"], ["15.8"], ["15.8"]]
    assert [holds(page, "own link", "first switch") for page in pages] == [False, True, False, False]


def test_pages_of_machines_that_tell_little() -> None:
    for facts in (sandbox(), node([], []), {}):
        lines = machine_page.page(facts, promises(facts), findings(facts))
        assert any("unknown" in line or "none" in line for line in lines)


@pytest.mark.parametrize(("last", "code"), [("NV18", 0), ("SYS", 1)])
def test_a_gpu_that_reaches_no_other_by_nvlink_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], last: str, code: int
) -> None:
    lines = ["\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity"]
    for a in range(4):
        cells = ["X" if a == b else last if 3 in (a, b) else "NV18" for b in range(4)]
        lines.append("\t".join([f"GPU{a}", *cells, "0-47"]))
    file = tmp_path / "topo.txt"
    file.write_text("\n".join(lines) + "\n")
    assert doctor(capsys, "--facts", str(file))[0] == code
