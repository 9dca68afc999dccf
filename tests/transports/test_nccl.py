"""NCCL's transport without a GPU: real ranks, real torch, and its CUDA played by the CPU (tests/fakes/nccl)."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.core.errors import RefusedError
from bench.core.program import Collective
from bench.core.transport import Options, Reduction
from bench.core.world import RankInfo
from bench.transports import _nccl_gpu, _symmetric_memory, nccl
from bench.transports._nccl_timer import Graphs, start_of
from bench.transports._nccl_types import NcclRefusal
from bench.transports._symmetric_memory import SymmetricRefusal
from tests.facts import holds
from tests.warm_ranks import Rank, WarmRanks, port_of_ranks

ROOT = Path(__file__).resolve().parent.parent.parent
FAKE = ROOT / "tests" / "fakes" / "nccl"

pytestmark = pytest.mark.torch
_SURE_SHARE = 0.7  # of the length of a kernel that spins


@dataclass(frozen=True)
class Ran:
    """How one rank of a job ended, and what the ranks' CUDA was asked for."""

    code: int
    out: str
    err: str
    log: str


Ranks = Callable[..., list[Ran]]


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmRanks]:
    """The process that has loaded the real torch for all jobs here."""
    with WarmRanks("torch.distributed", "torch._dynamo", "torch.distributed._symmetric_memory") as started:
        yield started


@pytest.fixture
def ranks(warm: WarmRanks, tmp_path: Path) -> Ranks:
    """`ranks(word, ..., env={...})`: a job of two ranks as torchrun would start them, on fake GPUs."""

    pytest.importorskip("torch")

    def go(*words: str, env: Mapping[str, str]) -> list[Ran]:
        log = tmp_path / "asked.log"
        log.unlink(missing_ok=True)
        base = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "CUDA_"))}
        base |= {
            "PYTHONPATH": f"{FAKE}:{ROOT}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port_of_ranks()),
            "FAKE_LOG": str(log),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "TMPDIR": str(tmp_path),
            **env,
        }
        places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
        ended = warm.run([Rank(words, {**base, **place}, str(tmp_path)) for place in places], 280)
        said = log.read_text(encoding="utf-8") if log.exists() else ""
        return [Ran(one.code, one.out, one.err, said) for one in ended]

    return go


ROWS = """
import json, os
from bench.core import plugins
from bench.core.case import Case
from bench.core.case_argv import from_argv
from bench.core.transport import Options
from bench.rank import measure, session
from bench.rank.placement import place
from bench.transports.strategies import _groups

def checked():
    wrong = training_step._first_wrong(transport.channel.share(trainer.check()))
    return wrong and wrong.text

me = place(os.environ)
graph = "GRAPH" in os.environ
opened = Case("allreduce", symmetric=os.environ.get("SYMMETRIC", "none"))
transport = plugins.load("transport", "nccl").TRANSPORT(me, Options(timeout_s=30.0, graph=graph, case=opened))
hosts = ("here",) * me.num_ranks
found = []
for line in os.environ["CASES"].split(";"):
    case = from_argv((line + " --transport nccl -n 2 -w 1").split())
    pattern = plugins.load("pattern", case.pattern).PATTERN
    world = session.world_of(hosts)
    free = transport.available_bytes()
    setting = measure.Setting(case, pattern, transport, world, hosts, 1 << 14, free, lambda doing: None)
    for records in measure.Measurer(setting).rows():
        for r in records:
            what = r.skipped and r.skipped.code or r.failed and r.failed.what
            what = what or f"{r.samples.loop} verified {r.verified}"
            found.append([line, r.mode, r.payload_bytes, what, list(r.flags)])
transport.keep_link_active()
if me.rank == 0:
    print("FOUND" + json.dumps([found, transport.facts(), transport.cache_bytes()]))
transport.close()
"""


def rows(ranks: Ranks, tmp_path: Path, *cases: str, **env: str) -> tuple[list[Any], dict[str, str], str]:
    """The rows of several cases in one job of two ranks, the transport's facts, and what CUDA was asked for."""
    script = tmp_path / "rows.py"
    script.write_text(ROWS, encoding="utf-8")
    done = ranks(str(script), env={"CASES": ";".join(cases), **env})
    assert [one.code for one in done] == [0, 0], done[0].err[-2000:] + done[1].err[-2000:]
    found, facts, cache = json.loads(done[0].out.partition("FOUND")[2])
    assert cache == 1 << 20
    assert not list(tmp_path.glob("bench-nccl-*")), "the file of NCCL's output is gone"
    return found, facts, done[0].log


@pytest.mark.slow
def test_every_pattern_type_and_reduction_moves_the_right_bytes(ranks: Ranks, tmp_path: Path) -> None:
    cases = (
        "allreduce --sizes 4096 -d bfloat16",
        "allreduce --sizes 64 -o avg --in-place 1",
        "allreduce --sizes 4K --topology node",
        "allreduce --sizes 4K -d int16",
        "allreduce --sizes 4K -o band -d int8",
        "reduce --sizes 4K -o max",
        "reducescatter --sizes 4K -d int8 -o prod",
        "allgather --sizes 4K -d float8_e5m2 --in-place 1",
        "alltoallv --sizes 4K -d int16",
        "broadcast --sizes 4K -d float8_e4m3fn",
        "gather --sizes 4K",
        "scatter --sizes 4K -d float64",
        "sendrecv --sizes 4K",
        "barrier --sizes 4K",
        "pairs --sizes 4K -d uint32",
    )
    found, facts, log = rows(ranks, tmp_path, *cases)
    for line, mode, _, what, _ in found:
        if "-d int16" in line and line.startswith("allreduce"):
            assert what == "nccl-no-dtype"
        elif "band" in line:
            assert what == "nccl-no-reduction"
        else:
            assert what == "python verified True", (line, mode, what)
    assert {line for line, *_ in found} == set(cases)
    assert facts["nccl"] == "2.28.9" and facts["nccl_network"].startswith("none, ")
    assert facts["nccl_p2p"] == "P2P/CUMEM" and facts["nccl_channels"].startswith("4 coll")
    assert float(facts["nccl_init_s"]) > 0 and float(facts["nccl_first_call_s"]) > 0
    assert "NCCL_DEBUG=INFO" in log and "NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV\n" in log


def test_a_graph_is_captured_once_for_each_batch_and_replays_the_right_calls(ranks: Ranks, tmp_path: Path) -> None:
    found, _, log = rows(
        ranks,
        tmp_path,
        "allreduce --sizes 4K --in-place 1",
        "pairs --sizes 4K --mode isolated",
        "barrier --sizes 4K",
        GRAPH="1",
    )
    assert {(line.split()[0], what) for line, _, _, what, _ in found} == {
        ("allreduce", "graph verified True"),
        ("pairs", "graph verified True"),
        ("barrier", "nccl-barrier-in-graph"),
    }
    assert "captured 1\n" in log and any(f"captured {2**k}\n" in log for k in range(1, 11))
    assert log.count("graph released\n") == len(re.findall(r"captured \d+\n", log)) > 4


@pytest.mark.parametrize(
    ("how", "graph"),
    [
        ("one-shot", ""),
        pytest.param("two-shot", "1", marks=pytest.mark.slow),
        pytest.param("multimem", "", marks=pytest.mark.slow),
        pytest.param("multimem-one-shot", "1", marks=pytest.mark.slow),
    ],
)
def test_kernels_over_symmetric_memory_add_the_right_bytes(how: str, graph: str, ranks: Ranks, tmp_path: Path) -> None:
    cases = ("allreduce --sizes 4,4K -d float32", "allreduce --sizes 2,4K -d bfloat16", "allreduce --sizes 4K -o max")
    found, _, log = rows(
        ranks, tmp_path, *cases, "broadcast --sizes 4K", SYMMETRIC=how, **({"GRAPH": graph} if graph else {})
    )
    what = {(line.split()[0], line.split()[-1], size): said for line, _, size, said, _ in found}
    loop = "graph" if graph else "python"
    assert what["allreduce", "float32", 4] == what["allreduce", "bfloat16", 4096] == f"{loop} verified True"
    assert what["allreduce", "bfloat16", 2] == "symmetric-odd-size"
    assert what["allreduce", "max", 4096] == what["broadcast", "4K", 4096] == "symmetric-allreduce-only"
    measured = [flags for *_, said, flags in found if "verified" in said]
    assert measured and all(f"algorithm: symmetric/{how}" in flags for flags in measured)
    assert f"symmetric {how} 1024" in log


@pytest.mark.parametrize(
    ("how", "env", "code"),
    [
        pytest.param("multimem", {"FAKE_NO_MULTICAST": "1"}, "symmetric-no-multicast", marks=pytest.mark.slow),
        pytest.param("two-shot", {"FAKE_NO_PEERS": "1"}, "symmetric-no-peer-access", marks=pytest.mark.slow),
        pytest.param("one-shot", {"FAKE_NO_SYMMETRIC": "1"}, "symmetric-not-in-torch", marks=pytest.mark.slow),
    ],
)
def test_what_symmetric_memory_lacks_is_named(
    how: str, env: dict[str, str], code: str, ranks: Ranks, tmp_path: Path
) -> None:
    found, *_ = rows(ranks, tmp_path, "allreduce --sizes 4K", SYMMETRIC=how, **env)
    assert {said for *_, said, _ in found} == {code}


def test_symmetric_memory_joins_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(empty=None, rendezvous=None)
    monkeypatch.setattr("importlib.import_module", lambda name: library)
    torch = SimpleNamespace(
        ops=SimpleNamespace(symm_mem=SimpleNamespace(two_shot_all_reduce_=None)), __version__="2.13"
    )
    memory = _symmetric_memory.SymmetricMemory(torch, SimpleNamespace(index=0), "two-shot")
    memory.agree([memory.open(RankInfo(0, 4, 0, 2, "torchrun")), None])
    step = Collective("allreduce", 8, 8)
    skip = memory.unsupported_reason(step, Reduction("float32", "sum"), True)
    assert skip is not None and skip.code == SymmetricRefusal.SEVERAL_NODES and not memory.is_usable


@pytest.mark.parametrize(
    ("dtype", "in_place", "code"), [("int32", False, "NO_DTYPE"), ("float32", True, "OUT_OF_PLACE")]
)
def test_what_its_kernels_cannot_add(dtype: str, in_place: bool, code: str) -> None:
    memory = _symmetric_memory.SymmetricMemory(None, None, "one-shot")
    skip = memory.unsupported_reason(Collective("allreduce", 8, 8), Reduction(dtype, "sum"), in_place)
    assert skip is not None and skip.code == SymmetricRefusal[code]


@pytest.mark.slow
def test_messages_that_cannot_be_captured_are_skipped(ranks: Ranks, tmp_path: Path) -> None:
    found, *_ = rows(
        ranks, tmp_path, "pairs --sizes 4K", "allreduce --sizes 4K --mode isolated", GRAPH="1", FAKE_NO_CAPTURE="1"
    )
    assert {what for line, _, _, what, _ in found if line.startswith("pairs")} == {"nccl-failed"}
    assert found[-1][3] == "graph verified True"


@pytest.mark.slow
def test_a_gpu_that_is_full_on_one_rank_fails_the_size_on_all_and_the_next_goes_on(
    ranks: Ranks, tmp_path: Path
) -> None:
    found, _, log = rows(
        ranks,
        tmp_path,
        "allreduce --sizes 4K,8G,1M,8K --cache hot --mode isolated",
        FAKE_GPU_BYTES=str(8 << 30),
        FAKE_FULL_RANK="1",
    )
    said = {num_bytes: what for _, _, num_bytes, what, _ in found}
    assert said[4096] == said[8192] == "python verified True"
    assert holds(said[1 << 20], "out of memory") and said[8 << 30] == "no-memory"
    tried = [line for line in log.splitlines() if line.startswith("rank1 out of memory")]
    assert tried[0] == tried[1] and log.index("rank1 cache emptied") < log.rindex(tried[0])


@pytest.mark.slow
def test_ranks_that_share_a_gpu_say_so_in_every_row_and_have_no_bound(ranks: Ranks) -> None:
    done = ranks(
        "-m",
        "bench.allreduce",
        "--transport",
        "nccl",
        "--sizes",
        "4K",
        "-n",
        "3",
        "--format",
        "json",
        "--share-gpu",
        "1",
        env={"FAKE_GPUS": "1"},
    )
    assert [one.code for one in done] == [0, 0], done[0].err + done[1].err
    document = json.loads(done[0].out)
    header = document["headers"]["allreduce"]
    assert header["facts"]["shared_gpu"] == "yes" and any("shared_gpu" in note for note in header["notes"])
    for row in document["summaries"]:
        assert "shared_gpu" in row["flags"] and row["bound_bytes_per_s"] is None and row["verified"]
    hosts = {word for word in done[0].log.split() if word.startswith("NCCL_HOSTID=")}
    assert len(hosts) == 2, "an NCCL before 2.30.3 is told of two hosts"
    assert done[0].log.count("device cuda:0") == 2


@pytest.mark.slow
def test_products_run_on_a_stream_beside_the_collective_and_both_are_checked(ranks: Ranks) -> None:
    done = ranks(
        "-m",
        "bench.overlap",
        "--transport",
        "nccl",
        "--sizes",
        "64K",
        "--mode",
        "isolated",
        "-n",
        "21",
        "-w",
        "1",
        "--format",
        "json",
        env={},
    )
    assert [one.code for one in done] == [0, 0], done[0].err + done[1].err
    document = json.loads(done[0].out)
    assert document["summaries"][0]["verified"]
    (overlap,) = document["overlaps"]
    assert overlap["dtype"] == "bfloat16" and overlap["factor"] > 0 and overlap["product_factor"] > 0


def test_an_unusable_gpu_of_one_rank_ends_all_ranks(ranks: Ranks) -> None:
    done = ranks(
        "-m",
        "bench.allreduce",
        "--transport",
        "nccl",
        "--sizes",
        "4K",
        "--format",
        "json",
        env={"FAKE_BROKEN_RANK": "1"},
    )
    assert [one.code for one in done] == [3, 3], done[0].err + done[1].err
    assert "rank 1 " in done[0].err and "cuda:1 (CUDA error: " in done[0].err
    assert "did not" not in done[0].err and "bench: error" not in done[1].err


@pytest.mark.slow
def test_a_rank_that_cannot_open_nccl_reports_it_itself(ranks: Ranks) -> None:
    done = ranks(
        "-m",
        "bench.allreduce",
        "--transport",
        "nccl",
        "--sizes",
        "4K",
        "--timeout",
        "3",
        env={"FAKE_LOST_RANK": "1"},
    )
    assert [one.code for one in done] == [3, 3], done[0].err + done[1].err
    assert "cuda:1 (NCCL error in: ProcessGroupNCCL.cpp:1, unhandled" in done[1].err


@pytest.mark.parametrize(
    ("require", "env", "code", "words"),
    [
        ("network=efa", {"FAKE_NCCL_NETWORK": "Socket"}, 4, "network=efa was demanded, and NCCL used socket (rank 0"),
        pytest.param(
            "algorithm=tree", {}, 4, "algorithm=tree was demanded, and NCCL used ring (desk", marks=pytest.mark.slow
        ),
        pytest.param(
            "network=efa",
            {"NCCL_DEBUG": "WARN"},
            4,
            "(NCCL_DEBUG is set",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "network=socket,algorithm=ring,protocol=ll", {"FAKE_NCCL_NETWORK": "Socket"}, 0, "", marks=pytest.mark.slow
        ),
    ],
)
def test_what_nccl_used_is_held_against_what_was_demanded(
    require: str, env: dict[str, str], code: int, words: str, ranks: Ranks
) -> None:
    done = ranks(
        "-m",
        "bench.allreduce",
        "--transport",
        "nccl",
        "--sizes",
        "4K",
        "-n",
        "2",
        "--mode",
        "isolated",
        "--timeout",
        "5",
        "--require",
        require,
        "--format",
        "json",
        env=env,
    )
    assert done[0].code == code and words in done[0].err, done[0].err
    if code == 0:
        (row,) = json.loads(done[0].out)["summaries"]
        assert "algorithm: ring/ll" in row["flags"]


# ---------------------------------------------------------------------------------------------- refusals


def fake_torch(**changes: Any) -> Any:
    """As much of torch as the question needs, on a machine with two GPUs."""
    given: dict[str, Any] = {"built": "13.0", "hip": None, "nccl": True, "gpus": 2, "says": ""} | changes

    def init() -> None:
        if given["says"]:
            raise RuntimeError(given["says"])

    return SimpleNamespace(
        __version__="2.11",
        version=SimpleNamespace(cuda=given["built"], hip=given["hip"]),
        distributed=SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: given["nccl"]),
        cuda=SimpleNamespace(device_count=lambda: given["gpus"], is_available=lambda: given["gpus"] > 0, init=init),
    )


@pytest.mark.parametrize(
    ("changes", "devices", "environ", "words"),
    [
        ({"built": None}, (), {}, "(2.11) was built without CUDA"),
        ({"nccl": False}, ("nvidiactl", "nvidia0"), {}, "built without NCCL"),
        ({"built": None, "hip": "6.4"}, ("kfd",), {}, None),
        ({"built": None, "hip": "6.4", "gpus": 0}, (), {}, "no AMD driver is loaded"),
        ({"built": None, "hip": "6.4", "gpus": 0}, ("kfd",), {"HIP_VISIBLE_DEVICES": ""}, "HIP_VISIBLE_DEVICES=''"),
        (
            {"built": None, "hip": "6.4", "gpus": 0, "says": "no ROCm"},
            ("kfd",),
            {},
            "the AMD driver is loaded (no ROCm)",
        ),
        ({"built": None, "hip": "6.4", "gpus": 1}, ("kfd",), {"ROCR_VISIBLE_DEVICES": "3"}, None),
        ({"gpus": 0}, (), {}, "no NVIDIA driver is loaded"),
        ({"gpus": 0}, ("nvidiactl",), {}, "(no error was reported)"),
        ({"gpus": 0, "says": "The driver is too old.\nMore"}, ("nvidiactl",), {}, "(The driver is too old)"),
        (
            {"gpus": 0},
            ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"),
            {"CUDA_VISIBLE_DEVICES": ""},
            "CUDA_VISIBLE_DEVICES='' hides all 2",
        ),
        ({"gpus": 1}, ("nvidiactl", "nvidia0"), {}, "--share-gpu 1"),
        ({"gpus": 1}, ("nvidiactl", "nvidia0"), {"CUDA_VISIBLE_DEVICES": "3"}, None),
        ({}, ("nvidiactl",), {}, None),
    ],
)
def test_the_problem_of_a_rank_without_a_gpu(
    changes: dict[str, Any], devices: tuple[str, ...], environ: dict[str, str], words: str | None, tmp_path: Path
) -> None:
    for name in devices:
        (tmp_path / name).touch()
    said = _nccl_gpu.problem(fake_torch(**changes), RankInfo(1, 2, 1, 2, "torchrun"), False, environ, tmp_path)
    assert (said is None) if words is None else (said is not None and words in said)


def test_more_ranks_than_gpus_may_share_when_asked() -> None:
    assert _nccl_gpu.problem(fake_torch(gpus=1), RankInfo(1, 2, 1, 2, "torchrun"), True, {}) is None


def test_a_torch_without_cuda_is_refused_for_real() -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    with pytest.raises(RefusedError, match=rf"rank 0: .*{re.escape(torch.__version__)}.* CUDA"):
        nccl.TRANSPORT(RankInfo(0, 1, 0, 1, "direct"), Options())


def test_new_libraries_share_by_a_setting_and_old_ones_by_host_ids() -> None:
    place = RankInfo(3, 4, 3, 4, "torchrun")
    environ: dict[str, str] = {"NCCL_NVLS_ENABLE": "1"}
    _nccl_gpu.allow_sharing(environ, (2, 30, 3), place, 1)
    off = {"NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0"}
    assert environ == {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8", **off}
    environ = {}
    _nccl_gpu.allow_sharing(environ, (2, 29, 7), place, 1)
    assert environ.pop("NCCL_HOSTID").endswith("-rank3") and environ == off


def test_the_version_is_that_of_the_library_that_runs() -> None:
    def answer(number: Any) -> int:
        number._obj.value = 23007
        return 0

    torch = SimpleNamespace(cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 28, 9, "git"))))
    assert _nccl_gpu.version(torch, SimpleNamespace(ncclGetVersion=answer)) == (2, 30, 7)
    assert _nccl_gpu.version(torch, None) == (2, 28, 9)


class Recorder:
    """As much of torch.cuda as a capture needs: what is called meanwhile is kept, and not carried out."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.kept: list[int] | None = None
        self.cuda = self
        stream = SimpleNamespace(wait_stream=lambda other: None)
        self.Stream = self.current_stream = lambda: stream
        self.stream = lambda stream: contextlib.nullcontext()
        self.synchronize = lambda: None
        self.CUDAGraph = lambda: SimpleNamespace(reset=lambda: None)

    def call(self, index: int) -> None:
        """One call of the library on a buffer set."""
        (self.done if self.kept is None else self.kept).append(index)

    @contextlib.contextmanager
    def graph(self, graph: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        """A capture; NCCL's watchdog would break a global one."""
        assert capture_error_mode == "thread_local"
        self.kept = kept = list[int]()
        yield
        self.kept = None
        graph.replay = lambda: self.done.extend(kept)


def test_a_graph_holds_a_batch_from_its_first_set_around_and_is_captured_once() -> None:
    cuda = Recorder()
    graphs = Graphs(cuda, [partial(cuda.call, index) for index in range(3)])
    replay = graphs.replay(2, 4)
    assert cuda.done == [2, 2, 0, 1, 2], "a call to set up, and a first launch"
    replay()
    graphs.replay(2, 4)()
    assert cuda.done[5:] == [2, 0, 1, 2] * 2


@pytest.mark.parametrize("num_sets", [1, 2, 7, 64])
@pytest.mark.parametrize("num_calls", [1, 2, 5, 64, 1024])
def test_replayed_batches_use_most_sets_and_few_graphs(num_sets: int, num_calls: int) -> None:
    starts, used, following = set(), set(), 0
    for _ in range(3 * num_sets):
        start = start_of(following, num_calls, num_sets)
        order = [(start + k) % num_sets for k in range(num_calls)]
        starts.add(start)
        used.update(order)
        following = (order[-1] + 1) % num_sets
    assert 2 * len(used) > num_sets
    assert len(starts) * num_calls <= max(num_sets, num_calls)


@pytest.mark.parametrize(("total_gib", "reserve_gib"), [(8, 2), (16, 2), (24, 3), (80, 5), (141, 5)])
def test_the_reserve_is_that_of_nccl_tests_and_one_more(total_gib: int, reserve_gib: int) -> None:
    assert _nccl_gpu.reserve_bytes(total_gib << 30) == reserve_gib << 30


@pytest.mark.parametrize(("visible", "alone"), [("", True), (None, False)])
def test_a_rank_without_visible_gpus_reports_it_itself(
    visible: str | None, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("bench.transports._torch.load_torch", lambda: fake_torch(gpus=0))
    with pytest.raises(RefusedError, match="rank 1: ") as refused:
        nccl.Nccl(RankInfo(1, 2, 1, 2, "torchrun"), Options())
    assert refused.value.of_one_rank is alone


def test_a_gpu_is_unusable_for_any_exception_of_torch() -> None:
    def deferred(device: Any) -> None:
        raise Exception("CUDA call failed lazily")  # as torch's own DeferredCudaCallError

    torch = fake_torch()
    torch.cuda.set_device = deferred
    assert "cuda:1 (CUDA call failed lazily)" in str(_nccl_gpu.unusable(torch, "cuda:1", 1))


STEPS = """
import json, os
import torch
from bench.core import plugins
from bench.core.case import Case
from bench.core.case_argv import from_argv
from bench.core.training_step import SEGMENTS, StepVariant
from bench.core.transport import Options
from bench.rank import session, training_step
from bench.rank.placement import place
from bench.transports.strategies import _groups

def checked():
    wrong = training_step._first_wrong(transport.channel.share(trainer.check()))
    return wrong and wrong.text

me = place(os.environ)
transport = plugins.load("transport", "nccl").TRANSPORT(me, Options(timeout_s=30.0, case=Case("step")))
world = session.world_of(("here",) * me.num_ranks)
found = {}
for line in os.environ["CASES"].split("|"):
    plan = training_step.plan_of(from_argv(("step --transport nccl " + line).split()), world)
    if skip := transport.untrainable(plan):
        found[line] = skip.code
        continue
    trainer = transport.trainer(plan)
    runs = {variant: trainer.run(variant, 2)[-1] for variant in StepVariant}
    segments = dict(zip(SEGMENTS, runs[StepVariant.FULL].segments_s))
    found[line] = {
        "wrong": checked(),
        "steps": {variant: one.step_s for variant, one in runs.items()},
        "segments": segments,
        "buckets": runs[StepVariant.FULL].buckets,
        "peaks": trainer.device_peaks(),
    }
    if line in os.environ["UNWAITED"].split("|"):
        waiting, stream = _groups._waiting_class(torch), torch.cuda.synchronize.__globals__
        kept, waiting.wait, stream["_CALL_S"] = waiting.wait, lambda work, *timeout: True, 0.05
        found[line]["unwaited"] = checked()
        waiting.wait, stream["_CALL_S"] = kept, 0.0
if me.rank == 0:
    print("FOUND" + json.dumps(found))
transport.close()
"""


def test_training_steps_are_timed_by_events_and_have_exact_gradients(ranks: Ranks, tmp_path: Path) -> None:
    layers = "--timed layers=4,forward=2ms,backward=4ms,bytes=64K"
    waiting = ("tensor", "expert", "pipeline", "gossip", "async_sgd")
    strategies = ("ddp", "zero1", *waiting)
    cases = [f"{layers} --micro-batches 2", *(f"{layers} --strategy {one}" for one in strategies)]
    slow_loader = f"{layers},data=200ms"
    late = f"{layers} --inject rank=0,segment=h2d,delay=5ms;rank=0,segment=optimizer,delay=6ms"
    script = tmp_path / "steps.py"
    script.write_text(STEPS, encoding="utf-8")
    refused = [f"{layers} --hook powersgd:2"]
    asked = "|".join((*cases, late, slow_loader, *refused))
    unwaited = [f"{layers} --strategy {one}" for one in waiting]
    done = ranks(str(script), env={"CASES": asked, "UNWAITED": "|".join(unwaited)})
    assert [one.code for one in done] == [0, 0], done[0].err[-2000:] + done[1].err[-2000:]
    found = json.loads(done[0].out.partition("FOUND")[2])
    assert [found.pop(one) for one in refused] == [NcclRefusal.NO_MATRICES]
    assert [one for one in unwaited if not found[one]["unwaited"]] == []  # a stream that does not wait has wrong values
    for case, one in found.items():
        # A pipeline has half of the layers on each rank, and four micro-batches.
        passes = 2 if "micro" in case or "pipeline" in case else 0.5 if "tensor" in case else 1
        assert one["wrong"] is None, case
        # Kernels that spin take this time on the stream; on the host's clock, their launches take none. Their length is
        # given in cycles, and the rate of cycles is measured. On a busy machine, this rate may be too low.
        least = _SURE_SHARE * 4 * passes
        assert one["segments"]["forward"] >= least * 2e-3, case
        assert one["segments"]["backward"] >= least * 4e-3, case
        assert all(one["steps"][variant] >= least * 6e-3 for variant in one["steps"]), case
        assert one["peaks"] == {"allocated": 3 << 20, "reserved": 4 << 20}
    # The host loads a batch while the GPU still works, so only the rest of a slow loader's time is on the stream.
    assert found[slow_loader]["segments"]["data"] >= 0.05
    assert len(found[cases[1]]["buckets"]) == 1
    segments = found[late]["segments"]
    assert segments["h2d"] >= _SURE_SHARE * 5e-3 and segments["optimizer"] >= _SURE_SHARE * 6e-3
