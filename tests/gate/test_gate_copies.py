"""Gates on copies of GPUs: rules select how they were made, and a node that lost seven of eight GPUs never passes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.inventory import Gpu
from bench.core.record import Header, Record
from bench.gate.messages import FaultCode
from tests.gate.gate_runs import Run, codes, header, judge, record, times

ROOT = Path(__file__).resolve().parent.parent.parent
ONE_GPU = (ROOT / "rules" / "acceptance-one-gpu.yaml").read_text(encoding="utf-8")
GOOD_BYTES_PER_S, PAGEABLE_BYTES_PER_S = 17e9, 3e9  # of a bound of 20 GB/s
Job = tuple[str, Header, list[Record]]


def shown(name: str, num: int) -> dict[str, Any]:
    """The facts of a host whose driver shows `num` GPUs."""
    unknown = dict.fromkeys(each.name for each in fields(Gpu)[2:9])
    return {"h0": {"gpus": [{"index": index, "name": name} | unknown for index in range(num)]}}


def job(name: str, words: str, size: int, bytes_per_s: float, gpus: int = 1) -> Job:
    """Copies by one rank on a host whose driver shows `gpus` GPUs."""
    pattern, *options = words.split()
    case = (pattern, "--transport", "cuda_copy", "--mode", "pipelined", "--sizes", str(size), *options)
    direction = options[options.index("--direction") + 1] if "--direction" in options else None
    factor = 2.0 if pattern == "local_copy" else 1.0
    head = header(
        name,
        case,
        pattern=pattern,
        transport="cuda_copy",
        direction=direction,
        num_nodes=1,
        ranks_per_node=1,
        instance=None,
        nodes=shown("NVIDIA L4", gpus),
    )
    row = record(
        "pipelined",
        size,
        times(factor * size / bytes_per_s, 60),
        num_ranks=1,
        num_nodes=1,
        bus_factor=factor,
        rank_bytes=0.0,
        node_bytes=None,
        min_steps=1,
    )
    return name, head, [row]


def run_of(*jobs: Job, **cluster: Any) -> Run:
    """A run of these jobs, all planned and all successful."""
    planned = [
        {"name": name, "case": list(head.case), "world": {"num_nodes": 1, "ranks_per_node": 1}}
        for name, head, _ in jobs
    ]
    plan = {"cluster": {"name": "toy"} | cluster, "scenario": "acceptance", "skipped": [], "jobs": planned}
    outcomes = {name: {"exit_code": 0, "seconds": 1.0, "what": None} for name, _, _ in jobs}
    return Run(list(jobs), plan, outcomes)


def one_gpu(gpus: int = 1, **cluster: Any) -> Run:
    """The jobs of the scenario `acceptance` on a machine with one GPU."""
    size = 64 << 20
    return run_of(
        job("h2d", "host_device --direction h2d", size, GOOD_BYTES_PER_S, gpus),
        job("d2h", "host_device --direction d2h", size, GOOD_BYTES_PER_S, gpus),
        job("memory", "local_copy", 1 << 30, GOOD_BYTES_PER_S, gpus),
        **cluster,
    )


COPIES = "rules: [{pattern: host_device, sizes: 64M, busbw: at least 80%% of bound%s}]"


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        (", memory: pinned", []),
        ("", ["too-low"]),
        (", memory: pageable", ["too-low"]),
        (", memory: [pinned, pageable]", ["too-low"]),
        (", memory: pinned, engine: ce", []),
        (", memory: pinned, engine: sm", ["missing-rows"]),  # no row was copied by a kernel
    ],
)
def test_a_rule_for_pinned_copies_does_not_select_pageable_ones(
    selected: str, names: list[str], tmp_path: Path
) -> None:
    pinned = job("pinned", "host_device --direction h2d", 64 << 20, GOOD_BYTES_PER_S)
    pageable = job("pageable", "host_device --direction h2d --memory pageable", 64 << 20, PAGEABLE_BYTES_PER_S)
    assert list(judge(run_of(pinned, pageable), tmp_path, COPIES % selected).names) == names


def test_engine_access_and_via_select_copies_between_gpus(tmp_path: Path) -> None:
    words = {"by-ce": "", "by-sm": "--engine sm", "read": "--access read", "in-one": "--via process"}
    jobs = [
        job(name, f"local_copy {more}" if name == "by-sm" else f"peer_copy {more}", 1 << 20, 17e9)
        for name, more in words.items()
    ]
    for key, fits in (
        ("engine: sm", {"by-sm"}),
        ("access: read", {"read"}),
        ("via: process", {"in-one"}),
        ("access: write, via: ipc", {"by-ce"}),
    ):
        rules = f"rules: [{{patterns: [peer_copy, local_copy], busbw: at least 1 TB/s, {key}}}]"
        gate = judge(run_of(*jobs), tmp_path, rules)
        low = {fault.job for fault in gate.all_faults if fault.name in ("too-low", "one-rank")}
        assert low == fits, key


def test_only_the_rule_that_selects_a_job_without_rows_misses_them(tmp_path: Path) -> None:
    pinned = job("pinned", "host_device --direction h2d", 64 << 20, GOOD_BYTES_PER_S)
    name, head, _ = job("pageable", "host_device --direction h2d --memory pageable", 64 << 20, PAGEABLE_BYTES_PER_S)
    gate = judge(run_of(pinned, (name, head, [])), tmp_path, COPIES % ", memory: pinned")
    assert gate.judged[0].passed, "the demand selects the other job"
    assert not gate.passed, "but the planned job is missed"
    gate = judge(run_of(pinned, (name, head, [])), tmp_path, COPIES % ", memory: pageable")
    assert {fault.name for fault in gate.judged[0].faults} == {"missing-rows"}


def test_another_tools_log_does_not_record_how_it_copied(tmp_path: Path) -> None:
    name, head, [row] = job("log", "host_device --direction h2d", 64 << 20, GOOD_BYTES_PER_S)
    run = run_of((name, head, [row]))
    run.headers(imported={"tool": "nvbandwidth", "source": "a.log", "status": "ok"})
    gate = judge(run, tmp_path, COPIES % ", imported: true, memory: pinned")
    assert "missing-rows" in gate.names
    assert "missing-rows" not in judge(run, tmp_path, COPIES % ", imported: true").names


def test_a_machine_built_with_one_gpu_passes(tmp_path: Path) -> None:
    gate = judge(one_gpu(ranks_per_node=1), tmp_path, ONE_GPU)
    assert gate.passed and [node.status for node in gate.nodes] == ["passed"], codes(gate)


def test_device_to_host_may_be_as_slow_as_on_a_good_gh200_but_not_half_a_link(tmp_path: Path) -> None:
    def back(share: float) -> Run:
        size, link = 64 << 20, 20e9
        return run_of(
            job("h2d", "host_device --direction h2d", size, 0.92 * link),
            job("d2h", "host_device --direction d2h", size, share * link),
            job("memory", "local_copy", 1 << 30, GOOD_BYTES_PER_S),
            ranks_per_node=1,
        )

    assert judge(back(0.66), tmp_path, ONE_GPU).passed
    assert not judge(back(0.5), tmp_path, ONE_GPU).passed
    for name in ("acceptance.yaml", "acceptance-one-node.yaml"):
        alone = (ROOT / "rules" / name).read_text(encoding="utf-8").partition("alone\n")[2].partition("- name")[0]
        assert "busbw: at least 60% " in alone


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (one_gpu(), FaultCode.GPUS_EXPECTED_UNSTATED),
        (one_gpu(ranks_per_node=None), FaultCode.GPUS_EXPECTED_UNSTATED),
        (one_gpu(ranks_per_node=8), FaultCode.GPUS_EXPECTED_STATED),
        (one_gpu(instance="p4d.24xlarge"), FaultCode.GPUS_EXPECTED_STATED),
        (one_gpu(gpus=8, ranks_per_node=1), FaultCode.GPUS_EXPECTED_SHOWN),
        (one_gpu(gpus=0, ranks_per_node=1), FaultCode.GPUS_EXPECTED_SHOWN),
    ],
)
def test_a_node_that_lost_seven_of_its_eight_gpus_fails(run: Run, code: FaultCode, tmp_path: Path) -> None:
    gate = judge(run, tmp_path, ONE_GPU)
    assert not gate.passed and code in codes(gate)["wrong-world"]


def test_one_gpu_fails_the_rules_of_a_whole_node(tmp_path: Path) -> None:
    rules = (ROOT / "rules" / "acceptance-one-node.yaml").read_text(encoding="utf-8")
    assert "missing-rows" in judge(one_gpu(ranks_per_node=1), tmp_path, rules).names


def test_fewer_gpus_than_the_instance_type_fail_any_gate(tmp_path: Path) -> None:
    rules = "rules: [{pattern: host_device, busbw: at least 1 GB/s}]"
    for gpus, passed in ((8, True), (1, False)):
        run = one_gpu(gpus)
        run.headers(instance="p4d.24xlarge", nodes=shown("NVIDIA A100-SXM4-40GB", gpus))
        gate = judge(run, tmp_path, rules)
        assert gate.passed == passed
    [fault] = gate.all_faults
    assert fault.code == FaultCode.GPUS_LOST
    assert fault.facts == {"instance": "p4d.24xlarge", "num_gpus": 8, "host": "h0", "shown": 1, "used": 1}


@pytest.mark.parametrize(
    ("shows", "ranks", "given", "passed"),
    [
        (4, 4, 4, True),  # a container that is given four of eight, as bench.yaml says
        (4, 4, None, False),
        (7, 4, 4, False),
        (7, 7, None, False),
        (8, 4, 4, True),  # half of a node's GPUs by choice
        (None, 8, None, True),
        (None, 4, None, False),
        (None, 4, 4, True),  # NVML is not there: those that took part are
    ],
)
def test_bench_yaml_may_give_a_part_of_a_nodes_gpus(
    shows: int | None, ranks: int, given: int | None, passed: bool, tmp_path: Path
) -> None:
    run = one_gpu(ranks_per_node=given)
    nodes = shown("NVIDIA A100-SXM4-40GB", shows) if shows else {}
    run.headers(instance="p4d.24xlarge", ranks_per_node=ranks, num_ranks=ranks, nodes=nodes)
    gate = judge(run, tmp_path, "rules: [{pattern: host_device, busbw: at least 1 GB/s}]")
    lost = [fault for fault in gate.all_faults if fault.code in (FaultCode.GPUS_LOST, FaultCode.GPUS_LOST_UNREPORTED)]
    assert (not lost) == passed and {host for fault in lost for host in fault.hosts} <= {"h0"}
    assert passed or [node.status for node in gate.nodes] == ["failed" if shows else "not judged"]


@pytest.mark.parametrize(
    ("shows", "passed", "status"),
    [
        (4, True, "passed"),
        (3, False, "failed"),
        (8, False, "not judged"),
        (None, False, "not judged"),
    ],
)
def test_a_container_of_four_gpus_must_show_four(shows: int | None, passed: bool, status: str, tmp_path: Path) -> None:
    """`ranks_per_node` counts before the type. A node is accused only if its driver shows too few."""
    run = one_gpu(instance="p5en.48xlarge", ranks_per_node=4)
    nodes = shown("NVIDIA H200", shows) if shows else {"h0": {"no_gpus_because": "no NVIDIA driver answers"}}
    ranks = min(shows or 4, 4)
    run.headers(instance="p5en.48xlarge", ranks_per_node=ranks, nodes=nodes)
    for planned in (run.plan or {})["jobs"]:
        planned["world"]["ranks_per_node"] = ranks
    gate = judge(run, tmp_path, "expect: {gpus_per_node: 4}\nrules: [{pattern: host_device, busbw: at least 1 GB/s}]")
    assert gate.passed == passed and [node.status for node in gate.nodes] == [status], codes(gate)
    assert FaultCode.GPUS_EXPECTED_STATED not in codes(gate).get("wrong-world", [])


@pytest.mark.parametrize(("ranks", "status"), [(8, "passed"), (7, "not judged")])
def test_a_driver_that_shows_each_rank_its_own_gpu_does_not_count(ranks: int, status: str, tmp_path: Path) -> None:
    """As with `srun --gpus-per-task=1`, also for jobs with one rank per node."""
    run = one_gpu(instance="p4d.24xlarge")
    run.headers(instance="p4d.24xlarge", nodes=shown("NVIDIA A100-SXM4-40GB", 1))
    name, head, rows = run.jobs[0]
    run.jobs[0] = (name, replace(head, ranks_per_node=ranks), rows)
    (run.plan or {})["jobs"][0]["world"]["ranks_per_node"] = ranks
    for rules in ("", "expect: {gpus_per_node: 8}\n"):
        gate = judge(run, tmp_path, rules + "rules: [{pattern: host_device, busbw: at least 1 GB/s}]")
        assert [node.status for node in gate.nodes] == [status], codes(gate)


def test_a_host_without_facts_has_not_shown_its_gpus(tmp_path: Path) -> None:
    run = one_gpu(ranks_per_node=1)
    run.headers(nodes={})
    assert FaultCode.GPUS_EXPECTED_UNREPORTED in codes(judge(run, tmp_path, ONE_GPU))["wrong-world"]


def test_another_tools_log_does_not_show_the_gpus_of_a_node(tmp_path: Path) -> None:
    run = one_gpu(ranks_per_node=1)
    run.headers(imported={"tool": "nvbandwidth", "source": "a.log", "status": "ok"})
    assert FaultCode.GPUS_EXPECTED_OF_LOG in codes(judge(run, tmp_path, ONE_GPU))["wrong-world"]


def test_only_jobs_on_gpus_show_gpus(tmp_path: Path) -> None:
    run = one_gpu(ranks_per_node=1)
    run.headers(transport="gloo")
    measured = [fault for fault in judge(run, tmp_path, ONE_GPU).all_faults if "measured" in fault.facts]
    assert [(fault.code, fault.facts["measured"]) for fault in measured] == [(FaultCode.GPUS_EXPECTED_MEASURED, 0)]
    run = one_gpu(ranks_per_node=1)
    run.headers(nodes={"h0": {"gpus": [], "no_gpus_because": "no NVIDIA driver answers"}})
    assert FaultCode.GPUS_EXPECTED_UNREPORTED in codes(judge(run, tmp_path, ONE_GPU))["wrong-world"]
