"""Secrets are masked wherever they stand; ordinary settings are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core import secret_values
from bench.core.errors import RefusedError
from bench.core.secret_values import MASK, masked, masked_file, masked_plain, masked_text, resolved, secrets_of

SECRET = """
NCCL_PASS GLOO_PWD FI_PASSKEY UCX_COOKIE NCCL_BEARER HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY MY_PASSWORD
OMPI_MCA_registry_password GITHUB_TOKENS SSH_KEY FI_SESSION_COOKIES API_CREDENTIALS
"""


@pytest.mark.parametrize("name", SECRET.split())
def test_a_variable_with_the_name_of_a_secret_is_masked(name: str) -> None:
    assert masked(name, "hunter2") == MASK
    assert masked_text(f"export {name}=hunter2; {name}='two words' run") == f"export {name}={MASK}; {name}={MASK} run"
    assert masked(name, "from-environment") == "from-environment"


# Variables of NCCL, UCX, libfabric, Open MPI, Hydra, Intel MPI, Slurm, torch and CUDA.
ORDINARY = """
NCCL_IB_PKEY=1 NCCL_IB_HCA==mlx5_0,mlx5_1 NCCL_SOCKET_IFNAME=^lo,docker0 NCCL_NET_GDR_LEVEL=PHB NCCL_PXN_DISABLE=0
NCCL_IB_GID_INDEX=3 NCCL_IB_ADAPTIVE_ROUTING=1 NCCL_COLLNET_ENABLE=0 NCCL_TOPO_FILE=/opt/topo.xml NCCL_ALGO=Ring
NCCL_GRAPH_DUMP_FILE=/tmp/graph.xml NCCL_CROSS_NIC=1 NCCL_P2P_LEVEL=NVL NCCL_SHARP_GROUP_SIZE_THRESH=2
UCX_IB_PKEY=0x8001 UCX_TLS=rc,sm,cuda_copy UCX_NET_DEVICES=mlx5_0:1 UCX_RKEY_PTR_SEG_SIZE=512k UCX_RCACHE_ENABLE=y
UCX_IB_GPU_DIRECT_RDMA=no UCX_MM_BANDWIDTH=15000MBs UCX_RC_MLX5_TM_ENABLE=n UCX_KEEPALIVE_INTERVAL=20s
FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_CXI_RX_MATCH_MODE=hybrid FI_OPX_MULTI_EP=1 FI_LOG_LEVEL=warn
FI_EFA_FORK_SAFE=1 FI_HMEM_CUDA_USE_GDRCOPY=1 FI_MR_CACHE_MONITOR=userfaultfd FI_PSM3_UUID=abc
OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_pml=ob1 OMPI_MCA_mpi_abort_delay=2 OMPI_ALLOW_RUN_AS_ROOT=1
HYDRA_LAUNCHER=ssh I_MPI_FABRICS=shm:ofi I_MPI_PIN_DOMAIN=auto MPICH_ASYNC_PROGRESS=1 MV2_USE_CUDA=1
SLURM_JOB_NODELIST=gpu-[1-16] SLURM_MPI_TYPE=pmix TORCH_NCCL_BLOCKING_WAIT=1 TOKENIZERS_PARALLELISM=false
CUDA_VISIBLE_DEVICES=0,1 KMP_AFFINITY=granularity=fine,compact GLOO_SOCKET_IFNAME=eth0 HCOLL_MAIN_IB=mlx5_0:1
PWD=/home/me OLDPWD=/tmp XDG_SEAT_PATH=/org SHARP_COLL_ENABLE_SAT=1 NCCL_BYPASS=1
GLIBC_TUNABLES=glibc.malloc.arena_max=1
"""


def test_ordinary_settings_are_kept() -> None:
    for word in ORDINARY.split():
        name, _, value = word.partition("=")
        assert masked(name, value) == value
    line = " ".join(ORDINARY.split())
    assert masked_text(line) == line
    yaml = "key: size\npasses: 3\nkeys: [a, b]\nhost: a@b:c\nurl: https://host:8080/path?size=3#sig\n"
    assert masked_text(yaml) == yaml


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("curl https://me:hunter2@host/x", "curl https://(masked)@host/x"),
        ("https://a.blob/x?sv=1&sig=aGk%3D&se=2", "https://a.blob/x?sv=1&sig=(masked)&se=2"),
        ("s3://b/x?X-Amz-Signature=abc&X-Amz-Date=1", "s3://b/x?X-Amz-Signature=(masked)&X-Amz-Date=1"),
        ("https://h/x?token=abc'", "https://h/x?token=(masked)'"),
        ("HF_TOKEN: abc\n", "HF_TOKEN: (masked)\n"),
        ("login hf_" + "a1" * 12, "login (masked)"),
    ],
)
def test_passwords_and_signatures_in_texts_are_masked(text: str, left: str) -> None:
    assert masked_text(text) == left == masked_text(left)


def test_values_known_to_be_secret_are_masked_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN", "swordfish")
    secrets = secrets_of({"HF_TOKEN": "hunter2", "OWN": "from-environment", "NCCL_ALGO": "Ring"})
    assert masked_plain({"a": ["--x=hunter2", 5, None], "b": "swordfish Ring"}, secrets) == {
        "a": ["--x=(masked)", 5, None],
        "b": "(masked) Ring",
    }


def test_a_reference_takes_its_value_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN", "swordfish")
    assert resolved({"OWN": "from-environment", "A": "1"}) == {"OWN": "swordfish", "A": "1"}
    monkeypatch.delenv("OWN")
    with pytest.raises(RefusedError, match="OWN"):
        resolved({"OWN": "from-environment"})


def test_a_log_is_masked_in_place_from_the_given_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_values, "_BLOCK", 4096)
    log = tmp_path / "job.log"
    kept, rows, mask = b"hunter22 of an earlier attempt \xff\n", b"12.5 GB/s\n" * 2000, MASK.encode()
    log.write_bytes(kept + rows + b"rank 0: hunter22 \xfe\n" + rows + b"HF_TOKEN=abc\nline-one\nline-two\n")
    masked_file(log, ["hunter22", "line-one\nline-two"], len(kept))
    left = kept + rows + b"rank 0: " + mask + b" \xfe\n" + rows + b"HF_TOKEN=" + mask + 2 * (b"\n" + mask) + b"\n"
    assert log.read_bytes() == left
