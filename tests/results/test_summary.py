"""Records become summaries: known figures, flags, and no figure where there must be none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from bench.core.codes import Coded
from bench.core.links import Bound, Floor, FloorKind
from bench.core.record import Failure, Flag, Header, Record, Samples, Skip, StarvedRank
from bench.results import notes, summary
from bench.results.messages import NoteCode

Make = Callable[..., Any]
HARD = Bound(10e9, "NIC", "hard", "every byte crosses it", "a data sheet")
LOOSE = Bound(300e9, "NVLink", "hard", "every byte crosses it", "a data sheet")
REFERENCE = Bound(5e9, "memcpy", "reference", "measured at start", "this run")


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> list[Bound]:
    """The bounds that every record gets, tightest first: fill the list. No floor."""
    given: list[Bound] = []
    monkeypatch.setattr(summary, "bounds_of", lambda header, record: tuple(given))
    monkeypatch.setattr(summary, "floor_of", lambda header, record: Floor(3e-6, "2 messages", FloorKind.LINKS))
    return given


def steady(num: int, seconds: float = 1e-3) -> tuple[float, ...]:
    """Samples of a known median without order in them."""
    return tuple(seconds * (1 + 0.001 * ((index * 7) % 11 - 5)) for index in range(num))


def test_bandwidths_follow_from_payload_median_and_bus_factor(a_header: Make, a_record: Make) -> None:
    row = summary.summarise("job", a_header(), a_record(samples=Samples((1e-3,) * 30), payload_bytes=8_000_000))
    assert row.median_s == 1e-3
    assert row.algbw_bytes_per_s == pytest.approx(8e9)
    assert row.busbw_bytes_per_s == pytest.approx(12e9)
    assert (row.ci_low_s, row.ci_high_s) == (1e-3, 1e-3)
    assert (row.num_samples, row.num_effective) == (30, 30.0)
    assert (row.floor_s, row.floor_name, row.floor_kind) == (3e-6, "2 messages", "links")
    assert row.flags == ()


def test_percentiles_wait_for_enough_samples(a_header: Make, a_record: Make) -> None:
    few = summary.summarise("job", a_header(), a_record(samples=Samples(steady(71))))
    some = summary.summarise("job", a_header(), a_record(samples=Samples(steady(72))))
    many = summary.summarise("job", a_header(), a_record(samples=Samples(steady(368))))
    assert (few.p95_s, few.p99_s) == (None, None)
    assert some.p95_s is not None and some.p99_s is None
    assert many.p99_s is not None


def test_wrong_data_show_no_bandwidth(a_header: Make, a_record: Make, bounds: list[Bound]) -> None:
    bounds.append(HARD)
    row = summary.summarise("job", a_header(), a_record(verified=False, num_wrong=7))
    assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s, row.bound_fraction) == (None, None, None)
    assert "invalid" in row.flags and row.num_wrong == 7


@pytest.mark.parametrize("seconds", [(), (1e-3, math.nan), (1e-3, 0.0), (1e-3, -1.0), (1e-3, math.inf)])
def test_samples_that_are_no_times_give_no_figure_and_a_flag(
    a_header: Make, a_record: Make, seconds: tuple[float, ...]
) -> None:
    row = summary.summarise("job", a_header(), a_record(samples=Samples(seconds)))
    assert "bad-samples" in row.flags
    figures = (row.median_s, row.ci_low_s, row.min_s, row.p95_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s)
    assert figures == (None,) * 6


def test_the_tightest_hard_bound_is_shown_before_any_reference(
    a_header: Make, a_record: Make, bounds: list[Bound]
) -> None:
    bounds += [REFERENCE, HARD, LOOSE]
    row = summary.summarise("job", a_header(), a_record(samples=Samples((1e-3,) * 30), payload_bytes=4_000_000))
    assert (row.bound_name, row.bound_kind, row.bound_bytes_per_s) == ("NIC", "hard", 10e9)
    assert row.bound_fraction == pytest.approx(0.6)


def test_a_reference_is_shown_where_nothing_is_hard_and_may_be_exceeded(
    a_header: Make, a_record: Make, bounds: list[Bound]
) -> None:
    bounds.append(REFERENCE)
    row = summary.summarise("job", a_header(), a_record(samples=Samples((1e-3,) * 30), payload_bytes=4_000_000))
    assert row.bound_name == "memcpy" and row.bound_fraction == pytest.approx(1.2)
    assert "above-bound" not in row.flags


@pytest.mark.parametrize(("rate", "flagged"), [(10.1e9, False), (10.3e9, True)])
def test_more_than_two_percent_above_a_hard_bound_is_flagged(
    a_header: Make, a_record: Make, bounds: list[Bound], rate: float, flagged: bool
) -> None:
    bounds.append(HARD)
    payload = round(rate / 1.5 * 1e-3)
    row = summary.summarise("job", a_header(), a_record(samples=Samples((1e-3,) * 30), payload_bytes=payload))
    assert ("above-bound" in row.flags) is flagged


def test_flags_say_what_the_samples_say(a_header: Make, a_record: Make) -> None:
    def flags(**overrides: Any) -> tuple[str, ...]:
        return summary.summarise("job", a_header(), a_record(**overrides)).flags

    assert flags(stop_reason="max_time") == ("not-converged",)
    assert flags(samples=Samples((1e-3,) * 5)) == ("few-samples",)
    assert "drift" in flags(samples=Samples(tuple(1e-3 + 1e-5 * index for index in range(60))))
    assert "warmup-residue" in flags(samples=Samples((3e-3,) * 10 + steady(90)))
    assert "outliers" in flags(samples=Samples((*steady(60), 1.0)))
    assert flags(modelled=True, verified=None, flags=("hot-cache",)) == ("modelled", "hot-cache")


def test_the_last_arriver_is_the_median_of_the_shortest_times(a_header: Make, a_record: Make) -> None:
    late, early = (1e-3,) * 30, (4e-3,) * 30
    record = a_record(samples=Samples(early, by_rank=(early, late, early, early)))
    assert summary.summarise("job", a_header(), record).last_arriver_s == 1e-3
    assert summary.summarise("job", a_header(), replace(record, mode="pipelined")).last_arriver_s is None
    assert summary.summarise("job", a_header(pattern="broadcast"), record).last_arriver_s is None


def test_the_slowest_rank_is_strictly_slowest_in_more_than_half(a_header: Make, a_record: Make) -> None:
    def slowest(slow: int, of: int, **header: Any) -> int | None:
        base = [1e-3] * of
        ranks = tuple(tuple(base) if rank != 2 else (2e-3,) * slow + (1e-3,) * (of - slow) for rank in range(4))
        longest = tuple(max(each) for each in zip(*ranks, strict=True))
        return summary.summarise("job", a_header(**header), a_record(samples=Samples(longest, ranks))).slowest_rank

    assert slowest(16, 30) == 2
    assert slowest(15, 30) is None
    assert slowest(0, 30) is None  # all alike: none is slowest
    assert slowest(5, 5) is None  # too few samples
    assert slowest(30, 30, case=("allreduce", "--order", "reverse")) == 1  # member 2 of 3, 2, 1, 0


def test_a_starved_rank_is_named_and_the_ranks_that_wait_for_it_are_not(a_header: Make, a_record: Make) -> None:
    waits, starved = (2e-3,) * 30, (1e-3,) * 30  # a starved rank arrives last and does not wait
    samples = Samples(waits, (waits, starved, starved))
    record = a_record(samples=samples, num_ranks=3)
    assert summary.summarise("job", a_header(), record).slowest_rank == 0
    shortage = StarvedRank(1, "h1", 0.03, 1.0, 0.98)
    record = replace(record, starved=(shortage,), flags=(Flag.STARVED_RANK,))
    found = summary.document([("job", a_header(), [record, replace(record, payload_bytes=8)])])
    assert all(row.slowest_rank is None and row.starved == (asdict(shortage),) for row in found.summaries)
    noted = {note.code: note.facts for note in notes.notes(found)}
    assert NoteCode.STRAGGLERS not in noted and NoteCode.SLOWEST_RANK not in noted
    told = noted[NoteCode.STARVED_RANK]
    assert (told["rank"], told["host"], told["num"], told["share"]) == (1, "h1", 2, pytest.approx(0.03))


def test_of_two_ranks_none_is_called_the_slowest(a_header: Make, a_record: Make) -> None:
    fast, slow = (1e-3,) * 30, (2e-3,) * 30
    record = a_record(samples=Samples(slow, (fast, slow)), num_ranks=2)
    assert summary.summarise("job", a_header(), record).slowest_rank is None


def test_a_barrier_has_a_time_and_no_rate(a_header: Make, a_record: Make) -> None:
    record = a_record(payload_bytes=0, requested_bytes=(0,), bus_factor=None)
    row = summary.summarise("job", a_header(pattern="barrier"), record)
    assert row.median_s is not None and row.algbw_bytes_per_s is None and row.busbw_bytes_per_s is None


def test_sizes_that_round_to_one_are_listed(a_header: Make, a_record: Make) -> None:
    row = summary.summarise("job", a_header(), a_record(requested_bytes=(8, 16, 32), payload_bytes=64))
    assert (row.requested_bytes, row.also_requested_bytes, row.payload_bytes) == (8, (16, 32), 64)


def test_a_foreign_mean_fills_no_median(a_header: Make, a_record: Make) -> None:
    record = a_record(reported={"mean_s": 1e-3, "p99_s": 2e-3, "busbw_bytes_per_s": 5e9})
    row = summary.summarise("job", a_header(), record)
    assert (row.median_s, row.p99_s, row.busbw_bytes_per_s) == (None, 2e-3, 5e9)
    assert row.flags == ("reported",)


def test_what_was_not_measured_has_no_summary_but_a_row(a_header: Make, a_record: Make) -> None:
    skipped = a_record(skipped=Skip.uncoded("no GPU here"), requested_bytes=(8, 16), payload_bytes=16)
    failed = a_record(failed=Failure("no progress for 60 s", 3, "host1"), mode="pipelined")
    with pytest.raises(ValueError, match="no summary"):
        summary.summarise("job", a_header(), skipped)
    runs: list[tuple[str, Header, list[Record]]] = [("job", a_header(), [a_record(), skipped, failed])]
    note = Coded.uncoded("a note")
    document = summary.document(runs, [note])
    common = {"job": "job", "pattern": "allreduce", "transport": "mpi", "group": "world"}
    assert [row.job for row in document.summaries] == ["job"]
    assert document.skipped == (
        common
        | {
            "mode": "isolated",
            "requested_bytes": 8,
            "also_requested_bytes": (16,),
            "payload_bytes": 16,
            "reason": "no GPU here",
            "code": "uncoded",
            "facts": {},
        },
    )
    assert document.failures == (
        common
        | {
            "mode": "pipelined",
            "requested_bytes": 1 << 20,
            "also_requested_bytes": (),
            "payload_bytes": 1 << 20,
            "what": "no progress for 60 s",
            "rank": 3,
            "host": "host1",
            "code": "uncoded",
            "facts": {},
        },
    )
    assert document.schema == "bench.document/1" and document.notes == (note,)
    assert list(document.headers) == ["job"]


def test_beyond_the_cap_each_ranks_mean_and_how_often_it_was_the_slowest_are_still_known(
    a_header: Make, a_record: Make
) -> None:
    by_rank = ((2e-6,) * 40, (1e-6,) * 20 + (3e-6,) * 20, (1e-6,) * 40)
    slowest = (2e-6,) * 20 + (3e-6,) * 20
    whole = a_record(num_ranks=3, samples=Samples(slowest, by_rank))
    digest = a_record(num_ranks=3, samples=Samples(slowest, rank_mean_s=(2e-6, 2e-6, 1e-6), slowest_counts=(20, 20, 0)))
    header = a_header(num_ranks=3, num_nodes=1, ranks_per_node=3)
    kept, cut = summary.summarise("a", header, whole), summary.summarise("a", header, digest)
    assert kept.slowest_counts == cut.slowest_counts == (20, 20, 0)
    assert kept.rotation == pytest.approx(1.25) and cut.rotation == pytest.approx(1.25)
    assert kept.compat["osu_mean_s"] == pytest.approx(5e-6 / 3) == cut.compat["osu_mean_s"]


def test_rotation_is_one_when_the_same_rank_is_always_the_slowest(a_header: Make, a_record: Make) -> None:
    always = a_record(num_ranks=2, samples=Samples((2e-6, 3e-6), ((2e-6, 3e-6), (1e-6, 1e-6))))
    turns = a_record(num_ranks=2, samples=Samples((2e-6, 2e-6), ((2e-6, 1e-6), (1e-6, 2e-6))))
    header = a_header(num_ranks=2, num_nodes=1, ranks_per_node=2)
    assert summary.summarise("a", header, always).rotation == pytest.approx(1.0)
    assert summary.summarise("a", header, turns).rotation == pytest.approx(4 / 3)


def test_a_one_way_time_is_as_uncertain_as_its_clocks(a_header: Make, a_record: Make) -> None:
    def row(bound_s: float | None) -> Any:
        return summary.summarise("a", header, a_record(clock_bound_s=bound_s))

    header = a_header(calibration={"sync_skew_p50_s": 1.0})
    plain, shared, near, far = row(None), row(0.0), row(5e-6), row(5e-5)  # of about 1e-4
    assert (shared.ci_low_s, shared.ci_high_s) == (plain.ci_low_s, plain.ci_high_s)
    assert near.ci_low_s == pytest.approx(plain.ci_low_s - 5e-6) and near.ci_high_s == plain.ci_high_s + 5e-6
    assert "clock-limited" not in near.flags and near.busbw_bytes_per_s == plain.busbw_bytes_per_s
    assert "clock-limited" in far.flags and (far.algbw_bytes_per_s, far.busbw_bytes_per_s) == (None, None)
    assert far.median_s == plain.median_s and far.clock_bound_s == 5e-5
    assert row(1.0).ci_low_s == 0.0
    assert ["sync-limited" in each.flags for each in (plain, shared)] == [True, False], "a receiver waits already"


@pytest.mark.parametrize(("issued", "bound"), [(0.89, False), (0.91, True)])
def test_a_row_is_launch_bound_where_the_host_issued_nearly_all_of_the_time(
    issued: float, bound: bool, a_header: Make, a_record: Make
) -> None:
    times = [1e-6] * 30
    host_s = [2e-6, 4e-6, 3e-6] * 10
    samples = Samples(times, host_s=host_s, enqueue_s=[issued * second for second in host_s])
    row = summary.summarise("a", a_header(clock="device"), a_record(samples=samples, compared="full"))
    assert row.host_median_s == 3e-6 and row.enqueue_fraction == pytest.approx(issued)
    assert ("launch-bound" in row.flags) is bound and row.compared == "full" and row.median_s == 1e-6


@pytest.mark.parametrize(
    ("mode", "calls", "second", "short"),
    [
        ("pipelined", 1, 4e-4, True),
        ("pipelined", 1, 2e-3, False),
        ("pipelined", 64, 1e-6, False),
        ("isolated", 1, 1e-6, False),
    ],
)
def test_a_pipelined_sample_of_few_short_calls_is_flagged(
    mode: str, calls: int, second: float, short: bool, a_header: Make, a_record: Make
) -> None:
    record = a_record(mode=mode, samples=Samples([second] * 30, calls_per_sample=calls))
    assert ("short-batch" in summary.summarise("a", a_header(clock="device"), record).flags) is short
    assert "short-batch" not in summary.summarise("a", a_header(), record).flags


def test_what_a_host_clock_timed_has_no_second_time(a_header: Make, a_record: Make) -> None:
    row = summary.summarise("a", a_header(), a_record())
    assert (row.host_median_s, row.enqueue_fraction, row.compared) == (None, None, None)


def test_a_gpu_that_ran_slower_than_it_could_is_named_once(a_header: Make, a_record: Make) -> None:
    gpu = {"index": 3, "throttle": ["sw power cap", "hw slowdown"]}
    nodes = {
        "h": {"gpus": [{"index": 3, "throttle": []}, gpu | {"index": 4}], "gpus_at_end": [gpu, gpu | {"index": 4}]}
    }
    header = a_header(nodes=nodes)
    runs = [(job, replace(header, job=job), [a_record()]) for job in ("a", "b")]
    found = summary.document(runs).notes
    reasons = ["sw power cap", "hw slowdown"]
    assert [note.code for note in found] == [NoteCode.THROTTLED] * 2
    assert [note.facts for note in found] == [
        {"gpu": "gpu4", "host": "h", "when": ["before", "after"], "reasons": reasons},
        {"gpu": "gpu3", "host": "h", "when": ["after"], "reasons": reasons},
    ]


@pytest.mark.parametrize(
    ("software_s", "skew_s", "flags"),
    [(4e-7, 1e-8, {"software-bound"}), (1e-8, 6e-8, {"sync-limited"}), (1e-8, 1e-8, set())],
)
def test_what_a_small_time_holds_beside_the_message_is_flagged(
    software_s: float, skew_s: float, flags: set[str], a_header: Make, a_record: Make
) -> None:
    header = a_header(calibration={"software_s": software_s, "sync_skew_p50_s": skew_s})
    row = summary.summarise("a", header, a_record(samples=Samples((1e-6,) * 40)))
    assert flags == {"software-bound", "sync-limited"} & set(row.flags)
    assert row.software_s == software_s and row.median_s == 1e-6, "nothing is subtracted"


def test_rows_beyond_a_number_are_counted_but_those_that_went_wrong_are_held(a_header: Make, a_record: Make) -> None:
    rows = summary.DocumentBuilder(most=3)
    head = a_header()
    for k in range(10):
        rows.add("job", head, a_record(verified=k != 8))
    found = rows.document({"job": head})
    assert [row.verified for row in found.summaries] == [True, True, True, False]
    assert (rows.num_left_out, rows.num_wrong) == (6, 1)
    assert found.notes[0].code == NoteCode.ROWS_NOT_HELD and found.notes[0].facts == {"num": 6, "most": 3}
