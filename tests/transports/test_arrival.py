"""Ranks that do not come are named by rank 0, over torch's store (over MPI: end_to_end/test_preflight.py)."""

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
    """Ranks as threads that call over_store on one file, each with a device of its own."""

    def __init__(self, file: Path) -> None:
        self._file, self.ended = file, dict[int, Exception | None]()
        self.wrong = dict[int, str]()

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
            _arrival.over_store(store, place(rank, num_ranks), device, limit_s, self.wrong.get(rank))
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
def test_all_that_come_go_on(gather: Gather) -> None:
    assert gather({0: None, 1: None, 2: None}, 3, 30) == {0: None, 1: None, 2: None}


@pytest.mark.torch
def test_rank_0_names_those_that_do_not_come_and_the_others_only_end(gather: Gather) -> None:
    ended = gather({0: None, 2: None}, 4, 1)
    assert isinstance(ended[0], AbsentError) and ended[0].ranks == (1, 3)
    assert isinstance(ended[2], AbsentError) and ended[2].ranks == ()


@pytest.mark.torch
def test_without_rank_0_it_is_rank_0_that_is_named(gather: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arrival, "_LATER_S", 0.2)
    ended = gather({1: None}, 2, 0.3)
    assert isinstance(ended[1], AbsentError) and ended[1].ranks == (0,)


@pytest.mark.torch
def test_two_ranks_on_one_gpu_are_refused_on_all_ranks(gather: Gather) -> None:
    ended = gather({0: "GPU-a", 1: "GPU-b", 2: "GPU-a"}, 3, 30)
    assert {str(error) for error in ended.values()} == {_arrival.twice({0: "GPU-a", 2: "GPU-a"})}


@pytest.mark.torch
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_what_keeps_one_rank_from_going_on_ends_all_in_its_words(num_ranks: int, gather: Gather) -> None:
    gather.wrong = {num_ranks - 1: "its GPU is broken"}
    ended = gather(dict.fromkeys(range(num_ranks)), num_ranks, 30)
    assert len(ended) == num_ranks and {str(error) for error in ended.values()} == {"its GPU is broken"}


def test_a_gpu_is_shared_by_its_name_and_none_is_no_gpu() -> None:
    assert _arrival.twice({0: "-", 1: "-", 2: "GPU-a"}) is None
    assert str(_arrival.twice({0: "GPU-a", 5: "GPU-a"})).startswith("ranks 0 and 5 are on the same GPU (GPU-a): ")
