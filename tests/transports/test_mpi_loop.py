"""The compiled timing loop: how it is built, and what happens without it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from bench.transports import _compiler, _mpi_loop
from tests.facts import holds

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that nobody has used yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "cache" / "linkbench"


@needs_compiler
def test_the_loop_is_built_once_and_found_again(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, compiler = _mpi_loop.build()
    assert path is not None and path.parent == own_cache and Path(compiler).name in ("cc", "gcc", "clang")
    assert [file.name for file in own_cache.iterdir()] == [path.name], "nothing but the library stays"
    monkeypatch.setattr("subprocess.run", lambda *words, **more: pytest.fail("it was compiled again"))
    assert _mpi_loop.build() == (path, compiler)


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    path, reason = _mpi_loop.build()
    assert path is None and holds(str(reason), "(cc, gcc, clang or $CC)")


@pytest.mark.parametrize("compiler", ["false", "/no/such/compiler"])
def test_a_compiler_that_fails_is_named(compiler: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    path, reason = _mpi_loop.build()
    assert path is None and compiler in reason
    assert not list(own_cache.glob("*"))


@needs_compiler
def test_an_unwritable_cache_is_replaced_by_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file is no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    path, _ = _mpi_loop.build()
    assert path is not None and path.is_relative_to(tmp_path) and path.exists()


@needs_compiler
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_full_cache_folder_is_replaced_by_the_next(
    number: int, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    compiled = _compiler._compile

    def on_full_disk(compiler: str, source: Path, path: Path) -> Path:
        if path.is_relative_to(own_cache):
            raise OSError(number, os.strerror(number), str(path))
        return compiled(compiler, source, path)

    monkeypatch.setattr(_compiler, "_compile", on_full_disk)
    path, _ = _mpi_loop.build()
    assert path is not None and path.is_relative_to(tmp_path / "temporary") and path.exists()


@needs_compiler
def test_a_compiler_that_finds_the_disk_full_tries_the_next_folder(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    script = tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\ncase "$*" in *{own_cache}*) echo "no space left" >&2; exit 1;; esac\nexec cc "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    path, _ = _mpi_loop.build()
    assert path is not None and path.is_relative_to(tmp_path / "temporary")


def test_without_any_room_the_first_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(compiler: str, source: Path, path: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(_compiler, "_compile", full)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    path, reason = _mpi_loop.build()
    assert path is None and os.strerror(errno.ENOSPC) in reason


@needs_compiler
def test_calls_before_the_timed_ones_are_made_and_not_kept() -> None:
    """Ranks enter the loop apart: the first call waits for the last rank, and is no sample."""
    path, _ = _mpi_loop.build()
    loop = ctypes.CDLL(str(path))
    made: list[str] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)

    def step(name: str) -> tuple[_mpi_loop.LoopStep, object]:
        def called(comm: int) -> int:
            made.append(name)
            if len(made) == 2:
                time.sleep(0.2)
            return 0

        function = kind(called)
        barrier = list(_mpi_loop._FUNCTIONS).index("barrier")
        return _mpi_loop.LoopStep(barrier, ctypes.cast(function, ctypes.c_void_p).value), function

    (barrier, _b), (first, _f), (second, _s) = step("barrier"), step("set 0"), step("set 1")
    sets, took = (_mpi_loop.LoopStep * 2)(first, second), (ctypes.c_int64 * 8)(*[-1] * 8)
    numbers = (ctypes.c_int64(number) for number in (1, 2, 0))
    code = loop.each(
        0, sets, *numbers, ctypes.byref(barrier), *(ctypes.c_int64(number) for number in (1, 5, 3)), took, None
    )
    assert code == 0
    assert made == ["barrier", "set 0", "barrier", "set 1"] * 4, "every call has its barrier and the next buffers"
    assert all(0 <= each < 200_000_000 for each in took[:5]) and list(took[5:]) == [-1] * 3


@needs_compiler
def test_a_loop_like_osus_reads_the_clock_of_the_library() -> None:
    """MPI_Wtime's own time is part of each of OSU's times."""
    path, _ = _mpi_loop.build()
    loop = ctypes.CDLL(str(path))
    made: list[str] = []
    seconds = iter([1.0, 1.5, 3.0, 3.0 + 2.4e-9, 4.0, 4.0 + 2.6e-9])

    def wtime() -> float:
        made.append("clock")
        return next(seconds)

    def called(comm: int) -> int:
        made.append("call")
        return 0

    clock, function = ctypes.CFUNCTYPE(ctypes.c_double)(wtime), ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(called)
    barrier = list(_mpi_loop._FUNCTIONS).index("barrier")
    step = _mpi_loop.LoopStep(barrier, ctypes.cast(function, ctypes.c_void_p).value)
    took = (ctypes.c_int64 * 3)()
    numbers = (ctypes.c_int64(number) for number in (1, 1, 0))
    no_barrier, counts = (None, ctypes.c_int64(0)), (ctypes.c_int64(3), ctypes.c_int64(0))
    assert loop.each(0, ctypes.byref(step), *numbers, *no_barrier, *counts, took, clock) == 0
    assert list(took) == [500_000_000, 2, 3], "rounded, not cut off"
    assert made == ["clock", "call", "clock"] * 3
    made.clear()
    seconds = iter([1.0, 1.5])
    numbers = (ctypes.c_int64(number) for number in (1, 1, 0))
    assert loop.batch(0, ctypes.byref(step), *numbers, *no_barrier, ctypes.c_int64(3), took, clock) == 0
    assert took[0] == 500_000_000 and made == ["clock", "call", "call", "call", "clock"]
