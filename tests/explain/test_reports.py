"""Reports about processes, servers, storage and stacks: the process that failed is named, and a good run is not."""

from __future__ import annotations

import pytest

from bench.explain.crash import Crash
from tests.explain.test_survived import DONE, RESTART, VALUE, crash_in, steps

TRACE = 'Traceback (most recent call last):\n  File "/opt/job/{}.py", line 12, in {}\n    work()\n'
COPY = (
    "subprocess.CalledProcessError: Command '['aws', 's3', 'mv', '/tmp/step_90', 's3://b/deepspeed']' returned "
    "non-zero exit status 1.\n"
)
LAUNCH = "subprocess.CalledProcessError: Command '['torchrun', 'train.py']' returned non-zero exit status 1.\n"
LAUNCH_MODULE = (
    "subprocess.CalledProcessError: Command '['/usr/bin/python3.9', '-u', '-m', 'torch.distributed.launch', "
    "'train.py']' returned non-zero exit status 1.\n"
)
SCRIPT = (
    "subprocess.CalledProcessError: Command '['/usr/bin/python3.9', '-u', 'train.py', '--local_rank=3']' died with "
    "<Signals.SIGKILL: 9>.\n"
)
RESET = "[rank1]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4444\n"

HOROVOD_STEPS = "".join(f"[{rank}]<stdout>:epoch=0 batch={at} loss=2.3\n" for at in range(2) for rank in range(3))
HOROVOD_LOST = "".join(
    f"[{rank}]<stderr>:terminate called after throwing an instance of 'gloo::IoException'\n"
    f"[{rank}]<stderr>:  what():  [/x/gloo/tcp/pair.cc:589] Read error [10.0.0.1]:39: Connection reset by peer\n"
    f"[{rank}]<stderr>:Aborted (core dumped)\n"
    for rank in (0, 1)
)
HOROVOD_ENDS = (
    "Process 2 exit with status code 137.\nProcess 1 exit with status code 134.\nProcess 0 exit with status code 134.\n"
)
HOROVOD_FIRST = (
    "RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
    "terminated. The first process to do so was:\nProcess name: 1\nExit code: 3\n"
)

SPAWNED = (
    TRACE.format("main", "run")
    + "    raise ProcessRaisedException(msg, error_index, failed_process.pid)\n"
    + "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 3 terminated with the following error:\n"
    + TRACE.format("worker", "gather")
)
SKIPPED = (
    "| WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 9.00 MiB (GPU 0; 7.9 GiB)\n"
    " Skipping batch\n"
)

UPLOAD = (
    "INFO:tensorflow:An error was raised. This may be due to a preemption in a connected worker or parameter server. "
    "The current session will be closed and a new session will be created. Error: From /job:worker/replica:0/task:2:\n"
    "All 10 retry attempts failed. The last failure: Unavailable: Error executing an HTTP request: HTTP response code "
    "503\n\t when resuming upload gs://bucket/model.ckpt-9\n"
)
METADATA = (
    "All 10 retry attempts failed. The last failure: Unavailable: Error executing an HTTP request: libcurl code 6 "
    "meaning 'Couldn't resolve host name', error details: Could not resolve host: metadata\n"
)

ANSWER = "[rank0]: " + TRACE.format("client", "<module>") + "[rank0]: RuntimeError: Server 1 failed: 500, {}\n"
SERVER = (
    'INFO:     127.0.0.1:5000 - "POST /infer/ HTTP/1.1" 500 Internal Server Error\n'
    "ERROR:    Exception in ASGI application\n" + TRACE.format("app", "infer") + "TypeError: no prompt\n"
)
CHAIN = "http.ReadFailedError\n\nThe above exception was the direct cause of the following exception:\n\n"


def handled(before: str, frame: str = "send") -> str:
    """A traceback with a cause below a line of a logger."""
    return before + TRACE.format("http", "read") + CHAIN + TRACE.format("http", frame) + "api.ConnectError: timed out\n"


def stack(pid: int, *frames: str, named: bool = True) -> str:
    """The dump of one process, the innermost frame first."""
    head = f"Process {pid}: python train.py\nPython v3.10.4 (/usr/bin/python3.10)\n\n" if named else ""
    thread = f'Thread {"0x7F2B" if named else pid} (active): "MainThread"\n'
    other = 'Thread 0x7F11 (idle): "Thread-1"\n    wait (threading.py:306)\n' if named else ""
    return head + thread + "".join(f"    {frame}\n" for frame in frames) + other + "\n"


REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:99)", "step (train.py:30)", "<module> (train.py:90)")
QUEUE = (
    *("wait (threading.py:306)", "get (queue.py:179)", "_get_data (torch/utils/data/dataloader.py:11)"),
    *("load (job/data.py:7)", "step (train.py:20)", "<module> (train.py:90)"),
)
AGENT = ("_run (torch/distributed/elastic/agent/server/api.py:8)", "<module> (torchrun:8)")
LOADER = ("get (queue.py:1)", "_worker_loop (torch/utils/data/_utils/worker.py:8)", "<module> (train.py:90)")
JOINED = 'Thread 11 (active): "MainThread"\nThread 12 (active): "MainThread"\n' + "".join(
    f"    {at}\n" for at in REDUCE
)

FAULT = 'Fatal Python error: {}\n\nCurrent thread 0x00007f (most recent call first):\n  File "t.py", line 3 in step\n'
SHELL = "./train.sh: line 34: 12024 Aborted                 (core dumped) python3 -m job.train\n"
SILENT = (
    "E1023 13:25:40.1 12 coordination_service.cc:1 Task /job:w/replica:0/task:37 heartbeat timeout. This indicates "
    "that the remote task has failed, got preempted, or crashed unexpectedly.\n"
)


def first_of(log: str, *others: str) -> tuple[str, int | None, int]:
    crash = crash_in(log, *others)
    assert crash is not None
    return crash.first.code, crash.first.rank, crash.first.line


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        # a command that the program started
        (steps(9) + TRACE.format("io", "save") + COPY, ("python-error", None, 13)),
        (steps(9) + TRACE.format("io", "save") + COPY + RESET, ("python-error", None, 13)),
        (RESET + COPY, ("connection-closed", 1, 1)),
        (VALUE + COPY, ("python-error", None, 1)),
        (SCRIPT, ("python-error", None, 1)),
        (SCRIPT + RESET, ("connection-closed", 1, 2)),
        (VALUE + LAUNCH, ("python-error", None, 1)),
        # horovodrun
        (HOROVOD_STEPS + "[2]<stderr>:Killed\n" + HOROVOD_LOST + HOROVOD_ENDS, ("killed", 2, 7)),
        (HOROVOD_STEPS + HOROVOD_LOST + HOROVOD_ENDS, ("killed", 2, 13)),
        ("[1]<stderr>:" + VALUE + HOROVOD_FIRST, ("python-error", 1, 1)),
        (HOROVOD_FIRST, ("exited", 1, 2)),
        # torch.multiprocessing.spawn
        (steps(9) + SPAWNED + "ValueError: bad batch\n", ("python-error", None, 20)),
        (steps(9) + SPAWNED, ("exited", None, 16)),
        (steps(9) + SKIPPED + SPAWNED, ("exited", None, 18)),
        # storage
        (steps(9) + UPLOAD, ("storage-failed", 2, 11)),
        ("tensorflow.errors.UnavailableError: " + UPLOAD.partition("\n")[2], ("storage-failed", None, 1)),
        # a server
        (steps(9) + ANSWER.format("Internal Server Error") + SERVER, ("python-error", None, 19)),
        (steps(9) + ANSWER.format("Internal Server Error"), ("python-error", 0, 13)),
        # a handled exception is no cause, but what follows is
        (handled("WARNING:api:request failed\n") + VALUE, ("python-error", None, 13)),
        (handled("ERROR:api:request failed\n"), ("python-error", None, 5)),
        (handled("INFO:api:saving the state\n"), ("python-error", None, 5)),
        (handled("WARNING:api:request failed\n") + TRACE.format("a", "b") + VALUE, ("python-error", None, 16)),
        (
            "2026-01-01 10:00:00,123 - job - ERROR - step failed, no WARNING\n" + TRACE.format("a", "b") + VALUE,
            ("python-error", None, 5),
        ),
        ("[rank1]: WARNING:api:call failed\n" + TRACE.format("a", "b") + VALUE, ("python-error", None, 5)),
        (
            "WARNING:torch:The node has failed to shut down due to an error\n"
            + TRACE.format("a", "b")
            + "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection failed.\n",
            ("store-unreachable", None, 5),
        ),
        ("WARNING:api:call failed\n" + TRACE.format("a", "<module>") + VALUE, ("python-error", None, 5)),
        # stacks of processes that hang
        (stack(11, *REDUCE) + stack(12, *REDUCE) + stack(13, *QUEUE), ("process-elsewhere", None, 24)),
        (JOINED + "\n" + stack(13, *QUEUE, named=False), ("process-elsewhere", None, 7)),
        (
            stack(10, *AGENT) + stack(11, *REDUCE) + stack(12, *REDUCE) + stack(13, *QUEUE) + stack(14, *LOADER),
            ("process-elsewhere", None, 33),
        ),
        # signals
        (steps(9) + FAULT.format("Segmentation fault") + SHELL, ("crashed", None, 10)),
        (steps(9) + FAULT.format("Aborted") + SHELL, ("aborted", None, 10)),
        (steps(9) + SILENT, ("heartbeats-stopped", 37, 10)),
    ],
)
def test_the_report_names_what_failed(log: str, wanted: tuple[str, int | None, int]) -> None:
    assert first_of(log) == wanted


@pytest.mark.parametrize(
    "log",
    [
        # reports of launchers have no event of their own
        LAUNCH,
        LAUNCH_MODULE,
        TRACE.format("io", "save") + COPY + steps(9),
        "WARNING:io:upload failed, trying again\n" + TRACE.format("io", "save") + COPY + steps(2),
        # horovodrun started a process again
        "[2]<stderr>:Killed\nProcess 2 exit with status code 137.\n" + HOROVOD_STEPS + steps(60) + DONE,
        "Process 2 exit with status code 0.\n[1]<stdout>:the error code 137 was handled\n",
        "[1]<stderr>:" + VALUE + steps(4, "[1]<stdout>:"),
        # torch.multiprocessing.spawn
        SKIPPED + steps(2),
        "-- Process 3 terminated with exit code 0\n",
        # storage
        UPLOAD + "".join(f"INFO:tensorflow:loss = 2.5, step = {at} (9 sec)\n" for at in range(100, 2600, 100)),
        METADATA,
        # a server
        ANSWER.format("Internal Server Error") + SERVER + steps(20) + DONE,
        'INFO:     127.0.0.1:5000 - "POST /infer/ HTTP/1.1" 500 Internal Server Error\n',
        # handled exceptions
        *(
            handled(before)
            for before in (
                "DEBUG:api:Encountered Exception\n",
                "WARNING:api:request failed\n",
                "2026-01-01 10:00:00,123 - api - WARNING - retrying after an error\n",
                "2026-01-01 10:00:00 api INFO could not connect\n",
                "[2026-01-01 10:00:00,123] [WARNING] [api.py:12:send] request failed\n",
                "[WARNING] request failed\n",
                "2026-01-01 10:00:00,123 | my-job.api | WARNING | call failed\n",
                "W0101 10:00:00.123456 1402 api.py:12] request failed\n",
                "WARNING 01-01 10:00:00 [api.py:12] request failed\n",
            )
        ),
        "[rank2]: WARNING:api:call failed\n[rank2]: Traceback (most recent call last):\n[rank2]: " + VALUE,
        # stacks of a job that does not hang, or whose dump accuses nobody
        stack(11, *REDUCE) + stack(12, *REDUCE),
        stack(11, *REDUCE) + stack(13, *QUEUE),
        stack(11, *REDUCE) + stack(12, *REDUCE) + stack(13, *QUEUE) + stack(14, *QUEUE),
        stack(11, *REDUCE) + stack(12, *REDUCE) + stack(13, *REDUCE) + stack(10, *AGENT) + stack(14, *LOADER),
        stack(11, *REDUCE) + stack(12, *REDUCE) + stack(13, *QUEUE) + stack(13, *REDUCE),
        stack(11, *REDUCE) + stack(12, *REDUCE) + stack(13, *QUEUE) + steps(60),
        stack(11, *QUEUE) + stack(12, *QUEUE) + stack(13, *REDUCE),
        # a helper of a job that goes on
        FAULT.format("Segmentation fault") + steps(60) + DONE,
        "faulthandler prints `Fatal Python error: Segmentation fault` for a crash\n",
        SILENT + "/job:w/replica:0/task:37 has connected to coordination service\n",
    ],
)
def test_similar_lines_of_a_good_run_accuse_nobody(log: str) -> None:
    assert crash_in(log) is None


def crash_of_hang() -> Crash:
    crash = crash_in(stack(11, *REDUCE) + stack(12, *REDUCE) + stack(13, *QUEUE))
    assert crash is not None
    return crash


def test_facts_of_reports() -> None:
    first = crash_of_hang().first
    assert (first.pid, first.facts["frame"], first.facts["num_waiting"]) == (13, "load (job/data.py:7)", 2)
    crash = crash_in(SKIPPED + SPAWNED + "ValueError: bad batch\n")
    assert crash is not None and crash.first.facts["local_rank"] == 3
    assert [reason.code for reason in crash.reasons] == ["python-error", "out-of-memory"]
    crash = crash_in(ANSWER.format("Internal Server Error") + SERVER)
    assert crash is not None and [line.facts["ranks"] for line in crash.consequences] == [[0]]
    assert first_of(ANSWER.format("Internal Server Error"), SERVER) == ("python-error", None, 6)
    crash = crash_in(HOROVOD_STEPS + "[2]<stderr>:Killed\n" + HOROVOD_LOST + HOROVOD_ENDS)
    assert crash is not None and {line.facts["kind"]: line.facts["ranks"] for line in crash.consequences} == {
        "connection-closed": [0, 1],
        "aborted": [0, 1],
    }


def test_a_long_line_above_a_traceback_takes_no_time() -> None:
    for text in ("-" * 3000, "a-" * 1500, "[a] " * 900, "a b:" * 900):
        assert crash_in(f"2026-01-01 10:00:00 {text}\n" + TRACE.format("a", "b") + VALUE) is not None


def test_a_command_of_a_script_is_explained_by_other_files() -> None:
    assert first_of(SCRIPT, RESET)[0] == "connection-closed"
    assert first_of(COPY, RESET)[0] == "python-error"
    assert crash_in(VALUE + RESTART + steps(2), LAUNCH) is None
