"""Models from the config.json of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.core.errors import UsageError
from bench.predict.messages import Refusal
from bench.predict.model_config import sizes_of
from bench.predict.workload_file import from_config, load_workload

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 16,
}


@pytest.mark.parametrize(
    ("config", "parameters", "tokens"),
    [(LLAMA, 8.030e9, 8192), (GPT2, 123.6e6, 1024), (QWEN3_MOE, 30.53e9, 8192), (VIT, 302e6, 197)],
)
def test_parameters_are_those_of_the_published_model(config: dict[str, Any], parameters: float, tokens: int) -> None:
    found = sizes_of(config, "config.json")
    assert found["parameters"] == pytest.approx(parameters, rel=2e-3)
    assert found["tokens"] == tokens


def test_a_configuration_becomes_a_workload_that_settings_change(tmp_path: Path) -> None:
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    found = from_config(path, ["training.batch=3", "model.tokens=2048", "training.compute=fp8", "training.lora=16"])
    assert (found.name, found.batch, found.model.tokens, found.strategy) == ("my-model", 3, 2048, "zero3")
    assert (found.compute, found.element, found.lora) == ("float8", "bfloat16", 16)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", Refusal.CONFIG_UNREADABLE),
        ("[]", Refusal.CONFIG_UNREADABLE),
        (json.dumps(LLAMA | {"model_type": "deepseek_v3"}), Refusal.MODEL_TYPE_UNKNOWN),
        (json.dumps({"model_type": "llama"}), Refusal.CONFIG_KEY_MISSING),
        ("{}", Refusal.CONFIG_KEY_MISSING),
        (json.dumps(LLAMA | {"num_attention_heads": 33}), Refusal.CONFIG_HEADS_UNEVEN),
        (json.dumps(LLAMA | {"num_key_value_heads": 3}), Refusal.CONFIG_HEADS_UNEVEN),
        (json.dumps(LLAMA | {"hidden_size": "wide"}), Refusal.CONFIG_KEY_INVALID),
        (json.dumps({key: value for key, value in VIT.items() if key != "patch_size"}), Refusal.CONFIG_KEY_MISSING),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        from_config(path)
    assert caught.value.code == code


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        from_config(tmp_path / "config.json")
    assert caught.value.code == Refusal.CONFIG_NOT_READ
    with pytest.raises(UsageError) as caught:
        load_workload("config.json", tmp_path)
    assert caught.value.code == Refusal.CONFIG_NO_WORKLOAD
