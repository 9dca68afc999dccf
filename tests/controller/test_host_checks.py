"""What hosts' answers mean: each finding names the host and the remedy, and a healthy cluster has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.controller import host_checks
from bench.controller.host_checks import NamedNic, Wanted
from bench.probes.host import Facts

GIB = 1 << 30
HOSTS = ("h0", "h1", "h2")
WANTED = Wanted(
    HOSTS,
    ranks_per_node=2,
    num_ranks=6,
    transports=frozenset({"gloo", "mpi"}),
    port=29500,
    mpirun="/opt/mpi/bin/mpirun",
    results="/shared/results",
    source="aa",
)


def told(name: str, **overrides: Any) -> Facts:
    """A host with which nothing is wrong."""
    facts = Facts(
        host=name,
        boot_id=f"boot of {name}",
        software={"bench": "0.1.0", "python": "CPython 3.11.7", "torch": "2.13.0"},
        source="aa",
        mpi="MPICH 5.0.2",
        addresses={host: [f"10.0.0.{number}"] for number, host in enumerate(HOSTS)},
        own_addresses=["10.0.0.9"],
        free_port=40000,
        port_taken=None,
        results_shared=True,
        results_problem=None,
        results_free_bytes=GIB,
        num_gpus=0,
        memory_bytes=8 * GIB,
        shm_free_bytes=GIB,
        max_files=1024,
        max_locked_bytes=65536,
        has_rdma=False,
        interfaces=["eth0", "eth1", "lo"],
    )
    return replace(facts, **overrides)


def findings(wanted: Wanted = WANTED, **changed: dict[str, Any]) -> list[host_checks.PreflightFinding]:
    """Of three hosts, some of which are not as they should be: `h1={"num_gpus": 2}`."""
    return host_checks.judge({host: told(host, **changed.get(host, {})) for host in HOSTS}, wanted)


def test_nothing_is_said_of_a_healthy_cluster() -> None:
    assert findings() == []


UNKNOWN = {"h0": ["10.0.0.0"], "h1": "Name or service not known", "h2": ["10.0.0.2"]}
NCCL = replace(WANTED, transports=frozenset({"nccl"}))


@pytest.mark.parametrize(
    ("wanted", "changed", "hosts", "sentence"),
    [
        (
            WANTED,
            {"h0": {"port_taken": "Address already in use"}},
            ("h0",),
            "port 29500 of host h0, where the ranks are to meet, is taken (address already in use): end what holds it, "
            "or name another by `port:`",
        ),
        (WANTED, {"h0": {"results_shared": False}}, ("h0",), "host h0, where rank 0 writes, does not see the folder"),
        (
            WANTED,
            {"h0": {"results_problem": "no space left on device"}},
            ("h0",),
            "host h0 can not write to /shared/results (no space left on device): make room",
        ),
        (WANTED, {"h0": {"results_free_bytes": 1 << 20}}, ("h0",), "host h0 has 1 MiB left in /shared/results"),
        (
            replace(NCCL, transports=frozenset({"mpi_cuda"})),
            {h: {"num_gpus": 8 if h != "h1" else 0} for h in HOSTS},
            ("h1",),
            "host h1 has 0 GPUs for 2 ranks",
        ),
        (NCCL, {h: {"num_gpus": 8 if h != "h2" else 1} for h in HOSTS}, ("h2",), "host h2 has 1 GPUs for 2 ranks"),
        (WANTED, {"h1": {"memory_bytes": 100 << 20}}, ("h1",), "host h1 has 100 MiB of free memory for 2 ranks"),
        (WANTED, {"h1": {"max_files": 256}}, ("h1",), "a process on host h1 may open 256 files"),
        (
            NCCL,
            {h: {"num_gpus": 2, "shm_free_bytes": GIB if h != "h1" else 8 << 20} for h in HOSTS},
            ("h1",),
            "/dev/shm of host h1 has 8 MiB left for 2 ranks: give a container --shm-size=64m",
        ),
        (WANTED, {"h0": {"addresses": UNKNOWN}}, ("h1",), "the name h1 is unknown on host h0 (name or service"),
        (
            WANTED,
            {"h2": {"addresses": {"h0": ["127.0.1.1"], "h1": ["10.0.0.1"], "h2": ["10.0.0.2"]}}},
            ("h0",),
            "host h2 takes the name h0 for itself",
        ),
        (WANTED, {"h1": {"own_addresses": ["127.0.1.1"]}}, ("h1",), "host h1 has its own name h1 at 127.0.1.1"),
        (WANTED, {"h1": {"own_addresses": "no such name"}}, ("h1",), "host h1 does not know its own name h1"),
        (
            WANTED,
            {"h2": {"host": "h1"}},
            ("h1", "h2"),
            "hosts h1, h2 call themselves h1 alike: give each machine a host name of its own",
        ),
        (WANTED, {"h2": {"host": "h1", "boot_id": "boot of h1"}}, ("h1", "h2"), "name it once in `hosts:`"),
        (
            WANTED,
            {"h1": {"software": {"bench": "0.1.0", "python": "CPython 3.11.7", "torch": "2.12.1"}}},
            ("h1",),
            "torch is 2.12.1 on host h1 and 2.13.0 on hosts h0, h2: install the same on all of them",
        ),
        (
            WANTED,
            {"h1": {"software": {"bench": "0.1.0", "python": "CPython 3.11.7"}}},
            ("h1",),
            "torch is none on host h1 and 2.13.0 on hosts h0, h2",
        ),
        (
            WANTED,
            {"h2": {"mpi": None}},
            ("h2",),
            "mpirun (/opt/mpi/bin/mpirun) is none on host h2 and MPICH 5.0.2 on hosts h0, h1",
        ),
        (WANTED, {"h2": {"source": "bb"}}, ("h2",), "the suite's own files is bb on host h2 and aa on hosts h0, h1"),
        (WANTED, {h: {"source": "bb"} for h in HOSTS}, HOSTS, "other files of the suite (bb) than this machine (aa)"),
    ],
)
def test_what_would_stop_a_run_is_refused_in_one_sentence(
    wanted: Wanted, changed: dict[str, dict[str, Any]], hosts: tuple[str, ...], sentence: str
) -> None:
    [finding] = findings(wanted, **changed)
    assert finding.refuses
    assert finding.hosts == hosts
    assert sentence in finding.what


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"has_rdma": True}, "host h1 lets a process lock 64 KiB of memory"),
        ({"shm_free_bytes": 8 << 20}, "/dev/shm of host h1 has 8 MiB left"),  # MPI has other ways than shared memory
    ],
)
def test_what_may_matter_is_said_and_does_not_refuse(changed: dict[str, Any], sentence: str) -> None:
    [finding] = findings(h1=changed)
    assert not finding.refuses
    assert sentence in finding.what


def test_only_the_first_host_must_write_and_listen() -> None:
    assert findings(h1={"results_shared": False, "results_problem": "not there", "port_taken": "in use"}) == []


def test_a_network_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    wanted = replace(WANTED, devices=(NamedNic("`nics:`", "eth0"), NamedNic("`nics:`", "eth1")))
    assert findings(wanted) == []
    [finding] = findings(wanted, h1={"interfaces": ["lo", "eth0"]}, h2={"interfaces": ["lo", "eth0"]})
    assert finding == host_checks.PreflightFinding(
        ("h1", "h2"),
        "hosts h1, h2 have no network device eth1, which `nics:` names: correct it (on h1 there are lo, eth0)",
    )
    begins = replace(WANTED, devices=(NamedNic("NCCL_SOCKET_IFNAME in `env:`", "eth", begins=True),))
    assert findings(begins) == []
    assert len(findings(begins, h1={"interfaces": ["lo"]})) == 1
    adapter = replace(WANTED, devices=(NamedNic("`nics:`", "mlx5_0", adapter=True),))
    assert findings(adapter, **{host: {"adapters": ["mlx5_0"]} for host in HOSTS}) == []
    assert len(findings(adapter, h0={"adapters": ["mlx5_0"]})) == 1


def test_a_host_is_named_once() -> None:
    [finding] = findings(replace(WANTED, hosts=("h0", "h1", "h2", "h0")))
    assert finding == host_checks.PreflightFinding(("h0",), "`hosts:` names h0 2 times: name each host once")


def test_hosts_that_are_one_machine_are_told_that_alone() -> None:
    loops = {"addresses": {host: ["127.0.0.1"] for host in HOSTS}, "own_addresses": ["127.0.0.1"]}
    one = {"host": "vm", "boot_id": "one", **loops}
    [finding] = findings(h0=one, h1=one, h2=one)
    assert "name it once in `hosts:`" in finding.what


def test_an_interface_that_is_named_needs_no_name_of_the_host() -> None:
    wanted = replace(WANTED, env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert findings(wanted, h1={"own_addresses": ["127.0.1.1"]}) == []
