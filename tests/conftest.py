"""What many tests share: small factories of the core types, and the one way to say that something is missing here.

Each fixture is a function: `a_case(root=1)`, `a_record(mode="pipelined")`, `missing("mpirun", "not on PATH")`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import operator
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from bench.core.case import Case
from bench.core.pattern import Shape
from bench.core.record import Header, Record, Samples
from bench.probes import nvml

# A busy machine is no failure: no test judges how long an example took.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

# Hypothesis would search all modules of the suite for constants to try, which takes each process six seconds of a CPU.
# What is tried would depend on the tests that ran before, too: strategies name what matters.
providers._get_local_constants = lambda: providers._local_constants

# Several working copies may be tested on one machine at a time; hosts of the testbed are apart anyway.
os.environ["BENCH_HOST_LEASE"] = f"tests-{os.getuid()}-{os.getpid()}"

# numpy would share each long product among threads, which wait for each other on busy CPUs: a page of a run with long
# rows takes five times as long. It asks once, as it is loaded; programs that tests start are as they are for users.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
importlib.import_module("numpy")
os.environ.pop("OPENBLAS_NUM_THREADS")

# Pages have the width of a pipe, whatever terminal the tests run on. readline, which pytest imports, sets COLUMNS for
# child processes without telling os.environ.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# In the background of a script, or under nohup, signals are ignored; so they would be in all that tests interrupt.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)

# Tests that start ranks, daemons and hosts, and look at rates and deadlines: many others beside them would disturb.
_ALONE = ("end_to_end", "testbed", "transports/test_transports.py")
_ALONE_TIMEOUT_S = 300  # only what hangs lasts so long, also on a busy machine


def pytest_sessionstart() -> None:
    """Tests that must run on a GPU can not pass without one: said once, in place of an error of each."""
    if "gpu" in _required() and not _a_gpu_is_seen():
        pytest.exit("no NVIDIA GPU is seen here, by the driver, PyTorch or CuPy: run this where there is one", 3)


def _required() -> set[str]:
    return {word.strip() for word in os.environ.get("BENCH_REQUIRE", "").split(",")}


def _a_gpu_is_seen() -> bool:
    """By anybody: who sees one although others do not has found what the tests are there to tell."""
    if nvml.count_gpus({}) > 0:
        return True
    for library, count in (("torch", "cuda.device_count"), ("cupy", "cuda.runtime.getDeviceCount")):
        with contextlib.suppress(Exception):  # not there, or no driver that suits it
            if operator.attrgetter(count)(importlib.import_module(library))() > 0:
                return True
    return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have none of the tests that `make test` asks for: reading all files takes half a minute."""
    wanted = str(config.getoption("markexpr"))
    if not collection_path.name.startswith("test_") or "alone" not in wanted:
        return None
    alone = collection_path.relative_to(Path(__file__).parent).as_posix().startswith(_ALONE)
    if "not alone" in wanted:
        return True if alone and "mark.beside" not in collection_path.read_text(encoding="utf-8") else None
    return None if alone or "mark.alone" in collection_path.read_text(encoding="utf-8") else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of those files and folders, and the parameter sets that `make test` leaves out."""
    seen: Counter[str] = Counter()
    for item in items:
        thin = item.get_closest_marker("thin")
        name = item.nodeid.partition("[")[0]
        if thin is not None and seen[name] % thin.args[0]:
            item.add_marker("slow")
        seen[name] += 1
        if item.path.relative_to(Path(__file__).parent).as_posix().startswith(_ALONE):
            if item.get_closest_marker("beside") is None:
                item.add_marker("alone")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_ALONE_TIMEOUT_S))


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: nearly all that is made is kept."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep the collector from looking at ten thousand tests again and again: each measured row collects all garbage."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Keep it from looking at what the files before have loaded, too: late in a run, that takes it two seconds."""
    ended = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()  # what is garbage now would stay
        gc.freeze()
    return ended


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    """A process whose GPU failed for good (an illegal access) tests no more on it: `make test-gpu` starts another.

    The test that was just told of is then told of once more, as one that crashed.
    """
    cupy = sys.modules.get("cupy")
    if cupy is None or "PYTEST_XDIST_WORKER" not in os.environ or "gpu" not in _required():
        return
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except Exception as error:
        print(f"{nodeid}: the GPU can not be used any longer by this process ({error})", file=sys.stderr, flush=True)
        os._exit(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how many tests needed logs that are not part of the repository."""
    skipped = terminalreporter.stats.get("skipped", [])
    num = sum("BENCH_LOG_CORPUS" in str(report.longrepr) for report in skipped)
    if num:
        reason = "other people's logs are missing (set BENCH_LOG_CORPUS); tests of synthetic logs ran instead"
        terminalreporter.write_line(f"{num} tests skipped: {reason}")


@pytest.fixture
def a_case() -> Callable[..., Case]:
    """`a_case(**overrides)`: an allreduce of two sizes."""

    def make(**overrides: Any) -> Case:
        return Case(**({"pattern": "allreduce", "sizes": (1024, 2048)} | overrides))

    return make


@pytest.fixture
def a_shape() -> Callable[..., Shape]:
    """`a_shape(**overrides)`: 4 ranks, 4096 bytes."""

    def make(**overrides: Any) -> Shape:
        return Shape(**({"num_ranks": 4, "payload_bytes": 4096} | overrides))

    return make


@pytest.fixture
def a_record() -> Callable[..., Record]:
    """`a_record(**overrides)`: a verified row of 1 MiB over 4 ranks on 2 nodes, thirty samples near 100 us.

    A record that is skipped, reported or failed leaves the samples out by itself: `a_record(skipped="no GPU")`.
    """

    def make(**overrides: Any) -> Record:
        seconds = tuple(1e-4 + 1e-7 * (index * 7 % 30) for index in range(30))
        given: dict[str, Any] = {
            "mode": "isolated",
            "requested_bytes": (1 << 20,),
            "payload_bytes": 1 << 20,
            "num_ranks": 4,
            "num_nodes": 2,
            "bus_factor": 1.5,
            "rank_bytes": 1.5 * (1 << 20),
            "node_bytes": 1.0 * (1 << 20),
            "min_steps": 2,
            "cache": "cold",
            "verified": True,
            "num_wrong": 0,
            "stop_reason": "converged",
        }
        if not {"samples", "reported", "skipped", "failed"} & set(overrides):
            given["samples"] = Samples(seconds, by_rank=(seconds,) * 4)
        return Record(**(given | overrides))

    return make


@pytest.fixture
def a_header() -> Callable[..., Header]:
    """`a_header(**overrides)`: of an allreduce over MPI, 4 ranks on 2 nodes."""

    def make(**overrides: Any) -> Header:
        given: dict[str, Any] = {
            "job": "allreduce-mpi",
            "case": ("allreduce", "--transport", "mpi"),
            "pattern": "allreduce",
            "transport": "mpi",
            "dtype": "float32",
            "reduce_op": "sum",
            "root": None,
            "direction": None,
            "topology": "world",
            "num_ranks": 4,
            "num_nodes": 2,
            "ranks_per_node": 2,
            "clock": "host",
            "modelled": False,
            "started": "2026-01-02T03:04:05+00:00",
            "ranks": tuple({"host": f"host{rank // 2}", "local_rank": rank % 2} for rank in range(4)),
        }
        return Header(**(given | overrides))

    return make


@pytest.fixture
def missing() -> Callable[[str, str], NoReturn]:
    """`missing(name, reason)` skips the test, or fails it where BENCH_REQUIRE (a comma list) names what is missing.

    A machine that is known to have MPI sets BENCH_REQUIRE=mpi, so that a broken installation can not hide as a skip.
    """

    def skip_or_fail(name: str, reason: str) -> NoReturn:
        if name in _required():
            pytest.fail(f"BENCH_REQUIRE asks for {name}, but {reason}")
        pytest.skip(f"{name}: {reason}")

    return skip_or_fail
