"""The cache of compiled code: without a folder for it CuPy cannot be imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.core.errors import RefusedError
from bench.transports import _cache, _cuda_device


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that cannot be created, because a file is in its place, and a temporary folder."""
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_a_home_that_can_be_written_is_left_to_cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environ: dict[str, str] = {}
    _cache.for_cupy(environ)
    assert environ == {} and list(tmp_path.iterdir()) == []


def test_without_such_a_home_cupy_gets_a_folder_of_the_users_own(temporary: Path) -> None:
    environ: dict[str, str] = {}
    _cache.for_cupy(environ)
    folder = Path(environ["CUPY_CACHE_DIR"])
    assert folder.parent.parent == temporary and folder.stat().st_mode & 0o077 == 0
    _cache.for_cupy(environ)
    assert environ == {"CUPY_CACHE_DIR": str(folder)}


def test_a_folder_that_somebody_names_is_left_alone(temporary: Path) -> None:
    environ = {"CUPY_CACHE_DIR": "/named"}
    _cache.for_cupy(environ)
    assert environ == {"CUPY_CACHE_DIR": "/named"} and list(temporary.iterdir()) == []


def test_a_folder_that_others_may_write_is_not_taken(temporary: Path) -> None:
    (temporary / f"linkbench-{os.getuid()}").mkdir()
    (temporary / f"linkbench-{os.getuid()}").chmod(0o777)
    environ: dict[str, str] = {}
    _cache.for_cupy(environ)
    assert environ == {}


def test_a_cupy_that_finds_no_folder_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupy.py").write_text("raise OSError(30, 'Read-only file system', '/home/me/.cupy')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CUPY_CACHE_DIR", "/named")
    for name in [name for name in sys.modules if name.split(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(RefusedError, match=r"Read-only file system.*CUPY_CACHE_DIR"):
        _cuda_device.load_cupy()


def test_a_home_that_we_may_not_look_into_is_none(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat(path: str | Path, *args: object, **given: object) -> os.stat_result:
        if str(path).startswith(f"{tmp_path}/closed/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **given)  # type: ignore[arg-type]

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).startswith(str(temporary)))
    monkeypatch.setenv("HOME", str(tmp_path / "closed"))
    environ: dict[str, str] = {}
    _cache.for_cupy(environ)
    assert Path(environ["CUPY_CACHE_DIR"]).is_relative_to(temporary)


def test_without_a_home_nothing_is_made_where_we_happen_to_be(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(os.path, "expanduser", lambda name: name)  # as for a user without a name
    environ: dict[str, str] = {}
    _cache.for_cupy(environ)
    assert Path(environ["CUPY_CACHE_DIR"]).is_relative_to(temporary) and list(Path().iterdir()) == []
