"""How ranks agree beside copies: which library carries it, and what is said when ranks do not come."""

from __future__ import annotations

from typing import NoReturn

import pytest

from bench.core.errors import AbsentError, RefusedError
from bench.core.transport import Options
from bench.core.world import RankInfo
from bench.transports import _control


def refuse(error: RefusedError) -> object:
    def opened(place: RankInfo, options: Options) -> NoReturn:
        raise error

    return opened


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_missing_ranks_are_reported_as_missing(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = AbsentError([1], 60.0)
    monkeypatch.setattr(_control, "_mpi" if launcher == "mpirun" else "_gloo", refuse(absent))
    if launcher == "mpirun":
        monkeypatch.setattr(_control, "_gloo", refuse(RefusedError("tried a second time")))
    with pytest.raises(AbsentError) as told:
        _control.open_control(RankInfo(0, 2, 0, 2, launcher), Options())
    assert told.value is absent


def test_where_neither_library_can_be_used_both_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_control, "_mpi", refuse(RefusedError("no mpi4py")))
    monkeypatch.setattr(_control, "_gloo", refuse(RefusedError("no torch", of_one_rank=True)))
    with pytest.raises(RefusedError, match=r"no mpi4py.*no torch") as told:
        _control.open_control(RankInfo(0, 2, 0, 2, "mpirun"), Options())
    assert told.value.of_one_rank
