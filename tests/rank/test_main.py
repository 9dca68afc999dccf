"""What rank 0 prints and keeps of a run, few rows or very many. The model stands for ranks."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.core import plugins
from bench.core.errors import NotInstalledError, RefusedError
from bench.rank import delivery, main
from bench.store import jsonl
from benchmarks import gpu_copies

PAIRS = [
    "--transport",
    "model",
    "--instance",
    "p4d.24xlarge",
    "--nodes",
    "1",
    "--ranks-per-node",
    "8",
    "--sizes",
    "8,1K",
]


def printed(capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    """The lines of 28 pairs at 2 sizes in 2 modes."""
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("pairs", [*PAIRS, *more])
    assert ended.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_each_pair_has_one_line_with_both_modes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert len(rows) == 56 and len({(row[0], row[1]) for row in rows}) == 56
    assert not any("rows more than" in line for line in lines)


def test_very_many_rows_are_printed_as_they_come_and_only_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(delivery, "_MOST_PENDING", 10)
    monkeypatch.setattr(delivery, "_MOST_HELD", 40)
    file = tmp_path / "pairs.jsonl"
    lines = printed(capsys, "--records", str(file))
    rows = [line.split()[:2] for line in lines if not line.startswith("#")]
    assert len(rows) == 112, "each mode has lines of its own"
    assert len({tuple(row) for row in rows}) == 56
    assert any(line.startswith("# 72 rows more than the 40 that are held") for line in lines)
    [attempt] = jsonl.read(file).attempts
    assert len(attempt.records) == 112, "the file has them all"


@pytest.mark.parametrize(
    ("transport", "option"),
    [("gloo", ("--require", "network=efa")), ("gloo", ("--graph", "1")), ("model", ("--require", "network=efa"))],
)
def test_what_a_transport_would_pass_over_in_silence_is_refused(
    transport: str, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    on = ("--instance", "p4d.24xlarge") if transport == "model" else ()
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("allreduce", ["--transport", transport, "--sizes", "8", "-n", "3", *option, *on])
    assert ended.value.code == 3
    err = capsys.readouterr().err
    assert f"`{option[0][2:]}`" in err and transport in err and "--transport nccl" in err


@pytest.mark.parametrize("words", ["host_device", "local_copy", "allreduce --transport nccl"])
@pytest.mark.parametrize("device", [False, True])
def test_where_there_is_no_gpu_nothing_is_to_be_installed(
    words: str, device: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise NotInstalledError("CuPy is not installed: install this")

    monkeypatch.setattr("bench.probes.nvml.has_device", lambda: device)
    monkeypatch.setattr("bench.transports.cuda_copy.CudaCopy.__init__", refuse)
    monkeypatch.setattr("bench.transports.nccl.Nccl.__init__", refuse)
    with pytest.raises(SystemExit) as ended:
        main.run_pattern(words.split()[0], [*words.split()[1:], "--sizes", "8"])
    told = capsys.readouterr().err
    assert ended.value.code == 3
    assert ("install this" in told) == device and ("no NVIDIA GPU was found on" in told) != device


def test_where_there_is_no_gpu_a_refusal_of_another_kind_keeps_its_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RefusedError("CUDA_VISIBLE_DEVICES hides every GPU, though CuPy is not installed for nothing")

    monkeypatch.setattr("bench.probes.nvml.has_device", lambda: False)
    monkeypatch.setattr("bench.transports.cuda_copy.CudaCopy.__init__", refuse)
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("host_device", ["--sizes", "8"])
    assert ended.value.code == 3 and "CUDA_VISIBLE_DEVICES hides" in capsys.readouterr().err


def test_a_transport_of_copies_is_no_way_to_send(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("allreduce", ["--transport", "cuda_copy", "--sizes", "8"])
    assert ended.value.code == 3 and "cuda_copy only copies, and allreduce has messages" in capsys.readouterr().err


@pytest.mark.parametrize("access", ["write", "read"])
def test_copies_are_not_modelled_whoever_orders_them(access: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("peer_copy", [*PAIRS, "--access", access, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert ended.value.code == 3 and document["summaries"] == []
    assert document["skipped"] and all(row["reason"] for row in document["skipped"])


def test_the_figures_of_one_gpu_end_with_3_where_there_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RefusedError("CuPy is not installed: install this")

    monkeypatch.setattr("sys.argv", ["gpu_copies"])
    monkeypatch.setattr("bench.probes.nvml.has_device", lambda: False)
    monkeypatch.setattr(gpu_copies, "CudaCopy", refuse)
    assert gpu_copies.main() == 3
    assert capsys.readouterr().err.splitlines() == [
        "gpu_copies: error: no NVIDIA GPU was found here: run this on a machine with one"
    ]


def test_memory_that_ends_while_a_size_is_prepared_fails_that_size_and_the_next_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = plugins.load("transport", "gloo").TRANSPORT
    allocate = transport.allocate

    def little(self: Any, send_bytes: int, recv_bytes: int, *rest: Any) -> Any:
        if send_bytes + recv_bytes > 1 << 16:
            raise MemoryError("no room")
        return allocate(self, send_bytes, recv_bytes, *rest)

    monkeypatch.setattr(transport, "allocate", little)
    with pytest.raises(SystemExit) as ended:
        main.run_pattern(
            "allreduce",
            ["--transport", "gloo", "--sizes", "1K,1M,2K", "-n", "3", "--mode", "isolated", "--format", "json"],
        )
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert ended.value.code == 4
    assert [row["payload_bytes"] for row in document["summaries"]] == [1024, 2048]
    [failed] = document["failures"]
    assert failed["payload_bytes"] == 1 << 20 and not document["skipped"]
    assert failed["what"].startswith("ran out of memory for")
    where = f"(rank 0 on {socket.gethostname()})"
    assert f"bench: error: 1 row failed; first: {failed['what']} {where}" in said.err
