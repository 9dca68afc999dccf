"""Results files: what is written is read back, and nothing that was measured is lost."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import MeasurementError, UsageError
from bench.core.record import Failure, Header, Record, Samples, Skip, StarvedRank
from bench.core.skips import SkipCode
from bench.store import jsonl, older

Make = Callable[..., Any]


def a_plain_record(**overrides: Any) -> Record:
    """A record without a fixture, for properties."""
    given: dict[str, Any] = {
        "mode": "isolated",
        "requested_bytes": (8,),
        "payload_bytes": 8,
        "num_ranks": 2,
        "num_nodes": 1,
    }
    return Record(**(given | overrides))


seconds = st.floats(1e-9, 1e3).map(lambda value: round(value, 10))


def some_samples(num: int) -> st.SearchStrategy[Samples]:
    """Samples of up to three ranks, as many of each."""
    taken = st.lists(seconds, min_size=num, max_size=num)
    return st.builds(
        Samples,
        seconds=taken,
        by_rank=st.lists(taken, max_size=3).map(tuple),
        warmup=st.lists(seconds, max_size=3),
        calls_per_sample=st.integers(1, 1024),
        rank_mean_s=st.lists(seconds, max_size=2).map(tuple),
        slowest_counts=st.lists(st.integers(0, 9), max_size=2).map(tuple),
        host_s=taken | st.just([]),
        enqueue_s=taken | st.just([]),
    )


samples = st.integers(1, 5).flatmap(some_samples)
records = st.one_of(
    st.builds(lambda s, v: a_plain_record(samples=s, verified=v, num_wrong=0), samples, st.booleans()),
    st.builds(lambda text: a_plain_record(skipped=Skip.uncoded(text or "why")), st.text(max_size=30)),
    st.builds(lambda text: a_plain_record(failed=Failure(text, 3, "h1")), st.text(max_size=30)),
    st.builds(lambda value: a_plain_record(reported={"mean_s": value}), seconds),
)


@given(st.lists(records, max_size=4))
def test_records_are_read_back_as_they_were_written(tmp_path_factory: Any, written: list[Record]) -> None:
    path = tmp_path_factory.mktemp("store") / "job.jsonl"
    header = Header("j", (), "allreduce", "mpi", "float32", "sum", None, None, "world", 2, 1, 2, "host", False, "now")
    writer = jsonl.Writer(path, header)
    for record in written:
        writer.append(record)
    [attempt] = jsonl.read(path).attempts
    assert (attempt.header, list(attempt.records)) == (header, written)
    at_once = path.with_name("at-once.jsonl")
    assert list(jsonl.written(at_once, header, written)) == written
    assert at_once.read_bytes() == path.read_bytes()


def test_a_truncated_line_is_skipped_with_a_warning(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    path = tmp_path / "job.jsonl"
    writer = jsonl.Writer(path, a_header())
    writer.append(a_record())
    writer.append(a_record())
    path.write_bytes(path.read_bytes()[:-40])
    results = jsonl.read(path)
    assert len(results.attempts[0].records) == 1
    [warning] = results.warnings
    assert warning.startswith(f"{path}:3: ") and "truncated" in warning
    jsonl.Writer(path, a_header(job="again")).append(a_record())
    first, second = jsonl.read(path).attempts
    assert (len(first.records), len(second.records), second.header.job) == (1, 1, "again")


def test_a_row_after_a_truncated_line_is_kept(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    path = tmp_path / "job.jsonl"
    writer = jsonl.Writer(path, a_header())
    writer.append(a_record())
    path.write_bytes(path.read_bytes()[:-40])
    writer.append(a_record(payload_bytes=64))
    results = jsonl.read(path)
    assert [record.payload_bytes for record in results.attempts[0].records] == [64]
    assert len(results.warnings) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it has no header line"),
        ('{"type":"header","schema":"bench.results/999"}\n', "schema 'bench.results/999'"),
        ('{"type":"record"}\n', "lines of type 'record'"),
        ('{"type":"header","schema":"bench.results/1"}\n', "invalid header line"),
    ],
)
def test_an_invalid_results_file_is_refused_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="x") as told:
        jsonl.read(path)
    assert sentence in str(told.value)


def test_a_file_of_the_first_schema_stays_readable() -> None:
    [attempt] = jsonl.read(Path(__file__).parent / "results_1.jsonl").attempts
    [timed, skipped] = attempt.records
    assert timed.samples is not None and list(timed.samples.seconds) == [1.5e-06, 1.6e-06]
    assert [list(own) for own in timed.samples.by_rank] == [[1.5e-06, 1.4e-06], [1.2e-06, 1.6e-06]]
    assert skipped.skipped == Skip.uncoded("no such type")


def test_no_number_that_is_none_is_written(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    writer = jsonl.Writer(tmp_path / "x.jsonl", a_header())
    with pytest.raises(ValueError, match="JSON"):
        writer.append(replace(a_record(), samples=Samples((float("nan"),))))


def test_an_unwritable_path_is_one_error(tmp_path: Path, a_header: Make) -> None:
    with pytest.raises(MeasurementError, match=re.escape(f"({os.strerror(errno.ENOENT)})")):
        jsonl.Writer(tmp_path / "nowhere" / "x.jsonl", a_header())
    with pytest.raises(MeasurementError, match=re.escape(f"({os.strerror(errno.ENOENT)})")):
        list(jsonl.written(tmp_path / "nowhere" / "x.jsonl", a_header(), ()))


def test_only_errors_of_the_file_itself_are_reported(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    def source() -> Iterator[Record]:
        yield a_record()
        raise PermissionError(errno.EACCES, "log")

    with pytest.raises(PermissionError, match="log"):
        list(jsonl.written(tmp_path / "x.jsonl", a_header(), source()))
    assert len((tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    with pytest.raises(MeasurementError, match=rf"\({os.strerror(errno.ENOSPC)}\).* import") as told:
        list(jsonl.written(Path("/dev/full"), a_header(), [a_record()]))
    assert "are kept" not in str(told.value), "they may be in a buffer"


def test_every_line_is_json_by_itself(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    path = tmp_path / "x.jsonl"
    jsonl.Writer(path, a_header()).append(a_record())
    assert [json.loads(line)["type"] for line in path.read_text(encoding="utf-8").splitlines()] == ["header", "record"]


def test_the_slowest_ranks_times_are_not_written_twice(tmp_path: Path, a_header: Make) -> None:
    path = tmp_path / "x.jsonl"
    record = a_plain_record(samples=Samples((2.0, 3.0), ((2.0, 1.0), (1.0, 3.0))))
    jsonl.Writer(path, a_header()).append(record)
    assert "seconds" not in json.loads(path.read_text(encoding="utf-8").splitlines()[1])["samples"]
    assert jsonl.read(path).attempts[0].records == (record,)


def test_a_starved_rank_is_read_back_as_it_was_written(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    path = tmp_path / "x.jsonl"
    starved, equal = a_record(starved=(StarvedRank(1, "h1", 0.03, 1.0, 0.98),)), a_record()
    jsonl.Writer(path, a_header()).append(starved, equal)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert "starved" in lines[1] and "starved" not in lines[2]
    records = jsonl.read(path).attempts[0].records
    assert (records[0].starved, records[1].starved) == (starved.starved, ())
    lines[1]["starved"][0]["needed_s"] = 0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(UsageError, match=r"x.jsonl:2.*needed_s"):
        jsonl.read(path)


def test_what_is_known_of_clocks_after_the_last_row_takes_the_place_of_what_was_at_first(
    tmp_path: Path, a_header: Make, a_record: Make
) -> None:
    path, header = tmp_path / "rows.jsonl", a_header(calibration={"software_s": 1e-7, "clocks": {"b": {"drift": 1e-4}}})
    writer = jsonl.Writer(path, header)
    writer.append(a_record(clock_bound_s=0.0))
    writer.clocks({"b": {"drift": 2e-6}})
    (attempt,) = jsonl.read(path).attempts
    assert attempt.header.calibration == {"software_s": 1e-7, "clocks": {"b": {"drift": 2e-6}}}
    assert attempt.records[0].clock_bound_s == 0.0


def test_gpus_at_the_end_stand_beside_their_hosts_facts(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    path, header = tmp_path / "rows.jsonl", a_header(nodes={"a": {"num_cpus": 8}, "b": {"num_cpus": 4}})
    writer = jsonl.Writer(path, header)
    writer.append(a_record())
    writer.end({"b": [{"index": 0, "throttle": ["sw power cap"]}]})
    (attempt,) = jsonl.read(path).attempts
    assert attempt.header.nodes["a"] == {"num_cpus": 8}
    assert attempt.header.nodes["b"] == {"num_cpus": 4, "gpus_at_end": [{"index": 0, "throttle": ["sw power cap"]}]}


@pytest.mark.parametrize("gpus", ['{"a":3}', '{"a":[3]}', "[]", "null"])
def test_an_invalid_end_line_is_refused(gpus: str, tmp_path: Path, a_header: Make) -> None:
    path = tmp_path / "rows.jsonl"
    jsonl.Writer(path, a_header())
    path.write_text(path.read_text() + f'{{"type":"end","gpus":{gpus}}}\n')
    with pytest.raises(UsageError, match=r"rows\.jsonl:2: "):
        jsonl.read(path)


@pytest.mark.parametrize("key", ["host_s", "enqueue_s"])
def test_host_times_must_match_the_samples(key: str, tmp_path: Path, a_header: Make) -> None:
    path = tmp_path / "rows.jsonl"
    jsonl.Writer(path, a_header()).append(a_plain_record(samples=Samples([1.0, 2.0], host_s=[3.0, 4.0])))
    path.write_text(path.read_text().replace('"host_s":[3.0,4.0]', f'"{key}":[3.0]'))
    with pytest.raises(UsageError, match=r"host_s.*enqueue_s"):
        jsonl.read(path)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_every_schema_that_was_ever_written_is_read(
    number: int, tmp_path: Path, a_header: Make, a_record: Make
) -> None:
    path = tmp_path / "a.jsonl"
    jsonl.Writer(path, a_header()).append(a_record())
    assert f'"{jsonl.SCHEMA}"' in path.read_text() and jsonl.SCHEMA == "bench.results/6"
    path.write_text(path.read_text().replace(jsonl.SCHEMA, f"bench.results/{number}"))
    (attempt,) = jsonl.read(path).attempts
    assert attempt.header.imported == {} and len(attempt.records) == 1


def test_a_waived_test_of_an_older_import_has_its_code() -> None:
    text = "device_to_device_memcpy_read_ce was waived: the tool says that it can not run here"
    read = older._imported({"remarks": [{"line": 87, "text": text}, {"line": 90, "text": "cut"}]})
    assert read["remarks"][0] == {
        "line": 87,
        "text": text,
        "code": "waived",
        "facts": {"test": "device_to_device_memcpy_read_ce"},
    }
    assert read["remarks"][1] == {"line": 90, "text": "cut"}


def test_a_reason_that_an_older_version_wrote_as_a_sentence_is_read_as_uncoded(
    tmp_path: Path, a_header: Make, a_record: Make
) -> None:
    path = tmp_path / "a.jsonl"
    writer = jsonl.Writer(path, a_header())
    writer.append(a_record(skipped=Skip.of(SkipCode.BUDGET, budget_s=3.0)))
    writer.append(a_record(failed=Failure.of(SkipCode.OTHER_GROUP_WRONG, rank=1, host="h1")))
    (attempt,) = jsonl.read(path).attempts
    assert attempt.records[0].skipped == Skip.of(SkipCode.BUDGET, budget_s=3.0)
    assert attempt.records[1].failed == Failure.of(SkipCode.OTHER_GROUP_WRONG, rank=1, host="h1")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["skipped"] = sentence = "no GPU here"
    lines[2]["failed"] = {"what": "died", "rank": 3, "host": "h1"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (attempt,) = jsonl.read(path).attempts
    assert attempt.records[0].skipped == Skip.uncoded(sentence)
    assert attempt.records[1].failed == Failure("died", 3, "h1")


def test_an_unknown_world_is_null_and_a_missing_one_is_invalid(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    path = tmp_path / "a.jsonl"
    header = a_header(num_ranks=None, num_nodes=None, ranks_per_node=None, imported={"tool": "osu", "line": 7})
    jsonl.Writer(path, header).append(a_record(num_ranks=None, num_nodes=None))
    (attempt,) = jsonl.read(path).attempts
    assert attempt.header.num_ranks is None and attempt.header.imported == {"tool": "osu", "line": 7}
    assert attempt.records[0].num_ranks is None and attempt.records[0].num_nodes is None
    text = path.read_text().splitlines()
    path.write_text("\n".join([text[0], text[1].replace('"num_ranks":null,', "")]) + "\n")
    with pytest.raises(UsageError, match=r"a\.jsonl:2: "):
        jsonl.read(path)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e400", "123456789012345678901234567890"])
def test_a_line_that_only_json_accepts_is_read(tmp_path: Path, a_header: Make, a_record: Make, number: str) -> None:
    """Rows of other tools and of older versions may have such numbers; a stricter parser must not drop the row."""
    path = tmp_path / "job.jsonl"
    jsonl.Writer(path, a_header()).append(a_record(samples=Samples((2.5,))))
    path.write_text(path.read_text().replace("2.5", number))
    [attempt] = jsonl.read(path).attempts
    [row] = attempt.records
    assert row.samples is not None
    assert repr(list(row.samples.seconds)) == repr([float(number)])
