"""Workload files: presets, settings, and mistakes with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.errors import UsageError
from bench.predict.workload_file import WORKLOAD, load_workload

FOLDER = Path(__file__).parents[2] / "workloads"
LEAST = "model: {parameters: 1B, flops: 6e12}\ntraining: {batch: 4}\n"


def error_of(path: Path, *settings: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_workload(str(path), FOLDER, settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit-l-306m", 306e6), ("llama-3-8b", 8030261248), ("llama-3-70b", 70553706496), ("mixtral-8x7b", 46702792704)],
)
def test_presets_agree_with_their_layers(name: str, parameters: float) -> None:
    found = load_workload(name, FOLDER)
    assert found.model.parameters == parameters
    assert found.model.parameters_by_layers == pytest.approx(parameters, rel=0.014)
    assert found.sources
    assert found.verified


def test_every_file_is_read() -> None:
    names = [file.stem for file in FOLDER.glob("*.yaml")]
    assert set(names) >= {"vit-l-306m", "llama-3-8b", "llama-3-70b", "mixtral-8x7b"}
    assert [load_workload(name, FOLDER).name for name in names] == names


def test_mixture_of_experts_counts_active_parameters() -> None:
    model = load_workload("mixtral-8x7b", FOLDER).model
    assert model.active_parameters == pytest.approx(12.9e9, rel=0.02)
    assert model.all_expert_parameters == 32 * 8 * 3 * 4096 * 14336


def test_preset_supplies_missing_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: vit-l-306m\ntraining:\n  batch: 32\n  efficiency: {L40S: 0.3..0.4}\nunverified: batch\n")
    found = load_workload(str(path), FOLDER)
    assert (found.name, found.batch, found.model.layers) == ("mine", 32, 24)
    assert found.efficiency == {"L40S": (0.3, 0.4)}
    assert not found.verified
    assert found.unverified == ("batch",)


def test_settings_override_the_file() -> None:
    settings = (
        "training.batch=8",
        "parallel.strategy=fsdp",
        "training.baselines={L40S: 210, A100-SXM4-40GB: 380..400}",
    )
    found = load_workload("vit-l-306m", FOLDER, settings)
    assert (found.batch, found.strategy) == (8, "zero3")
    assert found.baselines == {"L40S": (210, 210), "A100-SXM4-40GB": (380, 400)}


@pytest.mark.parametrize(
    ("text", "place", "facts"),
    [
        ("model: {parameters: -1}\ntraining: {batch: 4}", "x.yaml:1:21: model.parameters", ("-1",)),
        ("model: {parameters: 1B}\ntraining: {}", "", ("training.batch",)),
        ("training: {batch: 4}", "", ("model.parameters",)),
        ("model: {parameters: 1B}\ntraining: {batch: 2.5}", "x.yaml:2:19: training.batch", ("2.5",)),
        ("model: {paramters: 1B}", "x.yaml:1:9: model.paramters", ("paramters",)),
        ("modell: {parameters: 1B}", "", ("modell", "model")),
        ("model: 7", "x.yaml:1:8: model", ("key: value",)),
        (LEAST + "parallel: {strategy: zero4}", "", ("zero4", "zero3")),
        (LEAST + "parallel: {tensor: 8}", "x.yaml:3:11: parallel", ("tensor: 8",)),
        (
            "model: {parameters: 1B}\ntraining: {batch: 4, efficiency: 1.5}",
            "x.yaml:2:34: training.efficiency",
            ("1.5",),
        ),
        (
            "model: {parameters: 1B}\ntraining: {batch: 4, efficiency: 0.5..0.3}",
            "x.yaml:2:34: training.efficiency",
            ("0.5..0.3",),
        ),
        ("model: {parameters: 1B}\ntraining: {batch: 4, baselines: {L44: 3}}", "", ("L44",)),
        ("model: {parameters: 1B}\ntraining: {batch: 4, weights: float33}", "", ("float33",)),
        (
            "model: {parameters: 1B, layers: 2, hidden: 64, feedforward: 64}\ntraining: {batch: 4}",
            "x.yaml:1:8: model",
            ("1e+09",),
        ),
        ("preset: vit-l", "", ("vit-l", "vit-l-306m")),
    ],
)
def test_mistake_is_reported_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str, facts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(text + "\n")
    found = error_of(Path("x.yaml"))
    assert found.startswith(place) and all(fact in found for fact in facts), found
    assert "x.yaml" in found or "workloads" in found


@pytest.mark.parametrize(
    ("setting", "place", "facts"),
    [
        ("batch=3", "", ("--set", "batch=3")),
        ("training.batch", "--set", ("training.batch=32",)),
        ("training.batch=", "--set", ("training.batch=",)),
        ("training.batch=-1", "", ("--set", "-1")),
        ("training.batsh=1", "", ("batch",)),
        ("parallel.tensor=3", "parallel", ("16 heads", "tensor: 3")),
    ],
)
def test_wrong_setting_is_refused(setting: str, place: str, facts: tuple[str, ...]) -> None:
    found = error_of(FOLDER / "vit-l-306m.yaml", setting)
    assert all(fact in found for fact in (place, *facts)), found


def test_circular_presets_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"preset: {path}\n{LEAST}")
    assert error_of(path).startswith(f"{path}:1:9: preset: ")


def test_documented_example_is_valid_and_has_every_key(tmp_path: Path) -> None:
    page = (FOLDER.parent / "docs" / "selection.md").read_text(encoding="utf-8")
    examples = [part.removeprefix("yaml\n") for part in page.split("```") if part.startswith("yaml\n")]
    [example] = [each for each in examples if "\nmodel:\n" in each]
    path = tmp_path / "mine.yaml"
    path.write_text(example)
    found = load_workload(str(path), FOLDER)
    assert (found.mesh.shard, found.accumulation, found.baselines) == (8, 4, {"A100-SXM4-80GB": (0.31, 0.31)})
    assert found.mesh.sequence
    keys = set(WORKLOAD.key_names()) - {"model", "training", "parallel"}
    assert [key for key in keys if f"{key}: " not in example and f"`{key}`" not in example] == []


def test_sequence_parallelism_is_a_switch(tmp_path: Path) -> None:
    assert load_workload("llama-3-70b", FOLDER).mesh.sequence
    assert not load_workload("llama-3-70b", FOLDER, ("parallel.sequence=false",)).mesh.sequence
    path = tmp_path / "mine.yaml"
    path.write_text("preset: llama-3-70b\nparallel: {sequence: 8}\n")
    assert "sequence" in error_of(path)
