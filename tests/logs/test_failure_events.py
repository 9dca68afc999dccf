"""Messages about failures: each wording of each version gives its event; nothing raises, and memory is bounded."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.logs.failure_events import (
    Event,
    EventReader,
    Role,
    document_events,
    may_be_document,
    numbers,
    time_of,
)
from bench.logs.readers import _lines

CRASHES = Path(__file__).parent.parent / "explain" / "crashes"
WARN = "node1:946:988 [0] transport/net_ib.cc:839 NCCL WARN "
PG = "[rank3]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] "

# A line as its program prints it -> the event's code, and fields that it must have. Names and numbers are made up.
MESSAGES: dict[str, tuple[str, dict[str, Any]]] = {
    # NCCL's warnings, 2.4 to 2.30
    WARN + "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129": (
        "ib-retry-exceeded",
        {"host": "node1", "pid": 946, "status": "12", "vendor_error": "129"},
    ),
    WARN + "NET/IB : Got completion from peer 10.0.0.2<4791> with error 12, opcode 0, len 32, vendor err 129 (Send) "
    "localGid ::ffff:10.0.0.1 remoteGid ::ffff:10.0.0.2": ("ib-retry-exceeded", {"peer": "10.0.0.2<4791>"}),
    WARN + "NET/IB: Got completion from peer 10.0.0.2<4791> with status=12 opcode=129 len=0 vendor err 129 (Recv) "
    "hca mlx5_3": ("ib-retry-exceeded", {"peer": "10.0.0.2<4791>", "hca": "mlx5_3"}),
    WARN + "NET/IB: Got completion from peer 10.0.0.2<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) "
    "vendor_err=129 hca mlx5_0": ("ib-retry-exceeded", {"hca": "mlx5_0", "vendor_error": "129"}),
    WARN + "NET/IB : Got completion from peer 10.0.0.2<4791> with error 5, opcode 0, len 0, vendor err 244": (
        "ib-flushed",
        {},
    ),
    WARN + "NET/IB : Got completion with error 13, opcode 0, len 0, vendor err 135": ("ib-receiver-not-ready", {}),
    WARN + "NET/IB : Got completion with error 10, opcode 0, len 0, vendor err 136": ("ib-memory-access", {}),
    WARN + "NET/IB : mlx5_2:1 Got async event : port error": (
        "ib-port-event",
        {"hca": "mlx5_2", "event": "port error"},
    ),
    WARN + "NET/IB : mlx5_2:1 async fatal event: local catastrophic error": ("ib-port-event", {"hca": "mlx5_2"}),
    WARN + "NET/IB : req 0/1 tag 1 peer 10.0.0.2<9> collective mismatch error, local size 8 remote size 16": (
        "size-mismatch",
        {"local_bytes": "8", "remote_bytes": "16"},
    ),
    WARN + "NET/Socket : peer 10.0.0.2<9> message truncated : receiving 1024 bytes instead of 512. If you believe": (
        "size-mismatch",
        {"peer": "10.0.0.2<9>"},
    ),
    WARN + "Message truncated : received 1024 bytes instead of 256": ("size-mismatch", {}),
    "node1:1:2 [4] misc/socket.cc:397 NCCL WARN Net : connecting to address  with family 33621 is neither AF_INET(2) "
    "nor AF_INET6(10)": ("bad-address", {"family": "33621", "device": 4}),
    WARN + "ncclSocketInit: connecting to address 0.0.0.0<0> with family 0 is neither AF_INET(2) nor AF_INET6(10)": (
        "bad-address",
        {"family": "0"},
    ),
    WARN + "Mismatched NCCL version detected : rank 3 version 22703 rank 0 version 22602": (
        "nccl-versions-differ",
        {"rank": 3, "version": "22703"},
    ),
    WARN + "Failed to open libibverbs.so[.1]": ("no-libibverbs", {}),
    WARN + "Bootstrap : no socket interface found": ("no-interface", {}),
    WARN + "Error: network IB not found.": ("no-network", {"network": "IB"}),
    WARN + "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5000": ("gpu-used-twice", {"rank": 1}),
    WARN + "Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888), error: No space left on device"
    " (28)": ("shm-too-small", {}),
    WARN + "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory": ("cannot-register-memory", {}),
    WARN + "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1": ("ib-connect-failed", {}),
    WARN + "Call to ibv_create_qp failed": ("ib-call-failed", {}),
    WARN + "Cuda failure 'out of memory'": ("out-of-memory", {}),
    WARN + "Cuda failure 'an illegal memory access was encountered'": ("cuda-failed", {}),
    WARN + "Failed to CUDA calloc 4194304 bytes": ("out-of-memory", {}),
    WARN + "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401": (
        "fabric-not-ready",
        {},
    ),
    WARN + "Net : Connection closed by remote peer node2<41234>": ("connection-closed", {"peer": "node2<41234>"}),
    WARN + "NET/Socket : recv from 10.0.0.2<9> failed": ("connection-closed", {}),
    WARN + "Net : Connect to 10.0.0.2<4> failed : No route to host": (
        "cannot-connect",
        {"peer": "10.0.0.2<4>", "error": "No route to host"},
    ),
    WARN + "socketPollConnect: Connect to 10.0.0.2<4> returned 111(Connection refused), exceeded error retry count": (
        "cannot-connect",
        {"peer": "10.0.0.2<4>"},
    ),
    WARN + "Call to posix_fallocate failed : No space left on device": ("shm-too-small", {}),
    WARN + "AllReduce : invalid root 9 (root should be in the 0..8 range)": ("wrong-call", {}),
    WARN + "something that NCCL never printed": ("nccl-warning", {}),
    "[2026-03-21 02:07:08] node1:946:988 [0] init.cc:77 (main) NCCL WARN Net : Connection closed by remote peer": (
        "connection-closed",
        {"host": "node1"},
    ),
    WARN + "Mismatched collective detected, please check your collective calls at and around rank 5. You can use": (
        "collective-mismatch",
        {"rank": None, "near_rank": "5"},
    ),
    WARN
    + "NET/OFI Request 0x7f00 completed with error. RC: 107. Error: unknown error. Completed length: 0, Request: {": (
        "ofi-failed",
        {"status": "107", "error": "unknown error"},
    ),
    WARN
    + "NET/OFI Request 0x7f00 seq 4 completed with error. RC: 113. Error: 2 (UNDELIVERABLE). Completed length: 0": (
        "ofi-failed",
        {"status": "113", "error": "2 (UNDELIVERABLE)"},
    ),
    # torch's watchdog, 1.8 to 2.13
    "[E ProcessGroupNCCL.cpp:566] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
    "Timeout(ms)=1800000) ran for 1808499 milliseconds before timing out.": (
        "collective-timeout",
        {"rank": 2, "operation": "ALLREDUCE", "duration_s": 1808.499, "seq": None},
    ),
    "[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, "
    "OpType=BROADCAST, TensorShape=[1], Timeout(ms)=1800000) ran for 1804406 milliseconds before timing out.": (
        "collective-timeout",
        {"rank": 1, "seq": 15, "shape": "1"},
    ),
    PG + "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=46, "
    "NumelOut=46, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.": (
        "collective-timeout",
        {"rank": 3, "seq": 1580, "numel_in": 46},
    ),
    "[rank9]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=8, Timeout(ms)=1000) ran for 1001 milliseconds "
    "before timing out.": ("collective-timeout", {"rank": 9}),
    "[rank7]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 7] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last "
    "completed NCCL work: 3904955349522264369.": (
        "work-status-at-failure",
        {"rank": 7, "enqueued": 1, "completed": None},
    ),
    PG + "[PG 1 Rank 3] Exception (either an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL "
    "work: 1582, last completed NCCL work: 1579.": (
        "work-status-at-failure",
        {"rank": 3, "group": "1", "enqueued": 1582, "completed": 1579, "seq": 1580},
    ),
    "[rank9]:[E ProcessGroupNCCL.cpp:1] [PG ID 2 PG GUID 7(dp_cp) Rank 1]  failure detected by watchdog at work "
    "sequence id: 5 PG status: last enqueued work: 6, last completed work: 4": (
        "work-status-at-failure",
        {"rank": 9, "seq": 5, "enqueued": 6},
    ),
    "[rank5]:[E ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 5] Received a dump signal due to a "
    "collective timeout from rank 3 and we will try our best to dump the debug info. Last enqueued NCCL work: 41, "
    "last completed NCCL work: 41.This is": ("work-status", {"rank": 5, "enqueued": 41}),
    "[rank2]:[F ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 "
    "seconds without making progress": ("watchdog-stuck", {"rank": 2, "duration_s": 480.0}),
    "[E ProcessGroupGloo.cpp:137] [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms": (
        "missing-at-barrier",
        {"ranks": (1, 3), "rank": None, "reported_by": 0},
    ),
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running inconsistent collective: "
    "CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[20, 10], TensorDtypes=Float, TensorDeviceTypes=x)": (
        "collective-mismatch",
        {"rank": 0, "shape": "20, 10"},
    ),
    "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 clients joined.": (
        "ranks-did-not-start",
        {"num_joined": 3, "num_ranks": 4},
    ),
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
    "store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)": (
        "store-barrier-timeout",
        {"num_joined": 7, "num_ranks": 8},
    ),
    "[W socket.cpp:601] The client socket has timed out after 600s while trying to connect to (node1, 29500).": (
        "store-unreachable",
        {"peer": "node1, 29500"},
    ),
    "[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (node1, 29500).": (
        "store-unreachable",
        {"peer": "node1, 29500"},
    ),
    "DistStoreError: Timed out initializing process group in store based barrier on rank: 0, for key: k:1 "
    "(world_size=4, num_workers_joined=8, timeout=0:30:00)": ("store-barrier-timeout", {"num_joined": 8}),
    # errors of NCCL and CUDA in programs
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: /x/NCCLUtils.hpp:268, remote process exited or there "
    "was a network error, NCCL version 2.20.5": ("rank-lost", {"rank": 1}),
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.": (
        "system-call-failed",
        {},
    ),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB": (
        "out-of-memory",
        {},
    ),
    "RuntimeError: CUDA error: an illegal memory access was encountered": ("kernel-fault", {}),
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": ("gpu-broken", {}),
    "Memory access fault by GPU node-2 (Agent handle: 0x56) on address 0x7f89. Reason: Page not present.": (
        "kernel-fault",
        {"error": "Memory access fault by GPU node-2"},
    ),
    "Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation": ("kernel-fault", {}),
    "[rank2]: ValueError: bad batch": ("python-error", {"rank": 2, "error": "ValueError", "message": "bad batch"}),
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15": ("terminated", {}),
    # Gloo
    "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to "
    "complete": ("gloo-timeout", {"duration_s": 1800.0}),
    "RuntimeError: [/x/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:16593": (
        "connection-closed",
        {},
    ),
    "RuntimeError: [/x/gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:13195: Connection refused": (
        "cannot-connect",
        {"peer": "10.0.0.2", "error": "Connection refused"},
    ),
    "  what():  [/x/gloo/transport/tcp/pair.cc:724] connect [127.0.1.1]:4321: Connection refused": (
        "cannot-connect",
        {"peer": "127.0.1.1"},
    ),
    # Horovod
    "AbortedError: Horovod has been shut down. This has been caused by an exception on one of the rank or an attempt": (
        "horovod-stopped",
        {},
    ),
    # UCX, libfabric and MPI
    "[node1:12] pml_ucx.c:296 Error: ucp_ep_create(proc=7) failed: Input/output error": ("ucx-setup-failed", {}),
    "[1530549338.253029] [node1:12:0]   rc_iface.c:966  UCX  ERROR failed to create qp: Invalid argument": (
        "ucx-setup-failed",
        {"error": "failed to create qp: Invalid argument"},
    ),
    "[1530549338.253029] [node1:12:0]   ucp_context.c:1345 UCX  ERROR no usable transports/devices (asked dc_x)": (
        "ucx-error",
        {},
    ),
    "MPIDI_UCX_init_local(219):  ucx function returned with failed status(ucx_init.c 219 MPIDI_UCX_init_local No such "
    "device)": ("ucx-failed", {"error": "No such device"}),
    "find_provider(170).........: OFI fi_getinfo() failure": ("ofi-failed", {"call": "fi_getinfo"}),
    "mtl_ofi.h:101: Error returned from fi_cq_readerr: Resource temporarily unavailable(-11).": (
        "ofi-failed",
        {"call": "fi_cq_readerr"},
    ),
    "Unable to write to EQ: Missing or unavailable event queue. err: Input/output error (5) prov_errno: Unknown error "
    "-12 (-12) prov/efa/src/rxr/rxr.h:1343": ("ofi-failed", {"error": "Input/output error"}),
    "EFA internal error: (4102) Connection reset": ("ofi-failed", {"error": "Connection reset"}),
    "Abort(204069007): Fatal error in internal_Init_thread: Other MPI error, error stack:": ("mpi-error-unnamed", {}),
    # the coordination service of JAX and TensorFlow
    "Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that the remote task has failed, got": (
        "heartbeats-stopped",
        {"ranks": (3,)},
    ),
    "F0321 02:07:08.4 9 client.h:77] Terminating process because the JAX distributed service detected fatal errors": (
        "coordination-stopped",
        {},
    ),
    "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted": (
        "coordinator-lost",
        {},
    ),
    "E x/client.cc:96] Coordination service agent in error status: DEADLINE_EXCEEDED: Deadline Exceeded": (
        "coordination-error",
        {"error": "DEADLINE_EXCEEDED: Deadline Exceeded"},
    ),
    "BaseCollectiveExecutor::StartAbort UNAVAILABLE: Socket closed": ("collectives-aborted", {}),
    "Additional GRPC error information from remote target /job:worker/replica:0/task:1:": (
        "task-unreachable",
        {"peer": "/job:worker/replica:0/task:1"},
    ),
    # the kernel
    "Mar 21 02:07:08 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
    "the bus.": ("xid-79", {"host": "node7", "bus": "0000:3b:00", "xid": 79}),
    "[  123.456] NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101": ("xid-31", {"host": None}),
    "[Thu Mar 21 02:07:08 2026] NVRM: Xid (PCI:0000:05:00): 94, pid=4711, name=python, Contained: SM (0x1)": (
        "xid-94",
        {"pid": 4711},
    ),
    # launchers
    "srun: error: node7: task 3: Killed": ("killed", {"rank": 3, "host": "node7"}),
    "srun: error: node7: tasks 4-6: Exited with exit code 1": ("exited", {"rank": 4, "exit_code": 1}),
    "srun: error: node7: task 2: Segmentation fault (core dumped)": ("crashed", {"rank": 2}),
    "srun: error: node7: task 2: Out Of Memory": ("host-out-of-memory", {}),
    "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.": (
        "host-out-of-memory",
        {},
    ),
    "slurmstepd: error: *** STEP 17.0 ON node7 CANCELLED AT 2026-03-21T02:07:08 DUE TO TIME LIMIT ***": (
        "time-limit",
        {},
    ),
    "x1s1.site: rank 4 died from signal 6 and dumped core": ("aborted", {"rank": 4, "host": "x1s1.site"}),
    "x1s1.site: rank 4 exited with code 3": ("exited", {"rank": 4, "exit_code": 3}),
    "Abort(15) on node 2 (rank 2 in comm 0): Fatal error in internal_Recv: Message truncated": (
        "mpi-error",
        {"rank": 2},
    ),
    "application called MPI_Abort(MPI_COMM_WORLD, 7) - process 2": ("mpi-abort", {"rank": 2, "error_code": "7"}),
    "mpirun noticed that process rank 3 with PID 4711 on node node7 exited on signal 9 (Killed).": (
        "killed",
        {"rank": 3, "pid": 4711, "host": "node7"},
    ),
    "=   RANK 2 PID 4711 RUNNING AT node7\n=   KILLED BY SIGNAL: 9 (Killed)": ("killed", {"rank": 2, "host": "node7"}),
    "=   EXIT CODE: 9": ("killed", {"signal": 9}),
    "=   EXIT CODE: 256": ("exited", {"exit_code": 1}),
    "W torch/distributed/elastic/multiprocessing/api.py:900] Sending process 12 closing signal SIGHUP": (
        "step-cancelled",
        {"signal": 1},
    ),
    "x.SignalException: Process 12 got signal: 1": ("step-cancelled", {"signal": 1}),
    "x.SignalException: Process 12 got signal: 2": ("interrupted", {"signal": 2}),
    "ORTE was unable to reliably start one or more daemons.": ("remote-start-failed", {}),
    "prterun was unable to reliably start one or more daemons.": ("remote-start-failed", {}),
    "An ORTE daemon has unexpectedly failed after launch and before": ("remote-start-failed", {}),
    "[mpiexec@head] check_exit_codes (x.c:117): unable to run bstrap_proxy on node7 (pid 12, exit code 65280)": (
        "remote-start-failed",
        {"host": "node7", "exit_code": 255},
    ),
    "[mpiexec@head] Error: Unable to run bstrap_proxy on node7 (pid 12, exit code 32512)": (
        "remote-start-failed",
        {"host": "node7", "exit_code": 127},
    ),
    "[proxy:0:1@node7] main (pm/pmiserv/pmip.c:183): unable to connect to server head at port 395 (check for "
    "firewalls!)": ("remote-start-failed", {"host": "node7"}),
    "RuntimeError: Using hostfile at /h but host=node7 was not reachable via ssh. If you are running with a": (
        "remote-start-failed",
        {"host": "node7"},
    ),
    "*** SIGSEGV (@0x8) received by PID 4711 (TID 0x7f64) from PID 8; stack trace: ***": (
        "crashed",
        {"pid": 4711, "signal": 11},
    ),
    "job.sh: line 3:  4711 Killed                  python train.py": ("killed", {"pid": 4711}),
    "[node7:04711:0:4711] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)": (
        "crashed",
        {"host": "node7"},
    ),
}
RAS = """
Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487 on node 10.0.0.3 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 3 -- GPU 3 managed by process 483 on node 10.0.0.1

"""
INSPECTOR = (
    '{"header": {"id": "0x7f", "rank": 2, "n_ranks": 8, "nnodes": 1}, "metadata": {"inspector_output_format_version": '
    '"v4.0", "hostname": "node1", "pid": 7}, "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_time_us": 6}}\n'
)


def read(text: str | bytes, chunk: int = 1 << 18) -> tuple[Event, ...]:
    """The events of a text that comes in chunks."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    reader = EventReader()
    for _ in _lines.lines([data[begin : begin + chunk] for begin in range(0, len(data), chunk)], reader.look):
        pass
    return reader.events("job.log")


def value(event: Event, name: str) -> Any:
    """A field or a fact of an event."""
    return getattr(event, name) if hasattr(event, name) else event.facts.get(name)


@pytest.mark.parametrize(
    ("text", "wanted"), MESSAGES.items(), ids=lambda given: None if isinstance(given, str) else given[0]
)
@pytest.mark.parametrize("tag", ["", "[1,0]<stderr>:", "\x1b[31m"])
def test_each_wording_gives_its_event(text: str, wanted: tuple[str, dict[str, Any]], tag: str) -> None:
    code, fields = wanted
    lines = "\n".join(tag + line for line in text.split("\n"))
    events = read(f"a line before\n{lines}\n")
    assert events and events[0].code == code, events
    assert events[0].line == 2
    for name, expected in fields.items():
        found = value(events[0], name)
        assert found == expected or (tag.startswith("[1,") and name == "rank" and expected is None), (name, found)


def test_the_chunks_of_a_text_do_not_matter() -> None:
    text = "\n".join(["a line"] * 50 + list(MESSAGES) + ["another line"] * 50)
    assert read(text, chunk=7) == read(text, chunk=1000) == read(text)


def test_a_launchers_label_names_the_rank_but_the_number_of_a_line_does_not() -> None:
    labelled = "3: Traceback (most recent call last):\n3: ValueError: bad\n"
    assert [(event.code, event.rank) for event in read(labelled)] == [("python-error", 3)]
    numbered = "17: Traceback (most recent call last):\n18: ValueError: bad\n"
    assert [event.rank for event in read(numbered)] == [None]
    assert [event.rank for event in read("[1,5]<stderr>:ValueError: bad\n")] == [5]


def test_the_number_of_a_test_of_ctest_is_no_rank() -> None:
    log = "{0}: Test command: /usr/bin/srun program\n{0}: Test timeout computed to be: 9\n{0}: ValueError: bad\n"
    assert [event.rank for event in read(log.format(3))] == [None]
    assert [event.rank for event in read(log.replace("Test ", "").format(3))] == [3]


def test_an_error_of_ssh_is_a_failure_only_if_the_launcher_gave_up() -> None:
    refused = (
        ("ssh: Could not resolve hostname node7: Name or service not known", "node7"),
        ("ssh: connect to host node7 port 22: Connection refused", "node7"),
        ("user@node7: Permission denied (publickey,password).", "node7"),
        ("Host key verification failed.", None),
        ("kex_exchange_identification: Connection closed by remote host", None),
        ("bash: line 1: orted: command not found", None),
        ("[proxy:0:1@node7] HYDU_sock_connect (sock.c:113): unable to get host address for head", "node7"),
        (
            '[proxy:0:1@node7] HYDU_sock_connect (sock.c:145): unable to connect from "node7" to "head" (refused)',
            "node7",
        ),
    )
    gave_up = (
        "ORTE was unable to reliably start one or more daemons.",
        "pdsh@head: node7: ssh exited with exit code 255",
        "subprocess.CalledProcessError: Command '['ssh node7 hostname -I']' returned non-zero exit status 255.",
        "[proxy:0:1@node7] main (pmip.c:183): unable to connect to server head at port 395 (check for firewalls!)",
    )
    for line, host in refused:
        assert read(f"{line}\nstep 1\n") == ()
        for report in gave_up:
            [event] = read(f"{line}\n{report}\n")
            assert (event.code, event.host, event.line) == ("remote-start-failed", host, 1)
        [event] = read(f"ssh not successful for host node7:\n{line}\n")
        assert event.code == "remote-start-failed"
    assert read("node7: ssh exited with exit code 1\n") == ()


def test_a_message_of_the_coordination_service_lists_tasks_on_the_lines_below() -> None:
    names = "".join(f"/job:jax_worker/replica:0/task:{task}\n" for task in (6, 1))
    old = "x.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: Connect. Timed out task names:\n"
    new = (
        "x.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait::0. This usually happens\n"
        "# of tasks that reached the barrier: 6/8.\n"
        "The first task at the barrier: /job:jax_worker/replica:0/task:0. Some timed out task names:\n"
    )
    silent = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n"
    for begin, code in ((old, "missing-at-barrier"), (new, "missing-at-barrier"), (silent, "heartbeats-stopped")):
        for end in ("The tasks have crashed.\n", "", "\nRPC: /x\n"):
            events = [event for event in read(begin + names + end) if event.role == Role.ABSENT]
            assert [(event.code, event.ranks, event.line) for event in events] == [(code, (1, 6), 1)]
    [event] = [event for event in read(new.splitlines()[0]) if event.role == Role.ABSENT]
    assert (event.code, event.ranks) == ("missing-at-barrier", ())


UNREACHABLE = "ssh: connect to host {} port 22: Connection refused\n"
NO_DAEMONS = "ORTE was unable to reliably start one or more daemons.\n"
STEPS = "step 1 loss 1.5\n" * 3


@pytest.mark.parametrize(
    ("log", "hosts"),
    [
        (UNREACHABLE.format("node7") + "pdsh@head: node3: ssh exited with exit code 255\n", []),
        (UNREACHABLE.format("node7") + "a line\n" * 20 + "pdsh@head: node7: ssh exited with exit code 255\n", []),
        (UNREACHABLE.format("node7") + STEPS + "pdsh@head: node7: ssh exited with exit code 255\n", []),
        (UNREACHABLE.format("node7") + "pdsh@head: node7: ssh exited with exit code 255\n" + STEPS, []),
        (UNREACHABLE.format("node7") + NO_DAEMONS + "restart\n" + STEPS, []),
        (UNREACHABLE.format("step-7") + NO_DAEMONS, ["step-7"]),
        (UNREACHABLE.format("node7") + NO_DAEMONS + NO_DAEMONS, ["node7"]),
        (UNREACHABLE.format("node7") + "bash: orted: command not found\n" + NO_DAEMONS, [None]),
        (UNREACHABLE.format("node7") + "a line\n" * 20 + NO_DAEMONS, [None]),
        ("git@github.com: Permission denied (publickey).\n" + NO_DAEMONS, [None]),
        ("user@node7: Permission denied (publickey).\nrsync: connection unexpectedly closed\n" + NO_DAEMONS, [None]),
        ("Host key verification failed.\nfatal: Could not read from remote repository.\n", []),
        ("ssh not successful for host node7:\nretry\ngit@github.com: Permission denied (publickey).\n", []),
        ("ssh not successful for host node7:\n" + STEPS + UNREACHABLE.format("node7"), []),
        ("pdsh@head: node7: ssh exited with exit code 255\n", []),
        (
            "".join(UNREACHABLE.format(host) for host in ("node7.x", "node8"))
            + "".join(f"pdsh@head: {host}: ssh exited with exit code 255\n" for host in ("node7", "node8")),
            ["node7.x", "node8"],
        ),
    ],
)
def test_an_old_or_solved_error_of_ssh_is_no_failed_start(log: str, hosts: list[str | None]) -> None:
    assert [event.host for event in read(log)] == hosts


def test_a_failed_start_is_a_warning_if_the_log_goes_on() -> None:
    assert [event.kind.advisory for event in read(NO_DAEMONS + "a line\n" * 100)] == [False]
    assert [event.kind.advisory for event in read(NO_DAEMONS + "a line\n" * 1000)] == [True]


@pytest.mark.parametrize(
    "shell", ["orted: Command not found.", "zsh:1: command not found: orted", "sh: 1: orted: not found"]
)
def test_each_shell_says_that_the_daemon_is_missing(shell: str) -> None:
    assert [event.facts.get("program") for event in read(f"{shell}\n{NO_DAEMONS}")] == ["orted"]


@pytest.mark.parametrize("part", ["a", "a.b@", "@a", "[a:0:0@", "x."])
def test_a_long_line_about_ssh_is_read_quickly(part: str) -> None:
    line = (part * 4_000)[:3_900]
    begin = time.process_time()
    for number in range(20):
        assert read(f"{line}ssh: {number}\n{line} Permission denied (_sock_connect {number}\n{line} Pod: a.b\n") == ()
    assert time.process_time() - begin < 2  # a quadratic search takes more than 10 s


BARRIER = "x.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: b. x\n"
NAMES = "Timed out task names:\n"
TASK_3 = "/job:jax_worker/replica:0/task:3"


@pytest.mark.parametrize(
    ("log", "ranks", "reporter"),
    [
        (f"[rank0]: {BARRIER}", (), 0),
        (f"[rank0]: {BARRIER}[rank5]: step 3\n", (), 0),
        (f"[1,3]<stderr>:{BARRIER}[1,5]<stdout>:step 10\n", (), 3),
        (f"3: step 1\n5: step 1\n3: {BARRIER}5: step 10\n3: x\n", (), 3),
        ("[rank0]: x: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n", (), 0),
        (f"{BARRIER}{NAMES}[rank1]: step\n{TASK_3}\n", (3,), None),
        (f"[rank0]: {BARRIER}[rank0]: {NAMES}[rank1]: step\n[rank0]: {TASK_3}\n[rank0]: bye\n", (3,), None),
        (f"{BARRIER}{NAMES}{TASK_3}\n/job:jax_worker/replica:0/task:4 has finished\n", (3,), None),
        (f"{BARRIER}{NAMES}{TASK_3}\n" + "a line\n" * 30 + "/job:jax_worker/replica:0/task:4\n", (3,), None),
        (f"{BARRIER[:-1]} {NAMES[:-1]}\\n{TASK_3}\\n. Seen by /job:jax_worker/replica:0/task:0\n", (3,), None),
    ],
)
def test_the_rank_that_reports_absent_ranks_is_not_absent(log: str, ranks: tuple[int, ...], reporter: int) -> None:
    events = [event for event in read(log) if event.role == Role.ABSENT]
    assert [(event.ranks, event.facts.get("reported_by")) for event in events] == [(ranks, reporter)]
    assert [event.rank for event in events] == [ranks[0] if ranks else None]


def test_interleaved_lists_of_two_processes_are_kept_apart() -> None:
    log = f"[rank0]: {BARRIER}[rank1]: {BARRIER}[rank0]: {NAMES}[rank1]: {NAMES}[rank0]: {TASK_3}\n[rank1]: x\n"
    assert [event.ranks for event in read(log) if event.role == Role.ABSENT] == [(3,), ()]


def test_an_event_has_the_label_of_its_first_line() -> None:
    unhealthy = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
    events = read(f"[rank1]: {unhealthy}\n[rank2]: ValueError: b\n")
    assert {(event.code, event.rank) for event in events} == {("coordination-stopped", 1), ("python-error", 2)}


def test_a_task_that_connects_again_was_not_lost() -> None:
    silent = f"W x] Task {TASK_3} heartbeat timeout. This indicates\n"
    listed = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n"
    listed += f"{TASK_3}\n/job:jax_worker/replica:0/task:4\nThe tasks have crashed.\n"
    back = f"I x] {TASK_3} has connected to coordination service. Incarnation: 2\n"
    assert [event.ranks for event in read(silent)] == [(3,)]
    assert read(silent + "step\n" + back) == ()
    assert [event.ranks for event in read(listed + "step\n" + back)] == [(4,)]
    assert [event.ranks for event in read(listed + "step\n" * 40 + back)] == [(4,)]
    assert read(listed.replace("/job:jax_worker/replica:0/task:4\n", "") + back) == ()


@pytest.mark.parametrize(("status", "is_sure"), [(1, None), (11, None), (3, None), (4, True), (14, True), ("", False)])
def test_a_remote_call_that_ends_as_usual_does_not_lose_a_task(status: int | str, is_sure: bool | None) -> None:
    remote = "Additional GRPC error information from remote target /job:worker/replica:0/task:1:"
    for end in (f'\n:{{"created":"@1","grpc_status":{status}}}\n', f" :UNKNOWN:x {{grpc_status:{status}}}\n"):
        events = read(remote + end + "step\n" * 5)
        assert [not event.kind.advisory for event in events] == ([] if is_sure is None else [is_sure])


def test_the_words_behind_last_error_are_a_warning_of_nccl() -> None:
    events = read(
        "Last error:\nNET/IB: Got completion from peer 10.0.0.2<4> with status=12 opcode=0 len=0 vendor err 129"
    )
    assert [(event.code, event.peer) for event in events] == [("ib-retry-exceeded", "10.0.0.2<4>")]


def test_ras_names_the_dead_the_missing_and_the_late() -> None:
    found = [(event.code, event.rank, event.pid, event.seq, event.ranks) for event in read(RAS)]
    assert found == [
        ("ras-dead", None, 3487, None, ()),
        ("ras-missing", None, None, None, (21,)),
        ("ras-launched", None, None, 6650, ()),
        ("ras-launched", None, None, 6649, ()),
        ("ras-launched", 3, 483, 6649, ()),
    ]


def test_the_inspector_shows_how_far_a_rank_came() -> None:
    older = INSPECTOR.replace("1407", "1406")
    [event] = read(older + INSPECTOR + older)
    assert (event.code, event.rank, event.seq, event.operation, event.host) == (
        "inspector-finished",
        2,
        1407,
        "AllReduce",
        "node1",
    )
    assert event.role == Role.STATE
    assert [event.seq for event in read(INSPECTOR.replace(", ", ",\n"))] == [1407]


def test_a_dump_is_the_same_as_json_and_as_pickle() -> None:
    for rank in range(4):
        plain = document_events((CRASHES / f"mismatch_rank{rank}.json").read_bytes(), f"mismatch_rank{rank}.json")
        pickled = document_events(
            (CRASHES / f"mismatch_trace_{rank}.pickle").read_bytes(), f"mismatch_trace_{rank}.pickle"
        )
        assert [(e.rank, e.group, e.facts) for e in plain] == [(e.rank, e.group, e.facts) for e in pickled]
        assert {e.rank for e in plain} == {rank}


class _Harmful:
    """Runs a program if it is unpickled as usual."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_code_is_not_read(tmp_path: Path) -> None:
    harmful = pickle.dumps({"entries": [_Harmful(tmp_path / "ran")], "pg_config": {}}, protocol=2)
    assert may_be_document(harmful)
    assert document_events(harmful, "trace_0") == ()
    assert not (tmp_path / "ran").exists()


def test_numbers_and_times() -> None:
    assert numbers("2, 5-7") == (2, 5, 6, 7)
    assert numbers("[0, 1]") == (0, 1)
    times = [time_of(text) for text in ("[E321 02:07:08.5 x", "2026-03-21 02:07:08,5 x", "Mar 21 02:07:08.5 node7 x")]
    assert len(set(times)) == 1 and times[0] is not None
    assert time_of("no time here") is None


def test_events_are_bounded() -> None:
    text = "\n".join(f"node{n}:{n}:1 [0] x.cc:1 NCCL WARN Cuda failure 'x{n}'" for n in range(9_000))
    assert len(read(text)) <= 4_000


PIECES = st.sampled_from([*MESSAGES, *RAS.split("\n"), INSPECTOR, "Root Cause (first observed failure):", "[0]:"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=60)), max_size=12), st.data())
def test_damaged_messages_never_raise(pieces: list[str], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(["\n", "\r\n", "", " "])).join(pieces)
    for _ in range(data.draw(st.integers(0, 6))):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.sampled_from(["", "9" * 30, "\0", "(", "[", "-1", "\n"])) + text[place + 2 :]
    events = read(text, chunk=data.draw(st.integers(1, 500)))
    assert len(events) <= 40 * (text.count("\n") + text.count("\r") + text.count("<std") + 1)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(CRASHES.glob("*_[0-3].*")) + sorted(CRASHES.glob("*rank*.json"))), st.data())
def test_damaged_dumps_never_raise(path: Path, data: st.DataObject) -> None:
    dump = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        dump[data.draw(st.integers(0, len(dump) - 1))] = data.draw(st.integers(0, 255))
    document_events(bytes(dump[: data.draw(st.integers(0, len(dump)))]), path.name)
