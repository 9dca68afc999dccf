"""The loop of `nccl_direct` beside a C loop of nccl-tests' shape, on the same NCCL: what does our loop add?

    python -m benchmarks.nccl_direct                       # over stand-ins of NCCL and the CUDA runtime
    python -m benchmarks.nccl_direct --libraries FOLDER    # a folder with libnccl.so.2 and libcudart.so.13
    python -m benchmarks.nccl_direct --apart               # the C loop as a program of its own

Both loops run in turns in the same processes, with the same communicator, stream and buffers. A launch takes pairs of
blocks, each of ten samples after some that are not kept, and a second block of the C loop. Printed are the medians over
launches of the median block, the median of ours / C, and that of C / C, which is 1 except for what the machine adds.
Their intervals are by order statistics over launches. With `--apart`, each program has launches of its own, and the C
program has twice as many. Over stand-ins, all threads of a rank run on one CPU, because a rank has two threads that are
busy, and a small machine has fewer CPUs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.core import plugins
from bench.core.program import Collective, Group
from bench.core.transport import Options, Reduction
from bench.rank.placement import place
from bench.results import stats
from bench.transports import _shared_page
from tests.fakes import nccl_c

_SOURCE = Path(__file__).with_name("nccl_loop.c")
_LEAD, _BLOCK, _PAGE = 5, 10, 4096
_WHAT = ("issued", "complete")
Block = tuple[list[float], list[float]]  # nanoseconds per call of each sample, until issued and until complete
Launch = dict[str, list[list[float]]]  # of each loop: until issued and until complete, a figure of each block


def main() -> None:
    """Compare, and print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=Path, metavar="FOLDER")
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    parser.add_argument("--sizes", default="8,65536", metavar="BYTES")
    parser.add_argument("--calls", type=int, default=20, metavar="N", help="of a sample (20)")
    parser.add_argument("--pairs", type=int, default=120, metavar="N", help="of blocks, for each size and launch (120)")
    parser.add_argument("--launches", type=int, default=10, metavar="N")
    parser.add_argument("--apart", action="store_true", help="each program in launches of its own")
    parser.add_argument("--bind", choices=("own", "none"), help="threads of a rank on one CPU of its own (stand-ins)")
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)  # set for the ranks
    given = parser.parse_args()
    if given.library:
        _rank(given)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = given.libraries or nccl_c.libraries(Path(name))
        found = [f"-L{folder}", "-l:libnccl.so.2", "-l:libcudart.so.13", f"-Wl,-rpath,{folder}"]
        library, program = Path(name) / "libplain.so", Path(name) / "plain"
        for words, into in (["-shared", "-fPIC"], library), ([], program):
            subprocess.run(["cc", "-O2", *words, "-o", str(into), str(_SOURCE), *found], check=True)
        env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "STANDIN_GPUS": str(given.ranks)}
        if given.bind == "own" or (given.bind is None and given.libraries is None):
            env["BIND_RANKS"] = "1"
        for num_bytes in given.sizes.split(","):
            launches = _apart if given.apart else _together
            _show(int(num_bytes), launches(given, num_bytes, library, program, env))


def _together(given: argparse.Namespace, size: str, library: Path, program: Path, env: dict[str, str]) -> list[Launch]:
    words = ["--sizes", size, "--calls", str(given.calls), "--pairs", str(given.pairs), "--library", str(library)]
    return [json.loads(_ranks(given, words, env)) for _ in range(given.launches)]


def _apart(given: argparse.Namespace, size: str, library: Path, program: Path, env: dict[str, str]) -> list[Launch]:
    samples = str(given.pairs * _BLOCK)
    words = ["--sizes", size, "--calls", str(given.calls), "--pairs", str(given.pairs), "--apart"]

    def theirs() -> list[list[float]]:
        lines = _output([str(program), str(given.ranks), size, str(given.calls), samples], env).splitlines()
        return [[median(times)] for times in zip(*(map(float, line.split()) for line in lines), strict=True)]

    def ours() -> list[list[float]]:
        alone: Launch = json.loads(_ranks(given, [*words, "--library", str(library)], env))
        return [[median(times)] for times in alone["ours"]]

    launches: list[Launch] = []
    runs: list[tuple[str, Callable[[], Any]]] = [("ours", ours), ("C", theirs), ("C again", theirs)]
    for launch in range(given.launches):
        order = runs[launch % 3 :] + runs[: launch % 3]
        launches.append({name: run() for name, run in (order if launch % 2 else reversed(order))})
    return launches


def _ranks(given: argparse.Namespace, words: Sequence[str], env: dict[str, str]) -> str:
    mpirun = [str(Path(sys.executable).parent / "mpirun"), "-n", str(given.ranks), sys.executable, "-m"]
    return _output([*mpirun, "benchmarks.nccl_direct", *words], env)


def _rank(given: argparse.Namespace) -> None:
    """Take the blocks of one launch, and print them on rank 0, those of the slowest rank."""
    me, num_bytes = place(os.environ), int(given.sizes)
    if "BIND_RANKS" in os.environ:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[me.rank % len(cpus)]})
    transport = plugins.load("transport", "nccl_direct").TRANSPORT(me, Options())
    world = Group("world", tuple(range(me.num_ranks)))
    buffers = transport.allocate(num_bytes, num_bytes, 1)
    step = Collective("allreduce", num_bytes, num_bytes)
    program = transport.compile((step,), world, buffers, Reduction("float32", "sum"), False)
    page = _shared_page.of_this_host(transport.channel, me, _PAGE)
    library = ctypes.CDLL(str(given.library))

    def ours() -> Block:
        taken = [transport.time_batch(program, given.calls) for _ in range(_LEAD + _BLOCK)][_LEAD:]
        return [each.enqueue_s[0] * 1e9 for each in taken], [each.host_s[0] * 1e9 for each in taken]

    def theirs() -> Block:
        only, times = program.native.steps[0], [(ctypes.c_double * _BLOCK)() for _ in _WHAT]
        addresses = map(ctypes.c_void_p, (only.comm, transport._loop._stream, only.send, only.recv))
        meeting = ctypes.c_void_p(_shared_page.address(page))
        failed = library.block(
            meeting, me.num_ranks, *addresses, ctypes.c_size_t(num_bytes), given.calls, _BLOCK, *times
        )
        assert not failed
        return list(times[0]), list(times[1])

    loops: list[tuple[str, Callable[[], Block]]] = [("ours", ours), ("C", theirs), ("C again", theirs)]
    loops = loops[:1] if given.apart else loops
    taken: dict[str, list[Block]] = {name: [] for name, _ in loops}
    for pair in range(given.pairs + 1):
        order = loops[pair % len(loops) :] + loops[: pair % len(loops)]
        for name, loop in order if pair % 2 else reversed(order):
            taken[name].append(loop())
    shared = transport.channel.gather(taken)
    if shared:
        print(json.dumps({name: _figures([of[name][1:] for of in shared]) for name in taken}))  # the first is warm-up
    transport.close()


def _figures(by_rank: list[list[Block]]) -> list[list[float]]:
    """Of each block the median over samples of the slowest rank: until issued, and until complete."""
    return [
        [median(map(max, zip(*(rank[k][j] for rank in by_rank), strict=True))) for k in range(len(by_rank[0]))]
        for j in range(len(_WHAT))
    ]


def _show(num_bytes: int, launches: list[Launch]) -> None:
    for j, what in enumerate(_WHAT):
        ours, plain, again = ([each[name][j] for each in launches] for name in ("ours", "C", "C again"))
        more = median(x - y for a, b in zip(ours, plain, strict=True) for x, y in zip(a, b, strict=True))
        times = " ".join(f"{median(map(median, of)):9.0f}" for of in (ours, plain))
        print(
            f"{num_bytes:>9} B {what:>9}: ours, C {times} ns a call, {more:+7.0f} ns, "
            f"ours / C {_ratio(ours, plain)}, C / C {_ratio(again, plain)}",
            flush=True,
        )


def _ratio(above: list[list[float]], below: list[list[float]]) -> str:
    """The median over launches of the median ratio of neighbouring blocks, and its interval."""
    ratios = [median(x / y for x, y in zip(a, b, strict=True)) for a, b in zip(above, below, strict=True)]
    around = stats.interval(ratios)
    return f"{median(ratios):.3f} (95 %: {'-' if around is None else f'{around[0]:.3f}..{around[1]:.3f}'})"


def _output(words: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, cwd=_SOURCE.parent.parent)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
