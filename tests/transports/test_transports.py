"""The contract of transports, and what the real libraries support."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import pytest

from bench.core import plugins
from bench.core.skips import SkipCode
from bench.core.transport import GUARD, Compiled
from bench.core.world import RankInfo
from bench.transports import _host, _mpi_loop, _torch, mpi

SIDES: tuple[Literal["send", "recv"], ...] = ("send", "recv")
ROOT = Path(__file__).resolve().parent.parent.parent
Missing = Callable[[str, str], NoReturn]


@pytest.mark.parametrize("name", plugins.names("transport"))
def test_a_transport_declares_its_clock_and_literal_traits_and_imports_no_library(name: str) -> None:
    code = (
        f"from bench.transports import {name} as t; from bench.core.traits import traits; import sys; T = t.TRANSPORT; "
        "assert T.clock in ('host', 'device', 'virtual') and t.TRAITS == traits(t.__name__.split('.')[-1]); "
        "assert not {'torch', 'mpi4py', 'cupy'} & set(sys.modules)"
    )
    subprocess.run((sys.executable, "-c", code), check=True, cwd=ROOT, timeout=280)


def test_host_buffers_are_aligned_touched_and_guarded() -> None:
    buffers = _host.HostBuffers(100, 7, 3)
    for index in range(3):
        for which in SIDES:
            view = buffers.view(which, index)
            assert view.ctypes.data % _host.GUARD_BYTES == 0
            assert (view == GUARD).all(), "written before use"
    buffers.write("recv", 1, np.zeros(7, np.uint8))
    assert all(buffers.guards_intact(index) for index in range(3))
    start = buffers.view("recv", 1).ctypes.data - buffers._block.ctypes.data
    buffers._block[start - 1] = 0
    assert [buffers.guards_intact(index) for index in range(3)] == [True, False, True]


def test_buffer_sets_are_used_in_turn_and_the_last_one_is_remembered() -> None:
    used: list[int] = []
    refilled: list[int] = []
    compiled = Compiled([partial(used.append, k) for k in range(3)], refill=refilled.append)
    assert len(_host.time_each(lambda: None, compiled, 4).seconds) == 4
    assert (used, refilled, compiled.last_set) == ([0, 1, 2, 0], [0, 1, 2, 0], 0)
    assert len(_host.time_batch(lambda: None, compiled, 2).seconds) == 1
    assert (used[4:], compiled.last_set, compiled.next_set) == ([1, 2], 2, 0)
    synced: list[int] = []
    assert _host.time_each(lambda: synced.append(1), None, 5).seconds == () and len(synced) == 5


def test_the_library_beside_the_mpirun_on_path_is_found(tmp_path: Path) -> None:
    for prefix, file in (("other", ""), ("site", "lib/x86_64-linux-gnu/libmpi.so.40")):
        (tmp_path / prefix / "bin").mkdir(parents=True)
        (tmp_path / prefix / "bin" / "mpirun").write_text("", encoding="utf-8")
        if file:
            (tmp_path / prefix / file).parent.mkdir(parents=True)
            (tmp_path / prefix / file).write_text("", encoding="utf-8")
    path = os.pathsep.join(str(tmp_path / prefix / "bin") for prefix in ("other", "site"))
    assert mpi._library_path("openmpi", {"PATH": path}) == str(tmp_path / "site/lib/x86_64-linux-gnu/libmpi.so.40")
    assert mpi._library_path("mpich", {"PATH": path}) is None
    assert mpi._library_path("openmpi", {"PATH": "", "OPAL_PREFIX": str(tmp_path / "site")}) is not None


def test_names_that_torch_changed_are_found_under_either() -> None:
    class Old:
        all_gather_into_tensor = "old"

    class New(Old):
        all_gather_single = "new"

    assert (_torch.renamed(Old, "all_gather_single"), _torch.renamed(New, "all_gather_single")) == ("old", "new")


def test_ranks_of_one_launch_meet_in_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-host-1@1")
    first = _torch._meeting_file()
    assert first == _torch._meeting_file() and first.name.isprintable() and "@" not in first.name
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-host-2@1")
    assert _torch._meeting_file() != first
    monkeypatch.delenv("PMIX_NAMESPACE")
    assert str(os.getppid()) in _torch._meeting_file().name


EVERYTHING = """
import gc, json, os, sys
from dataclasses import replace
from bench.core import plugins
from bench.core.case import Case
from bench.core.dtypes import DTYPES, REDUCE_OPS
from bench.core.transport import Options
from bench.rank import measure, session
from bench.rank.placement import place

name = sys.argv[1]
me = place(os.environ)
transport = plugins.load("transport", name).TRANSPORT(me, Options(timeout_s=30.0, loop=sys.argv[2]))
LOOP = "python" if name == "gloo" else sys.argv[2]
hosts = ("here",) * me.num_ranks
found = {}
IN_PLACE = ("allreduce", "reduce", "allgather")
MODE = dict.fromkeys(plugins.names("pattern"), "isolated") | {"reduce": "both", "pairs": "both"}
gc.freeze()  # each row collects all garbage
for pattern, dtypes, ops in (("allreduce", DTYPES, REDUCE_OPS), ("reducescatter", DTYPES, ("sum", "max")),
                             ("reduce", ("float32", "int8"), ("sum", "prod")), ("allgather", DTYPES, ("sum",)),
                             ("alltoallv", ("float64", "bfloat16", "int8"), ("sum",)),
                             ("broadcast", DTYPES, ("sum",)), ("gather", ("float16",), ("sum",)),
                             ("scatter", ("int64",), ("sum",)), ("pairs", ("uint8",), ("sum",))):
    for dtype in dtypes:
        for op in ops:
            both = pattern in IN_PLACE and (dtype == "float32" or op == "sum" and dtype in ("int8", "int64"))
            for in_place in (False, True) if both else (False,):
                # Cold rows rotate through many buffer sets, whose data take most of the time: one type has them.
                cache = "cold" if dtype == "float32" else "hot"
                case = Case(pattern, name, (4096,), dtype, op, in_place=in_place, iterations=2, warmup=1,
                            mode=MODE[pattern], cache=cache)
                module = plugins.load("pattern", pattern).PATTERN
                world = session.world_of(hosts)
                setting = measure.Setting(case, module, transport, world, hosts, 1 << 20, 1 << 30, lambda doing: None)
                for records in measure.Measurer(setting).rows():
                    for r in records:
                        key = f"{pattern} {dtype} {op} {'in' if in_place else 'out of'} place"
                        assert r.samples is None or r.samples.loop == LOOP, r
                        what = r.skipped and r.skipped.code or r.failed and r.failed.what or f"verified {r.verified}"
                        found.setdefault(key, set()).add(what)
if me.rank == 0:
    print("FOUND" + json.dumps({key: sorted(map(str, value)) for key, value in found.items()}))
transport.close()
"""


def everything(words: tuple[str, ...], name: str, tmp_path: Path, loop: str = "auto") -> dict[str, list[str]]:
    """What became of every combination of pattern, type and operation on a real library."""
    script = tmp_path / "everything.py"
    script.write_text(EVERYTHING, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        (*words, str(script), name, loop), env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if "FOUND" in line)
    found: dict[str, list[str]] = json.loads(line.partition("FOUND")[2])
    return found


UNDEFINED = (SkipCode.INTEGERS_ONLY, SkipCode.AVERAGE_UNDEFINED, SkipCode.NO_EXACT_RESULT)


def lacking(found: dict[str, list[str]], library: str) -> set[str]:
    """The combinations that the library refuses; all others are verified or undefined."""
    lacks = set()
    for key, results in found.items():
        for result in results:
            if result.startswith(f"{library}-"):
                lacks.add(key)
            else:
                assert result in ("verified True", *UNDEFINED), (key, result)
    return lacks


@pytest.mark.mpi
@pytest.mark.parametrize("loop", ["compiled", pytest.param("python", marks=pytest.mark.slow)])
def test_mpi_moves_every_type_and_refuses_reductions_that_it_lacks(loop: str, missing: Missing, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "mpirun"
    if not program.exists():
        missing("mpi", "no mpirun beside the interpreter")
    words = (str(program), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", "2", sys.executable)
    if loop == "compiled" and _mpi_loop.build()[0] is None:
        pytest.skip(_mpi_loop.build()[1])
    found = everything(words, "mpi", tmp_path, loop)
    lacks = lacking(found, "mpi")
    assert {key.split()[1] for key in lacks if " avg " not in key} == {"float16", "bfloat16"}
    assert (
        found["broadcast bfloat16 sum out of place"]
        == found["allgather float8_e5m2 sum out of place"]
        == ["verified True"]
    )
    assert found["allreduce int8 sum in place"] == found["allgather int64 sum in place"] == ["verified True"]


@pytest.mark.slow
@pytest.mark.torch
def test_gloo_runs_what_it_has_and_refuses_the_rest(missing: Missing, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    found = everything(words, "gloo", tmp_path)
    lacks = lacking(found, "gloo")
    assert {key.split()[1] for key in lacks if key.startswith("broadcast")} >= {"int16", "uint32"}
    assert found["allreduce bfloat16 sum out of place"] == found["allreduce float32 avg in place"] == ["verified True"]


@pytest.mark.torch
def test_two_jobs_on_one_store_do_not_see_each_others_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = free.getsockname()
    stores = {}
    for rank, job in enumerate(("run-1/allreduce", "run-2/allreduce")):
        monkeypatch.setenv("BENCH_JOB", job)
        place = RankInfo(rank, 2, rank, 2, "mpirun", meeting)
        stores[job] = _torch._store(torch.distributed, place, timedelta(seconds=20))
    first, second = stores.values()
    first.set("arrived", "yes")
    assert first.check(["arrived"]) and not second.check(["arrived"])
