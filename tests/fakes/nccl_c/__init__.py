"""Libraries in C that stand for NCCL and the CUDA runtime, or for RCCL and HIP, where no GPU is.

folder = libraries(tmp_path)            # compiles them; put the folder into LD_LIBRARY_PATH
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_HERE = Path(__file__).parent
_NAMES = {False: ("libcudart.so.13", "libnccl.so.2"), True: ("libamdhip64.so.6", "librccl.so.1")}


def libraries(folder: Path, *, hip: bool = False) -> Path:
    """Compile both libraries into a folder, with every warning an error. Returns the folder."""
    runtime, nccl = _NAMES[hip]
    words = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *(["-DHIP"] if hip else [])]
    _compile([*words, "-o", str(folder / runtime), str(_HERE / "runtime.c"), "-lpthread"])
    link = [f"-L{folder}", f"-l:{runtime}", "-Wl,-rpath,$ORIGIN", "-lrt"]
    _compile([*words, "-o", str(folder / nccl), str(_HERE / "nccl.c"), *link])
    return folder


def _compile(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
