"""What failed first, by logs of jobs that we made fail: the cause is named, no rank is guessed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.__main__ import main
from bench.core.errors import EXIT_USAGE, EXIT_VERDICT
from bench.explain import crash_page
from bench.explain.crash import Crash, crash_of
from bench.explain.crash_logs import EventLog, file_events, without_failure
from bench.explain.crash_messages import CrashCode
from bench.explain.log_hints import Hint
from bench.logs import imports
from bench.logs.failure_events import Event, EventReader
from bench.logs.readers import _lines
from tests.logs.corpus import needs_corpus, real

CRASHES = Path(__file__).parent / "crashes"
WORLD = "\n".join(
    f"#  Rank  {rank} Group  0 Pid {100 + rank} on node{rank} device  0 [0x07] NVIDIA H100" for rank in range(4)
)
RETRY = "node1:101:9 [0] x.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4> with error 12, opcode 0"

# Files -> (code of the likeliest cause, its rank, ranks that never came, operation, sequence number).
# The logs are of jobs that were really made to fail in this way: rank 2 by a signal, 3 by an exception, and so on.
ANSWERS: dict[str, tuple[str, int | None, tuple[int, ...], str | None, int | None]] = {
    "gloo_killed.log": ("killed", 2, (), None, None),
    "gloo_crashed.log": ("crashed", 2, (), None, None),
    "gloo_raised.log": ("python-error", 3, (), None, None),
    "gloo_size.log": ("size-mismatch", 0, (), None, None),
    "gloo_absent.log": ("silent-ranks", 1, (1,), None, None),
    "gloo_mismatch.log": ("all-ranks-waited", None, (), None, None),  # the text shows no more
    "gloo_barrier.log": ("missing-at-barrier", 2, (2,), None, None),
    "detail_mismatch.log": ("recorded-mismatch", 1, (), "BROADCAST", 3),
    "detail_size.log": ("recorded-mismatch", 1, (), "ALLREDUCE", 3),
    "absent_rank*.json": ("ranks-without-dump", 1, (1,), "all_reduce", 4),
    "mismatch_rank*.json": ("recorded-mismatch", 1, (), "broadcast", 4),
    "mismatch_trace_*.pickle": ("recorded-mismatch", 1, (), "broadcast", 4),
    "mpich_abort.log": ("mpi-abort", 2, (), None, None),
    "mpich_segv.log": ("crashed", None, (), None, None),
    "mpich_kill.log": ("killed", None, (), None, None),
    "mpich_raise.log": ("python-error", None, (), None, None),
    "mpich_hang.log": ("time-limit", None, (), None, None),
    "openmpi_abort.log": ("mpi-abort", 2, (), None, None),
    "openmpi_segv.log": ("crashed", 2, (), None, None),
    "openmpi_kill.log": ("killed", 2, (), None, None),
    "openmpi_exit.log": ("exited", 2, (), None, None),
    "openmpi_raise.log": ("python-error", None, (), None, None),
    "openmpi_hang.log": ("time-limit", None, (), None, None),
}


def events_of(text: str, source: str = "job.log") -> list[Event]:
    """The events of one text."""
    reader = EventReader()
    for _ in _lines.lines([text.encode()], reader.look):
        pass
    return list(reader.events(source))


def events_in(paths: Sequence[Path]) -> list[Event]:
    """The events of files, as the command reads them."""
    found: list[Event] = []
    for path in paths:
        found += file_events(path, path.name) or events_of(path.read_text("utf-8"), path.name)
    return found


def answer(crash: Crash | None) -> tuple[str, int | None, tuple[int, ...], str | None, int | None]:
    """The parts of an answer that the table holds."""
    assert crash is not None
    waiting = crash.waiting
    operation, seq = (waiting.operation, waiting.seq) if waiting is not None else (None, None)
    return crash.first.code, crash.first.rank, crash.absent, operation, seq


@pytest.mark.parametrize(("files", "wanted"), ANSWERS.items())
def test_the_first_failure_of_a_real_job(files: str, wanted: tuple[str, int | None, tuple[int, ...], str, int]) -> None:
    crash = crash_of(events_in(sorted(CRASHES.glob(files))))
    assert answer(crash) == wanted
    assert crash is not None and crash.reasons[0].evidence


def codes(crash: Crash | None) -> set[str]:
    assert crash is not None
    return {line.facts["kind"] for line in crash.consequences}


def test_what_followed_is_told_apart_from_the_cause() -> None:
    crash = crash_of(events_in([CRASHES / "gloo_killed.log"]))
    assert codes(crash) == {"terminated", "connection-closed"}
    assert crash is not None and crash.first.host == "node1" and crash.first.pid == 2544
    assert codes(crash_of(events_in([CRASHES / "gloo_raised.log"]))) == {"terminated", "connection-closed", "exited"}


def test_an_error_of_the_network_is_a_consequence_if_a_process_died_before() -> None:
    died = "srun: error: node2: task 2: Killed\n"
    retry = "node1:101:9 [0] x.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4> with error 12, opcode 0\n"
    alone = crash_of(events_of(f"{WORLD}\n{retry}"))
    assert answer(alone)[:2] == ("ib-retry-exceeded", 1)
    assert alone is not None and alone.first.peer == "10.0.0.3<4>"
    assert answer(crash_of(events_of(f"{WORLD}\n{died}{retry}")))[:2] == ("killed", 2)
    assert answer(crash_of(events_of(f"{WORLD}\n{retry}{died}")))[:2] == ("killed", 2)  # the launcher reports late


def test_an_error_after_a_lost_connection_is_a_consequence() -> None:
    lost = "[rank1]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1\n"
    text = f"{lost}[rank1]: ValueError: cannot save\n[rank2]: ValueError: bad batch\n"
    assert answer(crash_of(events_of(text)))[:2] == ("python-error", 2)


def test_ranks_that_the_launcher_kills_after_the_first_are_not_accused() -> None:
    text = "srun: error: node1: task 1: Exited with exit code 1\nsrun: error: node2: tasks 2-3: Killed\n"
    assert answer(crash_of(events_of(text)))[:2] == ("exited", 1)


def timeouts(*ranks: int, seq: int = 7) -> str:
    lines = []
    for rank in ranks:
        lines.append(
            f"[rank{rank}]:[E x.cpp:1] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
            f"SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1000) ran for 1001 milliseconds"
        )
    return "\n".join(lines) + "\n"


def status(rank: int, enqueued: int) -> str:
    words = f"Last enqueued NCCL work: {enqueued}, last completed NCCL work: 6."
    return f"[rank{rank}]:[E x.cpp:1] [PG 0 Rank {rank}] {words}\n"


def test_a_rank_that_had_not_enqueued_the_work_never_came() -> None:
    crash = crash_of(events_of(f"{WORLD}\n{timeouts(0, 1, 3)}{status(2, 6)}{status(1, 8)}"))
    assert answer(crash) == ("ranks-behind", 2, (2,), "ALLREDUCE", 7)


def test_time_outs_alone_accuse_no_rank_unless_one_is_silent() -> None:
    unknown = crash_of(events_of(timeouts(0, 1, 3)))
    assert answer(unknown)[2] == () and unknown is not None
    assert [line.code for line in unknown.unknown] == ["waited-for-unknown"]
    assert answer(crash_of(events_of(f"{WORLD}\n{timeouts(0, 1, 3)}")))[:3] == ("silent-ranks", 2, (2,))
    every = crash_of(events_of(f"{WORLD}\n{timeouts(0, 1, 2, 3)}"))
    assert answer(every)[:3] == ("all-ranks-inside", None, ())


def test_two_calls_that_differ_on_as_many_ranks_accuse_none() -> None:
    paths = [CRASHES / "mismatch_rank0.json", CRASHES / "mismatch_rank1.json"]
    crash = crash_of(events_in(paths))
    assert crash is not None and crash.first.code == "recorded-mismatch" and crash.first.rank is None
    assert crash.first.ranks == ()
    assert {line.code: line.facts["ranks"] for line in crash.unknown}["dumps-missing"] == [2, 3]


def inspector(rank: int, seq: int) -> str:
    return json.dumps(
        {"header": {"id": "0x7f", "rank": rank, "n_ranks": 4}, "coll_perf": {"coll": "X", "coll_sn": seq}}
    )


def test_inspector_accuses_only_beside_a_failure() -> None:
    records = "\n".join(inspector(rank, 9 if rank == 2 else 12) for rank in range(4)) + "\n"
    assert crash_of(events_of(records)) is None
    crash = crash_of(events_of(records + "srun: error: Job step aborted\n"), failed=True)
    assert crash is not None and (crash.first.code, crash.absent) == ("ranks-finished-less", (2,))


def test_healthy_text_is_no_crash() -> None:
    assert crash_of(events_of(WORLD + "\nnode0:100:1 [0] NCCL INFO comm 0x1 rank 0 nranks 4 - Init COMPLETE\n")) is None
    assert crash_of([]) is None


def test_a_job_that_hung_at_the_start_shows_how_far_each_host_came() -> None:
    info = "node{}:10{}:1 [0] NCCL INFO {}\n"
    text = info.format(0, 0, "Bootstrap : Using eth0") + info.format(1, 1, "Using network IB")
    crash = crash_of(events_of(text), failed=True)
    assert crash is not None and crash.first.code == "hung-at-start"
    assert crash_of(events_of(text)) is None


Out = pytest.CaptureFixture[str]


def explained(capsys: Out, path: Path) -> dict[str, Any]:
    """The document of the command, which found a failure."""
    assert main(["explain", str(path), "--format", "json"]) == EXIT_VERDICT
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_pools_the_files_of_a_job(tmp_path: Path, capsys: Out) -> None:
    for path in CRASHES.glob("mismatch_trace_*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "dmesg.txt").write_text("Mar 1 02:07:08 node1 kernel: nothing\n")
    found = explained(capsys, tmp_path)
    assert found["pages"] == []
    [crash] = found["crashes"]
    assert crash["first"]["facts"]["ranks"] == [1]
    assert [cause["code"] for cause in crash["causes"]] == ["recorded-mismatch"]


def test_logs_of_other_names_in_a_folder_are_other_jobs(tmp_path: Path, capsys: Out) -> None:
    for name in ("gloo_killed.log", "gloo_raised.log"):
        shutil.copy(CRASHES / name, tmp_path)
    assert [crash["first"]["code"] for crash in explained(capsys, tmp_path)["crashes"]] == ["killed", "python-error"]


def test_one_log_per_rank_is_one_job(tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "rank0.log").write_text(timeouts(0))
    (tmp_path / "rank1.log").write_text(timeouts(1))
    (tmp_path / "rank2.log").write_text(status(2, 6))
    (tmp_path / "dmesg.txt").write_text("[1.0] NVRM: Xid (PCI:0000:3b:00): 45, pid=7, Ch 1\n")
    [crash] = explained(capsys, tmp_path)["crashes"]
    assert crash["absent_ranks"] == [2] and len(crash["sources"]) == 4


def test_the_page_of_a_failed_run_holds_what_failed(tmp_path: Path, capsys: Out) -> None:
    log = tmp_path / "job.log"
    banner = "# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n#\n"
    log.write_text(f"{banner}# Using devices\n{WORLD}\n{RETRY}\n")
    found = explained(capsys, log)
    [page] = found["pages"]
    assert found["crashes"] == []
    assert page["crash"]["first"]["code"] == "ib-retry-exceeded"
    assert (page["crash"]["first"]["facts"]["rank"], page["crash"]["first"]["facts"]["host"]) == (1, "node1")
    for form in ("table", "markdown"):
        assert main(["explain", str(log), "--format", form]) == EXIT_VERDICT
        assert "10.0.0.3<4>" in capsys.readouterr().out


def test_a_file_without_a_failure_or_a_run_is_refused(tmp_path: Path, capsys: Out) -> None:
    log = tmp_path / "notes.txt"
    log.write_text("nothing of interest\n")
    assert main(["explain", str(log)]) == EXIT_USAGE
    assert str(log) in capsys.readouterr().err


GOLDEN = Path(__file__).parent / "golden_crash.txt"


def test_the_page() -> None:
    crash = crash_of(events_in([CRASHES / "gloo_killed.log"]))
    assert crash is not None
    assert "\n".join(crash_page.text(crash)) + "\n" == GOLDEN.read_text("utf-8")


@needs_corpus
@pytest.mark.parametrize(
    ("name", "code", "rank"),
    [
        ("other_logs/i15_torch_watchdog_llamafactory.txt", "collective-timeout", 0),
        ("other_logs/i22_h100_crash_family.txt", "bad-address", None),
        ("other_logs/i24_a100_2node_hang.txt", "hung-at-start", None),
        ("other_logs/i26_ib_error12.txt", "ib-retry-exceeded", None),
        ("other_logs/r19_polaris_resnet_with_aws.log", "all-ranks-inside", None),
        ("other_logs/r24_sophia_allreduce_1.dat", "system-call-failed", 7),
        ("nccl_logs/49_rtx3090_2gpu_crash_unhandled_cuda.txt", "cuda-failed", None),
    ],
)
def test_crashes_of_others(name: str, code: str, rank: int | None) -> None:
    folder, _, file = name.partition("/")
    crash = crash_of(events_of(real(folder, file).read_text("utf-8", "replace")), failed=True)
    assert crash is not None
    assert (crash.first.code, crash.first.rank) == (code, rank)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(CRASHES.glob("*.log"))), min_size=1, max_size=3), st.data())
def test_damaged_logs_never_raise(paths: list[Path], data: st.DataObject) -> None:
    text = "\n".join(path.read_text("utf-8") for path in paths)
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(text)))
        text = (
            text[:place]
            + data.draw(st.sampled_from(["", "\n", "99999999999", "x" * 40, "[rank1]: "]))
            + text[place + 9 :]
        )
    crash = crash_of(events_of(text), failed=True)
    if crash is not None:
        assert list(crash_page.text(crash)) and list(crash_page.markdown(crash))
        json.dumps(crash.to_dict())


@pytest.mark.mpi
def test_a_rank_killed_under_mpirun_is_found_live() -> None:
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    rank = "os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK'))"
    # A rank that ends while mpirun still starts it may end mpirun by SIGPIPE, without a message.
    program = f"import os, time; time.sleep(1); {rank} == '1' and os.kill(os.getpid(), 9); time.sleep(30)"
    command = [mpirun, "-n", "2", sys.executable, "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert answer(crash_of(events_of(done.stdout + done.stderr)))[0] == "killed"


@pytest.mark.torch
def test_an_exception_under_torchrun_is_found_live(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('bad batch')\nimport time\ntime.sleep(30)\n"
    )
    options = ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--tee", "3"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    crash = crash_of(events_of(done.stdout + done.stderr))
    assert answer(crash)[:2] == ("python-error", 1)


def test_one_dump_alone_says_what_it_shows_and_what_is_missing() -> None:
    path = CRASHES / "absent_rank0.json"
    shown = without_failure([EventLog(imports.Log(imports.Source(str(path), path)), file_events(path, str(path)))], ())
    assert shown is not None and shown.code == CrashCode.NO_FAILURE
    assert shown.facts["sources"] == [str(path)] and len(shown.facts["shown"]) >= 1
    assert main(["explain", str(path)]) == EXIT_USAGE


def test_what_nccl_could_not_use_is_shown_without_a_failure() -> None:
    log = EventLog(imports.Log(imports.Source("nccl.log", None)), ())
    hints = (Hint("no_rdma", "GPU Direct RDMA Disabled", 5), Hint("network", "IB", 3))
    shown = without_failure([log], hints)
    assert shown is not None and shown.facts["shown"] == ["GPU Direct RDMA Disabled (line 5)"]
    assert without_failure([log], hints[1:]) is None


def test_inspector_files_belong_to_the_job_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though their figures are read, they are no runs of their own that failed or went well."""
    timed_out = (
        "[rank{0}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=13, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds"
    )
    (tmp_path / "job.log").write_text("\n".join(map(timed_out.format, (0, 1, 3))) + "\n")
    for rank in range(4):
        record = json.loads(inspector(rank, 9 if rank == 2 else 12))
        record["coll_perf"] |= {"coll_msg_size_bytes": 4096, "coll_exec_time_us": 20}
        (tmp_path / f"host{rank}-pid{rank}.log").write_text(json.dumps(record) + "\n")
    assert main(["explain", str(tmp_path), "--format", "json"]) == EXIT_VERDICT
    document = json.loads(capsys.readouterr().out)
    (crash,) = document["crashes"]
    assert len(document["pages"]) == 4 and crash["absent_ranks"] == [2]
