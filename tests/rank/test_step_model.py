"""The model that a workload file describes, and what does not fit the ranks of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.core.case_argv import from_argv
from bench.core.errors import EXIT_USAGE, UsageError
from bench.core.step_model import Transformer
from bench.core.world import World
from bench.predict.layout import layout
from bench.predict.workload_file import load_workload
from bench.rank.messages import RankRefusal, RankSkip
from bench.rank.step_model import model_of
from bench.rank.training_step import plan_of, refused
from bench.transports.gloo import Gloo, GlooRefusal

TIMED = ("--timed", "layers=8,forward=1ms,backward=1ms,bytes=4K")
WORDS = ("--workload", "llama-3-8b")


def planned(*options: str, num_ranks: int = 4) -> object:
    return plan_of(from_argv(["step", *options]), World(1, num_ranks))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit-l-306m", 306e6), ("llama-3-8b", 8.03e9), ("mixtral-8x7b", 46.7e9), ("resnet-50", 25_557_032)],
)
def test_a_model_has_the_parameters_of_its_workload(name: str, parameters: float) -> None:
    model = model_of(from_argv(["step", "--workload", name]))
    assert model is not None and model.parameters == pytest.approx(parameters, rel=0.01)


def test_options_replace_sizes_of_the_workload() -> None:
    options = ("--layers", "2", "--samples", "3", "--resize", "hidden=64,heads=4,kv_heads=2,tokens=16")
    model = model_of(from_argv(["step", *WORDS, *options]))
    assert isinstance(model, Transformer)
    assert (model.layers, model.samples, model.hidden, model.heads, model.kv_heads, model.tokens) == (
        2,
        3,
        64,
        4,
        2,
        16,
    )
    assert (model.gated, model.vocabulary, model.feedforward) == (True, 128256, 14336)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), RankRefusal.NO_LAYERS),
        ((*TIMED, *WORDS), RankRefusal.NO_LAYERS),
        ((*TIMED, "--layers", "2"), RankRefusal.ONLY_WORKLOAD),
        ((*TIMED, "--inject", "rank=4,segment=data,delay=1ms"), RankRefusal.NO_SUCH_RANK),
        ((*TIMED, "--strategy", "hsdp", "--mesh", "3x2"), RankRefusal.MESH_WORLD),
        (("--timed", "layers=8,forward=1ms,backward=1ms,bytes=8", "--strategy", "tensor"), RankRefusal.TENSORS_UNEVEN),
        ((*TIMED, "--strategy", "pipeline", "--micro-batches", "6"), RankRefusal.MICRO_BATCHES_UNEVEN),
        (
            ("--timed", "layers=2,forward=1ms,backward=1ms,bytes=8", "--strategy", "pipeline"),
            RankRefusal.TOO_FEW_LAYERS,
        ),
        ((*WORDS, "--strategy", "expert"), RankRefusal.NO_EXPERTS),
        ((*WORDS, "--inject", "rank=1,segment=backward,delay=1ms"), RankRefusal.DELAY_INSIDE_MODEL),
        ((*WORDS, "--resize", "hidden=66,heads=4"), RankRefusal.HEADS_UNEVEN),
        ((*WORDS, "--resize", "hidden=64,heads=8,kv_heads=2", "--strategy", "tensor"), RankRefusal.SIZE_UNEVEN),
        ((*WORDS, "--resize", "experts=3,tokens=16"), RankRefusal.ROUTING_UNEVEN),
        ((*TIMED, "--train", "head"), RankRefusal.ONLY_WORKLOAD),
        ((*TIMED, "--compile", "1"), RankRefusal.ONLY_WORKLOAD),
        (("--workload", "resnet-50", "--train", "lora:2"), RankRefusal.NO_ADAPTERS),
        (("--workload", "resnet-50", "--strategy", "tensor"), RankRefusal.NOT_DIVIDED),
    ],
)
def test_what_does_not_fit_is_refused(options: tuple[str, ...], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(*options)
    assert (caught.value.code, caught.value.exit_code) == (code, EXIT_USAGE)


def test_low_rank_adapters_are_those_that_select_expects() -> None:
    """`communications` exchanges rank x (rows + columns) of every matrix of a layer."""
    for name in ("llama-3-8b", "vit-l-306m"):
        model = model_of(from_argv(["step", "--workload", name, "--train", "lora:16"]))
        workload = replace(load_workload(name, Path("workloads")), lora=16, strategy="ddp")
        assert model is not None and model.trained_parameters == layout(workload, 1, 8).trained
        assert model.parameters > 10 * model.trained_parameters


def test_only_the_head_is_trained_if_asked() -> None:
    whole, head = (model_of(from_argv(["step", *WORDS, "--train", which])) for which in ("all", "head"))
    assert whole is not None and head is not None
    assert whole.trained_parameters == whole.parameters == head.parameters
    assert head.trained_parameters == 4096 * 128256 + 2 * 4096


def test_layers_that_cannot_be_compiled_skip_the_row() -> None:
    class Torch:
        @staticmethod
        def zeros(_: int) -> int:
            return 0

        @staticmethod
        def compile(_: object) -> object:
            raise RuntimeError("no compiler\nmore")

    gloo = object.__new__(Gloo)
    gloo._torch = Torch
    skip = gloo.untrainable(plan_of(from_argv(["step", *WORDS, "--layers", "1", "--compile", "1"]), World(1, 4)))
    assert skip is not None and (skip.code, skip.facts["why"]) == (GlooRefusal.NO_COMPILER, "no compiler")


def test_a_workload_without_layers_names_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "flat.yaml"
    file.write_text("description: d\nsources: [s]\nmodel: {parameters: 25M, flops: 12e9}\ntraining: {batch: 8}\n")
    with pytest.raises(UsageError) as caught:
        planned("--workload", str(file))
    assert caught.value.code == RankRefusal.WORKLOAD_WITHOUT_LAYERS
    assert caught.value.facts["missing"] == ["hidden", "feedforward", "heads", "tokens", "layers"]


@pytest.mark.parametrize("options", [("--bucket", "1M"), ("--mesh", "2x2"), ("--pipeline", "gpipe")])
def test_an_option_that_a_strategy_does_not_have_skips_the_row(options: tuple[str, str]) -> None:
    skip = refused(from_argv(["step", *TIMED, "--strategy", "fsdp2", *options]))
    assert skip is not None and skip.code == RankSkip.STRATEGY_IGNORES
    assert skip.facts["option"] == options[0]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((*TIMED, "--hook", "powersgd:2"), GlooRefusal.NO_MATRICES),
        ((*WORDS, "--layers", "1", "--hook", "powersgd:2"), GlooRefusal.SEVERAL_BUCKETS),
        ((*WORDS, "--layers", "1", "--hook", "powersgd:2", "--bucket", "25M"), GlooRefusal.SEVERAL_BUCKETS),
        ((*WORDS, "--layers", "1", "--hook", "powersgd:2", "--bucket", "16G"), None),
        ((*WORDS, "--layers", "1", "--hook", "bf16"), None),
        ((*TIMED, "--hook", "int8"), None),
    ],
)
def test_gloo_refuses_powersgd_where_its_exchanges_would_mismatch(options: tuple[str, ...], code: str | None) -> None:
    plan = plan_of(from_argv(["step", *options]), World(1, 4))
    skip = Gloo.untrainable(object.__new__(Gloo), plan)
    assert (skip and skip.code) == code
