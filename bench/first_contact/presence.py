"""Find this machine's GPUs, versions and settings in a separate program, because a call into a broken driver may hang.

`python -m bench.first_contact.presence FILE` writes a JSON document to FILE. The exit code is 0 even if the machine has
no GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.core.errors import RefusedError
from bench.probes import environment, machine, nvml, versions
from bench.transports import _cuda_device

NAME = "presence.json"


def found() -> dict[str, Any]:
    """Return a dictionary with the keys num_gpus, gpu, ways, node, versions and environment.

    `gpu`: the name of the GPU model, or "" without a GPU.
    `ways`: how many GPUs NVML, the driver's library and CuPy each find. If one of them finds no GPU, its entry is a
        text with the reason.
    """
    node = machine.facts()
    ways: dict[str, int | str] = {"nvml": nvml.count_gpus() or str(node["no_gpus_because"] or 0)}
    ways["libcuda"] = _of_driver()
    ways["cupy"], name = _of_cupy()
    names = [str(gpu["name"]) for gpu in node["gpus"]] or ([name] if name else [])
    return {
        "num_gpus": max((num for num in ways.values() if isinstance(num, int)), default=0),
        "gpu": names[0] if names else "",
        "ways": ways,
        "node": node,
        "versions": versions.versions(),
        "environment": environment.allowed(os.environ),
    }


def _of_driver() -> int | str:
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value if code == 0 else f"CUDA error {code}"


def _of_cupy() -> tuple[int | str, str]:
    try:
        cupy = _cuda_device.load_cupy()
        number = _cuda_device.count(cupy, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except RefusedError as error:
        return str(error), ""
    name = ""
    with contextlib.suppress(Exception):  # a GPU that does not answer is still a GPU
        name = _cuda_device.describe(cupy, 0).name
    return number, name


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(found(), indent=1, default=str), encoding="utf-8")
