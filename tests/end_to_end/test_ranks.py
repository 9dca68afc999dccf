"""Patterns started by hand: mpirun, torchrun, one rank, and failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command_line
from bench.core import plugins
from bench.core.ends import EndCode
from bench.rank import main
from bench.store import heartbeat, jsonl
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
CORRUPTING = str(Path(__file__).parent / "corrupting.py")
QUICK = ("--max-seconds", "20ms")
IN_ONE_LAUNCH = ("allgather", "alltoall", "barrier", "reducescatter", "sendrecv")
# MPI neither computes nor copies; a replay needs a plan
OF_DEVICES = ("gpu_baseline", "host_device", "local_copy", "overlap", "peer_copy")
OF_TORCH_OR_FILES = ("checkpoint", "feed", "replay", "step")

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]


@pytest.mark.slow
@pytest.mark.mpi
def test_sixteen_ranks_print_one_json_document_with_every_size_verified(run: Run, mpirun: Start) -> None:
    ran = run(*mpirun(16), "-m", "bench.allreduce", "--sizes", "8,512,32K", "--format", "json", *QUICK)
    document = json.loads(ran.out)
    assert ran.code == 0, ran.err
    assert {row["num_ranks"] for row in document["summaries"]} == {16}
    assert {row["requested_bytes"] for row in document["summaries"]} == {8, 512, 32768}
    assert all(row["verified"] is True and row["num_wrong"] == 0 for row in document["summaries"])
    assert "bench: error" not in ran.err


@pytest.mark.mpi
def test_the_table_comes_from_rank_0_and_begins_with_the_choice_of_transport(run: Run, mpirun: Start) -> None:
    ran = run(*mpirun(2), "-m", "bench.broadcast", "--sizes", "8,4K", *QUICK)
    first = ran.out.splitlines()[0]
    assert first.startswith("# transport mpi (") and "mpirun" in first
    assert [line.split()[0] for line in ran.out.splitlines() if not line.startswith("#")] == ["8", "4096"]


PATTERNS = """
import gc, json, os, sys
from bench.core import plugins
from bench.core.case_argv import from_argv
from bench.core.transport import Options
from bench.rank import measure, session
from bench.rank.placement import place
me = place(os.environ)
transport = plugins.load("transport", "mpi").TRANSPORT(me, Options(timeout_s=30.0))
hosts = ("here",) * me.num_ranks
found = {}
gc.freeze()  # each row collects all garbage
for name in sys.argv[1:]:
    case = from_argv([name, "--transport", "mpi", "--cache", "hot", "--sizes", "64,4K", "-n", "3", "-w", "1"])
    pattern, world = plugins.load("pattern", name).PATTERN, session.world_of(hosts)
    setting = measure.Setting(case, pattern, transport, world, hosts, 1 << 20, 1 << 30, lambda doing: None)
    found[name] = [record.verified for records in measure.Measurer(setting).rows() for record in records]
if me.rank == 0:
    print("FOUND" + json.dumps(found))
transport.close()
"""


@pytest.mark.mpi
def test_collectives_and_messages_are_verified_over_mpi(run: Run, mpirun: Start, tmp_path: Path) -> None:
    """In one launch, into one buffer set; each pattern alone, as users start it, is below."""
    script = tmp_path / "patterns.py"
    script.write_text(PATTERNS, encoding="utf-8")
    ran = run(*mpirun(4), str(script), *IN_ONE_LAUNCH)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out.partition("FOUND")[2])
    assert list(found) == list(IN_ONE_LAUNCH)
    for name, verified in found.items():
        assert set(verified) == {True}, name


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(
    "name", [name for name in plugins.names("pattern") if name not in OF_DEVICES and name not in OF_TORCH_OR_FILES]
)
def test_every_pattern_is_verified_over_mpi(run: Run, mpirun: Start, name: str) -> None:
    ran = run(*mpirun(4), "-m", f"bench.{name}", "--sizes", "64,4K", "--format", "json", "-n", "3", "-w", "1")
    document = json.loads(ran.out)
    assert (ran.code, document["failures"], document["skipped"]) == (0, [], []), ran.err
    assert document["summaries"] and all(row["verified"] for row in document["summaries"])


@pytest.mark.mpi
def test_settings_that_change_results_are_recorded_and_can_be_chosen(run: Run, mpirun: Start) -> None:
    chosen = ("--thread-level", "multiple", "--sync", "barrier", "--alignment", "4096", "--bind", "none")
    ran = run(*mpirun(2), "-m", "bench.allreduce", "--sizes", "8", "--format", "json", *chosen, *QUICK)
    (header,) = json.loads(ran.out)["headers"].values()
    assert ran.code == 0, ran.err
    assert header["facts"]["mpi_thread_level"] == "multiple" and header["facts"]["buffer_alignment_bytes"] == "4096"
    assert (header["settings"]["sync"], header["settings"]["binding"]) == ("barrier", "as launched")
    assert header["calibration"]["software_s"] > 0 and header["calibration"]["sync_skew_p50_s"] > 0
    assert "timing_clock" not in header["facts"]


@pytest.mark.mpi
def test_times_like_osus_are_read_by_the_clock_of_mpi(run: Run, mpirun: Start) -> None:
    ran = run(*mpirun(2), "-m", "bench.allreduce", "--sizes", "8", "--like", "osu", "--format", "json", "-n", "50")
    (header,) = json.loads(ran.out)["headers"].values()
    assert ran.code == 0, ran.err
    assert header["facts"]["timing_clock"] == "MPI_Wtime"
    (row,) = json.loads(ran.out)["summaries"]
    assert 0 < row["min_s"] < 1e-2


@pytest.mark.mpi
def test_without_a_compiler_python_measures_the_times(run: Run, mpirun: Start, tmp_path: Path) -> None:
    env = {"CC": "false", "XDG_CACHE_HOME": str(tmp_path)}
    words = (*mpirun(2), "-m", "bench.allreduce", "--sizes", "8", "--format", "json", *QUICK)
    ran = run(*words, env=env)
    document = json.loads(ran.out)
    assert {row["loop"] for row in document["summaries"]} == {"python"}
    one = (*mpirun(1), *words[len(mpirun(2)) :])
    refused = run(*one, "--loop", "compiled", env=env)
    assert refused.code == 3 and "--loop compiled" in refused.err and "false" in refused.err
    refused = run(*one, "--like", "osu", env=env)
    assert refused.code == 3 and "--timer library" in refused.err and "false" in refused.err


@pytest.mark.mpi
@pytest.mark.parametrize(
    "sync", ["none", *(pytest.param(s, marks=pytest.mark.slow) for s in ("barrier", "double-barrier"))]
)
def test_the_compiled_loop_times_every_call(run: Run, mpirun: Start, sync: str) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    ran = run(
        *mpirun(2),
        "-m",
        "bench.reduce",
        "--in-place",
        "1",
        "--sizes",
        "4K",
        "-n",
        "7",
        "--sync",
        sync,
        "--loop",
        "compiled",
        "--format",
        "json",
    )
    rows = json.loads(ran.out)["summaries"]
    assert {(row["loop"], row["num_samples"], row["verified"]) for row in rows} == {("compiled", 7, True)}


@pytest.mark.mpi
def test_like_nccl_tests_shows_the_mean_over_ranks(
    run: Run, mpirun: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "like.jsonl"
    words = ("-m", "bench.allgather", "--sizes", "64K", "--like", "nccl-tests", *QUICK)
    ran = run(*mpirun(2), *words, "--format", "json", "--records", str(records))
    (row,) = json.loads(ran.out)["summaries"]
    (record,) = jsonl.read(records).attempts[0].records
    assert (row["mode"], row["cache"]) == ("pipelined", "hot") and record.samples is not None
    mean_s = statistics.fmean(second for own in record.samples.by_rank for second in own)
    assert row["compat"]["nccl_tests_s"] == pytest.approx(mean_s)
    assert row["compat"]["nccl_tests_busbw_bytes_per_s"] == pytest.approx(32768 / row["compat"]["nccl_tests_s"])
    assert command_line.main(["report", str(records)]) == 0
    assert holds(capsys.readouterr().out, "nccl-tests:", "mean", "(-a 1)")


@pytest.mark.torch
def test_torchrun_starts_gloo_whose_allreduce_is_in_place(run: Run, torchrun: Start) -> None:
    ran = run(*torchrun(2), "-m", "bench.allreduce", "--sizes", "8,64K", "--format", "json", *QUICK)
    rows = json.loads(ran.out)["summaries"]
    assert ran.code == 0, ran.err
    assert {(row["transport"], row["num_ranks"], row["in_place"], row["verified"]) for row in rows} == {
        ("gloo", 2, True, True)
    }


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (("--topology", "pairs"), {"0-1", "0-2", "1-2"}),
        (("--topology", "groups of 1", "--order", "0,2,1"), set()),
    ],
)
def test_idle_or_reordered_ranks_decide_like_the_others(
    run: Run, torchrun: Start, words: tuple[str, ...], groups: set[str]
) -> None:
    always = ("-m", "bench.allreduce", "--sizes", "64", "-n", "3", "--format", "json")
    document = json.loads(run(*torchrun(3), *always, *words).out)
    if groups:
        assert {row["group"] for row in document["summaries"]} == groups
    assert len(document["summaries"]) + len(document["skipped"]) == 6


@pytest.mark.mpi
@pytest.mark.torch
def test_gloo_under_mpirun_on_one_host_needs_no_address(run: Run, mpirun: Start, torchrun: Start) -> None:
    ran = run(*mpirun(2), "-m", "bench.alltoall", "--transport", "gloo", "--sizes", "1K", "-n", "3", "--format", "json")
    assert ran.code == 0, ran.err
    assert {row["transport"] for row in json.loads(ran.out)["summaries"]} == {"gloo"}


@pytest.mark.mpi
def test_one_rank_has_a_remark_that_no_bytes_cross_a_link(run: Run, mpirun: Start) -> None:
    words = ("--transport", "mpi", "--sizes", "8", "--format", "json", *QUICK)
    ran = run(sys.executable, "-m", "bench.allreduce", *words)
    assert ran.code == 0, ran.err
    (header,) = json.loads(ran.out)["headers"].values()
    assert "one-rank" in [remark["code"] for remark in header["remarks"]]
    assert run(sys.executable, "-m", "bench.pingpong", "--transport", "mpi", "--sizes", "8").code == 3


@pytest.mark.mpi
@pytest.mark.parametrize("form", ["table", pytest.param("json", marks=pytest.mark.slow)])
def test_a_byte_changed_after_the_last_timed_call_over_mpi_ends_with_4(run: Run, mpirun: Start, form: str) -> None:
    sound = ("allreduce", "--sizes", "4K", "-n", "5", "--format", form)
    assert run(*mpirun(2), CORRUPTING, "99", *sound).code == 0, "there is no rank 99: nothing is changed"
    ran = run(*mpirun(2), CORRUPTING, "1", *sound)
    assert ran.code == 4
    assert "rank 1, element 512" in ran.err
    if form == "json":
        rows = json.loads(ran.out)["summaries"]
        assert all(row["verified"] is False and row["busbw_bytes_per_s"] is None for row in rows)
        first = rows[0]["first_wrong"]
        assert (first["code"], first["facts"]["rank"], first["facts"]["element"]) == ("element", 1, 512)
    else:
        assert "INVALID" in ran.out


@pytest.mark.mpi
def test_a_rank_whose_send_buffer_is_wrong_is_named(run: Run, mpirun: Start, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    beats.mkdir()
    lying = (CORRUPTING, "-1", "allreduce", "--sizes", "4K", "-n", "5", "--heartbeats", str(beats))
    ran = run(*mpirun(2), *lying)
    assert ran.code == 4
    (words,) = heartbeat.last_words(ran.err)
    assert (words.end.code, words.rank, bool(words.host)) == ("rows-failed", 1, True)


@pytest.mark.slow
@pytest.mark.torch
def test_a_byte_changed_after_the_last_timed_call_over_gloo_is_found(run: Run, torchrun: Start) -> None:
    ran = run(*torchrun(4), CORRUPTING, "1", "allgather", "--sizes", "4K", "-n", "3", "--format", "json")
    assert ran.code != 0
    assert {row["verified"] for row in json.loads(ran.out)["summaries"]} == {False}
    assert "exitcode  : 4" in ran.err  # torchrun's own code is 1; it prints the rank's


@pytest.mark.mpi
def test_ranks_that_do_not_see_each_other_are_refused(run: Run, mpirun: Start) -> None:
    alone = {"PMI_SIZE": "3", "PMI_RANK": "0", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "3"}
    ran = run(sys.executable, "-m", "bench.allreduce", "--transport", "mpi", "--format", "json", env=alone)
    assert ran.code == 3
    assert json.loads(ran.out)["failures"][0]["what"] in ran.err and "mpirun" in ran.err


@pytest.mark.mpi
def test_ranks_with_different_options_are_refused(run: Run, mpirun: Start) -> None:
    program, *_ = mpirun(1)
    one = ("-n", "1", sys.executable, "-m", "bench.allreduce", "--format", "json", "--sizes")
    ran = run(program, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", *one, "8", ":", *one, "16")
    assert ran.code == 3
    [failure] = json.loads(ran.out)["failures"]
    assert (failure["code"], failure["facts"]) == ("other-case", {"rank": 1})


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--topology", "torus"), "'torus'"),
        (("--bogus",), "--bogus"),
        (("--output", "/nowhere/x"), "--output /nowhere/x"),
    ],
)
def test_a_wrong_option_is_one_error_from_one_rank(run: Run, mpirun: Start, words: tuple[str, ...], named: str) -> None:
    ran = run(*mpirun(2), "-m", "bench.allreduce", *words)
    assert ran.code == 2
    assert ran.err.count("bench: error: ") == 1 and named in ran.err
    assert ran.out == "" or "BAD TERMINATION" in ran.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--sizes", "-1"), "'-1'"),
        (("--sizes", "8Q"), "'8Q'"),
        (("--sizes", "1G:1M"), "1G"),
        (("--transport", "mpl"), "'mpi'"),
        (("--dtype", "float33"), "'float33'"),
    ],
)
def test_every_wrong_option_is_one_error_of_a_rank(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: a rank finds such an error before it meets the others."""
    with pytest.raises(SystemExit) as ended:
        main.run_pattern("allreduce", words)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.err.count("bench: error: ") == 1 and named in printed.err and not printed.out


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--topology", "groups of 2"), "groups of 2"),
        (("--output", "/dev/full", "--format", "csv"), "--output /dev/full"),
    ],
)
def test_an_error_after_the_start_ends_all_ranks_and_is_printed_once(
    run: Run, mpirun: Start, words: tuple[str, ...], named: str
) -> None:
    ran = run(*mpirun(3), "-m", "bench.allreduce", "--sizes", "8", "-n", "2", *words)
    assert ran.code == 2
    assert ran.err.count("bench: error: ") == 1 and named in ran.err


RAISING = """
import sys
from bench.core.transport import Transport
from bench.rank import main, sampling
take = sampling.take
def failing(case, transport, row, *rest):
    if transport.place.rank == 1 and row.shape.payload_bytes > 64:
        raise {what}
    return take(case, transport, row, *rest)
sampling.take = failing
main.run_pattern("allreduce", sys.argv[1:])
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    "what", ["KeyError('lost')", "SystemExit(9)", pytest.param("MemoryError('no room')", marks=pytest.mark.slow)]
)
def test_a_rank_that_raises_ends_the_job_and_what_was_measured_is_kept(
    run: Run, mpirun: Start, tmp_path: Path, what: str
) -> None:
    script = tmp_path / "raising.py"
    script.write_text(RAISING.format(what=what), encoding="utf-8")
    records = tmp_path / "kept.jsonl"
    ran = run(*mpirun(3), str(script), "--sizes", "64,1K", "-n", "5", "--records", str(records))
    assert ran.code != 0
    if "SystemExit" not in what:
        assert "error: rank 1 " in ran.err and what.split("(")[0] in ran.err
    [attempt] = jsonl.read(records).attempts
    assert {record.payload_bytes for record in attempt.records} == {64}


def _started(words: tuple[str, ...], tmp_path: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _beat_of(folder: Path, rank: int) -> heartbeat.Heartbeat:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for beat in heartbeat.read_all(folder):
            if beat.rank == rank and "samples" in beat.doing:
                return beat
        time.sleep(0.05)
    raise AssertionError(f"rank {rank} never took samples")


@pytest.mark.mpi
def test_a_rank_that_is_killed_ends_the_job(mpirun: Start, tmp_path: Path) -> None:
    (tmp_path / "beats").mkdir()
    words = ("-m", "bench.allreduce", "--sizes", "1M", "-n", "1000000", "--heartbeats", str(tmp_path / "beats"))
    process = _started((*mpirun(2), *words), tmp_path)
    try:
        os.kill(_beat_of(tmp_path / "beats", 1).process, signal.SIGKILL)
        process.communicate(timeout=280)
        assert process.returncode != 0
    finally:
        _end(process)


@pytest.mark.mpi
def test_a_rank_that_stops_is_noticed_by_the_others_within_the_deadline(mpirun: Start, tmp_path: Path) -> None:
    (tmp_path / "beats").mkdir()
    words = ("-m", "bench.allreduce", "--sizes", "1M", "-n", "1000000", "--deadline", "10")
    process = _started((*mpirun(2), *words, "--heartbeats", str(tmp_path / "beats")), tmp_path)
    stopped = None
    try:
        stopped = _beat_of(tmp_path / "beats", 1).process
        os.kill(stopped, signal.SIGSTOP)
        _, err = process.communicate(timeout=280)
        assert process.returncode != 0
        ends = [words.end for words in heartbeat.last_words(err)]
        assert EndCode.NO_PROGRESS in [end.code for end in ends]
        assert any("allreduce 1M" in end.facts.get("doing", "") for end in ends)
    finally:
        if stopped is not None and _is_alive(stopped):
            os.kill(stopped, signal.SIGKILL)
        _end(process)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.mpi
def test_a_ladder_ends_by_its_budget_and_says_which_rounds_it_left_out(run: Run, mpirun: Start) -> None:
    # The budget is over before the first round on any machine; tests/rank/test_ladder.py ends it between rounds.
    words = ("--schedule", "ladder", "--mode", "pipelined", "--sizes", "64K", "--budget", "0.001us", "--format", "json")
    ran = run(*mpirun(4), "-m", "bench.pairs", *words)
    document = json.loads(ran.out)
    assert (ran.code, document["summaries"]) == (3, []), ran.err
    assert len(document["skipped"]) == 2 * 3 * 2, "two pairs at a time, three matchings, both ways"
    assert {(row["code"], row["facts"]["budget_s"]) for row in document["skipped"]} == {("budget", 1e-9)}
