import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import bench
from bench.probes import versions


def test_versions_name_the_suite_python_kernel_and_installed_libraries_and_leave_out_the_rest() -> None:
    found = versions.versions()
    assert found["bench"] == bench.__version__
    assert platform.python_version() in found["python"]
    assert platform.release() in found["kernel"]
    assert found["numpy"] == versions.installed("numpy")
    assert all(found.values())


def test_a_distribution_that_is_not_there_has_no_version() -> None:
    assert versions.installed("no-such-distribution-of-anybody") is None


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert versions.commit(tmp_path) is None
    (tmp_path / ".git").mkdir()  # one that git does not know
    assert versions.commit(tmp_path) is None


def test_a_checkout_has_its_commit_and_whether_files_differ(
    tmp_path: Path, missing: Callable[[str, str], NoReturn]
) -> None:
    if shutil.which("git") is None:
        missing("git", "it is not installed")
    git = [
        "git",
        "-C",
        str(tmp_path),
        "-c",
        "user.name=n",
        "-c",
        "user.email=e@localhost",
        "-c",
        "commit.gpgsign=false",
    ]
    (tmp_path / "file").write_text("one")
    for command in (
        ["init", "-q"],
        ["add", "file"],
        ["commit", "-q", "-m", "first"],
        ["tag", "-a", "v9", "-m", "nine"],
    ):
        subprocess.run([*git, *command], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert versions.commit(tmp_path) == head[:12]
    (tmp_path / "installed").mkdir()  # a folder inside somebody else's checkout has no commit of its own
    assert versions.commit(tmp_path / "installed") is None
    (tmp_path / "file").write_text("two")
    assert versions.commit(tmp_path) == f"{head[:12]}-dirty"


def test_without_a_commit_the_files_name_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "commit", lambda checkout: "0123456789ab")
    assert "source" not in versions.versions()
    monkeypatch.setattr(versions, "commit", lambda checkout: None)
    assert versions.versions()["source"] == versions.source() and "commit" not in versions.versions()
