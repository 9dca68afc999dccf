"""The loop of `nccl_direct` beside a plain C program of nccl-tests' shape, on the same NCCL: what does our loop add?

    python -m benchmarks.nccl_direct                       # over stand-ins of NCCL and the CUDA runtime
    python -m benchmarks.nccl_direct --libraries FOLDER    # a folder with libnccl.so.2 and libcudart.so.13

The two programs take turns. Printed are the medians over launches of the median sample, and their ratio with its
interval. Both begin and end a sample with an event. The two programs take turns at going first. Over stand-ins, all
threads of a rank run on one CPU, because a rank has two threads that are busy, and a small machine has fewer CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.results import stats
from tests.fakes import nccl_c

_HERE = Path(__file__).parent
_OURS = """
import json, os, sys
from statistics import median
from bench.core import plugins
from bench.core.program import Collective, Group
from bench.core.transport import Options, Reduction
from bench.rank.placement import place

num_bytes, calls, samples = map(int, sys.argv[1:])
me = place(os.environ)
if "BIND_RANKS" in os.environ:
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[me.rank % len(cpus)]})
transport = plugins.load("transport", "nccl_direct").TRANSPORT(me, Options())
world = Group("world", tuple(range(me.num_ranks)))
buffers = transport.allocate(num_bytes, num_bytes, 1)
step = Collective("allreduce", num_bytes, num_bytes)
program = transport.compile((step,), world, buffers, Reduction("float32", "sum"), False)
taken = [transport.time_batch(program, calls) for _ in range(samples + 5)][5:]
mine = [(each.enqueue_s[0] * 1e9, each.host_s[0] * 1e9) for each in taken]
shared = transport.channel.gather(mine)
if shared:
    print(json.dumps([[max(rank[k][j] for rank in shared) for j in (0, 1)] for k in range(samples)]))
transport.close()
"""


def main() -> None:
    """Compare, and print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8,65536")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--bind", choices=("own", "none"), help="threads of a rank on one CPU of its own (stand-ins)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = given.libraries or nccl_c.libraries(Path(name))
        plain, script = Path(name) / "nccl_loop", Path(name) / "ours.py"
        found = [f"-L{folder}", "-l:libnccl.so.2", "-l:libcudart.so.13", f"-Wl,-rpath,{folder}"]
        subprocess.run(["cc", "-O2", "-o", str(plain), str(_HERE / "nccl_loop.c"), *found], check=True)
        script.write_text(_OURS, encoding="utf-8")
        for num_bytes in map(int, given.sizes.split(",")):
            _compare(given, num_bytes, plain, script, folder)


def _compare(given: argparse.Namespace, num_bytes: int, plain: Path, script: Path, folder: Path) -> None:
    numbers = [str(num_bytes), str(given.calls), str(given.samples)]
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "STANDIN_GPUS": str(given.ranks)}
    if given.bind == "own" or (given.bind is None and given.libraries is None):
        env["BIND_RANKS"] = "1"
    mpirun = [str(Path(sys.executable).parent / "mpirun"), "-n", str(given.ranks)]
    theirs, ours = [], []

    def run_plain() -> None:
        lines = _output([str(plain), str(given.ranks), *numbers], env).splitlines()
        theirs.append(_medians([[float(word) for word in line.split()] for line in lines]))

    def run_ours() -> None:
        ours.append(_medians(json.loads(_output([*mpirun, sys.executable, str(script), *numbers], env))))

    for launch in range(given.launches):
        for run in (run_plain, run_ours) if launch % 2 == 0 else (run_ours, run_plain):
            run()
    for index, what in enumerate(("issued", "complete")):
        a, b = [each[index] for each in ours], [each[index] for each in theirs]
        around = stats.interval([x / y for x, y in zip(a, b, strict=True)])
        more = median(x - y for x, y in zip(a, b, strict=True))
        shown = "-" if around is None else f"{around[0]:.3f}..{around[1]:.3f}"
        print(
            f"{num_bytes:>9} B {what:>9}: ours {median(a):9.0f} ns a call, plain {median(b):9.0f}, difference "
            f"{more:+8.0f} ns, ratio {median(x / y for x, y in zip(a, b, strict=True)):.3f} (95 %: {shown})"
        )


def _medians(samples: list[list[float]]) -> tuple[float, float]:
    return median(each[0] for each in samples), median(each[1] for each in samples)


def _output(words: list[str], env: dict[str, str]) -> str:
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
