"""Record a profiled launch by torch's profiler, or by NVTX ranges for nsys.

Only profiled launches import this module.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from bench.transports import _torch


class TorchProfile:
    """A recording by torch's profiler. The trace includes the sizes of collectives.

    The profiler writes one file for each rank.
    """

    def __init__(self, file: Path) -> None:
        """Start to record. Raises NotInstalledError if torch is not installed."""
        self._profiler = _torch.load_torch().profiler
        self._file = file
        self._recording = self._profiler.profile(record_shapes=True)
        self._recording.start()

    def range(self, name: str) -> AbstractContextManager[Any]:
        """Return a context for one range of the trace."""
        found: AbstractContextManager[Any] = self._profiler.record_function(name)
        return found

    def close(self) -> None:
        """Stop recording and write the trace."""
        self._recording.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._recording.export_chrome_trace(str(self._file))


class NvtxRanges:
    """Ranges for nsys. The package nvtx marks the ranges.

    If nvtx is missing, torch marks the ranges on hosts with a GPU. If nvtx is missing and there is no GPU, no ranges
    are marked.
    """

    def __init__(self) -> None:
        """Find the library that marks ranges."""
        self._range: Any = nullcontext
        try:
            self._range = importlib.import_module("nvtx").annotate
        except ImportError:
            cuda = getattr(_torch.load_torch(), "cuda", None)
            if cuda is not None and cuda.is_available():
                self._range = cuda.nvtx.range

    def range(self, name: str) -> AbstractContextManager[Any]:
        """Return a context for one range."""
        found: AbstractContextManager[Any] = self._range(name)
        return found

    def close(self) -> None:
        """Do nothing, because nsys itself writes the trace."""
