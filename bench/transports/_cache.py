"""Find the folder that keeps compiled code between runs.

If possible, the folder for compiled code is in the home folder. If the home folder cannot be used, a private folder in
the temporary folder takes its place.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

_OF_CUPY = "CUPY_CACHE_DIR"


def folders() -> tuple[Path, ...]:
    """Return the cache folders to try.

    If the user has a home folder, the first cache folder is in the home folder. The last one is in the temporary
    folder.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or _home("~/.cache"))
    instead = Path(tempfile.gettempdir()) / f"linkbench-{os.getuid()}"
    return (home / "linkbench", instead) if home.is_absolute() else (instead,)


def is_ours(folder: Path) -> bool:
    """Create a folder if necessary, and return whether this user, and no other user, can write to the folder.

    Without this check, other users could replace the compiled code in the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022
    except OSError:
        return False
    return mine and os.access(folder, os.W_OK)


def for_cupy(environ: MutableMapping[str, str]) -> None:
    """Set CuPy's cache folder if the default folder is not writable.

    Call this function before CuPy is imported. If the cache folder is not writable, the import of CuPy fails.
    """
    if _OF_CUPY in environ:
        return
    usual = Path(_home("~/.cupy/kernel_cache"))
    # `Path.exists` raises an error in a home folder that this user may not read.
    there = next(folder for folder in (usual, *usual.parents) if os.path.exists(folder))  # noqa: PTH110
    if usual.is_absolute() and there.is_dir() and os.access(there, os.W_OK):
        return
    for folder in folders():
        if is_ours(folder) and is_ours(folder / "cupy"):
            environ[_OF_CUPY] = str(folder / "cupy")
            return


def _home(name: str) -> str:
    """Expand `~`. If the user has no home folder, return the name unchanged, although pathlib would raise an error."""
    return os.path.expanduser(name)  # noqa: PTH111
