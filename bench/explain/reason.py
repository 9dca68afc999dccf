"""A likely reason, and the commands that would show more."""

from __future__ import annotations

from dataclasses import dataclass

from bench.explain.evidence import RunEvidence

TOPOLOGY = "nvidia-smi topo -m"


@dataclass(frozen=True, slots=True)
class Reason:
    """One likely reason: what, the evidence with its numbers, and what to do next (words, and one command)."""

    what: str
    evidence: str
    weight: float
    step: str = ""
    command: str = ""


def listen(seen: RunEvidence) -> str:
    """The command that lets NCCL tell what it does."""
    test = f"{program(seen)} 2>&1 | python -m bench explain -"
    if seen.over_nics:
        return f"mpirun ... -x NCCL_DEBUG=INFO -x NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET {test}"
    return f"NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET {test}"


def program(seen: RunEvidence, first: str = "8") -> str:
    """The command of nccl-tests that measures this pattern: over the GPUs of a node, or under a launcher."""
    names = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
    pattern = seen.run.pattern or "allreduce"
    gpus = f" -g {seen.num_ranks}" if seen.num_nodes == 1 and seen.num_ranks else ""
    return f"{names.get(pattern, pattern)}_perf -b {first} -e 8G -f 2{gpus}"
