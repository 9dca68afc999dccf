"""Break kernels, stream rules, counters, stand-ins and the naming of faults on purpose, one at a time, and see that a
test notices.

    python -m tests.mutants             # all, a line each; make mutants
    python -m tests.mutants gate torch  # those whose name contains one of these words

Each mutant is one replacement in a copy of the suite. Exit code 0: at least `LEAST` of all died, or all of those that
were named; 1: too many survived, the text of one is not in its file once, or its tests fail without it.
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
LEAST = 75
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
SAMPLER, READER = "bench/probes/device_sampler.py", "bench/probes/_nvml_reader.py"
USE, SAMPLER_TESTS = "bench/core/device_use.py", "tests/probes/test_device_sampler.py"
SLOW, ANSWERS = (SAMPLER_TESTS, "-k", "slow_library"), (SAMPLER_TESTS, "-k", "state_and_the_counters")
MOE, MOE_TESTS = "bench/moe.py", ("tests/test_patterns.py", "-k", "hottest_experts or moe")
COPY = "bench/transports/cuda_copy.py"
SMS, BY_KERNEL = (COPY_TESTS, "-k", "as_it_may_have_sms"), (COPY_TESTS, "-k", "kernels_copy_from")
CHASES = ("tests/transports/test_cuda_kernels.py", "-k", "dependent_loads_copy")
PLACE, PLACE_TESTS = "bench/transports/_step_place.py", ("tests/transports/test_step_place.py",)
WAITS = ("tests/transports/test_metered_groups.py", "-k", "belongs_to_the_group")
LOOP, LOOP_TESTS = "bench/transports/_nccl_loop", ("tests/transports/test_nccl_loop.py",)
DIRECT, NIXL = "tests/end_to_end/test_nccl_direct.py", "bench/transports/nixl.py"
NIXL_TESTS = ("tests/transports/test_nixl.py", "-k", "every_byte or own_data")
MPI_LOOP = ("tests/transports/test_mpi_loop.py", "-k", "clock_of_the_library")


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
    Mutant("step-exchange-not-waited-for", "bench/transports/strategies/_groups.py",
           "True\n            self._work.wait()\n", "True\n            pass\n",
           ("tests/transports/test_nccl.py", "-k", "training_steps")),
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
    Mutant("fault-mpirun-host-guessed", CAUSE, "len(failed) == 1 and failed[0].first", "failed and failed[0].first",
           (CAUSE_TESTS, "-k", "only_connection")),
    Mutant("fault-end-of-mpirun-told", "bench/launchers/agent.sh", '[ "$parent" = "$PPID" ] && ', "",
           ("tests/launchers/test_agent.py", "-k", "after_mpirun_did_not_fail")),
    Mutant("fault-last-phase-dropped", BEATS, "within_s, True\n", "within_s, False\n",
           (BEAT_TESTS, "-k", "soon_after")),
    Mutant("fault-filling-without-beat", BEATS,
           "        self._work_clock = time.pthread_getcpuclockid(threading.get_ident())\n",
           "", (BEAT_TESTS, "-k", "local_work")),
    Mutant("sampler-cost-unlimited", SAMPLER, "_MOST_COST = 0.02, 0.004", "_MOST_COST = 0.02, 4.0", SLOW),
    Mutant("sampler-row-before-counted", SAMPLER,
           "self._readings, self._cpu_s, self._began, self._active = [], 0.0, time.monotonic(), True",
           "self._cpu_s, self._began, self._active = 0.0, time.monotonic(), True",
           (SAMPLER_TESTS, "-k", "a_fast_library")),
    Mutant("sampler-counters-not-grown", SAMPLER, "after[name] - before for", "after[name] for", SLOW),
    Mutant("sampler-late-counter-grown", SAMPLER, "for name, before in self._before.items() if name in after",
           "for name in after for before in (self._before.get(name, 0),)", SLOW),
    Mutant("sampler-thread-stays", SAMPLER, "self._ends = True", "self._ends = False", SLOW),
    Mutant("sampler-settings-throttle", USE, "if reason not in _AS_SET", "if reason",
           (SAMPLER_TESTS, "-k", "settings_of_the_user")),
    Mutant("sampler-one-reading-throttles", USE, "_SHARE = 0.05", "_SHARE = 0.0",
           (SAMPLER_TESTS, "-k", "settings_of_the_user")),
    Mutant("sampler-lowest-clock-lost", USE, 'min(known("hz"), default=None)', 'max(known("hz"), default=None)',
           (SAMPLER_TESTS, "-k", "condensed_to")),
    Mutant("counters-of-one-link", READER, "_LINKS = range(18)", "_LINKS = range(1)", ANSWERS),
    Mutant("counters-not-summed", READER, "found[name] = sum(known)", "found[name] = known[0]", ANSWERS),
    Mutant("counters-unknown-is-zero", READER, "None if one.nvmlReturn != 0", "0 if one.nvmlReturn != 0", ANSWERS),
    Mutant("counters-pcie-of-another-field", READER, "((94, 0),)", "((83, 0),)", ANSWERS),
    Mutant("counters-nvlink-bytes-of-link-0", READER, "((138, _ALL_LINKS),)", "((138, 0),)", ANSWERS),
    Mutant("counters-xid-forgotten", READER, "self._xids += sum", "self._xids = sum",
           (SAMPLER_TESTS, "-k", "xid_events")),
    Mutant("counters-of-another-gpu", READER, "if pci.address(bus) == wanted:", "if bus:", ANSWERS),
    Mutant("moe-skew-ignored", MOE, "(k + 1) ** -skew", "(k + 1) ** 0.0", MOE_TESTS),
    Mutant("moe-tokens-of-16-bits", MOE, "return 2 if element_bytes == 1 else 1", "return 1", MOE_TESTS),
    Mutant("moe-results-over-tokens", MOE, "after = sum(tokens_out), sum(tokens_in)", "after = 0, 0", MOE_TESTS),
    Mutant("moe-own-tokens-sent", MOE, "theirs = [0 if peer == member else size", "theirs = [size", MOE_TESTS),
    Mutant("moe-size-of-tokens-alone", MOE, "max(max(theirs // part + own, own // part + theirs)",
           "max(max(theirs // part, own // part)", MOE_TESTS),
    Mutant("sms-ignored", COPY, "(sms, 1) if sms else", "(self._device.num_sms, self._blocks_per_sm) if sms else", SMS),
    Mutant("sms-filled", COPY, "(sms, 1) if sms else", "(sms, self._blocks_per_sm) if sms else", SMS),
    Mutant("sms-more-blocks-than-tiles", COPIES, "min(blocks * num_sms, -(-num_bytes // TILE_BYTES))",
           "blocks * num_sms", ("tests/transports/test_cuda_kernels.py", "-k", "no_more_blocks")),
    Mutant("chase-skips-a-word", COPIES, "hop < words; hop++", "hop + 1 < words; hop++", CHASES),
    Mutant("chase-waits-for-no-load", COPIES, "(word.x & zero)", "zero * 0", CHASES),
    Mutant("chase-meets-words-twice", COPIES, "while gcd(step, num_words) > 1:", "while False:", CHASES),
    Mutant("host-kernel-is-the-engine", COPY, 'if self._options.engine == "ce" or group is self._alone:', "if True:",
           BY_KERNEL),
    Mutant("host-chase-is-the-copy-kernel", COPY, 'if self._options.engine == "chase":\n            return',
           "if False:\n            return", BY_KERNEL),
    Mutant("host-kernel-source-is-target", PROGRAM,
           "arguments = _cuda_kernels.numbers(source_at, target_at, num_bytes)\n",
           "arguments = _cuda_kernels.numbers(target_at, source_at, num_bytes)\n", BY_KERNEL),
    Mutant("place-mark-not-recorded", PLACE, "        event.record(stream)\n", "", PLACE_TESTS),
    Mutant("place-origin-of-the-start", PLACE, "self._origin = self.mark()",
           'self._origin = getattr(self, "_origin", None) or self.mark()', PLACE_TESTS),
    Mutant("place-end-not-waited-for", PLACE, "        self._cuda.synchronize()\n", "        pass\n", PLACE_TESTS),
    Mutant("place-spins-not", PLACE, "if due > 0:", "if due > 1e9:", PLACE_TESTS),
    Mutant("place-waits-of-other-streams", PLACE, "if stream != self._stream:", "if False:", WAITS),
    Mutant("place-wait-before-its-mark", PLACE,
           "                began = self._mark_on(stream)\n                wait(event, stream)\n",
           "                wait(event, stream)\n                began = self._mark_on(stream)\n", WAITS),
    Mutant("place-waits-noted-for-ever", PLACE, "            events.record, events.wait = record, wait\n",
           "            pass\n", WAITS),
    Mutant("event-wait-missing", PROGRAM, "            runtime.streamWaitEvent(stream, self._begin)\n",
           "            pass\n", (COPY_TESTS, "-k", "wait_for_one_event")),
    Mutant("event-end-not-reached", f"{LOOP}.c",
           "        if ((code = reach(d, d->end, begin + d->timeout_ns)) != 0)\n            return code;\n", "",
           (DIRECT, "-k", "times_are_of_the_device")),
    Mutant("event-error-of-a-peer-unseen", f"{LOOP}.c", "if (failed || (code && code != 7))", "if (failed)",
           (DIRECT, "-k", "dead_peer")),
    Mutant("loop-row-not-rehearsed", f"{LOOP}.c", "if (rehearsed >= 0 &&", "if (0 &&", LOOP_TESTS),
    Mutant("loop-each-rank-decides", f"{LOOP}.py", "if not program.rehearses or", "if compiled.refill is not None or",
           LOOP_TESTS),
    Mutant("loop-batch-by-system-clock", "bench/transports/_mpi_loop.c", "double begin_s = wtime ? wtime() : 0;",
           "double begin_s = 0; wtime = 0;", MPI_LOOP),
    Mutant("nixl-receiver-does-not-wait", NIXL, "if not self._arrived[key]]", "if False]", NIXL_TESTS),
    Mutant("nixl-sender-does-not-wait", NIXL, "elif not open_handles:", "elif True:", NIXL_TESTS),
    Mutant("nixl-places-of-the-first-exchange", NIXL, "places = layout.places[number]", "places = layout.places[0]",
           NIXL_TESTS),
    Mutant("nixl-one-set-of-the-receiver", NIXL, "layout.bases[k % len(layout.bases)]", "layout.bases[0]", NIXL_TESTS),
    Mutant("nixl-notification-counts-twice", NIXL, " arrived[key] -= 1\n", " pass\n", NIXL_TESTS),
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
        sound = {tests: passes(tests, copy) for tests in dict.fromkeys(each.tests for each in chosen)}
        states = [tried(each, copy, sound[each.tests]) for each in chosen]
    died = states.count("died")
    print(f"{died} of {len(chosen)} mutants died", flush=True)
    return 0 if died >= (len(chosen) if words else LEAST) and not {"gone", "unsound"} & {*states} else 1


def tried(mutant: Mutant, copy: Path, sound: bool) -> str:
    """Return and print what became of a mutant.

    The result is "died", "survived", "gone" if its text is not in the file once, or "unsound" if its tests do not pass
    without it: then their failure says nothing.
    """
    file, began = copy / mutant.file, time.monotonic()
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        state = "gone"
    elif not sound:
        state = "unsound"
    else:
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        state = "survived" if passes(mutant.tests, copy) else "died"
        file.write_text(text, encoding="utf-8")
    print(f"{mutant.name:30} {state:8} {time.monotonic() - began:5.0f} s", flush=True)
    return state


def passes(tests: tuple[str, ...], copy: Path) -> bool:
    """Do these tests pass? A test that hangs fails, and words that select no test do not pass."""
    words = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    try:
        return subprocess.run(words, cwd=copy, capture_output=True, timeout=LIMIT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
