"""The door to traces: whatever a file is, it gives traces or one coded remark; nothing in it is executed."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.errors import UsageError
from bench.job import lateness, parts
from bench.job.matching import job_of
from bench.logs import step_traces
from bench.logs.trace_messages import TraceCode
from tests.job import synthetic
from tests.job.synthetic import Recording, Schedule

SMALL = Schedule(num_ranks=2, num_steps=2, num_layers=2)
RANK0 = "worker0.pt.trace.json"


class RunsCode:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, made: Path) -> None:
        self._made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self._made,)


@pytest.fixture
def trace(tmp_path: Path) -> bytes:
    """The file of rank 0 of a small job of two ranks."""
    folder = tmp_path / "whole"
    folder.mkdir()
    synthetic.write(folder, SMALL)
    return (folder / RANK0).read_bytes()


def codes_of(path: Path) -> list[str]:
    """Read a path that holds no trace, and return the codes of the remarks."""
    traces, remarks = step_traces.read([path])
    assert not traces
    return [remark.code for remark in remarks]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", TraceCode.EMPTY),
        (bytes(np.random.default_rng(1).integers(0, 256, 50_000, np.uint8)), TraceCode.UNKNOWN),
        (b"\0" * 5000, TraceCode.UNKNOWN),
        (b"hello, world\n" * 100, TraceCode.UNKNOWN),
        (b"\x1f\x8b\x08" + b"rubbish" * 50, TraceCode.UNREADABLE),
        (b"PK\x03\x04" + b"rubbish" * 50, TraceCode.UNKNOWN),
        (gzip.compress(b""), TraceCode.EMPTY),
        (gzip.compress(b"rubbish"), TraceCode.UNKNOWN),
        (b"[1, 2, 3]", TraceCode.UNKNOWN),
    ],
    ids=["empty", "random", "zeros", "text", "broken-gzip", "broken-zip", "empty-gzip", "gzip", "other-json"],
)
def test_a_file_that_is_no_trace_is_one_remark(tmp_path: Path, content: bytes, code: TraceCode) -> None:
    file = tmp_path / RANK0
    file.write_bytes(content)
    assert codes_of(file) == [code]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_not_executed(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps(RunsCode(made), protocol))
    assert codes_of(file) == [TraceCode.PICKLE]
    assert not made.exists()


def test_an_empty_folder_and_a_path_that_does_not_exist(tmp_path: Path) -> None:
    assert step_traces.read([tmp_path]) == ([], [])
    with pytest.raises(UsageError):
        step_traces.read([tmp_path / "missing"])


@pytest.mark.parametrize("packed", [False, True], ids=["json", "gzip"])
def test_a_cut_file_keeps_what_is_whole(tmp_path: Path, trace: bytes, packed: bool) -> None:
    num_whole = len(json.loads(trace)["traceEvents"])
    content = gzip.compress(trace) if packed else trace
    file = tmp_path / (RANK0 + ".gz" * packed)
    file.write_bytes(content[: len(content) // 2])
    (found,), remarks = step_traces.read([file])
    assert not remarks
    (cut,) = [remark for remark in found.remarks if remark.code == TraceCode.CUT]
    assert 0 < cut.facts["num"] == found.num_events < num_whole
    assert len(found.compute)


def test_damage_in_the_middle_keeps_what_is_before(tmp_path: Path, trace: bytes) -> None:
    half = len(trace) // 2
    file = tmp_path / RANK0
    file.write_bytes(trace[:half] + b"\xff\x00}}]]" + trace[half:])
    (found,), _ = step_traces.read([file])
    assert [remark.code for remark in found.remarks if remark.code == TraceCode.DAMAGED]
    assert len(found.compute)


def archive_of(kind: str, names: list[str], content: bytes) -> bytes:
    """Return an archive in which each name holds the content."""
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            for name in names:
                archive.writestr(name, content)
        return packed.getvalue()
    with tarfile.open(fileobj=packed, mode="w:gz" if kind == "tgz" else "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("rank7.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return packed.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar", "tgz"])
def test_an_archive_writes_nowhere_but_into_its_temporary_folder(tmp_path: Path, trace: bytes, kind: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    outside = str(tmp_path / "absolute.json")
    odd = ["../escaped.json", "..", ".", "a/../../b.json", outside, "with space\n.json", "a" * 200 + ".json", "d/"]
    file = inside / f"traces.{kind}"
    file.write_bytes(archive_of(kind, odd, trace))
    traces, remarks = step_traces.read([file])
    assert not remarks
    assert {trace.source.rpartition(":")[2] for trace in traces} >= {"../escaped.json", "a/../../b.json", outside}
    assert [path.name for path in inside.iterdir()] == [file.name]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "whole"]


@pytest.mark.parametrize("kind", ["zip", "tar", "tgz"])
def test_a_cut_archive_is_one_remark(tmp_path: Path, trace: bytes, kind: str) -> None:
    content = archive_of(kind, ["rank0.json", "rank1.json"], trace)
    file = tmp_path / f"traces.{kind}"
    file.write_bytes(content[: len(content) // 2])
    traces, remarks = step_traces.read([file])
    told = [remark.code for trace in traces for remark in trace.remarks] + [remark.code for remark in remarks]
    assert told in ([TraceCode.UNREADABLE], [TraceCode.UNKNOWN], [TraceCode.CUT])


NASTY: list[Any] = [
    None, True, -1, 0, 1.5, 10**400, 10**12, -(10**12), float("nan"), float("inf"), "", "x", "9" * 5000, [], [[]],
    {}, {"a": []}, [None], [10**30], ["x"], "../../etc", "\0",
]  # fmt: skip


def damaged(document: Any, random: np.random.Generator) -> Any:
    """Return the document with a few values, of any depth, replaced by nasty ones."""
    for _ in range(int(random.integers(1, 12))):
        node = document
        while True:
            keys = [*node] if isinstance(node, dict) else [*range(len(node))]
            key = keys[int(random.integers(len(keys)))]
            if not isinstance(node[key], dict | list) or not node[key] or random.random() < 0.05:
                node[key] = NASTY[int(random.integers(len(NASTY)))]
                break
            node = node[key]
    return document


def test_nasty_values_raise_no_exception(tmp_path: Path, trace: bytes) -> None:
    other = tmp_path / "whole" / "worker1.pt.trace.json"
    file = tmp_path / RANK0
    for seed in range(60):
        random = np.random.default_rng(seed)
        if seed % 3:
            document = damaged(json.loads(trace), random)
            if isinstance(document.get("traceEvents"), list):
                document["traceEvents"] = document["traceEvents"][:120]
            file.write_text(json.dumps(document))
        else:
            content = bytearray(trace)
            for place in random.integers(0, len(content), 20):
                content[place] = int(random.integers(256))
            file.write_bytes(content)
        traces, _ = step_traces.read([file, other])
        job = job_of(traces)
        timelines = parts.timelines_of(job)
        for one in parts.steps_of(job, timelines):
            assert sum(one.parts.values()) == pytest.approx(one.end_s - one.start_s, abs=1e-6, rel=1e-9)
        lateness.late_of(job, timelines)


def test_a_number_of_ranks_that_cannot_be_is_not_believed(tmp_path: Path) -> None:
    synthetic.write(tmp_path, SMALL, Recording())
    for file in tmp_path.iterdir():
        document = json.loads(file.read_text())
        document["distributedInfo"]["world_size"] = 10**12
        file.write_text(json.dumps(document))
    job = job_of(step_traces.read([tmp_path])[0])
    assert job.num_ranks == 2
