"""Find the files that commands read, and check which transports can run here. This module imports no large library."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import bench
from bench.core.errors import UsageError
from bench.core.traits import traits
from bench.probes import nvml

PACKAGE_ROOT = Path(bench.__file__).resolve().parent.parent
_PIP_NAMES = {"cupy": "cupy-cuda13x"}  # pip would have to compile the package `cupy`


def config_file(given: Path | None = None) -> Path:
    """Return the path `given`.

    If `given` is None, return bench.yaml in the working directory. If the working directory has no bench.yaml, return
    the package's bench.yaml.
    """
    if given is not None:
        return given
    return Path("bench.yaml") if Path("bench.yaml").exists() else PACKAGE_ROOT / "bench.yaml"


def scenarios_folder() -> Path:
    """Return scenarios/ in the working directory if it exists, else the package's scenarios/."""
    return Path("scenarios") if Path("scenarios").is_dir() else PACKAGE_ROOT / "scenarios"


def rules_folder() -> Path:
    """Return rules/ in the working directory if it exists, else the package's rules/."""
    return Path("rules") if Path("rules").is_dir() else PACKAGE_ROOT / "rules"


def workloads_folder() -> Path:
    """Return workloads/ in the working directory if it exists, else the package's workloads/."""
    return Path("workloads") if Path("workloads").is_dir() else PACKAGE_ROOT / "workloads"


def lacks(transport: str) -> str | None:
    """Return why a transport cannot run on this machine, or None if it can.

    This function only looks for the transport's Python packages and imports none of them.
    """
    if traits(transport).on_gpu and nvml.count_gpus() == 0:  # checked first: without a GPU, packages would not help
        return "no NVIDIA GPU was found"
    missing = [name for name in traits(transport).requires if not _installed(name)]
    if not missing:
        return None
    packages = " ".join(_PIP_NAMES.get(name, name.replace("_", "-")) for name in missing)
    cuda_12 = ", or cupy-cuda12x if the driver is for CUDA 12" if "cupy" in missing else ""
    return f"Python package {', '.join(missing)} is not installed: pip install {packages}{cuda_12}"


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError) as error:
        raise UsageError(f"Python package {package} is broken on this machine ({error}): reinstall it") from None
