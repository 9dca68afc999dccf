"""Runs of one log tell each other's machine."""

from __future__ import annotations

from bench.logs.foreign import ForeignRun, with_sibling_machines

H100 = ("NVIDIA H100 80GB HBM3",)
FULL = ForeignRun("nccl_tests", num_ranks=16, num_nodes=2, hosts=("a", "b"), gpus=H100)
BARE = ForeignRun("nccl_tests", num_ranks=16)


def test_a_run_without_devices_takes_those_of_a_sibling_with_as_many_ranks() -> None:
    _, second = with_sibling_machines((FULL, BARE))
    assert (second.gpus, second.hosts, second.num_nodes) == (H100, ("a", "b"), 2)
    (_, fewer) = with_sibling_machines((FULL, ForeignRun("nccl_tests", num_ranks=8)))
    assert fewer.gpus == () and fewer.num_nodes is None


def test_siblings_that_disagree_and_other_hosts_say_nothing() -> None:
    other = ForeignRun("nccl_tests", num_ranks=16, num_nodes=2, hosts=("c", "d"), gpus=H100)
    assert with_sibling_machines((FULL, other, BARE))[2].gpus == ()
    elsewhere = ForeignRun("nccl_tests", num_ranks=16, hosts=("x", "y"))
    assert with_sibling_machines((FULL, elsewhere))[1].gpus == ()
