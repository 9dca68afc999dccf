"""Crashes as in logs of others, with made-up names: no harmless line and no victim is accused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.core.errors import EXIT_USAGE, EXIT_VERDICT
from bench.explain import crash_page
from bench.explain.crash import Crash, crash_of
from bench.explain.crash_messages import CrashCode
from bench.logs.events import launchers
from bench.logs.failure_events import EventReader
from bench.logs.readers import _lines

WARN = "node1:9:9 [0] x.cc:1 NCCL WARN "
TIMEOUT = (
    "[rank{rank}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType={operation}, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before timing out.\n"
)
AT_WORK = (
    "[rank{rank}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:1664] [PG {group} Rank {rank}] Exception (either an error or "
    "timeout) detected by watchdog at work: 7, last enqueued NCCL work: 7, last completed NCCL work: 6.\n"
)
LIMIT = "slurmstepd: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-03-21T02:07:08 DUE TO TIME LIMIT ***\n"
CANCEL = "slurmstepd: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-03-21T02:07:08 ***\n"
KILLED = "srun: error: node2: task 5: Killed\n"
FALLEN = (
    "Mar 21 02:07:08 node7 kernel: NVRM: The NVIDIA GPU 0000:3b:00.0\n"
    "                              NVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "                              NVRM: fallen off the bus and is not responding to commands.\n"
)
NO_INIT = (
    "It looks like MPI_INIT failed for some reason; your parallel process is\nlikely to abort.\n\n"
    '  ompi_mpi_init: ompi_rte_init failed\n  --> Returned "Error" (-1) instead of "Success" (0)\n'
)
NO_NODE = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: 2 no.\n"
OPEN_MPI = "[{host}:{pid}] *** An error occurred in MPI_Recv\n[{host}:{pid}] *** reported by process [{job},{rank}]\n"
TOO_LONG = "[{host}:{pid}] *** MPI_ERR_TRUNCATE: message truncated\n[{host}:{pid}] *** MPI_ERRORS_ARE_FATAL (x,\n"
CRAY = (
    "MPICH ERROR [Rank 5] [job id 1.0] [Tue Mar 21 02:07:08 2026] [node5] - Abort(1) (rank 5 in comm 0): Fatal error "
    "in PMPI_Allreduce: Other MPI error, error stack:\n"
)
POLL = (
    "MPIDI_OFI_handle_cq_error(1): OFI poll failed (ofi_events.c:1:MPIDI_OFI_handle_cq_error:Input/output error - {})\n"
)
TABLE = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-21_02:07:08\n  host      : node7\n"
    "  rank      : 7 (local_rank: 7)\n  exitcode  : 1 (pid: 12)\n  error_file: <N/A>\n"
    "============================================================\n"
)
RAYLET = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker IP address: "
)
BEATS = (
    "(raylet) The node with node id: 0f21 and address: {0} and node name: {0} has been marked dead because the "
    "detector has missed too many heartbeats from it. This can happen when a raylet crashes\n"
)
TOLD = (
    "W0321 02:07:08.4 90 torch/distributed/elastic/agent/server/api.py:719] Received {} death signal, shutting "
    "down workers\n"
)
CHILD = "E0321 02:07:40.4 90 api.py:869] failed (exitcode: {}) local_rank: 0 (pid: 91) of binary: /usr/bin/python3\n"
EXIT = "[ERROR] [launch.py:321:sigkill_handler] ['python', '--local_rank=3'] exits with return code = "

# A log -> the code, the rank and the host of the likeliest cause
FAILED: dict[str, tuple[str, int | None, str | None]] = {
    # processes that a launcher ended after the time limit, a user or a failure did not cause it
    LIMIT + KILLED: ("time-limit", None, None),
    CANCEL + KILLED: ("step-cancelled", None, None),
    KILLED + CANCEL: ("killed", 5, "node2"),
    CANCEL + "srun: error: node2: task 5: Exited with exit code 3\n": ("exited", 5, "node2"),
    LIMIT.replace("TIME LIMIT", "PREEMPTION") + KILLED: ("cancelled", None, None),
    "[mpiexec@node1] Sending Ctrl-C to processes as requested\nsrun: error: node1: task 0: Exited with exit code 7\n": (
        "interrupted",
        None,
        None,
    ),
    # exit codes that report a signal
    "srun: error: node7: task 2: Exited with exit code 139\n": ("crashed", 2, "node7"),
    "srun: error: node7: task 2: Exited with exit code 137\n": ("killed", 2, "node7"),
    # launchers
    "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\nsrun: error: node7: task 2: Out Of Memory\n": (
        "host-out-of-memory",
        2,
        "node7",
    ),
    EXIT + "-9\n": ("killed", None, None),  # DeepSpeed prints the arguments of the last process, not of the failed one
    EXIT + "-7\n": ("crashed", None, None),
    "srun: error: Task launch for 1.0 failed on node node7: Job credential expired\n": ("not-started", None, "node7"),
    "salloc: error: Node failure on node7\n": ("node-lost", None, "node7"),
    "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[1,0],0] on node node1\n"
    "  Remote daemon: [[1,0],1] on node node7\n": ("node-lost", None, "node7"),
    "".join(f"stderr: {line}\n" for line in TABLE.splitlines()): ("exited", 7, "node7"),
    "worker-1: Traceback (most recent call last):\nworker-1: ValueError: bad batch\n": ("python-error", None, None),
    # MPI: the rank that prints a network's error did not cause it
    CRAY + POLL.format("PTLTE_NOT_FOUND"): ("ofi-failed", None, None),
    CRAY + POLL.format("CANCELED"): ("ofi-cancelled", None, None),
    CRAY.replace("Other MPI error", "Invalid count"): ("mpi-error", 5, "node5"),
    CRAY + "(9): message sizes do not match across processes in the collective routine: Received 4 but expected 8\n": (
        "mpi-error",
        None,
        None,
    ),
    "Rank 5 [Tue Mar 21 02:07:08 2026] [c0-0c0s5n1] Fatal error in PMPI_Waitall: Message truncated, error stack:\n": (
        "mpi-error",
        5,
        "c0-0c0s5n1",
    ),
    "Fatal error in MPI_Send: Invalid rank, error\nInvalid rank has value 1 but must be nonnegative "
    "and less than 1\n": ("mpi-alone", None, None),
    "Fatal error in MPI_Send: Invalid rank, error\nInvalid rank has value 9 but must be nonnegative "
    "and less than 8\n": ("mpi-error", None, None),
    # Open MPI: the lines of two processes may be mixed
    OPEN_MPI.format(host="n1", pid=7, job=65537, rank=3) + "[n2:8] *** An error occurred in MPI_Send\n"
    "[n2:8] *** reported by process [65537,4]\n" + TOO_LONG.format(host="n1", pid=7): ("mpi-error", 3, "n1"),
    OPEN_MPI.format(host="n1", pid="00000", job=65537, rank=3) + "[n1:00000] *** Unknown error\n": (
        "mpi-error-unnamed",
        3,
        "n1",
    ),
    OPEN_MPI.format(host="n1", pid=7, job=65538, rank=3): ("mpi-error-unnamed", None, "n1"),  # of MPI_Comm_spawn
    OPEN_MPI.format(host="n1", pid=7, job=140733606985729, rank=140256452018176): ("mpi-error-unnamed", None, "n1"),
    OPEN_MPI.replace("MPI_Recv", "Socket closed").format(host="n1", pid=7, job=65537, rank=3)
    + "[n1:7] *** Unknown error\nsrun: error: node7: task 2: Exited with exit code 3\n": ("exited", 2, "node7"),
    "*** An error occurred in MPI_Init\n*** on a NULL communicator\n*** MPI_ERRORS_ARE_FATAL (x,\n": (
        "mpi-error-unnamed",
        None,
        None,
    ),
    NO_INIT: ("mpi-error-unnamed", None, None),
    "[proxy:0:0@n1] HYDU_create_process (launch.c:7): execvp error on file ./a (Permission denied)\n": (
        "not-started",
        None,
        "n1",
    ),
    "slurmstepd: error: execve(): a.sh: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2": (
        "not-started",
        0,
        "n1",
    ),
    OPEN_MPI.format(host="n1", pid=7, job=65537, rank=3) + "[n1:7] *** MPI_ERR_OTHER: known error not in list\n": (
        "mpi-error-unnamed",
        3,
        "n1",
    ),
    "Assertion failed in file src/mpid/init.c at line 72: in_use == 0\n": ("mpi-assertion", None, None),
    "[node1:12:0:12] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15)\n"
    "[node1:00012] Signal: Aborted (6)\n": ("ucx-retry-exceeded", None, "node1"),
    " 3: libfabric:1:2:cxi:core:f():1<warn> RXC (1:7:0): Flow control triggered due to failure to append LE. Software "
    "endpoint mode required.\n 3: Program received signal SIGABRT: Process abort signal.\n": (
        "cxi-flow-control",
        3,
        None,
    ),
    # the kernel, Kubernetes, Ray
    FALLEN: ("xid-79", None, "node7"),
    "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 01 caused by previous Xid 149\n": (
        "xid-149",
        None,
        None,
    ),
    "4m Warning Evicted pod/worker-0 The node was low on resource: memory. Container c was using 5Ki\n": (
        "pod-evicted",
        None,
        None,
    ),
    'level=info msg="Pod: ns.job-worker-0 exited with code 1" job=ns.job\n': ("exited", None, "job-worker-0"),
    'Successfully assigned x/a to n1\nSuccessfully pulled image "b:1" in 1s\n'
    'Warning Failed Failed to pull image "a:1": rpc error: x\n': ("image-not-pulled", None, None),
    "Normal Scheduled 1m default-scheduler Successfully assigned x/a to n1\nName:         b\nWarning FailedScheduling "
    + NO_NODE: ("pod-not-scheduled", None, None),
    "Name: a\nNormal Started 1m kubelet Started container main\nName: b\nWarning FailedScheduling 4m " + NO_NODE: (
        "pod-not-scheduled",
        None,
        None,
    ),
    '5s Normal Pulled pod/a Successfully pulled image "a:1" in 1s\n'
    '5s Warning Failed pod/b Failed to pull image "a:1": rpc error: x509\n': ("image-not-pulled", None, None),
    "5s Normal Started pod/b Started container sidecar\n"
    '5s Warning Failed pod/b Failed to pull image "a:1": rpc error: x509\n': ("image-not-pulled", None, None),
    "4m Warning FailedScheduling pod/a " + NO_NODE: ("pod-not-scheduled", None, None),
    "Warning FailedScheduling 7s default-scheduler " + NO_NODE: ("pod-not-scheduled", None, None),
    "4m Normal Scheduled pod/b Successfully assigned x/b to n1\n4m Warning FailedScheduling pod/a " + NO_NODE: (
        "pod-not-scheduled",
        None,
        None,
    ),
    "Warning FailedScheduling default-scheduler 0/3 nodes are unavailable: 3 Insufficient nvidia.com/gpu.\n": (
        "pod-not-scheduled",
        None,
        None,
    ),
    "Warning FailedScheduling default-scheduler no nodes available to schedule pods\n": (
        "pod-not-scheduled",
        None,
        None,
    ),
    "    Reason:       OOMKilled\n    Exit Code:    137\n": ("host-out-of-memory", None, None),
    RAYLET + "10.0.0.2 Worker port: 1 Worker PID: 77 Worker exit type: SYSTEM_ERROR (1) The process is killed by "
    "SIGKILL by OOM killer\n": ("worker-died", None, "10.0.0.2"),
    TIMEOUT.format(rank=2, operation="ALLREDUCE") + RAYLET + "\n": ("collective-timeout", 2, None),
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n": (
        "worker-lost",
        None,
        None,
    ),
    "Error pod job-worker-1 container main exitCode: 1 terminated message: \n": ("exited", None, "job-worker-1"),
    BEATS.format("10.0.0.7"): ("node-lost", None, "10.0.0.7"),
    BEATS.format("10.0.0.7").replace("address", "ip") + RAYLET + "10.0.0.2 Worker port: 1 Worker PID: 77\n": (
        "node-lost",
        None,
        "10.0.0.7",
    ),
    "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\n": ("crashed", 2, None),
    "ERROR:composer.cli.launcher:Global rank 3 (PID 77) exited with code -9\n": ("killed", 3, None),
    "[03-21 02:07:08] Rank 1 scheduler is dead. Please check if there are relevant logs.\n": ("exited", 1, None),
    # torch's number of a process is no rank
    "x.ProcessExitedException: process 3 terminated with signal SIGBUS\n": ("crashed", None, None),
    # what torchrun is told is no fault of a rank; a user's Ctrl-C is known, and a rank's own failure counts more
    TOLD.format(2) + "KeyboardInterrupt\n" + CHILD.format(-9): ("interrupted", None, None),
    TOLD.format(15): ("step-cancelled", None, None),
    TOLD.format(1) + CHILD.format(-9): ("step-cancelled", None, None),
    TOLD.format(15) + CHILD.format(-11): ("crashed", None, None),
    TOLD.format(15) + TIMEOUT.format(rank=2, operation="ALLREDUCE"): ("collective-timeout", 2, None),
    # libraries
    "Abort(1094799) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init_thread: Other MPI error, error stack:\n"
    "MPIDI_NM_mpi_init_hook(719): OFI addrinfo() failed (ofi_init.h:719:MPIDI_NM_mpi_init_hook:No data available)\n": (
        "ofi-failed",
        None,
        None,
    ),
    "libfabric:1:2::efa:cq:efa_rdm_txe_handle_error():7<warn> err: 5, message: Unresponsive remote My EFA addr: "
    "fi_addr_efa://[fe80::1]:0:1 My host id: i-0a Peer EFA addr: fi_addr_efa://[fe80::2]:0 Peer host id: i-0b (7)\n": (
        "ofi-failed",
        None,
        None,
    ),
    "INTERNAL: xla/nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled "
    "system error (run with NCCL_DEBUG=INFO for details).\n": ("system-call-failed", None, None),
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 802 'system not yet "
    "initialized'\n": ("fabric-not-ready", None, None),
    # Python
    "x.RendezvousConnectionError: The connection to the C10d store has failed.\n": ("store-unreachable", None, None),
    "x.RendezvousTimeoutError\n": ("ranks-did-not-start", None, None),
    "x.RendezvousClosedError\nValueError: bad batch\n": ("python-error", None, None),
    "RuntimeError: DataLoader worker (pid 5) is killed by signal: Bus error. \n": ("loader-memory", None, None),
    "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed. \n": ("killed", None, None),
    # CUDA and the store
    "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at /x.cpp:265\n": (
        "gpu-broken",
        None,
        None,
    ),
    "RuntimeError: CUDA error: uncorrectable ECC error encountered\n[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL "
    "watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n": (
        "gpu-broken",
        1,
        None,
    ),
    "[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network address.\n": (
        "port-in-use",
        None,
        None,
    ),
    "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 192.0.2.1:1234\n": (
        "store-unreachable",
        None,
        None,
    ),
    # NCCL: the event of a port explains the retries of another rank, but a missing library explains no time-out
    WARN.replace("node1", "node48") + "NET/IB : Got async event : port error\n" + WARN + "NET/IB : Got completion from "
    "peer node48<3> with error 12, opcode 2, len 1, vendor err 129\n": ("ib-port-event", None, "node48"),
    WARN + "Failed to open libibverbs.so[.1]\n" + TIMEOUT.format(rank=0, operation="ALLREDUCE"): (
        "collective-timeout",
        0,
        None,
    ),
    WARN + "Could not find a path for pattern 4\n" + TIMEOUT.format(rank=0, operation="ALLREDUCE"): (
        "collective-timeout",
        0,
        None,
    ),
    "[rank0]:[E804 23:05:54.8 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal "
    "due to a collective timeout from  rank 13 and we will try our best to dump the debug info. Last enqueued NCCL "
    "work: 1261, last completed NCCL work: 1259.\n": ("timeout-elsewhere", 13, None),
    "[rank0]: RuntimeError: NCCL communicator was aborted on rank 0.\n[rank3]: KeyError: 'x'\n": (
        "python-error",
        3,
        None,
    ),
    "[rank0]: ConnectionResetError: [Errno 104] Connection reset by peer\nsrun: error: n3: task 3: Killed\n": (
        "killed",
        3,
        "n3",
    ),
}
STALLED = (
    "[2026-03-21 02:07:08.1: W stall_inspector.cc:107] One or more tensors were submitted by subset of ranks\n"
    "Missing ranks:\n0: [HorovodAllreduce_a_0, HorovodAllreduce_b_0]\n4: [HorovodAllreduce_a_0]\n"
)
XID = "kernel: NVRM: Xid (PCI:0000:01:00): 144, {}\n"
HEALTHY = (
    WARN + "Failed to open libibverbs.so[.1]\nnode1:9:9 [0] NCCL INFO Using network Socket\n",
    WARN + "NET/IB : Got async event : client reregistration\n",
    WARN + "NET/IB : mlx5_0:1 Got async event : GID table change\n",
    WARN + "Could not find a path for pattern 4, falling back to simple order\n",
    WARN + 'Missing "iommu=pt" from kernel command line which can lead to system instability\n',
    "2026-03-21 02:07:08 | WARNING | trainer | OOM: exception: CUDA out of memory. Tried to allocate 9 GiB\n",
    "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:1 (errno: 98 - Address already in use).\n",
    "Exception ignored in: <function f at 0x7f>\nTraceback (most recent call last):\nAssertionError: a child process\n",
    "[node1][[1,1],2][btl_tcp.c:1:f] remote peer unexpectedly closed connection while I was waiting\n",
    "HorovodAllreduce_acc_0 [missing ranks: 0, 4]\nEpoch 2\n",
    STALLED + "Epoch 2\n",
    XID.format("SAW_MVB Nonfatal XC0 i0 Link 0 (0x1 0x8)"),
    'msg="Pod: ns.job-worker-0 exited with code 1"\nmsg="Need to restart the pod: ns.job-worker-0"\nstep 2\n',
    'msg="Pod: ns.job-worker-0 exited with code 1"\nmsg="PyTorchJob job is successfully completed."\n',
    "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\nstep 1\n",
)


def test_a_table_of_missing_ranks_names_all_of_them_beside_a_failure() -> None:
    for label in ("", "[1]<stderr>:", "[1,0]<stderr>:", "[0] "):
        text = "".join(f"{label}{line}\n" for line in STALLED.splitlines())
        crash = crash_in(text + "Epoch 2\n", failed=True)
        assert crash is not None and (crash.first.code, crash.first.rank) == ("stalled-ranks", None)
        assert crash.absent == (0, 4) and crash.first.operation == "HorovodAllreduce_a_0"


def test_a_driver_that_calls_an_error_nonfatal_is_believed_unless_the_run_failed() -> None:
    crash = crash_in(XID.format("SAW_MVB Nonfatal XC0"), failed=True)
    assert crash is not None and crash.first.code == "xid-144" and "nonfatal" in " ".join(crash_page.text(crash))
    fatal = crash_in(XID.format("SAW_MVB Fatal XC0"))
    assert fatal is not None and fatal.reasons[0].weight > 0.8


def test_a_rank_whose_watchdog_reports_an_error_or_a_timeout_is_not_called_failed() -> None:
    crash = crash_in(AT_WORK.format(rank=4, group="0 (default_pg)"))
    assert crash is not None and crash.first.rank == 4
    text = " ".join(" ".join(crash_page.text(crash)).split())
    assert "waited for other ranks, or an error ended it" in text and "rank 4 failed" not in text


def crash_in(text: str, failed: bool = False) -> Crash | None:
    """The crash in one log."""
    reader = EventReader()
    for _ in _lines.lines([text.encode()], reader.look):
        pass
    return crash_of(reader.events("job.log"), failed)


@pytest.mark.parametrize(("log", "wanted"), FAILED.items())
def test_the_cause_is_named_and_no_victim(log: str, wanted: tuple[str, int | None, str | None]) -> None:
    crash = crash_in(log)
    assert crash is not None
    assert (crash.first.code, crash.first.rank, crash.first.host) == wanted
    assert list(crash_page.text(crash)) and json.dumps(crash.to_dict())


@pytest.mark.parametrize("log", HEALTHY)
def test_a_harmless_line_is_no_failure(log: str) -> None:
    assert crash_in(log) is None


def test_a_warning_is_a_cause_only_of_a_failed_run() -> None:
    crash = crash_in(HEALTHY[3], failed=True)
    assert crash is not None and crash.first.code == "nccl-warning"


def test_a_page_without_a_failure_shows_the_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.log"
    log.write_text(HEALTHY[0])
    assert main(["explain", str(log)]) == EXIT_USAGE
    assert "no failure" in " ".join((said := capsys.readouterr().err).split()) and "libibverbs" in said


def test_different_operations_with_one_number_in_one_group_are_a_mismatch() -> None:
    def log(groups: tuple[str, str]) -> str:
        lines = [TIMEOUT.format(rank=rank, operation=name) for rank, name in ((3, "ALLREDUCE"), (7, "BROADCAST"))]
        return "".join(lines) + "".join(AT_WORK.format(rank=r, group=g) for r, g in zip((3, 7), groups, strict=True))

    crash = crash_in(log(("0 (default_pg)", "0 (default_pg)")))
    assert crash is not None and (crash.first.code, crash.first.rank) == ("recorded-mismatch", None)
    assert "ALLREDUCE" in crash.first.facts["calls"] and "BROADCAST" in crash.first.facts["calls"]
    for groups in (("1", "2"), ("1 (dp)", "1 (tp)")):
        other = crash_in(log(groups))
        assert other is not None and other.first.code == "collective-timeout"
    unnamed = crash_in(log(("1", "1")).replace("[PG 1 Rank", "[Rank"))
    assert unnamed is not None and (unnamed.first.code, unnamed.first.rank) == ("timed-out-calls-differ", None)
    assert "or they belong to different groups" in unnamed.reasons[0].what


def test_different_sizes_with_one_number_are_a_mismatch_where_all_ranks_give_one_size() -> None:
    def log(operation: str, group: str = "0 (default_pg)") -> str:
        lines = [TIMEOUT.format(rank=rank, operation=operation) for rank in (0, 1)]
        lines[1] = lines[1].replace("NumelIn=4, NumelOut=4", "NumelIn=7, NumelOut=7")
        return "".join(lines) + "".join(AT_WORK.format(rank=rank, group=group) for rank in (0, 1) if group)

    for operation in ("ALLREDUCE", "_ALLGATHER_BASE"):
        crash = crash_in(log(operation))
        assert crash is not None and (crash.first.code, crash.first.rank) == ("recorded-mismatch", None)
        assert "[4]" in crash.first.facts["calls"] and "[7]" in crash.first.facts["calls"]
        unnamed = crash_in(log(operation, ""))
        assert unnamed is not None and unnamed.first.code == "timed-out-calls-differ"
        assert "all-ranks-inside" not in [reason.code for reason in unnamed.reasons]
    uneven = crash_in(log("ALLTOALL_BASE"))
    assert uneven is not None and uneven.first.code == "collective-timeout"


def test_a_rank_that_others_left_behind_is_not_said_to_wait_for_them() -> None:
    status = (
        "[rank{0}]:[E1 x.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Exception (either an error or timeout) "
        "detected by watchdog at work: {1}, last enqueued NCCL work: 128, last completed NCCL work: {2}.\n"
    )
    late = TIMEOUT.format(rank=0, operation="ALLREDUCE")
    stuck = int(late.split("SeqNum=")[1].split(",")[0])
    crash = crash_in(late + status.format(0, stuck, stuck - 1) + status.format(1, stuck + 4, stuck + 3))
    assert crash is not None and (crash.first.code, crash.first.rank) == ("ranks-left-behind", 0)
    even = crash_in(late + status.format(0, stuck, stuck - 1) + status.format(1, stuck, stuck - 1))
    assert even is not None and even.first.code == "collective-timeout"


def test_a_job_that_joined_the_store_of_its_earlier_start_lacks_no_rank() -> None:
    text = (
        "Timed out initializing process group in store based barrier on rank: 0 (world_size={}, worker_count=16, t)\n"
    )
    crowded, small = crash_in(text.format(8)), crash_in(text.format(17))
    assert crowded is not None and "earlier start" in crowded.reasons[0].what
    assert small is not None and "only 16 of 17" in small.reasons[0].what


def test_the_size_of_a_subgroup_is_not_the_number_of_ranks() -> None:
    gathers = [TIMEOUT.format(rank=rank, operation="ALLGATHER") for rank in (0, 1, 2, 3, 8, 9, 10)]
    crash = crash_in("".join(gathers).replace("NumelOut=4", "NumelOut=16"))
    assert crash is not None and crash.first.code == "collective-timeout" and crash.absent == ()
    assert crash.num_ranks is None


def test_an_interrupted_job_lacks_no_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.log"
    log.write_text("srun: sending Ctrl-C to StepId=1.1\n")
    assert main(["explain", str(log), "--format", "json"]) == EXIT_VERDICT
    [crash] = json.loads(capsys.readouterr().out)["crashes"]
    assert crash["first"]["code"] == "interrupted" and crash["unknown"] == []


REFUSED = (
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node1]:29500 (errno: 97 - Address family"
)
NEXT_RUN = "step 1 of the next run\n" * 500
UCX_ERROR = "[1530549338.253029] [node1:12:0]   x.c:966  UCX  ERROR {}\n"
NO_ENDPOINT = "[node1:12] pml_ucx.c:296 Error: ucp_ep_create(proc=7) failed: Input/output error\n"
SEGFAULT = "[node1:12:0:12] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)\n"
NOT_AT_BARRIER = (
    "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: b. Timed out task names:\n"
    "/job:jax_worker/replica:0/task:3\n"
)


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        ("2026-03-21 02:07:08 INFO worker-0 RuntimeError: CUDA error: an illegal memory access\n", "kernel-fault"),
        ("2026-03-21 02:07:08 WARNING stderr CUDA error: an illegal memory access was encountered\n", "kernel-fault"),
        ("2026-03-21 02:07:08 INFO worker-0 torch.OutOfMemoryError: CUDA out of memory.\n", "out-of-memory"),
        (WARN + "Cuda failure 700 'an illegal memory access was encountered'\n", "cuda-failed"),
        (WARN + "Cuda failure 1 'invalid argument'\n", "cuda-failed"),
        (LIMIT.replace("TIME LIMIT", "PREEMPTION") + NEXT_RUN + KILLED.replace("Killed", "Bus error"), "crashed"),
        ("[rank1]: Exception ignored in: <f>\n[rank0]: KeyError: 'a'\n[rank1]: AttributeError: b\n", "python-error"),
        ("srun: error: task 2: Out Of Memory\n", "host-out-of-memory"),
        ("RuntimeError: Address already in use\n", "port-in-use"),
        ("[node1:12:0:12] x.c:139  Local protection on mlx5_0:1/IB (synd 0x4 vend 0x51)\n", "ucx-transfer-failed"),
        ("[node1:12:0:12] x.c:139  Remote QP on mlx5_0:1/IB (synd 0x14 vend 0x89)\n", "ucx-transfer-failed"),
        ("[node1:12:0:12] x.c:139  RNR retry count exceeded on mlx5_0:1/IB (synd 0x16)\n", "ucx-receiver-not-ready"),
        ('Container c exceeded its local ephemeral storage limit "10Gi". \n', "pod-evicted"),
        ('Usage of EmptyDir volume "dshm" exceeds the limit "8Gi". \n', "pod-evicted"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 8Gi. \n", "pod-evicted"),
        ("Preempted by a pod on node node7\n", "pod-evicted"),
        ("The node had condition: [DiskPressure]. \n", "pod-evicted"),
        ("4m Warning FailedScheduling pod/a " + NO_NODE + "[rank0]: KeyError: 'a'\n", "python-error"),
        ("Task was killed due to the node running low on memory.\n", "host-out-of-memory"),
        ("Horovod has been shut down. This was caused by an exception on one of the ranks.\n", "horovod-stopped"),
        ("mpirun: Forwarding signal 2 to job\n", "interrupted"),
        (UCX_ERROR.format("failed to create qp: Invalid argument") + NO_ENDPOINT + SEGFAULT, "ucx-setup-failed"),
        (UCX_ERROR.format("no usable transports/devices (asked dc_x)") + SEGFAULT, "crashed"),
        ("[/x/gloo/transport/tcp/pair.cc:7] connect [127.0.1.1]:4: Connection refused\nAborted\n", "cannot-connect"),
        ("mtl_ofi.h:101: Error returned from fi_cq_read: Input/output error(-5).\nAborted\n", "ofi-failed"),
        ("Received Signals.SIGHUP death signal, shutting down workers\nKilled\n", "step-cancelled"),
        (NOT_AT_BARRIER, "missing-at-barrier"),
    ],
)
def test_a_failure_is_not_taken_for_a_warning(log: str, wanted: str) -> None:
    crash = crash_in(log)
    assert crash is not None and crash.first.code == wanted


def test_open_mpis_error_names_the_call_and_the_reason() -> None:
    crash = crash_in(OPEN_MPI.format(host="n1", pid=7, job=65537, rank=3) + TOO_LONG.format(host="n1", pid=7))
    assert crash is not None
    assert crash.first.facts["error"] == "MPI_Recv: MPI_ERR_TRUNCATE: message truncated"
    assert "another size" in crash.reasons[0].what
    crash = crash_in(NO_INIT)
    assert crash is not None
    assert crash.first.facts["error"] == 'MPI_INIT: ompi_mpi_init: ompi_rte_init failed: "Error" (-1)'


@pytest.mark.parametrize(
    "log",
    [
        REFUSED + " not supported by protocol).\n",
        WARN + "NET/IB : Got async event : SRQ limit reached\n",
        WARN + "NET/IB : mlx5_0:1 Got async event : last WQE reached\n",
        "5m  Normal  NodeNotReady  node/n1  Node n1 status is now: NodeNotReady\n",
        'level=info msg="Pod: ns.job-worker-0 exited with code 0" job=ns.job\n',
        'Failed to pull image "a:1": rpc error: x\nSuccessfully pulled image "a:1" in 1s\n',
        "4m Warning FailedScheduling pod/a " + NO_NODE + "1m Normal Scheduled pod/a Successfully assigned x/a to n1\n",
        "Normal Scheduled 1m default-scheduler Successfully assigned x/a to n1\nWarning FailedScheduling 4m " + NO_NODE,
        'Warning Failed 5m kubelet Failed to pull image "a:1": rpc error: x\n'
        'Normal Pulled 4m kubelet Container image "a:1" already present on machine\n',
        '5m Warning Failed pod/a Failed to pull image "a:1": rpc error: x\n4m Normal pod/a Started container main\n',
        "4m Warning FailedScheduling pod/a " + NO_NODE + "3m Normal Started pod/a Started container main\n",
        "4m Warning FailedScheduling pod/a " + NO_NODE + '3m pod/a Container image "a:1" already present on machine\n',
        "Name: a\n4m Warning FailedScheduling " + NO_NODE + "3m Normal Started Started container main\n",
        "Warning FailedScheduling 5m volcano 0/3 nodes are unavailable: 3 Insufficient cpu.\n"
        "Normal Started 4m kubelet Started container main\n",
        "command terminated with exit code 1\n",
        "RuntimeError: CUDA error: driver shutting down\n",
        "nNodes 2 nranks 16\n",
        UCX_ERROR.format("no usable transports/devices (asked dc_x)"),
        "ssh: Could not resolve hostname node7: Name or service not known\n",
        "I x.cc:1] BaseCollectiveExecutor::StartAbort OUT_OF_RANGE: End of sequence\n",
        "I x.cc:1] BaseCollectiveExecutor::StartAbort CANCELLED: RPC Request was cancelled\n",
        "E x.cc:1] BaseCollectiveExecutor::StartAbort UNAVAILABLE: Collective ops is aborted by: x\n",
        "I x.cc:1] Coordination service agent in error status: CANCELLED: shutting down\n",
        "E x.cc:1] Failed to disconnect from coordination service with status: UNAVAILABLE: Failed to send RPC to "
        "coordination service. Either the leader task was preempted\nProceeding with agent shutdown anyway.\n",
    ],
)
def test_a_usual_message_is_no_failure(log: str) -> None:
    assert crash_in(log) is None


def test_a_warning_hides_neither_a_failure_of_its_rank_nor_of_another() -> None:
    warning = "[rank0]: 2026-03-21 02:07:08 | WARNING | trainer | CUDA out of memory. Tried to allocate 9 GiB\n"
    for rank in (0, 3):
        crash = crash_in(warning + f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried again\n")
        assert crash is not None and (crash.first.code, crash.first.rank) == ("out-of-memory", rank)


def test_an_ignored_exception_is_that_of_its_own_process() -> None:
    crash = crash_in("[rank1]: Exception ignored in: <f>\n[rank0]: KeyError: 'a'\n[rank1]: AttributeError: b\n")
    assert crash is not None and (crash.first.rank, crash.first.facts["error"]) == (0, "KeyError")


def test_an_exception_without_a_rank_is_not_that_of_another_exceptions_rank() -> None:
    crash = crash_in("ValueError: bad config\n[rank3]: RuntimeError: x\n")
    assert crash is not None and crash.first.rank is None


def test_two_groups_of_one_name_do_not_disagree() -> None:
    def log(group: str, other: str) -> str:
        lines = [TIMEOUT.format(rank=rank, operation=name) for rank, name in ((0, "ALLREDUCE"), (4, "ALLGATHER"))]
        at = [
            AT_WORK.replace("[PG {group} Rank {rank}]", own).format(rank=rank) for rank, own in ((0, group), (4, other))
        ]
        return "".join(lines + at)

    pairs = (
        ("[PG ID 1 PG GUID 9(mesh_tp) Rank 0]", "[PG ID 1 PG GUID 11(mesh_tp) Rank 0]"),
        ("[PG ID 1 PG GUID 9(mesh_tp) Rank 0]", "[PG ID 1 PG GUID 11(mesh_tp) Rank 1]"),
        ("[PG 1 (mesh_tp) Rank 0]", "[PG 1 (mesh_tp) Rank 0]"),
    )
    for pair in pairs:
        crash = crash_in(log(*pair))
        assert crash is not None and crash.first.code == "collective-timeout"
    crash = crash_in(log("[PG ID 1 PG GUID 9(mesh_tp) Rank 0]", "[PG ID 1 PG GUID 9(mesh_tp) Rank 1]"))
    assert crash is not None and crash.first.code == "recorded-mismatch"


def test_only_the_gpu_of_the_report_fell_off_the_bus() -> None:
    early = "Mar 21 02:07:08 node7 kernel: NVRM: GPU 0000:3b:00.0: RmInitAdapter failed!\n"
    late = "Mar 21 09:07:08 node8 kernel: NVRM: GPU at PCI:0000:dc:00 has fallen off the bus\n"
    crash = crash_in(early + NEXT_RUN + late)
    assert crash is not None and (crash.first.facts["bus"], crash.first.host) == ("0000:dc:00", "node8")


def test_a_lost_connection_without_two_ranks_does_not_speak_of_two_ranks() -> None:
    crash = crash_in("x.RendezvousClosedError\n")
    assert crash is not None and crash.first.code == "rendezvous-closed"
    assert CrashCode.END_UNKNOWN not in [line.code for line in crash.unknown]


CAUGHT = "2026-03-21 02:07:08 | WARNING | trainer | CUDA out of memory. Retrying with batch 4\n"
AT_EXIT = "RuntimeError: CUDA error: driver shutting down\n"
STALL = "[2026-03-21 02:07:08 : W stall_inspector.cc:107] ranks did not submit.\nMissing ranks:\n4: [Allreduce_a_0]\n"


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        ("[rank0]: " + CAUGHT + NEXT_RUN + "srun: error: Node failure on node7\n", ("node-lost", None, "node7")),
        ("[rank0]: " + CAUGHT + TIMEOUT.format(rank=2, operation="ALLREDUCE"), ("collective-timeout", 2, None)),
        ("[rank0]: " + CAUGHT + "srun: error: node7: task 0: Exited with exit code 3\n", ("exited", 0, "node7")),
        (CAUGHT + LIMIT + KILLED, ("time-limit", None, None)),
        ("5m Normal NodeNotReady node/n1\n[rank0]: KeyError: 'a'\n", ("python-error", 0, None)),
        ("[rank0]: KeyError: 'a'\n[rank0]: " + AT_EXIT, ("python-error", 0, None)),
        (AT_EXIT + "srun: error: node7: task 2: Exited with exit code 1\n", ("exited", 2, "node7")),
        (CANCEL + AT_EXIT + KILLED, ("step-cancelled", None, None)),
        (STALL + "[rank1]: KeyError: 'a'\n", ("python-error", 1, None)),
        (TOLD.format("Signals.SIGTERM") + CHILD.format(-9), ("step-cancelled", None, None)),
        (TOLD.format("Signals.SIGINT") + CHILD.format(-9), ("interrupted", None, None)),
        (CANCEL + "File x\n" * 250 + KILLED, ("step-cancelled", None, None)),
        (
            "Rank 1 scheduler is dead. Please check.\nslurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n"
            "srun: error: node7: task 2: Out Of Memory\n",
            ("host-out-of-memory", 2, "node7"),
        ),
        (
            "DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (n, 1).\n",
            ("store-unreachable", None, None),
        ),
    ],
)
def test_neither_a_warning_nor_what_a_stop_caused_comes_first(
    log: str, wanted: tuple[str, int | None, str | None]
) -> None:
    crash = crash_in(log)
    assert crash is not None and (crash.first.code, crash.first.rank, crash.first.host) == wanted


def test_a_cuda_call_that_fails_at_exit_is_no_failure() -> None:
    assert crash_in(WARN + "Cuda failure 4 'driver shutting down'\n# Out of bounds values : 0 OK\n") is None


def test_a_table_of_missing_ranks_ends_with_its_label() -> None:
    table = "0: Missing ranks:\n0: 4: [Allreduce_a_0, Allreduce_a_1 ...]\n"
    table += "5: [2026-03-21 02:07:09] INFO epoch 2\n17: [loss 2.0]\n"
    crash = crash_in("0: step\n1: step\n0: step\n" + table, failed=True)
    assert crash is not None and crash.absent == (4,)


PROCESS_FAILED = OPEN_MPI.format(host="n1", pid=7, job=65537, rank=0) + "[n1:7] *** {}: x\n"
TASK = "/job:jax_worker/replica:0/task:3"
SILENT_TASK = f"E x] Task {TASK} heartbeat timeout. This indicates that the remote task has failed\n"
TASK_3 = "srun: error: node7: task 3: {}\n"
REFUSED_AT = "[rank0]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:799] connect [{}]:13195: Connection refused\n"
MTL_OFI = "mtl_ofi.h:101: Error returned from fi_cq_readerr: Input/output error(-5).\n"
HANGUP, CTRL_C = (f"W x.py:9] Sending process 12 closing signal {name}\n" for name in ("SIGHUP", "SIGINT"))
NO_TERMINAL = "[rank0]: OSError: [Errno 5] Input/output error\n"
NO_WORKER = "[rank0]: RuntimeError: DataLoader worker (pid 1) exited unexpectedly\n"
NET_OFI = WARN + "NET/OFI Request 0x7f00 completed with error. RC: 107. Error: unknown error. Completed length: 0\n"
POD_ENDED = 'level=info msg="Pod: ns.job-worker-3 exited with code {}" job=ns.job\n'
HYDRA = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        # a rank that raised or was killed reaches no barrier and sends no heartbeats
        ("3: a\n3: b\n3: ValueError: bad batch\n" + NOT_AT_BARRIER, ("python-error", 3)),
        ("[rank3]: ValueError: bad batch\n" + SILENT_TASK, ("python-error", 3)),
        (TASK_3.format("Killed") + SILENT_TASK, ("killed", 3)),
        (SILENT_TASK + TASK_3.format("Killed"), ("killed", 3)),
        (SILENT_TASK + TASK_3.format("Exited with exit code 1"), ("exited", 3)),
        # but a later error, or the failure of another rank, does not explain why it is missing
        (SILENT_TASK + "[rank3]: ValueError: bad batch\n", ("heartbeats-stopped", 3)),
        ("[rank4]: ValueError: bad batch\n" + SILENT_TASK, ("heartbeats-stopped", 3)),
        # what a stopped job prints
        (LIMIT + SILENT_TASK, ("time-limit", None)),
        (LIMIT.replace("TIME LIMIT", "PREEMPTION") + SILENT_TASK, ("cancelled", None)),
        (CANCEL + SILENT_TASK, ("step-cancelled", None)),
        (LIMIT + PROCESS_FAILED.format("MPI_ERR_PROC_FAILED"), ("time-limit", None)),
        (LIMIT + PROCESS_FAILED.format("MPI_ERR_COMM"), ("time-limit", None)),
        (LIMIT + MTL_OFI, ("time-limit", None)),
        ("srun: sending Ctrl-C to StepId=1.1\n" + MTL_OFI, ("interrupted", None)),
        (LIMIT + NEXT_RUN + MTL_OFI, ("ofi-failed", None)),
        (MTL_OFI + LIMIT, ("ofi-failed", None)),
        (CANCEL + PROCESS_FAILED.format("MPI_ERR_COMM"), ("mpi-error", 0)),
        (HANGUP + NO_TERMINAL, ("step-cancelled", None)),
        (CTRL_C + NO_WORKER, ("interrupted", None)),
        (NO_TERMINAL + HANGUP, ("python-error", 0)),
        # a process that reports a dead peer made no error
        (PROCESS_FAILED.format("MPI_ERR_PROC_FAILED") + TASK_3.format("Killed"), ("killed", 3)),
        (PROCESS_FAILED.format("MPI_ERR_REVOKED") + TASK_3.format("Killed"), ("killed", 3)),
        (PROCESS_FAILED.format("MPI_ERR_PROC_FAILED_PENDING"), ("mpi-process-failed", 0)),
        (PROCESS_FAILED.format("MPI_ERR_PROC_ABORTED"), ("mpi-process-failed", 0)),
        # network errors after a failure
        ("ModuleNotFoundError: No module named 'x'\n" + REFUSED_AT.format("127.0.0.1"), ("python-error", None)),
        (NET_OFI + POD_ENDED.format(137), ("killed", None)),
        (NET_OFI + POD_ENDED.format(1), ("ofi-failed", None)),
        # Hydra's exit codes
        (HYDRA + "=   EXIT CODE: 9\n=   CLEANING UP\n=   EXIT CODE: 15\n", ("killed", None)),
        (HYDRA + "=   RANK 2 PID 47 RUNNING AT node7\n=   EXIT STATUS: 1\n=====\n", ("exited", 2)),
        (HYDRA + "=   RANK 2 PID 47 RUNNING AT node7\n=   EXIT STATUS: 139\n=====\n", ("crashed", 2)),
        (HYDRA + "=   RANK 2 PID 47 RUNNING AT node7\n=   KILLED BY SIGNAL: 9 (Killed)\n=====\n", ("killed", 2)),
    ],
)
def test_a_consequence_does_not_hide_its_cause(log: str, wanted: tuple[str, int | None]) -> None:
    crash = crash_in(log)
    assert crash is not None and (crash.first.code, crash.first.rank) == wanted


def test_a_dead_peer_of_mpi_does_not_speak_of_nccl() -> None:
    crash = crash_in(PROCESS_FAILED.format("MPI_ERR_PROC_FAILED"))
    assert crash is not None and CrashCode.END_UNKNOWN not in [line.code for line in crash.unknown]


def test_a_loopback_address_is_wrong_only_in_a_job_of_several_nodes() -> None:
    crash = crash_in(REFUSED_AT.format("127.0.0.1"))
    assert crash is not None and "if the job has several nodes" in crash.reasons[0].step


@pytest.mark.parametrize("retries", [0, 1])
def test_a_connection_that_gloo_tries_again_is_no_failure(retries: int) -> None:
    crash = crash_in(
        f"[W gloo/transport/tcp/pair.cc:1] ERROR failed to connect, willRetry={retries}, retry=0, retryLimit=3, "
        "local=[10.0.0.1]:1, remote=[10.0.0.2]:2, error=SO_ERROR: Connection refused, remote=[10.0.0.2]:42000\n"
    )
    assert (crash is None) == bool(retries)


def test_a_long_line_is_read_quickly() -> None:
    [pattern] = [pattern for pattern in launchers._END_PATTERNS if "died from signal" in pattern.pattern]
    begin = time.process_time()
    for _ in range(20):
        assert pattern.search("a" * 4000) is None
    assert time.process_time() - begin < 1  # 3 s if each letter may begin the name of a host


NO_QUEUE_PAIR = (
    UCX_ERROR.format(
        "iface=0x25: failed to create UD QP TX wr:256 sge:2 inl:64 RX wr:4096 sge:1 inl 0: Invalid argument"
    )
    + "[node1:12] pml_ucx.c:273  Error: Failed to create UCP worker\n"
)
NO_PML = "No components were able to be opened in the pml framework.\n"
NO_HELPER = "[proxy:0:0@n1] HYDU_create_process (launch.c:7): execvp error on file nvidia-smi (No such file)\n"
NO_FILE = "slurmstepd: error: execve(): nvidia-smi: No such file or directory\n"
NOT_CONNECTED = "[E socket.cpp:1019] [c10d] The client socket has failed to connect to any network address of (n, 1).\n"
TRIED_AGAIN = (
    "[W TCPStore.cpp:358] [c10d] TCP client failed to connect/validate to host n:1 - retrying (try=0, "
    "timeout=1800000ms, delay=1234ms): The client socket has failed to connect to any network address of (n, 1). \n"
)
TRAINED = "".join(f"step {i} loss 1.{i}\n" for i in range(50))


@pytest.mark.parametrize(
    "log",
    [
        NO_QUEUE_PAIR + TRAINED,
        NO_QUEUE_PAIR,
        NO_HELPER + TRAINED,
        NO_FILE + "step 1\n",
        NOT_CONNECTED + TRIED_AGAIN + TRAINED,
        NOT_CONNECTED + TRIED_AGAIN,
        NOT_CONNECTED + "step 1\n",
        "Rank 3 will spawn processes; 140 No components were used\n" + TRAINED,
    ],
)
def test_what_a_job_survives_is_no_failure(log: str) -> None:
    assert crash_in(log) is None


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        (NO_QUEUE_PAIR + TRAINED + "[rank2]: ValueError: bad batch\n", ("python-error", 2)),
        (NO_QUEUE_PAIR + "[1,3]<stderr>:" + NO_PML, ("ucx-setup-failed", 3)),
        (TASK_3.format("Killed") + NO_ENDPOINT.replace("Input/output error", "Endpoint timeout"), ("killed", 3)),
        (NO_ENDPOINT.replace("Input/output error", "Destination is unreachable"), ("ucx-unreachable", None)),
        (NO_HELPER + TRAINED + "[rank2]: ValueError: bad batch\n", ("python-error", 2)),
        (NO_HELPER, ("not-started", None)),
        (NO_FILE + "step 1\nsrun: error: n1: task 3: Exited with exit code 2\n", ("not-started", 3)),
        (NO_FILE + TRAINED + "srun: error: n1: task 3: Exited with exit code 2\n", ("exited", 3)),
        (NOT_CONNECTED, ("store-unreachable", None)),
        (
            NOT_CONNECTED
            + TRIED_AGAIN
            + "torch.distributed.DistNetworkError: The client socket has failed to connect to "
            "any network address of (n, 1).\n",
            ("store-unreachable", None),
        ),
        (
            "It looks like orte_init failed for some reason; your parallel process is\n  orte_ess_init failed\n"
            "  --> Returned value No permission (-17) instead of ORTE_SUCCESS\n",
            ("mpi-error-unnamed", None),
        ),
        ("It looks like MPI_INIT failed for some reason; your parallel process is\n", ("mpi-error-unnamed", None)),
        # the label before the lines of a spawned process names the process that spawned it
        (
            "".join(
                f"[1,0]<stderr>:{line}\n"
                for line in (OPEN_MPI.format(host="n1", pid=7, job=65538, rank=4) + "[n1:7] *** MPI_ERR_ARG: x").split(
                    "\n"
                )
            ),
            ("mpi-error", None),
        ),
    ],
)
def test_what_ends_a_job_is_its_cause(log: str, wanted: tuple[str, int | None]) -> None:
    crash = crash_in(log)
    assert crash is not None and (crash.first.code, crash.first.rank) == wanted


def test_the_report_of_orte_names_the_call_and_the_reason() -> None:
    crash = crash_in(
        "It looks like orte_init failed for some reason; your parallel process is\nlikely to abort.\n\n"
        "  orte_ess_init failed\n  --> Returned value No permission (-17) instead of ORTE_SUCCESS\n"
    )
    assert crash is not None and crash.first.facts["error"] == "orte_init: orte_ess_init failed: No permission (-17)"


def status_of(rank: int, seq: int) -> str:
    """The lines of a rank that timed out in an operation of all ranks."""
    at = (
        AT_WORK.format(rank=rank, group="ID 0 PG GUID 0(default_pg)")
        .replace("7", str(seq))
        .replace(" 6.", f" {seq - 1}.")
    )
    return TIMEOUT.format(rank=rank, operation="ALLREDUCE").replace("SeqNum=7", f"SeqNum={seq}") + at


RESTART = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"


@pytest.mark.parametrize(
    "log",
    [
        status_of(1, 501) + TRAINED + status_of(0, 3) + status_of(1, 3),
        status_of(3, 501) + "".join(status_of(rank, 3) for rank in range(4)),
        status_of(1, 3) + RESTART + status_of(0, 9),
        status_of(1, 3) + TRAINED + status_of(0, 501),
    ],
)
def test_numbers_of_different_attempts_are_not_compared(log: str) -> None:
    crash = crash_in(log)
    assert crash is not None and crash.absent == ()
    assert not {"ranks-behind", "ranks-left-behind"} & {reason.code for reason in crash.reasons}


def test_numbers_of_one_attempt_are_compared() -> None:
    crash = crash_in(status_of(1, 3) + status_of(0, 9))
    assert crash is not None and (crash.first.code, crash.first.rank) == ("ranks-left-behind", 1)
