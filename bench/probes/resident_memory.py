"""Read the memory of this process from /proc."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_NOW = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)
_RESET_PEAK = "5"  # proc(5), clear_refs: the peak restarts at the memory that is resident now


def begin_peak(process: Path = Path("/proc/self")) -> int | None:
    """Reset the peak. Return the bytes that are resident now, or None if /proc does not report them."""
    with suppress(OSError):  # without permission, the peak of the whole process remains, which is not smaller
        (process / "clear_refs").write_text(_RESET_PEAK)
    return _bytes(process, _NOW)


def peak_bytes(process: Path = Path("/proc/self")) -> int | None:
    """Return the largest number of resident bytes since `begin_peak`, or None if /proc does not report it."""
    return _bytes(process, _PEAK)


def _bytes(process: Path, line: re.Pattern[str]) -> int | None:
    try:
        found = line.search((process / "status").read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return None if found is None else int(found[1]) << 10
