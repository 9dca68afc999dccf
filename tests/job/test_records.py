"""Records of collectives beside the profiler trace of the same rank: joined if they are of the same calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.core.step_trace import RankTrace, StepSegment
from bench.job.explain import explain
from bench.job.matching import job_of
from bench.job.messages import CauseCode, JobCode
from bench.job.model import TracedJob
from bench.logs import step_traces
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule, Style

SCHEDULE = Schedule(num_ranks=2, num_steps=6, data_us=20, late=(Late(1, StepSegment.BACKWARD, 3000),))
MEMBERS = {"pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}}


def write(folder: Path, style: Style = Style.V2021) -> list[RankTrace]:
    """Write the traces of a job in a style that states no bytes and no groups."""
    synthetic.write(folder, SCHEDULE, Recording(style=style))
    return step_traces.read([folder])[0]


def record(folder: Path, trace: RankTrace, op: str = "all_reduce", elements: int = 1000) -> None:
    """Write the flight recorder of a rank: also calls before and after those in its trace."""
    assert trace.epoch_s is not None
    called = sorted(one.launch_s or one.start_s for one in trace.collectives)
    times = [called[0] - 1.0, *called, called[-1] + 1.0]
    entries = [
        {
            "collective_seq_id": seq,
            "process_group": ["0", "default_pg"],
            "profiling_name": f"nccl:{op}",
            "input_sizes": [[elements]],
            "input_dtypes": ["Float"],
            "time_created_ns": round((trace.epoch_s + time) * 1e9) + 20_000,
        }
        for seq, time in enumerate(times, 1)
    ]
    name = f"nccl_trace_rank_{trace.rank}"
    (folder / name).write_text(json.dumps({**MEMBERS, "entries": entries}, sort_keys=True))


def read(folder: Path) -> tuple[TracedJob, list[str]]:
    """Return the job of a folder, and the codes of its remarks."""
    job = job_of(step_traces.read([folder])[0])
    return job, [remark.code for remark in job.remarks]


def test_a_flight_recorder_gives_its_trace_bytes_and_groups(tmp_path: Path) -> None:
    for trace in write(tmp_path):
        assert not any(one.num_bytes or one.members for one in trace.collectives)
        record(tmp_path, trace)
    job, codes = read(tmp_path)
    assert codes == [JobCode.RECORDS_JOINED]
    assert job.remarks[0].facts == {"num": 2, "num_collectives": 2 * len(job.collectives)}
    assert {(one.num_bytes, one.group_size, one.group) for one in job.collectives} == {(4000, 2, "0")}
    found = explain(job.traces.values())
    assert [(cause.code, cause.ranks) for cause in found.causes] == [(CauseCode.LATE_RANK, (1,))]


def test_one_of_two_recorders_gives_bytes_but_no_group(tmp_path: Path) -> None:
    record(tmp_path, write(tmp_path)[1])
    job, _ = read(tmp_path)
    assert {(one.num_bytes, one.group) for one in job.collectives} == {(4000, "world")}
    assert all(len(one.parts) == 2 for one in job.collectives)


@pytest.mark.parametrize(
    ("op", "style"), [("all_gather", Style.V2021), ("all_reduce", Style.V2025)], ids=["operation", "bytes"]
)
def test_records_of_other_calls_are_left_out_in_one_remark(tmp_path: Path, op: str, style: Style) -> None:
    for trace in write(tmp_path, style):
        record(tmp_path, trace, op)
    without = explain(step_traces.read(sorted(tmp_path.glob("worker*")))[0])
    job, codes = read(tmp_path)
    assert codes == [JobCode.RECORDS_LEFT_OUT] and job.remarks[0].facts["num"] == 2
    assert [cause.code for cause in explain(job.traces.values()).causes] == [cause.code for cause in without.causes]


def test_a_rank_that_has_only_records_is_missing(tmp_path: Path) -> None:
    trace = write(tmp_path)[1]
    record(tmp_path, trace)
    (tmp_path / "worker1.pt.trace.json").unlink()
    job, codes = read(tmp_path)
    assert JobCode.RECORDS_LEFT_OUT in codes and [*job.traces] == [0] and job.num_steps == SCHEDULE.num_steps


def test_what_many_files_lack_is_said_once(tmp_path: Path) -> None:
    for trace in write(tmp_path):
        record(tmp_path, trace)
    for path in tmp_path.glob("worker*"):
        path.unlink()
    job, codes = read(tmp_path)
    assert len(codes) == len(set(codes))
    [untimed] = [remark for remark in job.remarks if "other_sources" in remark.facts]
    assert len(untimed.facts["other_sources"]) == 1
