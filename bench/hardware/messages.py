"""Define the findings of `linkbench doctor` about a machine: codes with their texts, and remedies."""

from __future__ import annotations

from bench.core.codes import Code

_SLOT = "reseat the card and check the BIOS settings of its slot; `dmesg | grep -i pcieport` shows link errors"
_FABRIC_MANAGER = (
    "start the fabric manager: `systemctl start nvidia-fabricmanager` (its version must be the driver's "
    "version); for a virtual machine, start it on the host"
)
_LINKS_DOWN = (
    "check state and errors with `nvidia-smi nvlink -s` and `-e`, and reset the GPU or the node; if the links stay "
    "down, have the board checked"
)
_SLOWEST = "all of them wait for the slowest: "


class HealthCode(Code):
    """The codes of findings. A code that ends in `-unknown` names a fact that a rule could not determine."""

    LINK_BELOW_BOTH_ENDS = "link-below-both-ends", "the PCIe link of {gpus} is slower than the GPU and its slot allow"
    NARROW_LINK = "narrow-link", "the PCIe link of {gpus} has fewer lanes than possible"
    LINK_UNKNOWN = "link-unknown", "the PCIe generation of {gpus} under load"
    SLOT_BELOW_GPU = "slot-below-gpu", "the slot of {gpus} is slower than the GPU"
    NO_PEER_ACCESS = "no-peer-access", "GPUs cannot access each other's memory: {shown}"
    PEER_ACCESS_UNKNOWN = "peer-access-unknown", "whether all GPUs have access to each other's memory"
    NVLINK_DOWN = "nvlink-down", "NVLinks are down: {gpus}"
    NVLINK_SLOW = "nvlink-slow", "NVLinks are slower than the node's other NVLinks: {gpus}"
    GPU_WITHOUT_NVLINK = "gpu-without-nvlink", "{gpus} cannot reach any other GPU by NVLink"
    FEWER_NVLINKS = "fewer-nvlinks", "{gpus} has fewer NVLinks than the other GPUs"
    NO_BRIDGE = "no-bridge", "{gpus} has no NVLink bridge to another GPU"
    NVLINK_UNKNOWN = "nvlink-unknown", "the number of active NVLinks: {gpus}"
    FABRIC_NOT_READY = "fabric-not-ready", "not joined to the NVSwitch fabric (SYSTEM_NOT_READY): {gpus}"
    FABRIC_ALONE = "fabric-alone", "not joined to the NVSwitch fabric (SYSTEM_NOT_READY): {gpus}"
    NO_FABRIC_MANAGER = "no-fabric-manager", "the fabric manager does not run (SYSTEM_NOT_READY)"
    FABRIC_UNKNOWN = "fabric-unknown", "whether {gpus} joined the NVSwitch fabric"
    ADAPTER_ON_OTHER_NODE = "adapter-on-other-node", "no network adapter is on the NUMA node of {gpus}"
    ADAPTER_ON_OTHER_SWITCH = "adapter-on-other-switch", "no network adapter is on the PCIe switch of {gpus}"
    SWITCH_UNKNOWN = "switch-unknown", "which network adapters share a PCIe switch with {gpus}"
    ADAPTER_PATH_UNKNOWN = "adapter-path-unknown", "the path between {gpus} and the network adapters"
    GPUS_MISSING = "gpus-missing", "this node has only {there} of the {wanted} GPUs of {instance}"
    OTHER_GPUS = "other-gpus", "these are not the GPUs of {instance}"
    HOST_LINK_UNKNOWN = "host-link-unknown", "whether the path to the host is as fast as the GPUs' own PCIe links"
    BELOW_INSTANCE = "below-instance", "a GPU has {linked:rate} over {link}, but {instance} should have {promised:rate}"
    NO_GPU_DIRECT = "no-gpu-direct", "RDMA adapters cannot access GPU memory (no GPUDirect RDMA)"
    GPU_DIRECT_UNKNOWN = "gpu-direct-unknown", "whether RDMA adapters can access GPU memory"
    NO_VERBS = "no-verbs", "no process here can use the RDMA adapters"
    IOMMU = "iommu", "the IOMMU translates transfers between PCIe devices"
    IOMMU_UNKNOWN = "iommu-unknown", "IOMMU settings"
    ACS = "acs", "ACS routes transfers between PCIe devices through the processor"
    ACS_UNKNOWN = "acs-unknown", "ACS settings"
    LOCKED_MEMORY = "locked-memory", "a process cannot lock enough memory for RDMA"
    SHARED_MEMORY = "shared-memory", "/dev/shm has only the default size of a container"
    SHARED_MEMORY_UNKNOWN = "shared-memory-unknown", "the size of /dev/shm"
    MIG = "mig", "MIG is on: {gpus}"
    ECC_ERRORS = "ecc-errors", "uncorrectable memory errors: {gpus}"
    BRAKED = "braked", "the hardware slowed down {gpus}"
    THROTTLED = "throttled", "slowed down: {gpus}"
    GOVERNOR = "governor", "the processors slow down when they are nearly idle"
    GOVERNOR_UNKNOWN = "governor-unknown", "the CPU frequency governor"
    UNLIKE_GPUS = "unlike-gpus", "the GPUs of this node differ in {property}"
    UNLIKE_NODES = "unlike-nodes", "the nodes differ in their {property}"
    TORCH_WITHOUT_CUDA = "torch-without-cuda", "torch was built without CUDA and cannot use the GPUs"
    LIBRARY_TOO_NEW = "library-too-new", "{library} needs a newer driver"
    CUDA_UNKNOWN = "cuda-unknown", "the CUDA version of the driver"
    NO_DRIVER = "no-driver", "libraries for NVIDIA GPUs are installed, but no GPU is visible"


REMEDIES = {
    HealthCode.LINK_BELOW_BOTH_ENDS: _SLOT,
    HealthCode.NARROW_LINK: f"nothing to do if the machine is built this way, as many machines are; otherwise {_SLOT}",
    HealthCode.SLOT_BELOW_GPU: "use a faster slot, if the board has one; many servers and clouds have none",
    HealthCode.NVLINK_DOWN: _LINKS_DOWN,
    HealthCode.NVLINK_SLOW: _LINKS_DOWN,
    HealthCode.GPU_WITHOUT_NVLINK: _LINKS_DOWN,
    HealthCode.FEWER_NVLINKS: _LINKS_DOWN,
    HealthCode.NO_BRIDGE: (
        "nothing to do if the machine is built this way; otherwise, check the bridge and `nvidia-smi nvlink -s`"
    ),
    HealthCode.FABRIC_NOT_READY: _FABRIC_MANAGER,
    HealthCode.FABRIC_ALONE: f"nothing to do if CUDA programs work here; otherwise {_FABRIC_MANAGER}",
    HealthCode.NO_FABRIC_MANAGER: _FABRIC_MANAGER,
    HealthCode.ADAPTER_ON_OTHER_NODE: (
        "use an adapter of the GPU's own NUMA node (`nics:` of the cluster), or move cards; in a virtual machine, ask "
        "the provider for the real topology"
    ),
    HealthCode.ADAPTER_ON_OTHER_SWITCH: "data passes through the processor: use a closer adapter, if there is one",
    HealthCode.GPUS_MISSING: "look for GPUs lost from the bus (`dmesg | grep Xid`), or correct `instance:`",
    HealthCode.OTHER_GPUS: "correct `instance:`",
    HealthCode.BELOW_INSTANCE: "if this machine is of another type, correct `instance:`",
    HealthCode.NO_GPU_DIRECT: (
        "run `modprobe nvidia_peermem`, or use the driver's open kernel modules on Linux 5.12 or later (dmabuf)"
    ),
    HealthCode.NO_VERBS: "to measure several nodes, start the container with `--device=/dev/infiniband`",
    HealthCode.IOMMU: "set the IOMMU to pass-through, in the BIOS or with `iommu=pt` on the kernel's command line",
    HealthCode.ACS: (
        "unless virtual machines need it, turn ACS off in the BIOS, or use setpci on the bridges above GPUs and NICs"
    ),
    HealthCode.LOCKED_MEMORY: "set `ulimit -l unlimited`, or start the container with `--ulimit memlock=-1`",
    HealthCode.SHARED_MEMORY: "start the container with `--shm-size=8g` or `--ipc=host`",
    HealthCode.MIG: "to measure whole GPUs, run `nvidia-smi -i {first} -mig 0`",
    HealthCode.ECC_ERRORS: "check `nvidia-smi -q -d ECC,ROW_REMAPPER`, and reset the GPU if rows wait for remapping",
    HealthCode.BRAKED: "check cooling and power supply",
    HealthCode.THROTTLED: "check the configured limits with `nvidia-smi -q -d CLOCK,POWER`",
    HealthCode.GOVERNOR: "run `cpupower frequency-set -g performance`",
    HealthCode.UNLIKE_GPUS: f"{_SLOWEST}give all GPUs the same configuration, or leave out the GPU that differs",
    HealthCode.UNLIKE_NODES: f"{_SLOWEST}make all nodes alike",
    HealthCode.TORCH_WITHOUT_CUDA: "install a build of torch with CUDA",
    HealthCode.LIBRARY_TOO_NEW: "update the driver, or install the build for CUDA {driver}",
    HealthCode.NO_DRIVER: (
        "if this machine has GPUs, start the container with `--gpus all`, or load the driver (check `nvidia-smi`)"
    ),
}
ACCESS_DISABLED = "check NVreg_RegistryDwords and the driver's licence"
ACCESS_UNSUPPORTED = (
    "check IOMMU, ACS, MIG and the fabric manager; if the platform has no peer access, expect copies through the host"
)
