"""Rules about GPUs themselves, and about what kernel, container and libraries let them do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from bench.core.inventory import MIN_LOCKED_BYTES, Gpu
from bench.core.units import format_bytes
from bench.hardware import live
from bench.hardware._health_rule import HealthFinding, HealthNode, grouped, names

_MIB = 1 << 20
_CONTAINER_SHM_BYTES = 64 * _MIB  # what a container has by default
_BRAKES = ("hw slowdown", "hw thermal slowdown", "hw power brake slowdown", "sw thermal slowdown")


def no_gpu_direct(node: HealthNode) -> Iterator[HealthFinding]:
    """Adapters can not reach GPU memory: all that leaves the node goes through the host's memory."""
    if not node.gpus or not node.adapters_by_rdma:
        return
    module, dmabuf = node.facts.get("peermem"), node.facts.get("dmabuf")
    told = f"nvidia_peermem is {_word(module, 'loaded')}, dmabuf {_word(dmabuf, 'possible')}"
    if module is False and dmabuf is False:
        yield HealthFinding(
            "no_gpu_direct",
            node.severity_of_rdma,
            "RDMA adapters can not reach GPU memory (no GPUDirect RDMA)",
            told,
            "`modprobe nvidia_peermem`, or the open kernel modules on Linux 5.12 and newer (dmabuf)",
        )
    elif not module and not dmabuf:
        yield HealthFinding("no_gpu_direct", "unknown", "whether RDMA adapters can reach GPU memory", told)


def no_verbs(node: HealthNode) -> Iterator[HealthFinding]:
    """Adapters that a container shows and does not hand on: what leaves the node goes by sockets."""
    cards = live.active_adapters(node.found)
    if cards and node.facts.get("verbs") is False:
        yield HealthFinding(
            "no_verbs",
            "doubtful",
            "no process here can use the RDMA adapters",
            f"/sys shows {len(cards)}, and /dev/infiniband has no device of theirs",
            "where several nodes are to be measured, start the container with `--device=/dev/infiniband`",
        )


def address_translation(node: HealthNode) -> Iterator[HealthFinding]:
    """What sends copies between PCIe devices up to the processor, where it is in their way."""
    by_pcie = len(node.gpus) > 1 and live.peer_kind(node.found) != "nvswitch"
    if not node.gpus or not (by_pcie or live.active_adapters(node.found)):
        return
    off = "in the BIOS and by `iommu=pt` on the kernel's command line"
    for key, bad, what, remedy in (
        ("iommu", "on", "the IOMMU translates what PCIe devices send each other", f"let it pass through, {off}"),
        (
            "acs",
            True,
            "ACS sends what PCIe devices send each other up to the processor",
            "switch it off in the BIOS, or by setpci for the bridges above GPUs and adapters, unless virtual machines "
            "need it",
        ),
    ):
        if node.facts.get(key) == bad:
            yield HealthFinding(key, "doubtful", what, f"{key}: {'on' if bad is True else bad}", remedy)
        elif node.facts.get(key) is None:
            yield HealthFinding(key, "unknown", f"{key.upper()} settings", node.silent("/sys", "them"))


def locked_memory(node: HealthNode) -> Iterator[HealthFinding]:
    """RDMA registers memory, which must stay in its place."""
    limit = node.facts.get("max_locked_bytes")
    if node.rdma_adapters and isinstance(limit, int) and limit < MIN_LOCKED_BYTES:
        yield HealthFinding(
            "locked_memory",
            node.severity_of_rdma,
            "a process may lock too little memory for RDMA",
            f"the limit is {format_bytes(limit)}",
            "`ulimit -l unlimited`, in a container `--ulimit memlock=-1`",
        )


def shared_memory(node: HealthNode) -> Iterator[HealthFinding]:
    """NCCL and MPI copy between the processes of a node through /dev/shm."""
    size = node.facts.get("shm_bytes")
    if not node.gpus:
        return
    if size is None:
        yield HealthFinding("shared_memory", "unknown", "the size of /dev/shm", node.silent("the system"))
    elif size <= _CONTAINER_SHM_BYTES:
        several = len(node.gpus) > 1
        yield HealthFinding(
            "shared_memory",
            "wrong" if several else "doubtful",
            "/dev/shm is as small as containers have it by default",
            f"{format_bytes(size)} for {len(node.gpus)} GPU{'s' if several else ''}",
            "start the container with `--shm-size=8g` or `--ipc=host`",
        )


def mig(node: HealthNode) -> Iterator[HealthFinding]:
    """A GPU cut into instances has neither NVLink nor peer access, and no process has all of it."""
    cut = [each for each in node.gpus if each.mig]
    if cut:
        yield HealthFinding(
            "mig",
            "wrong",
            f"MIG is on: {names(cut)}",
            "the driver says so",
            f"`nvidia-smi -i {cut[0].index} -mig 0` where whole GPUs are to be measured",
        )


def ecc_errors(node: HealthNode) -> Iterator[HealthFinding]:
    """Memory that could not be corrected, since the GPU was built."""
    for who, num in grouped(node.gpus, [str(each.ecc_uncorrected or "") for each in node.gpus]):
        yield HealthFinding(
            "ecc_errors",
            "doubtful",
            f"memory errors that could not be corrected: {who}",
            f"{num} in all",
            "`nvidia-smi -q -d ECC,ROW_REMAPPER` tells whether rows wait to be remapped: reset the GPU then",
        )


def throttled(node: HealthNode) -> Iterator[HealthFinding]:
    """GPUs that run slower than they could, and the driver's reasons."""
    for who, reasons in grouped(node.gpus, [", ".join(each.throttle) for each in node.gpus]):
        brakes = any(reason in _BRAKES for reason in reasons.split(", "))
        yield HealthFinding(
            "throttled",
            "wrong" if brakes else "doubtful",
            f"slower than it could be: {who}",
            f"the driver's reasons: {reasons}",
            "look to cooling and power supply"
            if brakes
            else "`nvidia-smi -q -d CLOCK,POWER` shows limits that somebody set",
        )


def governor(node: HealthNode) -> Iterator[HealthFinding]:
    """Processors that slow down between messages add to every latency."""
    told = node.facts.get("governor")
    if told is not None and told != "performance":
        yield HealthFinding(
            "governor",
            "doubtful",
            "the processors slow down when they have little to do",
            f"CPU frequency governor: {told}",
            "`cpupower frequency-set -g performance`",
        )
    elif told is None:
        yield HealthFinding("governor", "unknown", "the CPU frequency governor", node.silent("/sys"))


def unlike_gpus(node: HealthNode) -> Iterator[HealthFinding]:
    """The slowest GPU sets the pace of all; those of one node should be alike."""
    kinds: tuple[tuple[str, Callable[[Gpu], object]], ...] = (
        ("model", lambda each: each.name),
        ("memory", lambda each: each.memory_bytes),
        ("PCIe at most", live.both_ends),
        ("highest clock", lambda each: each.sm_max_hz),
        ("power limit", lambda each: each.power_limit_w),
        ("ECC", lambda each: each.ecc),
        ("MIG", lambda each: each.mig),
    )
    for what, of in kinds:
        told = list(grouped(node.gpus, [str(of(each)) for each in node.gpus]))
        if len(told) > 1:
            yield HealthFinding(
                "unlike_gpus",
                "doubtful",
                f"the GPUs of this node differ in {what}",
                "; ".join(f"{who}: {value}" for who, value in told),
                "the slowest of them sets the pace: set them alike, or leave the odd one out",
            )


def libraries(node: HealthNode) -> Iterator[HealthFinding]:
    """Libraries that can not use the GPUs that are here."""
    torch, cuda = node.software.get("torch", ""), str(node.facts.get("gpu_cuda") or "")
    if not node.gpus:
        return
    if torch.endswith("+cpu"):
        yield HealthFinding(
            "libraries",
            "wrong",
            "torch is built without CUDA, so that the GPUs can not be used by it",
            f"torch {torch}",
            "install a build of torch with CUDA",
        )
    driver = int(cuda.partition(".")[0]) if cuda.partition(".")[0].isdigit() else None
    if driver is None:
        yield HealthFinding("libraries", "unknown", "which CUDA the driver allows", node.silent("the driver"))
        return
    built = re.search(r"\+cu(\d+)\d$", torch)
    wanted = {f"torch {torch}": int(built[1])} if built else {}
    cupys = {n: v for n, v in node.software.items() if re.fullmatch(r"cupy-cuda\d+x", n)}
    wanted |= {f"{name} {version}": int(name[9:-1]) for name, version in cupys.items()}
    for library, needs in wanted.items():
        if needs > driver:
            yield HealthFinding(
                "libraries",
                "wrong",
                f"{library} needs a newer driver",
                f"it is made for CUDA {needs}, the driver allows {cuda}",
                f"update the driver, or install the build for CUDA {driver}",
            )


def no_driver(node: HealthNode) -> Iterator[HealthFinding]:
    """Libraries for GPUs, and nobody who could show one: who expects GPUs must not read that nothing is wrong."""
    made_for = [
        f"{name} {version}"
        for name, version in node.software.items()
        if re.fullmatch(r"cupy-cuda\d+x|nvidia-nccl-cu\d+", name) or (name == "torch" and "+cu" in version)
    ]
    why = node.facts.get("no_gpus_because")
    if made_for and why and not node.gpus:
        yield HealthFinding(
            "no_driver",
            "doubtful",
            "libraries for NVIDIA GPUs are installed, and no GPU can be seen",
            f"{', '.join(made_for)}; {why}",
            "if there should be GPUs: start a container with `--gpus all`, "
            "or load the driver (`nvidia-smi` must show them)",
        )


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


def _word(fact: object, word: str) -> str:
    return f"not known to be {word}" if fact is None else word if fact else f"not {word}"
