"""Whatever a reader returns, explain prints a page about it, and valid JSON."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.codes import Coded
from bench.explain import page as explain_page
from bench.explain.explain import page
from bench.explain.log_hints import Hint
from bench.hardware.catalogue import instances
from bench.hardware.machine import machine_of
from bench.logs.foreign import FAILED, OK, TRUNCATED, ForeignRow, ForeignRun, Matrix, MatrixCell, Remark
from tests.explain.logs import pattern

RATES = st.one_of(st.none(), st.just(0.0), st.floats(1.0, 1e14))
TIMES = st.one_of(st.none(), st.just(0.0), st.floats(1e-9, 1e4))
SIZES = st.one_of(st.none(), st.integers(0, 1 << 50))
ROWS = st.builds(
    ForeignRow,
    payload_bytes=SIZES,
    num_elements=SIZES,
    dtype=st.sampled_from([None, "float32", "bfloat16"]),
    in_place=st.booleans(),
    time_s=TIMES,
    algbw_bytes_per_s=RATES,
    busbw_bytes_per_s=RATES,
    num_wrong=st.one_of(st.none(), st.integers(0, 1 << 40)),
    line=st.integers(0, 99),
)
ENDS = st.sampled_from(["host", "host0", "gpu0", "gpu1", "gpu2", "others"])
CELLS = st.builds(MatrixCell, src=ENDS, dst=ENDS, value=RATES, status=st.sampled_from([OK, "waived", FAILED]))
MATRICES = st.builds(
    Matrix,
    name=st.sampled_from(["host_to_device_memcpy_ce", "host_to_all_memcpy_ce", "d2d"]),
    unit=st.sampled_from(["bytes_per_s", "s"]),
    engine=st.sampled_from([None, "ce", "sm"]),
    direction=st.sampled_from([None, "h2d", "d2h", "d2d", "bidirectional", "bidirectional_sum", "through_host"]),
    cells=st.lists(CELLS, max_size=8).map(tuple),
)
PATTERNS = ["allreduce", "allgather", "alltoall", "alltoallv", "broadcast", "sendrecv", "pingpong", "barrier", "gather"]
RUNS = st.builds(
    ForeignRun,
    tool=st.sampled_from(["nccl_tests", "nvbandwidth", "osu", "perftest", "p2p_bandwidth_latency"]),
    pattern=st.sampled_from([None, *PATTERNS]),
    num_ranks=st.one_of(st.none(), st.integers(1, 300)),
    num_nodes=st.one_of(st.none(), st.integers(1, 400)),
    status=st.sampled_from([OK, FAILED, TRUNCATED]),
    failure=st.one_of(st.none(), st.builds(Coded.uncoded, st.text(max_size=20))),
    rows=st.lists(ROWS, max_size=8).map(tuple),
    hosts=st.lists(st.sampled_from(["a", "ip-10-0-0-1", "gke-x"]), max_size=2, unique=True).map(tuple),
    gpus=st.lists(
        st.sampled_from(["NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA A100 80GB PCIe", "NVIDIA GB200", "?"]),
        max_size=2,
        unique=True,
    ).map(tuple),
    matrices=st.lists(MATRICES, max_size=3).map(tuple),
    remarks=st.just((Remark(3, "uncoded", {}, "x"), Remark(None, "uncoded", {}, "x"))),
)
HINTS = st.lists(
    st.sampled_from(
        [
            Hint("path", "NET/Socket/0", 1),
            Hint("path", "NET/", 1),
            Hint("channels", "2", 2),
            Hint("nccl", "2.9.9", 3),
            Hint("setting", "NCCL_P2P_DISABLE set by environment to 1", 4),
            Hint("search", "1, bw 20/20, type NVL", 5),
            Hint("network", "Socket", 6),
            Hint("no_rdma", "GPU Direct RDMA Disabled", 7),
        ]
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(RUNS, st.sampled_from([None, *instances()]), HINTS)
def test_there_is_always_a_page(run: ForeignRun, named: str | None, hints: list[Hint]) -> None:
    per_node = -(-run.num_ranks // run.num_nodes) if run.num_ranks and run.num_nodes else None
    machine = machine_of(named, run.gpus, run.hosts, per_node)
    found = page(run, machine, pattern(run.pattern) if run.pattern else None, hints)
    [plain] = json.loads(explain_page.as_json([found]))["pages"]
    assert plain["standing_code"] == found.assessment.verdict
    verdict = "# FAILED" if run.status == FAILED else f"# {found.assessment.verdict.template.upper()}: "
    assert explain_page.table([found]).startswith(verdict) and explain_page.markdown([found]).startswith(verdict)
    if any(row.num_wrong for row in run.rows if (row.payload_bytes or 0) > 0 and (row.time_s or row.busbw_bytes_per_s)):
        assert found.best is None
