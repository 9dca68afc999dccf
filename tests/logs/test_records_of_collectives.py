"""Torch's flight recorder and NCCL's Inspector give a rank's collectives; lost records are counted."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from bench.core.step_trace import RankTrace
from bench.job.matching import job_of
from bench.logs import step_traces
from bench.logs.trace_messages import TraceCode
from tests.logs import corpus

US = 1_700_000_000_000_000


def _read(*paths: Path) -> list[RankTrace]:
    traces, remarks = step_traces.read(paths)
    assert remarks == []
    return traces


def _codes(trace: RankTrace) -> list[str]:
    return [remark.code for remark in trace.remarks]


def _entry(seq: int, name: str = "nccl:all_reduce", elements: int = 1000, **more: Any) -> dict[str, Any]:
    """Return a record as torch 2.13 writes it."""
    return {
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "record_id": seq - 1,
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": name,
        "input_sizes": [[elements], [2, 3]],
        "input_dtypes": ["Float", "BFloat16"],
        "output_sizes": [[elements]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_created_ns": US * 1000 + seq * 1_000_000,
        "time_discovered_completed_ns": US * 1000 + seq * 1_000_000 + 500_000_000,
        **more,
    }


def _dump(*entries: dict[str, Any], ranks: str = "[0, 1]") -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "ranks": ranks}}, "entries": [*entries]}


def _json(path: Path, dump: Any) -> Path:
    path.write_text(json.dumps(dump, sort_keys=True))  # as torch does
    return path


def _pickled(path: Path, dump: Any) -> Path:
    path.write_bytes(pickle.dumps(dump, protocol=2))
    return path


@pytest.mark.parametrize("write", [_json, _pickled])
def test_a_dump_has_groups_bytes_order_and_calls(tmp_path: Path, write: Any) -> None:
    entries = [_entry(seq, duration_ms=2.5) for seq in (4, 5, 6)]
    [trace] = _read(write(tmp_path / "nccl_trace_rank_1", _dump(*entries)))
    assert (trace.rank, trace.world_size, trace.backend, trace.num_events) == (1, 2, "nccl", 3)
    assert trace.epoch_s == pytest.approx(US / 1e6 + 0.004)
    found = trace.collectives[1]
    assert (found.op, found.group, found.members, found.seq, found.place) == ("allreduce", "0", (0, 1), 5, 1)
    assert (found.num_bytes, found.dtype, found.timed) == (1000 * 4 + 6 * 2, "float", False)
    assert (found.called_s, found.duration_s) == pytest.approx((0.001, 0.0025))
    assert _codes(trace) == [TraceCode.ONLY_DURATIONS]


def test_a_dump_without_timing_says_how_to_get_it(tmp_path: Path) -> None:
    [trace] = _read(_json(tmp_path / "rank_0", _dump(_entry(1), _entry(2))))
    assert _codes(trace) == [TraceCode.NO_DURATIONS]
    assert "TORCH_NCCL_ENABLE_TIMING" in trace.remarks[0].facts["remedy"]
    of_gloo = [_entry(seq, name="gloo:barrier", time_discovered_completed_ns=0) for seq in (1, 2)]
    [trace] = _read(_json(tmp_path / "gloo_rank_0", _dump(*of_gloo)))
    assert (trace.backend, trace.on_device, trace.remarks[0].facts["remedy"]) == ("gloo", False, None)
    assert [(one.op, one.num_bytes) for one in trace.collectives] == [("barrier", None)] * 2


def test_two_dumps_are_matched_by_sequence_numbers(tmp_path: Path) -> None:
    first = _json(tmp_path / "rank_0", _dump(*(_entry(seq, elements=seq) for seq in range(1, 9))))
    second = _json(tmp_path / "rank_1", _dump(*(_entry(seq, elements=seq) for seq in range(5, 12))))
    job = job_of(_read(first, second))
    assert [one.num_bytes for one in job.collectives] == [4 * seq + 12 for seq in range(5, 9)]


def test_gaps_in_the_numbers_are_counted(tmp_path: Path) -> None:
    [trace] = _read(_json(tmp_path / "rank_0", _dump(*(_entry(seq) for seq in (1, 2, 5, 8)))))
    [remark] = [remark for remark in trace.remarks if remark.code == TraceCode.LOST_RECORDS]
    assert (remark.facts["num"], remark.facts["num_all"], remark.facts["share"]) == (4, 8, 0.5)


def test_messages_have_the_rank_of_their_peer(tmp_path: Path) -> None:
    message = {"is_p2p": True, "collective_seq_id": 0}
    entries = [
        _entry(1, "nccl:send 0->1", p2p_seq_id=1, **message),
        _entry(2, "nccl:recv 0<-1", p2p_seq_id=2, **message),
    ]
    [trace] = _read(_json(tmp_path / "rank_4", _dump(*entries, ranks="[4, 7]")))
    assert [(one.op, one.peer) for one in trace.collectives] == [("send", 7), ("recv", 7)]


def test_a_dump_of_an_older_version(tmp_path: Path) -> None:
    entry = {"pg_id": 0, "seq_id": 3, "profiling_name": "nccl:all_gather", "input_sizes": ((2, 3),)}
    [trace] = _read(_pickled(tmp_path / "dump_2", {"version": "1.0", "entries": [entry, "rubbish", {}]}))
    assert trace.rank == 2
    assert [(one.op, one.seq, one.group, one.num_bytes) for one in trace.collectives] == [("allgather", 3, "0", None)]


class _Attack:
    """Runs a command when it is unpickled in the usual way."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._marker}",)


def test_a_pickle_that_wants_to_run_code_is_one_remark_and_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    path = _pickled(tmp_path / "nccl_trace_rank_0", _dump(_entry(1)) | {"pg_status": _Attack(marker)})
    traces, remarks = step_traces.read([path])
    assert (traces, [remark.code for remark in remarks]) == ([], [TraceCode.PICKLE_NOT_PLAIN])
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists()  # so the attack would have worked


def test_a_cut_dump_keeps_what_is_whole_and_a_cut_pickle_is_one_remark(tmp_path: Path) -> None:
    whole = _json(tmp_path / "rank_0", {"entries": [_entry(1), _entry(2)]}).read_bytes()
    (tmp_path / "cut_rank_0").write_bytes(whole[:-60])
    [trace] = _read(tmp_path / "cut_rank_0")
    assert (len(trace.collectives), _codes(trace)[0]) == (1, TraceCode.CUT)
    data = _pickled(tmp_path / "rank_1", _dump(_entry(1))).read_bytes()
    (tmp_path / "cut_rank_1").write_bytes(data[:-9])
    traces, remarks = step_traces.read([tmp_path / "cut_rank_1"])
    assert (traces, [remark.code for remark in remarks]) == ([], [TraceCode.PICKLE_NOT_PLAIN])


def test_a_profiler_s_trace_with_the_version_of_nccl_is_no_dump(tmp_path: Path) -> None:
    trace = {"schemaVersion": 1, "distributedInfo": {"nccl_version": "2.20.5", "pg_config": []}, "traceEvents": []}
    (tmp_path / "t.json").write_text(json.dumps(trace))
    [found] = _read(tmp_path / "t.json")
    assert _codes(found)[0] == TraceCode.NO_EVENTS


def _record(
    seq: int,
    *,
    op: str = "AllReduce",
    rank: int = 1,
    size: int = 4096,
    communicator: str = "0xabc",
    num_ranks: int = 4,
    pid: int = 7,
    verbose: bool = False,
) -> dict[str, Any]:
    """Return a record of format v4.0: dumped 9 ms after it began at seq * 10 ms, 2,000 us long."""
    begin = US + seq * 10_000
    perf: dict[str, Any] = {
        "coll": op,
        "coll_sn": seq,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": 2000,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": size / 2e-3 / 1e9,
        "coll_busbw_gbs": 1.0,
    }
    if verbose:
        kernels = [
            {"channel_id": ch, "kernel_start_ts": begin + 50 + ch, "kernel_stop_ts": begin + 2040 + ch} for ch in (0, 1)
        ]
        perf["event_trace_ts"] = {"coll_start_ts": begin, "coll_stop_ts": begin + 5, "kernel_events": kernels}
    return {
        "header": {"id": communicator, "rank": rank, "n_ranks": num_ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": begin + 9000,
            "hostname": "node-a",
            "pid": pid,
        },
        "coll_perf": perf,
    }


def _log(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def test_verbose_records_have_times(tmp_path: Path) -> None:
    records = [_record(seq, verbose=True) for seq in range(5, 9)]
    [trace] = _read(_log(tmp_path / "node-a-pid7.log", *records))
    assert (trace.rank, trace.world_size, trace.host, trace.backend) == (1, 4, "node-a", "nccl")
    assert (trace.epoch_s, trace.facts) == (US / 1e6 + 0.05, {"timing": ["kernel_gpu"]})
    found = trace.collectives[1]
    assert (found.op, found.seq, found.num_bytes, found.group_size, found.timed) == ("allreduce", 6, 4096, 4, True)
    assert (found.start_s, found.end_s) == pytest.approx((0.01005, 0.012041))
    assert found.launch_s == pytest.approx(0.01)
    assert _codes(trace) == []


def test_records_without_times_have_durations(tmp_path: Path) -> None:
    [trace] = _read(_log(tmp_path / "a.log", _record(1), _record(2)))
    assert [(one.timed, one.duration_s) for one in trace.collectives] == [(False, 0.002)] * 2
    assert _codes(trace) == [TraceCode.ONLY_DURATIONS]


def test_lost_records_are_counted_by_communicator_and_operation(tmp_path: Path) -> None:
    """NCCL numbers the operations of a communicator apart: 1, 2, 3 of one and 1, 2, 3 of another are no repetition."""
    kept = [_record(seq) for seq in range(1, 21, 2)] + [_record(seq, op="AllGather") for seq in range(1, 11)]
    [trace] = _read(_log(tmp_path / "a.log", *kept))
    [remark] = [remark for remark in trace.remarks if remark.code == TraceCode.LOST_RECORDS]
    assert (remark.facts["num"], remark.facts["num_all"]) == (9, 29)
    assert {one.group for one in trace.collectives} == {"0xabc AllReduce", "0xabc AllGather"}
    assert {one.num_bytes for one in trace.collectives if one.op == "allgather"} == {4096}  # as its rate says


def test_a_replayed_graph_repeats_its_numbers(tmp_path: Path) -> None:
    [trace] = _read(_log(tmp_path / "a.log", _record(3), _record(3), _record(7)))
    assert [(one.seq, one.place) for one in trace.collectives] == [(None, 0), (None, 1), (None, 2)]
    assert _codes(trace) == [TraceCode.ONLY_DURATIONS]


def test_two_ranks_match_in_spite_of_lost_records(tmp_path: Path) -> None:
    first = _log(tmp_path / "a.log", *(_record(seq, rank=0, num_ranks=2, pid=1, verbose=True) for seq in (1, 2, 4, 5)))
    second = _log(tmp_path / "b.log", *(_record(seq, rank=1, num_ranks=2, pid=2, verbose=True) for seq in (2, 3, 4)))
    job = job_of(_read(first, second))
    assert [{part.seq for part in one.parts.values()} for one in job.collectives] == [{2}, {4}]


def test_ranks_are_processes_and_the_largest_communicator_numbers_them(tmp_path: Path) -> None:
    pairs = [_record(1, rank=1, num_ranks=2, communicator="0x1", pid=8), _record(2, rank=0, num_ranks=2, pid=9)]
    world = [_record(1, rank=rank, num_ranks=8, communicator="0xf", pid=pid) for rank, pid in ((5, 8), (6, 9))]
    traces = _read(_log(tmp_path / "a.log", *pairs, *world))
    assert [(trace.rank, trace.world_size, len(trace.collectives)) for trace in traces] == [(5, 8, 2), (6, 8, 2)]
    threads = [_record(1, rank=rank) for rank in range(3)]
    assert [trace.rank for trace in _read(_log(tmp_path / "b.log", *threads))] == [0, 1, 2]


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    draw = random.Random(3)
    lines = [json.dumps(_record(seq, verbose=seq % 2 == 0)) for seq in range(1, 30)]
    for case in range(60):
        text = "\n".join(lines[: draw.randrange(1, len(lines))])
        data = bytearray(text.encode())
        for _ in range(case % 7):
            data[draw.randrange(500, len(data))] = draw.randrange(256)
        (tmp_path / "a.log").write_bytes(data[: draw.randrange(400, len(data))])
        traces, remarks = step_traces.read([tmp_path / "a.log"])
        assert len(traces) + len(remarks) >= 1
    (tmp_path / "b.log").write_text('{"header": {"n_ranks": 3}, "coll_perf": {}}')
    traces, remarks = step_traces.read([tmp_path / "b.log"])
    assert (traces, [remark.code for remark in remarks]) == ([], [TraceCode.NO_COLLECTIVES])


@corpus.needs_corpus
def test_the_published_record() -> None:
    [trace] = _read(corpus.real("other_logs", "i47_nccl_inspector.json"))
    [found] = trace.collectives
    assert (trace.rank, trace.world_size, trace.host) == (2, 8, "example-hostname")
    assert (found.op, found.seq, found.num_bytes) == ("allreduce", 1407, 17179869184)
    assert found.duration_s == pytest.approx(0.061974)
