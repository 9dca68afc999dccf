"""Where compiled code is kept from one start to the next: below the home, else in a folder of the user's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

_OF_CUPY = "CUPY_CACHE_DIR"


def folders() -> tuple[Path, Path]:
    """The cache of this suite, and what stands in for it where the home can not be written."""
    home = os.environ.get("XDG_CACHE_HOME") or _home("~/.cache")
    return Path(home) / "linkbench", Path(tempfile.gettempdir()) / f"linkbench-{os.getuid()}"


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
    there = next(folder for folder in (usual, *usual.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return
    for folder in folders():
        if is_ours(folder) and is_ours(folder / "cupy"):
            environ[_OF_CUPY] = str(folder / "cupy")
            return


def _home(name: str) -> str:
    """Where nobody knows the home (a user without a name), the name as it is: pathlib would raise."""
    return os.path.expanduser(name)  # noqa: PTH111
