"""The base class of a model's layers, with mixed precision and recomputation in the backward pass."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def layer_class(torch: Any) -> Any:
    """Return the base class of layers. The method `computed` of a subclass returns the values for the next layer."""

    class BaseLayer(torch.nn.Module):  # type: ignore[misc]
        """Calls `computed` with the element type `autocast`.

        With `recompute`, the backward pass calls `computed` again.
        """

        def __init__(self, autocast: str, recompute: bool) -> None:
            super().__init__()
            self._type = None if autocast == "none" else getattr(torch, autocast)
            self._recompute = recompute

        def forward(self, values: Any) -> Any:
            if self._recompute:
                return torch.utils.checkpoint.checkpoint(self._cast, values, use_reentrant=False)
            return self._cast(values)

        def _cast(self, values: Any) -> Any:
            with torch.autocast(values.device.type, self._type or torch.bfloat16, enabled=self._type is not None):
                return self.computed(values)

    return BaseLayer
