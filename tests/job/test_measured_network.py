"""What a run of this suite says of a job's exchanges: between sizes, after a rest, and where it says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.core.errors import UsageError
from bench.core.record import Samples
from bench.job.elsewhere import Elsewhere, RecordedSteps, factor_of
from bench.job.matching import job_of
from bench.job.measured_network import MeasuredNetwork, measured_network
from bench.job.messages import RefusedJobCode
from bench.results import summary
from bench.results.document import Document
from tests.job.test_several_threads import ALONE_S, NUM_STEPS, traces

RATE, BURST = 12.5e6, 128 << 10  # 100 Mbit/s, and what a link with burst credits sends at once
Make = Callable[..., Any]
JOB = job_of(traces(0.0))
(ONE, *_) = JOB.collectives


@pytest.fixture
def run_of(a_header: Make, a_record: Make) -> Callable[..., Document]:
    """`run_of({0.0: sizes, 0.02: sizes}, mode=...)`: a run of two ranks on two hosts; with a rest the burst is free."""

    def make(sizes: Mapping[float, Sequence[int]], mode: str = "isolated", **of_record: Any) -> Document:
        jobs = []
        for pause_s, own in sizes.items():
            case = ("allreduce", "--transport", "gloo", *(("--pause", f"{pause_s}s") if pause_s else ()))
            header = a_header(num_ranks=2, num_nodes=2, ranks_per_node=1, case=case, transport="gloo")
            records = []
            for size in own:
                seconds = ((size - (BURST if pause_s else 0)) / RATE,) * 30
                given = {"mode": mode, "payload_bytes": size, "num_ranks": 2, "requested_bytes": (size,)}
                records.append(a_record(samples=Samples(seconds, by_rank=(seconds,) * 2), **(given | of_record)))
            jobs.append((f"allreduce-{pause_s}", header, records))
        return summary.document(jobs)

    return make


def network_of(document: Document) -> MeasuredNetwork:
    """The network that a run measured, for the job."""
    return measured_network(JOB, "lab", document.headers, document.summaries)


def alone_s(network: MeasuredNetwork, num_bytes: int) -> float | None:
    """The time of an exchange of a size."""
    found = network.alone(replace(ONE, num_bytes=num_bytes))
    return None if found is None else found.middle_s


def test_times_between_sizes_lie_on_straight_lines_and_far_beyond_are_unknown(run_of: Make) -> None:
    network = network_of(run_of({0.0: [1 << 18, 1 << 19, 1 << 20]}))
    for size in (1 << 18, 3 << 17, 700_001, 1 << 20, 3 << 20):
        assert alone_s(network, size) == pytest.approx(size / RATE)
    assert alone_s(network, 1 << 10) == pytest.approx((1 << 18) / RATE)  # below the smallest: not less
    assert alone_s(network, 5 << 20) is None
    found = network.alone(ONE)
    assert found is not None and (found.basis, found.rests_on) == ("measured", ("lab (2026-01-02)",))


def test_links_with_burst_credits_are_faster_after_a_rest(run_of: Make) -> None:
    network = network_of(run_of({0.0: [1 << 20], 0.02: [1 << 20]}))
    rested = 1 - BURST / (1 << 20)
    wanted = {0.0: 1.0, 0.01: (1 + rested) / 2, 0.02: rested, 9.0: rested, float("inf"): rested}
    for idle_s, factor in wanted.items():
        assert network.rested(ONE, idle_s) == pytest.approx(factor)
    assert network_of(run_of({0.0: [1 << 20]})).rested(ONE, 1.0) == 1.0


def test_only_whole_worlds_with_correct_data_count(run_of: Make) -> None:
    for document in (run_of({0.0: [1 << 20]}, verified=False, num_wrong=1), run_of({0.0: [1 << 20]}, num_ranks=1)):
        with pytest.raises(UsageError) as caught:
            network_of(document)
        assert caught.value.code == RefusedJobCode.NOT_MEASURED


def test_the_step_where_a_run_measured_the_exchanges(run_of: Make) -> None:
    """In each step three exchanges of 1 MiB follow each other; as recorded they took 3 ALONE_S and 9 ms."""
    recorded = RecordedSteps(JOB)
    for pauses, saved_s in (({0.0: [1 << 20]}, 0.0), ({0.0: [1 << 20], 0.02: [1 << 20]}, BURST / RATE)):
        document = run_of(pauses, mode="isolated")
        network = network_of(document)
        found = Elsewhere(recorded, network, network.num_nodes, factor_of(None, None, None, {}))
        exchanges_s = 3 * (1 << 20) / RATE - saved_s
        assert found.num_predicted == 3 * NUM_STEPS
        assert found.range.middle == pytest.approx(recorded.recorded_s + exchanges_s - 3 * ALONE_S - 0.009, abs=2e-3)
