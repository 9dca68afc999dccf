"""Where compiled code is kept from one start to the next: below the home, else in a folder of the user's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

_OF_CUPY = "CUPY_CACHE_DIR"


def folders() -> tuple[Path, ...]:
    """The cache of this suite where there is a home, and what stands in for it where that can not be written."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or _home("~/.cache"))
    instead = Path(tempfile.gettempdir()) / f"linkbench-{os.getuid()}"
    return (home / "linkbench", instead) if home.is_absolute() else (instead,)


def is_ours(folder: Path) -> bool:
    """Can it be written, by us alone? Somebody else's folder could hold somebody else's code. Makes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022
    except OSError:
        return False
    return mine and os.access(folder, os.W_OK)


def for_cupy(environ: MutableMapping[str, str]) -> None:
    """Before CuPy is imported, which fails where it can not make its folder: another one then, unless one is named."""
    if _OF_CUPY in environ:
        return
    usual = Path(_home("~/.cupy/kernel_cache"))
    # In a home that we may not look into nothing exists: `Path.exists` would raise there.
    there = next(folder for folder in (usual, *usual.parents) if os.path.exists(folder))  # noqa: PTH110
    if usual.is_absolute() and there.is_dir() and os.access(there, os.W_OK):
        return
    for folder in folders():
        if is_ours(folder) and is_ours(folder / "cupy"):
            environ[_OF_CUPY] = str(folder / "cupy")
            return


def _home(name: str) -> str:
    """Where nobody knows the home (a user without a name), the name as it is: pathlib would raise."""
    return os.path.expanduser(name)  # noqa: PTH111
