"""Rank 0 names missing ranks over torch's store (over MPI: end_to_end/test_preflight.py)."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from bench.core.errors import AbsentError, RefusedError
from bench.core.world import RankInfo
from bench.transports import _arrival


def place(rank: int, num_ranks: int = 3) -> RankInfo:
    """A rank of one host."""
    return RankInfo(rank, num_ranks, rank, num_ranks, "torchrun")


class Gather:
    """Ranks as threads that call over_store on one file."""

    def __init__(self, file: Path) -> None:
        self._file, self.ended = file, dict[int, Exception | None]()
        self.problems = dict[int, str]()

    def __call__(self, ranks: dict[int, str | None], num_ranks: int, limit_s: float) -> dict[int, Exception | None]:
        threads = [threading.Thread(target=self._rank, args=(r, num_ranks, d, limit_s)) for r, d in ranks.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.ended

    def _rank(self, rank: int, num_ranks: int, device: str | None, limit_s: float) -> None:
        from torch.distributed import FileStore

        try:
            store = FileStore(str(self._file), num_ranks)
            _arrival.over_store(store, place(rank, num_ranks), device, limit_s, self.problems.get(rank))
            self.ended[rank] = None
        except (AbsentError, RefusedError) as error:
            self.ended[rank] = error


@pytest.fixture
def gather(tmp_path: Path, missing: Callable[[str, str], NoReturn]) -> Gather:
    """Ranks that meet in a file."""
    if importlib.util.find_spec("torch") is None:
        missing("torch", "torch is not installed")
    return Gather(tmp_path / "store")


@pytest.mark.torch
def test_ranks_that_all_arrive_continue(gather: Gather) -> None:
    assert gather({0: None, 1: None, 2: None}, 3, 30) == {0: None, 1: None, 2: None}


@pytest.mark.torch
def test_rank_0_names_the_missing_ranks_and_the_others_end(gather: Gather) -> None:
    ended = gather({0: None, 2: None}, 4, 1)
    assert isinstance(ended[0], AbsentError) and ended[0].ranks == (1, 3)
    assert isinstance(ended[2], AbsentError) and ended[2].ranks == ()


@pytest.mark.torch
def test_the_others_name_a_missing_rank_0(gather: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arrival, "_LATER_S", 0.2)
    ended = gather({1: None}, 2, 0.3)
    assert isinstance(ended[1], AbsentError) and ended[1].ranks == (0,)


@pytest.mark.torch
def test_two_ranks_on_one_gpu_are_refused_on_all_ranks(gather: Gather) -> None:
    ended = gather({0: "GPU-a", 1: "GPU-b", 2: "GPU-a"}, 3, 30)
    assert {str(error) for error in ended.values()} == {_arrival.shared_gpu_error(0, 2, "GPU-a")}


@pytest.mark.torch
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_the_problem_of_one_rank_ends_all_with_its_message(num_ranks: int, gather: Gather) -> None:
    gather.problems = {num_ranks - 1: "GPU broken"}
    ended = gather(dict.fromkeys(range(num_ranks)), num_ranks, 30)
    assert len(ended) == num_ranks and {str(error) for error in ended.values()} == {"GPU broken"}


def test_a_shared_gpu_is_found_by_its_name() -> None:
    assert _arrival.first_shared_gpu({0: None, 1: None, 2: "GPU-a"}) is None
    assert _arrival.first_shared_gpu({0: "GPU-a", 1: None, 5: "GPU-a"}) == (0, 5, "GPU-a")
