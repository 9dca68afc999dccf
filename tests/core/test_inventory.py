"""Facts of a node that somebody edited, or that an older version wrote."""

from __future__ import annotations

from typing import Any

import pytest

from bench.core.errors import UsageError
from bench.core.inventory import Adapter, Gpu, NvLink, from_facts
from bench.core.inventory import Path as Between


def test_what_facts_do_not_tell_of_a_gpu_is_unknown() -> None:
    found = from_facts({"gpus": [{"index": 0, "name": "H100", "nvlinks": [{"index": 3}]}]})
    assert found.gpus == (Gpu(0, "H100", nvlinks=(NvLink(3),)),)
    assert found.gpus[0].pcie_lanes is found.gpus[0].nvlinks[0].active is None


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"gpus": [{"index": 0}]}, r"\(Gpu\) without `name`"),
        ({"gpus": [{"index": None, "name": "H100"}]}, r"\(Gpu\) without `index`"),
        ({"gpus": [{"index": 0, "name": "H100", "nvlinks": [{}]}]}, r"\(NvLink\) without `index`"),
        ({"adapters": [{"name": "mlx5_0"}]}, r"\(Adapter\) without `kind`"),
        ({"paths": [{"a": "gpu0", "kind": "SYS"}]}, r"\(Path\) without `b`"),
    ],
)
def test_a_device_without_its_name_is_refused_in_a_sentence(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_facts(facts)


def test_whole_facts_are_taken_as_they_are() -> None:
    facts = {"adapters": [{"name": "mlx5_0", "kind": "roce"}], "paths": [{"a": "gpu0", "b": "gpu1", "kind": "SYS"}]}
    found = from_facts(facts)
    assert (found.adapters, found.paths) == ((Adapter("mlx5_0", "roce"),), (Between("gpu0", "gpu1", "SYS"),))
