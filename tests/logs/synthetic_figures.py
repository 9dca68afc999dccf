"""Synthetic logs of tools with small outputs, in the layout that their source prints, with invented figures.

`LOGS` maps the name of a file to its text and to what is in it: a list of runs, each {tool, status, rows, matrices,
figures, ...}. Rows are [payload, time in us, algbw and busbw in GB/s], matrices [name, direction, cells], cells
[src, dst, GB/s or us, payload], figures [where, name, value, unit].
"""

from __future__ import annotations

import json
from typing import Any

LOGS: dict[str, tuple[str, list[dict[str, Any]]]] = {}


def _add(name: str, text: str, *runs: dict[str, Any]) -> None:
    LOGS[name] = (text, list(runs))


_add(
    "bandwidth_test_quick.txt",
    """[CUDA Bandwidth Test] - Starting...
Running on...

 Device 2: Accelerator X1
 Quick Mode

 Host to Device Bandwidth, 1 Device(s)
 PINNED Memory Transfers
   Transfer Size (Bytes)\tBandwidth(GB/s)
   32000000\t\t\t25.3

 Device to Host Bandwidth, 1 Device(s)
 PINNED Memory Transfers
   Transfer Size (Bytes)\tBandwidth(GB/s)
   32000000\t\t\t24.1

 Device to Device Bandwidth, 1 Device(s)
 PINNED Memory Transfers
   Transfer Size (Bytes)\tBandwidth(GB/s)
   32000000\t\t\t1305.2

Result = PASS

NOTE: The CUDA Samples are not meant for performance measurements. Results may vary when GPU Boost is enabled.
""",
    {
        "tool": "bandwidth_test",
        "gpus": ["Accelerator X1"],
        "matrices": [
            ["Host to Device, pinned", "h2d", [["host", "gpu2", 25.3, 32000000]]],
            ["Device to Host, pinned", "d2h", [["gpu2", "host", 24.1, 32000000]]],
            ["Device to Device", "local", [["gpu2", "gpu2", 1305.2, 32000000]]],
        ],
        "translations": ["inside-device"],
    },
)
_add(
    "bandwidth_test_old_range.txt",
    """[CUDA Bandwidth Test] - Starting...
Running on...

 Device 0: Accelerator X0
 Range Mode

 Host to Device Bandwidth, 1 Device(s)
 PAGEABLE Memory Transfers
   Transfer Size (Bytes)\tBandwidth(MB/s)
   1024\t\t\t\t250.0
   2048\t\t\t\t500.0

Result = PASS
""",
    {
        "tool": "bandwidth_test",
        "gpus": ["Accelerator X0"],
        "matrices": [
            [
                "Host to Device, pageable",
                "h2d_pageable",
                [["host", "gpu0", 0.256, 1024], ["host", "gpu0", 0.512, 2048]],
            ]
        ],
        "translations": ["mb-of-old", "pageable"],
    },
)
_add(
    "bandwidth_test_csv_all.txt",
    """[CUDA Bandwidth Test] - Starting...

!!!!!Cumulative Bandwidth to be computed from all the devices !!!!!!

Running on...

 Device 0: Accelerator X1
 Device 1: Accelerator X1
 Quick Mode

bandwidthTest-H2D-Pinned, Bandwidth = 50.0 GB/s, Time = 0.00064 s, Size = 32000000 bytes, NumDevsUsed = 2
bandwidthTest-D2H-Pinned-WriteCombined, Bandwidth = 48.0 GB/s, Time = 0.00067 s, Size = 32000000 bytes, NumDevsUsed = 2
Result = PASS
""",
    {
        "tool": "bandwidth_test",
        "gpus": ["Accelerator X1"],
        "figures": [
            ["", "Host to Device, pinned, 32000000 bytes, sum of 2 GPUs", 50e9, "bytes_per_s"],
            ["", "Device to Host, pinned_wc, 32000000 bytes, sum of 2 GPUs", 48e9, "bytes_per_s"],
        ],
        "translations": ["sum-of-devices"],
    },
)
_add(
    "rocm_bandwidth_all.txt",
    """          RocmBandwidthTest Version: 2.6.0

          Launch Command is: rocm-bandwidth-test -a


          Device: 0,  Processor Y
          Device: 1,  Accelerator Z,  GPU-00aa11bb22cc33dd,  43:0.0
          Device: 2,  Accelerator Z,  GPU-00aa11bb22cc33de,  46:0.0

          Inter-Device Access

          D/D       0         1         2

          0         1         1         1

          1         1         1         1

          2         1         1         1


          Unidirectional copy peak bandwidth GB/s

          D/D       0           1           2

          0         N/A         27.111      27.222

          1         26.333      1100.500    48.125

          2         26.444      47.875      1101.500


          Bidirectional copy peak bandwidth GB/s

          D/D       0           1           2

          0         N/A         40.111      40.222

          1         40.111      N/A         90.250

          2         40.222      90.250      N/A

""",
    {
        "tool": "rocm_bandwidth_test",
        "version": "2.6.0",
        "gpus": ["Accelerator Z"],
        "matrices": [
            [
                "Unidirectional copy peak bandwidth, local",
                "local",
                [["host0", "host0", None, None], ["gpu0", "gpu0", 1100.5, None], ["gpu1", "gpu1", 1101.5, None]],
            ],
            [
                "Unidirectional copy peak bandwidth, h2d",
                "h2d",
                [["host0", "gpu0", 27.111, None], ["host0", "gpu1", 27.222, None]],
            ],
            [
                "Unidirectional copy peak bandwidth, d2h",
                "d2h",
                [["gpu0", "host0", 26.333, None], ["gpu1", "host0", 26.444, None]],
            ],
            [
                "Unidirectional copy peak bandwidth, d2d",
                "d2d",
                [["gpu0", "gpu1", 48.125, None], ["gpu1", "gpu0", 47.875, None]],
            ],
            [
                "Bidirectional copy peak bandwidth, h2d",
                "h2d_both_sum",
                [["host0", "gpu0", 40.111, None], ["host0", "gpu1", 40.222, None]],
            ],
            [
                "Bidirectional copy peak bandwidth, d2h",
                "d2h_both_sum",
                [["gpu0", "host0", 40.111, None], ["gpu1", "host0", 40.222, None]],
            ],
            [
                "Bidirectional copy peak bandwidth, d2d",
                "bidirectional_sum",
                [["gpu0", "gpu1", 90.25, None], ["gpu1", "gpu0", 90.25, None]],
            ],
        ],
        "translations": ["peak-of-copies", "inside-device", "numbered", "sum-of-ways"],
    },
)
_add(
    "rocm_bandwidth_pair.txt",
    """          RocmBandwidthTest Version: 2.5.1

================    Unidirectional Benchmark Result    ================
================ Src Device Id: 0 Src Device Type: Cpu ================
================ Dst Device Id: 4 Dst Device Type: Gpu ================

Data Size      Avg Time(us)   Avg BW(GB/s)   Min Time(us)   Peak BW(GB/s)
1 KB           4.096          0.250          4.000          0.256
64 MB          2684.355       25.000         2600.000       25.811

""",
    {
        "tool": "rocm_bandwidth_test",
        "version": "2.5.1",
        "matrices": [
            [
                "Unidirectional average bandwidth, host0 to gpu0",
                "h2d",
                [["host0", "gpu0", 0.25, 1024], ["host0", "gpu0", 25.0, 67108864]],
            ]
        ],
        "translations": ["numbered"],
    },
)
_add(
    "hip_bus_bandwidth.txt",
    """Device:Device 1234 Mem=64.0GB #CUs=104 Freq=1700Mhz  MallocMode=pinned
                   test        atts        units        median  mean    stddev  min     max
   H2D_Bandwidth_pinned      +064By       GB/sec        0.0000  0.0000  0.0000  0.0000  0.0000
   H2D_Bandwidth_pinned      1024kB       GB/sec        16.1000 16.0000 0.1000  15.0000 16.5000
         H2D_Timepinned      1024kB           ms        0.0650  0.0660  0.0010  0.0640  0.0700
  P2P_uni_gpu0_gpu1_Skip
Note: results marked with (*) had missing values such as
might occur with a mixture of architectural capabilities.
""",
    {
        "tool": "hip_bus_bandwidth",
        "gpus": ["Device 1234"],
        "matrices": [
            ["H2D bandwidth pinned", "h2d", [["host", "gpu0", None, 64], ["host", "gpu0", 16.0, 1048576]]],
            ["H2D time pinned", "h2d_time", [["host", "gpu0", 66.0, 1048576]]],
        ],
        "remarks": ["zero-by-division"],
        "translations": ["mean-of-passes"],
    },
)
_add(
    "transfer_bench.txt",
    """TransferBench v1.52.00 (non-portable)
========================================
Test 1:
 Executor: GPU 00 |  91.250 GB/s |    0.735 ms |     67108864 bytes | 91.250  GB/s (sum)
     Transfer 00  |  91.250 GB/s |    0.735 ms |     67108864 bytes | G0 -> GPU00:032 -> G1
 Aggregate (CPU)  |  83.500 GB/s |    0.804 ms |     67108864 bytes | Overhead: 0.069 ms
""",
    {
        "tool": "transfer_bench",
        "version": "1.52.00",
        "figures": [
            ["test 1", "executor GPU 0, 67108864 bytes", 91.25e9, "bytes_per_s"],
            ["test 1", "executor GPU 0, 67108864 bytes, time", 735e-6, "s"],
            ["test 1", "transfer 0 (G0 -> GPU00:032 -> G1), 67108864 bytes", 91.25e9, "bytes_per_s"],
            ["test 1", "transfer 0 (G0 -> GPU00:032 -> G1), 67108864 bytes, time", 735e-6, "s"],
            ["test 1", "aggregate by the host's clock, 67108864 bytes", 83.5e9, "bytes_per_s"],
            ["test 1", "aggregate by the host's clock, 67108864 bytes, time", 804e-6, "s"],
        ],
    },
)
_add(
    "transfer_bench_preset.txt",
    """TransferBench v1.50
Bytes Per Direction 4194304
Unidirectional copy peak bandwidth GB/s [Local read / Remote write] (GPU-Executor: GFX)
   SRC+EXE\\DST    CPU 00       GPU 00    GPU 01
   CPU 00  ->     24.50        17.25     16.75

   GPU 00  ->     23.75       108.50     64.25
   GPU 01  ->     24.00        66.50    109.25
""",
    {
        "tool": "transfer_bench",
        "version": "1.50",
        "status": "truncated",
        "failure": "preset",
        "remarks": ["preset"],
    },
)
_add(
    "nccom_old.txt",
    """$ nccom-test -r 32 --minbytes 64mb --maxbytes 128mb --stepfactor 2 --datatype bf16 --check allg
        size(B)    count(elems)    type    time(us)    algbw(GB/s)    busbw(GB/s)
       67108864        33554432    bf16        1250          50.00          48.44
      134217728        67108864    bf16        2500          50.00          48.44
Avg bus bandwidth:      48.4400GB/s
""",
    {
        "tool": "nccom_test",
        "pattern": "allgather",
        "num_ranks": 32,
        "rows": [
            [67108864, 1250.0, 50 * 1.073741824, 48.44 * 1.073741824],
            [134217728, 2500.0, 50 * 1.073741824, 48.44 * 1.073741824],
        ],
        "translations": ["gib"],
    },
)
_add(
    "nccom_stats.txt",
    """    size(B)    count(elems)    type    time:avg(us)    time:p50(us)    algbw(GB/s)    busbw(GB/s)    algorithm
         64              16    fp32           20.00              20           0.00           0.00         mesh
    1000000          250000    fp32           50.00              49          20.00          35.00         ring
Avg bus bandwidth:\t17.5000GB/s
    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)
    2000000    Failure running neuron-bench - log file /tmp/a.log
1 errors found - test failed
""",
    {
        "tool": "nccom_test",
        "rows": [[64, 20.0, 0.0, 0.0], [1000000, 50.0, 20.0, 35.0]],
        "remarks": ["operation-unknown"],
    },
    {"tool": "nccom_test", "status": "failed", "remarks": ["tool-error", "tool-error"], "failure": "tool-error"},
)
_add(
    "nccom.json",
    """{
    "results": [
        {
            "size(B)": 1000000,
            "count(elems)": 250000,
            "type": "fp32",
            "algbw(GB/s)": 20.0,
            "busbw(GB/s)": 19.375,
            "time:avg(us)": 50.0
        }
    ]
}
""",
    {"tool": "nccom_test", "rows": [[1000000, 50.0, 20.0, 19.375]], "remarks": ["operation-unknown"]},
)
_add(
    "deepep_internode.txt",
    """[config] num_tokens=4096, hidden=7168, num_topk_groups=4, num_topk=8
[layout] Kernel performance: 0.041 ms
[testing] Running with BF16, without top-k (async=False, previous=False) ... passed

[tuning] SMs 24, NVL chunk 4, RDMA chunk 4: 50 + 2300 us, 26.10 GB/s (RDMA), 85.20 GB/s (NVL)
[tuning] Best dispatch (FP8): SMs 24, NVL chunk 28, RDMA chunk 20: 54 + 1306 us, 46.18 GB/s (RDMA), 150.73 GB/s (NVL)

[tuning] Best combine: SMs 24, NVL chunk 2, RDMA chunk 16, 60.25 + 2400.50 us, 48.75 GB/s (RDMA), 159.25 GB/s (NVL)
""",
    {
        "tool": "deepep",
        "figures": [
            ["best dispatch (FP8)", "bandwidth (RDMA)", 46.18e9, "bytes_per_s"],
            ["best dispatch (FP8)", "bandwidth (NVL)", 150.73e9, "bytes_per_s"],
            ["best dispatch (FP8)", "time", 1306e-6, "s"],
            ["best dispatch (FP8)", "notify time", 54e-6, "s"],
            ["best combine", "bandwidth (RDMA)", 48.75e9, "bytes_per_s"],
            ["best combine", "bandwidth (NVL)", 159.25e9, "bytes_per_s"],
            ["best combine", "time", 2400.5e-6, "s"],
            ["best combine", "notify time", 60.25e-6, "s"],
        ],
        "remarks": ["trials"],
    },
)
_add(
    "deepep_intranode.txt",
    """[tuning] SMs 24, NVL chunk default: 194.60 GB/s (NVL), 821.28 us
[tuning] Best dispatch (BF16): SMs 24, NVL chunk 30, 350.50 GB/s (NVL), t: 450.25 us
[tuning] Best combine: SMs 24, NVL chunk 16: 340.25 GB/s (NVL)
""",
    {
        "tool": "deepep",
        "figures": [
            ["best dispatch (BF16)", "bandwidth (NVL)", 350.5e9, "bytes_per_s"],
            ["best dispatch (BF16)", "time", 450.25e-6, "s"],
            ["best combine", "bandwidth (NVL)", 340.25e9, "bytes_per_s"],
        ],
        "remarks": ["trials"],
    },
)
_add(
    "deepep_low_latency.txt",
    """Allocating buffer size: 2116.29 MB ...
[rank 0] Dispatch + combine bandwidth: 43.25 GB/s, avg_t=512.50 us, min_t=500.00 us, max_t=530.25 us
[rank 1] Dispatch + combine bandwidth: 43.50 GB/s, avg_t=510.00 us, min_t=499.50 us, max_t=531.00 us
[rank 0] Dispatch bandwidth: 40.50 GB/s, avg_t=185.25 us | Combine bandwidth: 44.75 GB/s, avg_t=325.00 us
[rank 0] Dispatch send/recv time: 20.50 + 10.25 us | Combine send/recv time: 30.00 + 15.75 us
""",
    {
        "tool": "deepep",
        "num_ranks": 2,
        "figures": [
            ["rank 0", "Dispatch + combine bandwidth", 43.25e9, "bytes_per_s"],
            ["rank 0", "Dispatch + combine mean time", 512.5e-6, "s"],
            ["rank 0", "Dispatch + combine least time", 500e-6, "s"],
            ["rank 0", "Dispatch + combine largest time", 530.25e-6, "s"],
            ["rank 1", "Dispatch + combine bandwidth", 43.5e9, "bytes_per_s"],
            ["rank 1", "Dispatch + combine mean time", 510e-6, "s"],
            ["rank 1", "Dispatch + combine least time", 499.5e-6, "s"],
            ["rank 1", "Dispatch + combine largest time", 531e-6, "s"],
            ["rank 0", "Dispatch bandwidth", 40.5e9, "bytes_per_s"],
            ["rank 0", "Dispatch mean time", 185.25e-6, "s"],
            ["rank 0", "Combine bandwidth", 44.75e9, "bytes_per_s"],
            ["rank 0", "Combine mean time", 325e-6, "s"],
            ["rank 0", "Dispatch send time", 20.5e-6, "s"],
            ["rank 0", "Dispatch recv time", 10.25e-6, "s"],
            ["rank 0", "Combine send time", 30e-6, "s"],
            ["rank 0", "Combine recv time", 15.75e-6, "s"],
        ],
    },
)
_add(
    "deepep_elastic.txt",
    """   * EP:   0/8 | dispatch: 45 GB/s (SO), 150 GB/s (SU), 812.125 us, 121634816 bytes | copy: 2100 GB/s, 115.500 us
   @ EP:   0/8 | combine: 46 GB/s (SO), 155 GB/s (SU), 820.250 us, 127926272 bytes | reduce: 1650 GB/s, 120.750 us
""",
    {
        "tool": "deepep",
        "num_ranks": 8,
        "figures": [
            ["rank 0", "dispatch bandwidth (scale-out)", 45e9, "bytes_per_s"],
            ["rank 0", "dispatch bandwidth (scale-up)", 150e9, "bytes_per_s"],
            ["rank 0", "dispatch bandwidth (copy)", 2100e9, "bytes_per_s"],
            ["rank 0", "dispatch time", 812.125e-6, "s"],
            ["rank 0", "dispatch copy time", 115.5e-6, "s"],
            ["rank 0", "combine bandwidth (scale-out)", 46e9, "bytes_per_s"],
            ["rank 0", "combine bandwidth (scale-up)", 155e9, "bytes_per_s"],
            ["rank 0", "combine bandwidth (reduce)", 1650e9, "bytes_per_s"],
            ["rank 0", "combine time", 820.25e-6, "s"],
            ["rank 0", "combine reduce time", 120.75e-6, "s"],
        ],
        "translations": ["counts-own"],
    },
)
_RULE = "-" * 140
_add(
    "nixlbench_old.txt",
    f"""{"*" * 70}
NIXLBench Configuration
{"*" * 70}
Backend (--backend=[UCX,UCX_MO,GDS])                        : UCX
Op type (--op_type=[READ,WRITE])                            : WRITE
{_RULE}
Block Size (B)      Batch Size     Avg Lat. (us)  B/W (MiB/Sec)  B/W (GiB/Sec)  B/W (GB/Sec)
{_RULE}
4096                2              4.0            976.562500     0.953674       1.024000
1048576             2              41.943         23841.857910   23.283064      25.000000
""",
    {
        "tool": "nixlbench",
        "rows": [[4096, 4.0, 1.024, 1.024], [1048576, 41.943, 25.0, 25.0]],
        "translations": ["batches"],
    },
)
_add(
    "nixlbench_groups.txt",
    "Block Size (B)      Batch Size     B/W (GB/Sec)   Aggregate B/W (GB/Sec)   Network Util (%)    Avg Lat. (us)  "
    "Avg Prep (us)  P99 Prep (us)  Avg Post (us)  P99 Post (us)  Avg Tx (us)    P99 Tx (us)\n"
    "65536               1              8.192000       32.768000                65.536000           8.0            "
    "10.0           12.0           0.5            0.7            7.0            9.0\n",
    {
        "tool": "nixlbench",
        "rows": [[65536, 8.0, 8.192, 8.192]],
        "figures": [
            ["65536 bytes, batch 1", "aggregate bandwidth", 32.768e9, "bytes_per_s"],
            ["65536 bytes, batch 1", "Avg Prep", 10e-6, "s"],
            ["65536 bytes, batch 1", "P99 Prep", 12e-6, "s"],
            ["65536 bytes, batch 1", "Avg Post", 0.5e-6, "s"],
            ["65536 bytes, batch 1", "P99 Post", 0.7e-6, "s"],
            ["65536 bytes, batch 1", "Avg Tx", 7e-6, "s"],
            ["65536 bytes, batch 1", "P99 Tx", 9e-6, "s"],
        ],
        "translations": ["aggregate"],
    },
)
_BOX = "+" + "-" * 106 + "+"
_TABLE_RULE = (
    "+--------------+--------------+------------------------------+---------------------+-----------------------+"
)


def _ucx(test: str, size: int, word: str, rows: str, percentile: str = "50.0%ile") -> str:
    """A table of UCX 1.12 or later."""
    return f"""{_BOX}
| API:          protocol layer                                                                             |
| Test:         {test:<60}                               |
| Data layout:  (automatic)                                                                                |
| Send memory:  host                                                                                       |
| Recv memory:  host                                                                                       |
| Message size: {size:<60}                               |
| Window size:  32                                                                                         |
{_TABLE_RULE}
|              |              |       {word:>8} (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
{_TABLE_RULE}
|    Stage     | # iterations | {percentile} | average | overall |  average |  overall |  average  |  overall  |
{_TABLE_RULE}
{rows}"""


_add(
    "ucx_latency.txt",
    _ucx(
        "tag match latency",
        8,
        "latency",
        """[thread 0]            500000      1.000     1.010     1.010        7.55       7.55      990000      990000
Final:               1000000      1.002     1.020     1.015        7.50       7.52      980392      985222
""",
    ),
    {
        "tool": "ucx_perftest",
        "pattern": "pingpong",
        "num_ranks": 2,
        "rows": [[8, 1.015, 7.52 * 1.048576e-3, 7.52 * 1.048576e-3]],
        "figures": [["", "message rate", 985222.0, "per_s"]],
        "translations": ["overall", "half-round-trip"],
    },
)
_add(
    "ucx_bandwidth_stopped.txt",
    _ucx(
        "tag match bandwidth",
        1048576,
        "overhead",
        "[thread 0]              9000      0.000   110.000   112.000     9090.91    8928.57        9091        8929\n",
    ),
    {
        "tool": "ucx_perftest",
        "status": "truncated",
        "failure": "not-final",
        "pattern": "pingpong",
        "num_ranks": 2,
        "rows": [[1048576, 112.0, 8928.57 * 1.048576e-3, 8928.57 * 1.048576e-3]],
        "figures": [["", "message rate", 8929.0, "per_s"]],
        "remarks": ["not-final"],
        "translations": ["overall"],
    },
)
_add(
    "ucx_old.txt",
    """+------------------------------------------------------------------------------------------+
| API:          transport layer                                                            |
| Test:         put bandwidth / message rate                                               |
| Data layout:  short                                                                      |
| Message size: 64                                                                         |
+--------------+-----------------------------+---------------------+-----------------------+
|              |       latency (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+---------+---------+---------+----------+----------+-----------+-----------+
| # iterations | typical | average | overall |  average |  overall |   average |   overall |
+--------------+---------+---------+---------+----------+----------+-----------+-----------+
        500000     0.100     0.101     0.101     604.00     604.00     9900990     9900990
       1000000     0.100     0.102     0.100     598.00     610.35     9803922    10000000
""",
    {
        "tool": "ucx_perftest",
        "num_ranks": 2,
        "rows": [[64, 0.1, 610.35 * 1.048576e-3, 610.35 * 1.048576e-3]],
        "figures": [["", "message rate", 10000000.0, "per_s"]],
        "translations": ["overall"],
    },
)
_add(
    "ucx_csv.txt",
    """iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
1000000,1.100,1.200,1.150,6.60,6.63,833333,869565
""",
    {
        "tool": "ucx_perftest",
        "num_ranks": 2,
        "figures": [
            ["", "latency", 1.15e-6, "s"],
            ["", "bandwidth", 6.63 * 1.048576e6, "bytes_per_s"],
            ["", "message rate", 869565.0, "per_s"],
        ],
        "remarks": ["size-not-printed"],
        "translations": ["overall"],
    },
)
_add(
    "p2pmark.txt",
    """Found 2 GPUs

=== Sequential P2P bandwidth (GB/s) ===
Each transfer: 64 MB, 20 iterations

Dst->  GPU0     GPU1
GPU 0:     -       54.25
GPU 1:   54.75       -

=== Topology probe: staggered writes by peer distance (GB/s) ===
2 concurrent transfers per round, each GPU writing to one unique peer.
+1  0->1 1->0   50.25 avg   100.50 total

=== Single GPU writes to all 1 peers concurrent (GB/s) ===

GPU 0 writes to all peers: 54.00 GB/s

=== All-to-all fabric stress test (GB/s) ===
GPU 0: 50.00 GB/s

Total all-to-all bandwidth: 100.00 GB/s  (stress test, N*(N-1) flows)

===========================================================
  PCIe LINK SCORE:           0.87
  (54.50 GB/s avg  /  63.0 GB/s PCIe 5.0 x16 theoretical)

  DENSE INTERCONNECT SCORE:  0.92
  (100.00 GB/s measured  /  109.00 GB/s ideal)

  1.00 = perfect, 0.00 = none
===========================================================
""",
    {
        "tool": "p2pmark",
        "matrices": [
            [
                "Sequential P2P bandwidth",
                "d2d",
                [["gpu0", "gpu1", 54.25, None], ["gpu1", "gpu0", 54.75, None]],
            ]
        ],
        "figures": [
            ["", "PCIe LINK SCORE", 0.87, "ratio"],
            ["", "DENSE INTERCONNECT SCORE", 0.92, "ratio"],
            ["distance 1", "Topology probe: staggered writes by peer distance, mean", 50.25e9, "bytes_per_s"],
            ["gpu0", "Single GPU writes to all 1 peers concurrent", 54e9, "bytes_per_s"],
            ["gpu0", "All-to-all fabric stress test", 50e9, "bytes_per_s"],
            ["", "Total all-to-all bandwidth", 100e9, "bytes_per_s"],
            ["", "PCIe LINK SCORE, avg", 54.5e9, "bytes_per_s"],
            ["", "PCIe LINK SCORE, PCIe 5.0 x16 theoretical", 63e9, "bytes_per_s"],
            ["", "DENSE INTERCONNECT SCORE, measured", 100e9, "bytes_per_s"],
            ["", "DENSE INTERCONNECT SCORE, ideal", 109e9, "bytes_per_s"],
        ],
        "translations": ["score-of-pcie-5"],
    },
)
_add(
    "iperf3_one_stream.txt",
    """Connecting to host 192.0.2.7, port 5201
[  5] local 192.0.2.6 port 40000 connected to 192.0.2.7 port 5201
[ ID] Interval           Transfer     Bandwidth       Retr  Cwnd
[  5]   0.00-1.00   sec  1.10 GBytes  9.40 Gbits/sec    3   1.50 MBytes
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bandwidth       Retr
[  5]   0.00-1.00   sec  1.10 GBytes  9.40 Gbits/sec    3             sender
[  5]   0.00-1.00   sec  1.09 GBytes  9.36 Gbits/sec                  receiver

iperf Done.
""",
    {
        "tool": "iperf3",
        "figures": [
            ["stream 5", "received", 1.17e9, "bytes_per_s"],
            ["stream 5", "sent", 1.175e9, "bytes_per_s"],
            ["stream 5", "sent, retransmits", 3.0, "count"],
        ],
        "translations": ["units"],
    },
)
_add(
    "iperf3_server.txt",
    """Accepted connection from 192.0.2.6, port 40000
[  5] local 192.0.2.7 port 5201 connected to 192.0.2.6 port 40002
[ ID] Interval           Transfer     Bandwidth
[  5]   0.00-1.00   sec  1.09 GBytes  9.36 Gbits/sec
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bandwidth
[  5]   0.00-1.00   sec  0.00 Bytes  0.00 bits/sec                  sender
[  5]   0.00-1.00   sec  1.09 GBytes  9.36 Gbits/sec                  receiver
""",
    {
        "tool": "iperf3",
        "figures": [["stream 5", "received", 1.17e9, "bytes_per_s"]],
        "translations": ["units", "other-end-unknown"],
    },
)
_add(
    "iperf3_server.json",
    """{
\t"start":\t{
\t\t"connected":\t[{"socket": 5, "local_host": "192.0.2.7"}],
\t\t"version":\t"iperf 3.1",
\t\t"accepted_connection":\t{"host": "192.0.2.6", "port": 40000}
\t},
\t"intervals":\t[],
\t"end":\t{
\t\t"streams":\t[{"sender": {"socket": 5, "bits_per_second": 0},
\t\t"receiver": {"socket": 5, "bits_per_second": 7920000000.0}}],
\t\t"sum_sent":\t{"bits_per_second": 0},
\t\t"sum_received":\t{"bits_per_second": 7920000000.0}
\t}
}
""",
    {
        "tool": "iperf3",
        "version": "3.1",
        "figures": [
            ["all streams", "received", 0.99e9, "bytes_per_s"],
            ["stream 5", "received", 0.99e9, "bytes_per_s"],
        ],
        "translations": ["other-end-unknown"],
    },
)
_add(
    "iperf3_nothing_received.txt",
    """Connecting to host 192.0.2.7, port 5201
[ ID] Interval           Transfer     Bandwidth       Retr
[  5]   0.00-1.00   sec  1.10 GBytes  9.40 Gbits/sec    3             sender
[  5]   0.00-1.00   sec  0.00 Bytes  0.00 bits/sec                  receiver
""",
    {
        "tool": "iperf3",
        "figures": [
            ["stream 5", "received", 0.0, "bytes_per_s"],
            ["stream 5", "sent", 1.175e9, "bytes_per_s"],
            ["stream 5", "sent, retransmits", 3.0, "count"],
        ],
        "translations": ["units"],
    },
)
_add(
    "iperf3_udp_cut.txt",
    """Accepted connection from 192.0.2.6, port 40000
[ ID] Interval           Transfer     Bitrate         Jitter    Lost/Total Datagrams
[  5]   0.00-1.00   sec  1.00 MBytes  1024 KBytes/sec  0.250 ms  1/100 (1%)
""",
    {
        "tool": "iperf3",
        "status": "truncated",
        "failure": "no-summary",
        "figures": [
            ["stream 5", "interval 0.00 to 1.00 s", 1048576.0, "bytes_per_s"],
            ["stream 5", "interval 0.00 to 1.00 s, jitter", 0.25e-3, "s"],
            ["stream 5", "interval 0.00 to 1.00 s, lost datagrams", 1.0, "percent"],
        ],
        "remarks": ["no-summary"],
        "translations": ["units"],
    },
)
_add(
    "iperf3.json",
    """{
\t"start":\t{
\t\t"connected":\t[{"socket": 5, "local_host": "192.0.2.6"}],
\t\t"version":\t"iperf 3.16",
\t\t"connecting_to":\t{"host": "192.0.2.7", "port": 5201},
\t\t"test_start":\t{"protocol": "TCP", "num_streams": 1, "reverse": 0}
\t},
\t"intervals":\t[],
\t"end":\t{
\t\t"streams":\t[{"sender": {"socket": 5, "bits_per_second": 8000000000.0, "retransmits": 2},
\t\t"receiver": {"socket": 5, "bits_per_second": 7920000000.0}}],
\t\t"sum_sent":\t{"bits_per_second": 8000000000.0, "retransmits": 2},
\t\t"sum_received":\t{"bits_per_second": 7920000000.0},
\t\t"cpu_utilization_percent":\t{"host_total": 12.5, "remote_total": 30.25}
\t}
}
""",
    {
        "tool": "iperf3",
        "version": "3.16",
        "figures": [
            ["all streams", "received", 0.99e9, "bytes_per_s"],
            ["all streams", "sent", 1e9, "bytes_per_s"],
            ["all streams", "sent, retransmits", 2.0, "count"],
            ["stream 5", "received", 0.99e9, "bytes_per_s"],
            ["stream 5", "sent", 1e9, "bytes_per_s"],
            ["stream 5", "sent, retransmits", 2.0, "count"],
            ["this host", "CPU utilisation", 12.5, "percent"],
            ["the other host", "CPU utilisation", 30.25, "percent"],
        ],
    },
)
_add(
    "dcgmi_4.json",
    """{
  "DCGM Diagnostic" : {
    "test_categories" : [
      { "category" : "Deployment", "tests" : [
        { "name" : "software", "results" : [ { "entity_group" : "GPU", "entity_group_id" : 1, "entity_id" : 0,
          "status" : "Pass" } ], "test_summary" : { "status" : "Pass" } } ] },
      { "category" : "Integration", "tests" : [
        { "name" : "pcie", "results" : [
          { "entity_group" : "GPU", "entity_group_id" : 1, "entity_id" : 0, "status" : "Pass",
            "info" : [ "GPU to Host bandwidth:\\t\\t26.5 GB/s" ] },
          { "entity_group" : "GPU", "entity_group_id" : 1, "entity_id" : 1, "status" : "Fail",
            "warnings" : [ { "warning" : "Bandwidth of GPU 1 is too low", "error_id" : 36, "error_category" : 7,
              "error_severity" : 2 } ] } ] } ] }
    ]
  },
  "metadata" : { "Driver Version Detected" : "580.1.2", "version" : "4.4.1" }
}
""",
    {
        "tool": "dcgmi_diag",
        "version": "4.4.1",
        "status": "failed",
        "failure": "diag-failed",
        "figures": [
            ["gpu1", "Integration: pcie", None, "failed"],
            ["gpu0", "Deployment: software", None, "ok"],
            ["gpu0", "Integration: pcie", None, "ok"],
            ["gpu0", "Integration: pcie, GPU to Host bandwidth", 26.5e9, "bytes_per_s"],
        ],
        "remarks": ["diag-message", "diag-failed"],
    },
)
_add(
    "dcgmi_2.json",
    '{"DCGM GPU Diagnostic": {"version": "2.4.7", "test_categories": [{"category": "Hardware", "tests": [{"name": '
    '"GPU Memory", "results": [{"gpu_ids": "0", "status": "PASS", "info": "Allocated 16583361795 bytes (97.2%)"}, '
    '{"gpu_ids": "1", "status": "SKIP"}]}]}]}}\n',
    {
        "tool": "dcgmi_diag",
        "version": "2.4.7",
        "figures": [
            ["gpu0", "Hardware: GPU Memory", None, "ok"],
            ["gpu0", "Hardware: GPU Memory, Allocated", 16583361795.0, "bytes"],
            ["gpu1", "Hardware: GPU Memory", None, "waived"],
        ],
    },
)
_add(
    "all_reduce_bench.txt",
    """
Environment:
- software: torch=2.9.1+cu130, cuda=13.0, nccl=(2, 27, 7)
- hardware: _CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0)

The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KiB |   1.40GBps |   0.80GBps |
|    1MiB |  35.00GBps |  20.00GBps |
|   16GiB | 437.50GBps | 250.00GBps |

Legend: 1KiB = 2**10 Bytes, 1MiB = 2**20 Bytes, 1GiB = 2**30 Bytes
Elapsed time: 0:00:47
""",
    {
        "tool": "all_reduce_bench",
        "gpus": ["NVIDIA H100 80GB HBM3"],
        "pattern": "allreduce",
        "num_ranks": 8,
        "rows": [[32768, None, 0.8, 1.4], [1048576, None, 20.0, 35.0], [1 << 34, None, 250.0, 437.5]],
    },
)
_add(
    "all_reduce_bench_2025.txt",
    """The average bandwidth of all_reduce over 4 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|    32KB |   1.50GBps |   1.00GBps |
""",
    {
        "tool": "all_reduce_bench",
        "pattern": "allreduce",
        "num_ranks": 4,
        "rows": [[32768, None, 1.073741824, 1.5 * 1.073741824]],
        "translations": ["gib-of-old"],
    },
)
_add(
    "all_reduce_bench_2024.txt",
    """The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 16 ranks):
 algbw: 100.000 GBps (800.0 Gbps)
 busbw: 187.500 GBps (1500.0 Gbps)

""",
    {
        "tool": "all_reduce_bench",
        "pattern": "allreduce",
        "num_ranks": 16,
        "rows": [[4000000000, None, 100.0, 187.5]],
    },
)
_add(
    "torch_dist_bench.txt",
    """The average bandwidth and the per-call latency of all_gather over 8 ranks (at least 5 warmups / 20 trials):

| payload |    busbw   |    algbw   | latency median |    p99    |    mean   | calls |
| ------: | ---------: | ---------: | -------------: | --------: | --------: | ----: |
|   64B   |            |            |         12.0us |    20.0us |    13.0us |   200 |
|    1MiB |  35.00GBps |  40.00GBps |         26.0us |    30.0us |    27.5us |   200 |

latency: of one call, in microseconds, each call's time being the slowest rank's
""",
    {
        "tool": "all_reduce_bench",
        "pattern": "allgather",
        "num_ranks": 8,
        "rows": [[64, 13.0, None, None], [1048576, 27.5, 40.0, 35.0]],
        "translations": ["mean-of-calls"],
    },
)
_BAR = "+---------------------------------+--------------+--------------+--------------+"
_add(
    "gpcnet_load.txt",
    f"""NetworkLoad Tests v1.3
  Test with 80 MPI ranks (10 nodes)
  2 nodes running Network Tests
  8 nodes running Congestion Tests (min 100 nodes per congestor)

  Legend
   RR = random ring communication pattern
+------------------------------------------------------------------------------+
|                            Isolated Network Tests                            |
{_BAR}
|                            Name |          Avg |          99% |        Units |
{_BAR}
|          RR Two-sided Lat (8 B) |          2.5 |          4.0 |         usec |
{_BAR}
| RR Two-sided BW+Sync (131072 B) |       1000.0 |        900.0 |   MiB/s/rank |
{_BAR}

+------------------------------------------------------------------------------+
|          Network Tests running with Congestion Tests - Key Results           |
+---------------------------------+--------------------------------------------+
|                            Name |                   Congestion Impact Factor |
+---------------------------------+----------------------+---------------------+
|                                 |                  Avg |                 99% |
+---------------------------------+----------------------+---------------------+
|          RR Two-sided Lat (8 B) |                 1.2X |                1.5X |
+---------------------------------+----------------------+---------------------+
""",
    {
        "tool": "gpcnet",
        "version": "1.3",
        "num_ranks": 80,
        "figures": [
            ["Isolated Network Tests", "RR Two-sided Lat (8 B), Avg", 2.5e-6, "s"],
            ["Isolated Network Tests", "RR Two-sided Lat (8 B), 99%", 4e-6, "s"],
            ["Isolated Network Tests", "RR Two-sided BW+Sync (131072 B), Avg", 1048576000.0, "bytes_per_s"],
            ["Isolated Network Tests", "RR Two-sided BW+Sync (131072 B), 99%", 943718400.0, "bytes_per_s"],
            ["Congestion Impact Factor", "RR Two-sided Lat (8 B), Avg", 1.2, "ratio"],
            ["Congestion Impact Factor", "RR Two-sided Lat (8 B), 99%", 1.5, "ratio"],
        ],
        "translations": ["per-rank"],
    },
)


def _inspected(rank: int, operation: str, seq: int, size: int, micros: float, **more: Any) -> dict[str, Any]:
    """A record of a finished collective as NCCL's Inspector writes it; `more` is for the figures."""
    num_ranks = 4
    payload = size * num_ranks if operation in ("AllGather", "ReduceScatter") else size
    factor = (2 if operation == "AllReduce" else 1) * (num_ranks - 1) / num_ranks
    algbw = round(payload / 1e3 / micros, 6) if micros else 0
    perf = {
        "coll": operation,
        "coll_sn": seq,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": micros,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": algbw,
        "coll_busbw_gbs": round(algbw * factor, 6),
    }
    return {
        "header": {"id": "0xabc", "comm_name": "DP 0", "rank": rank, "n_ranks": num_ranks, "nnodes": 2},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": f"node-{rank // 2}", "pid": 100 + rank},
        "coll_perf": {**perf, **more},
    }


def _sent(rank: int, peer: int, seq: int, size: int, micros: int) -> dict[str, Any]:
    """A record of a finished send, as the plug-in writes it since it tracks them."""
    rate = round(size / 1e3 / micros, 6)
    perf = {"p2p": "Send", "p2p_sn": seq, "p2p_peer": peer, "p2p_msg_size_bytes": size, "p2p_exec_time_us": micros}
    perf = {**perf, "p2p_timing_source": "kernel_gpu", "p2p_algobw_gbs": rate, "p2p_busbw_gbs": rate}
    return {"header": _inspected(rank, "", 0, 1, 1)["header"], "metadata": {"hostname": "node-0"}, "p2p_perf": perf}


def _lines_of(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


# Each rank has the sequence numbers 1 to 3 of one size; the slowest ranks take 200, 400 and 300 us.
_RANKS = [
    _inspected(rank, "AllReduce", seq, 4_000_000, micros - 10 * (rank != seq))
    for rank in range(4)
    for seq, micros in ((1, 200), (2, 400), (3, 300))
]
_add(
    "nccl_inspector_ranks.log",
    _lines_of(
        *_RANKS, _inspected(0, "AllGather", 1, 1_000_000, 100), _sent(0, 1, 5, 1000, 10), _sent(2, 3, 5, 1000, 4)
    ),
    {
        "tool": "nccl_inspector",
        "pattern": "allreduce",
        "num_ranks": 4,
        "rows": [[4000000, 300.0, 13.333333, 20.0]],
        "translations": ["inspector-slowest-rank"],
    },
    {
        "tool": "nccl_inspector",
        "pattern": "allgather",
        "num_ranks": 4,
        "rows": [[4000000, 100.0, 40.0, 30.0]],
        "translations": ["inspector-slowest-rank"],
    },
    {
        "tool": "nccl_inspector",
        "num_ranks": 4,
        "rows": [[1000, 10.0, 0.1, 0.1]],
        "translations": ["inspector-sends"],
    },
)
_TRACE = {"event_trace_ts": {"kernel_events": [{"channel_id": channel} for channel in range(40)]}}
_add(
    "nccl_inspector_verbose.json",
    "Dump of rank 1\n\n```json\n"
    + json.dumps(_inspected(1, "ReduceScatter", 7, 1_000_000, 50, **_TRACE), indent=2)
    + "\n```\n\nand one that had no time yet:\n\n"
    + json.dumps(_inspected(1, "ReduceScatter", 8, 1_000_000, 0), indent=2)
    + "\n",
    {
        "tool": "nccl_inspector",
        "pattern": "reducescatter",
        "num_ranks": 4,
        "rows": [[4000000, 50.0, 80.0, 60.0]],
        "remarks": ["inspector-no-time"],
        "translations": ["inspector-slowest-rank"],
    },
)
_add(
    "nccl_inspector_cut.log",
    _lines_of(_inspected(0, "All2All", 1, 1_000_000, 50, coll_algobw_gbs=0.0, coll_busbw_gbs=0.0))
    + _lines_of(_inspected(0, "All2All", 2, 1_000_000, 60))[:-30],
    {
        "tool": "nccl_inspector",
        "num_ranks": 4,
        "status": "truncated",
        "failure": "document-cut",
        "rows": [[1000000, 50.0, None, None]],
        "remarks": ["document-cut"],
        "translations": ["inspector-slowest-rank", "inspector-not-rated"],
    },
)
