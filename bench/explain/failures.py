"""Why a tool failed, by the words that it left, and what to look at first.

Wrong data of copies between GPUs alone: on bare-metal Linux an IOMMU that is on corrupts PCIe copies between GPUs in
silence, while one under a virtual machine is right (NVIDIA, CUDA Programming Guide, Programming Systems with Multiple
GPUs, "Host IOMMU Hardware, PCI Access Control Services, and VMs"; CUDA C++ Programming Guide, "IOMMU on Linux").
"""

from __future__ import annotations

from bench.explain.reason import Reason
from bench.logs.foreign import FAILED, ForeignRun
from bench.logs.messages import LogCode

# What a failure's words hold -> what it is, what to do, one command.
_KNOWN = (
    (
        ("system not yet initialized", "SYSTEM_NOT_READY"),
        "the NVSwitch fabric is not up",
        "start the fabric manager of the driver's own version",
        "systemctl status nvidia-fabricmanager",
    ),
    (
        ("pattern", "h_errorFlag"),
        "the data that arrived were wrong: memory or a link is broken",
        "see the GPU's errors, and take the node out",
        "nvidia-smi -q -d ECC,ROW_REMAPPER",
    ),
    (
        ("MultinodeMemoryAllocation",),
        "the IMEX daemon does not run, or its channel is not there",
        "start it, and give the container its channel: multinode tests share memory by it, within one node as well",
        "systemctl status nvidia-imex; ls /dev/nvidia-caps-imex-channels",
    ),
    (
        ("several runs print",),
        "each process ran alone: nccl-tests was built without MPI, or every rank was started as a job of its own",
        "build it again from the beginning (make clean), with MPI",
        "make clean; make MPI=1 MPI_HOME=/path/to/mpi",
    ),
    (("out of memory",), "the buffers do not fit", "give a smaller largest size", "all_reduce_perf -b 8 -e 1G -f 2"),
    (
        ("unhandled cuda error", "CUDA failure", "CUDA_ERROR", "illegal memory access"),
        "CUDA failed",
        "see what CUDA said, and the kernel's Xid lines",
        "dmesg | grep -i xid",
    ),
    (
        ("unhandled system error", "remote process exited", "Connection", "unhandled remote"),
        "a rank was lost",
        "see which rank complained first",
        "NCCL_DEBUG=WARN all_reduce_perf -b 8 -e 1G -f 2",
    ),
)

# As above, of the check of a pattern that copies between GPUs alone did not pass.
_BETWEEN_GPUS = (
    "the data that arrived were wrong, between GPUs: on bare metal the usual cause is an IOMMU (or PCIe ACS) that is "
    "on, with which PCIe copies between GPUs are corrupted in silence; else memory or a link is broken",
    "see whether this is bare metal with the IOMMU or ACS on; if so, switch both off and run again before any hardware "
    "is suspected; else see the GPUs' errors",
    "cat /proc/cmdline; ls /sys/kernel/iommu_groups | wc -l; sudo lspci -vvv | grep ACSCtl; "
    "nvidia-smi -q -d ECC,ROW_REMAPPER",
)


_AMONG_GPUS = ("device_to_device", "one_to_all", "all_to_one")  # in the names of nvbandwidth's tests


def failure_reason(run: ForeignRun, wrong_rows: int, num_rows: int) -> Reason | None:
    """Why nothing else counts, where the data were wrong or the tool failed. A log that was cut
    is no reason for a bandwidth: the page says so at its beginning."""
    if wrong_rows:
        evidence = f"{wrong_rows} of {num_rows} rows have wrong elements, by the tool's own check"
        step = "find the pair that corrupts: run each node alone, then two at a time; leave custom plug-ins out first"
        command = "all_reduce_perf -b 1M -e 1M -c 1 -n 1 2>&1 | python -m bench explain -"
        return Reason("wrong data: nothing else counts", evidence, 1.0, step, command)
    if run.status == FAILED:
        said = run.failure.text if run.failure else "the tool failed"
        for words, what, step, command in _KNOWN:
            if any(word.lower() in said.lower() for word in words):
                if "pattern" in words and _between_gpus(run):
                    what, step, command = _BETWEEN_GPUS
                    said += "; copies from and to the host passed the check" if _host_passed(run) else ""
                return Reason(what, said, 1.0, step, command)
        return Reason("the tool failed", said, 1.0, "run it again with its errors shown", "NCCL_DEBUG=WARN")
    return None


def _between_gpus(run: ForeignRun) -> bool:
    """Did a copy between GPUs fail, and none between a GPU and its host? Of a test that never ended only the name is
    left, as a remark."""
    broken = [remark.facts["test"] for remark in run.remarks if remark.code == LogCode.NEVER_FINISHED]
    said = " ".join((run.failure.text if run.failure else "", *broken))
    of_host = "host_to_device" in said or "device_to_host" in said
    return not of_host and (any(name in said for name in _AMONG_GPUS) or _host_passed(run))


def _host_passed(run: ForeignRun) -> bool:
    """Were both ways to the host measured?"""
    told = {matrix.direction for matrix in run.matrices if any(cell.value is not None for cell in matrix.cells)}
    return {"h2d", "d2h"} <= told
