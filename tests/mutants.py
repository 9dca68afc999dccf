"""Break kernels, stream rules, stand-ins and the naming of faults on purpose, one at a time, and see that a test
notices.

    python -m tests.mutants             # all, a line each; make mutants
    python -m tests.mutants gate torch  # those whose name contains one of these words

Each mutant is one replacement in a copy of the suite. Exit code 0: at least `LEAST` of all died, or all of those that
were named; 1: too many survived, or the text of one is no longer in its file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST = 33
LIMIT_S = 300
COPIES, GATES = "bench/transports/_cuda_kernels.py", "bench/transports/_cuda_gate.py"
PROGRAM, TIMING = "bench/transports/_cuda_program.py", "bench/transports/_cuda_timing.py"
TIMER, NCCL = "bench/transports/_nccl_timer.py", "bench/transports/nccl.py"
STREAMS, RUNTIME = "tests/fakes/nccl/torch/_streams.py", "tests/fakes/cupy_host/cupy/cuda/runtime.py"
KERNELS = ("tests/transports/test_cuda_kernels.py", "-k", "exact or waits_for_its_ticket")
STANDIN = "tests/transports/test_standin_streams.py"
TIMES, TORCH = (STANDIN, "-k", "copies_are_the_hosts"), (STANDIN, "-k", "nccl_waits")
BLOCKS = (STANDIN, "-k", "shut_gate")
COPY_TESTS = "tests/transports/test_cuda_copy.py"
BEATS, SCHEDULED, LINKS = "bench/rank/heartbeats.py", "bench/core/cpu_use.py", "bench/controller/link_checks.py"
BEAT_TESTS, LINK_TESTS = "tests/rank/test_heartbeats.py", "tests/testbed/test_links.py"
CAUSE, CAUSE_TESTS = "bench/controller/root_cause.py", "tests/controller/test_root_cause.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which is in `file` once, becomes `new`; `tests`: the words of pytest that must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant("kernel-tail-dropped", COPIES, "threadIdx.x < num_bytes % 16", "threadIdx.x < num_bytes % 1", KERNELS),
    Mutant("kernel-word-twice", COPIES, "to[at + 3ull * blockDim.x] = d;", "to[at + 3ull * blockDim.x] = c;", KERNELS),
    Mutant("kernel-stride-doubled", COPIES, "begin += gridDim.x * tile", "begin += 2 * gridDim.x * tile", KERNELS),
    Mutant("kernel-last-words-dropped", COPIES, "one < words;", "one + blockDim.x < words;", KERNELS),
    Mutant("gate-never-waits", COPIES, "*flag != (unsigned int)ticket", "0", KERNELS),
    Mutant("gate-limit-x-1000", COPIES, "now - begin > limit_ns", "now - begin > 1000 * limit_ns", KERNELS),
    Mutant("gate-expiry-not-told", COPIES, "*(volatile unsigned int*)expired = (unsigned int)ticket;", "", KERNELS),
    Mutant("gate-queue-overflows", GATES, "MOST_CALLS = 64", "MOST_CALLS = 1024", TIMES),
    Mutant(
        "gate-malloc-behind-it",
        TIMING,
        "        program.enqueue(order, extra)\n        all_there()",
        "        program.enqueue(order, extra)\n        program._runtime.malloc(64)\n        all_there()",
        TIMES,
    ),
    Mutant(
        "gate-free-behind-it",
        TIMING,
        "    ticket = gate.shut(program.streams[0], limit_s)\n",
        "    own = program._runtime.malloc(64)\n    ticket = gate.shut(program.streams[0], limit_s)\n"
        "    program._runtime.free(own)\n",
        TIMES,
    ),
    Mutant(
        "gate-pinned-behind-it",
        TIMING,
        "        program.enqueue(order, extra)\n        all_there()",
        "        program.enqueue(order, extra)\n        program._runtime.hostAlloc(64, 0)\n        all_there()",
        TIMES,
    ),
    Mutant("gate-not-checked", TIMING, "    gate.check(ticket)\n", "", (COPY_TESTS, "-k", "opened_by_itself")),
    Mutant("stream-thread-without-device", PROGRAM, "self._runtime.setDevice(self._device)", "None", TIMES),
    Mutant("stream-times-x-1000", PROGRAM, "(self._begin, event)) * 1e-3", "(self._begin, event))", TIMES),
    Mutant("stream-times-by-1000", PROGRAM, "(self._begin, event)) * 1e-3", "(self._begin, event)) * 1e-6", TIMES),
    Mutant(
        "stream-run-does-not-wait",
        PROGRAM,
        "        for stream in self.streams:\n            self._runtime.streamSynchronize(stream)\n",
        "",
        (COPY_TESTS, "-k", "returns_when_its_copies"),
    ),
    Mutant(
        "stream-ends-before-copies",
        PROGRAM,
        "        self.issue(order)\n        for stream, end in zip(self.streams, self._ends, strict=True):\n"
        "            runtime.eventRecord(end, stream)\n",
        "        for stream, end in zip(self.streams, self._ends, strict=True):\n"
        "            runtime.eventRecord(end, stream)\n        self.issue(order)\n",
        TIMES,
    ),
    Mutant("ipc-never-closed", "bench/transports/_cuda_reach.py", "ipcCloseMemHandle(", "getDevice() or bool(",
           (COPY_TESTS, "-k", "in_every_way")),
    Mutant("torch-sync-without-cuda", NCCL, "        self._torch.cuda.synchronize()\n        self._control.barrier()",
           "        self._control.barrier()", TORCH),
    Mutant("torch-finish-without-stream", NCCL, "self._torch.cuda.current_stream().synchronize()", "pass", TORCH),
    Mutant("torch-warm-up-not-ordered", TIMER, "        self._stream.wait_stream(cuda.current_stream())\n", "", TORCH),
    Mutant("torch-capture-beside-work", TIMER,
           "        cuda.current_stream().wait_stream(self._stream)\n        cuda.synchronize()\n        graph",
           "        graph", TORCH),
    Mutant("torch-times-x-1000", TIMER, "elapsed_time(end) * 1e-3", "elapsed_time(end)", TORCH),
    Mutant("torch-end-not-waited-for", TIMER, "        end.synchronize()\n", "", TORCH),
    Mutant("torch-end-before-calls", TIMER,
           "        for call in calls:\n            call()\n        issued = clock()\n        end.record()\n",
           "        end.record()\n        for call in calls:\n            call()\n        issued = clock()\n", TORCH),
    Mutant("torch-begin-after-calls", TIMER, "        issued = clock()\n        end.record()",
           "        issued = clock()\n        begin.record()\n        end.record()", TORCH),
    Mutant("step-exchange-not-waited-for", "bench/transports/strategies/_groups.py", "            self._work.wait()\n",
           "            pass\n", ("tests/transports/test_nccl.py", "-k", "training_steps")),
    Mutant("standin-torch-at-once", STREAMS, "            self._work.put(work)\n",
           "            work()\n            self._work.put(lambda: None)\n", TORCH),
    Mutant("standin-torch-always-idle", STREAMS, "        return self.num_done == self.num_put\n",
           "        return True\n", TORCH),
    Mutant("standin-queue-without-end", RUNTIME, "QUEUE = 1000", "QUEUE = 100000", BLOCKS),
    Mutant("standin-gate-blocks-nothing", RUNTIME, "stream.num_done < stream.gate", "False", BLOCKS),
    Mutant("fault-connection-not-restored", "bench/controller/connections.py", "_RESTORE_S = 15.0", "_RESTORE_S = 0.0",
           ("tests/testbed/test_connections.py", "-k", "is_restored")),
    Mutant("fault-one-way-without-direction", LINKS, "        elif not there:\n", "        elif back and not there:\n",
           (LINK_TESTS, "-k", "cut_pair or partition")),
    Mutant("fault-direction-turned", LINKS, 'facts = {"a": a, "b": b, **_facts(link), "remedy": _REPAIR}',
           'facts = {"a": b, "b": a, **_facts(link), "remedy": _REPAIR}', (LINK_TESTS, "-k", "one_way_drop")),
    Mutant("fault-small-mtu-unseen", LINKS, "if largest < size <= mtu", "if largest < size <= largest",
           (LINK_TESTS, "-k", "small_mtu")),
    Mutant("fault-duplicate-address-unseen", LINKS, "if len(hosts) > 1 and", "if len(hosts) > 2 and",
           (LINK_TESTS, "-k", "address_of_two_hosts")),
    Mutant("fault-starved-rank-exonerated", SCHEDULED, "_FAR_BELOW = 0.25", "_FAR_BELOW = 0.0",
           ("tests/end_to_end/test_starved_ranks.py", "-k", "percent and mpirun-2")),
    Mutant("fault-waiting-is-no-need", SCHEDULED, "return self.cpu_s + self.waited_s", "return self.cpu_s",
           ("tests/core/test_cpu_use.py",)),
    Mutant("fault-victims-named", CAUSE, "use.others_share >= _ENOUGH_SHARE", "use.others_share >= 0", (CAUSE_TESTS,)),
    Mutant("fault-mpirun-host-guessed", CAUSE, "hosts[0]) if len(hosts) == 1 else None", "hosts[0]) if hosts else None",
           (CAUSE_TESTS, "-k", "only_connection")),
    Mutant("fault-end-of-mpirun-told", "bench/launchers/agent.sh", '[ "$parent" = "$PPID" ] && ', "",
           ("tests/controller/test_hosts.py", "-k", "while_mpirun_runs")),
    Mutant("fault-last-phase-dropped", BEATS, "within_s, True\n", "within_s, False\n",
           (BEAT_TESTS, "-k", "soon_after")),
    Mutant("fault-filling-without-beat", BEATS,
           "        self._work_clock = time.pthread_getcpuclockid(threading.get_ident())\n",
           "", (BEAT_TESTS, "-k", "local_work")),
    Mutant("fault-sleep-not-told", "bench/rank/pauses.py", "    if slept_s > _LEAST_S:\n", "    if slept_s > 1e9:\n",
           (BEAT_TESTS, "-k", "slept_longer")),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Try the mutants whose names contain one of the words, or all."""
    chosen = [each for each in MUTANTS if not words or any(word in each.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "suite"
        for name in ("bench", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "bench.yaml", "scenarios", "rules", "workloads"):
            (copy / name).symlink_to(ROOT / name)
        states = [tried(each, copy) for each in chosen]
    died = states.count("died")
    print(f"{died} of {len(chosen)} mutants died", flush=True)
    return 0 if died >= (len(chosen) if words else LEAST) and "gone" not in states else 1


def tried(mutant: Mutant, copy: Path) -> str:
    """Return "died", "survived", or "gone" if its text is not in the file once. Prints a line."""
    file, began = copy / mutant.file, time.monotonic()
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        state = "gone"
    else:
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        state = "survived" if passes(mutant.tests, copy) else "died"
        file.write_text(text, encoding="utf-8")
    print(f"{mutant.name:30} {state:8} {time.monotonic() - began:5.0f} s", flush=True)
    return state


def passes(tests: tuple[str, ...], copy: Path) -> bool:
    """Do these tests pass? A test that hangs fails. No test at all is an error."""
    words = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    try:
        code = subprocess.run(words, cwd=copy, capture_output=True, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        return False
    if code not in (0, 1):
        raise RuntimeError(f"pytest {' '.join(tests)} ended with {code}")
    return code == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
