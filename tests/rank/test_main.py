"""What rank 0 prints and stores, for few rows or many, and how a rank ends. The model stands in for ranks."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.core import plugins
from bench.core.codes import UNCODED
from bench.core.ends import EndCode
from bench.core.errors import EXIT_INTERRUPTED, EXIT_MEASUREMENT, MeasurementError, NotInstalledError, RefusedError
from bench.core.skips import SkipCode
from bench.core.world import RankInfo
from bench.rank import delivery, heartbeats, main
from bench.rank.messages import RankFailure, RankRefusal, RankRemark
from bench.store import heartbeat, jsonl
from benchmarks import gpu_copies
from tests.facts import holds

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


def num_pairs(lines: list[str]) -> int:
    """The pairs in a table: `0-7 +27` is a line of 28 pairs with equal times."""
    rows = [line.split() for line in lines if not line.startswith("#")]
    return sum(1 + (int(row[2]) if row[2].startswith("+") else 0) for row in rows)


def test_each_pair_is_in_one_line_with_both_modes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    assert num_pairs(lines) == 56
    assert not any(line.startswith("# 72 rows") for line in lines)


def test_many_rows_are_printed_at_once_and_only_counted_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(delivery, "_MOST_PENDING", 10)
    monkeypatch.setattr(delivery, "_MOST_HELD", 40)
    file = tmp_path / "pairs.jsonl"
    lines = printed(capsys, "--records", str(file))
    assert num_pairs(lines) == 112, "each mode has lines of its own"
    sentences = "\n".join(lines).replace("\n#     ", " ").splitlines()
    assert any(holds(line, "72 rows", "40 rows") for line in sentences)
    [attempt] = jsonl.read(file).attempts
    assert len(attempt.records) == 112, "the file has them all"


@pytest.mark.parametrize(
    ("transport", "option"),
    [("gloo", ("--require", "network=efa")), ("gloo", ("--graph", "1")), ("model", ("--require", "network=efa"))],
)
def test_an_option_that_the_transport_ignores_is_refused(
    transport: str, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    on = ("--instance", "p4d.24xlarge") if transport == "model" else ()
    words = ["--transport", transport, "--sizes", "8", "-n", "3", "--format", "json", *option, *on]
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("allreduce", words)
    assert ended.value.code == 3
    [failure] = json.loads(capsys.readouterr().out)["failures"]
    assert (failure["code"], failure["facts"]["option"]) == (SkipCode.OPTION_IGNORED, option[0])


def test_options_without_effect_are_named_in_the_header(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def ignored(*options: str) -> list[str]:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        words = ["--transport", "model", "--instance", "p4d.24xlarge", "--sizes", "8", "--records", str(file), *options]
        with pytest.raises(SystemExit) as ended:
            main.run_pattern("allreduce", words)
        assert ended.value.code == 0
        [attempt] = jsonl.read(file).attempts
        remarks = [remark for remark in attempt.header.remarks if remark.code == RankRemark.OPTIONS_IGNORED]
        return [option for remark in remarks for option in remark.facts["options"]]

    assert ignored() == ignored("--graph", "1") == ignored("--like", "osu") == []
    assert ignored("--sync", "barrier", "--skew", "1", "--split", "halves") == ["--skew", "--split", "--sync"]


@pytest.mark.parametrize("words", ["host_device", "local_copy", "allreduce --transport nccl"])
@pytest.mark.parametrize("device", [False, True])
def test_without_a_gpu_the_missing_gpu_is_reported_not_the_missing_package(
    words: str, device: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise NotInstalledError("CuPy is not installed: install this")

    monkeypatch.setattr("bench.probes.nvml.has_device", lambda *_: device)
    monkeypatch.setattr("bench.transports.cuda_copy.CudaCopy.__init__", refuse)
    monkeypatch.setattr("bench.transports.nccl.Nccl.__init__", refuse)
    with pytest.raises(SystemExit) as ended:
        main.run_pattern(words.split()[0], [*words.split()[1:], "--sizes", "8", "--format", "json"])
    [failure] = json.loads(capsys.readouterr().out)["failures"]
    assert ended.value.code == 3
    assert (failure["code"] == RankRefusal.NO_GPU) != device and ("install this" in failure["what"]) == device


def test_without_a_gpu_another_refusal_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RefusedError("CUDA_VISIBLE_DEVICES hides every GPU, though CuPy is not installed for nothing")

    monkeypatch.setattr("bench.probes.nvml.has_device", lambda *_: False)
    monkeypatch.setattr("bench.transports.cuda_copy.CudaCopy.__init__", refuse)
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("host_device", ["--sizes", "8"])
    assert ended.value.code == 3 and "CUDA_VISIBLE_DEVICES hides" in capsys.readouterr().err


def test_a_transport_that_only_copies_is_refused_for_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("allreduce", ["--transport", "cuda_copy", "--sizes", "8", "--format", "json"])
    [failure] = json.loads(capsys.readouterr().out)["failures"]
    assert (ended.value.code, failure["code"]) == (3, RankRefusal.COPIES_ONLY)


@pytest.mark.parametrize("access", ["write", "read"])
def test_copies_are_not_modelled(access: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("peer_copy", [*PAIRS, "--access", access, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert ended.value.code == 3 and document["summaries"] == []
    assert {row["code"] for row in document["skipped"]} == {SkipCode.DEVICE_WORK}


def test_gpu_copies_ends_with_3_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RefusedError("CuPy is not installed: install this")

    monkeypatch.setattr("sys.argv", ["gpu_copies"])
    monkeypatch.setattr("bench.probes.nvml.has_device", lambda *_: False)
    monkeypatch.setattr(gpu_copies, "CudaCopy", refuse)
    assert gpu_copies.main() == 3
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith("gpu_copies: error: ") and holds(error, "no NVIDIA GPU")


def test_a_size_that_runs_out_of_memory_fails_and_the_next_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = plugins.load("transport", "gloo").TRANSPORT
    allocate = transport.allocate

    def little(self: Any, send_bytes: int, recv_bytes: int, *rest: Any) -> Any:
        if send_bytes + recv_bytes > 1 << 16:
            raise MemoryError("no room")
        return allocate(self, send_bytes, recv_bytes, *rest)

    monkeypatch.setattr(transport, "allocate", little)
    monkeypatch.setattr(transport, "exits_at_once", False)  # this process goes on
    with pytest.raises(SystemExit) as ended:
        main.run_pattern(
            "allreduce",
            ["--transport", "gloo", "--sizes", "1K,1M,2K", "-n", "3", "--mode", "isolated", "--format", "json"],
        )
    printed_by_rank = capsys.readouterr()
    document = json.loads(printed_by_rank.out)
    assert ended.value.code == 4
    assert [row["payload_bytes"] for row in document["summaries"]] == [1024, 2048]
    [failed] = document["failures"]
    assert failed["payload_bytes"] == 1 << 20 and not document["skipped"]
    assert (failed["code"], failed["rank"], failed["host"]) == (RankFailure.OUT_OF_MEMORY, 0, socket.gethostname())
    assert printed_by_rank.err.count(heartbeat.ERROR_LINE) == 1 and failed["what"] in printed_by_rank.err


@pytest.mark.parametrize("controlled", [False, True])
def test_last_words_hold_code_and_facts_for_a_controller_only(
    controlled: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = ("--heartbeats", str(tmp_path)) if controlled else ()
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("allreduce", ["--transport", "gloo", "--sizes", "8", "--expect", "4", *more])
    err = capsys.readouterr().err
    [words] = heartbeat.last_words(f"[1] {err}")
    assert ended.value.code == 2 and (heartbeat.MARK in err) == controlled
    assert words.end.code == (RankRefusal.BAD_EXPECT if controlled else UNCODED)
    assert words.end.facts == ({"given": "4"} if controlled else {})
    assert "--expect" in words.end.text and heartbeat.MARK not in words.end.text


@pytest.mark.parametrize(
    ("error", "exit_code"), [(KeyboardInterrupt(), EXIT_INTERRUPTED), (RuntimeError("broken"), EXIT_MEASUREMENT)]
)
def test_a_file_system_that_hangs_does_not_keep_a_failed_rank(
    error: BaseException, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()

    class Hanging:
        exits_at_once = True

        def discard(self) -> None:
            begun.set()
            assert released.wait(60)

        def abort(self, code: int) -> NoReturn:
            assert begun.is_set()
            raise SystemExit(code)

    def end(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(heartbeats, "DISCARD_S", 0.05)
    monkeypatch.setattr(main, "_LAST_WORDS_S", 0.0)
    monkeypatch.setattr(os, "_exit", end)
    process = main._Process(has_controller=False, debug=False)
    monkeypatch.setattr(process, "transport", Hanging())
    with pytest.raises(SystemExit) as ended:
        main._failed(error, process)
    released.set()
    assert begun.is_set() and ended.value.code == exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), EndCode.OUT_OF_MEMORY),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            EndCode.OUT_OF_MEMORY,
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), EndCode.OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), EndCode.OUT_OF_MEMORY),
        (RuntimeError("sizes differ"), EndCode.ERROR),
    ],
)
def test_errors_of_libraries_for_lack_of_memory_have_its_code(error: Exception, code: EndCode) -> None:
    beat = heartbeats.HeartbeatWriter(RankInfo(0, 2, 0, 2, "torchrun"), None, 300.0)
    with (
        pytest.raises((MeasurementError, RuntimeError)) as found,
        main._with_failure_codes(main._Process(False, False), beat),
    ):
        raise error
    assert heartbeats.end_of(found.value).code == code


def test_a_rank_without_memory_for_a_thread_still_removes_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = []

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    heartbeats.discard_in_time(lambda: removed.append(True))
    assert removed == [True]


@pytest.mark.parametrize(("local_rank", "waits"), [(0, False), (1, True)])
def test_a_refused_rank_leaves_the_first_rank_of_its_host_time_to_say_why(
    local_rank: int, waits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Launchers such as torchrun end all other ranks when one ends."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    process = main._Process(False, False, RankInfo(2 + local_rank, 4, local_rank, 2, "torchrun"))
    assert main._refused(RefusedError("no GPU"), process) == 3
    assert (slept == [main._FIRST_OF_HOST_S]) is waits and bool(slept) is waits
    assert ("no GPU" in capsys.readouterr().err) is not waits
