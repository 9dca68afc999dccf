"""What exchanges take alone on given links: groups that exchange at the same time share the NICs of their nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.core.links import NodeLinks
from bench.hardware import catalogue
from bench.job.matching import job_of
from bench.job.model import TracedJob
from bench.job.network import Network
from bench.predict import predict
from tests.job.test_several_threads import traces

JOB = job_of(traces(0.0, ("h0", "h1")))
ONE = replace(JOB.collectives[0], num_bytes=1 << 28)
LINKS: NodeLinks = catalogue.instance("p4d.24xlarge").links


def ideal_s(job: TracedJob, ranks_per_node: int | None) -> float:
    """The bound of the job's first exchange."""
    found = Network("p4d.24xlarge", LINKS, predict.published(), job, ranks_per_node).alone(job.collectives[0])
    assert found is not None
    return found.ideal_s


@pytest.mark.parametrize("num_groups", [1, 2, 8])
def test_groups_at_once_share_the_nics(num_groups: int) -> None:
    """Of a node's NICs, 50 GB/s in all, each of eight groups has an eighth; alone it has its GPU's PCIe link."""
    groups = replace(JOB, collectives=[replace(ONE, group=f"g{number}") for number in range(num_groups)])
    alone_s = ideal_s(replace(JOB, collectives=[ONE]), 1)
    assert ideal_s(groups, 1) == pytest.approx(max(alone_s, num_groups * (1 << 28) / 50e9), rel=0.01)


def test_groups_of_one_node_have_its_links_to_themselves() -> None:
    groups = replace(JOB, collectives=[replace(ONE, group=f"g{number}") for number in range(4)])
    assert ideal_s(groups, 2) == ideal_s(replace(JOB, collectives=[ONE]), 2)
