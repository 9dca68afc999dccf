"""Chakra execution traces of all forms: what they state is read, what they lack is remarked, damage is one remark."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bench.core.step_trace import RankTrace
from bench.job.matching import job_of
from bench.logs import step_traces
from bench.logs.trace_messages import TraceCode
from tests.logs import corpus


def _read(path: Path) -> list[RankTrace]:
    traces, remarks = step_traces.read([path])
    assert remarks == []
    return traces


def _codes(trace: RankTrace) -> list[str]:
    return [remark.code for remark in trace.remarks]


def _tensor(elements: int, width: int = 4) -> list[Any]:
    return [1, 2, 0, elements, width, "cuda:0"]


def _comms(
    number: int, op: str, seq: Any, group: Any, rank: int, elements: int, out: int, *more: Any
) -> dict[str, Any]:
    inputs = [[_tensor(elements)], seq, group, rank, op, [], [], *more]
    return {
        "id": number,
        "name": "record_param_comms",
        "ctrl_deps": number - 1,
        "inputs": {"values": inputs, "shapes": [], "types": []},
        "outputs": {"values": [[_tensor(out)]], "shapes": [], "types": []},
    }


def _node(number: int, name: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "ctrl_deps": number - 1, "inputs": {"values": []}, **more}


def _torch(path: Path, nodes: list[dict[str, Any]], schema: str = "1.0.2-chakra.0.0.4") -> Path:
    path.write_text(json.dumps({"schema": schema, "pid": 1, "nodes": nodes, "finish_ts": 5}))
    return path


def _init(number: int, *groups: dict[str, Any]) -> dict[str, Any]:
    return {"id": number, "name": "## process_group:init ##", "inputs": {"values": [json.dumps(groups)]}}


def _varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Encode fields as protobuf does: numbers as varints, the rest with its length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def _attribute(name: str, value: int | str, field: int = 9) -> tuple[int, bytes]:
    return 10, _message((1, name), (29 if isinstance(value, str) else field, value))


def _protobuf(path: Path, *nodes: bytes) -> Path:
    messages = [_message((1, "0.0.4")), *nodes]
    path.write_bytes(b"".join(_varint(len(message)) + message for message in messages))
    return path


def _kernels(start: int = 0) -> list[bytes]:
    """Return a kernel of 300 us and an allreduce of 100 us; start 0: not stated."""
    times = [((6, start),) if start else (), ((6, start + 500),) if start else ()]
    host = _message((1, 1), (2, "aten::mm"), (3, 4), (7, 50), _attribute("is_cpu_op", 1, field=27))
    own = (_attribute("is_cpu_op", 0, field=27), _attribute("stream", 7))
    work = _message((1, 2), (2, "sm90_gemm"), (3, 4), (7, 300), *times[0], *own)
    of_group = (_attribute("comm_type", 0), _attribute("comm_size", 4096), _attribute("pg_name", "dp"))
    exchange = _message((1, 3), (2, "ncclDevKernel_AllReduce"), (3, 7), (7, 100), *times[1], *own, *of_group)
    return [host, work, exchange]


def test_a_trace_of_torch_states_groups_bytes_and_order_but_no_times(tmp_path: Path) -> None:
    nodes = [
        _init(2, {"pg_name": "0", "backend_id": 82149104, "ranks": [], "group_size": 8}),
        _comms(12, "allreduce", 8, 82149104, 5, 100, 100, 8),
        _comms(6, "all_gather", 7, 82149104, 5, 10, 80, 8),
        _comms(20, "wait", 8, 82149104, 5, 1, 1, 8),
        _comms(25, "broadcast", 9, 82149104, 0, 10, 10, 8),  # from rank 0
        _node(30, "aten::mm"),
    ]
    [trace] = _read(_torch(tmp_path / "et.json", nodes))
    assert (trace.rank, trace.world_size, trace.num_events) == (5, 8, 6)
    first, second, _ = trace.collectives
    assert (first.op, first.seq, first.group, first.num_bytes, first.group_size) == ("allgather", 7, "0", 320, 8)
    assert (second.op, second.seq, second.place, second.num_bytes) == ("allreduce", 8, 1, 400)
    assert not first.timed and first.duration_s is None
    assert (trace.steps, len(trace.compute), trace.on_device) == ((), 0, True)
    assert _codes(trace) == [TraceCode.NO_TIMES]


def test_lists_for_sequence_and_group_of_later_versions(tmp_path: Path) -> None:
    nodes = [
        _init(
            2, {"pg_name": "tp", "ranks": [2, 3], "group_size": 2}, {"pg_name": "world", "ranks": [], "group_size": 4}
        ),
        _comms(6, "allreduce", [3, False], ["tp", "tensor"], 1, 100, 100, 0, 1, 2),
        _comms(8, "reduce_scatter", [4, False], ["world", ""], 3, 80, 20, 0, 1, 4),
    ]
    [trace] = _read(_torch(tmp_path / "et.json", nodes, "1.1.1-chakra.0.0.4"))
    assert trace.rank == 3  # in the group of all ranks, not in the pair
    assert [(one.group, one.members, one.seq) for one in trace.collectives] == [("tp", (2, 3), 3), ("world", None, 4)]
    assert [one.num_bytes for one in trace.collectives] == [400, 320]


def test_groups_without_names_are_told_apart_by_order(tmp_path: Path) -> None:
    nodes = [_comms(6, "allreduce", 3, 94398426290464, 1, 9, 9), _comms(9, "allreduce", 3, 94398426999999, 1, 9, 9)]
    [trace] = _read(_torch(tmp_path / "et.json", nodes))
    assert [(one.group, one.place) for one in trace.collectives] == [("#0", 0), ("#1", 0)]
    assert _codes(trace) == [TraceCode.NO_GROUP_NAMES, TraceCode.NO_TIMES]


def test_calls_are_used_where_nothing_else_is_stated(tmp_path: Path) -> None:
    """Gloo has no `record_param_comms`."""
    tensors = {"values": [[[_tensor(100)], [_tensor(100)]], [_tensor(100)], "<Object>"]}
    nodes = [
        _node(9, "c10d::allgather_", inputs=tensors),
        _node(10, "gloo:all_gather"),
        _node(11, "c10d::barrier", inputs={"values": [_tensor(1, 1)]}),
    ]
    [trace] = _read(_torch(tmp_path / "et.json", nodes))
    assert [(one.op, one.num_bytes) for one in trace.collectives] == [("allgather", 800), ("barrier", None)]


def test_a_trace_that_was_linked_to_a_profiler_s_has_all_times(tmp_path: Path) -> None:
    times = {"inclusive_dur": 100, "exclusive_dur": 60}
    nodes = [
        _node(2, "ProfilerStep#4", ts=1000, inclusive_dur=5000),
        _node(3, "## forward ##", ts=1100, **times),
        _comms(6, "allreduce", 3, 82149104, 1, 100, 100, 2),
        _node(7, "nccl:all_reduce", ts=1500, **times),
        _node(8, "ncclDevKernel_AllReduce", ts=2000, cat="kernel", stream=20, **times),
        _node(9, "gemm", ts=1600, cat="kernel", stream=7, **times),
    ]
    [trace] = _read(_torch(tmp_path / "linked.json", nodes))
    assert trace.steps[0] == pytest.approx((0.0, 0.005))
    assert trace.step_names == ("ProfilerStep#4",)
    [found] = trace.collectives
    assert (found.op, found.seq, found.num_bytes, found.timed, found.lane) == ("allreduce", 3, 400, True, "20")
    assert (found.start_s, found.end_s) == pytest.approx((0.001, 0.0011))
    assert trace.compute[0] == pytest.approx([0.0006, 0.0007])
    assert trace.on_device and list(trace.phases) == ["forward"]
    assert _codes(trace) == []


def test_protobuf_without_start_times(tmp_path: Path) -> None:
    [trace] = _read(_protobuf(tmp_path / "llama.3.et", *_kernels()))
    [found] = trace.collectives
    assert (trace.rank, trace.num_events, trace.on_device) == (3, 4, True)
    assert (found.op, found.group, found.num_bytes, found.lane) == ("allreduce", "dp", 4096, "7")
    assert not found.timed
    assert found.duration_s == pytest.approx(1e-4)
    assert trace.facts == {"compute_s": pytest.approx(3e-4)}
    assert _codes(trace) == [TraceCode.NO_STARTS]


def test_protobuf_with_start_times(tmp_path: Path) -> None:
    [trace] = _read(_protobuf(tmp_path / "llama.0.et", *_kernels(start=10_000)))
    [found] = trace.collectives
    assert (found.timed, found.duration_s) == (True, None)
    assert (found.start_s, found.end_s) == pytest.approx((5e-4, 6e-4))
    assert trace.compute[0] == pytest.approx([0, 3e-4])


def test_messages_and_other_types_of_numbers(tmp_path: Path) -> None:
    unknown = (12, b"later versions have more fields")
    fixed = b"\x69" + bytes(8) + b"\x75" + bytes(4)  # fields 13 and 14: fixed64 and fixed32
    send = _message((1, 300), (2, "p2p"), (3, 5), (7, 9), unknown, _attribute("comm_size", -1)) + fixed
    [trace] = _read(_protobuf(tmp_path / "x.et", send))
    assert [(one.op, one.num_bytes) for one in trace.collectives] == [("send", None)]


def test_json_of_the_tools(tmp_path: Path) -> None:
    graph = [
        {"Id": 1, "Name": "aten::add", "NodeType": 4, "runtime": 318, "is_cpu_op": True},
        {"Id": 2, "Name": "c10d::broadcast_(0)", "NodeType": 7, "runtime": 85, "is_cpu_op": True},
        {"Id": 3, "Name": "ncclKernel_Broadcast_RING", "NodeType": 7, "runtime": 28, "is_cpu_op": False},
        {"Id": 4, "Name": "gemm", "NodeType": [4], "runtime": 10, "is_cpu_op": False},
    ]
    path = tmp_path / "chakra.2.json"
    path.write_text(json.dumps({"workload_graph": graph, "ngpus": 8}))
    [trace] = _read(path)
    assert (trace.rank, trace.world_size) == (2, 8)
    assert [one.op for one in trace.collectives] == ["broadcast"]
    assert trace.collectives[0].duration_s == pytest.approx(28e-6)
    assert trace.facts == {"compute_s": pytest.approx(10e-6)}


def test_cut_files_keep_what_is_whole(tmp_path: Path) -> None:
    whole = _torch(tmp_path / "et.json", [_comms(n, "allreduce", n, 1, 0, 9, 9) for n in (6, 8)]).read_bytes()
    (tmp_path / "cut.json").write_bytes(whole[:-80])
    [trace] = _read(tmp_path / "cut.json")
    assert (len(trace.collectives), _codes(trace)[0]) == (1, TraceCode.CUT)
    data = _protobuf(tmp_path / "a.1.et", *_kernels()).read_bytes()
    (tmp_path / "cut.1.et").write_bytes(data[:-5])
    [trace] = _read(tmp_path / "cut.1.et")
    assert (trace.num_events, _codes(trace)[0]) == (3, TraceCode.CUT)


def test_rubbish_is_one_remark(tmp_path: Path) -> None:
    draw = random.Random(2)
    data = _protobuf(tmp_path / "a.et", *_kernels()).read_bytes()
    text = _torch(tmp_path / "a.json", [_comms(6, "allreduce", 3, 1, 0, 9, 9)]).read_bytes()
    (tmp_path / "r.et").write_bytes(draw.randbytes(5000))
    traces, remarks = step_traces.read([tmp_path / "r.et"])
    assert (traces, len(remarks)) == ([], 1)
    for case in range(200):
        source = data if case % 2 else text
        damaged = bytearray(source)
        for _ in range(draw.randrange(1, 6)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path = tmp_path / ("b.et" if case % 2 else "b.json")
        path.write_bytes(damaged[: draw.randrange(len(damaged) // 2, len(damaged))])
        traces, remarks = step_traces.read([path])
        assert len(traces) + len(remarks) == 1


@corpus.needs_corpus
def test_eight_ranks_of_a_real_job_call_the_same() -> None:
    """Read by hand: seq 147 to 154; the alltoall 150 has split sizes of 3392 sent and 13312 received by rank 3."""
    traces = _read(corpus.real("traces", "dlrm_8ranks_chakra_et.tar.gz"))
    assert sorted(trace.rank if trace.rank is not None else -1 for trace in traces) == [*range(8)]
    for trace in traces:
        assert [one.seq for one in trace.collectives] == [*range(147, 155)]
        assert [one.op for one in trace.collectives] == ["alltoall"] * 4 + ["allreduce", "alltoall"] + ["allreduce"] * 2
    sizes = {trace.rank: [one.num_bytes for one in trace.collectives] for trace in traces}
    assert sizes[3] == [24576, 192, 1536, 53248, 1576964, 24576, 448, 907840]
    assert [one.num_bytes for one in job_of(traces).collectives][4:] == [1576964, 24576, 448, 907840]


@corpus.needs_corpus
def test_real_files_of_the_tools() -> None:
    [trace] = _read(corpus.real("traces", "1.0.2-chakra.0.0.4.tgz"))
    assert (trace.rank, trace.world_size, trace.num_events) == (0, 2, 263)
    assert [(one.op, one.num_bytes, one.seq) for one in trace.collectives] == [
        ("allgather", 8, n) for n in range(12, 22)
    ]
    large, small = _read(corpus.real("traces", "json_trace.tar.gz"))
    assert (large.num_events, len(large.collectives), small.world_size) == (3664, 7, 8)
    assert large.facts["compute_s"] == pytest.approx(0.292828)
    assert sum(one.duration_s or 0 for one in large.collectives) == pytest.approx(0.036715)
