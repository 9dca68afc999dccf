"""cupy.cuda.driver on the host: the function that the suite calls."""

from __future__ import annotations

import os


def occupancyMaxActiveBlocksPerMultiprocessor(func: int, blockSize: int, dynamicSMemSize: int) -> int:
    """FAKE_CUDA_BLOCKS blocks of the copy kernel."""
    assert func == 1 and blockSize == 512 and dynamicSMemSize == 0
    return int(os.environ.get("FAKE_CUDA_BLOCKS", "4"))
