"""perftest's tables: units, directions that are added up, half and whole round trips, rows that were cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.config.yaml_file import load
from bench.core import plugins
from bench.logs.foreign import ForeignRun, Line, read_all
from tests.logs.reading import codes, failure_code, located, printed, translations

READER = plugins.load("tool", "perftest").READER
FACTS: Any = load(Path(__file__).parent / "expected" / "perftest_facts.yaml").value
RULE = "-" * 87
BANNER = """{rule}
                    {title}
 Dual-port       : OFF\t\tDevice         : mlx5_7
 Number of qps   : 2\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : Ethernet
{rule}
 local address: LID 0000 QPN 0x0001 PSN 0x000002
{rule}
"""
BW = " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n"
LAT = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec] \n"
)
LATENCIES = (
    " 64      1000          1.50           9.25        1.61              1.64         0.08      2.00        9.00\n"
)


def read(text: str) -> list[ForeignRun]:
    """The runs of a text."""
    return read_all(READER(), [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)])


def table(title: str | None, header: str, rows: str) -> str:
    """The output of a client."""
    banner = BANNER.format(rule=RULE, title=title) if title else ""
    return f"{banner}{header}{rows}{RULE}\n"


def bandwidth(title: str | None, rows: str, unit: str = "Gb/sec") -> str:
    """The output of a client of a bandwidth test."""
    return table(title, BW.format(unit=unit), rows)


@pytest.mark.parametrize("fact", FACTS["bandwidths"], ids=lambda fact: fact["source"].rpartition("/")[2][:20])
def test_published_figures_become_bytes_per_second(fact: dict[str, Any]) -> None:
    rows = "".join(f" {row[0]:<7}    {row[1]:<10}       " + "            ".join(row[2:]) + "\n" for row in fact["rows"])
    (run,) = read(bandwidth(fact["title"], rows, fact["unit"]))
    assert (run.status, run.num_ranks, run.pattern) == ("ok", 2, "pingpong")
    sides = 2 if "Bidirectional" in (fact["title"] or "") else 1
    assert [row.payload_bytes for row in run.rows] == [row[0] for row in fact["rows"]]
    for row, (size, iterations, _, average, rate) in zip(run.rows, fact["rows"], strict=True):
        assert row.num_iterations == iterations and row.algbw_bytes_per_s is not None
        printed = float(average) * (2**20 if fact["unit"] == "MB/sec" else 1e9 / 8)
        assert row.algbw_bytes_per_s == pytest.approx(printed / sides)
        # Messages per second times the size; only two or three digits were printed.
        assert row.algbw_bytes_per_s * sides == pytest.approx(float(rate) * 1e6 * size, rel=0.03)
        assert row.time_s == pytest.approx(size / row.algbw_bytes_per_s)


@pytest.mark.parametrize("fact", FACTS["latencies"], ids=lambda fact: fact["title"])
def test_published_latencies_become_seconds(fact: dict[str, Any]) -> None:
    noise = "Conflicting CPU frequency values detected: 2400.000000 != 1873.463000. CPU Frequency is not max.\n"
    (run,) = read(table(fact["title"], LAT, noise + " " + "  ".join(map(str, fact["row"])) + "\n"))
    (row,) = run.rows
    size, count, least, largest, _, mean, *_ = fact["row"]
    assert (row.payload_bytes, row.num_iterations, run.status) == (size, count, "ok")
    printed = [float(word) * 1e-6 for word in (mean, least, largest)]
    assert [row.time_s, row.min_s, row.max_s] == pytest.approx(printed)


def test_mb_are_mib() -> None:
    row = " 65536      5000             1000.00            1000.00                  0.016000\n"
    old, new = (read(bandwidth("RDMA_Write BW Test", row, unit))[0] for unit in ("MB/sec", "MiB/sec"))
    assert old.rows == new.rows and old.rows[0].algbw_bytes_per_s == 1000 * 2**20
    assert "mb-is-mib" in translations(old)


def test_a_two_way_bandwidth_is_halved() -> None:
    (run,) = read(bandwidth("Send Bidirectional BW Test", " 65536  5000  380.00  380.00  0.72\n"))
    assert run.rows[0].algbw_bytes_per_s == pytest.approx(190e9 / 8)
    assert "both-directions" in translations(run)


def test_latencies_are_means_with_their_least_and_largest() -> None:
    (run,) = read(table("Send Latency Test", LAT, LATENCIES))
    (row,) = run.rows
    assert (row.payload_bytes, row.num_iterations, run.pattern) == (64, 1000, "pingpong")
    assert (row.time_s, row.min_s, row.max_s) == pytest.approx((1.64e-6, 1.5e-6, 9.25e-6))
    settings = dict(run.settings)
    assert (settings["device"], settings["link type"], settings["mode"]) == ("mlx5_7", "Ethernet", "isolated")
    assert settings["number of qps"] == "2"


def test_a_read_is_no_half_of_a_ping_pong() -> None:
    (run,) = read(table("RDMA_Read Latency Test", LAT, LATENCIES))
    assert run.pattern is None and "there-and-back" in translations(run)


def test_a_timed_latency_has_a_mean_only_and_an_old_one_a_median_only() -> None:
    timed = " #bytes        #iterations       t_avg[usec]    tps average\n"
    (run,) = read(table("RDMA_Write Latency Test", timed, " 8       100000            2.25        444444.44\n"))
    assert run.rows[0].time_s == pytest.approx(2.25e-6) and run.rows[0].min_s is None
    old = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n"
    (run,) = read(table("Send Latency Test", old, " 8     1000          1.10        5.00      1.20\n"))
    assert run.rows[0].time_s == pytest.approx(1.2e-6) and translations(run) == ["median"]


def test_an_unsteady_clock_is_remarked_once_and_shifts_nothing() -> None:
    noise = "Conflicting CPU frequency values detected: 2000.000000 != 3100.000000. CPU Frequency is not max.\n"
    rows = f"{noise} 2   5000   0.11   0.10   6.250000\n{noise} 4   5000   0.21   0.20   6.250000\n"
    (run,) = read(bandwidth("RDMA_Write BW Test", rows))
    assert [row.payload_bytes for row in run.rows] == [2, 4] and run.status == "ok"
    assert located(run) == [(12, "unsteady-clock")]


def test_a_run_begins_at_its_name() -> None:
    text = bandwidth("RDMA_Write BW Test", " 8 5000 1.00 1.00 15.6\n") + table("Send Latency Test", LAT, LATENCIES)
    first, second = read(text)
    assert (first.line, second.line) == (2, 15) and (len(first.rows), len(second.rows)) == (1, 1)
    assert [row.line for row in second.rows] == [25]


def test_both_ends_may_print_into_one_log() -> None:
    """A loop through one NIC, started in the background: two banners, two lines of titles, one table."""
    banner, header = BANNER.format(rule=RULE, title="RDMA_Write BW Test"), BW.format(unit="Gb/sec")
    rows = " 4096    1000    0.00    80.00    2.441406\n 8192    1000    0.00    96.00    1.464844\n"
    (run,) = read(banner + banner + header + header + rows + RULE)
    assert (run.status, [row.algbw_bytes_per_s for row in run.rows]) == ("ok", [10e9, 12e9])
    assert codes(run) == ["title-twice", "title-twice"]
    one, other = read(banner + BANNER.format(rule=RULE, title="Send BW Test") + header + rows)
    assert (one.status, one.rows, other.status, len(other.rows)) == ("truncated", (), "ok", 2)


def test_the_text_behind_a_table_is_no_part_of_it() -> None:
    log = bandwidth("RDMA_Write BW Test", " 65536    1000    0.00    80.00    0.152588\n")
    (run,) = read(f"{log}\nThe inventory:\n[all]\nnode7\n...\n")
    assert (run.status, len(run.rows), run.remarks) == ("ok", 1, ())
    (fenced,) = read(f"```\n{log}```\nWithout the module it says\n```\nCouldn't allocate MR\n```\n")
    assert (fenced.status, len(fenced.rows)) == ("ok", 1)
    open_end = log.removesuffix(RULE + "\n")
    assert read(f"{open_end}...\n")[0].status == "truncated"
    assert read(f"{log}Couldn't allocate MR\n")[0].status == "failed"


@pytest.mark.parametrize(
    ("rows", "status", "count", "code", "words"),
    [
        ("", "truncated", 0, "no-rows", ""),
        (" 8 5000 1.00 1.00 15.625000\n 16 5000 2.0", "truncated", 1, "row-unreadable", "16 5000 2.0"),
        (" 8 5000 1.00 1.00 15.625000\n...\n", "truncated", 1, "lines-left-out", ""),
        (" 8 5000 1.00 0.00 15.625000\n", "failed", 0, "no-time", ""),
        (" 8 5000 1.00 -3.25 15.625000\n", "failed", 0, "no-time", ""),
        (" 8 5000 1.00 nan 15.625000\n", "failed", 0, "no-time", ""),
        (
            " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n",
            "failed",
            0,
            "tool-error",
            "Failed status 12",
        ),
    ],
)
def test_damage_is_a_remark(rows: str, status: str, count: int, code: str, words: str) -> None:
    (run,) = read(bandwidth("RDMA_Write BW Test", rows))
    assert (run.status, len(run.rows)) == (status, count)
    assert failure_code(run) == code and words in printed(run) and code in codes(run)


def test_a_table_of_two_ports_and_one_of_service_levels_keep_their_columns() -> None:
    ports = BW.format(unit="Gb/sec").rstrip() + "   BW Port1[Gb/sec]   MsgRate Port1[Mpps]   BW Port2[Gb/sec]\n"
    (run,) = read(table("RDMA_Write BW Test", ports, " 8 5000 9.00 8.00 125.0 4.00 62.5 4.00\n"))
    assert run.rows[0].algbw_bytes_per_s == 1e9
    levels = " #bytes    #sl      #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    (run,) = read(table("RDMA_Write BW Test", levels, " 8 3 5000 9.00 8.00 125.000000\n"))
    assert (run.rows[0].algbw_bytes_per_s, run.rows[0].num_iterations) == (1e9, 5000)


SAMPLE = (
    bandwidth("RDMA_Write BW Test", " 8 5000 1.00 1.00 15.625000\n") + table("Send Latency Test", LAT, LATENCIES)
).splitlines()


@settings(max_examples=150)
@given(
    st.lists(st.one_of(st.sampled_from(SAMPLE), st.text(max_size=60), st.just(" 8 5000 1e999 9.99 nan")), max_size=40)
)
def test_no_lines_make_it_raise(lines: list[str]) -> None:
    for run in read_all(READER(), [Line(number, line) for number, line in enumerate(lines, start=1)]):
        assert run.status in ("ok", "failed", "truncated") and (run.failure is None) == (run.status == "ok")
        assert len(run.rows) <= len(lines) and all(row.time_s for row in run.rows)
