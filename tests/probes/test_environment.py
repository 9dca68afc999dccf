import pytest

from bench.probes import environment


def test_variables_that_can_change_a_figure_are_kept_in_order_and_no_others() -> None:
    env = {
        "UCX_TLS": "rc,sm",
        "HOME": "/root",
        "NCCL_ALGO": "Ring",
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
        "AWS_PROFILE": "x",
    }
    kept = environment.allowed(env)
    assert kept == {"NCCL_ALGO": "Ring", "SLURM_JOB_ID": "7", "UCX_TLS": "rc,sm"}
    assert list(kept) == sorted(kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_PLUGIN_TOKEN", "short"),
        ("OMPI_MCA_registry_password", "x"),
        ("FI_API_KEY", "x"),
        ("UCX_LOG_FILE", "https://user:hunter2@host/log"),
        ("NCCL_DEBUG_FILE", "AKIAIOSFODNN7EXAMPLE"),
        ("GLOO_X", "ghp_" + "a1" * 18),
        ("OMPI_X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"),
        ("UCX_X", "3f2a" * 10),
    ],
)
def test_what_looks_like_a_secret_is_masked(name: str, value: str) -> None:
    assert environment.allowed({name: value}) == {name: "(masked)"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", "GPU-8f6d2a4e-11b2-4c3d-9e4f-5a6b7c8d9e0f,GPU-00000000-11b2-4c3d-9e4f-5a6b7c8d9e0f"),
        ("NCCL_TOPO_FILE", "/opt/amazon/ofi-nccl/share/aws-ofi-nccl/xml/p4d-24xl-topo.xml"),
        ("UCX_NET_DEVICES", "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1"),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_1"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"),
        ("SLURM_JOB_NODELIST", "gpu-st-p4d24xlarge-[1-16],gpu-dy-p4d24xlarge-3"),
        ("OMP_NUM_THREADS", "8"),
        ("NCCL_SOCKET_IFNAME", "enp226s0f0np0"),
        ("NCCL_TUNER_CONFIG", "MULTICAST_BUFFER_SIZE_IN_BYTES_OF_RANK"),
    ],
)
def test_ordinary_settings_are_kept_as_they_are(name: str, value: str) -> None:
    assert environment.allowed({name: value}) == {name: value}
