"""The gate on imported runs: copies, facts from the log, missing sizes, and figures that are no numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from tests.commands import import_samples as samples

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def gated(out: Out, rules: str, run: str = "latest") -> dict[str, Any]:
    """The verdict on the newest run, by these rules."""
    Path("rules.yaml").write_text(rules, encoding="utf-8")
    out.readouterr()
    code = main(["gate", run, "--rules", "rules.yaml", "--format", "json"])
    verdict: dict[str, Any] = json.loads(out.readouterr().out)
    assert code == (0 if verdict["passed"] else 1)
    return verdict


def imported(text: str, *words: str, code: int = 0) -> Path:
    """The folder of the run that a log gives."""
    Path("a.log").write_text(text, encoding="utf-8")
    assert main(["import", "a.log", *words]) == code
    return max(Path("results").iterdir())


COPIES = """
rules:
  - {pattern: host_device, direction: h2d, busbw: at least 24 GB/s, imported: true, allow: unverified}
  - {pattern: peer_copy, busbw: at least PEER GB/s, imported: true, allow: unverified}
"""


def test_copies_that_nvbandwidth_measured_are_gated(capsys: Out) -> None:
    imported(samples.NVBANDWIDTH)
    verdict = gated(capsys, COPIES.replace("PEER", "20"))
    assert verdict["passed"], verdict["failures"]
    assert [each["num_rows"] for each in verdict["demands"]] == [2, 2]
    verdict = gated(capsys, COPIES.replace("PEER", "21"))
    assert verdict["failures"] == {"too-low": 1} and verdict["demands"][1]["worst_group"] == "gpu0>gpu1"


LATENCIES = """\
Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0         1
 0    701.10    702.20

SUM host_device_latency_sm 1403.30

"""


def test_a_demand_on_rates_does_not_select_a_matrix_of_times_nor_vice_versa(capsys: Out) -> None:
    imported(samples.NVBANDWIDTH + LATENCIES)
    rule = "{pattern: host_device, DEMAND, imported: true, allow: unverified}"
    verdict = gated(capsys, f"rules:\n  - {rule.replace('DEMAND', 'busbw: at least 24 GB/s')}\n")
    assert verdict["passed"] and verdict["demands"][0]["num_rows"] == 2, verdict["failures"]
    for most, passed in (("0.705 us", True), ("0.702 us", False)):
        verdict = gated(capsys, f"rules:\n  - {rule.replace('DEMAND', f'time: at most {most}')}\n")
        assert (verdict["passed"], verdict["demands"][0]["num_rows"]) == (passed, 2), verdict["failures"]
    imported(samples.NVBANDWIDTH[: samples.NVBANDWIDTH.index("Running ")] + LATENCIES, "--results", "only")
    (folder,) = Path("only").iterdir()
    verdict = gated(capsys, f"rules:\n  - {rule.replace('DEMAND', 'busbw: at least 24 GB/s')}\n", str(folder))
    assert set(verdict["failures"]) == {"missing-rows"}


def test_a_waived_pair_is_a_skipped_size(capsys: Out) -> None:
    """Only some pairs of a matrix filled: the good ones do not speak for the others."""
    text = samples.P2P.replace("Device=1 CAN Access", "Device=1 CANNOT Access")
    assert text != samples.P2P
    text = text.replace("     1\t     1     1", "     1\t     0     1")
    imported(text)
    rule = "{pattern: peer_copy, direction: d2d, busbw: at least 20 GB/s, imported: true, allow: unverified}"
    verdict = gated(capsys, f"rules:\n  - {rule}\n")
    assert not verdict["passed"] and set(verdict["failures"]) == {"size-skipped"}, verdict["failures"]


def test_copies_that_the_cuda_sample_measured_are_gated(capsys: Out) -> None:
    imported(samples.P2P)
    rule = "{pattern: peer_copy, direction: d2d, busbw: at least 20 GB/s, imported: true, allow: unverified}"
    inside = "{pattern: local_copy, busbw: at least 300 GB/s, imported: true, allow: unverified}"
    verdict = gated(capsys, f"rules:\n  - {rule}\n  - {inside}\n")
    assert verdict["passed"], verdict["failures"]
    assert [each["num_rows"] for each in verdict["demands"]] == [2, 4]


ROWS = "rules:\n  - {pattern: allreduce, sizes: 1M, busbw: at least 10 GB/s, imported: true, samples: 1}\n"


@pytest.mark.parametrize(("name", "content"), [("logs/n1.log", b""), ("named.log", b"hello\n"), ("named.log", b"")])
def test_a_log_that_gave_nothing_fails_the_gate(name: str, content: bytes, capsys: Out) -> None:
    Path("logs").mkdir()
    Path("logs/n0.log").write_text(samples.NCCL, encoding="utf-8")
    Path("logs/notes.md").write_text("of no interest\n", encoding="utf-8")
    assert main(["import", "logs"]) == 0
    assert gated(capsys, ROWS)["passed"]
    Path(name).write_bytes(content)
    assert main(["import", "logs", *([name] if name.startswith("named") else []), "--results", "again"]) == 1
    (folder,) = Path("again").iterdir()
    (lost,) = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["troubles"]
    assert lost["source"] == name and name in lost["what"]
    verdict = gated(capsys, ROWS, str(folder))
    assert verdict["failures"] == {"truncated-import": 1} and verdict["faults"][0]["what"] == lost["what"]


def h100s(
    busbw: float, sizes: tuple[int, ...] = (1 << 20,), num_ranks: int = 8, num_nodes: int = 1, step: int = 0
) -> str:
    """A log of so many H100 with this busbw (GB/s) at each size; time and algbw fit it. `step`: the banner's, where it
    is not from the first size to the last."""
    algbw = busbw * num_ranks / (2 * (num_ranks - 1))
    ranks = [
        f"#  Rank {rank:2} Group  0 Pid   1100 on  node-{rank * num_nodes // num_ranks} device "
        f"{rank % (num_ranks // num_nodes):2} [0x17] NVIDIA H100 80GB HBM3"
        for rank in range(num_ranks)
    ]
    half = "{time:9.4f} {algbw:.2f} {busbw:.2f}      0"
    rows = [
        f"{size:12} {size // 4:12}     float     sum      -1 "
        + " ".join([half.format(time=size / algbw / 1e3, algbw=algbw, busbw=busbw)] * 2)
        for size in sizes
    ]
    step = step or max(2, sizes[-1] // sizes[0])
    lines = (
        samples.NCCL.replace("minBytes 1024", f"minBytes {sizes[0]}")
        .replace("maxBytes 1048576 step: 32(factor)", f"maxBytes {sizes[-1]} step: {step}(factor)")
        .splitlines()
    )
    table = next(number for number, line in enumerate(lines) if line.lstrip().startswith("1024 "))
    return "\n".join([*lines[1:4], *ranks, *lines[8:table], *rows, "# Out of bounds values : 0 OK", "#", ""])


def test_the_gpus_in_a_log_give_its_rows_bounds(capsys: Out) -> None:
    imported(h100s(400))
    verdict = gated(capsys, ROWS.replace("10 GB/s", "40% of bound"))
    assert verdict["passed"] and verdict["demands"][0]["got"] == pytest.approx(400 / 700, rel=1e-3)  # 2 x 450 x 7/9
    imported(h100s(626000), "--results", "results2")
    (folder,) = Path("results2").iterdir()
    assert "above-bound" in gated(capsys, ROWS, str(folder))["failures"]
    header = json.loads(next(folder.glob("*.jsonl")).read_text(encoding="utf-8").splitlines()[0])
    assert header["facts"]["machine"].startswith("H100-SXM5-80GB") and header["instance"] is None


def test_the_gpus_in_a_log_are_compared_with_the_expected_ones(capsys: Out) -> None:
    imported(h100s(100))
    assert gated(capsys, "expect: {gpu: H100}" + "\n" + ROWS)["passed"]
    verdict = gated(capsys, "expect: {gpu: A100}" + "\n" + ROWS)
    assert [fault["code"] for fault in verdict["faults"]] == ["gpu-unexpected"] * 2
    assert len({fault["job"] for fault in verdict["faults"]}) == 2, "in place and out of place"
    assert verdict["faults"][0]["facts"]["found"][0].startswith("NVIDIA H100")


def test_the_gpus_in_a_log_have_published_figures(capsys: Out) -> None:
    imported(h100s(270, (1 << 24,)))
    verdict = gated(capsys, ROWS.replace("1M", "16M").replace("10 GB/s", "90% of reference"))
    assert verdict["passed"] and verdict["demands"][0]["got"] == pytest.approx(270 / 234.45, rel=1e-3)


def test_explain_gives_the_same_answer_for_the_run_and_the_log(capsys: Out) -> None:
    folder = imported(h100s(400))
    pages = []
    for name in ("a.log", str(folder)):
        capsys.readouterr()
        main(["explain", name, "--format", "json"])
        (page,) = json.loads(capsys.readouterr().out)["pages"]
        pages.append({key: page[key] for key in ("machine", "standing", "possible")})
    assert pages[0] == pages[1]


SPAN = "rules:\n  - {pattern: PATTERN, sizes: 1M:1G, busbw: at least 1 GB/s, imported: true}\n"


def asked(sizes: list[int], pattern: str = "allreduce") -> str:
    """The folder of an imported run whose banner asked for these sizes; those that are there are 8M and 1G."""
    folder = imported(h100s(300, (8 << 20, 1 << 30)))
    for file in folder.glob("*.jsonl"):
        header, *records = file.read_text(encoding="utf-8").splitlines()
        stored = json.loads(header) | {"pattern": pattern}
        stored["imported"]["asked_bytes"] = sizes
        file.write_text("\n".join([json.dumps(stored), *records]) + "\n", encoding="utf-8")
    return str(folder)


def test_a_size_requested_in_a_log_must_be_there(capsys: Out) -> None:
    rules = SPAN.replace("PATTERN", "allreduce")
    whole = asked([8 << 20, 1 << 30])
    assert gated(capsys, rules, whole)["passed"]
    lost = gated(capsys, rules, asked([1 << size for size in range(18, 31)]))
    assert lost["failures"] == {"size-skipped": 2 * 9}  # of 1M to 1G without 8M and 1G, in place and out of place
    faults = {(fault["job"], fault["payload_bytes"]) for each in lost["demands"] for fault in each["faults"]}
    assert ("a-allreduce-in-place", 16 << 20) in faults and len(faults) == 18
    assert gated(capsys, rules.replace("1M:1G", "8M"), "latest")["passed"]  # what no rule is about may be absent


def test_the_gate_reads_the_sizes_of_a_banner(capsys: Out) -> None:
    folder = imported(h100s(300, (8 << 20, 1 << 30), step=2), code=1)
    verdict = gated(capsys, SPAN.replace("PATTERN", "allreduce"), str(folder))
    assert verdict["failures"]["size-skipped"] == 2 * 6 and "truncated-import" in verdict["failures"]
    assert any(fault["payload_bytes"] == 16 << 20 for each in verdict["demands"] for fault in each["faults"])


def test_a_size_rounded_to_blocks_is_there(capsys: Out) -> None:
    folder = asked([(8 << 20) + 64, 1 << 30, 100], "allgather")
    assert gated(capsys, SPAN.replace("PATTERN", "allgather"), folder)["passed"]
    folder = asked([(8 << 20) + 64, 1 << 30], "broadcast")
    assert gated(capsys, SPAN.replace("PATTERN", "broadcast"), folder)["failures"] == {"size-skipped": 2}


def explained(out: Out, name: str) -> dict[str, Any]:
    """The only page that explain prints."""
    out.readouterr()
    main(["explain", name, "--format", "json"])
    (page,) = json.loads(out.readouterr().out)["pages"]
    return dict(page)


def excluded(page: dict[str, Any]) -> dict[str, Any]:
    """The facts about the rows that a page of explain does not count."""
    [found] = [line["facts"] for line in page["got_codes"] if line["code"] == "excluded-rows"]
    return dict(found)


@pytest.mark.parametrize("word", ["nan", "inf"])
def test_a_figure_printed_as_no_number_fails_by_that_name(word: str, capsys: Out) -> None:
    text = h100s(300, (8 << 20, 1 << 30)).splitlines()
    (number,) = [at for at, line in enumerate(text) if line.lstrip().startswith("1073741824 ")]
    text[number] = f" {word} ".join(text[number].rsplit(" 300.00 ", 1))
    Path("a.log").write_text("\n".join(text) + "\n", encoding="utf-8")
    main(["import", "a.log"])
    verdict = gated(capsys, SPAN.replace("PATTERN", "allreduce"))
    assert "not-a-number" in verdict["failures"]
    for name in ("a.log", "latest"):
        page = explained(capsys, name)
        assert page["best"]["busbw_bytes_per_s"] == 300e9 and not page["best"]["in_place"], name
    assert "busbw" in excluded(explained(capsys, "a.log"))["why"]


def test_a_contradictory_row_fails_and_is_never_the_best(capsys: Out) -> None:
    folder = imported(h100s(300, (8 << 20, 1 << 30)))
    (file,) = [file for file in folder.glob("*.jsonl") if "in-place" not in file.name]
    header, first, last = file.read_text(encoding="utf-8").splitlines()
    odd = json.loads(last) | {"flags": ["contradicts"]}
    odd["reported"]["busbw_bytes_per_s"] = 400e9
    file.write_text("\n".join([header, first, json.dumps(odd)]) + "\n", encoding="utf-8")
    rules = SPAN.replace("PATTERN", "allreduce")
    assert gated(capsys, rules)["failures"] == {"contradicts": 1}
    page = explained(capsys, str(folder))
    assert page["best"]["busbw_bytes_per_s"] == 300e9
    facts = excluded(page)
    assert (facts["num_excluded"], facts["size_bytes"]) == (1, 1 << 30)


def test_a_busbw_against_its_definition_is_left_out_of_log_and_run(capsys: Out) -> None:
    text = h100s(300, (8 << 20, 1 << 30)).splitlines()
    (number,) = [at for at, line in enumerate(text) if line.lstrip().startswith("1073741824 ")]
    text[number] = " 333.00 ".join(text[number].rsplit(" 300.00 ", 1))
    Path("a.log").write_text("\n".join(text) + "\n", encoding="utf-8")
    main(["import", "a.log"])
    assert gated(capsys, SPAN.replace("PATTERN", "allreduce"))["failures"].get("contradicts") == 1
    for name in ("a.log", "latest"):
        page = explained(capsys, name)
        assert page["best"]["busbw_bytes_per_s"] == 300e9, name
        assert excluded(page)["num_excluded"] == 1, name


def test_a_run_that_failed_after_its_closing_lines_has_failed(capsys: Out) -> None:
    text = h100s(300, (8 << 20, 1 << 30)) + "srun: error: node3: task 9: Exited with exit code 1\n"
    Path("a.log").write_text(text, encoding="utf-8")
    assert main(["import", "a.log"]) == 1
    verdict = gated(capsys, SPAN.replace("PATTERN", "allreduce"))
    assert "failed-job" in verdict["failures"]
