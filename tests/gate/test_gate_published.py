"""Published figures for a share: only of the same pattern, GPU, ranks, nodes and size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.gate.rows import published_figure
from bench.hardware import reference
from tests.gate.gate_runs import good, header

NODES = {"h0": {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}] * 8}}
GIB = 1 << 30


def figure(metric: str = "busbw", nodes: Any = NODES, **changed: Any) -> tuple[float, str] | None:
    row = good().document().summaries[0]
    asked = {"payload_bytes": 8 * GIB, "num_ranks": 8, "num_nodes": 1, **changed}
    return published_figure(header(nodes=nodes, instance=None), replace(row, **asked), metric)


def test_the_figure_of_the_same_shape_is_found_with_its_source() -> None:
    found = figure()
    assert found is not None and found[1]
    known = [each for each in reference.collectives() if each.gpu.startswith("H100") and each.num_ranks == 8]
    assert found[0] in {rate for each in known for rate in each.busbw.values() if each.limited is None}
    small = figure("time", payload_bytes=8)
    assert small is not None and 1e-6 < small[0] < 1e-3


@pytest.mark.parametrize(
    "changed",
    [
        {"num_ranks": 6144},
        {"num_ranks": None},
        {"num_nodes": 3},
        {"pattern": "barrier"},
        {"payload_bytes": 8},
        {"nodes": {}},
        {"nodes": {"h0": {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}, {"name": "Tesla T4"}]}}},
        {"metric": "p99"},
    ],
)
def test_another_shape_or_unknown_hardware_has_no_figure(changed: dict[str, Any]) -> None:
    assert figure(**changed) is None
