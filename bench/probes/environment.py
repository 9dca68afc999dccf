"""Environment variables that can change a figure, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Only these variables are kept: others are private.
_PREFIXES = (
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "UCX_",
    "UCC_",
    "FI_",
    "IBV_",
    "RDMAV_",
    "HCOLL_",
    "SHARP_",
    "OMPI_",
    "PRTE_",
    "PMIX_MCA_",
    "MPICH_",
    "MPIR_",
    "HYDRA_",
    "I_MPI_",
    "MV2_",
    "MPI4PY_",
    "BENCH_MPI_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MALLOC_",
    "HWLOC_",
)
_NAMES = frozenset(
    (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "NVIDIA_VISIBLE_DEVICES",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "TP_SOCKET_IFNAME",
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
        "SLURM_JOB_ID",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_NODELIST",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_TASKS_PER_NODE",
        "SLURM_CPUS_PER_TASK",
        "SLURM_CPU_BIND",
        "SLURM_DISTRIBUTION",
        "SLURM_MPI_TYPE",
    )
)
_MASK = "(masked)"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|(API|ACCESS|PRIVATE|AUTH)_?KEY", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"://[^/@\s]+:[^/@\s]+@"  # a password in a URL
    r"|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}|\bsk-[\w-]{20,}|\bxox[abprs]-|\beyJ[\w-]{10,}\.|-----BEGIN "
    r"|(?<![\w/.-])(?=[^\s,:]*\d)(?=[^\s,:]*[A-Za-z])[A-Za-z0-9+_]{32,}={0,2}(?![\w/.-])"  # long and random
)


def allowed(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that may change a figure, by name. Values that look like secrets become `(masked)`."""
    return {name: _masked(name, env[name]) for name in sorted(env) if name in _NAMES or name.startswith(_PREFIXES)}


def _masked(name: str, value: str) -> str:
    return _MASK if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value) else value
