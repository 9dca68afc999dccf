"""Faults on the testbed: each is injected into a run that does not expect it, and the run's report is checked.

    python -m tests.testbed.faults [--seed N] [--only REGEX] [--markdown FILE]      the whole matrix, as a table

A seed chooses the world, the controller's host, the victim and the moment. The product does not know what will happen:
the faults are signals, cables, power, disks and a module on the victim's host that is not ours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.errors import UsageError
from bench.store import jsonl
from tests.testbed import agent
from tests.testbed.hosts import Process, Remote, Testbed

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S, GRACE_S = 6.0, 15.0
SMALL, BIG = 8, 1 << 20
_FIRST, _SECOND = "allreduce", "broadcast"
_READY_S = 150.0  # until the victim reaches the moment: many ranks start slowly
_WHOLE_S = 240.0
_TRIES = 3  # on a busy machine, ranks may be silent for longer than the short deadline of these runs
_LEFT_S = 6.0
# More ranks than CPUs: hosts of the testbed do not know that they are one machine.
_SHARING = {
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "8",
}
# Run by every Python program of the victim's host: what a bug in a library that the site has installed would do.
_STRIKE = """import os, signal
def strike(number, frame):
    how = open(os.path.join(os.path.dirname(__file__), "how")).read()
    if how == "raise":
        raise ValueError("a bit fell over")
    os._exit(int(how))
signal.signal(signal.SIGUSR2, strike)
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One trial, wholly determined."""

    engine: str
    fault: str
    seed: int

    def __str__(self) -> str:
        return f"{self.engine}-{self.fault}"


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected result. `ranks`, `hosts`: correct names (None: it cannot be known). `words`: a regex over facts."""

    codes: tuple[int, ...] = (4,)
    ranks: tuple[int | None, ...] = ()
    hosts: tuple[str | None, ...] = ()
    words: str = ""
    goes_on: bool = True  # the next job of the scenario is measured, in a launch of its own


@dataclass(slots=True)
class Result:
    """The result of a trial. `problems` is empty if everything was as promised."""

    cell: Cell
    trial: str = ""
    code: int | None = None
    seconds: float | None = None  # from the fault to the end of the job, or of the run where that ends
    what: str = ""
    rank: int | None = None
    host: str | None = None
    link: str = ""
    resumed: bool | None = None
    problems: list[str] = field(default_factory=list)


class NeverReadyError(Exception):
    """The victim did not reach the moment of the fault: nothing was tried."""


class Trial:
    """A run on a testbed, before and after the moment of the fault."""

    def __init__(self, cell: Cell, bed: Testbed, num_hosts: int, per_host: int, luck: random.Random) -> None:
        self.cell, self.bed, self.per_host, self.luck = cell, bed, per_host, luck
        self.hosts = bed.hosts[:num_hosts]
        fault = FAULTS[cell.fault]
        self.controller = self.hosts[0] if fault.controller_on_first else luck.choice([self.hosts[0], bed.hosts[-1]])
        ranks = range(num_hosts * per_host)
        self.victim: int = 0 if fault.first_rank else luck.choice([rank for rank in ranks if self.may_be_hit(rank)])
        self.host: str = self.hosts[self.victim // per_host]
        self.early = fault.may_be_early and luck.random() < 0.25
        self.folder, self.site = bed.shared / "controller", bed.shared / "site"
        self.seen = bed.seen(self.controller, self.folder)
        self.process: Remote | None = None
        self.cluster: dict[str, Any] = {}
        self.beside: Remote | None = None

    def __str__(self) -> str:
        before = "before it starts" if FAULTS[self.cell.fault].at_start else "in the second row"
        moment = "while it starts" if self.early else before
        return (
            f"{len(self.hosts)} hosts x {self.per_host} ranks, controller on {self.controller}, "
            f"victim rank {self.victim} on {self.host}, {moment}"
        )

    def may_be_hit(self, rank: int) -> bool:
        """Whether a rank may be the victim: the controller's own host must not lose its power."""
        return not FAULTS[self.cell.fault].spares_controller or self.hosts[rank // self.per_host] != self.controller

    def prepare(self) -> None:
        """The controller's files: a scenario of two jobs of two rows."""
        self.site.mkdir()
        (self.folder / "scenarios").mkdir(parents=True)
        cluster = {
            "nodes": len(self.hosts),
            "ranks_per_node": self.per_host,
            "hosts": list(self.hosts),
            "agent": self.bed.agent,
            "launcher": "torchrun" if self.cell.engine == "gloo" else "mpirun",
            "python": interpreter(self.cell.engine),
            "env": _SHARING,
        }
        transport = "gloo" if self.cell.engine == "gloo" else "mpi"
        row = {"transport": transport, "sizes": [SMALL, BIG], "mode": "isolated", "iterations": 300, "warmup": 2}
        self.cluster = cluster
        self.write(cluster, {"max_seconds": 20, "measure": [{"pattern": name, **row} for name in (_FIRST, _SECOND)]})
        FAULTS[self.cell.fault].prepare(self)

    def write(self, cluster: dict[str, Any], scenario: dict[str, Any]) -> None:
        (self.folder / "bench.yaml").write_text(json.dumps({"clusters": {"c": cluster}}))  # YAML, too
        (self.folder / "scenarios" / "s.yaml").write_text(json.dumps(scenario))

    def rewrite(self, **changes: Any) -> None:
        """The cluster's entry with other values."""
        (self.folder / "bench.yaml").write_text(json.dumps({"clusters": {"c": self.cluster | changes}}))

    def start(self, *words: str) -> Remote:
        """`python -m bench run` on the controller's host."""
        command = [sys.executable, "-m", "bench", "run", *words, "--no-plots", "--format", "json"]
        env = {"PYTHONPATH": f"{ROOT}:{self.site}"}
        self.process = self.bed.popen(self.controller, command, env=env, cwd=self.folder)
        return self.process

    @property
    def run(self) -> Path | None:
        """The newest run's folder, as the controller's host sees it."""
        return max(self.seen.glob("results/2*"), default=None)

    def beats(self) -> dict[int, dict[str, Any]]:
        """The heartbeats of the job that runs."""
        found = {}
        for path in self.seen.glob("results/2*/.*.heartbeats/*.json"):
            with contextlib.suppress(OSError, ValueError):
                found[int(path.stem)] = json.loads(path.read_text())
        return found

    def wait_for_moment(self) -> dict[int, dict[str, Any]]:
        """The heartbeats at that moment. Raises NeverReadyError, also when the run is over before."""
        end = time.monotonic() + _READY_S
        wanted = "start|opening" if self.early else f"{_FIRST} {BIG >> 20}M isolated: (warm-up|\\d+ samples)"
        while time.monotonic() < end and self.process is not None and self.process.poll() is None:
            beats = self.beats()
            if re.match(wanted, beats.get(self.watched, {}).get("doing", "")):
                time.sleep(self.luck.uniform(0, 0.6))
                return beats
            time.sleep(0.03)
        assert self.process is not None
        raise NeverReadyError(f"rank {self.watched} never reached the moment: {self.process.err[-1500:]}")

    @property
    def watched(self) -> int:
        """The rank whose heartbeat gives the moment: the victim's may be where it can not be read."""
        return 0 if FAULTS[self.cell.fault].watches_first else self.victim

    def send(self, number: int) -> None:
        """A signal to the victim."""
        request = {"process": self.beats()[self.victim]["process"], "signal": number}
        agent.call(self.bed.shared, self.host, request).close()

    def strike(self, how: str) -> None:
        """The victim raises, or exits with a code."""
        agent_words = ["sh", "-c", f"printf {how} > {self.site}/how"]
        assert self.bed.on(self.host, agent_words).code == 0
        self.send(signal.SIGUSR2)

    def ours(self) -> list[Process]:
        """What runs of this run, on any host."""
        run = self.run
        return self.bed.processes("BENCH_JOB", f"{run.name}/" if run else "/") + self.bed.processes("BENCH_AGENT", "")

    def outcome(self) -> dict[str, Any] | None:
        """How the first job ended, once it has."""
        return self.outcomes().get(self.job(_FIRST))

    def outcomes(self) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = json.loads((self.run or Path()).joinpath("outcomes.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def job(self, pattern: str) -> str:
        transport = "gloo" if self.cell.engine == "gloo" else "mpi"
        return f"{pattern}-{transport}-{len(self.hosts)}x{self.per_host}"

    def rows(self) -> list[int]:
        """Sizes of the rows of the first job that can be read and are right."""
        if self.run is None or not (file := self.run / f"{self.job(_FIRST)}.jsonl").exists():
            return []
        try:
            records = [record for attempt in jsonl.read(file).attempts for record in attempt.records]
        except UsageError:
            return []
        return [record.payload_bytes for record in records if record.verified and record.failed is None]


@dataclass(frozen=True, slots=True)
class Fault:
    """How a fault is injected and removed, and the expected result."""

    inflict: Callable[[Trial], None]
    expected: Callable[[Trial], Expected]
    what: str
    prepare: Callable[[Trial], None] = lambda trial: None
    mend: Callable[[Trial], None] = lambda trial: None
    engines: tuple[str, ...] = ("gloo", "mpich", "openmpi")
    first_rank: bool = False  # the victim is rank 0
    controller_on_first: bool = False
    spares_controller: bool = False
    watches_first: bool = False
    may_be_early: bool = False
    at_start: bool = False  # it is there before the run


def _named(trial: Trial) -> Expected:
    return Expected(ranks=(trial.victim,), hosts=(trial.host,))


def _host_named(trial: Trial) -> Expected:
    """Any rank of the host may be named: all are lost."""
    first = trial.hosts.index(trial.host) * trial.per_host
    return Expected(ranks=(None, *range(first, first + trial.per_host)), hosts=(trial.host,))


def _link_named(words: str, hosts: tuple[str | None, ...] = (None,)) -> Expected:
    """A link is named, with its direction, and no rank. With two hosts, or for all links of one, a host may be."""
    return Expected(ranks=(None,), hosts=hosts, words=words, goes_on=False)


def _left_alone(trial: Trial) -> Expected:
    """MPICH's ranks crash when a peer leaves (Hydra reports that), so several are gone without last words."""
    expected = _named(trial)
    if trial.cell.engine != "mpich":
        return expected
    return Expected(ranks=(*expected.ranks, None), hosts=(*expected.hosts, None))


def _host_named_or_done(trial: Trial) -> Expected:
    """Ranks of MPICH no longer need Hydra's proxy, nor Gloo's ranks torchrun: all rows may be complete before.

    A run with all its rows did not fail. Open MPI's ranks end with their daemon.
    """
    codes = (4,) if trial.cell.engine == "openmpi" else (0, 4)
    return Expected(codes, _host_named(trial).ranks, (trial.host,))


def _interrupted(code: int) -> Callable[[Trial], Expected]:
    return lambda trial: Expected((code,), (None,), (None,), "interrupted", goes_on=False)


def _lay_strike(trial: Trial) -> None:
    trial.bed.small_disk(trial.host, trial.site, "1m")
    done = trial.bed.on(
        trial.host, [sys.executable, "-c", f"open('{trial.site}/sitecustomize.py', 'w').write({_STRIKE!r})"]
    )
    assert done.code == 0, done.err


def _kill_launcher(trial: Trial) -> None:
    mine = [process for process in trial.ours() if process.host == trial.controller]
    os.kill(min(process.number for process in mine), signal.SIGKILL)


def _kill_daemon(trial: Trial) -> None:
    """Kill what the launcher runs on the victim's host: torchrun, Hydra's proxy, prted."""
    inner = trial.beats()[trial.victim]["process"]
    for process in trial.bed.processes("BENCH_JOB", ""):
        status = Path(f"/proc/{process.number}/status").read_text()
        if process.host == trial.host and re.search(rf"^NSpid:.*\t{inner}$", status, re.MULTILINE):
            parent = re.search(r"^PPid:\t(\d+)$", status, re.MULTILINE)
            assert parent is not None
            os.kill(int(parent[1]), signal.SIGKILL)
            return
    raise AssertionError("the victim's process was not found")


def _small_results(trial: Trial) -> None:
    trial.bed.small_disk(trial.host, trial.folder / "results", "32m")


def _fill_results(trial: Trial) -> None:
    filler = trial.folder / "results" / "filler"
    trial.bed.on(trial.host, ["sh", "-c", f"head -c 40m /dev/zero > {filler}"])


def _empty_results(trial: Trial) -> None:
    trial.bed.on(trial.host, ["rm", "-f", str(trial.folder / "results" / "filler")])


def _take_port(trial: Trial) -> None:
    taken = trial.folder / "taken"
    listen = (
        "import pathlib, signal, socket; door = socket.create_server(('', 29555)); "
        f"pathlib.Path({str(taken)!r}).touch(); signal.pause()"
    )
    trial.beside = trial.bed.popen(trial.hosts[0], [sys.executable, "-c", listen])
    trial.rewrite(port=29555)
    end = time.monotonic() + _READY_S
    while not (trial.seen / "taken").exists():
        assert time.monotonic() < end, "the port was never taken"
        time.sleep(0.02)


def _free_port(trial: Trial) -> None:
    if trial.beside is not None:
        trial.beside.signal(signal.SIGKILL)
        trial.beside.wait(5)


def _other_version(trial: Trial) -> None:
    """On the victim's host the suite has another version."""
    other, file = trial.bed.shared / "other.py", ROOT / "bench" / "__init__.py"
    other.write_text(re.sub(r'__version__ = ".*"', '__version__ = "9.9"', file.read_text()))
    done = trial.bed.on(trial.host, ["mount", "--bind", str(other), str(file)])
    assert done.code == 0, done.err


def _same_version(trial: Trial) -> None:
    assert trial.bed.on(trial.host, ["umount", str(ROOT / "bench" / "__init__.py")]).code == 0


def _mismatch(trial: Trial) -> None:
    """The site's settings name the library of the other MPI."""
    other = Path(interpreter("openmpi" if trial.cell.engine == "mpich" else "mpich")).parents[1] / "lib"
    library = next(iter(sorted(other.glob("libmpi.so*"))))
    trial.rewrite(env=_SHARING | {"MPI4PY_LIBMPI": str(library)})


def _cut_pair(trial: Trial) -> None:
    first, second = trial.hosts[:2]
    trial.bed.drop(first, second)
    trial.bed.drop(second, first)


def _join_pair(trial: Trial) -> None:
    for host in trial.hosts[:2]:
        trial.bed.let_pass(host)


def _large_packets(trial: Trial) -> None:
    for host in trial.bed.hosts:
        trial.bed.mtu(host, 9000, 9000)


def _refused(words: str) -> Callable[[Trial], Expected]:
    return lambda trial: Expected((3,), words=words.format(host=trial.host, first=trial.hosts[0]))


def _signal_controller(number: int) -> Callable[[Trial], None]:
    def inflict(trial: Trial) -> None:
        assert trial.process is not None
        trial.process.signal(number)

    return inflict


FAULTS = {
    "raise": Fault(
        lambda t: t.strike("raise"),
        lambda t: Expected(ranks=(t.victim,), hosts=(t.host,), words="ValueError: a bit fell over"),
        "a rank raises",
        _lay_strike,
    ),
    "exit-7": Fault(lambda t: t.strike("7"), _left_alone, "a rank exits with code 7", _lay_strike, may_be_early=True),
    "exit-0": Fault(lambda t: t.strike("0"), _left_alone, "a rank exits with code 0", _lay_strike),
    "killed": Fault(lambda t: t.send(signal.SIGKILL), _named, "a rank is killed", may_be_early=True),
    "stopped": Fault(lambda t: t.send(signal.SIGSTOP), _named, "a rank is stopped"),
    "rank-0": Fault(lambda t: t.send(signal.SIGKILL), _named, "rank 0 is killed", first_rank=True),
    # The next job may be started before the cable is in again.
    "cable": Fault(
        lambda t: t.bed.cut(t.host),
        lambda t: Expected(**_as(_host_named(t)) | {"goes_on": False}),
        "a cable is pulled",
        mend=lambda t: t.bed.mend(t.host),
    ),
    # Ranks 0 and 1 of every engine's allreduce talk to each other, so the link of the first two hosts is in use.
    "one-way": Fault(
        lambda t: t.bed.drop(t.hosts[0], t.hosts[1]),
        lambda t: _link_named(rf"from host {t.hosts[0]} to host {t.hosts[1]} \({t.bed.address(t.hosts[1])}\) are lost"),
        "packets of one direction between two hosts are lost",
        mend=lambda t: t.bed.let_pass(t.hosts[1]),
    ),
    "cut-pair": Fault(
        _cut_pair,
        lambda t: _link_named(rf"hosts {t.hosts[0]} and {t.hosts[1]} cannot connect to each other"),
        "two hosts no longer reach each other",
        mend=_join_pair,
    ),
    "mtu": Fault(
        lambda t: t.bed.mtu(t.hosts[1], 9000, 1500),
        lambda t: _link_named(r"packets of 2000 bytes .* 1500", (None, t.hosts[1])),
        "a switch port passes small packets only",
        prepare=_large_packets,
        mend=lambda t: t.bed.mtu(t.hosts[1], 9000, 9000),
    ),
    "power": Fault(
        lambda t: t.bed.kill_host(t.host),
        lambda t: Expected(**_as(_host_named(t)) | {"goes_on": False}),
        "a host loses its power",
        mend=lambda t: t.bed.boot(t.host),
        spares_controller=True,
        may_be_early=True,
    ),
    "daemon": Fault(
        _kill_daemon, _host_named_or_done, "the launcher's daemon on a host is killed", spares_controller=True
    ),
    "launcher": Fault(
        _kill_launcher,
        lambda t: Expected(ranks=(None,), hosts=(None,), words="killed by signal 9"),
        "the launcher is killed",
        may_be_early=True,
    ),
    "disk": Fault(
        _fill_results,
        lambda t: Expected(ranks=(0,), hosts=(t.host,), words="No space left|space", goes_on=False),
        "the disk with the results is full",
        _small_results,
        _empty_results,
        first_rank=True,
        controller_on_first=True,
    ),
    "other-disk": Fault(
        _fill_results,
        lambda t: Expected((0,)),
        "the disk of another host is full",
        _small_results,
        _empty_results,
        controller_on_first=True,
        spares_controller=True,
        watches_first=True,
    ),
    "mismatch": Fault(
        _mismatch,
        _refused("MPI4PY_LIBMPI"),
        "the library of another MPI",
        mend=lambda t: t.rewrite(),
        engines=("mpich", "openmpi"),
        at_start=True,
    ),
    "no-host": Fault(
        lambda t: t.rewrite(hosts=[*t.hosts[:-1], "nowhere"]),
        _refused("nowhere"),
        "a wrong name among the hosts",
        mend=lambda t: t.rewrite(),
        at_start=True,
    ),
    "port": Fault(
        _take_port,
        _refused("port 29555 on host {first}"),
        "the port of the ranks' meeting is taken",
        mend=_free_port,
        engines=("gloo",),
        at_start=True,
    ),
    "version": Fault(
        _other_version,
        _refused("{host}"),
        "another version of the suite on a host",
        mend=_same_version,
        at_start=True,
        spares_controller=True,
    ),
    "ctrl-c": Fault(
        _signal_controller(signal.SIGINT), _interrupted(130), "Ctrl-C at the controller", may_be_early=True
    ),
    "terminated": Fault(
        _signal_controller(signal.SIGTERM), _interrupted(143), "the controller is terminated", may_be_early=True
    ),
}
ENGINES = ("gloo", "mpich", "openmpi")
WORLDS = ((3, 1), (4, 1), (2, 2))


def _as(expected: Expected) -> dict[str, Any]:
    return {name: getattr(expected, name) for name in Expected.__slots__}


def interpreter(engine: str) -> str:
    """The interpreter of the ranks. Open MPI's is in an environment of its own, which BENCH_OPENMPI_PYTHON names."""
    return os.environ.get("BENCH_OPENMPI_PYTHON", "") if engine == "openmpi" else sys.executable


def why_not(engine: str) -> str | None:
    """Why an engine cannot be tried here; None if it can."""
    if engine != "openmpi":
        return None
    python = interpreter(engine)
    if not python:
        return "BENCH_OPENMPI_PYTHON does not name an interpreter that has Open MPI"
    return None if Path(python).exists() else f"{python}, named by BENCH_OPENMPI_PYTHON, is not there"


def cells(seed: int) -> list[Cell]:
    """The whole matrix."""
    return [Cell(engine, name, seed) for name, fault in FAULTS.items() for engine in ENGINES if engine in fault.engines]


def sampled(seed: int, num: int) -> list[Cell]:
    """Different faults, engines in turn."""
    luck = random.Random(seed)
    names = luck.sample(sorted(FAULTS), num)
    first = luck.randrange(len(ENGINES))
    return [Cell(ENGINES[(first + index) % len(ENGINES)], name, seed) for index, name in enumerate(names)]


def attempt(cell: Cell, keep: Path | None = None) -> Result:
    """Carry out one cell. The run's files are copied to `keep`."""
    for _ in range(_TRIES):
        try:
            return _trial(cell, keep)
        except NeverReadyError as error:
            why = error
    return Result(cell, problems=[f"the run never reached the fault: {why}"])


def _trial(cell: Cell, keep: Path | None) -> Result:
    luck = random.Random(f"{cell} {cell.seed}")
    num_hosts, per_host = luck.choice(WORLDS)
    result = Result(cell)
    with Testbed(num_hosts + 1, rate="1gbit") as bed:
        trial = Trial(cell, bed, num_hosts, per_host, luck)
        result.trial = str(trial)
        try:
            _attempt(trial, result)
        except NeverReadyError:
            raise
        except (TimeoutError, OSError, AssertionError, KeyError) as error:
            result.problems.append(f"{type(error).__name__}: {error}")
        finally:
            if keep is not None:
                _copy(trial, keep)
    return result


def _attempt(trial: Trial, result: Result) -> None:
    fault, problems = FAULTS[trial.cell.fault], result.problems
    trial.prepare()
    if fault.at_start:
        _refuse(trial, result)
        return
    process = trial.start("s", "--cluster", "c", "--deadline", f"{DEADLINE_S:g}s")
    trial.wait_for_moment()
    before, began = trial.rows(), time.monotonic()
    fault.inflict(trial)
    expected = fault.expected(trial)
    while process.poll() is None and trial.outcome() is None and time.monotonic() - began < _WHOLE_S:
        time.sleep(0.05)
    result.seconds = time.monotonic() - began
    fault.mend(trial)
    result.code = process.wait(_WHOLE_S)
    if expected.codes != (0,) and result.seconds > DEADLINE_S + GRACE_S:
        problems.append(f"it took {result.seconds:.0f} s to end")
    if result.code not in expected.codes:
        problems.append(f"exit code {result.code}: {process.err[-1500:]}")
    _judge_words(trial, expected, result, process)
    if len(trial.rows()) < len(before) or (not trial.early and SMALL not in trial.rows()):
        problems.append(f"rows were lost: {before} became {trial.rows()}")
    problems += _left(trial)
    if result.code == 0:
        _judge_whole(trial, process, problems)
        return
    if expected.goes_on and trial.outcomes().get(trial.job(_SECOND), {"what": "never started"})["what"] is not None:
        problems.append(f"the next job did not go on: {trial.outcomes().get(trial.job(_SECOND))}")
    assert trial.run is not None
    again = trial.start("--resume", f"results/{trial.run.name}")
    code = again.wait(_WHOLE_S)
    result.resumed = code == 0
    if code != 0:
        problems.append(f"--resume ended with {code}: {again.err[-1500:]}")
    else:
        _judge_whole(trial, again, problems)
    problems += _left(trial)


def _refuse(trial: Trial, result: Result) -> None:
    """A fault before the run: nothing starts, and once it is removed everything is measured."""
    fault, problems = FAULTS[trial.cell.fault], result.problems
    fault.inflict(trial)
    expected, began = fault.expected(trial), time.monotonic()
    process = trial.start("s", "--cluster", "c", "--deadline", f"{DEADLINE_S:g}s")
    result.code = process.wait(_WHOLE_S)
    result.seconds = time.monotonic() - began
    result.what = process.err.strip().rpartition("bench: error: ")[2]
    if result.code not in expected.codes:
        problems.append(f"exit code {result.code}: {process.err[-1500:]}")
    if result.seconds > _READY_S / 2:
        problems.append(f"it took {result.seconds:.0f} s to refuse")
    if not re.search(expected.words, result.what):
        problems.append(f"{expected.words!r} was not reported (reported: {result.what})")
    result.host = next((host for host in (*trial.hosts, "nowhere") if re.search(rf"\b{host}\b", expected.words)), None)
    problems += _left(trial)
    fault.mend(trial)
    again = trial.start("s", "--cluster", "c")
    code = again.wait(_WHOLE_S)
    result.resumed = code == 0
    if code != 0:
        problems.append(f"mended, it ended with {code}: {again.err[-1500:]}")
    else:
        _judge_whole(trial, again, problems)


def _judge_words(trial: Trial, expected: Expected, result: Result, process: Remote) -> None:
    outcome = trial.outcome() or {}
    result.what, result.rank, result.host = outcome.get("what") or "", outcome.get("rank"), outcome.get("host")
    if {"a", "b"} <= (outcome.get("facts") or {}).keys():
        result.link = "link {a} to {b}".format(**outcome["facts"])
    if result.code == 0:
        return
    problems, said = result.problems, f" (reported: {result.what})"
    if result.rank not in expected.ranks:
        problems.append(f"rank {result.rank} was named, right is {expected.ranks}{said}")
    if result.host not in expected.hosts:
        problems.append(f"host {result.host} was named, right is {expected.hosts}{said}")
    if not re.search(expected.words, result.what):
        problems.append(f"{expected.words!r} was not reported{said}")
    if result.host is not None and result.host not in result.what:
        problems.append(f"the sentence does not name {result.host}{said}")
    if result.code != 4:
        return
    failures = json.loads(process.out or "{}").get("failures", [])
    if not any(
        (one["rank"], one["host"]) == (result.rank, result.host) for one in failures if one["job"] == trial.job(_FIRST)
    ):
        problems.append(f"the JSON document has other failures: {failures}")


def _judge_whole(trial: Trial, process: Remote, problems: list[str]) -> None:
    document = json.loads(process.out)
    rows = {(row["job"].partition("#")[0], row["payload_bytes"]) for row in document["summaries"] if row["verified"]}
    wanted = {(trial.job(name), size) for name in (_FIRST, _SECOND) for size in (SMALL, BIG)}
    if rows != wanted or document["failures"]:
        problems.append(f"not all rows are there at the end: {sorted(wanted - rows)}, {document['failures']}")


def _left(trial: Trial) -> list[str]:
    end = time.monotonic() + _LEFT_S
    while (left := trial.ours()) and time.monotonic() < end:
        time.sleep(0.1)
    return [f"still runs on {process.host}: {process.words[:100]}" for process in left]


def _copy(trial: Trial, keep: Path) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    for path in trial.seen.glob("results/2*/*"):
        if path.suffix in (".log", ".json", ".jsonl"):
            (keep / path.name).write_bytes(path.read_bytes())
    if trial.process is not None:
        (keep / "controller.err").write_text(trial.process.err)


def table(results: list[Result]) -> str:
    """The matrix in Markdown."""
    lines = ["| fault | engine | exit code | ended after | named | resumed |", "|---|---|---|---|---|---|"]
    for one in results:
        name = " on ".join(filter(None, (f"rank {one.rank}" if one.rank is not None else "", one.host, one.link)))
        resumed = {None: "", True: "yes", False: "**no**"}[one.resumed]
        seconds = "" if one.seconds is None or one.code == 0 else f"{one.seconds:.1f} s"
        bad = " **(not as promised)**" if one.problems else ""
        what = FAULTS[one.cell.fault].what
        lines.append(f"| {what} | {one.cell.engine} | {one.code}{bad} | {seconds} | {name or 'nobody'} | {resumed} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The whole matrix, or the cells that a pattern finds."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(os.environ.get("BENCH_FAULT_SEED") or time.time()))
    parser.add_argument("--only", default="", metavar="REGEX", help="such as 'mpich-(killed|stopped)'")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table between that page's marks")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what each run wrote")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    results = []
    for cell in cells(args.seed):
        if not re.search(args.only, str(cell)):
            continue
        if (reason := why_not(cell.engine)) is not None:
            print(f"{cell}: skipped: {reason}")
            continue
        began = time.monotonic()
        results.append(one := attempt(cell, args.keep / str(cell) if args.keep else None))
        verdict = "FAILED" if one.problems else "ok"
        took = f"{one.seconds:.1f} s" if one.seconds is not None else "-"
        trial = f"{one.trial}; {time.monotonic() - began:.0f} s"
        print(
            f"{verdict:7}{cell!s:20} exit {one.code}, {took}: {one.what}  [{trial}]",
            *(f"\n       ! {problem}" for problem in one.problems),
            flush=True,
        )
    text = table(results)
    print("\n" + text)
    if args.markdown:
        page = args.markdown.read_text()
        head, mark, rest = page.partition("<!-- matrix -->\n")
        args.markdown.write_text(head + mark + text + "<!-- end" + rest.partition("<!-- end")[2])
    return int(any(one.problems for one in results))


if __name__ == "__main__":
    sys.exit(main())
