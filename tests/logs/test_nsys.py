"""Nsight Systems' SQLite exports become traces of ranks; other databases and damage become one remark."""

from __future__ import annotations

import gzip
import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from bench.core.step_trace import Direction, RankTrace, StepPhase, WaitKind
from bench.job.matching import job_of
from bench.logs import step_traces
from bench.logs.trace_messages import TraceCode
from tests.job.transfers import transfers_s
from tests.logs import corpus
from tests.logs.synthetic_nsys import Export, training


def _read(path: Path) -> list[RankTrace]:
    traces, remarks = step_traces.read([path])
    assert remarks == []
    return traces


def _codes(path: Path) -> list[str]:
    traces, remarks = step_traces.read([path])
    assert traces == []
    return [remark.code for remark in remarks]


def test_all_ranks_of_a_host_come_from_one_file(tmp_path: Path) -> None:
    zero, one = _read(training(tmp_path / "job.sqlite").close())
    assert [(trace.rank, trace.world_size) for trace in (zero, one)] == [(0, 2), (1, 2)]
    assert (one.host, one.device_name, one.backend) == ("node-a", "NVIDIA H100", "nccl")
    assert one.facts == {"schema": "3.25.0", "devices": (1,)}
    assert one.step_names == ("step 0", "step 1")
    begin = 1_000_000 - 6_000  # the first event is the communicator's start
    assert one.steps[1] == pytest.approx(((begin + 10_000_000) * 1e-9, (begin + 20_000_000) * 1e-9))
    assert zero.epoch_s == one.epoch_s == pytest.approx(1_700_000_000 + 1e-6, abs=1e-6)
    assert one.num_events == 8 + 2 + 13 + 6  # calls, copies, ranges of NVTX, kernels
    assert (zero.remarks, one.remarks) == ((), ())


def test_kernels_copies_waits_and_phases(tmp_path: Path) -> None:
    trace = _read(training(tmp_path / "job.sqlite").close())[1]
    begin = (1_000_000 - 6_000) * 1e-9
    assert len(trace.compute) == 4
    assert trace.compute[1] - begin == pytest.approx([0.0032, 0.006])
    assert trace.compute_launch_s[1] - begin == pytest.approx(0.0031)
    first = trace.copies[0]
    assert (first.direction, first.num_bytes, first.pinned) == (Direction.H2D, 4096, True)
    assert [wait.kind for wait in trace.waits] == [WaitKind.SYNC, WaitKind.SYNC]
    assert trace.waits[0].name == "cudaStreamSynchronize"
    lengths = {phase: float((union[:, 1] - union[:, 0]).sum()) for phase, union in trace.phases.items()}
    wanted = {StepPhase.DATA: 0.002, StepPhase.FORWARD: 0.004, StepPhase.BACKWARD: 0.008, StepPhase.OPTIMIZER: 0.002}
    assert lengths == pytest.approx(wanted)


def test_collectives_have_group_bytes_call_and_launch(tmp_path: Path) -> None:
    zero, one = _read(training(tmp_path / "job.sqlite").close())
    begin = (1_000_000 - 6_000) * 1e-9
    found = one.collectives[0]
    assert (found.op, found.place, found.group, found.group_size) == ("allreduce", 0, f"{0xABC:016x}", 2)
    assert (found.num_bytes, found.lane) == (1 << 20, "20")
    assert found.called_s is not None and found.launch_s is not None
    assert (found.called_s - begin, found.launch_s - begin) == pytest.approx((0.006, 0.00601))
    assert (found.start_s - begin, found.end_s - begin) == pytest.approx((0.0061, 0.008))
    job = job_of([zero, one])
    assert [max(one.arrivals_s, key=one.arrivals_s.__getitem__) for one in job.collectives] == [1, 1]
    assert transfers_s(job) == pytest.approx([0.0019, 0.0019])


def test_a_file_without_payloads_says_how_to_get_the_sizes(tmp_path: Path) -> None:
    trace = _read(training(tmp_path / "job.sqlite", blobs=False).close())[0]
    [remark] = trace.remarks
    assert (remark.code, remark.facts["num"]) == (TraceCode.NO_SIZES, 2)
    assert "--include-blobs=true" in remark.facts["remedy"]
    assert [one.num_bytes for one in trace.collectives] == [None, None]
    assert (trace.rank, trace.collectives[0].group) == (None, "")


def test_a_group_of_sends_is_one_exchange_with_the_bytes_that_the_rank_sends(tmp_path: Path) -> None:
    export = Export(tmp_path / "pipe.sqlite")
    export.range(1, "ncclGroupStart", 10_000, 11_000)
    for peer in range(3):
        export.range(1, "ncclSend", 11_000 + peer * 100, 11_050 + peer * 100, 5, 100 * (peer + 1), peer)
        export.range(1, "ncclRecv", 11_050 + peer * 100, 11_100 + peer * 100, 5, 7, peer)
    export.range(1, "ncclGroupEnd", 12_000, 15_000)
    export.launched(1, 0, 9, "ncclDevKernel_SendRecv", 12_500, 14_000, 20_000)
    [found] = _read(export.close())[0].collectives
    assert (found.op, found.num_bytes) == ("sendrecv", 600)
    assert found.called_s == pytest.approx(1e-6)


def test_the_payload_of_an_allgather_is_that_of_all_ranks(tmp_path: Path) -> None:
    export = Export(tmp_path / "gather.sqlite")
    for communicator, start in ((5, 20_000), (6, 40_000)):  # the start of only one communicator was recorded
        export.range(1, "ncclAllGather", start, start + 5_000, communicator, 1000)
        export.launched(1, 0, 9, "ncclDevKernel_AllGather_RING_LL", start + 1000, start + 6000, start + 9000)
    export.range(1, "ncclCommInitRankConfig", 10_000, 11_000, 5, 8, 3, 0)
    [trace] = _read(export.close())
    assert [one.num_bytes for one in trace.collectives] == [8000, None]
    assert (trace.rank, trace.world_size, len(trace.remarks)) == (3, 8, 1)


def test_torch_names_the_operation_of_a_kernel_that_does_not(tmp_path: Path) -> None:
    export = Export(tmp_path / "moe.sqlite")
    export.kernel(1, 0, 9, "ncclDevKernel_SendRecv", 5_000, 6_000, None)  # launched before the record begins
    export.range(1, "nccl:all_to_all, op_id = 7", 10_000, 15_000)
    export.range(1, "ncclGroupEnd", 11_000, 14_000)
    export.launched(1, 0, 9, "ncclDevKernel_SendRecv", 12_000, 14_000, 20_000)
    [trace] = _read(export.close())
    assert [one.op for one in trace.collectives] == ["alltoall", "alltoall"]


def test_operators_of_torch_show_the_backward_pass_and_waits_for_values(tmp_path: Path) -> None:
    export = Export(tmp_path / "emit.sqlite")
    export.kernel(1, 0, 9, "gemm", 1_000, 2_000, None)
    export.range(1, "aten::linear, op_id = 1", 1_000, 5_000)
    export.range(1, "aten::item, op_id = 2", 6_000, 9_000)
    export.range(1, "autograd::engine::evaluate_function: AddmmBackward0, op_id = 3", 10_000, 14_000)
    export.range(1, "aten::mm, op_id = 4", 11_000, 12_000)
    export.range(1, "autograd::engine::evaluate_function: ReluBackward0, op_id = 5", 15_000, 16_000)
    export.range(1, "aten::add_, op_id = 6", 20_000, 21_000)
    [trace] = _read(export.close())
    assert trace.phases[StepPhase.BACKWARD] == pytest.approx(np.array([[9e-6, 15e-6]]))
    assert [(one.kind, one.name) for one in trace.waits] == [(WaitKind.ITEM, "aten::item")]


def test_steps_by_profiler_and_by_number_and_steps_within_steps(tmp_path: Path) -> None:
    export = Export(tmp_path / "steps.sqlite")
    export.kernel(1, 0, 9, "gemm", 0, 2_000, None)
    for step in range(3):
        export.range(1, f"ProfilerStep#{step}", step * 1000, step * 1000 + 900)
        export.range(1, f"iteration {step}", step * 1000 + 10, step * 1000 + 800)
    export.range(1, "stepping stone 1", 5000, 6000)
    [trace] = _read(export.close())
    assert trace.step_names == ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2")


def test_one_process_with_collectives_on_two_devices_is_two_ranks(tmp_path: Path) -> None:
    export = Export(tmp_path / "threads.sqlite")
    for device in range(2):
        export.launched(1, device, 7, "gemm", 1_000, 2_000, 3_000)
        export.launched(1, device, 9, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3_000, 4_000, 5_000)
    export.launched(2, 0, 7, "gemm", 1_000, 2_000, 3_000)
    export.launched(2, 1, 7, "gemm", 1_000, 2_000, 3_000)
    traces = _read(export.close())
    assert [trace.facts["devices"] for trace in traces] == [(0,), (0, 1), (1,)]
    assert [len(trace.compute) for trace in traces] == [1, 2, 1]
    assert TraceCode.SEVERAL_DEVICES in [remark.code for remark in traces[1].remarks]


def test_rank_of_a_file_with_one_process(tmp_path: Path) -> None:
    for name, variables, wanted in (
        ("a.sqlite", {"SLURM_PROCID": "5", "SLURM_NTASKS": "16"}, (5, 16)),
        ("b.sqlite", {"RANK": "3", "SLURM_PROCID": "0", "WORLD_SIZE": "4"}, (3, 4)),
        ("report_rank7.sqlite", {}, (7, None)),
        ("c.sqlite", {"RANK": "many"}, (None, None)),
    ):
        export = Export(tmp_path / name)
        export.kernel(1, 0, 9, "gemm", 1_000, 2_000, None)
        for variable, value in variables.items():
            export.setting("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE", f'{variable}="{value}"')
        [trace] = _read(export.close())
        assert (trace.rank, trace.world_size) == wanted, name


def test_copies_of_a_file_without_its_table_of_kinds(tmp_path: Path) -> None:
    export = Export(tmp_path / "copies.sqlite")
    export.run("DROP TABLE ENUM_CUDA_MEM_KIND")
    export.kernel(1, 0, 9, "gemm", 1_000, 2_000, None)
    kinds = [(1, (0, 2)), (2, (2, 1)), (8, (2, 2)), (10, (2, 2)), (3, (1, 3))]
    for place, (kind, memories) in enumerate(kinds):
        export.copy(1, 0, kind, memories, place * 1000, place * 1000 + 500, 64)
    [trace] = _read(export.close())
    wanted = [(Direction.H2D, False), (Direction.D2H, True), (Direction.D2D, None), (Direction.P2P, None)]
    assert [(one.direction, one.pinned) for one in trace.copies] == wanted


def test_columns_and_tables_that_older_versions_lack(tmp_path: Path) -> None:
    export = training(tmp_path / "old.sqlite")
    for column in ("greenContextId", "globalPid", "shortName", "mangledName"):
        export.run(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}")
    for table in ("NVTX_EVENTS", "NVTX_PAYLOAD_SCHEMA_ENTRIES", "ANALYSIS_DETAILS", "TARGET_INFO_GPU"):
        export.run(f"DROP TABLE {table}")
    zero, one = _read(export.close())
    assert [len(trace.collectives) for trace in (zero, one)] == [2, 2]
    assert [len(trace.compute) for trace in (zero, one)] == [4, 4]
    assert (one.steps, one.phases, one.device_name) == ((), {}, None)


def test_graphs_that_are_recorded_as_a_whole_are_work_and_are_named(tmp_path: Path) -> None:
    export = Export(tmp_path / "graph.sqlite")
    export.kernel(1, 0, 9, "gemm", 1_000, 2_000, None)
    export.run("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, "
               "correlationId INTEGER, globalPid INTEGER)")  # fmt: skip
    export.run(f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (3000, 9000, 0, 1, {1 << 24})")
    [trace] = _read(export.close())
    assert len(trace.compute) == 2
    assert TraceCode.WHOLE_GRAPHS in [remark.code for remark in trace.remarks]


def test_a_compressed_export(tmp_path: Path) -> None:
    path = training(tmp_path / "job.sqlite").close()
    packed = tmp_path / "job.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [len(trace.collectives) for trace in _read(packed)] == [2, 2]
    assert _read(packed)[0].source == str(packed)


def test_other_databases_and_empty_tables_are_one_remark(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.executescript("CREATE TABLE run (id INTEGER); INSERT INTO run VALUES (1);")
    other.close()
    assert _codes(tmp_path / "other.sqlite") == [TraceCode.NOT_NSYS]
    assert _codes(Export(tmp_path / "empty.sqlite").close()) == [TraceCode.NO_KERNELS]
    no_tables = sqlite3.connect(tmp_path / "none.sqlite")
    no_tables.execute("VACUUM")
    no_tables.execute("PRAGMA user_version = 1")
    no_tables.close()
    assert _codes(tmp_path / "none.sqlite") in ([TraceCode.NOT_NSYS], [TraceCode.EMPTY])


def test_a_view_is_not_read(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "view.sqlite")
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x AS end FROM n"
    database.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
    database.close()
    assert _codes(tmp_path / "view.sqlite") == [TraceCode.NOT_NSYS]


def test_damage_is_a_remark_and_never_an_exception(tmp_path: Path) -> None:
    whole = training(tmp_path / "job.sqlite").close().read_bytes()
    assert len(whole) > 8 * 4096
    draw = random.Random(1)
    path = tmp_path / "damaged.sqlite"
    found = set()
    for case in range(45):
        data = bytearray(whole)
        if case % 3 == 0:
            del data[draw.randrange(20, len(data)) :]
        elif case % 3 == 1:
            place = draw.randrange(100, len(data) - 400)
            data[place : place + 400] = draw.randbytes(400)
        else:
            for _ in range(40):
                data[draw.randrange(16, len(data))] = draw.randrange(256)
        path.write_bytes(data)
        traces, remarks = step_traces.read([path])
        found |= {remark.code for remark in (*remarks, *(each for trace in traces for each in trace.remarks))}
    assert TraceCode.UNREADABLE in found or TraceCode.DATABASE_DAMAGED in found


def test_numbers_of_the_wrong_kind_do_not_stop_the_reader(tmp_path: Path) -> None:
    export = training(tmp_path / "job.sqlite")
    export.run("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 'seven', correlationId = NULL")
    export.run("UPDATE NVTX_EVENTS SET binaryData = x'00' WHERE text = 'ncclAllReduce'")
    export.run("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET end = start - 5, bytes = -1")
    zero, _ = _read(export.close())
    assert TraceCode.UNMATCHED_LAUNCHES in [remark.code for remark in zero.remarks]
    assert (len(zero.collectives), zero.copies) == (2, ())


@corpus.needs_corpus
def test_two_h100_of_a_real_job() -> None:
    """Figures by hand with SQL: kernels of NCCL 9.989016 and 23.753085 ms in 31 exchanges on each GPU."""
    zero, one = _read(corpus.real("traces", "nsys_2xh100_mfu_after.sqlite"))
    assert [len(trace.compute) for trace in (zero, one)] == [1883, 1884]
    assert [len(trace.copies) for trace in (zero, one)] == [452, 452]
    kernels = [sum(each.end_s - each.start_s for each in trace.collectives) for trace in (zero, one)]
    assert kernels == pytest.approx([9.989016e-3, 23.753085e-3], abs=1e-9)
    assert {each.op for trace in (zero, one) for each in trace.collectives} == {"alltoall"}
    assert zero.host == "modal"
    assert zero.epoch_s == pytest.approx(1779787161.41975, abs=1e-5)
    assert [len([each for each in trace.copies if each.pinned is False]) for trace in (zero, one)] == [16, 16]
    job = job_of([zero, one])
    assert sum(transfers_s(job)) == pytest.approx(5.78e-3, abs=5e-6)
