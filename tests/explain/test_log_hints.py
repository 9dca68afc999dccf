"""Hints: each message of NCCL is kept once, with its line, and memory is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.explain.log_hints import Hint, HintReader

# NCCL's own wording; hosts, numbers and paths are made up.
INFO = "h1:10:11 [0] NCCL INFO "
MESSAGES = {
    INFO + "Using network AWS Libfabric": ("network", "AWS Libfabric"),
    INFO + "Using network Socket": ("network", "Socket"),
    INFO + "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>": (
        "nics",
        "[0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    ),
    INFO + "NET/OFI Selected Provider is efa": ("provider", "efa"),
    INFO + "NET/OFI Running on P4d platform, Setting NCCL_TOPO_FILE": ("platform", "P4d"),
    INFO + "NCCL_P2P_DISABLE set by environment to 1.": ("setting", "NCCL_P2P_DISABLE set by environment to 1."),
    INFO + "Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read": ("path", "P2P/CUMEM/read"),
    INFO + "Channel 01 : 8[1] -> 0[0] [receive] via NET/AWS Libfabric/3/GDRDMA": ("path", "NET/AWS Libfabric/3/GDRDMA"),
    INFO + "Ring 00 : 0 -> 1 [send] via NET/Socket/0": ("path", "NET/Socket/0"),
    INFO + "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct": ("path", "SHM/direct/direct"),
    INFO + "24 coll channels, 24 collnet channels, 0 nvls channels": ("channels", "24"),
    INFO + "Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1": (
        "search",
        "12, bw 20/20, type NVL",
    ),
    INFO + "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'": ("no_rdma", "GPU Direct RDMA Disabled"),
    INFO + "NVLS multicast support is not available on dev 0": ("no_nvls", "NVLS multicast support is not available"),
    "NCCL version 2.27.3+cuda12.9": ("nccl", "2.27.3"),
    "Device=0 CANNOT Access Peer Device=1": ("refused", "CANNOT Access Peer"),
}


def test_each_message_is_kept_with_its_line_even_behind_a_launchers_tag() -> None:
    for tag in ("", "[1,0]<stdout>:", "0: "):
        reader = HintReader()
        for number, text in enumerate(MESSAGES, start=1):
            reader.read(number, tag + text)
        assert list(reader.between(1, 1000)) == [Hint(*hint, n) for n, hint in enumerate(MESSAGES.values(), start=1)]


def test_a_row_of_a_table_is_no_hint() -> None:
    reader = HintReader()
    reader.read(1, "        1024           256     float     sum      -1    16.43    0.06    0.11      0")
    reader.read(2, "# Using devices")
    assert reader.between(1, 10) == ()


def test_a_hint_belongs_to_the_run_whose_lines_hold_it() -> None:
    reader = HintReader()
    for number in range(1, 200, 10):
        reader.read(number, INFO + "Using network IB")
    reader.read(150, INFO + "Using network Socket")
    assert [hint.value for hint in reader.between(1, 100)] == ["IB"]
    assert {hint.value for hint in reader.between(100, 300)} == {"IB", "Socket"}


def test_memory_does_not_grow_with_the_log() -> None:
    reader = HintReader()
    for number in range(5000):
        reader.read(number, INFO + f"NCCL_X_{'A' * (number % 3000)} set by environment to {number}")
    assert len(reader.between(0, 5000)) <= 400


@given(st.text(max_size=200), st.sampled_from(list(MESSAGES)))
def test_no_line_makes_it_raise(noise: str, text: str) -> None:
    reader = HintReader()
    for number, line in enumerate((noise, noise + text, text + noise, "NCCL " + noise)):
        reader.read(number, line)
    reader.between(0, 9)
