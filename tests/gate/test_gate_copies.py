"""Copies of GPUs before the gate: how they were made selects them; a machine of one GPU is no node that lost seven."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.inventory import Gpu
from bench.core.record import Header, Record
from bench.gate.gate import GateResult
from tests.gate.gate_runs import Run, header, judge, record, times

ROOT = Path(__file__).resolve().parent.parent.parent
ONE_GPU = (ROOT / "rules" / "acceptance-one-gpu.yaml").read_text(encoding="utf-8")
GOOD_BYTES_PER_S, PAGEABLE_BYTES_PER_S = 17e9, 3e9  # of a bound of 20 GB/s
Job = tuple[str, Header, list[Record]]


def shown(name: str, num: int) -> dict[str, Any]:
    """The facts of a host whose driver shows so many GPUs."""
    unknown = dict.fromkeys(each.name for each in fields(Gpu)[2:9])
    return {"h0": {"gpus": [{"index": index, "name": name} | unknown for index in range(num)]}}


def job(name: str, words: str, size: int, bytes_per_s: float, gpus: int = 1) -> Job:
    """Copies of one rank on a host whose driver shows so many GPUs."""
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
    """A run of these jobs, each planned and ended well."""
    planned = [
        {"name": name, "case": list(head.case), "world": {"num_nodes": 1, "ranks_per_node": 1}}
        for name, head, _ in jobs
    ]
    plan = {"cluster": {"name": "toy"} | cluster, "scenario": "acceptance", "skipped": [], "jobs": planned}
    outcomes = {name: {"exit_code": 0, "seconds": 1.0, "what": None} for name, _, _ in jobs}
    return Run(list(jobs), plan, outcomes)


def one_gpu(gpus: int = 1, **cluster: Any) -> Run:
    """What the scenario `acceptance` leaves of a machine with one GPU."""
    size = 64 << 20
    return run_of(
        job("h2d", "host_device --direction h2d", size, GOOD_BYTES_PER_S, gpus),
        job("d2h", "host_device --direction d2h", size, GOOD_BYTES_PER_S, gpus),
        job("memory", "local_copy", 1 << 30, GOOD_BYTES_PER_S, gpus),
        **cluster,
    )


def told(gate: GateResult) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fault in gate.all_faults:
        found.setdefault(fault.name, []).append(fault.what)
    return found


COPIES = "rules: [{pattern: host_device, sizes: 64M, busbw: at least 80%% of bound%s}]"


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        (", memory: pinned", []),
        ("", ["too-low"]),
        (", memory: pageable", ["too-low"]),
        (", memory: [pinned, pageable]", ["too-low"]),
        (", memory: pinned, engine: ce", ["missing-rows"]),  # host_device has no such choice: no row of it fits
    ],
)
def test_a_rule_for_pinned_copies_does_not_meet_pageable_ones(selected: str, names: list[str], tmp_path: Path) -> None:
    pinned = job("pinned", "host_device --direction h2d", 64 << 20, GOOD_BYTES_PER_S)
    pageable = job("pageable", "host_device --direction h2d --memory pageable", 64 << 20, PAGEABLE_BYTES_PER_S)
    assert list(judge(run_of(pinned, pageable), tmp_path, COPIES % selected).names) == names


def test_engine_access_and_way_of_copies_between_gpus_select_too(tmp_path: Path) -> None:
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


def test_a_planned_job_that_left_no_rows_is_missed_by_the_rule_that_is_about_it_alone(tmp_path: Path) -> None:
    pinned = job("pinned", "host_device --direction h2d", 64 << 20, GOOD_BYTES_PER_S)
    name, head, _ = job("pageable", "host_device --direction h2d --memory pageable", 64 << 20, PAGEABLE_BYTES_PER_S)
    gate = judge(run_of(pinned, (name, head, [])), tmp_path, COPIES % ", memory: pinned")
    assert gate.judged[0].passed, "the demand is about the other job"
    assert not gate.passed, "and what was planned is missed all the same"
    gate = judge(run_of(pinned, (name, head, [])), tmp_path, COPIES % ", memory: pageable")
    assert {fault.name for fault in gate.judged[0].faults} == {"missing-rows"}


def test_another_tools_log_does_not_tell_how_it_copied(tmp_path: Path) -> None:
    name, head, [row] = job("log", "host_device --direction h2d", 64 << 20, GOOD_BYTES_PER_S)
    run = run_of((name, head, [row]))
    run.headers(imported={"tool": "nvbandwidth", "source": "a.log", "status": "ok"})
    gate = judge(run, tmp_path, COPIES % ", imported: true, memory: pinned")
    assert "missing-rows" in gate.names
    assert "missing-rows" not in judge(run, tmp_path, COPIES % ", imported: true").names


def test_a_machine_that_is_built_with_one_gpu_passes(tmp_path: Path) -> None:
    gate = judge(one_gpu(ranks_per_node=1), tmp_path, ONE_GPU)
    assert gate.passed and [node.status for node in gate.nodes] == ["passed"], told(gate)


def test_the_way_back_may_be_as_slow_as_of_a_good_gh200_and_not_as_half_a_link(tmp_path: Path) -> None:
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
        assert "busbw: at least 60% of bound" in alone


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (one_gpu(), "the site does not say how many there should be: name `instance:` or `ranks_per_node:`"),
        (one_gpu(ranks_per_node=None), "the site does not say"),
        (one_gpu(ranks_per_node=8), "1 GPU a node is expected, bench.yaml says 8"),
        (one_gpu(instance="p4d.24xlarge"), "1 GPU a node is expected, bench.yaml says 8"),
        (one_gpu(gpus=8, ranks_per_node=1), "the driver of h0 shows 8"),
        (one_gpu(gpus=0, ranks_per_node=1), "the driver of h0 shows 0"),
    ],
)
def test_a_node_that_lost_seven_of_its_eight_gpus_does_not(run: Run, what: str, tmp_path: Path) -> None:
    """What a node shows is not asked: it shows one GPU as well."""
    gate = judge(run, tmp_path, ONE_GPU)
    assert not gate.passed and what in " ".join(told(gate)["wrong-world"])


def test_by_the_rules_of_a_whole_node_one_gpu_is_not_enough(tmp_path: Path) -> None:
    rules = (ROOT / "rules" / "acceptance-one-node.yaml").read_text(encoding="utf-8")
    assert "missing-rows" in judge(one_gpu(ranks_per_node=1), tmp_path, rules).names


def test_fewer_gpus_than_the_instance_type_has_fail_any_gate(tmp_path: Path) -> None:
    rules = "rules: [{pattern: host_device, busbw: at least 1 GB/s}]"
    for gpus, passed in ((8, True), (1, False)):
        run = one_gpu(gpus)
        run.headers(instance="p4d.24xlarge", nodes=shown("NVIDIA A100-SXM4-40GB", gpus))
        gate = judge(run, tmp_path, rules)
        assert gate.passed == passed
    assert told(gate) == {"wrong-world": ["p4d.24xlarge has 8 GPUs, the driver of h0 shows 1"]}


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
def test_a_part_of_a_nodes_gpus_is_a_word_of_the_site(
    shows: int | None, ranks: int, given: int | None, passed: bool, tmp_path: Path
) -> None:
    run = one_gpu(ranks_per_node=given)
    nodes = shown("NVIDIA A100-SXM4-40GB", shows) if shows else {}
    run.headers(instance="p4d.24xlarge", ranks_per_node=ranks, num_ranks=ranks, nodes=nodes)
    gate = judge(run, tmp_path, "rules: [{pattern: host_device, busbw: at least 1 GB/s}]")
    lost = [fault for fault in gate.all_faults if "p4d.24xlarge has 8 GPUs" in fault.what]
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
def test_a_container_of_four_gpus_is_held_to_four(shows: int | None, passed: bool, status: str, tmp_path: Path) -> None:
    """Its ranks_per_node count before its type; a node is accused only where its driver shows too few."""
    run = one_gpu(instance="p5en.48xlarge", ranks_per_node=4)
    nodes = shown("NVIDIA H200", shows) if shows else {"h0": {"no_gpus_because": "no NVIDIA driver answers"}}
    ranks = min(shows or 4, 4)
    run.headers(instance="p5en.48xlarge", ranks_per_node=ranks, nodes=nodes)
    for planned in (run.plan or {})["jobs"]:
        planned["world"]["ranks_per_node"] = ranks
    gate = judge(run, tmp_path, "expect: {gpus_per_node: 4}\nrules: [{pattern: host_device, busbw: at least 1 GB/s}]")
    assert gate.passed == passed and [node.status for node in gate.nodes] == [status], told(gate)
    assert "bench.yaml says" not in str(told(gate))


@pytest.mark.parametrize(("ranks", "status"), [(8, "passed"), (7, "not judged")])
def test_a_driver_that_shows_each_rank_its_own_gpu_is_no_measure(ranks: int, status: str, tmp_path: Path) -> None:
    """As with `srun --gpus-per-task=1`: also of the jobs that had one rank a node."""
    run = one_gpu(instance="p4d.24xlarge")
    run.headers(instance="p4d.24xlarge", nodes=shown("NVIDIA A100-SXM4-40GB", 1))
    name, head, rows = run.told[0]
    run.told[0] = (name, replace(head, ranks_per_node=ranks), rows)
    (run.plan or {})["jobs"][0]["world"]["ranks_per_node"] = ranks
    for rules in ("", "expect: {gpus_per_node: 8}\n"):
        gate = judge(run, tmp_path, rules + "rules: [{pattern: host_device, busbw: at least 1 GB/s}]")
        assert [node.status for node in gate.nodes] == [status], told(gate)


def test_a_host_whose_facts_are_not_there_has_not_shown_its_gpus(tmp_path: Path) -> None:
    run = one_gpu(ranks_per_node=1)
    run.headers(nodes={})
    assert "the driver of h0 does not tell them" in " ".join(told(judge(run, tmp_path, ONE_GPU))["wrong-world"])


def test_another_tools_log_does_not_tell_how_many_gpus_a_node_has(tmp_path: Path) -> None:
    run = one_gpu(ranks_per_node=1)
    run.headers(imported={"tool": "nvbandwidth", "source": "a.log", "status": "ok"})
    [what] = told(judge(run, tmp_path, ONE_GPU))["wrong-world"][-1:]
    assert "a log of another tool does not tell" in what


def test_gpus_are_expected_of_jobs_on_gpus(tmp_path: Path) -> None:
    run = one_gpu(ranks_per_node=1)
    run.headers(transport="gloo")
    assert "the most that were measured are 0" in " ".join(told(judge(run, tmp_path, ONE_GPU))["wrong-world"])
    run = one_gpu(ranks_per_node=1)
    run.headers(nodes={"h0": {"gpus": [], "no_gpus_because": "no NVIDIA driver answers"}})
    assert "the driver of h0 does not tell them" in " ".join(told(judge(run, tmp_path, ONE_GPU))["wrong-world"])
