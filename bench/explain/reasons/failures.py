"""Search the text that a tool printed for the reason why the tool failed, and say what to check first.

The page shows the first reason that applies.

If only copies between GPUs have wrong data, the cause may be an IOMMU. On bare-metal Linux, an enabled IOMMU silently
corrupts PCIe copies between GPUs. In a virtual machine, an IOMMU causes no errors. NVIDIA documents both facts:
- CUDA Programming Guide, Programming Systems with Multiple GPUs, "Host IOMMU Hardware, PCI Access Control Services, and
  VMs"
- CUDA C++ Programming Guide, "IOMMU on Linux"
"""

from __future__ import annotations

from bench.core.codes import UNCODED, Coded
from bench.core.log_traits import log_traits
from bench.explain.reason import FailedRun, Found, reason
from bench.logs.foreign import FAILED, TRUNCATED, ForeignRun
from bench.logs.messages import LogCode

_NCCL_WARN = "NCCL_DEBUG=WARN all_reduce_perf -b 8 -e 1G -f 2"
_PEER_TESTS = ("device_to_device", "one_to_all", "all_to_one")  # parts of the names of nvbandwidth's tests between GPUs


@reason(
    FailedRun,
    "wrong-data",
    what="wrong data: no other figure counts",
    evidence="the tool's own check found wrong elements in {num_wrong_rows} of {num_rows} rows",
    step="find the pair that corrupts data: run each node alone, then two at a time; first run without custom plug-ins",
)
def wrong_data(failed: FailedRun) -> Found | None:
    """Detect rows with wrong elements."""
    if not failed.num_wrong_rows:
        return None
    facts = {"num_wrong_rows": failed.num_wrong_rows, "num_rows": failed.num_rows}
    return Found(1.0, facts, "all_reduce_perf -b 1M -e 1M -c 1 -n 1 2>&1 | linkbench explain -")


@reason(
    FailedRun,
    "fabric-not-ready",
    what="the NVSwitch fabric is not up",
    evidence="{failure}",
    step="start the fabric manager of the driver's own version",
)
def fabric_not_ready(failed: FailedRun) -> Found | None:
    """Detect CUDA's message that the system is not initialized."""
    return _printed(failed, "systemctl status nvidia-fabricmanager", "system not yet initialized", "SYSTEM_NOT_READY")


@reason(
    FailedRun,
    "wrong-data-between-gpus",
    what="the received data were wrong, between GPUs: on bare metal the usual cause is an enabled IOMMU (or PCIe ACS), "
    "which silently corrupts PCIe copies between GPUs; else memory or a link is broken",
    evidence="{failure}<host_copies_passed?; copies from and to the host passed the check>",
    step="check whether this is bare metal with the IOMMU or ACS on; if so, switch both off and run again before "
    "suspecting hardware; else check the GPUs' errors",
)
def wrong_data_between_gpus(failed: FailedRun) -> Found | None:
    """Detect that the tool's check of the copied data failed only for copies between GPUs."""
    command = (
        "cat /proc/cmdline; ls /sys/kernel/iommu_groups | wc -l; sudo lspci -vvv | grep ACSCtl; "
        "nvidia-smi -q -d ECC,ROW_REMAPPER"
    )
    found = _wrong_pattern(failed, command)
    if found is None or not _only_between_gpus(failed.run):
        return None
    return Found(1.0, {**found.facts, "host_copies_passed": _host_copies_passed(failed.run)}, command)


@reason(
    FailedRun,
    "wrong-copies",
    what="the received data were wrong: memory or a link is broken",
    evidence="{failure}",
    step="check the GPU's errors, and take the node out of service",
)
def wrong_copies(failed: FailedRun) -> Found | None:
    """Detect that the tool's check of the copied data failed, for any type of copy."""
    return _wrong_pattern(failed, "nvidia-smi -q -d ECC,ROW_REMAPPER")


@reason(
    FailedRun,
    "no-imex",
    what="the IMEX daemon does not run, or its channel is missing",
    evidence="{failure}",
    step="start the daemon, and give the container its channel: multinode tests use both to share memory, also within "
    "one node",
)
def no_imex(failed: FailedRun) -> Found | None:
    """Detect that nvbandwidth could not allocate memory that nodes share."""
    command = "systemctl status nvidia-imex; ls /dev/nvidia-caps-imex-channels"
    return _printed(failed, command, "MultinodeMemoryAllocation")


@reason(
    FailedRun,
    "ran-without-mpi",
    what="each process ran alone: nccl-tests was built without MPI, or every rank was started as a job of its own",
    evidence="{failure}",
    step="rebuild it from scratch (make clean), with MPI",
)
def ran_without_mpi(failed: FailedRun) -> Found | None:
    """Detect that several processes print into one log."""
    failure = failed.run.failure
    if failed.run.status != FAILED or failure is None or failure.code != LogCode.SEVERAL_RUNS_AT_ONCE:
        return None
    return Found(1.0, {"failure": failure.text}, "make clean; make MPI=1 MPI_HOME=/path/to/mpi")


@reason(
    FailedRun,
    "out-of-memory",
    what="the buffers do not fit",
    evidence="{failure}",
    step="give a smaller largest size",
)
def out_of_memory(failed: FailedRun) -> Found | None:
    """Detect that an allocation failed."""
    return _printed(failed, "all_reduce_perf -b 8 -e 1G -f 2", "out of memory")


@reason(
    FailedRun,
    "cuda-failed",
    what="CUDA failed",
    evidence="{failure}",
    step="check CUDA's message, and the kernel's Xid lines",
)
def cuda_failed(failed: FailedRun) -> Found | None:
    """Detect that a call of CUDA failed."""
    printed = ("unhandled cuda error", "CUDA failure", "CUDA_ERROR", "illegal memory access")
    return _printed(failed, "dmesg | grep -i xid", *printed)


@reason(
    FailedRun,
    "rank-lost",
    what="a rank was lost",
    evidence="{failure}",
    step="check which rank reported an error first",
)
def rank_lost(failed: FailedRun) -> Found | None:
    """Detect that a process or connection ended early."""
    printed = ("unhandled system error", "remote process exited", "Connection", "unhandled remote")
    return _printed(failed, _NCCL_WARN, *printed)


@reason(
    FailedRun,
    "tool-failed",
    what="the tool failed",
    evidence="{failure}",
    step="run it again with its errors shown",
    fallback=True,
)
def tool_failed(failed: FailedRun) -> Found | None:
    """Detect that the tool failed in a way that no other reason explains."""
    return _printed(failed, "NCCL_DEBUG=WARN" if log_traits(failed.run.tool).gpu_collectives else "", "")


@reason(
    FailedRun,
    "ends-without-message",
    what="the log ends, and no message in it says why",
    evidence="{failure}",
    step="run it again with both output streams in the log (2>&1 | tee job.log), with NCCL's warnings if it uses NCCL; "
    "if the test has two ends, take the log of the end that measures",
)
def ends_without_message(failed: FailedRun) -> Found | None:
    """Detect a log without any figure. The log was truncated, or the job hung or was killed."""
    failure = failed.run.failure
    empty = not failed.run.rows and not failed.run.matrices
    if failed.run.status != TRUNCATED or failure is None or not empty:
        return None
    if failure.code == UNCODED or "printed" in failure.facts:
        return None
    of_nccl = log_traits(failed.run.tool).gpu_collectives
    command = "mpirun ... -x NCCL_DEBUG=WARN all_reduce_perf -b 8 -e 1G -f 2 2>&1 | tee job.log" if of_nccl else ""
    return Found(0.2, {"failure": failure.text}, command)


def _printed(failed: FailedRun, command: str, *texts: str) -> Found | None:
    """Return a reason if the tool failed and its log contains one of the given texts. Otherwise return None.

    The tool, its launcher or a library may have printed the text.
    """
    if failed.run.status != FAILED:
        return None
    failure = failed.run.failure or Coded.uncoded("the tool failed")
    printed = str(failure.facts.get("printed", failure.text)).lower()
    if not any(text.lower() in printed for text in texts):
        return None
    return Found(1.0, {"failure": failure.text}, command)


def _wrong_pattern(failed: FailedRun, command: str) -> Found | None:
    """Return a reason if nvbandwidth's check of the copied data failed. Otherwise return None."""
    return _printed(failed, command, "pattern", "h_errorFlag")


def _only_between_gpus(run: ForeignRun) -> bool:
    """Check whether copies between GPUs failed, while all copies between a GPU and its host were correct.

    For a test that never finished, the log's remark states only the name of the test.
    """
    tests = [run.failure.text] if run.failure else []
    tests += [remark.facts["test"] for remark in run.remarks if remark.code == LogCode.NEVER_FINISHED]
    failed = " ".join(tests)
    if "host_to_device" in failed or "device_to_host" in failed:
        return False
    return any(name in failed for name in _PEER_TESTS) or _host_copies_passed(run)


def _host_copies_passed(run: ForeignRun) -> bool:
    """Check whether copies in both directions between host and GPU were measured."""
    measured = {matrix.direction for matrix in run.matrices if any(cell.value is not None for cell in matrix.cells)}
    return {"h2d", "d2h"} <= measured
