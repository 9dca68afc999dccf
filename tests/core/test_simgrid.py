"""Fair shares against SimGrid (model CM02, no cross-traffic), where it is installed: Debian's python3-simgrid."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from bench.core.fabric import Fabric, Flow
from bench.core.links import NodeLinks
from bench.core.schedules import Call, Floats, schedule
from bench.core.world import World
from bench.hardware import catalogue

SCRIPT = Path(__file__).with_name("simgrid_times.py")
LATENCY_S = 1e-6  # of every way: SimGrid's shares depend on latency as TCP's do, ours do not
GIB = float(1 << 30)


@cache
def _there() -> str | None:
    """Why SimGrid can not be asked; None when it can."""
    tried = subprocess.run([sys.executable, "-c", "import simgrid"], capture_output=True, text=True, check=False)
    last = (tried.stderr.strip().splitlines() or [""])[-1]
    return f"SimGrid's Python module is not usable here ({last})" if tried.returncode else None


def links(**changes: object) -> NodeLinks:
    given = {"nvlink_bytes_per_s": 300e9, "pcie_bytes_per_s": 15.754e9, "nic_bytes_per_s": 12.5e9, "num_nics": 4}
    seconds = dict.fromkeys(("peer_s", "host_s", "network_s"), LATENCY_S)
    return NodeLinks("node", 8, **{"peer": "nvswitch", **given, **seconds, **changes})  # type: ignore[arg-type]


def collective(op: str, algorithm: str, fabric: Fabric) -> Floats:
    world = fabric.world
    call = Call(tuple(range(world.num_ranks)), world.ranks_per_node, GIB, reduces=fabric.links.reduces)
    phases = schedule(op, algorithm, call)
    assert phases
    return max((phase.flows for phase in phases), key=lambda flows: float(flows[:, 2].sum()))


P4D_NICS = Fabric(links(), World(2, 8))
NO_P2P = Fabric(links(peer="host"), World(1, 8))
FAT_TREE = Fabric(links(nodes_per_leaf=2, oversubscription=3.0), World(4, 4))
CARDS = Fabric(links(peer="pcie_p2p", gpus_per_pcie_switch=4), World(1, 8))
CASES: dict[str, tuple[Fabric, Floats | tuple[Flow, ...]]] = {
    "ring of two nodes": (P4D_NICS, collective("allreduce", "ring", P4D_NICS)),
    "pipelined of two nodes": (P4D_NICS, collective("allreduce", "pipelined", P4D_NICS)),
    "alltoall of two nodes": (P4D_NICS, collective("alltoall", "pairwise", P4D_NICS)),
    "through host memory": (NO_P2P, collective("allreduce", "ring", NO_P2P)),
    "shared PCIe switches": (CARDS, tuple((rank, (rank + 3) % 8, GIB) for rank in range(8))),
    "incast": (P4D_NICS, tuple((rank, 0, GIB / rank) for rank in range(1, 16))),
    "unequal messages": (P4D_NICS, ((0, 8, GIB), (1, 9, GIB / 4), (2, 10, GIB / 8), (0, 1, GIB), (3, 8, GIB / 2))),
    "oversubscribed uplinks": (FAT_TREE, tuple((rank, (rank + 8) % 16, GIB) for rank in range(16))),
    "p5, all to the next node": (
        Fabric(catalogue.node_links("p5.48xlarge"), World(4, 8)),
        tuple((rank, (rank + 8) % 32, GIB) for rank in range(32)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_messages_take_as_long_as_in_simgrid(name: str) -> None:
    if (reason := _there()) is not None:
        pytest.skip(reason)
    fabric, flows = CASES[name]
    paths, latencies, num_bytes = fabric.routes(flows)
    none = len(fabric.capacity) - 1
    used = sorted({int(link) for path in paths for link in path if link < none})
    place = {link: k for k, link in enumerate(used)}
    asked = {
        "capacity": [float(fabric.capacity[link]) for link in used],
        "paths": [[place[int(link)] for link in path if link < none] for path in paths],
        "latency_s": LATENCY_S,
        "bytes": num_bytes.tolist(),
    }
    told = subprocess.run(
        [sys.executable, str(SCRIPT)], input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=120
    )
    theirs = json.loads(told.stdout)
    ours = fabric.times_s(flows) - latencies + LATENCY_S
    assert ours.tolist() == pytest.approx(theirs, rel=0.01)
