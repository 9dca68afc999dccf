"""The nemesis: one to three overlapping faults, drawn by a seed, against a run on three to six hosts of the testbed.

    python -m tests.testbed.nemesis [--seed N] [--runs N] [--kinds REGEX] [--file FILE] [--keep DIR]

After each run, four invariants are checked (nemesis_invariants.py): no row is wrong; nothing is left running; no
innocent rank, host or link is named; `--resume` makes the run whole. Each run adds a line to FILE with its seed, its
faults and the verdicts. Runs that FILE already has are not repeated, so a batch can be interrupted and continued.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.core.errors import EXIT_DONE, UsageError
from bench.store import jsonl
from tests.testbed import faults, nemesis_faults, nemesis_invariants
from tests.testbed.hosts import _ROOTLESS, Remote, SuspendedError, Testbed
from tests.testbed.nemesis_faults import KINDS, PORT, Active, Drawn, NotNowError
from tests.testbed.nemesis_invariants import INVARIANTS, Observed

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S, RESUME_DEADLINE_S = 8.0, 60.0
LEASE_S, MARGIN_S = 10.0, 4.0  # the promise, and the slack
_LIMIT_S = 100.0  # of a run: a rank may be silent for 60 s while it starts
_SMALL, _BIG, _SAMPLES = 8, 1 << 20, 120
_DISK_MIB = 64
_POLL_S, _LOOK_S, _AGAIN_S = 0.03, 0.25, 0.2
_INSIDE = "NEMESIS_INSIDE"  # set in the process that has mounts of its own


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, wholly determined by its seed."""

    seed: int
    engine: str
    num_hosts: int
    controller_apart: bool
    preflight: bool
    patterns: tuple[str, ...]
    drawn: tuple[Drawn, ...]


def draw(seed: int, kinds: str = "") -> Plan:
    """The plan of a seed. `kinds`: a regex that the kinds of its faults match."""
    luck = random.Random(seed)
    engine = luck.choice(("gloo", "mpich", "mpich", "openmpi", "openmpi"))  # the ranks of Gloo start slowly
    num_hosts = luck.choice((3, 3, 3, 4) if engine == "gloo" else (3, 4, 5, 6))
    controller_apart = luck.random() < 0.5
    preflight = luck.random() < 0.25
    patterns = ("allreduce",) if engine == "gloo" or luck.random() < 0.5 else ("allreduce", "broadcast")
    names = [name for name, kind in KINDS.items() if engine in kind.engines and re.search(kinds, name)]
    drawn = []
    for name in luck.sample(names, min(len(names), luck.choice((1, 1, 2, 2, 3)))):
        kind = KINDS[name]
        safe = 0 if controller_apart or not kind.spares_controller else 1
        victim = 0 if name == "port-taken" else luck.randrange(safe, num_hosts)
        other = luck.choice([rank for rank in range(num_hosts) if rank != victim])
        moment = luck.choice(kind.moments)
        after_s = 0.0 if name == "port-taken" else luck.uniform(0, 4 if moment == "start" else 1.2)
        drawn.append(Drawn(name, victim, other, moment, round(after_s, 2), round(luck.uniform(0.5, 9), 1)))
    return Plan(seed, engine, num_hosts, controller_apart, preflight, patterns, tuple(drawn))


def load() -> float:
    """Processes that want to run for each CPU, at least 1: so much slower is this machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Scene:
    """A run on a testbed: what faults need to know about it."""

    rate = "1gbit"

    def __init__(self, plan: Plan, bed: Testbed, disk: Path) -> None:
        self.plan, self.bed = plan, bed
        self.hosts = bed.hosts[: plan.num_hosts]
        self.controller = bed.hosts[-1] if plan.controller_apart else self.hosts[0]
        self.folder, self.results, self.site = disk, disk / "results", bed.shared / "site"
        transport = "gloo" if plan.engine == "gloo" else "mpi"
        self.jobs = {pattern: f"{pattern}-{transport}-{plan.num_hosts}x1" for pattern in plan.patterns}
        self._prepare(transport)
        self.process: Remote

    def _prepare(self, transport: str) -> None:
        for folder in (self.site, self.results, self.folder / "scenarios"):
            folder.mkdir()
        (self.site / "sitecustomize.py").write_text(nemesis_faults.STRIKE)
        if any(drawn.kind == "mtu" for drawn in self.plan.drawn):
            for host in self.hosts:  # a port passes the large segments of the kernel whatever its MTU
                self.bed.network(host, "link set eth0 gso_max_segs 1")
        cluster = {
            "nodes": self.plan.num_hosts,
            "ranks_per_node": 1,
            "hosts": list(self.hosts),
            "agent": self.bed.agent,
            "launcher": "torchrun" if transport == "gloo" else "mpirun",
            "python": faults.interpreter(self.plan.engine),
            "env": faults._SHARING,
            **({"port": PORT} if transport == "gloo" else {}),
        }
        row = {"transport": transport, "sizes": [_SMALL, _BIG], "mode": "isolated", "iterations": _SAMPLES, "warmup": 2}
        scenario = {"max_seconds": 20, "measure": [{"pattern": name, **row} for name in self.plan.patterns]}
        (self.folder / "bench.yaml").write_text(json.dumps({"clusters": {"c": cluster}}))  # YAML, too
        (self.folder / "scenarios" / "s.yaml").write_text(json.dumps(scenario))

    def start_another(self, *words: str, deadline_s: float = DEADLINE_S) -> Remote:
        """`python -m bench run` on the controller's host."""
        command = [sys.executable, "-m", "bench", "run", *words, "--no-plots", "--format", "json"]
        command += ["--deadline", f"{deadline_s:g}s"]
        return self.bed.popen(self.controller, command, env={"PYTHONPATH": f"{ROOT}:{self.site}"}, cwd=self.folder)

    def start(self, *words: str, deadline_s: float = DEADLINE_S) -> Remote:
        """As start_another, for the run that the faults are for."""
        self.process = self.start_another(*words, deadline_s=deadline_s)
        return self.process

    def signal_controller(self, number: int) -> None:
        """A signal to the controller. Raises NotNowError if it has ended."""
        if self.process.poll() is not None:
            raise NotNowError("the controller has ended")
        for process in self.bed.processes():
            with contextlib.suppress(NotNowError):
                if process.host == self.controller and nemesis_faults.ids_of(process)[-1] == self.process.process:
                    os.kill(process.number, number)

    @property
    def run(self) -> Path | None:
        """The folder of the run."""
        return max(self.results.glob("2*"), default=None)

    def beats(self) -> dict[int, dict[str, Any]]:
        """The heartbeats of the job that runs."""
        found = {}
        for path in self.results.glob("2*/.*.heartbeats/*.json"):
            with contextlib.suppress(OSError, ValueError):
                found[int(path.stem)] = json.loads(path.read_text())
        return found

    def measures(self) -> bool:
        """Whether a row is being measured, or was."""
        if any("samples" in beat["doing"] or "warm-up" in beat["doing"] for beat in self.beats().values()):
            return True
        with contextlib.suppress(OSError):
            return any(file.read_bytes().count(b"\n") > 1 for file in self.results.glob("2*/*.jsonl"))
        return False

    def left(self) -> list[str]:
        """What runs of any run, on any host; not the controller itself."""
        found = {}
        for process in self.bed.processes("BENCH_JOB") + self.bed.processes("BENCH_AGENT"):
            found[process.number] = process
        for process in self.bed.processes():
            if "bench.controller.guard" in process.words or "-m bench run" in process.words:
                found[process.number] = process
        return [f"on {process.host}: {process.words[:120]}" for process in found.values()]

    def attempts(self) -> dict[str, tuple[jsonl.Attempt, ...]]:
        """The attempts in the results files."""
        found = {}
        for job in self.jobs.values():
            with contextlib.suppress(UsageError):
                found[job] = jsonl.read((self.run or Path()) / f"{job}.jsonl").attempts
        return found

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """How each job ended."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, dict[str, Any]] = json.loads(((self.run or Path()) / "outcomes.json").read_text())
            return found
        return {}


class JobTimes:
    """When each job began and ended: while a job runs, the run's folder has a folder of its heartbeats."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.found: dict[str, tuple[float, float]] = {}
        self._over: set[str] = set()

    def look(self, now_s: float) -> None:
        """Note which job runs, `now_s` seconds after the run's start."""
        for job in self._scene.jobs.values():
            if job in self._over:
                continue
            if any(self._scene.results.glob(f"2*/.{job}.heartbeats")):
                self.found[job] = self.found.get(job, (now_s, now_s))[0], now_s
            elif job in self.found:
                self.found[job] = self.found[job][0], now_s
                self._over.add(job)


class Faults:
    """The faults of a run, as they begin and end. `missed`: why a fault did not begin."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._waiting = list(scene.plan.drawn)
        self._again_s: dict[str, float] = {}  # when to try again to begin
        self._began = time.monotonic()
        self._rows_s: float | None = None
        self.active: list[Active] = []
        self.missed: dict[str, str] = {}

    @property
    def now_s(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self._began

    def step(self) -> None:
        """Begin, continue and end what is due."""
        if self._rows_s is None and self._scene.measures():
            self._rows_s = self.now_s
        for drawn in list(self._waiting):
            if self.now_s < self._again_s.get(drawn.kind, 0.0):
                continue
            from_s = 0.0 if drawn.moment == "start" else self._rows_s
            if from_s is not None and self.now_s >= from_s + drawn.after_s:
                self._begin(drawn)
        for active in self.active:
            if active.ended_s is not None:
                continue
            kind = KINDS[active.drawn.kind]
            if self.now_s >= active.began_s + active.drawn.for_s or (kind.end is None and kind.tick is None):
                self.end(active)
            elif kind.tick is not None:
                self._do(kind.tick, active)

    def _begin(self, drawn: Drawn) -> None:
        active = Active(drawn, self.now_s)
        try:
            KINDS[drawn.kind].begin(self._scene, active)
        except (NotNowError, SuspendedError) as error:
            self.missed[drawn.kind] = str(error)
            self._again_s[drawn.kind] = self.now_s + _AGAIN_S
            return
        except (OSError, subprocess.SubprocessError, TimeoutError, KeyError) as error:
            self.missed[drawn.kind] = f"{type(error).__name__}: {error}"
        else:
            self.active.append(active)
        self._waiting.remove(drawn)

    def no_more(self) -> None:
        """The run is over: what has not begun never will."""
        self._waiting.clear()

    def end(self, active: Active) -> None:
        """End a fault."""
        kind = KINDS[active.drawn.kind]
        if kind.end is not None:
            self._do(kind.end, active)
        active.ended_s = self.now_s

    def _do(self, act: nemesis_faults.Act, active: Active) -> None:
        try:
            act(self._scene, active)
        except (NotNowError, OSError, subprocess.SubprocessError, TimeoutError) as error:
            active.memory["problem"] = f"{type(error).__name__}: {error}"

    def end_all(self) -> None:
        """End what is left, and once more what could not be ended while another fault lasted."""
        for active in reversed(self.active):
            if active.ended_s is None or "problem" in active.memory:
                self.end(active)

    @property
    def over(self) -> bool:
        """Whether all faults that began have ended."""
        return all(active.ended_s is not None for active in self.active)


def attempt(plan: Plan, keep: Path | None = None) -> dict[str, Any]:
    """Carry out one run. Returns its line for the file; `keep`: where what it wrote is copied if it needs a look."""
    began = time.monotonic()
    with Testbed(plan.num_hosts + plan.controller_apart, rate=Scene.rate) as bed, _disk() as disk:
        scene = Scene(plan, bed, disk)
        faults_of_run = Faults(scene)
        observed = _observe(scene, faults_of_run)
        verdicts = {name: check(observed) for name, check in INVARIANTS.items()}
        missed = nemesis_invariants.has_culprit(observed) and not nemesis_invariants.culprit_named(observed)
        if keep is not None and (missed or any(verdicts.values())):
            _copy(scene, keep)
    return {
        "seed": plan.seed,
        "engine": plan.engine,
        "hosts": plan.num_hosts,
        "faults": [asdict(drawn) | _times(faults_of_run, drawn) for drawn in plan.drawn],
        "code": observed.code,
        "error": observed.error[-500:] if observed.code != EXIT_DONE else "",
        "outcomes": {
            job: {name: outcome.get(name) for name in ("code", "rank", "host", "what", "facts")}
            for job, outcome in observed.outcomes.items()
        },
        "jobs_s": {job: [round(time_s, 2) for time_s in span] for job, span in observed.jobs_s.items()},
        "resumed": observed.resumed_code,
        "has_culprit": nemesis_invariants.has_culprit(observed),
        "culprit_named": nemesis_invariants.culprit_named(observed),
        "violations": verdicts,
        "load": round(load(), 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def _observe(scene: Scene, of_run: Faults) -> Observed:
    plan = scene.plan
    process = scene.start("s", "--cluster", "c", *([] if plan.preflight else ["--no-preflight"]))
    rows = frozenset((job, size) for job in scene.jobs.values() for size in (_SMALL, _BIG))
    observed = Observed(plan.engine, scene.hosts, rows, _SAMPLES)
    times = JobTimes(scene)
    while process.poll() is None and of_run.now_s < _LIMIT_S * load():
        of_run.step()
        times.look(of_run.now_s)
        time.sleep(_POLL_S)
    times.look(of_run.now_s)
    observed.code, observed.error = process.poll(), process.err[-1500:]
    observed.attempts, observed.outcomes = scene.attempts(), scene.outcomes()
    observed.document = _parsed(process.out)
    of_run.no_more()
    observed.left = _left(scene, of_run)
    observed.jobs_s = times.found
    observed.faults_s = {
        active.drawn.kind: (active.began_s, active.ended_s) for active in of_run.active if active.ended_s is not None
    }
    observed.struck = [(active.drawn.kind, nemesis_faults.culprits(scene, active.drawn)) for active in of_run.active]
    observed.second_measured = any(
        active.memory.get("code") == EXIT_DONE and active.memory.get("first", 0) is None and observed.code == EXIT_DONE
        for active in of_run.active
    )
    if observed.code is None or observed.left:
        _clear(scene)
    if observed.code != EXIT_DONE or nemesis_invariants.missing_rows(observed, observed.attempts):
        _resume(scene, observed)
    return observed


def _left(scene: Scene, of_run: Faults) -> list[str]:
    """What still runs when it must be gone: LEASE_S after the controller's end and the end of all faults."""
    ended_s, looked_s = of_run.now_s, 0.0
    left = scene.left()
    while True:
        of_run.step()
        if of_run.now_s - looked_s > _LOOK_S:
            left, looked_s = scene.left(), of_run.now_s
        if of_run.over and not left:
            break
        since_s = max([ended_s, *(active.ended_s or 0.0 for active in of_run.active)])
        if of_run.over and of_run.now_s > since_s + LEASE_S + MARGIN_S * load():
            break
        time.sleep(_POLL_S)
    of_run.end_all()
    return left


def _clear(scene: Scene) -> None:
    """End what a violated run left, so that its continuation can be judged."""
    for process in scene.bed.processes():
        if "BENCH" in process.words or "bench" in process.words:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.number, signal.SIGKILL)


def _resume(scene: Scene, observed: Observed) -> None:
    run = scene.run
    there = run is not None and (run / "plan.json").exists()
    words = ["--resume", f"results/{run.name}"] if run is not None and there else ["s", "--cluster", "c"]
    again = scene.start(*words, "--no-preflight", deadline_s=RESUME_DEADLINE_S)
    observed.resumed = True
    with contextlib.suppress(TimeoutError):
        observed.resumed_code = again.wait(_LIMIT_S * load())
    observed.resumed_error, observed.resumed_document = again.err[-1500:], _parsed(again.out)
    observed.resumed_attempts = scene.attempts()
    if not there:
        observed.attempts = {}


def _parsed(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found: dict[str, Any] = json.loads(text)
        return found
    return {}


@contextlib.contextmanager
def _disk() -> Iterator[Path]:
    """A small file system that all hosts share, because it is mounted before their mount namespaces are made."""
    disk = Path(os.environ[_INSIDE])
    try:
        yield disk
    finally:
        for path in disk.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _times(of_run: Faults, drawn: Drawn) -> dict[str, Any]:
    for active in of_run.active:
        if active.drawn == drawn:
            problem = {"problem": active.memory["problem"]} if "problem" in active.memory else {}
            return {"began_s": round(active.began_s, 2), "ended_s": round(active.ended_s or 0.0, 2), **problem}
    return {"missed": of_run.missed.get(drawn.kind, "the run was over")}


def _copy(scene: Scene, keep: Path) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    for path in scene.results.glob("2*/*"):
        if path.is_file():
            shutil.copy(path, keep / path.name)
    for path in scene.bed.shared.glob("h*-*.err"):
        shutil.copy(path, keep / path.name)


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Counts per invariant, engine and kind of fault, and how often the culprit was named."""
    text = [f"{len(lines)} runs, {sum(line['seconds'] for line in lines) / max(1, len(lines)):.1f} s each"]
    for name in INVARIANTS:
        violated = [line["seed"] for line in lines if line["violations"][name]]
        seeds = f" (seeds {', '.join(map(str, violated))})" if violated else ""
        text.append(f"  {name:8} {len(lines) - len(violated)} hold, {len(violated)} violated{seeds}")
    with_culprit = [line for line in lines if line["has_culprit"]]
    named = sum(line["culprit_named"] for line in with_culprit)
    text.append(f"  culprit named in {named} of {len(with_culprit)} failed runs that have one")
    struck = Counter(fault["kind"] for line in lines for fault in line["faults"] if "missed" not in fault)
    failed = Counter(
        fault["kind"] for line in lines if line["code"] != 0 for fault in line["faults"] if "missed" not in fault
    )
    violated_by = Counter(
        fault["kind"]
        for line in lines
        if any(line["violations"].values())
        for fault in line["faults"]
        if "missed" not in fault
    )
    text.append(f"  {'kind':24} began  run ended not with 0  violations")
    for kind in KINDS:
        text.append(f"  {kind:24} {struck[kind]:5}  {failed[kind]:20}  {violated_by[kind]:10}")
    return "\n".join(text)


def _stored(file: Path) -> list[dict[str, Any]]:
    """The lines of the file; a torn last line is left out."""
    lines = []
    with contextlib.suppress(OSError):
        for text in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
    return lines


def to_do(seeds: Sequence[int], stored: Sequence[Mapping[str, Any]]) -> list[int]:
    """The seeds that the file lacks."""
    done = {line["seed"] for line in stored}
    return [seed for seed in seeds if seed not in done]


def _inside() -> None:
    """Start again in a mount namespace of its own, with a small disk that all hosts will share."""
    if _INSIDE in os.environ:
        return
    with tempfile.TemporaryDirectory(prefix="nemesis-") as disk:
        mount = f'mount -t tmpfs -o size={_DISK_MIB}m tmpfs "${_INSIDE}" && exec "$@"'
        again = ["sh", "-c", mount, "sh", sys.executable, "-m", "tests.testbed.nemesis", *sys.argv[1:]]
        words = ["unshare", *_ROOTLESS, "--mount", *again]
        sys.exit(subprocess.run(words, env={**os.environ, _INSIDE: disk}, check=False).returncode)


def main() -> int:
    """Carry out the runs that the file lacks, and print a summary of all."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background, and then also in all that it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(
        prog="python -m tests.testbed.nemesis", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=1, help="the first run's seed; the next run has the next seed")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--file", type=Path, default=Path("results/nemesis.jsonl"))
    parser.add_argument(
        "--kinds", default="", metavar="REGEX", help="draw from these kinds only, such as 'rank-|cable'"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep the files of runs with violations, or whose culprit was not named",
    )
    args = parser.parse_args()
    _inside()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    seeds = range(args.seed, args.seed + args.runs)
    for seed in to_do(seeds, _stored(args.file)):
        plan = draw(seed, args.kinds)
        if (reason := faults.why_not(plan.engine)) is not None:
            print(f"skipped  {seed} {plan.engine}: {reason}")
            continue
        line = attempt(plan, args.keep / str(seed) if args.keep else None)
        with args.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        violations = [f"{name}: {found}" for name, all_found in line["violations"].items() for found in all_found]
        kinds = ", ".join(fault["kind"] + (" (missed)" if "missed" in fault else "") for fault in line["faults"])
        verdict = "VIOLATED" if violations else "ok"
        print(f"{verdict:9}{seed} {plan.engine} x{plan.num_hosts}: {kinds}: exit {line['code']}, {line['seconds']} s")
        print(*(f"    ! {violation[:1000]}" for violation in violations), sep="\n", end="\n" if violations else "")
        sys.stdout.flush()
    lines = [line for line in _stored(args.file) if line["seed"] in seeds]
    print(summary(lines))
    return int(any(any(line["violations"].values()) for line in lines))


if __name__ == "__main__":
    sys.exit(main())
