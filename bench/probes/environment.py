"""Select environment variables that can change the result of a measurement. Mask values that look like secrets."""

from __future__ import annotations

from collections.abc import Mapping

from bench.core.secret_values import masked

# Only these variables are kept, because others are private.
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


def allowed(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `env` that may change a figure.

    A value that looks like a secret is replaced by `(masked)`.
    """
    return {name: masked(name, env[name]) for name in sorted(env) if name in _NAMES or name.startswith(_PREFIXES)}
