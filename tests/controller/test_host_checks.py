"""What the replies of hosts mean: findings have a code, facts and hosts, and a healthy cluster has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.controller import host_checks
from bench.controller.host_checks import NamedNic, Wanted
from bench.controller.messages import FindingCode
from bench.core.host_use import HostUse
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


def facts_of(name: str, **overrides: Any) -> Facts:
    """A host without faults."""
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
    """Of three hosts, some of them changed: `h1={"num_gpus": 2}`."""
    return host_checks.findings({host: facts_of(host, **changed.get(host, {})) for host in HOSTS}, wanted)


def test_a_healthy_cluster_has_no_findings() -> None:
    assert findings() == []


UNKNOWN = {"h0": ["10.0.0.0"], "h1": "Name or service not known", "h2": ["10.0.0.2"]}
NCCL = replace(WANTED, transports=frozenset({"nccl"}))


@pytest.mark.parametrize(
    ("wanted", "changed", "hosts", "code", "facts"),
    [
        (
            WANTED,
            {"h0": {"port_taken": "Address already in use"}},
            ("h0",),
            FindingCode.PORT_TAKEN,
            {"port": 29500, "why": "address already in use"},
        ),
        (
            WANTED,
            {"h0": {"results_shared": False}},
            ("h0",),
            FindingCode.RESULTS_NOT_SHARED,
            {"folder": "/shared/results"},
        ),
        (
            WANTED,
            {"h0": {"results_problem": "no space left on device"}},
            ("h0",),
            FindingCode.RESULTS_NOT_WRITABLE,
            {"why": "no space left on device"},
        ),
        (WANTED, {"h0": {"results_free_bytes": 1 << 20}}, ("h0",), FindingCode.RESULTS_FULL, {"free_mib": 1}),
        (
            replace(NCCL, transports=frozenset({"mpi_cuda"})),
            {h: {"num_gpus": 8 if h != "h1" else 0} for h in HOSTS},
            ("h1",),
            FindingCode.TOO_FEW_GPUS,
            {"num_gpus": 0, "num_ranks": 2},
        ),
        (
            NCCL,
            {h: {"num_gpus": 8 if h != "h2" else 1} for h in HOSTS},
            ("h2",),
            FindingCode.TOO_FEW_GPUS,
            {"num_gpus": 1},
        ),
        (WANTED, {"h1": {"memory_bytes": 100 << 20}}, ("h1",), FindingCode.LITTLE_MEMORY, {"free_mib": 100}),
        (WANTED, {"h1": {"max_files": 256}}, ("h1",), FindingCode.FEW_FILES, {"max_files": 256, "needed": 268}),
        (
            NCCL,
            {h: {"num_gpus": 2, "shm_free_bytes": GIB if h != "h1" else 8 << 20} for h in HOSTS},
            ("h1",),
            FindingCode.LITTLE_SHM,
            {"free_mib": 8, "needed_mib": 64},
        ),
        (WANTED, {"h0": {"addresses": UNKNOWN}}, ("h1",), FindingCode.NAME_UNKNOWN, {"on": ["h0"]}),
        (
            WANTED,
            {"h2": {"addresses": {"h0": ["127.0.1.1"], "h1": ["10.0.0.1"], "h2": ["10.0.0.2"]}}},
            ("h0",),
            FindingCode.NAME_IS_LOOPBACK,
            {"on": ["h2"]},
        ),
        (
            WANTED,
            {"h1": {"own_addresses": ["127.0.1.1"]}},
            ("h1",),
            FindingCode.OWN_NAME_IS_LOOPBACK,
            {"name": "h1", "address": "127.0.1.1"},
        ),
        (WANTED, {"h1": {"own_addresses": "no such name"}}, ("h1",), FindingCode.OWN_NAME_UNKNOWN, {"name": "h1"}),
        (
            WANTED,
            {"h2": {"host": "h1"}},
            ("h1", "h2"),
            FindingCode.SAME_MACHINE,
            {"name": "h1", "one_machine": False},
        ),
        (
            WANTED,
            {"h2": {"host": "h1", "boot_id": "boot of h1"}},
            ("h1", "h2"),
            FindingCode.SAME_MACHINE,
            {"one_machine": True},
        ),
        (
            WANTED,
            {"h1": {"software": {"bench": "0.1.0", "python": "CPython 3.11.7", "torch": "2.12.1"}}},
            ("h1",),
            FindingCode.VERSIONS_DIFFER,
            {"what": "torch", "value": "2.12.1", "usual": "2.13.0", "others": "hosts h0, h2"},
        ),
        (
            WANTED,
            {"h1": {"software": {"bench": "0.1.0", "python": "CPython 3.11.7"}}},
            ("h1",),
            FindingCode.VERSIONS_DIFFER,
            {"what": "torch", "value": "none"},
        ),
        (
            WANTED,
            {"h2": {"mpi": None}},
            ("h2",),
            FindingCode.VERSIONS_DIFFER,
            {"what": "mpirun (/opt/mpi/bin/mpirun)", "value": "none", "usual": "MPICH 5.0.2"},
        ),
        (WANTED, {"h2": {"source": "bb"}}, ("h2",), FindingCode.VERSIONS_DIFFER, {"value": "bb", "usual": "aa"}),
        (
            WANTED,
            {h: {"source": "bb"} for h in HOSTS},
            HOSTS,
            FindingCode.SOURCE_DIFFERS,
            {"source": "bb", "own": "aa"},
        ),
    ],
)
def test_what_would_stop_a_run_is_one_finding_that_refuses(
    wanted: Wanted,
    changed: dict[str, dict[str, Any]],
    hosts: tuple[str, ...],
    code: FindingCode,
    facts: dict[str, Any],
) -> None:
    [finding] = findings(wanted, **changed)
    assert finding.refuses
    assert (finding.hosts, finding.code) == (hosts, code)
    assert facts.items() <= finding.facts.items()
    assert hosts[0] in finding.what, "the words name the host"


@pytest.mark.parametrize(
    ("changed", "code", "facts"),
    [
        (
            {"use": HostUse("h1", 0.5, 2, used_s=0.9, stolen_s=0.0, limited_s=0.0), "programs": [{"name": "stress"}]},
            FindingCode.BUSY,
            {"programs": ["stress"]},
        ),
        ({"has_rdma": True}, FindingCode.LITTLE_LOCKED_MEMORY, {"max_kib": 64}),
        ({"shm_free_bytes": 8 << 20}, FindingCode.LITTLE_SHM, {"free_mib": 8}),  # MPI also works without shared memory
    ],
)
def test_what_may_matter_does_not_refuse(changed: dict[str, Any], code: FindingCode, facts: dict[str, Any]) -> None:
    [finding] = findings(h1=changed)
    assert (finding.refuses, finding.code, finding.hosts) == (False, code, ("h1",))
    assert facts.items() <= finding.facts.items()


def test_only_the_first_host_must_write_and_listen() -> None:
    assert findings(h1={"results_shared": False, "results_problem": "not there", "port_taken": "in use"}) == []


def test_a_missing_network_device_is_refused_with_the_existing_ones() -> None:
    wanted = replace(WANTED, devices=(NamedNic("`nics:`", "eth0"), NamedNic("`nics:`", "eth1")))
    assert findings(wanted) == []
    [finding] = findings(wanted, h1={"interfaces": ["lo", "eth0"]}, h2={"interfaces": ["lo", "eth0"]})
    assert (finding.hosts, finding.code) == (("h1", "h2"), FindingCode.NO_DEVICE)
    assert finding.facts == {"device": "eth1", "where": "`nics:`", "first": "h1", "found": "lo, eth0"}
    begins = replace(WANTED, devices=(NamedNic("NCCL_SOCKET_IFNAME in `env:`", "eth", begins=True),))
    assert findings(begins) == []
    assert len(findings(begins, h1={"interfaces": ["lo"]})) == 1
    adapter = replace(WANTED, devices=(NamedNic("`nics:`", "mlx5_0", adapter=True),))
    assert findings(adapter, **{host: {"adapters": ["mlx5_0"]} for host in HOSTS}) == []
    assert len(findings(adapter, h0={"adapters": ["mlx5_0"]})) == 1


def test_a_host_is_named_once() -> None:
    [finding] = findings(replace(WANTED, hosts=("h0", "h1", "h2", "h0")))
    assert (finding.hosts, finding.code, finding.facts) == (("h0",), FindingCode.NAMED_TWICE, {"times": 2})


def test_hosts_on_one_machine_have_no_other_finding() -> None:
    loops = {"addresses": {host: ["127.0.0.1"] for host in HOSTS}, "own_addresses": ["127.0.0.1"]}
    one = {"host": "vm", "boot_id": "one", **loops}
    [finding] = findings(h0=one, h1=one, h2=one)
    assert (finding.code, finding.facts["one_machine"]) == (FindingCode.SAME_MACHINE, True)


def test_with_a_named_interface_the_hosts_own_name_does_not_matter() -> None:
    wanted = replace(WANTED, env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert findings(wanted, h1={"own_addresses": ["127.0.1.1"]}) == []
