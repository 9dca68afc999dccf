"""The parts of a training step, and the text of its options."""

from __future__ import annotations

import pytest

from bench.core import case_argv
from bench.core.errors import UsageError
from bench.core.training_step import SEGMENTS, late_segment, parts_of, timed_layers

TIMED = "layers=8,forward=5ms,backward=10ms,bytes=1M"


def rank_of(**seconds: float) -> dict[str, float]:
    return dict.fromkeys(SEGMENTS, 0.0) | seconds


def test_the_shortest_wait_is_the_exchange_and_the_rest_is_imbalance() -> None:
    early = rank_of(data=0.010, forward=0.04, backward=0.08, wait=0.069, optimizer=0.001)
    late = rank_of(data=0.010, forward=0.04, backward=0.14, wait=0.009, optimizer=0.001)
    found = parts_of((0.203, 0.204), (early, late))
    assert found.parts_s["exposed_exchange"] == pytest.approx((0.009, 0.009))
    assert found.parts_s["imbalance"] == pytest.approx((0.06, 0.0))
    assert found.parts_s["compute"] == pytest.approx((0.121, 0.181))
    assert found.parts_s["data_wait"] == pytest.approx((0.010, 0.010))
    assert found.parts_s["other"] == pytest.approx((0.003, 0.004))
    for rank, step_s in enumerate(found.step_s):
        assert sum(by_rank[rank] for by_rank in found.parts_s.values()) == pytest.approx(step_s, abs=1e-12)


def test_a_late_rank_is_late_where_it_exceeds_the_others() -> None:
    seconds = {name: (0.01, 0.01, 0.01) for name in SEGMENTS}
    seconds |= {"h2d": (0.01, 0.05, 0.01), "backward": (0.2, 0.21, 0.2), "wait": (0.0, 0.9, 0.0)}
    assert late_segment(1, seconds) == "h2d"


def test_options_are_read_as_they_are_shown() -> None:
    argv = ["step", "--timed", f"{TIMED},data=2ms,input=1M", "--bucket", "4M"]
    argv += ["--inject", "rank=1,segment=backward,delay=60ms;rank=0,segment=data,delay=1ms"]
    read = case_argv.from_argv(argv)
    assert case_argv.from_argv(case_argv.to_argv(read)) == read
    assert read.timed is not None and (read.timed.layers, read.timed.data_s, read.timed.input_bytes) == (
        8,
        2e-3,
        1 << 20,
    )
    assert [(one.rank, one.segment, one.delay_s) for one in read.inject] == [(1, "backward", 0.06), (0, "data", 1e-3)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--timed", "layers=0,forward=5ms,backward=1ms,bytes=1M"), "1 to 10000 layers"),
        (("--timed", "layers=2,forward=5ms"), "backward and bytes missing"),
        (("--timed", f"{TIMED},layers=2"), "layers is given twice"),
        (("--timed", f"{TIMED},depth=2"), "'depth=2' is not NAME=VALUE"),
        (("--timed", "layers=2,forward=5ms,backward=1ms,bytes=6"), "multiple of 4 bytes"),
        (("--inject", "rank=1,segment=optimiser,delay=1ms"), "no segment is called 'optimiser'"),
        (("--inject", "rank=-1,segment=data,delay=1ms"), "not a whole number"),
        (("--strategy", "dpp"), "did you mean 'ddp'"),
    ],
)
def test_bad_options_are_one_sentence(options: tuple[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        case_argv.from_argv(["step", *options])
    assert str(caught.value).startswith(options[0])


def test_no_text_is_no_layers() -> None:
    assert timed_layers("") is None
