"""NCCL without torch, over libraries in C that stand for NCCL and the CUDA runtime (tests/fakes/nccl_c)."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.core.case import Case
from bench.core.case_argv import from_argv
from bench.core.errors import UsageError
from bench.core.program import Collective
from bench.transports import _nccl_options
from bench.transports._nccl_options import CommConfig, NcclOption
from tests.fakes import nccl_c

ROOT = Path(__file__).resolve().parent.parent.parent
MPIRUN = (str(Path(sys.executable).parent / "mpirun"),)
Missing = Callable[[str, str], NoReturn]
Ranks = Callable[..., list[Any]]
Together = Callable[[str], list[Any]]
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
]

# On every rank: for each case, opens the transport and runs the lines of a test with it.
RANK = """
import gc, json, os, sys, time
from bench.core import plugins
from bench.core.case import Case
from bench.core.program import Collective, Exchange, Group, Message
from bench.core.transport import Options, Reduction
from bench.rank import measure, session
from bench.rank.placement import place

me = place(os.environ)
library = plugins.load("transport", "nccl_direct")
hosts = ("here",) * me.num_ranks
world = Group("world", tuple(range(me.num_ranks)))

def rows(pattern, **more):
    case = Case(pattern, "nccl_direct", (600,), iterations=2, warmup=1, **(asked | more))
    module = plugins.load("pattern", pattern).PATTERN
    on = session.world_of(hosts)
    setting = measure.Setting(case, module, transport, on, hosts, 1 << 20, 1 << 30, lambda doing: None)
    return [record for records in measure.Measurer(setting).rows() for record in records]

def compiled(step, num_bytes, in_place=False, reduction=Reduction("float32", "sum")):
    buffers = transport.allocate(0 if in_place else num_bytes, num_bytes, 2)
    transport.open_groups((world,))
    return transport.compile((step,), world, buffers, reduction, in_place)

def tell(value):
    with open(f"{sys.argv[1]}/{name}-{me.rank}", "a") as file:
        file.write(json.dumps(value) + "\\n")

gc.freeze()  # each measured row collects all garbage
for name, case in json.load(open(sys.argv[2])).items():
    asked, outside = case["asked"], dict(os.environ)
    os.environ.update(case["env"])
    share_gpu, graph = case["share_gpu"], asked.get("graph", False)
    options = Options(timeout_s=20.0, share_gpu=share_gpu, graph=graph, case=Case("", **asked))
    transport = library.TRANSPORT(me, options)
    exec(case["lines"], globals())
    for each in set(os.environ) - set(outside):
        del os.environ[each]
    os.environ.update(outside)
"""


@dataclass(frozen=True)
class Lines:
    """What a test runs on the ranks, with the transport that `asked` and `share_gpu` give, and with variables `env`."""

    lines: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    share_gpu: bool = False


@pytest.fixture(scope="session")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-ins for NVIDIA's libraries."""
    return nccl_c.libraries(tmp_path_factory.mktemp("nvidia"))


def started(
    folder: Path, libraries: Path, cases: Mapping[str, Lines], num: int = 2, code: int | None = 0
) -> dict[str, list[Any]]:
    """Run the lines of some cases on the same ranks, one after the other.

    Return what rank 0 told, then rank 1, and so on, by case.
    """
    script, asked = folder / "rank.py", folder / "cases.json"
    script.write_text(RANK, encoding="utf-8")
    asked.write_text(json.dumps({name: asdict(case) for name, case in cases.items()}), encoding="utf-8")
    given = {"PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(libraries), "STANDIN_GPUS": "4"}
    words = (*MPIRUN, "-disable-auto-cleanup", "-n", str(num), sys.executable, str(script), str(folder), str(asked))
    done = subprocess.run(words, env={**os.environ, **given}, capture_output=True, text=True, timeout=250, check=False)
    assert code is None or done.returncode == code, done.stderr[-2000:]
    told = {
        name: [json.loads(line) for file in sorted(folder.glob(f"{name}-*")) for line in file.read_text().splitlines()]
        for name in cases
    }
    assert all(told.values()), done.stderr[-2000:]
    return told


@pytest.fixture
def ranks(tmp_path: Path, nvidia: Path, missing: Missing) -> Ranks:
    """A function that runs lines on ranks of their own and returns what rank 0 told, then rank 1, and so on."""
    if not Path(MPIRUN[0]).exists():
        missing("mpi", "no mpirun beside the interpreter")

    def run(lines: str, num: int = 2, code: int | None = 0, libraries: Path = nvidia) -> list[Any]:
        return started(tmp_path, libraries, {"told": Lines(lines)}, num, code)["told"]

    return run


TOGETHER: dict[str, Lines] = {}


@pytest.fixture(scope="module")
def ran_together(tmp_path_factory: pytest.TempPathFactory, nvidia: Path) -> tuple[dict[str, list[Any]], Path]:
    """What ranks told that ran all lines of TOGETHER, by name, and the folder of the logs that the stand-in wrote."""
    folder = tmp_path_factory.mktemp("together")
    cases = {
        name: replace(case, env={"STANDIN_LOG": str(folder / f"{name}.log"), **case.env})
        for name, case in TOGETHER.items()
    }
    return started(folder, nvidia, cases), folder


@pytest.fixture
def together(missing: Missing, request: pytest.FixtureRequest) -> Together:
    """`together("skew")`: what was told by these lines of TOGETHER, of which all end well and leave the ranks whole."""
    if not Path(MPIRUN[0]).exists():
        missing("mpi", "no mpirun beside the interpreter")
    told, _ = request.getfixturevalue("ran_together")
    return lambda name: told[name]


@pytest.fixture
def logs(ran_together: tuple[dict[str, list[Any]], Path]) -> Path:
    """The folder of the logs of the stand-in, `NAME.log` each."""
    return ran_together[1]


EVERYTHING = """
found = {}
for pattern in plugins.names("pattern"):
    module = plugins.load("pattern", pattern).PATTERN
    alone = module.plans_own_rows or module.overlaps or module.one_way or pattern == "gpu_baseline"
    if module.transport is not None or alone:
        continue
    for dtype in ("bfloat16",) if not module.reduces else ("float32", "int64"):
        for in_place in (False, True) if module.in_place else (False,):
            for record in rows(pattern, dtype=dtype, in_place=in_place, mode="both"):
                key = f"{pattern} {dtype} {record.in_place}"
                loop = record.samples.loop if record.samples else None
                what = record.skipped and record.skipped.code or record.failed and record.failed.what
                found.setdefault(key, set()).add(f"{what or record.verified} {loop}")
for op in ("prod", "max", "min", "avg"):
    for record in rows("allreduce", reduce_op=op, dtype="int64" if op != "avg" else "float64", mode="isolated"):
        found.setdefault(f"allreduce {op}", set()).add(f"{record.verified} {record.samples.loop}")
if me.rank == 0:
    tell({"found": {key: sorted(map(str, value)) for key, value in found.items()}, "facts": transport.facts()})
transport.close()
"""


@pytest.mark.slow
def test_every_pattern_delivers_the_right_bytes(ranks: Ranks, nvidia: Path) -> None:
    [told] = ranks(EVERYTHING, num=3)
    assert len(told["found"]) > 20 and {
        key: value for key, value in told["found"].items() if value != ["True compiled"]
    } == {"bisection bfloat16 False": ["odd-ranks None"]}
    facts = told["facts"]
    assert (facts["nccl"], facts["cuda"], facts["gpu"]) == ("2.30.7", "13.0", "Stand-in 0")
    assert facts["nccl_library"] == str(nvidia / "libnccl.so.2") and facts["start"] == "shared memory"


def test_amd_libraries_are_called_by_the_same_loop(ranks: Ranks, tmp_path: Path) -> None:
    lines = """
found = [record.verified for record in rows("allreduce", mode="both")]
if me.rank == 0:
    tell({"found": found, "facts": transport.facts(), "capability": transport._runtime.capability(0)})
transport.close()
"""
    [told] = ranks(lines, libraries=nccl_c.libraries(tmp_path, hip=True))
    assert told["found"] == [True, True] and told["facts"]["hip"] == "13000" and "cuda" not in told["facts"]
    assert told["capability"] == [9, 0] and told["facts"]["nccl_library"].endswith("librccl.so.1")


TOGETHER["wrong byte"] = Lines(
    """
found = [record.num_wrong for record in rows("allreduce", mode="pipelined")]
if me.rank == 0:
    tell(found)
transport.close()
""",
    env={"STANDIN_WRONG": "4"},
)


def test_a_wrong_byte_is_found(together: Together) -> None:
    assert together("wrong byte") == [[1]]


TOGETHER["times"] = Lines(
    """
for started_by in ("shared memory", "an allreduce"):
    program = compiled(Collective("allreduce", 64, 64), 64)
    each, batch = transport.time_each(program, 3), transport.time_batch(program, 10)
    if me.rank == 0:
        sets = program.last_set, program.next_set
        tell([each.seconds, each.host_s, batch.seconds, batch.host_s, batch.enqueue_s, *sets])
    tiny = transport._loop.program([[transport._tiny(world)]])
    transport._loop.start_by(transport._comms[world.ranks], tiny, None, 0)
transport.close()
""",
    env={"STANDIN_DELAY_US": "3000"},
)


def test_times_are_of_the_device_and_a_batch_is_issued_ahead(together: Together) -> None:
    for each, each_host, batch, batch_host, issued, last, following in together("times"):
        assert len(each) == 3 and all(3e-3 <= took <= host for took, host in zip(each, each_host, strict=True))
        assert len(batch) == 1 and 3e-3 <= batch[0] <= batch_host[0]
        assert issued[0] < 1.5e-3, "the host did not wait for the calls"
        assert (last, following) == (0, 1), "13 calls in turn on two sets"


def test_a_dead_peer_ends_the_wait_and_is_told_as_lost(ranks: Ranks) -> None:
    lines = """
program = compiled(Collective("allreduce", 64, 64), 64)
transport.time_each(program, 2)
if me.rank == 1:
    time.sleep(0.2)
    os._exit(0)  # not by a signal: mpirun would end the other rank
try:
    program.calls[0]()
except RuntimeError as error:
    tell([str(error), transport.lost_contact(error)])
os._exit(3)
"""
    [[words, lost]] = ranks(lines, code=None)
    assert lost is True and "remote process exited" in words


def test_a_peer_that_never_comes_is_a_timeout(ranks: Ranks) -> None:
    lines = """
transport._loop._device.timeout_ns = 300_000_000
program = compiled(Collective("allreduce", 64, 64), 64)
transport.channel.share(None)
if me.rank == 1:
    time.sleep(3)
    os._exit(3)
for run in (lambda: transport.time_each(program, 1), program.calls[0]):
    try:
        run()
    except RuntimeError as error:
        tell([str(error), transport.lost_contact(error)])
os._exit(3)
"""
    assert ranks(lines, code=None) == [["the other ranks did not answer in time", True]] * 2


def test_an_error_of_the_library_keeps_its_words(ranks: Ranks) -> None:
    lines = """
messages = Exchange((Message(1, 64),), ()) if me.rank == 0 else Exchange((), (Message(0, 32),))
for step, dtype in ((Collective("allreduce", 64, 64), "float16"), (messages, "uint8")):
    try:
        program = compiled(step, 64, reduction=Reduction(dtype, "sum"))
        program.calls[0]()
    except RuntimeError as error:
        tell([me.rank, str(error), transport.lost_contact(error)])
os._exit(3)
"""
    told = ranks(lines, code=None)
    assert [0, "NCCL error 4: invalid argument", False] in told and [1, "NCCL error 4: invalid argument", False] in told
    # Rank 1 sees that the sizes differ and ends. Rank 0 may be ended by mpirun, or tell first that rank 1 is gone.
    [*first, [words, lost]] = [each[1:] for each in told if each[0] == 1]
    assert len(first) == 1 and "invalid usage" in words and lost is False
    assert all(lost for rank, words, lost in told if rank == 0 and "invalid argument" not in words)


TOGETHER["one GPU"] = Lines(
    """
flags = compiled(Collective("allreduce", 64, 64), 64).flags
tell([transport.facts().get("shared_gpu"), list(flags), len(transport.notes)])
transport.close()
""",
    env={"STANDIN_GPUS": "1"},
    share_gpu=True,
)


def test_two_ranks_on_one_gpu_are_refused_unless_asked_for(together: Together, nvidia: Path) -> None:
    assert together("one GPU") == [["yes", ["shared_gpu"], 1]] * 2
    refused = subprocess.run(
        (*MPIRUN, "-n", "2", sys.executable, "-m", "bench.allreduce") + ("--transport", "nccl_direct", "--sizes", "8"),
        env={**os.environ, "LD_LIBRARY_PATH": str(nvidia), "STANDIN_GPUS": "1"},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert refused.returncode == 3 and "need a GPU each" in refused.stderr and "Traceback" not in refused.stderr


def test_without_the_libraries_the_run_is_refused_in_one_sentence() -> None:
    words = (sys.executable, "-m", "bench.allreduce", "--transport", "nccl_direct", "--sizes", "8")
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 3 and len(done.stderr.strip().splitlines()) == 1


def test_the_real_library_has_every_function(tmp_path: Path) -> None:
    """No GPU is needed to load NCCL, to ask its version and to make an id."""
    pytest.importorskip("nvidia.nccl", reason="NCCL's package (nvidia-nccl-cu13) is not installed")
    code = (
        "from bench.transports import _nccl_library as library, _nccl_loop as loop; "
        "nccl, path = library._first(('libnccl.so.2',), ('nvidia.nccl',)); nccl = library.NcclLibrary(nccl, path); "
        "assert nccl.version() > (2, 10) and all(map(nccl.address, loop._FUNCTIONS.values())); "
        "assert nccl.address('ncclCommGetAsyncError') and len(nccl.new_id()) == library.ID_BYTES"
    )
    subprocess.run((sys.executable, "-c", code), check=True, cwd=ROOT, timeout=120)


SOME = """
found = {}
for pattern in ("allreduce", "allgather", "broadcast", "sendrecv"):
    for record in rows(pattern, mode="both"):
        what = record.skipped and record.skipped.code or record.failed and record.failed.what
        loop = record.samples.loop if record.samples else None
        found.setdefault(pattern, set()).add(f"{what or record.verified} {loop}")
if me.rank == 0:
    tell({"found": {key: sorted(value) for key, value in found.items()}, "facts": transport.facts()})
transport.close()
"""


def noted(log: Path) -> dict[str, list[list[int]]]:
    """What the stand-in noted, by kind."""
    found: dict[str, list[list[int]]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        kind, *numbers = line.split()
        found.setdefault(kind, []).append([int(number) for number in numbers])
    return found


ASKED: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"graph": True}, "graph", "True graph"),
    ({"aggregate": 4}, "compiled", "nccl-aggregate-messages None"),
    ({"register": "buffers"}, "compiled", "True compiled"),
    ({"register": "symmetric"}, "compiled", "nccl-symmetric-messages None"),
    ({"ctas": "1-4", "cta_policy": "zero"}, "compiled", "True compiled"),
)
TOGETHER |= {str(asked): Lines(SOME, asked) for asked, _, _ in ASKED}


@pytest.mark.parametrize(("asked", "loop", "messages"), ASKED, ids=str)
def test_what_is_asked_of_nccl_is_done_and_delivers_the_right_bytes(
    asked: dict[str, Any], loop: str, messages: str, together: Together, logs: Path
) -> None:
    [told] = together(str(asked))
    collectives = {pattern: [f"True {loop}"] for pattern in ("allreduce", "allgather", "broadcast")}
    assert told["found"] == collectives | {"sendrecv": [messages]}
    written = logs / f"{asked}.log"
    log = noted(written) if written.exists() else {}
    if "aggregate" in asked:
        assert log["group"] and all(numbers[0] == 4 for numbers in log["group"])
    if "register" in asked:
        kind = {"buffers": "register", "symmetric": "window"}[asked["register"]]
        assert log[kind] and log["alloc"] and len(log["register"]) == len(log["deregister"])
        assert told["facts"]["nccl_register"] == asked["register"]
    if "ctas" in asked:
        assert log["config"] and all(numbers == [1, 4, 2] for numbers in log["config"])
        assert (told["facts"]["nccl_ctas"], told["facts"]["nccl_cta_policy"]) == ("1-4", "zero")


TOGETHER["group in place"] = Lines(
    """
found = [record.skipped.code for record in rows("allreduce", in_place=True, mode="pipelined")]
if me.rank == 0:
    tell(found)
transport.close()
""",
    {"aggregate": 2},
)


def test_a_group_of_calls_reduces_nothing_in_place(together: Together) -> None:
    assert together("group in place") == [["nccl-aggregate-in-place"]]


TOGETHER["time of a group"] = Lines(
    """
program = compiled(Collective("allreduce", 64, 64), 64)
batches = [transport.time_batch(program, 3) for _ in range(10)]
if me.rank == 0:
    tell([min(batch.seconds[0] for batch in batches), len(batches[0].started_s)])
transport.close()
""",
    {"aggregate": 5},
    {"STANDIN_DELAY_US": "2000"},
)


def test_the_time_of_a_group_is_divided_among_its_calls(together: Together) -> None:
    # The least of ten: a busy machine only adds.
    [[second, starts]] = together("time of a group")
    assert 0.002 <= second < 0.01 and starts == 1, "five calls of 2 ms each: not 10 ms"


TOGETHER["skew"] = Lines(
    """
found = rows("allreduce", mode="isolated")
if me.rank == 0:
    tell(list(found[0].samples.skew_s))
transport.close()
"""
)


def test_starts_of_ranks_are_compared_by_the_clock_of_their_host(together: Together) -> None:
    [skews] = together("skew")
    assert len(skews) == 2 and all(0 <= skew < 10 for skew in skews)


def test_an_older_nccl_lacks_what_is_asked() -> None:
    step = Collective("allreduce", 8, 8)
    case = Case("allreduce", ctas="4")
    skip = _nccl_options.refusal(case, step, False, (2, 21, 5))
    assert skip is not None and skip.code == NcclOption.TOO_OLD
    assert _nccl_options.refusal(case, step, False, (2, 27, 3)) is None
    config = _nccl_options.config_of(case)
    assert config is not None and (config.min_ctas, config.max_ctas, config.cta_policy) == (4, 4, -(2**31))
    assert _nccl_options.config_of(Case("allreduce")) is None
    # Offsets of ncclConfig_t, from the header of NCCL 2.32.3 compiled by cc.
    offsets = [getattr(CommConfig, name).offset for name in ("min_ctas", "net_name", "comm_name", "cta_policy")]
    assert offsets == [24, 32, 48, 60] and ctypes.sizeof(CommConfig) == 72


@pytest.mark.parametrize("wrong", ["0", "4-2", "x", "1-"])
def test_a_wrong_number_of_ctas_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="CTAs"):
        from_argv(["allreduce", "--ctas", wrong])
