"""The mesh search: what it chooses fits, keeps the step, and is as fast as the best of all meshes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.predict import predict
from bench.predict.candidate import SelectionQuestion, candidate
from bench.predict.draws import Draws, range_of
from bench.predict.layout import layout
from bench.predict.memory import OutOfMemoryError
from bench.predict.mesh_search import MeshSearch, meshes
from bench.predict.workload import Workload
from bench.predict.workload_file import load_workload

FOLDER = Path(__file__).parents[2] / "workloads"


def question(workload: Workload) -> SelectionQuestion:
    return SelectionQuestion(workload, predict.published(), date(2026, 11, 1), search_mesh=True)


def named(name: str, *settings: str) -> Workload:
    return load_workload(name, FOLDER, settings)


def step_s(workload: Workload, instance: str, num_nodes: int) -> float:
    found = candidate(catalogue.instance(instance), num_nodes, question(workload), Draws(1))
    return range_of(found.step.total_s).middle


def test_every_mesh_trains_as_many_samples_in_a_step() -> None:
    own = named("llama-3-8b", "training.accumulation=4")
    found = list(meshes(own, 2, 8))
    assert len({(each.mesh, each.strategy) for each in found}) == len(found) > 30
    assert {layout(each, 2, 8).samples for each in found} == {layout(own, 2, 8).samples}
    assert {each.fused for each in found} == {own.fused}


@pytest.mark.parametrize(
    ("name", "instance", "num_nodes"),
    [
        ("llama-3-8b", "g6e.48xlarge", 1),
        pytest.param("llama-3-8b", "p4d.24xlarge", 2, marks=pytest.mark.slow),
        pytest.param("mixtral-8x7b", "p5.48xlarge", 4, marks=pytest.mark.slow),
    ],
)
def test_the_chosen_mesh_is_nearly_as_fast_as_the_best_of_all(name: str, instance: str, num_nodes: int) -> None:
    workload, machine = named(name), catalogue.instance(instance)
    memory = catalogue.gpu(machine.gpu).memory_bytes
    chosen = MeshSearch(question(workload)).best(machine, num_nodes)
    times = []
    for each in meshes(workload, num_nodes, machine.gpus):
        try:
            found = candidate(machine, num_nodes, question(each), Draws(1))
        except UsageError:
            continue
        if memory is None or found.memory.total <= memory:
            times.append(range_of(found.step.total_s).middle)
    assert len(times) > 5
    assert min(times) <= step_s(chosen, instance, num_nodes) <= 1.1 * min(times)


def test_a_model_that_fits_only_in_shards_gets_shards() -> None:
    """Plain data parallelism of 8 billion parameters needs 128 GB; the search replaces it."""
    plain = replace(named("llama-3-8b"), strategy="ddp")
    machine = catalogue.instance("p4d.24xlarge")
    with pytest.raises(OutOfMemoryError):
        candidate(machine, 1, question(plain), Draws(1))
    chosen = MeshSearch(question(plain)).best(machine, 1)
    found = candidate(machine, 1, question(chosen), Draws(1))
    assert found.memory.total <= 40e9
    assert chosen.strategy == "zero3" or chosen.mesh.tensor * chosen.mesh.pipeline > 1


def test_a_model_that_no_mesh_fits_is_refused_with_the_smallest_need() -> None:
    own = named("mixtral-8x7b")
    machine = catalogue.instance("p4d.24xlarge")
    with pytest.raises(OutOfMemoryError) as refusal:
        MeshSearch(question(own)).best(machine, 1)
    assert refusal.value.need.least <= 8 * 46.7e9 * 2


def test_select_searches_and_shows_the_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    """Machines of one step's size are compared; the JSON has the mesh of each."""
    asked = ["select", "--workload", "llama-3-70b", "--instances", "p4d,p5", "--nodes", "8", "--format", "json"]
    assert main([*asked, "--set", "parallel.tensor=1", "--set", "parallel.pipeline=1", "--mesh", "auto"]) == 0
    found = json.loads(capsys.readouterr().out)
    for machine in found["machines"]:
        mesh = machine["mesh"]
        parts = mesh["tensor"] * mesh["pipeline"] * mesh["context"] * mesh["data"]
        assert parts == machine["num_gpus"]
        assert machine["memory_needed_bytes"] <= machine["memory_bytes"]
    assert "mesh" in {note["code"] for note in found["decision_notes"]}
