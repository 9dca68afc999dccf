"""Convert sizes, rates and times between text and SI base units.

Sizes that people type are binary (`1K` = 1024 bytes, as in nccl-tests). Rates are decimal (`1 GB/s` = 1e9 bytes/s, `1
Gbit/s` = 1e9 bits/s). The code uses only bytes, seconds and bytes per second.
"""

from __future__ import annotations

import math
import re

from bench.core.errors import UsageError

_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_MOST_DIGITS = 18  # of a size; no memory holds 10^18 bytes
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"  # also in Python's float format: 1e-05
_RATE = re.compile(_NUMBER + r"\s*([KMGT]?)(B/s|bit/s|bps|b/s|Bps)", re.IGNORECASE)
_DECIMAL = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_DURATION = re.compile(_NUMBER + r"\s*(us|ms|s|m|min|h)?")
_SECONDS = {None: 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_size(text: str) -> int:
    """Parse a size, such as `8`, `1K`, `128M`, `1KiB`, `1GB` (all binary).

    Raises UsageError for other text and for 0.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"size {text!r} is not a number of bytes, such as 8, 1K, 128M or 1GiB")
    num_bytes = int(match[1][:_MOST_DIGITS]) * _BINARY[match[2].upper()]
    if len(match[1]) > _MOST_DIGITS:
        raise UsageError(f"size {text[:_MOST_DIGITS]}... has more than {_MOST_DIGITS} digits")
    if num_bytes == 0:
        raise UsageError(f"size {text!r} is zero: give at least 1 byte")
    return num_bytes


def format_size(num_bytes: int) -> str:
    """Return the shortest text from which `parse_size` gets exactly this size: 1048576 -> '1M', 1000 -> '1000'."""
    for unit in ("T", "G", "M", "K"):
        if num_bytes and num_bytes % _BINARY[unit] == 0:
            return f"{num_bytes // _BINARY[unit]}{unit}"
    return str(num_bytes)


def format_bytes(num_bytes: float) -> str:
    """Return text for people with three significant digits, such as `8 B`, `2.61 KiB`, `64 MiB`."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            value = num_bytes / factor
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{num_bytes:.0f} B" if num_bytes >= 100 else f"{num_bytes:.3g} B"


def parse_rate(text: str) -> float:
    """Parse a rate such as `12.5 GB/s`, `100 Gbit/s`, `400Gbps` into bytes per second. Raises UsageError otherwise."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"rate {text!r} is not valid: write it as '12.5 GB/s' or '100 Gbit/s'")
    is_bytes = match[3].upper() in ("B/S", "BPS") and match[3].startswith("B")  # b is bits, B is bytes
    rate = float(match[1]) * _DECIMAL[match[2].upper()] / (1 if is_bytes else 8)
    if rate <= 0 or not math.isfinite(rate):
        raise UsageError(f"rate {text!r} must be {'above zero' if rate <= 0 else 'a finite number'}")
    return rate


def format_rate(bytes_per_s: float | None) -> str:
    """Return text for people with three significant digits, such as `12.5 GB/s`, or `unknown`."""
    if bytes_per_s is None:
        return "unknown"
    for unit, factor in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:.3g} {unit}"
    return f"{bytes_per_s:.3g} B/s"


def parse_duration(text: str) -> float:
    """Parse a duration such as `90`, `30s`, `2m`, `1.5h`, `5ms` into seconds.

    Raises UsageError for other text and for 0.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"duration {text!r} is not valid: write it as 30s, 2m or 1h")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds <= 0 or not math.isfinite(seconds):
        raise UsageError(f"duration {text!r} must be {'above zero' if seconds <= 0 else 'a finite number'}")
    return seconds


def option_duration(option: str, text: str) -> float:
    """Parse the duration that was typed for an option. The UsageError names the option."""
    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def format_count(number: float) -> str:
    """Return a count as text for people: `602,112`, `48.8M`, `100B`, `15T`. Suffixes are decimal."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:,.0f}"


def format_duration(seconds: float) -> str:
    """Return text for people, such as `850 us`, `12.0 ms`, `3.2 s`, `2 min 5 s`, `17 h 3 min`, `10 days`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    days, hours = divmod(int(seconds // 3600), 24)
    if days >= 2:
        return f"{days} days {hours} h" if hours else f"{days} days"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
