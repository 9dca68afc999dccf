"""Our MPI loop beside a C loop of OSU's shape, in turns within one launch: does the loop itself cost anything?

    python -m benchmarks.mpi_pairs

Launches differ by far more than loops on a machine with noisy neighbours. Here, both loops run in the same processes,
over the same communicator and the same MPI library, so such differences cancel. The C loop is that of mpi_reference.c,
compiled as a library. Ours is the transport as `--like osu` opens it. Shown are the median ratio of neighbouring blocks
of calls and its 95 % interval by order statistics, and the same ratio of two blocks of the C loop, which is 1 except
for what the machine adds. The statistic of a block is OSU's: the mean over ranks of each rank's mean, and for ping-pong
the first rank's mean.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

from bench.core.case import Case, preset_fields
from bench.core.dtypes import dtype_of
from bench.core.pattern import Pattern, Shape
from bench.core.program import Group
from bench.core.transport import Reduction, Transport
from bench.rank import session
from bench.rank.placement import place
from bench.results import stats

_HERE = Path(__file__).resolve().parent
_PATTERNS = ("allreduce", "broadcast", "pingpong")
_SIZES = (8, 64, 1024, 4096, 16384, 65536, 262144)
_LARGE, _NUM_RANKS = 65536, 2
_LOOPS = ("ours", "C", "C again")
Figures = dict[str, list[float]]  # of each loop the seconds per call of each block


def main() -> None:
    """Start the ranks of each pattern, and print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, metavar="N", help="of blocks, for each size and launch (60)")
    parser.add_argument("--launches", type=int, default=3, metavar="N", help="of each pattern (3)")
    parser.add_argument("--calls", type=int, default=1000, metavar="N", help="of a block below 64 KiB (1000), else 1/5")
    parser.add_argument("--patterns", nargs="+", default=_PATTERNS, choices=_PATTERNS)
    parser.add_argument("--mpirun", type=Path, default=Path(sys.executable).parent / "mpirun")
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)  # set for the ranks
    args = parser.parse_args()
    if args.library:
        _rank(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libreference.so"
        words = ["-O2", "-shared", "-fPIC", "-o", library, _HERE / "mpi_reference.c"]
        subprocess.run([args.mpirun.with_name("mpicc"), *words], check=True)
        counts = ["--pairs", str(args.pairs), "--calls", str(args.calls), "--library", str(library)]
        print("pattern          size    ours (us)     C (us)   ours/C    95 % interval      C/C    95 % interval")
        for pattern in args.patterns:
            command = [str(args.mpirun), "--bind-to", "core", "-n", str(_NUM_RANKS), sys.executable]
            command += ["-m", "benchmarks.mpi_pairs", "--patterns", pattern, *counts]
            taken: dict[str, Figures] = {}
            for _ in range(args.launches):
                done = subprocess.run(command, check=True, cwd=_HERE.parent, stdout=subprocess.PIPE, text=True)
                for size, figures in json.loads(done.stdout).items():
                    own = taken.setdefault(size, {loop: [] for loop in _LOOPS})
                    for loop in _LOOPS:
                        own[loop] += figures[loop]
            for size, own in taken.items():
                _show(pattern, size, own)


def _rank(args: argparse.Namespace) -> None:
    """Take blocks of the loops in turns, and print the figures of one launch on rank 0."""
    (name,) = args.patterns
    me = place(os.environ)
    case = Case(name, transport="mpi", like="osu", **preset_fields("osu", name))
    opened = session.open_transport(case, me, lambda *_: None, 60.0)
    transport, pattern = opened.transport, opened.pattern
    library = ctypes.CDLL(str(args.library))
    library.block.restype = ctypes.c_double
    found: dict[int, Figures] = {}
    for size in _SIZES:
        calls = args.calls if size < _LARGE else max(1, args.calls // 5)
        theirs = _theirs(library, name, size, calls)
        loops = list(zip(_LOOPS, (_ours(transport, pattern, case, size, calls), theirs, theirs), strict=True))
        taken: Figures = {loop: [] for loop in _LOOPS}
        for pair in range(args.pairs + 1):
            order = loops[pair % len(loops) :] + loops[: pair % len(loops)]
            for loop, block in order if pair % 2 else reversed(order):
                taken[loop].append(block())
        shared = transport.channel.gather(taken)
        if shared is not None:
            by_rank = shared[:1] if name == "pingpong" else shared
            # the first pair is warm-up
            found[size] = {
                loop: list(map(fmean, zip(*(of[loop][1:] for of in by_rank), strict=True))) for loop in _LOOPS
            }
    if found:
        print(json.dumps(found))
    transport.close()


def _ours(transport: Transport, pattern: Pattern, case: Case, size: int, calls: int) -> Callable[[], float]:
    element = dtype_of(case.dtype).num_bytes
    shape = Shape(_NUM_RANKS, size, element, 0, "isolated", pattern.way(case.direction), case.window)
    steps = pattern.steps(shape, transport.place.rank)
    group = Group("world", tuple(range(_NUM_RANKS)))
    transport.open_groups((group,))
    buffers = transport.allocate(*pattern.buffers(shape, transport.place.rank), 1, steps)
    compiled = transport.compile(steps, group, buffers, Reduction(case.dtype, "sum"), False)
    operations = pattern.operations(shape)

    def block() -> float:
        return fmean(transport.time_each(compiled, calls).seconds) / operations

    return block


def _theirs(library: ctypes.CDLL, name: str, size: int, calls: int) -> Callable[[], float]:
    memory = [mmap.mmap(-1, size + 4096) for _ in range(2)]
    addresses = [ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(each))) for each in memory]

    def block() -> float:
        assert memory  # is kept
        return float(library.block(name.encode(), *addresses, size, calls)) / calls

    return block


def _show(pattern: str, size: str, taken: Figures) -> None:
    ours, plain, again = (taken[loop] for loop in _LOOPS)
    times = f"{median(ours) * 1e6:12.3f} {median(plain) * 1e6:10.3f}"
    print(f"{pattern:10} {size:>10} {times} {_ratio(ours, plain)} {_ratio(again, plain)}", flush=True)


def _ratio(above: list[float], below: list[float]) -> str:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    around = stats.interval(ratios)
    shown = "too few pairs" if around is None else f"{around[0]:.3f}..{around[1]:.3f}"
    return f"{median(ratios):8.3f} {shown:>16}"


if __name__ == "__main__":
    main()
