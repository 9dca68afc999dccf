"""Turn a workload file of `linkbench select` into the sizes of a model to train."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.residual import Residual
from bench.core.step_model import LORA, Transformer, resized
from bench.rank.messages import RankRefusal

if TYPE_CHECKING:
    from bench.predict.workload import Workload

_ELEMENT_BYTES = 4  # bytes of a number of an image: float32


def model_of(case: Case) -> Transformer | Residual | None:
    """Return the model that the case's workload describes.

    Options of the case may replace some sizes of the workload's model. Return None if the case has no workload.

    Raises UsageError if the workload lacks a size or if its sizes are inconsistent. For example, the hidden size must
    be a multiple of the number of heads.
    """
    if not case.workload:
        return None
    from bench.config import paths  # most cases have no workload
    from bench.predict.workload_file import load_workload

    workload = load_workload(case.workload, paths.workloads_folder())
    if workload.model.blocks:
        return _residual(workload, case)
    model = _sizes(workload, case)
    if model.heads % model.kv_heads or model.hidden % model.heads:
        facts = {"hidden": model.hidden, "heads": model.heads, "kv_heads": model.kv_heads}
        raise UsageError.of(RankRefusal.HEADS_UNEVEN, **facts)
    if model.active_experts > model.experts or model.samples * model.tokens * model.active_experts % model.experts:
        facts = {"tokens": model.samples * model.tokens * model.active_experts, "experts": model.experts}
        raise UsageError.of(RankRefusal.ROUTING_UNEVEN, **facts)
    return model


def _residual(workload: Workload, case: Case) -> Residual:
    own, other = workload.model.residual, resized(case.resize)
    assert own is not None
    if case.trained.startswith(LORA):
        raise UsageError.of(RankRefusal.NO_ADAPTERS, train=case.trained)
    return replace(
        own,
        blocks=tuple(case.layers or number for number in own.blocks),
        channels=other.get("channels") or own.channels,
        image=other.get("image") or own.image,
        samples=case.samples or workload.batch,
        head_only=case.trained == "head",
    )


def _sizes(workload: Workload, case: Case) -> Transformer:
    own, other = workload.model, resized(case.resize)
    needed = {name: other.get(name) or getattr(own, name) for name in ("hidden", "feedforward", "heads", "tokens")}
    needed["layers"] = case.layers or own.layers
    missing = [name for name, size in needed.items() if size is None]
    if missing:
        raise UsageError.of(RankRefusal.WORKLOAD_WITHOUT_LAYERS, workload=workload.name, missing=missing)
    patches = max(1, needed["tokens"] - 1)
    numbers = int(workload.input_bytes or 0) // _ELEMENT_BYTES
    return Transformer(
        **needed,
        kv_heads=other.get("kv_heads") or min(own.kv_heads or needed["heads"], needed["heads"]),
        vocabulary=other.get("vocabulary") or own.vocabulary or 0,
        patch=other.get("patch") or max(1, numbers // patches),
        gated=own.gated,
        experts=other.get("experts") or own.experts,
        active_experts=other.get("active_experts") or own.active_experts,
        samples=case.samples or workload.batch,
        adapter_rank=int(case.trained.partition(":")[2] or 0),
        head_only=case.trained == "head",
    )
