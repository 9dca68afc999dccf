"""Results on links with a known rate: the suite reports what the link carries."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests.testbed import site
from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]
Make = Callable[..., Testbed]
Missing = Callable[[str, str], NoReturn]

# 1 Gbit/s of Ethernet frames of 1,514 bytes, of which TCP with time stamps fills 1,448: bytes per second.
PAYLOAD_BYTES_PER_S = 1e9 / 8 * 1448 / 1514
ALLREDUCE = ("allreduce", "--mode", "pipelined", "--cache", "hot", "--iterations", "7", "--warmup", "1", "--sizes")


def needs(package: str, missing: Missing) -> None:
    if importlib.util.find_spec(package) is None:
        missing({"mpi4py": "mpi"}.get(package, package), f"{package} is not installed")


def busbw(document: Any) -> float:
    [row] = document["summaries"]
    assert row["verified"] is True
    return float(row["busbw_bytes_per_s"])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("num_ranks", "num_hosts", "share"),
    [(2, 2, 0.2), *(pytest.param(n, 4, 1.0, marks=pytest.mark.slow) for n in (4, 16))],
)
def test_busbw_of_an_allreduce_is_the_rate_of_the_link(
    testbed: Make, missing: Missing, num_ranks: int, num_hosts: int, share: float
) -> None:
    """`share`: of 1 Gbit/s. A slow link stays the slowest part on a busy machine as well."""
    needs("torch", missing)
    bed = testbed(num_hosts, rate=f"{1000 * share:.0f}mbit")

    def allreduce() -> float:
        size = f"{64 * share:.0f}M"
        document = site.measured(bed, num_ranks, num_ranks // num_hosts, *ALLREDUCE, size)
        [header] = document["headers"].values()
        assert (header["num_ranks"], header["num_nodes"]) == (num_ranks, num_hosts)
        return busbw(document)

    assert site.settles(allreduce, pytest.approx(share * PAYLOAD_BYTES_PER_S, rel=0.06))


@pytest.mark.slow
@pytest.mark.torch
def test_one_slow_host_halves_it(testbed: Make, missing: Missing) -> None:
    needs("torch", missing)
    bed = testbed(4, rate="1gbit")
    bed.slow("h3", "500mbit")
    half = pytest.approx(PAYLOAD_BYTES_PER_S / 2, rel=0.06)
    assert site.settles(lambda: busbw(site.measured(bed, 4, 1, *ALLREDUCE, "64M")), half)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("pattern", ["pingpong", "sendrecv"])
def test_mpi_between_two_hosts_is_the_rate_of_the_link(testbed: Make, missing: Missing, pattern: str) -> None:
    needs("mpi4py", missing)
    bed = testbed(2, rate="1gbit")
    entry = {"pattern": pattern, "transport": "mpi", "sizes": ["16M"], "mode": "pipelined", "iterations": 5}
    folder = site.make(bed, [entry], launcher="mpirun", ranks_per_node=1)

    def over_mpi() -> float:
        ran = site.run(bed, folder, "--format", "json")
        assert ran.code == 0, ran.err
        return busbw(json.loads(ran.out))

    assert site.settles(over_mpi, pytest.approx(PAYLOAD_BYTES_PER_S, rel=0.06))


LAUNCHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "torchrun static": ("gloo", {"launcher": "torchrun"}),
    "torchrun c10d": ("gloo", {"launcher": "torchrun", "options": {"rdzv-backend": "c10d"}}),
    "mpirun": ("mpi", {"launcher": "mpirun"}),
    "mpirun gloo": ("gloo", {"launcher": "mpirun"}),
}


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.torch
@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_start_one_world_on_all_hosts_and_carry_variables(testbed: Make, missing: Missing, name: str) -> None:
    needs("mpi4py", missing)
    needs("torch", missing)
    transport, cluster = LAUNCHERS[name]
    bed = testbed(3)
    entry = {"pattern": "allreduce", "transport": transport, "sizes": [64], "mode": "isolated", "iterations": 10}
    env = {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "VERSION"}
    folder = site.make(bed, [entry], ranks_per_node=2, env=env, **cluster)
    ran = site.run(bed, folder, "--format", "json")
    assert ran.code == 0, ran.err
    [header] = json.loads(ran.out)["headers"].values()
    assert [rank["host"] for rank in header["ranks"]] == ["h0", "h0", "h1", "h1", "h2", "h2"]
    assert [rank["local_rank"] for rank in header["ranks"]] == [0, 1] * 3
    assert header["environment"]["NCCL_DEBUG"] == "VERSION"
    assert "variable-differs" not in [remark["code"] for remark in header["remarks"]]
    assert bed.processes("BENCH_JOB") == []


@pytest.mark.slow
@pytest.mark.mpi
def test_open_mpi_starts_one_world_on_all_hosts(testbed: Make, openmpi_python: str) -> None:
    bed = testbed(3)
    entry = {"pattern": "allreduce", "transport": "mpi", "sizes": [64], "mode": "isolated", "iterations": 10}
    folder = site.make(bed, [entry], launcher="mpirun", ranks_per_node=2, python=openmpi_python)
    ran = site.run(bed, folder, "--format", "json")
    assert ran.code == 0, ran.err
    [header] = json.loads(ran.out)["headers"].values()
    assert [rank["host"] for rank in header["ranks"]] == ["h0", "h0", "h1", "h1", "h2", "h2"]
    assert "Open MPI" in header["facts"]["mpi_library"]
    assert bed.processes("BENCH_JOB") == []


def test_a_command_on_every_host_has_the_variables_and_set_up_lines(testbed: Make) -> None:
    bed = testbed(2)
    env = {
        "BENCH_AGENT": " ".join(f"'{word}'" for word in bed.agent),
        "BENCH_SETUP": "export WHERE=$(hostname)",
        "BENCH_CARRY": "MARK,ABSENT",
        "MARK": "a 'b'",
        "PYTHONPATH": str(site.ROOT),
    }
    everywhere = [site.BENCH[0], "-m", "bench.controller.hosts", "h0,h1", "--"]
    shown = bed.on("h0", [*everywhere, "sh", "-c", "echo {node} $WHERE $MARK"], env=env)
    assert sorted(shown.out.splitlines()) == ["0 h0 a 'b'", "1 h1 a 'b'"], shown.err
    failed = bed.on("h0", [*everywhere, "sh", "-c", "exit $(({node} * 7))"], env=env)
    assert failed.code == 7
