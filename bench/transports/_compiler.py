"""Compile a timing loop at its first use, and keep the compiled loop in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from bench.transports import _cache

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O2", "-shared", "-fPIC")
_COMPILE_MOST_S = 60.0


def build(source: Path) -> tuple[Path | None, str]:
    """Return the library that is compiled from a C file, and the name of the compiler.

    Return None and a reason if the file cannot be compiled. Each C file is compiled only once.
    """
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return None, "no C compiler (cc, gcc, clang or $CC) was found"
    key = hashlib.sha256(b"\0".join([source.read_bytes(), compiler.encode(), " ".join(_FLAGS).encode()])).hexdigest()
    name = f"{source.stem.lstrip('_')}-{platform.machine()}-{key[:16]}.so"
    failure: Exception | None = None
    for folder in _cache.folders():
        if not _cache.is_ours(folder):
            continue
        path = folder / name
        if path.exists():
            return path, compiler
        try:
            return _compile(compiler, source, path), compiler
        except (OSError, subprocess.CalledProcessError) as error:
            # for a full or read-only disk, which the compiler reports, too, try the next folder
            failure = failure or error
        except subprocess.SubprocessError as error:
            return None, f"{compiler} could not compile it ({_message(error)})"
    if failure is not None:
        return None, f"{compiler} could not compile it ({_message(failure)})"
    return None, "no cache folder is writable: set XDG_CACHE_HOME to one that is"


def _compile(compiler: str, source: Path, path: Path) -> Path:
    """Compile into a temporary file, then rename the file, because other ranks may compile at the same time."""
    partial = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    try:
        subprocess.run(
            [*compiler.split(), *_FLAGS, "-o", str(partial), str(source)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_COMPILE_MOST_S,
            stdin=subprocess.DEVNULL,
        )
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return path


def _message(error: Exception) -> str:
    message = getattr(error, "stderr", None) or str(error)
    return str(message).strip().splitlines()[0]
