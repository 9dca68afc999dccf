"""How the end of a job is put into words."""

from __future__ import annotations

from pathlib import Path

from bench.controller import execute
from bench.controller.root_cause import FailureEvidence, RootCause
from bench.store import runs
from bench.store.heartbeat import Heartbeat
from tests.controller.test_batch import job

BEATS = tuple(Heartbeat(rank, "h0", 40 + rank, "pairs 4M pipelined: preparing", 100.0) for rank in range(2))


def test_a_job_that_is_only_slow_is_told_what_to_do(tmp_path: Path) -> None:
    end = execute._explain(-15, "no end within 95 s", FailureEvidence(2, BEATS), tmp_path, job("a"))
    assert end is not None
    assert "2 of 2 ranks were in: pairs 4M pipelined: preparing; nothing hung, it is only far slower" in end.what
    silent = execute._explain(-15, "no sign of life for 9 s", FailureEvidence(2, BEATS), tmp_path, job("a"))
    assert silent is not None and "nothing hung" not in silent.what


def test_the_words_of_a_rank_come_before_the_launchers_and_those_before_its_exit_code(tmp_path: Path) -> None:
    log = runs.log_file(tmp_path, "a")
    log.write_text("usage: x\nrun.py: error: unrecognized arguments: --x\n")
    bare = execute._explain(2, None, FailureEvidence(2), tmp_path, job("a"))
    assert bare is not None
    assert "ended with exit code 2, saying 'unrecognized arguments: --x', and no rank said why" in bare.what
    said = execute._explain(
        2, None, FailureEvidence(2, said=("rank 1 could not join the 2 ranks",)), tmp_path, job("a")
    )
    assert said == RootCause(f"rank 1 could not join the 2 ranks; its output is in {log}")
