"""Facts of a node that somebody edited, or that an older version wrote."""

from __future__ import annotations

from typing import Any

import pytest

from bench.core.errors import UsageError
from bench.core.inventory import Adapter, Gpu, NvLink, from_facts
from bench.core.inventory import Path as Between


def test_missing_facts_of_a_gpu_are_unknown() -> None:
    found = from_facts({"gpus": [{"index": 0, "name": "H100", "nvlinks": [{"index": 3}]}]})
    assert found.gpus == (Gpu(0, "H100", nvlinks=(NvLink(3),)),)
    assert found.gpus[0].pcie_lanes is found.gpus[0].nvlinks[0].active is None


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        ({"gpus": [{"index": 0}]}, ("Gpu", "name")),
        ({"gpus": [{"index": None, "name": "H100"}]}, ("Gpu", "index")),
        ({"gpus": [{"index": 0, "name": "H100", "nvlinks": [{}]}]}, ("NvLink", "index")),
        ({"adapters": [{"name": "mlx5_0"}]}, ("Adapter", "kind")),
        ({"paths": [{"a": "gpu0", "kind": "SYS"}]}, ("Path", "b")),
    ],
)
def test_a_device_without_a_required_field_is_refused(facts: dict[str, Any], fields: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=r"\({}\) .*`{}`".format(*fields)):
        from_facts(facts)


def test_complete_facts_are_read() -> None:
    facts = {"adapters": [{"name": "mlx5_0", "kind": "roce"}], "paths": [{"a": "gpu0", "b": "gpu1", "kind": "SYS"}]}
    found = from_facts(facts)
    assert (found.adapters, found.paths) == ((Adapter("mlx5_0", "roce"),), (Between("gpu0", "gpu1", "SYS"),))
