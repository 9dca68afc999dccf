"""Two sides whose links really differ by 10 %, measured in turn and compared; and two sides that are the same."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml

from tests.testbed import site
from tests.testbed.hosts import Testbed

MEASURE = {"pattern": "pingpong", "transport": "mpi", "sizes": [65536, 262144, 1048576], "mode": "isolated"}


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("rate", "verdict", "code"), [("900mbit", "slower", 1), ("1gbit", None, 0)])
def test_a_link_that_is_10_percent_slower_is_found_and_an_equal_one_is_not(
    testbed: Callable[..., Testbed], rate: str, verdict: str | None, code: int
) -> None:
    bed = testbed(4, rate="1gbit")
    for host in bed.hosts[2:]:
        bed.slow(host, rate)
    folder = site.make(bed, [MEASURE], {"max_seconds": 1}, launcher="mpirun", ranks_per_node=1)
    clusters = yaml.safe_load((folder / "bench.yaml").read_text())["clusters"]
    both = {name: {**clusters["bed"], "nodes": 2, "hosts": list(hosts)} for name, hosts in sides(bed).items()}
    (folder / "bench.yaml").write_text(json.dumps({"clusters": both}))
    words = ("compare", "--run", "it --cluster a", "it --cluster b", "--launches", "5", "--format", "json")
    env = {"PYTHONPATH": str(site.ROOT)}
    ran = bed.on(bed.hosts[0], [*site.BENCH, *words], env=env, cwd=folder, timeout_s=800)
    assert ran.code == code, ran.err
    together = json.loads(ran.out)["together"]
    if verdict:
        assert together["verdict"] == verdict and together["ratio"] == pytest.approx(1.11, abs=0.04)
    else:
        assert together["verdict"] in ("equivalent", "inconclusive") and together["p"] > 0.01
    assert bed.processes() == []


def sides(bed: Testbed) -> dict[str, tuple[str, ...]]:
    """The hosts of each side."""
    return {"a": tuple(bed.hosts[:2]), "b": tuple(bed.hosts[2:])}
