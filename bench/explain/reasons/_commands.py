"""Commands that several reasons propose."""

from __future__ import annotations

from bench.explain.evidence import RunEvidence

TOPOLOGY = "nvidia-smi topo -m"
_PROGRAMS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


def nccl_test(evidence: RunEvidence, first: str = "8") -> str:
    """Return the nccl-tests command for this pattern, on one node or under a launcher. `first`: the smallest size."""
    pattern = evidence.run.pattern or "allreduce"
    gpus = f" -g {evidence.num_ranks}" if evidence.num_nodes == 1 and evidence.num_ranks else ""
    return f"{_PROGRAMS.get(pattern, pattern)}_perf -b {first} -e 8G -f 2{gpus}"


def nccl_debug(evidence: RunEvidence) -> str:
    """Return the nccl-tests command with NCCL's debug log turned on, piped into `explain`."""
    test = f"{nccl_test(evidence)} 2>&1 | linkbench explain -"
    if evidence.crosses_nics:
        return f"mpirun ... -x NCCL_DEBUG=INFO -x NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET {test}"
    return f"NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET {test}"
