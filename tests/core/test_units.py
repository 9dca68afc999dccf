"""Sizes, rates and times between text and SI units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.core.units import (
    format_bytes,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8", 8),
        ("1K", 1024),
        ("1k", 1024),
        ("128M", 128 << 20),
        ("1KiB", 1024),
        ("1GB", 1 << 30),
        (" 2T ", 2 << 40),
        ("12 M", 12 << 20),
        ("7B", 7),
    ],
)
def test_sizes_are_binary(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["-1", "8Q", "", "0", "0K", "1.5M", "K", "1e6", "8 bytes", "1Mbit"])
def test_an_invalid_size_is_named_in_the_error(text: str) -> None:
    with pytest.raises(UsageError, match=f"size '{text}'"):
        parse_size(text)


def test_a_size_of_thousands_of_digits_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="more than 18 digits") as error:
        parse_size("1" * 5000)
    assert len(str(error.value)) < 100


@given(st.integers(1, 1 << 50))
def test_a_printed_size_reads_back_exactly(num_bytes: int) -> None:
    assert parse_size(format_size(num_bytes)) == num_bytes


def test_sizes_print_in_the_largest_exact_unit() -> None:
    assert [format_size(n) for n in (1, 1000, 1024, 1536, 1 << 20, 3 << 30, 0)] == [
        "1",
        "1000",
        "1K",
        "1536",
        "1M",
        "3G",
        "0",
    ]


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("12.5 GB/s", 12.5e9),
        ("100 Gbit/s", 12.5e9),
        ("400Gbps", 50e9),
        ("1 b/s", 0.125),
        ("3B/s", 3.0),
        ("1.5TB/s", 1.5e12),
        ("8 kbit/s", 1e3),
        ("2e-05B/s", 2e-5),
        ("1GB/S", 1e9),
        ("8Gb/S", 1e9),
        ("8 GBit/s", 1e9),
        ("1gBPS", 1e9),
        ("1e+17B/s", 1e17),
    ],
)
def test_rates_are_decimal_and_bits_are_eighths(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["12.5", "GB/s", "-1 GB/s", "12.5 GiB/s", "0 GB/s", "1 GB/min", ""])
def test_an_invalid_rate_is_named_in_the_error(text: str) -> None:
    with pytest.raises(UsageError, match=f"rate '{text}'"):
        parse_rate(text)


@given(st.floats(1e-9, 1e20))
def test_a_float_printed_as_bytes_per_second_reads_back_exactly(rate: float) -> None:
    assert parse_rate(f"{rate!r}B/s") == rate


def test_fractional_sizes_print_for_people() -> None:
    assert [format_bytes(size) for size in (8, 79.6, 700.2, 2672.8, 24000, 1 << 20, 1000 << 20, 3.5 * (1 << 40))] == [
        "8 B",
        "79.6 B",
        "700 B",
        "2.61 KiB",
        "23.4 KiB",
        "1 MiB",
        "1000 MiB",
        "3.5 TiB",
    ]


def test_rates_print_for_people() -> None:
    assert [format_rate(rate) for rate in (None, 12.5e9, 1e6, 2.5e12, 512.0, 3210.0)] == [
        "unknown",
        "12.5 GB/s",
        "1 MB/s",
        "2.5 TB/s",
        "512 B/s",
        "3.21 kB/s",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("30s", 30.0), ("2m", 120.0), ("2min", 120.0), ("1.5h", 5400.0), ("5ms", 5e-3), ("7us", 7e-6)],
)
def test_durations_without_a_unit_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["-1", "soon", "", "0", "0s", "1 day", "s"])
def test_an_invalid_duration_is_named_in_the_error(text: str) -> None:
    with pytest.raises(UsageError, match=f"duration '{text}'"):
        parse_duration(text)


@given(st.floats(1e-9, 1e9))
def test_a_float_printed_as_seconds_reads_back_exactly(seconds: float) -> None:
    assert parse_duration(f"{seconds!r}s") == seconds


def test_durations_print_for_people() -> None:
    assert [format_duration(s) for s in (8.5e-4, 0.012, 3.21, 125.0)] == ["850 us", "12 ms", "3.21 s", "2 min 5 s"]
    assert [format_duration(3600 * h) for h in (17, 47, 53, 240)] == [
        "17 h 0 min",
        "47 h 0 min",
        "2 days 5 h",
        "10 days",
    ]


@pytest.mark.parametrize("number", ["1e999", "9" * 400])
def test_infinite_rates_and_durations_are_refused(number: str) -> None:
    with pytest.raises(UsageError, match="finite"):
        parse_rate(f"{number} GB/s")
    with pytest.raises(UsageError, match="finite"):
        parse_duration(f"{number}s")
