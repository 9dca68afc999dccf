"""Rules about GPUs, and about settings of the kernel, the container and the libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from bench.core.inventory import MIN_LOCKED_BYTES, Gpu
from bench.core.units import format_bytes
from bench.hardware import live
from bench.hardware._health_rule import HealthFinding, HealthNode, finding, grouped, names
from bench.hardware.messages import HealthCode

_MIB = 1 << 20
_CONTAINER_SHM_BYTES = 64 * _MIB  # the size that containers have by default
_BRAKES = ("hw slowdown", "hw thermal slowdown", "hw power brake slowdown", "sw thermal slowdown")


def no_gpu_direct(node: HealthNode) -> Iterator[HealthFinding]:
    """Find network adapters without access to GPU memory.

    Network adapters without this access send and receive only through host memory.
    """
    if not node.gpus or not node.adapters_by_rdma:
        return
    module, dmabuf = node.facts.get("peermem"), node.facts.get("dmabuf")
    evidence = f"nvidia_peermem is {_state(module, 'loaded')}, dmabuf {_state(dmabuf, 'possible')}"
    if module is False and dmabuf is False:
        yield finding("no_gpu_direct", node.severity_of_rdma, HealthCode.NO_GPU_DIRECT, evidence)
    elif not module and not dmabuf:
        yield finding("no_gpu_direct", "unknown", HealthCode.GPU_DIRECT_UNKNOWN, evidence)


def no_verbs(node: HealthNode) -> Iterator[HealthFinding]:
    """Find network adapters whose device files are missing in a container.

    Libraries then use sockets instead of RDMA.
    """
    cards = live.active_adapters(node.found)
    if cards and node.facts.get("verbs") is False:
        evidence = f"/sys shows {len(cards)}, and /dev/infiniband has no device files for them"
        yield finding("no_verbs", "doubtful", HealthCode.NO_VERBS, evidence)


def address_translation(node: HealthNode) -> Iterator[HealthFinding]:
    """Find settings (IOMMU, ACS) that route copies between PCIe devices through the processor.

    The rule applies to two kinds of nodes: nodes with several GPUs that NVSwitch does not connect, and nodes with GPUs
    and active RDMA adapters.
    """
    by_pcie = len(node.gpus) > 1 and live.peer_kind(node.found) != "nvswitch"
    if not node.gpus or not (by_pcie or live.active_adapters(node.found)):
        return
    for key, bad, code, unknown in (
        ("iommu", "on", HealthCode.IOMMU, HealthCode.IOMMU_UNKNOWN),
        ("acs", True, HealthCode.ACS, HealthCode.ACS_UNKNOWN),
    ):
        if node.facts.get(key) == bad:
            yield finding(key, "doubtful", code, f"{key}: {'on' if bad is True else bad}")
        elif node.facts.get(key) is None:
            yield finding(key, "unknown", unknown, node.not_reported("/sys", "them"))


def locked_memory(node: HealthNode) -> Iterator[HealthFinding]:
    """Find a limit on locked memory, which RDMA needs for its buffers."""
    limit = node.facts.get("max_locked_bytes")
    if node.rdma_adapters and isinstance(limit, int) and limit < MIN_LOCKED_BYTES:
        evidence = f"the limit is {format_bytes(limit)}"
        yield finding("locked_memory", node.severity_of_rdma, HealthCode.LOCKED_MEMORY, evidence, limit_bytes=limit)


def shared_memory(node: HealthNode) -> Iterator[HealthFinding]:
    """Find a /dev/shm that is too small.

    NCCL and MPI use /dev/shm to copy between the processes of a node.
    """
    size = node.facts.get("shm_bytes")
    if not node.gpus:
        return
    if size is None:
        evidence = node.not_reported("the system")
        yield finding("shared_memory", "unknown", HealthCode.SHARED_MEMORY_UNKNOWN, evidence)
    elif size <= _CONTAINER_SHM_BYTES:
        several = len(node.gpus) > 1
        severity = "wrong" if several else "doubtful"
        evidence = f"{format_bytes(size)} for {len(node.gpus)} GPU{'s' if several else ''}"
        yield finding("shared_memory", severity, HealthCode.SHARED_MEMORY, evidence, size_bytes=size)


def mig(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPUs in MIG mode.

    A GPU in MIG mode has no NVLink and no peer access, and no process can use the whole GPU.
    """
    cut = [each for each in node.gpus if each.mig]
    if cut:
        evidence = "reported by the driver"
        yield finding("mig", "wrong", HealthCode.MIG, evidence, gpus=names(cut), first=cut[0].index)


def ecc_errors(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPUs that have had uncorrectable memory errors in their lifetime."""
    for gpus, num in grouped(node.gpus, [str(each.ecc_uncorrected or "") for each in node.gpus]):
        yield finding("ecc_errors", "doubtful", HealthCode.ECC_ERRORS, f"{num} in total", gpus=gpus, num=int(num))


def throttled(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPUs that run below their clock rates, with the driver's throttle reasons."""
    for gpus, reasons in grouped(node.gpus, [", ".join(each.throttle) for each in node.gpus]):
        braked = any(reason in _BRAKES for reason in reasons.split(", "))
        severity, code = ("wrong", HealthCode.BRAKED) if braked else ("doubtful", HealthCode.THROTTLED)
        yield finding("throttled", severity, code, f"throttle reasons: {reasons}", gpus=gpus)


def governor(node: HealthNode) -> Iterator[HealthFinding]:
    """Find a CPU frequency governor that slows down idle processors. Slow processors increase every latency."""
    found = node.facts.get("governor")
    if found is None:
        yield finding("governor", "unknown", HealthCode.GOVERNOR_UNKNOWN, node.not_reported("/sys"))
    elif found != "performance":
        yield finding("governor", "doubtful", HealthCode.GOVERNOR, f"CPU frequency governor: {found}", governor=found)


def unlike_gpus(node: HealthNode) -> Iterator[HealthFinding]:
    """Find nodes whose GPUs differ. In a collective, all GPUs wait for the slowest GPU."""
    properties: tuple[tuple[str, Callable[[Gpu], object]], ...] = (
        ("model", lambda each: each.name),
        ("memory", lambda each: each.memory_bytes),
        ("maximum PCIe link", live.both_ends),
        ("maximum clock", lambda each: each.sm_max_hz),
        ("power limit", lambda each: each.power_limit_w),
        ("ECC", lambda each: each.ecc),
        ("MIG", lambda each: each.mig),
    )
    for name, value_of in properties:
        found = list(grouped(node.gpus, [str(value_of(each)) for each in node.gpus]))
        if len(found) > 1:
            evidence = "; ".join(f"{gpus}: {value}" for gpus, value in found)
            yield finding("unlike_gpus", "doubtful", HealthCode.UNLIKE_GPUS, evidence, property=name)


def libraries(node: HealthNode) -> Iterator[HealthFinding]:
    """Find libraries that cannot use the GPUs of this node."""
    torch, cuda = node.software.get("torch", ""), str(node.facts.get("gpu_cuda") or "")
    if not node.gpus:
        return
    if torch.endswith("+cpu"):
        yield finding("libraries", "wrong", HealthCode.TORCH_WITHOUT_CUDA, f"torch {torch}")
    driver = int(cuda.partition(".")[0]) if cuda.partition(".")[0].isdigit() else None
    if driver is None:
        yield finding("libraries", "unknown", HealthCode.CUDA_UNKNOWN, node.not_reported("the driver"))
        return
    built = re.search(r"\+cu(\d+)\d$", torch)
    wanted = {f"torch {torch}": int(built[1])} if built else {}
    for name, version in node.software.items():
        if re.fullmatch(r"cupy-cuda\d+x", name):
            wanted[f"{name} {version}"] = int(name[9:-1])
    for library, needs in wanted.items():
        if needs > driver:
            evidence = f"built for CUDA {needs}; the driver supports {cuda}"
            yield finding("libraries", "wrong", HealthCode.LIBRARY_TOO_NEW, evidence, library=library, driver=driver)


def no_driver(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPU libraries on a node without a visible GPU. No other rule reports a problem with such a node."""
    made_for = [
        f"{name} {version}"
        for name, version in node.software.items()
        if re.fullmatch(r"cupy-cuda\d+x|nvidia-nccl-cu\d+", name) or (name == "torch" and "+cu" in version)
    ]
    why = node.facts.get("no_gpus_because")
    if made_for and why and not node.gpus:
        evidence = f"{', '.join(made_for)}; {why}"
        yield finding("no_driver", "doubtful", HealthCode.NO_DRIVER, evidence)


RULES = (
    no_gpu_direct,
    no_verbs,
    address_translation,
    locked_memory,
    shared_memory,
    mig,
    ecc_errors,
    throttled,
    governor,
    unlike_gpus,
    libraries,
    no_driver,
)


def _state(fact: object, word: str) -> str:
    if fact is None:
        return f"not known to be {word}"
    return word if fact else f"not {word}"
