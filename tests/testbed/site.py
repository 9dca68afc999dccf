"""A site on the testbed: a folder with bench.yaml and a scenario, `linkbench run` on a host of it, ranks by hand."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.testbed.hosts import Ran, Testbed

ROOT = Path(__file__).resolve().parents[2]
BENCH = (sys.executable, "-m", "bench")


def make(
    bed: Testbed, measure: Sequence[Mapping[str, Any]], scenario: Mapping[str, Any] | None = None, **cluster: Any
) -> Path:
    """A folder that all hosts see, with the cluster `bed` and the scenario `it`."""
    folder = bed.shared / "site"
    (folder / "scenarios").mkdir(parents=True, exist_ok=True)
    keys = {"nodes": len(bed.hosts), "hosts": list(bed.hosts), "agent": bed.agent, "env": {"OMP_NUM_THREADS": "1"}}
    site = {"clusters": {"bed": {**keys, **cluster}}}
    (folder / "bench.yaml").write_text(yaml.safe_dump(site), encoding="utf-8")
    text = yaml.safe_dump({**(scenario or {}), "measure": [dict(entry) for entry in measure]})
    (folder / "scenarios" / "it.yaml").write_text(text, encoding="utf-8")
    return folder


def run(bed: Testbed, folder: Path, *words: str, timeout_s: float = 250) -> Ran:
    """`linkbench run it` on the first host."""
    command = [*BENCH, "run", "it", "--cluster", "bed", "--no-plots", *words]
    return bed.on(bed.hosts[0], command, env={"PYTHONPATH": str(ROOT)}, cwd=folder, timeout_s=timeout_s)


def settles(measure: Callable[[], float], near: Any, tries: int = 3) -> bool:
    """Is what is measured `near` (a pytest.approx) in one of some tries? Other work on the machine can spoil one."""
    values: list[float] = []
    while len(values) < tries:
        values.append(measure())
        if values[-1] == near:
            return True
    print("measured", values, "and not", near)
    return False


def measured(bed: Testbed, num_ranks: int, ranks_per_host: int, *argv: str, timeout_s: float = 250) -> Any:
    """The JSON document of `python -m bench.<argv>` on forked ranks over Gloo, which are there in a second."""
    import torch.distributed  # noqa: F401  once, for all of them

    from bench.rank import main
    from bench.transports.gloo import Gloo

    out = bed.shared / f"document-{os.getpid()}.json"

    def work(rank: int) -> int:
        Gloo.exits_at_once = False  # a forked rank reports its end to this process
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(num_ranks),
            LOCAL_RANK=str(rank % ranks_per_host),
            LOCAL_WORLD_SIZE=str(ranks_per_host),
            MASTER_ADDR=bed.address("h0"),
            MASTER_PORT="29500",
            GLOO_SOCKET_IFNAME="eth0",
        )
        with contextlib.suppress(SystemExit):
            main.run_pattern(argv[0], [*argv[1:], "--transport", "gloo", "--format", "json", "--output", str(out)])
        return 0

    bed.fork(num_ranks, ranks_per_host, work, timeout_s=timeout_s)
    return json.loads(out.read_text(encoding="utf-8"))
