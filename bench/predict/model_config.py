"""Read the sizes of a model from the `config.json` that Hugging Face stores with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.core.errors import UsageError
from bench.predict.messages import Refusal

_PLAIN = ("gpt2", "gpt_neox", "starcoder2", "vit")  # two feed-forward matrices
_GATED = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "granite",
    "olmo2",
    "phi3",
    "smollm3",
    "gpt_oss",
)
_MOST_TOKENS = 8192  # tokens of a sample, if the configuration allows longer samples
# linkbench's name -> the names in configurations; the first name that exists counts.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "feedforward": ("moe_intermediate_size", "intermediate_size", "n_inner"),
    "vocabulary": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts"),
    "active_experts": ("num_experts_per_tok",),
    "tokens": ("max_position_embeddings", "n_positions"),
}
_NEEDED = ("layers", "hidden", "heads")


def sizes_of(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the keys of a workload's section `model`. `path` names the configuration in errors.

    Raises UsageError if ModelSizes cannot describe the layers of the model. Raises UsageError if a size is missing or
    is not a positive integer. Raises UsageError if the number of heads does not divide the hidden size.
    """
    kind = config.get("model_type")
    if kind is None:
        raise UsageError.of(Refusal.CONFIG_KEY_MISSING, path=path, key="model_type")
    if kind not in _PLAIN + _GATED:
        raise UsageError.of(Refusal.MODEL_TYPE_UNKNOWN, path=path, kind=str(kind), known=sorted(_PLAIN + _GATED))
    found = {name: _size(config, keys, path) for name, keys in _NAMES.items()}
    missing = [_NAMES[name][0] for name in _NEEDED if found[name] is None]
    if missing:
        raise UsageError.of(Refusal.CONFIG_KEY_MISSING, path=path, key=missing[0])
    if found["head_size"] is None:
        _check_multiple(found, "hidden", "heads", path)
    if found["kv_heads"] is not None:
        _check_multiple(found, "heads", "kv_heads", path)
    sizes: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    sizes["gated"] = kind in _GATED
    sizes.setdefault("feedforward", 4 * sizes["hidden"])
    sizes.setdefault("kv_heads", sizes["heads"])
    if kind == "vit":
        sizes["tokens"] = (_needed(config, "image_size", path) // _needed(config, "patch_size", path)) ** 2 + 1
        sizes.pop("vocabulary", None)
    sizes["tokens"] = min(sizes.get("tokens", _MOST_TOKENS), _MOST_TOKENS)
    if sizes.get("head_size", 0) * sizes["heads"] == sizes["hidden"]:
        del sizes["head_size"]
    tied = bool(config.get("tie_word_embeddings", kind in ("gpt2", "gemma", "gemma2")))
    sizes["parameters"] = float(_parameters(sizes, tied))
    return sizes


def _parameters(sizes: Mapping[str, Any], tied: bool) -> int:
    """Return the number of parameters of all matrices and the embedding.

    If the output layer is a separate matrix, its parameters are included.
    """
    hidden, head = sizes["hidden"], sizes.get("head_size", sizes["hidden"] // sizes["heads"])
    attention = hidden * head * (2 * sizes["heads"] + 2 * sizes["kv_heads"])
    block = (3 if sizes["gated"] else 2) * hidden * sizes["feedforward"]
    tables = (1 if tied else 2) * hidden * sizes.get("vocabulary", 0)
    return int(sizes["layers"] * (attention + sizes.get("experts", 1) * block) + tables)


def _check_multiple(found: Mapping[str, int | None], whole: str, part: str, path: str) -> None:
    num_whole, num_part = found[whole] or 0, found[part] or 1
    if num_whole % num_part:
        names = {"whole": _NAMES[whole][0], "part": _NAMES[part][0]}
        raise UsageError.of(Refusal.CONFIG_HEADS_UNEVEN, path=path, **names, num_whole=num_whole, num_part=num_part)


def _size(config: Mapping[str, Any], keys: tuple[str, ...], path: str) -> int | None:
    for key in keys:
        if config.get(key) is not None:
            return _needed(config, key, path)
    return None


def _needed(config: Mapping[str, Any], key: str, path: str) -> int:
    value = config.get(key)
    if value is None:
        raise UsageError.of(Refusal.CONFIG_KEY_MISSING, path=path, key=key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError.of(Refusal.CONFIG_KEY_INVALID, path=path, key=key, value=str(value))
    return value
