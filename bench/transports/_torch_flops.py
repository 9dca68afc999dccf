"""Let torch count the operations of a training step, to check the formula that uses only the model's sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def counted_flops(step: Callable[[], Any]) -> int:
    """Run a step, and return the number of its floating-point operations in the forward and backward pass.

    Matrix products, convolutions and attention are counted. Attention counts in full, even if a mask excludes some
    positions. Elementwise operations are not counted. The backward pass of attention counts as five products, because
    it computes the scores again.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False, custom_mapping=_attention_on_host()) as counter:
        step()
    return int(counter.get_total_flops())


def _attention_on_host() -> dict[Any, Callable[..., int]]:
    """Return functions that count the floating-point operations of attention if it runs on the CPU.

    The counter of torch lacks such functions. The functions use torch's own formulas.
    """
    import torch
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    def forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    def backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_backward_flop_count(gradient, query, key, value))

    name = "_scaled_dot_product_flash_attention_for_cpu"
    known: dict[str, Any] = {name: forward, f"{name}_backward": backward}
    return {getattr(torch.ops.aten, own): flop for own, flop in known.items() if hasattr(torch.ops.aten, own)}
