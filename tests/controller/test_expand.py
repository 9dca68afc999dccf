"""Plans: the jobs of a scenario, what is skipped and why, and that commands give exactly the case."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.config.clusters import Cluster
from bench.config.scenario import Measurement, Scenario
from bench.controller import preflight, survey
from bench.controller.expand import MIN_ROW_S, NOT_MODELLED, expand
from bench.controller.jobs import LocalMachine, Plan, Site
from bench.controller.messages import ControllerError, PlanRemark, PlanSkipCode
from bench.core import plugins
from bench.core.case import FACTOR
from bench.core.case_argv import from_argv
from bench.core.codes import UNCODED
from bench.core.errors import RefusedError, UsageError
from bench.core.launcher import Launcher
from bench.core.pattern import Pattern
from bench.core.remarks import RemarkCode
from bench.core.skips import SkipCode
from bench.rank import modelled
from bench.store import runs

PATTERNS: Mapping[str, Pattern] = {name: plugins.load("pattern", name).PATTERN for name in plugins.names("pattern")}
LAUNCHERS: Mapping[str, Launcher] = {
    name: plugins.load("launcher", name).LAUNCHER for name in plugins.names("launcher")
}
ROOT = Path(__file__).resolve().parent.parent.parent
LAUNCHED_BY = {
    "mpi": "mpirun",
    "mpi_cuda": "mpirun",
    "gloo": "torchrun",
    "nccl": "torchrun",
    "cuda_copy": "torchrun",
    "model": "direct",
}
NO_GPU = "no NVIDIA GPU was found"
OF_GPUS = frozenset({"nccl", "cuda_copy", "mpi_cuda"})
LAPTOP = LocalMachine(2, 0, dict.fromkeys(OF_GPUS, NO_GPU), "/env/bin/python", "/env/bin/mpirun", LAUNCHED_BY)
LOCAL = Cluster("local")
P4D = Cluster("p4d", instance="p4d.24xlarge", nodes=2, ranks_per_node=8, launcher="slurm", env={"A": "b c"})


def entry(patterns: tuple[str, ...], transports: tuple[str, ...] | None = None, **given: Any) -> Measurement:
    """One entry of a scenario. `given`: values of factors (several, or the one of a factor that is not varied)."""
    values = {}
    for name in FACTOR.keys() & given.keys() - {"nodes", "ranks_per_node"}:
        value = given.pop(name)
        values[name] = value if FACTOR[name].several else (value,)
    return Measurement(patterns, transports, values, **given)


def plan_of(
    *measurements: Measurement,
    cluster: Cluster = LOCAL,
    machine: LocalMachine = LAPTOP,
    model: bool = False,
    **scenario: Any,
) -> Plan:
    """The plan of a scenario with these measurements."""
    given: dict[str, Any] = {"budget_s": None, "max_s": 0.25, "launches": 1} | scenario
    made = Scenario("test", Path("test.yaml"), "", measurements, **given)
    return expand(made, site(cluster, machine), model)


def site(cluster: Cluster = LOCAL, machine: LocalMachine = LAPTOP) -> Site:
    """A cluster as seen from a machine."""
    return Site(cluster, machine, PATTERNS, LAUNCHERS)


def check(plan: Plan, which: Callable[[str], str | None]) -> None:
    """The preflight of a plan on a laptop."""
    preflight.check(plan, site(plan.cluster), which)


def skips(plan: Plan) -> list[tuple[str, str]]:
    """What is skipped, with the code of the reason."""
    return [(skip.what, skip.reason.code) for skip in plan.skipped]


def codes(plan: Plan) -> set[str]:
    """The codes of all reasons to skip."""
    return {skip.reason.code for skip in plan.skipped}


def refusal(plan: Plan, which: Callable[[str], str | None]) -> RefusedError:
    """The error of the preflight of a plan."""
    with pytest.raises(RefusedError) as error:
        check(plan, which)
    return error.value


def test_a_machine_without_gpus_runs_both_host_transports_with_their_launchers() -> None:
    jobs = plan_of(Measurement(("allreduce",))).jobs
    assert [(job.name, job.launcher, job.world.num_ranks) for job in jobs] == [
        ("allreduce-mpi-1x2", "mpirun", 2),
        ("allreduce-gloo-1x2", "torchrun", 2),
    ]


def test_patterns_of_copies_have_one_transport_and_one_rank_per_gpu() -> None:
    both = Measurement(("allreduce", "host_device"))
    with_gpus = replace(LAPTOP, num_gpus=4, lacks={})
    jobs = plan_of(both, machine=with_gpus).jobs
    assert [(job.case.transport, job.world.ranks_per_node) for job in jobs] == [("nccl", 4), ("cuda_copy", 4)]
    assert plan_of(both, machine=replace(with_gpus, num_gpus=1)).jobs[1].launcher == "direct"
    without = plan_of(both)
    assert {job.case.transport for job in without.jobs} == {"mpi", "gloo"}
    assert skips(without) == [("host_device cuda_copy", PlanSkipCode.UNAVAILABLE)]
    assert without.skipped[0].reason.facts == {"transport": "cuda_copy", "why": NO_GPU}
    assert {job.world.num_ranks for job in plan_of(Measurement(("peer_copy",)), cluster=P4D).jobs} == {16}


def test_what_cannot_run_on_a_machine_is_one_skip() -> None:
    copies = entry(("host_device", "local_copy", "peer_copy"), direction=("h2d", "d2h"), engine=("ce", "sm"))
    plan = plan_of(Measurement(("allreduce",)), copies)
    assert skips(plan) == [("host_device, local_copy, peer_copy cuda_copy", PlanSkipCode.UNAVAILABLE)]
    modelled = plan_of(copies, cluster=P4D, model=True)
    assert skips(modelled) == [("host_device, local_copy, peer_copy model", PlanSkipCode.NOT_MODELLED)]
    assert not modelled.jobs
    error = refusal(modelled, lambda program: program)
    assert (error.code, error.facts["codes"]) == (ControllerError.NO_JOBS, [PlanSkipCode.NOT_MODELLED])
    assert (error.facts["cluster"], error.facts["verb"]) == ("p4d", "be modelled") and "--model" in str(error)


def test_every_command_gives_exactly_its_case() -> None:
    wide = entry(
        ("allreduce", "pingpong", "broadcast", "alltoallv"),
        ("mpi",),
        dtype=("float32", "int8"),
        reduce_op=("sum", "max"),
        topology=("world", "groups of 2"),
        order=("linear", "reverse"),
        direction=("one-way", "two-way"),
        in_place=(False, True),
        root=(0, 1),
        ranks_per_node=(4,),
    )
    jobs = plan_of(wide, budget_s=60.0).jobs
    assert len({job.name for job in jobs}) == len(jobs) == 32 + 16 + 16 + 8
    for job in jobs:
        words = shlex.split(job.script())
        module = next(word for word in words if word.startswith("bench."))
        assert from_argv([module.removeprefix("bench."), *words[words.index(module) + 1 :]]) == job.case
        assert all(letter.isalnum() or letter in "-._" for letter in job.name)


def test_factors_that_do_not_apply_to_a_pattern_do_not_multiply_its_jobs() -> None:
    measurement = entry(("barrier",), ("mpi",), reduce_op=("sum", "max"), root=(0, 1), in_place=(False, True))
    assert len(plan_of(measurement, measurement).jobs) == 1


def test_sizes_are_thinned_to_the_budget_with_a_remark() -> None:
    plan = plan_of(entry(("allreduce", "broadcast"), ("mpi",), sizes=tuple(2**n for n in range(3, 25))), budget_s=5)
    for job in plan.jobs:
        assert job.case.budget_s == 2.5
        assert len(job.case.sizes) * 2 <= 2.5 / MIN_ROW_S
        assert (job.case.sizes[0], job.case.sizes[-1]) == (8, 2**24)
    [remark] = plan.remarks
    assert remark.code == RemarkCode.SIZES_THINNED
    assert remark.facts == {"num_asked": 22, "num_kept": 10, "row_s": MIN_ROW_S, "share_s": 2.5}
    stored = plan.to_plain("")
    assert stored["notes"] == [remark.text] and stored["remarks"][0]["code"] == "sizes-thinned"
    assert [found.code for found in runs.remarks_of(stored)] == [RemarkCode.SIZES_THINNED]
    assert plan_of(entry(("allreduce",), ("mpi",), sizes=(8, 64)), budget_s=60).remarks == ()


def test_a_plan_stores_references_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN", "swordfish")
    env = {"HF_TOKEN": "hunter2", "OWN": "from-environment", "NCCL_ALGO": "Ring"}
    setup = ("export WANDB_API_KEY=opensesame", "curl https://me:letmein@host/x?sig=signed1")
    for launcher, hosts in (("torchrun", ("a", "b")), ("mpirun", ("a", "b")), ("slurm", ())):
        cluster = replace(LOCAL, nodes=2, hosts=hosts, ranks_per_node=2, launcher=launcher, env=env, setup=setup)
        transport = "mpi" if launcher == "mpirun" else "gloo"
        measurement = entry(("allreduce",), (transport,), env={"GLOO_PWD": ("from-environment",)})
        plan = plan_of(measurement, cluster=cluster)
        stored = repr(plan.to_plain("env: {HF_TOKEN: hunter2}"))
        for secret in ("hunter2", "swordfish", "opensesame", "letmein", "signed1"):
            assert secret not in stored
        assert plan.to_plain("")["cluster"]["env"] == {**env, "HF_TOKEN": "(masked)"}
        assert plan.to_plain("")["jobs"][0]["factors"] == {"GLOO_PWD": "from-environment"}
        [job] = plan.jobs
        assert not any(secret in word for word in job.command for secret in ("hunter2", "swordfish"))
        line = job.script().splitlines()[-1]
        assert 'HF_TOKEN="${HF_TOKEN:?}"' in line and 'OWN="${OWN:?}"' in line and "NCCL_ALGO=Ring" in line
    with pytest.raises(UsageError) as refused:
        plan_of(entry(("allreduce",), ("gloo",), env={"GLOO_PWD": ("hunter2",)}))
    assert refused.value.code == ControllerError.SECRET_FACTOR and "hunter2" not in str(refused.value)


def test_plans_of_older_versions_have_notes_only() -> None:
    notes = ["sizes thinned from 22 to 10 (first and last kept) so that each row has 0.12 s", "another note"]
    assert [remark.code for remark in runs.remarks_of({"notes": notes})] == [RemarkCode.SIZES_THINNED, UNCODED]
    assert runs.remarks_of({}) == ()


def test_launches_alternate_and_have_their_own_names() -> None:
    jobs = plan_of(Measurement(("allreduce", "barrier"), ("mpi",)), launches=2, budget_s=10.0).jobs
    names = [job.name for job in jobs]
    assert names == ["allreduce-mpi-1x2", "barrier-mpi-1x2", "barrier-mpi-1x2-launch2", "allreduce-mpi-1x2-launch2"]
    assert [job.launch for job in jobs] == [1, 1, 2, 2]
    assert {job.case.budget_s for job in jobs} == {5.0}, "the budget is that of one launch"


def test_options_of_mpi_are_no_factors_of_other_transports() -> None:
    measurement = entry(
        ("allreduce",),
        ("mpi", "gloo"),
        thread_level=("single", "multiple"),
        sync=("barrier", "none"),
        loop=("python",),
        timer=("library",),
        bind=("none",),
    )
    jobs = plan_of(measurement).jobs
    assert len({job.name for job in jobs}) == len(jobs) == 4 + 1
    assert {job.case.thread_level for job in jobs if job.case.transport == "gloo"} == {"single"}
    assert {job.case.bind for job in jobs} == {"none"}


def test_mpi_over_gpu_memory_is_planned_as_mpi_with_a_rank_on_each_gpu() -> None:
    box = replace(LAPTOP, num_gpus=4, lacks={}, mpi="openmpi")
    wide = entry(("allreduce",), ("mpi_cuda",), thread_level=("single", "multiple"), sync=("none",))
    jobs = plan_of(wide, machine=box).jobs
    assert {(job.launcher, job.world.num_ranks) for job in jobs} == {("mpirun", 4)}
    assert {(job.case.thread_level, job.case.sync) for job in jobs} == {("single", "none"), ("multiple", "none")}
    (over_mpi,) = plan_of(Measurement(("allreduce",), ("mpi",), ranks_per_node=(4,)), machine=box).jobs
    (over_gpus,) = plan_of(Measurement(("allreduce",), ("mpi_cuda",)), machine=box).jobs
    assert [word.replace("mpi_cuda", "mpi") for word in over_gpus.command] == list(over_mpi.command)
    assert over_gpus.env == over_mpi.env, "what the mpirun at hand needs is set for both"
    (skip,) = plan_of(wide, machine=replace(box, lacks={"mpi_cuda": "no NVIDIA GPU was found"})).skipped
    assert (skip.reason.code, skip.reason.facts["why"]) == (PlanSkipCode.UNAVAILABLE, NO_GPU)


def test_measuring_like_osu_fixes_what_osu_does_for_each_pattern() -> None:
    jobs = plan_of(entry(("allreduce", "pingpong"), ("mpi",), like="osu")).jobs
    assert [(job.case.sync, job.case.cache, job.case.alignment, job.case.mode, job.case.timer) for job in jobs] == [
        ("barrier", "hot", 4096, "isolated", "library"),
        ("none", "hot", 4096, "isolated", "library"),
    ]
    with pytest.raises(UsageError) as error:
        plan_of(entry(("allreduce",), ("mpi",), like="osu", mode="pipelined"))
    assert error.value.code == ControllerError.LIKE_DIFFERS
    assert error.value.facts == {"like": "osu", "name": "mode", "fixed": "isolated", "given": "pipelined"}


def test_what_cannot_run_is_skipped_with_a_code() -> None:
    measurement = entry(("allreduce",), ("nccl", "mpi"), topology=("world", "node", "groups of 3"), nodes=(1, 2))
    plan = plan_of(measurement)
    assert [job.case.topology for job in plan.jobs] == ["world"]
    assert codes(plan) == {
        PlanSkipCode.UNAVAILABLE,
        PlanSkipCode.ONE_NODE,
        PlanSkipCode.NO_GROUPS,
        PlanSkipCode.TOO_FEW_NODES,
    }
    facts = {skip.reason.code: skip.reason.facts for skip in plan.skipped}
    assert facts[PlanSkipCode.TOO_FEW_NODES] == {"num_nodes": 2, "cluster": "local", "found": 1}
    assert "groups of 3" in facts[PlanSkipCode.NO_GROUPS]["why"]


def test_variables_are_factors_and_are_quoted() -> None:
    cluster = replace(P4D, env={"WORDS": "a b", "X": "1"})
    jobs = plan_of(Measurement(("barrier",), ("mpi",), env={"X": ("2", "3")}), cluster=cluster).jobs
    lines = [job.script().splitlines()[-1].split(" PYTHONPATH=")[0] for job in jobs]
    assert lines == ["WORDS='a b' X=2", "WORDS='a b' X=3"]


def test_a_modelled_plan_has_one_job_per_case_and_needs_known_links() -> None:
    measurement = Measurement(("allreduce",), ("mpi", "gloo"))
    [job] = plan_of(measurement, cluster=P4D, model=True).jobs
    assert (job.case.transport, job.launcher, job.case.nodes, job.case.ranks_per_node) == ("model", "direct", 2, 8)
    with pytest.raises(UsageError) as error:
        plan_of(measurement, model=True)
    assert (error.value.code, error.value.facts) == (ControllerError.NO_INSTANCE, {"cluster": "local"})


def test_a_plan_of_a_thousand_nodes_has_a_remark_about_rows_that_do_not_fit() -> None:
    big = replace(P4D, nodes=1024)
    plan = plan_of(entry(("pairs", "allreduce"), sizes=(8, 1 << 24)), cluster=big, budget_s=600.0)
    pairs, allreduce = plan.jobs
    assert (pairs.num_rounds, pairs.num_rows, allreduce.num_rounds) == (8191, 4 * 8191, 1)
    [remark] = plan.remarks
    facts = remark.facts
    assert (remark.code, facts["job"]) == (RemarkCode.ROWS_LEFT_OUT, "pairs-nccl-1024x8")
    assert (facts["num_rounds"], facts["num_ranks"], facts["num_rows"]) == (8191, 8192, 32764)
    assert (facts["share_s"], facts["needed_minutes"]) == (300.0, 132) and "--budget 132m" in remark.text
    enough = plan_of(entry(("pairs", "allreduce"), sizes=(8, 1 << 24)), cluster=big, budget_s=132 * 60.0)
    assert enough.remarks == ()


def test_batches_without_steps_are_refused() -> None:
    for step_s in ((), (0.0, 0.002)):
        values: dict[str, Any] = {"batch": (16,)} | ({"step_s": step_s} if step_s else {})
        with pytest.raises(UsageError, match=r"--batch .*--step-time"):
            plan_of(entry(("feed",), sizes=(1 << 20,), **values))
    [job] = plan_of(entry(("feed",), sizes=(1 << 20,), batch=(16,), step_s=(0.002,), ranks_per_node=(1,))).jobs
    assert "--batch 16" in " ".join(job.command)


def test_a_ladder_counts_its_least_rounds_and_has_nics_and_racks() -> None:
    cluster = Cluster(
        "lab", nodes=1024, ranks_per_node=8, launcher="slurm", nics=("eth0", "eth1"), racks={"r1": ("h0", "h1")}
    )
    ladder = entry(("pairs",), ("gloo",), sizes=(1 << 22,), schedule="ladder")
    [job] = plan_of(ladder, cluster=cluster).jobs
    assert job.num_rows == 2 * 4 + 2 * 3  # both ways: matchings of hosts, then of ranks inside
    assert (job.case.nics, job.case.racks) == (("eth0", "eth1"), (("r1", ("h0", "h1")),))
    assert codes(plan_of(replace(ladder, patterns=("allreduce",)), cluster=cluster)) == {PlanSkipCode.LADDER_OF_PAIRS}


def nowhere(program: str) -> str | None:
    """Finds nothing."""
    return None


def everywhere(program: str) -> str | None:
    """Finds everything."""
    return f"/bin/{program}"


def test_the_place_where_ranks_would_run_is_checked() -> None:
    plan = plan_of(Measurement(("allreduce",)), cluster=P4D)
    error = refusal(plan, nowhere)
    assert (error.code, error.facts["launcher"]) == (ControllerError.NO_LAUNCHER, "slurm")
    assert "srun" in error.facts["why"]
    check(plan, everywhere)  # a login node needs no GPU


@pytest.mark.parametrize(
    ("cluster", "code", "facts"),
    [
        (
            replace(P4D, nodes=1, launcher="torchrun"),
            ControllerError.TOO_FEW_GPUS,
            {"num_ranks": 8, "num_gpus": 0},
        ),
        (replace(P4D, launcher="mpirun"), ControllerError.HOSTS_MISSING, {"num_nodes": 2, "num_hosts": 0}),
    ],
)
def test_a_claim_that_this_machine_does_not_meet_is_refused(
    cluster: Cluster, code: ControllerError, facts: dict[str, int]
) -> None:
    error = refusal(plan_of(Measurement(("allreduce",)), cluster=cluster), everywhere)
    assert error.code == code and facts.items() <= error.facts.items()


def test_an_instance_type_gives_the_gpus_of_a_node() -> None:
    there = replace(P4D, ranks_per_node=None)
    assert [job.world.ranks_per_node for job in plan_of(Measurement(("allreduce",)), cluster=there).jobs] == [8]
    modelled = plan_of(Measurement(("allreduce",)), cluster=there, model=True)
    assert [job.world.num_ranks for job in modelled.jobs] == [16]


def test_unused_hosts_are_a_remark() -> None:
    lab = Cluster("lab", nodes=2, hosts=("h0", "h1", "h2", "h3"), launcher="torchrun")
    [remark] = plan_of(Measurement(("allreduce",), ("gloo",)), cluster=lab).remarks
    assert (remark.code, remark.facts["num_nodes"], remark.facts["spare"]) == (PlanRemark.SPARE_HOSTS, 2, "h[2-3]")
    assert not plan_of(Measurement(("allreduce",), ("gloo",)), cluster=replace(lab, nodes=4)).remarks


def test_a_reason_to_skip_is_listed_once() -> None:
    wide = entry(("allreduce",), ("mpi", "gloo"), dtype=("float32", "int8"), ranks_per_node=(1, 2, 4))
    assert len(plan_of(wide, cluster=Cluster("lab", launcher="torchrun")).skipped) == 1


@pytest.mark.parametrize("transport", ["mpi", "mpi_cuda"])
def test_torchrun_starts_no_ranks_of_either_mpi(transport: str) -> None:
    plan = plan_of(
        Measurement(("allreduce",), (transport,)),
        cluster=Cluster("lab", launcher="torchrun"),
        machine=replace(LAPTOP, lacks={}),
    )
    assert codes(plan) == {PlanSkipCode.TORCHRUN_WITHOUT_MPI}


def test_torchrun_starts_no_mpi_ranks() -> None:
    plan = plan_of(Measurement(("allreduce",)), cluster=Cluster("lab", launcher="torchrun"))
    assert {job.case.transport for job in plan.jobs} == {"gloo"}
    assert codes(plan) == {PlanSkipCode.TORCHRUN_WITHOUT_MPI}


def test_a_plan_without_jobs_is_refused_with_all_reasons() -> None:
    error = refusal(plan_of(Measurement(("allreduce",), ("nccl",))), everywhere)
    assert (error.code, error.facts["codes"]) == (ControllerError.NO_JOBS, [PlanSkipCode.UNAVAILABLE])
    assert NO_GPU in error.facts["reasons"]


def contended(world: tuple[int, int], transport: str = "mpi", **measure: Any) -> Plan:
    machine = replace(LAPTOP, separates=frozenset({"mpi", "gloo"}), lacks={})
    measurement = entry(
        ("sendrecv",),
        (transport,),
        aggressor=("alltoall:1M",),
        nodes=(world[0],),
        ranks_per_node=(world[1],),
        **measure,
    )
    return plan_of(measurement, cluster=Cluster("c", nodes=world[0]), machine=machine)


def test_contention_is_planned_if_both_sides_can_send() -> None:
    (job, halves) = contended((2, 4), split=("alternate", "halves")).jobs
    assert job.name == "sendrecv-mpi-2x4-alltoall_1M" and halves.name == "sendrecv-mpi-2x4-alltoall_1M-halves"
    assert "--aggressor alltoall:1M --split halves" in " ".join(halves.command)
    for world, transport, code in (
        ((1, 2), "mpi", PlanSkipCode.TOO_FEW_VICTIMS),
        ((1, 3), "mpi", PlanSkipCode.NO_GROUPS),
        ((1, 4), "nccl", PlanSkipCode.NOT_SEPARABLE),
    ):
        nothing = contended(world, transport)
        assert not nothing.jobs and codes(nothing) == {code}


def test_each_number_of_ranks_is_a_world() -> None:
    measurement = Measurement(patterns=("allreduce",), transports=("mpi",), nodes=(1, 2), ranks_per_node=(1, 2, 4))
    jobs = plan_of(measurement, cluster=Cluster("c", nodes=2)).jobs
    worlds = [(job.world.num_nodes, job.world.ranks_per_node) for job in jobs]
    assert worlds == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]


def test_the_network_devices_that_jobs_name_are_checked(tmp_path: Path) -> None:
    def devices(transport: str, **cluster: Any) -> list[tuple[str, str, bool, bool]]:
        jobs = plan_of(Measurement(("pairs",), (transport,), nodes=(1,)), cluster=replace(P4D, **cluster)).jobs
        wanted = survey.wanted(replace(P4D, **cluster), jobs, LAPTOP, tmp_path)
        return [(device.where, device.name, device.adapter, device.begins) for device in wanted.devices]

    gloo, nccl = "GLOO_SOCKET_IFNAME in `env:`", "NCCL_SOCKET_IFNAME in `env:`"
    assert devices("gloo", nics=("e0", "e7")) == [("`nics:`", "e0", False, False), ("`nics:`", "e7", False, False)]
    assert devices("mpi", nics=("mlx5_0:1",)) == [("`nics:`", "mlx5_0", True, False)]
    assert devices("gloo", env={"GLOO_SOCKET_IFNAME": "e0,e1"}) == [
        (gloo, "e0", False, False),
        (gloo, "e1", False, False),
    ]
    assert devices("nccl", env={"NCCL_SOCKET_IFNAME": "e,ib"}) == [(nccl, "e", False, True), (nccl, "ib", False, True)]
    assert devices("nccl", env={"NCCL_SOCKET_IFNAME": "=e0"}) == [(nccl, "e0", False, False)]
    assert devices("nccl", env={"NCCL_SOCKET_IFNAME": "^docker"}) == []
    assert devices("mpi", env={"GLOO_SOCKET_IFNAME": "e0"}) == [], "MPI does not read it"


def test_a_printed_command_runs_where_it_is_pasted_and_with_slurm_stores_samples() -> None:
    named = replace(LOCAL, hosts=("h0", "h1"), nodes=2, launcher="torchrun")
    [job] = plan_of(Measurement(("barrier",), ("gloo",)), cluster=named).jobs
    assert (
        f"PYTHONPATH={ROOT}${{PYTHONPATH:+:$PYTHONPATH}} {sys.executable} -m bench.controller.hosts h0,h1"
        in job.script()
    )
    assert "BENCH_CARRY=BENCH_AGENT,PYTHONPATH " in job.script(), "and the ranks find the suite, too"
    [job] = plan_of(Measurement(("barrier",), ("mpi",)), cluster=P4D).jobs
    assert job.script().startswith('mkdir -p "${RESULTS:=results/')
    assert job.script().endswith(f'--job {job.name} --launch 1 --expect 2x8 --records "$RESULTS"/{job.name}.jsonl')
    assert "--records" not in job.command


def test_a_demand_that_a_transport_ignores_is_skipped() -> None:
    demand = entry(("allreduce",), ("gloo", "nccl"), sizes=(64,), require=(("network", "efa"),))
    plan = plan_of(demand, machine=replace(LAPTOP, lacks={}))
    assert [job.case.transport for job in plan.jobs] == ["nccl"]
    [skip] = plan.skipped
    assert (skip.reason.code, skip.reason.facts["transport"]) == (SkipCode.OPTION_IGNORED, "gloo")
    modelled = plan_of(replace(demand, transports=()), cluster=P4D, model=True)
    assert not modelled.jobs and codes(modelled) == {SkipCode.OPTION_IGNORED}


def test_a_factor_that_no_named_transport_obeys_is_skipped_and_not_dropped() -> None:
    alone = plan_of(entry(("allreduce", "barrier"), ("gloo",), graph=(True,)))
    [skip] = alone.skipped
    assert (skip.reason.code, skip.reason.facts["option"]) == (SkipCode.OPTION_IGNORED, "--graph")
    assert skip.patterns == ("allreduce", "barrier") and not alone.jobs and not alone.remarks
    both = plan_of(entry(("allreduce",), ("gloo",), graph=(False, True)))
    assert [job.case.graph for job in both.jobs] == [False] and len(both.skipped) == 1
    several = plan_of(entry(("allreduce",), ("gloo", "mpi"), aggregate=(4,)))
    assert not several.jobs and [skip.reason.facts["transport"] for skip in several.skipped] == ["gloo", "mpi"]


def test_the_plan_says_which_transports_ignore_a_factor_that_others_obey() -> None:
    machine = replace(LAPTOP, lacks={})
    mixed = plan_of(entry(("allreduce",), ("gloo", "nccl"), graph=(False, True)), machine=machine)
    assert [(job.case.transport, job.case.graph) for job in mixed.jobs] == [
        ("gloo", False),
        ("nccl", False),
        ("nccl", True),
    ]
    [remark] = mixed.remarks
    assert (remark.code, remark.facts) == (PlanRemark.FACTOR_IGNORED, {"key": "graph", "transports": ["gloo"]})
    chosen = plan_of(entry(("allreduce",), graph=(True,)))
    assert {job.case.transport for job in chosen.jobs} == {"gloo", "mpi"} and not chosen.skipped
    assert [remark.facts["transports"] for remark in chosen.remarks] == [["gloo", "mpi"]]
    [of_mpi] = plan_of(entry(("allreduce",), ("gloo", "mpi"), sync=("none",))).remarks
    assert (of_mpi.code, of_mpi.facts) == (PlanRemark.FACTOR_IGNORED, {"key": "sync", "transports": ["gloo"]})
    alone = plan_of(entry(("allreduce",), ("gloo",), sync=("none",)))
    assert [job.case.sync for job in alone.jobs] == ["double-barrier"] and len(alone.remarks) == 1
    modelled = plan_of(entry(("allreduce",), ("nccl",), graph=(True,), aggregate=(2,)), cluster=P4D, model=True)
    assert [remark.facts["key"] for remark in modelled.remarks] == ["aggregate"] and len(modelled.jobs) == 1


@pytest.mark.parametrize(
    ("cluster", "patterns", "hints", "modelled"),
    [
        (LOCAL, ("host_device",), "--cluster NAME`", False),
        (replace(P4D, nodes=1, launcher="torchrun"), ("host_device",), "--cluster p4d`", False),
        (replace(P4D, nodes=1, launcher="torchrun"), ("peer_copy",), "--cluster p4d`", False),
        (replace(P4D, nodes=1, launcher="torchrun"), ("host_device", "allreduce"), "(MODEL=1)", True),
    ],
)
def test_a_refusal_only_offers_what_works(
    cluster: Cluster, patterns: tuple[str, ...], hints: str, modelled: bool
) -> None:
    asked = entry(patterns, sizes=(1 << 20,))
    with pytest.raises(RefusedError) as refused:
        check(plan_of(asked, cluster=cluster), lambda program: program)
    assert hints in str(refused.value) and "bench plan test --cluster " in str(refused.value)
    assert ("MODEL=1" in str(refused.value)) == modelled
    if cluster.instance:
        assert bool(plan_of(asked, cluster=cluster).jobs)


def test_the_patterns_that_are_not_modelled_are_those_that_the_model_cannot_run() -> None:
    unknown = set()
    for name in PATTERNS:
        words = f"{name} --transport model --instance p4d.24xlarge --nodes 1 --ranks-per-node 8 --sizes 4M"
        _, rows = modelled.header_and_rows(from_argv(words.split()), "job")
        if not any(record.samples for row in rows for record in row):
            unknown.add(name)
    assert unknown == NOT_MODELLED & set(PATTERNS)
    planned = plan_of(entry(tuple(sorted(PATTERNS)), matrix=((0, 1), (1, 0))), cluster=P4D, model=True)
    assert not {job.case.pattern for job in planned.jobs} & unknown, "no job whose rows would all be skipped"


def test_the_plan_says_which_factors_have_no_effect_on_any_of_its_patterns() -> None:
    skewed = plan_of(entry(("allreduce", "barrier"), ("gloo",), skew=(0.0, 1.0)))
    [remark] = skewed.remarks
    assert len(skewed.jobs) == 2 and remark.code == PlanRemark.FACTOR_OF_OTHER_PATTERNS
    assert remark.facts == {"key": "skew", "patterns": ["allreduce", "barrier"]}
    assert plan_of(entry(("allreduce", "broadcast"), ("gloo",), root=(1,))).remarks == ()
    [alone] = plan_of(entry(("allreduce",), ("gloo",), split=("halves",))).remarks
    assert (alone.code, alone.facts) == (PlanRemark.FACTOR_ALONE, {"key": "splits", "other": "aggressors"})


def test_sizes_that_round_to_the_same_size_are_one_row() -> None:
    sizes = tuple(2**n for n in range(3, 9))  # eight ranks exchange at least 128 bytes
    [job] = plan_of(entry(("alltoall",), ("gloo",), sizes=sizes, ranks_per_node=(8,))).jobs
    case, pattern = job.case, plugins.load("pattern", "alltoall").PATTERN
    assert case.payloads(pattern, 8) == {128: (8, 16, 32, 64, 128), 256: (256,)}
    assert (job.num_rows, job.num_records) == (2 * 2, 2 * 2)
    [pairs] = plan_of(entry(("pairs",), ("gloo",), sizes=(64, 128), ranks_per_node=(4,))).jobs
    assert (pairs.num_rounds, pairs.num_rows, pairs.num_records) == (3, 3 * 2 * 2, 3 * 2 * 2 * 2)
