"""Damage results files line by line, feed them to every command that reads results, and check how each ends.

`run_commands` is the check that hypothesis (test_results_reader.py) and atheris (atheris_readers.py) share.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.__main__ import main
from bench.core.host_use import HostUse
from bench.core.record import (
    Contention,
    Failure,
    Header,
    OverlapSamples,
    ReadSamples,
    Record,
    Samples,
    Skip,
    StarvedRank,
    WrongData,
)
from bench.store import jsonl

_STORED = Path(__file__).parents[2] / "results" / "reference"
REFERENCE = _STORED / "main_2cpu-vm_2026-11-21"
_STEP = _STORED / "step_2cpu-vm_2026-11-27" / "step-gloo-1x2-8x9ms-1M-bucket1M.jsonl"
_MOST_SAMPLES = 12
_STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    -5,
    3,
    1 << 40,
    1 << 70,
    -(1 << 70),
    10**400,
    0.5,
    -0.5,
    1e308,
    1e-308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "1K",
    "-1",
    "nan",
    "world",
    "\x1b[2J",
    "\udcff",
    "2026-13-45T99:99:99",
    "2026-01-02",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "0-1",
    "1-0",
    "99999999999999999999-1",
    "0",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"x": {"y": []}},
    [1, 2, 3],
    ["a", "b"],
    [-1.0],
    [float("nan")] * 3,
)


def base_lines() -> dict[str, list[bytes]]:
    """Good files by name: two of the stored reference run, training steps, and one with a record of every kind."""
    found = {name: _shortened(REFERENCE / f"{name}.jsonl") for name in ("allreduce-gloo-1x2", "pingpong-mpi-1x2")}
    found |= {"step": _STEP.read_bytes().splitlines()[:2], "feed": _feed(), "pairs": _pairs()}
    return found | {"kinds": _kinds(modelled=False), "modelled": _kinds(modelled=True)}


def _shortened(path: Path) -> list[bytes]:
    """The header and the first records of a stored file, each with a few samples."""
    lines = []
    for line in path.read_bytes().splitlines()[:5]:
        parsed = json.loads(line)
        samples = parsed.get("samples", {})
        for name in ("seconds", "warmup", "host_s", "enqueue_s"):
            if name in samples:
                samples[name] = samples[name][:_MOST_SAMPLES]
        if "by_rank" in samples:
            samples["by_rank"] = [own[:_MOST_SAMPLES] for own in samples["by_rank"]]
        lines.append(json.dumps(parsed).encode())
    return lines


def _header(**overrides: Any) -> Header:
    given: dict[str, Any] = {
        "job": "allreduce-mpi",
        "case": ("allreduce", "--transport", "mpi", "--sizes", "1K,1M"),
        "pattern": "allreduce",
        "transport": "mpi",
        "dtype": "float32",
        "reduce_op": "sum",
        "root": None,
        "direction": None,
        "topology": "world",
        "num_ranks": 4,
        "num_nodes": 2,
        "ranks_per_node": 2,
        "clock": "host",
        "modelled": False,
        "started": "2026-01-02T03:04:05+00:00",
        "argv": ("python", "-m", "bench.allreduce"),
        "versions": {"bench": "1", "mpi4py": "4"},
        "facts": {"mpi_library": "MPICH"},
        "settings": {"min_samples": 4, "launcher": "mpirun", "clock_resolution_s": 1e-9, "budget_s": 10.0},
        "environment": {"OMP_NUM_THREADS": "1"},
        "nodes": {
            f"host{k}": {"host": f"host{k}", "num_cpus": 2, "gpus": [{"name": "GPU"}], "network_ports": [{"name": "e"}]}
            for k in (0, 1)
        },
        "ranks": tuple({"host": f"host{rank // 2}", "local_rank": rank % 2, "cpus": [0]} for rank in range(4)),
        "calibration": {"memcpy": [[4096, 1e9], [1 << 20, 2e9]], "software_s": 1e-6, "sync_skew_p50_s": 1e-6},
        "notes": ("a note",),
    }
    return Header(**(given | overrides))


def _record(size: int, **overrides: Any) -> Record:
    seconds = tuple(1e-4 + 1e-6 * (index * 7 % 11) for index in range(_MOST_SAMPLES))
    given: dict[str, Any] = {
        "mode": "isolated",
        "requested_bytes": (size,),
        "payload_bytes": size,
        "num_ranks": 4,
        "num_nodes": 2,
        "bus_factor": 1.5,
        "rank_bytes": 1.5 * size,
        "node_bytes": 1.0 * size,
        "min_steps": 2,
        "cache": "cold",
        "verified": True,
        "num_wrong": 0,
        "stop_reason": "ci",
    }
    if not {"samples", "reported", "skipped", "failed"} & set(overrides):
        given["samples"] = Samples(seconds, by_rank=(seconds,) * 4, warmup=seconds[:3])
    return Record(**(given | overrides))


def _written(header: Header, records: Sequence[Record]) -> list[bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        jsonl.Writer(path, header).append(*records)
        return path.read_bytes().splitlines()


def _kinds(modelled: bool) -> list[bytes]:
    """One record of every kind; modelled: of an instance type, with one sample a row."""
    if modelled:
        header = _header(modelled=True, transport="model", clock="model", instance="p4d.24xlarge", nodes={}, ranks=())
        rows = [
            _record(size, modelled=True, samples=Samples((1e-4 + size * 1e-10,)), verified=None)
            for size in (1024, 1 << 20)
        ]
        return _written(header, rows)
    seconds = (1e-4, 1.1e-4, 1.2e-4, 1.05e-4)
    contention = Contention("alltoall", 1024, 2, 2, seconds, (1e9, 1.1e9), 1.2e9, (0.9, 0.95))
    overlap = OverlapSamples("float32", 128, 4, 2, 2, seconds, seconds, seconds, 0)
    wrong = WrongData("first-wrong", {"rank": 1}, "rank 1, element 3")
    rows = [
        _record(1024),
        _record(1024, mode="pipelined", in_place=True, flags=("not-converged",)),
        _record(1 << 20, samples=Samples(seconds, host_s=seconds, enqueue_s=seconds, calls_per_sample=4)),
        _record(1 << 20, contention=contention, samples=Samples(seconds)),
        _record(1 << 20, overlap=overlap, samples=Samples(seconds)),
        _record(1 << 21, verified=False, num_wrong=3, first_wrong=wrong, flags=("wrong-data",)),
        _record(1 << 21, starved=(StarvedRank(1, "host1", 0.03, 1.0, 0.98),), flags=("starved-rank",)),
        _record(1 << 21, skipped=Skip("no-gpu", {"host": "host1"}, "host1 has no GPU")),
        _record(1 << 22, failed=Failure("it hung", 1, "host1", "timeout", {"seconds": 3})),
        _record(1 << 22, reported={"busbw_bytes_per_s": 1e9, "mean_s": 1e-3}),
    ]
    return _written(_header(), rows)


def _feed() -> list[bytes]:
    """Passes over a data set, cold and warm, one of them with steps that wait for batches."""
    words = "feed --transport storage --sizes 1M --files tar --record 64K --workers 1"
    case = tuple(f"{words} --step-time 0.005s --prepare-time 0.002s --batch 4".split())
    world = {"num_ranks": 1, "num_nodes": 1, "ranks_per_node": 1, "ranks": ({"host": "host0", "local_rank": 0},)}
    header = _header(job="feed", case=case, pattern="feed", transport="storage", reduce_op="", **world)
    seconds, size = (4e-3, 4.1e-3, 4.2e-3), 1 << 20
    use = HostUse("host0", wall_s=0.5, num_cpus=2, used_s=0.3, stolen_s=0.0, limited_s=0.0, ours_s=0.1, num_ranks=1)
    cold = ReadSamples("cold", 16, 1 << 16, (size,) * 3, (1e-3,) * 3, (5e-3,) * 3, (1e-4,) * 3)
    warm = ReadSamples(
        "warm", 16, 1 << 16, (0,) * 3, (1e-3,) * 3, (), (1e-4,) * 3, (1e-3,) * 3, (5e-3,) * 3, (2e-3,) * 3
    )
    rows = []
    for reads in (cold, warm):
        samples = Samples(seconds, by_rank=(seconds,), warmup=seconds)
        one = {"num_ranks": 1, "num_nodes": 1, "bus_factor": 1.0, "min_steps": 1, "node_bytes": None, "hosts": (use,)}
        rows.append(_record(size, samples=samples, reads=reads, **one))
    return _written(header, rows)


def _pairs() -> list[bytes]:
    """Pairs of four hosts, one of them slow: `diagnose` and `explain` name it."""
    case = ("pairs", "--transport", "mpi", "--topology", "pairs", "--sizes", "1M")
    ranks = tuple({"host": f"host{rank}", "local_rank": 0} for rank in range(4))
    header = _header(
        job="pairs-mpi", case=case, pattern="pairs", topology="pairs", num_nodes=4, ranks_per_node=1, ranks=ranks
    )
    rows = []
    for first in range(4):
        for second in range(first + 1, 4):
            base = 3e-4 if 2 in (first, second) else 1e-4
            seconds = tuple(base + 1e-6 * (index % 5) for index in range(8))
            pair = {"group": f"{first}-{second}", "src": first, "dst": second, "num_ranks": 2, "bus_factor": 1.0}
            rows.append(_record(1 << 20, samples=Samples(seconds, by_rank=(seconds,) * 2), **pair))
    return _written(header, rows)


def damaged(lines: Sequence[bytes], seed: int, others: Sequence[Sequence[bytes]] = ()) -> list[bytes]:
    """The lines after one to three random mutations."""
    draw = random.Random(seed)
    mutated = list(lines)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        kind = draw.choices((_tree, _bytes, _order), (12, 2, 1))[0]
        mutated = kind(mutated, draw, others)
    return mutated


def _tree(lines: list[bytes], draw: random.Random, others: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Change, drop, copy or nest one value of one line."""
    index = 0 if draw.random() < 0.4 else draw.randrange(len(lines))
    try:
        parsed = json.loads(lines[index])
    except (ValueError, RecursionError):
        return lines
    paths = list(_paths(parsed, draw))
    if not paths:
        return lines
    depth = draw.randrange(1, 5)
    path = draw.choice([path for path in paths if len(path) <= depth] or paths)
    parent = parsed
    for key in path[:-1]:
        parent = parent[key]
    out = list(lines)
    try:
        _change(parent, path[-1], draw)
        out[index] = json.dumps(parsed).encode("utf-8", "surrogatepass")
    except (RecursionError, ValueError, OverflowError):
        return lines
    return out


def _change(parent: Any, key: Any, draw: random.Random) -> None:
    action = draw.randrange(10)
    value = parent[key]
    if action == 0:
        del parent[key]
    elif action == 1 and isinstance(value, (int, float)):
        parent[key] = draw.choice((-value, value * 1e30, value * 0, value + 1, str(value), [value]))
    elif action == 2 and isinstance(value, list):
        parent[key] = draw.choice((value[:1], value * 2, [value], dict(enumerate(map(str, value)))))
    elif action == 2 and isinstance(value, dict):
        parent[key] = draw.choice((list(value), list(value.values()), {**value, "strange": draw.choice(_STRANGE)}))
    elif action == 2 and isinstance(value, str):
        parent[key] = draw.choice((value[:-1], value * 50, value + "\n", value.upper(), [value], {value: value}))
    elif action == 3 and isinstance(parent, dict):
        other = draw.choice(list(parent))
        parent[key], parent[other] = parent[other], parent[key]
    elif action == 4:
        deep: Any = 0
        for _ in range(draw.choice((3, 90, 300))):
            deep = [deep] if draw.random() < 0.5 else {"a": deep}
        parent[key] = deep
    else:
        parent[key] = copy.deepcopy(draw.choice(_STRANGE))


def _paths(value: Any, draw: random.Random, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = draw.sample(range(len(value)), min(len(value), 3))
    for key in keys:
        yield (*path, key)
        if len(path) < 6:
            yield from _paths(value[key], draw, (*path, key))


def _bytes(lines: list[bytes], draw: random.Random, others: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Cut a line, put a byte in it, or replace it with text that is no record."""
    index = draw.randrange(len(lines))
    line = lines[index]
    place = draw.randrange(len(line) + 1)
    replacements = (
        line[:place],
        line[:place] + b"\xff\xc3" + line[place:],
        line[:place] + bytes([draw.randrange(256)]) + line[place + 1 :],
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"type":"record","mode":' + b"[" * 5000 + b"]" * 5000 + b"}",
        line.replace(b"1", b"1" * 5000, 1),
        line[:-1] + b',"type":"header"}',
        b"null",
        b"[]",
        b"{}",
        b"\x00" * 40,
        b'{"type":["record"]}',
        b'{"type":"clocks","hosts":[1]}',
        b'{"type":"clocks","hosts":{"vm":{"drift":"x"}}}',
        b'{"type":"end","gpus":{"vm":[{"name":3}]}}',
        b'{"type":"end","gpus":[]}',
    )
    out = list(lines)
    out[index] = draw.choice(replacements)
    return out


def _order(lines: list[bytes], draw: random.Random, others: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Drop, double or move a line, or put a line of another file there."""
    out = list(lines)
    index = draw.randrange(len(out))
    action = draw.randrange(4)
    if action == 0 and len(out) > 1:
        del out[index]
    elif action == 1:
        out.insert(index, draw.choice(out))
    elif action == 2:
        draw.shuffle(out)
    elif others:
        other = draw.choice(others)
        out[index if draw.random() < 0.5 else 0] = draw.choice(other)
    return out


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, output and messages."""

    command: str
    code: int
    out: str
    err: str


def ended(argv: Sequence[str]) -> Ended:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(argv))
        except SystemExit as error:
            code = int(error.code or 0)
    return Ended(" ".join(argv), code, out.getvalue(), err.getvalue())


def commands(bad: Path, good: Path, draw: random.Random, all_of_them: bool = False) -> list[list[str]]:
    """The commands that read the damaged file; without `all_of_them`, report and gate and a random other."""
    rules = str(Path(__file__).parents[2] / "rules" / "publication.yaml")
    gate = [["gate", str(bad), "--rules", rules, "--format", "json"]]
    rest = [
        ["compare", str(good), str(bad), "--format", "json"],
        ["compare", str(bad), str(good), "--format", "json"],
        ["fit", str(bad), "--format", "json"],
        ["explain", str(bad), "--format", "json"],
        ["diagnose", str(bad), "--format", "json"],
        ["lint", str(bad), "--format", "json"],
        ["report", str(bad), "--format", "table", "--notes"],
        ["gate", str(bad), "--rules", str(Path(rules).with_name("acceptance-no-gpu.yaml")), "--format", "table"],
        ["explain", str(bad)],
        ["report", str(bad), "--certificate", rules],
    ]
    return [["report", str(bad), "--format", "json"], *gate, *(rest if all_of_them else draw.sample(rest, 2))]


def problem(end: Ended, bad: Path, refused: bool, allowed: Sequence[int] = ()) -> str | None:
    """What is wrong with how a command ended; None if all is well.

    `refused`: the reader refused or warned. `allowed`: exit codes besides 0, 1 and 2.
    """
    if "internal error" in end.err or "Traceback" in end.err:
        return "crash: " + end.err.strip().splitlines()[-1]
    if end.code not in (0, 1, 2, *allowed) and not (end.code == 4 and "diagnose" in end.command):
        return f"exit code {end.code}: {end.err.strip()[:200]}"
    if end.code == 2 and end.err.count("bench: error") != 1:
        return f"unclear: {end.err.strip()[:200]}"
    if refused and end.command.startswith("gate") and end.code == 0:
        return "the gate is open for a damaged file"
    if "--format json" in end.command and end.out:
        try:
            json.loads(end.out)
        except ValueError:
            return f"no JSON document: {end.out[:100]}"
    return None


def run_commands(
    lines: Sequence[bytes], bad: Path, good: Path, draw: random.Random, all_of_them: bool = False
) -> list[str]:
    """Write the lines as a file and run commands on it. Returns the problems."""
    bad.write_bytes(b"\n".join(lines) + b"\n")
    problems = []
    refused = False
    for argv in commands(bad, good, draw, all_of_them):
        end = ended(argv)
        if argv[0] == "report":
            refused = refused or end.code == 2 or f"{bad.name}:" in end.err
        found = problem(end, bad, refused)
        if found is not None:
            problems.append(f"{' '.join(argv)}: {found}")
        if refused and argv[0] == "gate" and not all_of_them:
            break  # the others read the same refusal
    return problems
