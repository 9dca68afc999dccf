"""Describe the devices of a node by plain values, as in the header of a results file.

Probes read the values from the driver and the kernel. The package `hardware/` derives links and findings from the
values. None means unknown. Rates are in bytes per second and direction. `Path` and all messages use names such as
`gpu0` for a GPU and `mlx5_0` for a network adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from bench.core.codes import Code
from bench.core.errors import UsageError

MIN_LOCKED_BYTES = 64 << 20  # memory that a process must be allowed to lock for RDMA


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU.

    `peer`: the device at the other end, which is `gpu3`, `switch`, `cpu` or a PCI address, for example.
    `rate_from`: the source of `bytes_per_s`. The source is "driver", or a version such as "NVLink 4.0" if `bytes_per_s`
        is the standard rate of this version.
    """

    index: int
    active: bool | None = None
    bytes_per_s: float | None = None
    peer: str | None = None
    rate_from: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    `pcie_*`: generation and lanes of the GPU's link to the host, as the current values and the maximum values on this
        machine. The current values of an idle link are lower.
    `under_load`: whether data went over the link when the current values were read.
    `slot_*`: the maximum of the device at the other end of the link (a switch or a root port).
    `own_generation`: the highest PCIe generation of the GPU itself.
    `packet_bytes`: payload of a PCIe packet.
    `throttle`: NVML's throttle reasons.
    `fabric`: on NVSwitch, whether the GPU has joined the other GPUs ("completed", "in progress", "not started",
        "failed: ...").
    """

    index: int
    name: str
    memory_bytes: int | None = None
    pci_bus: str | None = None
    pcie_generation: int | None = None
    pcie_max_generation: int | None = None
    pcie_lanes: int | None = None
    pcie_max_lanes: int | None = None
    uuid: str | None = None
    numa_node: int | None = None
    slot_generation: int | None = None
    slot_lanes: int | None = None
    packet_bytes: int | None = None
    under_load: bool = False
    nvlinks: tuple[NvLink, ...] = ()
    sm_hz: float | None = None
    sm_max_hz: float | None = None
    memory_hz: float | None = None
    memory_max_hz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    ecc: bool | None = None
    ecc_uncorrected: int | None = None
    mig: bool | None = None
    fabric: str | None = None
    own_generation: int | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """One port of a network adapter.

    `kind`: infiniband, roce, efa, ethernet.
    `state`: the state of the port in the kernel's words.
    """

    name: str
    kind: str
    bytes_per_s: float | None = None
    state: str | None = None
    pci_bus: str | None = None
    numa_node: int | None = None


class NoAccess(Code):
    """Reasons why the driver does not let one GPU access the memory of another GPU."""

    CHIPSET = "chipset", "the chipset does not support it"
    GPU = "gpu", "the GPU does not support it"
    TOPOLOGY = "topology", "the topology does not support it"
    DISABLED = "disabled", "disabled by a setting of the driver"
    UNSUPPORTED = "unsupported", "not supported"


@dataclass(frozen=True, slots=True)
class Path:
    """The path between two devices of a node.

    `kind`: the path's name in `nvidia-smi topo -m` (NV18, PIX, PXB, PHB, NODE or SYS), or `unknown` if a recorded text
        only reports peer access.
    `peer_access`: for a path between two GPUs, whether one GPU can access the memory of the other.
    `why_code`: a code of NoAccess that says why there is no access.
    `why_not`: the text of `why_code`.
    """

    a: str
    b: str
    kind: str
    peer_access: bool | None = None
    why_not: str | None = None
    why_code: str | None = None

    @classmethod
    def between(cls, a: str, b: str, kind: str, peer_access: bool | None, why: NoAccess | None) -> Path:
        """Make a path between two devices. `why`: the reason if the two devices cannot access each other's memory."""
        return cls(a, b, kind, peer_access, why.template if why else None, why)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices of one node and the paths between them.

    `lost`: sentences that name the facts that are missing in a recorded text.
    `nvlinks_told`: whether NVLinks were probed. If NVLinks were not probed, an empty list does not mean that the node
        has no NVLinks.
    `told_by`: the program whose output was read ("lspci -vvv"), empty for facts of this suite.
    `file`: the file that was read, empty if this machine was probed.
    """

    gpus: tuple[Gpu, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    paths: tuple[Path, ...] = ()
    lost: tuple[str, ...] = ()
    nvlinks_told: bool = True
    told_by: str = ""
    file: str = ""


def from_facts(facts: Mapping[str, Any]) -> Inventory:
    """Return the devices of a node from its facts in a header. Unknown keys are ignored.

    Raises UsageError for a device that lacks a required field, such as its name.
    """
    gpus = []
    for plain in facts.get("gpus") or ():
        links = tuple(NvLink(**_known(NvLink, link)) for link in plain.get("nvlinks") or ())
        gpus.append(Gpu(**_known(Gpu, plain) | {"nvlinks": links, "throttle": tuple(plain.get("throttle") or ())}))
    return Inventory(
        gpus=tuple(gpus),
        adapters=tuple(Adapter(**_known(Adapter, plain)) for plain in facts.get("adapters") or ()),
        paths=tuple(_path(plain) for plain in facts.get("paths") or ()),
        lost=tuple(facts.get("lost") or ()),
        nvlinks_told=bool(facts.get("nvlinks_told", True)),
        told_by=str(facts.get("told_by") or ""),
        file=str(facts.get("file") or ""),
    )


_CODE_OF_WORDS = {code.template: code.value for code in NoAccess}


def _path(plain: Mapping[str, Any]) -> Path:
    """Return a path between two devices, as stored in a file.

    Files of older versions have the text `why_not` but no `why_code`.
    """
    found = Path(**_known(Path, plain))
    return found if found.why_code else replace(found, why_code=_CODE_OF_WORDS.get(found.why_not or ""))


def _known(kind: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    for each in fields(kind):
        if each.default is MISSING and plain.get(each.name) is None:
            raise UsageError(
                f"the facts of a node hold a device ({kind.__name__}) without `{each.name}`: "
                "the results file was edited, or another program wrote it"
            )
    return {each.name: plain[each.name] for each in fields(kind) if each.name in plain}
