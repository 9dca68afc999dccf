"""What a log says between its rows is heard once, with its line, and never more than is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.explain.log_evidence import Hint, Listener

# In the form of NCCL's own lines; hosts, numbers and paths are made up.
INFO = "h1:10:11 [0] NCCL INFO "
SAID = {
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


def test_each_saying_is_heard_with_its_line_also_behind_a_launchers_tag() -> None:
    for tag in ("", "[1,0]<stdout>:", "0: "):
        listener = Listener()
        for number, text in enumerate(SAID, start=1):
            listener.hear(number, tag + text)
        assert list(listener.between(1, 1000)) == [Hint(*said, n) for n, said in enumerate(SAID.values(), start=1)]


def test_a_row_of_a_table_says_nothing() -> None:
    listener = Listener()
    listener.hear(1, "        1024           256     float     sum      -1    16.43    0.06    0.11      0")
    listener.hear(2, "# Using devices")
    assert listener.between(1, 10) == ()


def test_a_saying_belongs_to_the_run_in_whose_lines_it_stands() -> None:
    listener = Listener()
    for number in range(1, 200, 10):
        listener.hear(number, INFO + "Using network IB")
    listener.hear(150, INFO + "Using network Socket")
    assert [hint.value for hint in listener.between(1, 100)] == ["IB"]
    assert {hint.value for hint in listener.between(100, 300)} == {"IB", "Socket"}


def test_what_is_kept_does_not_grow_with_the_log() -> None:
    listener = Listener()
    for number in range(5000):
        listener.hear(number, INFO + f"NCCL_X_{'A' * (number % 3000)} set by environment to {number}")
    assert len(listener.between(0, 5000)) <= 400


@given(st.text(max_size=200), st.sampled_from(list(SAID)))
def test_nothing_makes_it_raise(noise: str, text: str) -> None:
    listener = Listener()
    for number, line in enumerate((noise, noise + text, text + noise, "NCCL " + noise)):
        listener.hear(number, line)
    listener.between(0, 9)
