"""What a job survives is no failure, and does not hide the failure that ended it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.__main__ import main
from bench.core.errors import EXIT_USAGE
from bench.explain import crash_page
from bench.explain.crash import Crash, crash_of
from bench.logs.failure_events import Event, EventReader


def crash_in(*texts: str, failed: bool = False) -> Crash | None:
    """The crash in the logs of one job."""
    events: list[Event] = []
    for number, text in enumerate(texts):
        reader = EventReader()
        reader.look(text)
        events += reader.events(f"{number}.log")
    return crash_of(events, failed)


def steps(count: int, label: str = "", first: int = 100) -> str:
    """Lines of a program that trains."""
    return "".join(f"{label}step {first + number} loss 1.{number}\n" for number in range(count))


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB\n"
VALUE = "ValueError: bad batch\n"
UNCAUGHT = 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n    main()\n' + VALUE
PREEMPTED = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-03-21T02:07:08 DUE TO PREEMPTION ***\n"
DONE = "Training completed\n"
EXITED = "srun: error: node7: task 3: Exited with exit code 1\n"
KILLED = "srun: error: node2: task {}: Killed\n"
FAILED = "E torch/x/api.py:826] failed (exitcode: 1) local_rank: 1 (pid: 77) of binary: /usr/bin/python\n"
RESTART = "I torch/x/api.py:900] [default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
STORE = "[rank1]:[W socket.cpp:400] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer\n"
CLOSED = "[rank1]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4444\n"
PORT = "n1:12:12 [0] transport/ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got async event : port {}\n"
RETRIED = (
    "n1:40:50 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4> with status=12 "
    "opcode=0 len=0 vendor err 129 (Send)\n"
)
XID = "Mar 21 01:00:00 n1 kernel: NVRM: Xid (PCI:0000:3b:00): {}\n"
POD = "Name: job-worker-0\n    State:          {}\n    Last State:     Terminated\n      Reason:       OOMKilled\n"
BARS = "\r".join(f" {at}%|#         | {at}/100 [00:{at:02d}<01:00,  1.00it/s]" for at in range(40, 60)) + "\n"
MEGATRON = "".join(
    f" [2026-03-21 12:00:{at % 60:02d}] iteration {at:8d}/  500000 | consumed samples: {at * 512:12d} | elapsed "
    "time per iteration (ms): 41.1 | lm loss: 2.345E+00 | number of skipped iterations:   0 | nan iterations:   0 |\n"
    for at in range(1000, 3500, 100)
)
TRAINER = "".join(f"{{'loss': 2.{at}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.{at}}}\n" for at in range(9))
LIGHTNING = "".join(f"Epoch {at}: 45%|####5     | 450/1000 [00:10<00:12, 40.1it/s]\n" for at in range(3, 9))
DEEPSPEED = "".join(f"[Rank 0] step={at}, skipped=0, lr=[1e-05], mom=[0.9]\n" for at in range(10, 90, 10))
EPOCHS = "".join(f"Epoch: [{epoch}][{at}/1736]\tLoss 0.5\n" for epoch in range(2) for at in range(1, 1736, 50))
TITAN = "".join(f"[titan] - INFO - \x1b[31mstep: {at:2d}  \x1b[32mloss:  7.1  \x1b[39m\n" for at in range(1, 7))
KERAS = (
    "\r".join(f"\x1b[1m{at}/60\x1b[0m \x1b[32m━━\x1b[0m \x1b[1m1s\x1b[0m 12ms/step - loss: 1.2" for at in range(1, 61))
    + "\n"
)
FAIRSEQ = "".join(f'{{"num_updates": "{at * 10}", "train_nll": "2.1"}}\n' for at in range(8))
WATCHDOG = (
    "[rank1]:[E603 12:50:11.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600023 milliseconds "
    "before timing out.\n"
)
TIME_LIMIT = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-03-21T02:07:08 DUE TO TIME LIMIT ***\n"
NO_STORE = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
    "(10.1.2.3, 29500).\n"
)
STACK = 'Traceback (most recent call last):\n  File "t.py", line 9, in step\n    main()\n' + VALUE
RICH = "╭─ Traceback (most recent call last) ─╮\n│ /t.py:212 in <module>  │\n╰─────────╯\n" + VALUE
THREAD = (
    'Exception in thread Thread-4:\n  File "threading.py", line 1045, in _bootstrap_inner\n    self.run()\n' + VALUE
)
ASSERTED = (
    "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: an illegal memory access\n"
)
MAP = "".join(f"Map (num_proc=16):  {at}%|#  | {at * 1000}/98000 [00:01<00:30, 310.0 ex/s]\n" for at in range(60))
SHARDS = "".join(
    f"Loading checkpoint shards:  {at}% Completed | {at}/100 [00:01<01:10,  2.1it/s]\n" for at in range(60)
)
TOKENS = "".join(f"tokenized train data {at}/4560 [{at}s]\n" for at in range(60))
NINJA = "".join(f"[{at}/64] /usr/local/cuda/bin/nvcc -c x{at}.cu -o x{at}.o\n" for at in range(1, 60))
DOWNLOAD = "".join(f"Downloading shards: {at}%|##  | {at}/100 [00:01<00:09, 9.1it/s]\n" for at in range(0, 100, 10))


@pytest.mark.parametrize(
    "log",
    [
        # the same process made further steps
        "[rank0]: " + OOM + steps(4, "[rank0]: "),
        "worker-1: " + VALUE + steps(4, "worker-1: "),
        "(W pid=45, ip=10.0.0.4) " + VALUE + steps(4, "(W pid=45, ip=10.0.0.4) "),
        OOM + steps(6),
        OOM + BARS,
        OOM + TRAINER,
        OOM + DEEPSPEED,
        OOM + LIGHTNING,
        "[rank2]: " + OOM + MEGATRON,
        "[rank2]: " + VALUE + EPOCHS,
        OOM + TITAN,
        OOM + KERAS,
        OOM + FAIRSEQ,
        "[rank2]: " + OOM + "".join(f"{at}/{at + 9} [00:01<00:02]\n" for at in range(60)) + steps(60),
        # a lost connection that ended no process
        STORE + steps(9),
        STORE + steps(6, "[rank1]: "),
        # a rank that waited too long once
        WATCHDOG + steps(60),
        # many steps of other processes
        "[rank3]: " + VALUE + steps(60),
        PORT.format("error") + steps(60),
        # success
        OOM + DONE,
        "[rank3]: " + VALUE + "[rank3]: Finished training in 3 h\n",
        "[rank3]: " + VALUE + "Finished training in 3 h\n",
        VALUE + "{'train_runtime': 10.5, 'train_samples_per_second': 2.1}\n",
        VALUE + "`Trainer.fit` stopped: `max_epochs=3` reached.\n",
        VALUE + "Job 'raysubmit_1' status: SUCCEEDED\n",
        VALUE + "Status:           Succeeded\n",
        VALUE + "[launch.py:348:main] Process 4711 exits successfully.\n",
        # usual at the end of a program that succeeded
        steps(9) + DONE + STORE,
        steps(9) + DONE + CLOSED,
        steps(9) + DONE + "[rank1]: BrokenPipeError: [Errno 32] Broken pipe\n" + "KeyboardInterrupt\n",
        # a restart
        "[rank1]: " + VALUE + FAILED + RESTART + steps(2),
        "[rank1]: " + VALUE + FAILED + RESTART + "[default] worker group successfully finished.\n",
        "ray.exceptions.ActorDiedError: The actor died\nRestarting training worker group after failure 1/3\n"
        + steps(2),
        # an earlier run in the same file
        VALUE + EXITED + steps(60, first=0) + DONE,
        # a helper's exception, and one that a program printed
        UNCAUGHT + steps(500),
        UNCAUGHT + steps(60) + DONE,
        STACK + steps(60),
        # a job that the scheduler stopped and started again
        PREEMPTED + steps(60),
        # a helper of a job that succeeds
        "./monitor.sh: line 9: 4712 Killed  sleep 1000\n" + DONE,
        # states of the kernel and of Kubernetes
        PORT.format("error") + PORT.format("active"),
        XID.format("63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping"),
        XID.format("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        POD.format("Running"),
    ],
)
def test_what_a_job_survives_is_no_failure(log: str) -> None:
    assert crash_in(log) is None


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        # the log ends, or only other processes go on for a while
        (steps(60) + VALUE, ("python-error", None, 61)),
        ("[rank3]: " + VALUE + steps(2, "[rank0]: "), ("python-error", 3, 1)),
        ("[rank3]: " + VALUE + steps(9, "[rank0]: "), ("python-error", 3, 1)),
        ("worker-1: " + VALUE + steps(9, "worker-0: "), ("python-error", None, 1)),
        (VALUE + steps(2), ("python-error", None, 1)),
        (steps(90) + VALUE + steps(2, first=190), ("python-error", None, 91)),
        (VALUE + steps(9) + EXITED, ("python-error", 3, 1)),
        (VALUE + "Saving checkpoint at iteration 120\n", ("python-error", None, 1)),
        (VALUE + "Epoch 3 training finished\n", ("python-error", None, 1)),
        (VALUE + "waiting for the job to be completed\n", ("python-error", None, 1)),
        (VALUE + "job finished with exit code 1\n", ("python-error", None, 1)),
        ("[rank3]: " + VALUE + DOWNLOAD, ("python-error", 3, 1)),
        ("[rank3]: " + VALUE + "error: step 200 failed\n" * 60, ("python-error", 3, 1)),
        (CLOSED + steps(2), ("connection-closed", 1, 1)),
        # a known failure, of which nothing else tells the cause
        ("[rank0]: " + OOM + steps(60, "[rank0]: ") + WATCHDOG, ("out-of-memory", 0, 1)),
        (VALUE + steps(60) + TIME_LIMIT, ("python-error", None, 1)),
        ("[rank3]: " + VALUE + steps(60) + EXITED, ("python-error", 3, 1)),
        (RETRIED + steps(60) + WATCHDOG, ("ib-retry-exceeded", None, 1)),
        ("[rank3]: " + VALUE + DONE + WATCHDOG, ("python-error", 3, 1)),
        # but another message of the same kind says more, and an earlier run nothing
        (
            WATCHDOG + steps(60) + WATCHDOG.replace("ank1", "ank0").replace("ank 1", "ank 0"),
            ("collective-timeout", 0, 62),
        ),
        (VALUE + EXITED + steps(60, first=0) + CLOSED, ("connection-closed", 1, 63)),
        # lines that a program wrote before its exception, with numbers far apart
        (UNCAUGHT + "".join(f"iter {at}: loss 2.1\n" for at in range(0, 9000, 100)), ("python-error", None, 4)),
        (UNCAUGHT + "".join(f"Epoch {at}/100 - loss: 2.1\n" for at in range(60)), ("python-error", None, 4)),
        (RICH + steps(60), ("python-error", None, 4)),
        (THREAD + steps(60), ("python-error", None, 4)),
        (ASSERTED + steps(60), ("kernel-fault", None, 2)),
        ("Error executing job with overrides: []\n" + STACK + steps(60), ("python-error", None, 5)),
        ("-- Process 3 terminated with the following error:\n" + STACK + steps(60), ("python-error", None, 5)),
        ("ray::RayTrainWorker.run() (pid=9)\n" + STACK + steps(60), ("python-error", None, 5)),
        # a step that other ranks print, one after another
        (
            "[rank9]: " + VALUE + "".join(steps(5, f"[rank{at}]: ", first=at * 1000) for at in range(9)),
            ("python-error", 9, 1),
        ),
        (
            "[rank3]: " + VALUE + "".join(f"[rank{at}]: step {100 + at % 2}\n" for at in range(64)),
            ("python-error", 3, 1),
        ),
        ("[rank3]: " + VALUE + "".join(f"step {100 + at % 2}\n" for at in range(64)), ("python-error", 3, 1)),
        ("[rank3]: " + VALUE + "".join(f"rank {at}: train loss: 2.{at}\n" for at in range(30)), ("python-error", 3, 1)),
        (CLOSED + steps(9, "[rank0]: "), ("connection-closed", 1, 1)),
        # a rank that waited too long, or whose network failed, and a few steps
        (WATCHDOG + steps(6) + steps(6, "[rank1]: "), ("collective-timeout", 1, 1)),
        (RETRIED + steps(6), ("ib-retry-exceeded", None, 1)),
        # bars of files and shards
        *(("[rank3]: " + VALUE + bars, ("python-error", 3, 1)) for bars in (MAP, SHARDS, TOKENS, NINJA)),
        # no success of this program
        (VALUE + "done\n", ("python-error", None, 1)),
        (VALUE + "INFO:     Application startup complete.\n", ("python-error", None, 1)),
        (VALUE + "Job setup completed in 12 s\n", ("python-error", None, 1)),
        (VALUE + "Job finished at Tue Jun  3 13:02:44 UTC 2025\n", ("python-error", None, 1)),
        (VALUE + "istio-proxy:\n  Reason:       Completed\n  Exit Code:    0\n", ("python-error", None, 1)),
        (VALUE + "4412       train     FAILED      1:0\n4412.extern extern COMPLETED 0:0\n", ("python-error", None, 1)),
        ("[rank3]: " + VALUE + "[rank0]: Finished training in 3 h\n", ("python-error", 3, 1)),
        (UNCAUGHT + DONE, ("python-error", None, 4)),
        (UNCAUGHT + steps(9) + DONE, ("python-error", None, 4)),
        (
            OOM + DONE + 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\nSystemExit: 1\n',
            ("out-of-memory", None, 1),
        ),
        # success of a job that did not train, and an error that is not usual at its end
        (DONE + STORE, ("store-lost", 1, 2)),
        (steps(9) + DONE + RETRIED, ("ib-retry-exceeded", None, 11)),
        (
            WATCHDOG + RESTART + WATCHDOG.replace("ank1", "ank0").replace("ank 1", "ank 0"),
            ("collective-timeout", 0, 3),
        ),
        # advice, and an attempt that did not start
        (
            OOM + "If this persists, consider restarting the job on other nodes.\n" + steps(2),
            ("out-of-memory", None, 1),
        ),
        ("[rank3]: " + OOM + RESTART + NO_STORE, ("out-of-memory", 3, 1)),
        # a launcher reports a failure: success of one rank, or steps of others, prove nothing
        ("[rank3]: " + VALUE + "[rank0]: Training completed\n" + EXITED, ("python-error", 3, 1)),
        (DONE + CLOSED + EXITED, ("exited", 3, 3)),
        (DONE + RETRIED + EXITED, ("ib-retry-exceeded", None, 2)),
        (EXITED + steps(60), ("exited", 3, 1)),
        (
            DONE + "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-03-21T02:07:08 DUE TO TIME LIMIT ***\n",
            ("time-limit", None, 2),
        ),
        # an error after the training
        (steps(9) + DONE + VALUE, ("python-error", None, 11)),
        # what was survived does not hide the failure
        ("[rank0]: " + OOM + steps(60) + "[rank3]: " + VALUE, ("python-error", 3, 62)),
        ("[rank0]: " + VALUE + steps(60) + KILLED.format(3), ("killed", 3, 62)),
        ("[rank0]: " + OOM + steps(4, "[rank0]: ") + "[rank0]: " + OOM, ("out-of-memory", 0, 6)),
        (OOM + steps(60) + OOM, ("out-of-memory", None, 62)),
        # the last attempt counts
        ("[rank1]: " + VALUE + RESTART + "[rank3]: KeyError: 'x'\n" + FAILED, ("python-error", 3, 3)),
        (3 * ("[rank1]: " + VALUE + RESTART) + "[rank1]: " + VALUE + FAILED, ("python-error", 1, 7)),
        ("[rank1]: " + VALUE + RESTART + FAILED, ("python-error", 1, 1)),
        ("[rank1]: " + VALUE + RESTART + steps(9) + EXITED, ("exited", 3, 12)),
        ("[rank1]: " + VALUE + RESTART, ("python-error", 1, 1)),
        # a program writes its last lines after its exception
        (steps(60) + UNCAUGHT + steps(60), ("python-error", None, 64)),
        (UNCAUGHT + steps(60) + EXITED, ("python-error", 3, 4)),
        (UNCAUGHT + EXITED + steps(60, first=0) + "KeyError: 'x'\n", ("python-error", None, 66)),
        (PREEMPTED, ("cancelled", None, 1)),
        # runs one after another in one file
        (VALUE + EXITED + steps(60, first=0) + "KeyError: 'x'\n" + KILLED.format(5), ("python-error", None, 63)),
        # states of the kernel and of Kubernetes
        (PORT.format("error") + PORT.format("active") + RETRIED, ("ib-port-event", None, 1)),
        (
            XID.format("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
            ("xid-154", None, 1),
        ),
        (POD.format("Waiting"), ("host-out-of-memory", None, 4)),
    ],
)
def test_what_a_job_does_not_survive_is_its_failure(log: str, wanted: tuple[str, int | None, int]) -> None:
    crash = crash_in(log)
    assert crash is not None and (crash.first.code, crash.first.rank, crash.first.line) == wanted


def test_a_launchers_report_in_another_file_also_counts() -> None:
    worker = steps(9) + DONE + CLOSED
    assert crash_in(worker) is None
    crash = crash_in(worker, EXITED)
    assert crash is not None and crash.first.code == "exited"
    crash = crash_in(DONE + RETRIED, EXITED)
    assert crash is not None and crash.first.code == "ib-retry-exceeded"


def test_different_exceptions_are_different_causes() -> None:
    crash = crash_in("[rank0]: OSError: no such image\n[rank3]: KeyError: 'x'\n[rank4]: KeyError: 'x'\n")
    assert crash is not None
    assert [(reason.facts["error"], reason.facts["rank"]) for reason in crash.reasons] == [
        ("OSError", 0),
        ("KeyError", 3),
    ]


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        (KILLED.format(0) + EXITED, ("exited", 3)),
        (KILLED.format("0-2") + EXITED, ("exited", 3)),
        # many tasks fail after the death of one
        (KILLED.format(5) + EXITED.replace("task 3", "tasks 0-3"), ("killed", 5)),
        # a task that lost a connection did not fail by itself
        (CLOSED.replace("rank1", "rank3") + KILLED.format(0) + EXITED, ("killed", 0)),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n" + KILLED.format(0) + EXITED,
            ("host-out-of-memory", 3),
        ),
    ],
)
def test_the_task_that_failed_is_told_from_those_that_srun_killed(log: str, wanted: tuple[str, int | None]) -> None:
    crash = crash_in(log)
    assert crash is not None and (crash.first.code, crash.first.rank) == wanted


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        (RETRIED + KILLED.format(3), "killed"),
        (RETRIED + "srun: error: node7: task 3: Segmentation fault\n", "crashed"),
        # a rank ended itself, and the launcher then killed the others
        (RETRIED + "srun: error: node1: task 0: Aborted\n" + KILLED.format(3), "ib-retry-exceeded"),
        (RETRIED + EXITED, "ib-retry-exceeded"),
        (PORT.format("error") + KILLED.format(3), "ib-port-event"),
    ],
)
def test_a_dead_rank_that_the_launcher_reports_late_is_the_cause(log: str, wanted: str) -> None:
    crash = crash_in(log)
    assert crash is not None and crash.first.code == wanted


FAILURES = (
    VALUE,
    "[rank3]: " + OOM,
    STORE,
    EXITED,
    KILLED.format(2),
    RETRIED,
    CLOSED + EXITED,
    "[rank1]: " + VALUE + FAILED,
)
PROGRESS = (steps(30), steps(3, "[rank3]: "), MEGATRON, TRAINER, LIGHTNING, DEEPSPEED, BARS, EPOCHS)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PROGRESS), max_size=4), st.sampled_from(FAILURES))
def test_steps_before_an_error_change_nothing(progress: list[str], failure: str) -> None:
    alone, crash = crash_in(failure), crash_in("".join(progress) + failure)
    assert alone is not None and crash is not None
    assert [(each.code, each.facts.get("rank")) for each in crash.reasons] == [
        (each.code, each.facts.get("rank")) for each in alone.reasons
    ]
    assert crash.survived == alone.survived == ()


def test_the_page_shows_what_the_job_survived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crash = crash_in("[rank2]: " + OOM + steps(60, "[rank2]: ") + "[rank3]: " + VALUE)
    assert crash is not None
    [line] = crash.survived
    assert (line.facts["ranks"], line.facts["line"], line.facts["num_steps"]) == ([2], 1, 60)
    for page in (crash_page.text(crash), crash_page.markdown(crash)):
        assert line.text in "\n".join(page)
    assert crash.to_dict()["survived"][0]["code"] == "survived"
    log = tmp_path / "job.log"
    log.write_text("[rank2]: " + OOM + steps(60, "[rank2]: "))
    assert main(["explain", str(log)]) == EXIT_USAGE
    assert "went on for 60 steps" in " ".join(capsys.readouterr().err.split())


def test_what_a_job_survived_comes_after_a_cause_that_it_did_not_survive() -> None:
    survived = "[rank2]: " + OOM + steps(60, "[rank2]: ")
    crash = crash_in(survived + "[rank3]: KeyError: 'x'\n" + EXITED)
    assert crash is not None
    assert [reason.code for reason in crash.reasons] == ["python-error", "out-of-memory"]
    assert crash.reasons[1].weight < crash.reasons[0].weight and len(crash.survived) == 1
    # no report of a failed process, so that the other message is the only sign of a failure
    crash = crash_in(survived + "[rank3]: KeyError: 'x'\n")
    assert crash is not None and [reason.code for reason in crash.reasons] == ["python-error"]
    # what a launcher restarted is no cause
    crash = crash_in("[rank2]: " + OOM + RESTART + "[rank3]: KeyError: 'x'\n" + EXITED)
    assert crash is not None and [reason.code for reason in crash.reasons] == ["python-error"]


def test_a_run_that_failed_has_a_cause_even_if_it_survived_every_message() -> None:
    log = "[rank2]: " + OOM + steps(60, "[rank2]: ")
    assert crash_in(log) is None
    crash = crash_in(log, failed=True)
    assert crash is not None and crash.first.code == "out-of-memory"


VLLM = "(EngineCore_0 pid=12) (VllmWorker TP1 pid=13) {} 08-26 09:12:26 [multiproc_executor.py:559] "
ENGINE = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
)


def vllm(level: str) -> str:
    """A traceback with the prefix of vLLM's logger before every line."""
    below = ["WorkerProc failed.", "Traceback (most recent call last):", '  File "w.py", line 5, in init', VALUE[:-1]]
    return "".join(VLLM.format(level) + line + "\n" for line in below)


def test_an_exception_behind_the_prefix_of_vllms_logger_is_the_cause() -> None:
    """The exceptions of the other processes follow from it. vLLM handles one below a warning or of a request."""
    core = "(EngineCore_0 pid=12) ERROR 08-26 09:12:30 [core.py:700] "
    background = core + "Exception: WorkerProc initialization failed due to an exception in a background process.\n"
    crash = crash_in(vllm("ERROR") + background + ENGINE)
    assert crash is not None
    assert crash.first.facts["error"] == "ValueError"
    assert [reason.code for reason in crash.reasons] == ["python-error"]
    assert crash_in(vllm("WARNING")) is None
    assert crash_in(vllm("ERROR").replace("multiproc_executor", "serving_chat")) is None


CHECKPOINT = (
    "[rank{0}]: Traceback (most recent call last):\n"
    '[rank{0}]:   File "t.py", line 9, in <module>\n'
    "[rank{0}]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n"
)
OF_RANK_2 = "[rank0]: Traceback (most recent call last): (RANK 2)\n[rank0]:     os.fsync(f)\n"
QUOTA = "[rank0]: OSError: [Errno 122] Disk quota exceeded\n"
LOADER = "[rank1]: KeyError: Caught KeyError in DataLoader worker process 0.\n"
ORIGINAL = "[rank1]: Original Traceback (most recent call last):\n[rank1]:     f['labels']\n"


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        (CHECKPOINT.format(0) + OF_RANK_2 + QUOTA, [(2, "OSError")]),
        (CHECKPOINT.format(0) + CHECKPOINT.format(1) + OF_RANK_2 + QUOTA, [(2, "OSError"), (1, "CheckpointException")]),
        (CHECKPOINT.format(0), [(0, "CheckpointException")]),
        (CHECKPOINT.format(0) + VALUE, [(0, "CheckpointException"), (None, "ValueError")]),
        (LOADER + ORIGINAL + "[rank1]: KeyError: 'labels'\n", [(1, "KeyError")]),
        (LOADER + ORIGINAL + "[rank2]: OSError: x\n[rank1]: KeyError: 'labels'\n", [(2, "OSError"), (1, "KeyError")]),
        (LOADER + ORIGINAL, [(1, "KeyError")]),
    ],
)
def test_a_wrapped_exception_is_the_cause_and_not_its_wrapper(log: str, wanted: list[tuple[int | None, str]]) -> None:
    """Without the traceback of the wrapped exception, the wrapper is all that is known."""
    reader = EventReader()
    reader.look(log)
    found = [(event.rank, event.facts["error"].rpartition(".")[2]) for event in reader.events("0.log")]
    assert sorted(found, key=str) == sorted(wanted, key=str)
    crash = crash_in(LOADER + ORIGINAL + "[rank1]: KeyError: 'labels'\n")
    assert crash is not None and crash.first.facts["message"] == "'labels'"


def noise(rank: int) -> str:
    """What torch prints if the store of rank 0 ended before another rank."""
    got = "failed to recv, got 0 bytes\n"
    return (
        f"[rank{rank}]:[W612 10:09:12.3 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=62): {got}"
        f"[rank{rank}]:[W612 10:09:12.4 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank {rank}] Failed to check the "
        f'"should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: {got}'
    )


RANK_0_DONE = "[rank0]: saving final checkpoint to out/c.pt\n[rank0]: training done in 0h 3m, best val loss 2.9\n"
PIN = "[rank3]: Exception in thread Thread-2 (_pin_memory_loop):\n[rank3]: Traceback (most recent call last):\n"
BOOTSTRAP = '[rank3]:   File "threading.py", line 1016, in _bootstrap_inner\n'
PODS = "NAME   READY   STATUS   RESTARTS   AGE\njob-worker-1   {}   0   2h\n"
NO_NODE = "120m Warning FailedScheduling pod/job-worker-1 0/12 nodes are available: 12 Insufficient nvidia.com/gpu.\n"
DECISION = "(TrainController pid=7) [FailurePolicy] Decision: FailureDecision.{}, Error: Training failed:\n"
RAY_MEMORY = (
    "(TrainController pid=7) [Rank 1]\n"
    "(TrainController pid=7) ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
)
ATTEMPT = "(TrainController pid=7) Attempting to start training worker group of size 4\n"
RAY_STEPS = steps(9, "(RayTrainWorker pid=22) ")


@pytest.mark.parametrize(
    "log",
    [
        steps(9, "[rank0]: ") + RANK_0_DONE + STORE,
        steps(9, "[rank0]: ") + noise(1) + noise(2),
        steps(9, "[rank0]: ") + RANK_0_DONE + noise(1) + noise(2),
        PIN + BOOTSTRAP + "[rank3]: EOFError\n",
        PIN.replace(" (_pin_memory_loop)", "")
        + '[rank3]:   File "p.py", line 5, in _pin_memory_loop\n[rank3]: EOFError\n',
        PIN + BOOTSTRAP + "[rank3]: ConnectionResetError: [Errno 104] Connection reset by peer\n",
        PODS.format("0/1   Completed") + NO_NODE,
        NO_NODE + PODS.format("1/1   Running"),
        RAY_STEPS + DECISION.format("RETRY") + RAY_MEMORY + ATTEMPT + RAY_STEPS,
    ],
)
def test_what_happens_at_the_end_or_before_the_next_attempt_is_no_failure(log: str) -> None:
    """The program had ended, a helper's pipe was closed, the pod got its node, or Ray began again."""
    assert crash_in(log) is None


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        (steps(9, "[rank0]: ") + noise(1) + KILLED.format(0), "killed"),
        (steps(9, "[rank0]: ") + RANK_0_DONE + noise(1) + KILLED.format(0), "killed"),
        (steps(9, "[rank0]: ") + STORE, "store-lost"),
        (steps(9, "[rank2]: ") + RANK_0_DONE.replace("rank0", "rank2") + STORE, "store-lost"),
        (PIN + BOOTSTRAP + "[rank3]: RuntimeError: Pin memory thread exited\n", "python-error"),
        (PIN.replace("_pin_memory_loop", "_read") + BOOTSTRAP + "[rank3]: EOFError\n", "python-error"),
        (PODS.format("0/1   Pending") + NO_NODE, "pod-not-scheduled"),
        (PODS.format("1/1   Running").replace("worker-1", "worker-0") + NO_NODE, "pod-not-scheduled"),
        (RAY_STEPS + DECISION.format("RAISE") + RAY_MEMORY, "host-out-of-memory"),
        (RAY_STEPS + DECISION.format("RETRY") + RAY_MEMORY + ATTEMPT, "host-out-of-memory"),
        (RAY_STEPS + DECISION.format("RETRY") + ATTEMPT + steps(2) + RAY_MEMORY, "host-out-of-memory"),
    ],
)
def test_the_same_messages_of_a_job_that_failed_are_its_failure(log: str, wanted: str) -> None:
    """Nothing shows that the job was over or went on."""
    crash = crash_in(log)
    assert crash is not None
    assert crash.first.code == wanted
