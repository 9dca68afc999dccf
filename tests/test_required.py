"""Tests that must run on a GPU: without one that is said once, not by an error of each."""

import pytest

from tests import conftest


@pytest.mark.parametrize(
    ("required", "seen", "ends"),
    [("mpi, gpu", False, True), ("gpu", True, False), ("mpi", False, False), ("", False, False)],
)
def test_where_gpus_are_required_and_none_is_seen_nothing_is_tried(
    required: str, seen: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_REQUIRE", required)
    monkeypatch.setattr(conftest, "_a_gpu_is_seen", lambda: seen)
    if ends:
        with pytest.raises(pytest.exit.Exception, match="no NVIDIA GPU") as ended:
            conftest.pytest_sessionstart()
        assert ended.value.returncode == 3
    else:
        conftest.pytest_sessionstart()
