"""A modelled row against aggressors, and what an aggressor must be."""

from __future__ import annotations

import pytest

from bench.core.case_argv import from_argv
from bench.core.contention import shape_of_aggressors
from bench.core.errors import UsageError
from bench.rank import modelled
from bench.results import summary
from bench.results.compared_rows import Interference

P4D = "--transport model --instance p4d.24xlarge --nodes 2 --ranks-per-node 8 --mode pipelined"


def interferences_of(words: str) -> list[Interference]:
    header, rows = modelled.header_and_rows(from_argv([*words.split(), *P4D.split()]), "job")
    return list(summary.document([(header.job, header, [record for row in rows for record in row])]).interferences)


def test_on_p4d_two_gpus_share_a_nic_and_lose_half_each() -> None:
    (found,) = interferences_of("sendrecv --sizes 1G --aggressor sendrecv:1G --split 0,8/1,9")
    assert found.factor == pytest.approx(2.0, rel=1e-3)
    assert found.aggressor_bytes_per_s == pytest.approx(6.25e9, rel=1e-3)
    assert found.aggressor_alone_bytes_per_s == pytest.approx(12.5e9, rel=1e-3)
    assert (found.num_blocks, found.num_blocks_not_covered, found.interval_over, found.modelled) == (1, 0, None, True)


def test_gpus_with_nics_of_their_own_lose_nothing() -> None:
    (found,) = interferences_of("sendrecv --sizes 1G --aggressor sendrecv:1G --split 0,8/2,10")
    assert found.factor == 1.0
    assert found.aggressor_bytes_per_s == found.aggressor_alone_bytes_per_s


def test_inside_a_node_the_network_does_not_matter() -> None:
    found = interferences_of("allreduce --sizes 1G --topology node --aggressor sendrecv:1G --split 0-3/4,12")
    assert [one.group for one in found] == ["node0"]
    assert found[0].factor == pytest.approx(1.0, abs=1e-12)


def test_a_small_message_beside_a_long_one_loses_on_the_average_of_its_pass() -> None:
    # The aggressors' alltoall posts messages to all peers at once, and the small message shares its links with them.
    (small,) = interferences_of("sendrecv --sizes 1M --aggressor alltoall:64M --split alternate")
    assert 1.05 < small.factor < 8.0


@pytest.mark.parametrize(
    ("aggressor", "num_ranks", "why"),
    [("barrier", 4, "moves no data"), ("allreduce", 1, "moves no data"), ("sendrecv", 1, "at least 2")],
)
def test_an_aggressor_that_moves_nothing_is_refused(aggressor: str, num_ranks: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        shape_of_aggressors(from_argv(["allreduce", "--aggressor", aggressor]), num_ranks)
