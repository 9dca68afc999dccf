"""Small logs of every tool, with invented figures."""

# ruff: noqa: E501, W291 - lines as the tools print them

from __future__ import annotations

import json

NCCL = """\
+ mpirun -np 4 all_reduce_perf -b 1K -e 1M -f 32
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1048576 step: 32(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1100 on  alpha-1 device  0 [0x17] NVIDIA Model Q
#  Rank  1 Group  0 Pid   1101 on  alpha-1 device  1 [0x65] NVIDIA Model Q
#  Rank  2 Group  0 Pid   1200 on  alpha-2 device  0 [0x17] NVIDIA Model Q
#  Rank  3 Group  0 Pid   1201 on  alpha-2 device  1 [0x65] NVIDIA Model Q
NCCL version 2.21.5+cuda12.4
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
        1024           256     float     sum      -1    20.00    0.05    0.08      0    20.48    0.05    0.07      0
       32768          8192     float     sum      -1    25.60    1.28    1.92      0    25.00    1.31    1.97      0
     1048576        262144     float     sum      -1    100.0   10.49   15.73      0    104.9   10.00   15.00      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 5.79
#
"""

NCCL_WRONG = NCCL.replace("15.73      0", "15.73      7").replace("values : 0 OK", "values : 1 FAILED")
NCCL_CUT = NCCL[: NCCL.index("10.49   15.73") + 4]
NCCL_CRASHED = (
    NCCL[: NCCL.index("        1024 ")] + "alpha-1: Test NCCL failure all_reduce.cu:44 'unhandled cuda error'\n"
)

NVBANDWIDTH = """\
nvbandwidth Version: v0.6
Built from Git version: v0.6

CUDA Runtime Version: 12040
CUDA Driver Version: 12040
Driver Version: 550.90.07

Device 0: NVIDIA Model Q (00000000:17:00)
Device 1: NVIDIA Model Q (00000000:65:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     25.10     24.90

SUM host_to_device_memcpy_ce 50.00

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     21.50
 1     20.50       N/A

SUM device_to_device_memcpy_read_ce 42.00

"""

NVBANDWIDTH_JSON = (
    json.dumps(
        {
            "nvbandwidth": {
                "CUDA Runtime Version": 12040,
                "Driver Version": "550.90.07",
                "git_version": "v0.8",
                "testcases": [
                    {
                        "name": "host_to_device_memcpy_ce",
                        "status": "Passed",
                        "bandwidth_description": "memcpy CE CPU(row) -> GPU(column)",
                        "bandwidth_matrix": [["25.10", "24.90"]],
                        "sum": 50.0,
                    },
                    {"name": "device_to_device_memcpy_read_ce", "status": "Waived"},
                ],
            }
        },
        indent=4,
    )
    + "\n"
)

P2P = """\
[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA Model Q, pciBusID: 17, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA Model Q, pciBusID: 65, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
Device=1 CAN Access Peer Device=0

P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     1
     1\t     1     1
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1 
     0 800.10  21.50 
     1  20.50 801.20 
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1 
     0 790.10  40.50 
     1  40.70 791.20 
"""

OSU = """\

# OSU MPI Allreduce Latency Test v7.3
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       2.00              1.90              2.10        1000
1048576               400.00            390.00            410.00         100
"""

OSU_BLOCKS = """\

# OSU MPI Allgather Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1024                    8.00
"""

PERFTEST = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             196.80             196.00               0.373840
---------------------------------------------------------------------------------------
"""

# name -> (text, tool, status, rows, cells with a value)
ALL: dict[str, tuple[str, str, str, int, int]] = {
    "nccl": (NCCL, "nccl_tests", "ok", 6, 0),
    "nccl-wrong": (NCCL_WRONG, "nccl_tests", "failed", 6, 0),
    "nccl-cut": (NCCL_CUT, "nccl_tests", "truncated", 4, 0),
    "nccl-crashed": (NCCL_CRASHED, "nccl_tests", "failed", 0, 0),
    "nvbandwidth": (NVBANDWIDTH, "nvbandwidth", "ok", 0, 4),
    "nvbandwidth-json": (NVBANDWIDTH_JSON, "nvbandwidth", "ok", 0, 2),
    "p2p": (P2P, "p2p_bandwidth_latency", "ok", 0, 8),
    "osu": (OSU, "osu", "ok", 2, 0),
    "osu-blocks": (OSU_BLOCKS, "osu", "ok", 1, 0),
    "perftest": (PERFTEST, "perftest", "ok", 1, 0),
}
