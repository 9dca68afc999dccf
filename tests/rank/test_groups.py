"""Groups at once and in turn, modelled: what p4d's links say that they take from one another."""

from __future__ import annotations

import pytest

from bench.core.case_argv import from_argv
from bench.rank import modelled
from bench.results import summary

P4D = "--transport model --instance p4d.24xlarge --nodes 2 --ranks-per-node 8 --mode pipelined"


@pytest.mark.parametrize(
    ("topology", "num_groups", "factor"), [("node", 2, 1.0), ("rail", 8, 2.0), ("groups of 2", 8, 1.0)]
)
def test_on_p4d_two_rails_share_a_nic_and_what_stays_inside_a_node_shares_nothing(
    topology: str, num_groups: int, factor: float
) -> None:
    told = []
    for asked in (topology, f"{topology} in turn"):
        words = ["allreduce", "--sizes", "1G", "--topology", asked, *P4D.split()]
        header, rows = modelled.header_and_rows(from_argv(words), asked.replace(" ", "-"))
        told.append((header.job, header, [record for row in rows for record in row]))
    found = summary.document(told).sharings
    assert len(found) == num_groups == found[0].num_groups
    assert [one.factor for one in found] == pytest.approx([factor] * num_groups, rel=1e-3)
    assert all(one.modelled and one.interval_over is None for one in found)
