"""Explain ends of processes that several programs report: signals, exit codes, time limits and lost nodes.

A reader may replace these explanations with explanations for its own program.
"""

from __future__ import annotations

from dataclasses import replace

from bench.logs.failure_events import MessageKind, Role

_OUT_OF_MEMORY = "check whether the kernel ended the process for lack of memory"
KILLED = MessageKind(
    "killed",
    Role.CAUSE,
    "the process was killed from outside (signal 9), often by the kernel for lack of host memory",
    0.7,
    _OUT_OF_MEMORY,
    "dmesg -T | grep -iE 'killed process|out of memory'",
)
CRASHED = MessageKind(
    "crashed",
    Role.CAUSE,
    "the process crashed (signal {signal})",
    0.85,
    "get the stack of the crash from a core file or Python's fault handler",
    "PYTHONFAULTHANDLER=1; ulimit -c unlimited",
)
ABORTED = MessageKind(
    "aborted",
    Role.ENDED,
    "the process aborted (signal 6), because a library or the program found an error",
    0.5,
    "read the last message of this process: the error comes before the abort",
)
TERMINATED = MessageKind("terminated", Role.STOPPED, "another program asked the process to end (signal {signal})", 0.1)
EXITED = MessageKind(
    "exited",
    Role.ENDED,
    "the process ended with exit code {exit_code}",
    0.5,
    "read this rank's own output: its error is not in these logs",
)
TIME_LIMIT = MessageKind(
    "time-limit",
    Role.WAITED,
    "the launcher ended the job at its time limit<, {seconds} s>: the program hung or needs longer",
    0.4,
    "find where each rank waits while it hangs",
    "py-spy dump --pid PID",
)
INTERRUPTED = MessageKind(
    "interrupted",
    Role.WAITED,
    "a user interrupted the job (Ctrl-C)",
    0.4,
    "if the job hung, find where each rank waits while it hangs",
    "py-spy dump --pid PID",
)
STEP_ENDED = MessageKind(
    "step-cancelled",
    Role.WAITED,
    "the scheduler ended the job: a user cancelled it, or a process failed before",
    0.3,
    "look at the scheduler's record of this job",
    "sacct -j JOB -o State,Reason,ExitCode,Comment",
)
CANCELLED = MessageKind(
    "cancelled",
    Role.WAITED,
    "a user or the scheduler cancelled the job< ({cause})>",
    0.4,
    "look at the scheduler's record of this job",
    "sacct -j JOB -o State,Reason,ExitCode,Comment",
)
AGENT_ENDED = MessageKind(
    STEP_ENDED.code,
    Role.WAITED,
    "torchrun was told to end (signal {signal}): a user or the scheduler ended the job, or a process failed elsewhere",
    0.3,
    "look at what ended the job: the scheduler's record, the terminal, and the logs of the job's other programs",
    "sacct -j JOB -o State,Reason,ExitCode,Comment",
)
HUNG_UP = MessageKind(
    STEP_ENDED.code,
    Role.WAITED,
    "torchrun got a hangup signal (SIGHUP): its terminal or its SSH session closed",
    0.4,
    "start the job in tmux or as a batch job; nohup is not enough, because torchrun handles SIGHUP itself",
    "tmux new -s train",
)
HOST_MEMORY = MessageKind(
    "host-out-of-memory",
    Role.CAUSE,
    "a process used more host memory than its limit, so the kernel ended it",
    0.95,
    "give the job more memory, or lower the number of data-loader workers",
    "sacct -j JOB -o MaxRSS,ReqMem",
)
NODE_LOST = MessageKind(
    "node-lost",
    Role.NETWORK,
    "the launcher lost its daemon on a node<, {host}>: the node went down or the network failed",
    0.85,
    "check that the node is up, and its kernel log",
    "ping NODE; ssh NODE dmesg -T | tail",
)
STORE_UNREACHABLE = MessageKind(
    "store-unreachable",
    Role.NETWORK,
    "the store of rank 0 at {peer} cannot be reached",
    0.8,
    "check MASTER_ADDR, the port and the firewall between the nodes",
    "nc -vz MASTER_ADDR MASTER_PORT",
)
WORKER_DIED = MessageKind(
    "worker-died",
    Role.PEER,
    "a worker process of Ray ended, and Ray does not know why",
    0.35,
    "read the worker's own output, and check whether the kernel ended it for lack of memory",
    "ls /tmp/ray/session_latest/logs/worker-*; dmesg -T | grep -iE 'killed process|out of memory'",
)
WORKER_LOST = replace(
    WORKER_DIED,
    code="worker-lost",
    what="a worker process of Ray ended, and the driver does not know why",
    weight=0.4,
)
STOPS = (TIME_LIMIT, INTERRUPTED, CANCELLED, HUNG_UP)  # the processes that end later did not cause the failure

_NAMES = {
    "SIGHUP": 1,
    "Hangup": 1,
    "SIGKILL": 9,
    "Killed": 9,
    "SIGSEGV": 11,
    "Segmentation fault": 11,
    "SIGABRT": 6,
    "Aborted": 6,
    "SIGTERM": 15,
    "Terminated": 15,
    "SIGBUS": 7,
    "Bus error": 7,
    "SIGILL": 4,
    "Illegal instruction": 4,
    "SIGFPE": 8,
    "Floating point exception": 8,
    "SIGINT": 2,
    "Interrupt": 2,
}


def signal_of(name: str) -> int | None:
    """Return the number of a signal with this name or description, or None if unknown."""
    return next((number for known, number in _NAMES.items() if name.startswith(known)), None)


def by_signal(signal: int) -> MessageKind:
    """Return the meaning of a failure that this signal caused."""
    if signal == 9:
        return KILLED
    if signal == 6:
        return ABORTED
    if signal in (1, 2, 10, 12, 15):
        return TERMINATED
    return CRASHED


def signal_of_exit(code: int) -> int | None:
    """Return the signal that an exit code reports. Return None if the program itself chose the exit code."""
    if code < 0:
        return -code
    return code - 128 if 128 < code < 160 else None


def by_exit_code(code: int) -> MessageKind:
    """Return what an exit code means.

    If a signal ended the process, shells report 128 + the signal's number. Python reports the signal's number as a
    negative number.
    """
    signal = signal_of_exit(code)
    return EXITED if signal is None else by_signal(signal)
