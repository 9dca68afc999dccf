"""What a node is made of, as driver and kernel tell it: plain values that stand in the header of a results file.

Probes fill them in, `hardware/` draws links and findings from them. None is unknown; rates are bytes per second and
direction. A GPU is called `gpu0`, a network adapter `mlx5_0`, in `Path` and in every sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from bench.core.codes import Code
from bench.core.errors import UsageError

MIN_LOCKED_BYTES = 64 << 20  # that a process must be free to lock, for RDMA by adapters


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU. `peer`: `gpu3`, `switch`, `cpu`, or the PCI address of what is at its other end.

    `rate_from`: where `bytes_per_s` comes from: "driver", or "NVLink 4.0" for what links of this version carry.
    """

    index: int
    active: bool | None = None
    bytes_per_s: float | None = None
    peer: str | None = None
    rate_from: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `pcie_*` are of its link to the host: a generation and lanes, now and at most in this machine.

    Idle links slow down: `under_load` says that the present figures were read while data went over them. `slot_*`: what
    the other end of the link, a switch or a root port, can do at most; `own_generation`: what the GPU could do in a
    better slot. `packet_bytes`: of a PCIe packet's payload.
    `throttle`: reasons, in NVML's words, why it runs slower than it could. `fabric`: of a GPU on NVSwitch, how far it
    has joined the other GPUs ("completed", "in progress", "not started", "failed: ...").
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
    """One network adapter's port. `kind`: infiniband, roce, efa, ethernet; `state`: as the kernel says it."""

    name: str
    kind: str
    bytes_per_s: float | None = None
    state: str | None = None
    pci_bus: str | None = None
    numa_node: int | None = None


class NoAccess(Code):
    """Why the driver allows one GPU no access to the memory of another."""

    CHIPSET = "chipset", "the chipset does not support it"
    GPU = "gpu", "the GPU does not support it"
    TOPOLOGY = "topology", "the topology does not support it"
    DISABLED = "disabled", "disabled by a setting of the driver"
    UNSUPPORTED = "unsupported", "not supported"


@dataclass(frozen=True, slots=True)
class Path:
    """What is between two devices of a node, as `nvidia-smi topo -m` calls it: NV18, PIX, PXB, PHB, NODE, SYS.

    `unknown` stands where a recorded text tells no more than whether there is access.
    `peer_access`: can one of two GPUs access the other's memory? If not, `why_code` is a NoAccess, `why_not` its words.
    """

    a: str
    b: str
    kind: str
    peer_access: bool | None = None
    why_not: str | None = None
    why_code: str | None = None

    @classmethod
    def between(cls, a: str, b: str, kind: str, peer_access: bool | None, why: NoAccess | None) -> Path:
        """A path with the code and the words of the reason."""
        return cls(a, b, kind, peer_access, why.template if why else None, why)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices of one node and what is between them. `lost`: what a recorded text does not tell, in words.

    `nvlinks_told`: False where nobody was asked for NVLinks, so that none does not mean none. `told_by`: what wrote the
    text that was read ("lspci -vvv"), empty of facts that this suite took; `file`: where they stand, empty of this
    machine.
    """

    gpus: tuple[Gpu, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    paths: tuple[Path, ...] = ()
    lost: tuple[str, ...] = ()
    nvlinks_told: bool = True
    told_by: str = ""
    file: str = ""


def from_facts(facts: Mapping[str, Any]) -> Inventory:
    """What the facts of a node in a header say of its devices; keys that this version does not know are left aside.

    Raises UsageError for a device without its name: what is said of it is about nothing.
    """
    gpus = []
    for told in facts.get("gpus") or ():
        links = tuple(NvLink(**_known(NvLink, link)) for link in told.get("nvlinks") or ())
        gpus.append(Gpu(**_known(Gpu, told) | {"nvlinks": links, "throttle": tuple(told.get("throttle") or ())}))
    return Inventory(
        gpus=tuple(gpus),
        adapters=tuple(Adapter(**_known(Adapter, told)) for told in facts.get("adapters") or ()),
        paths=tuple(_path(told) for told in facts.get("paths") or ()),
        lost=tuple(facts.get("lost") or ()),
        nvlinks_told=bool(facts.get("nvlinks_told", True)),
        told_by=str(facts.get("told_by") or ""),
        file=str(facts.get("file") or ""),
    )


_CODE_OF_WORDS = {code.template: code.value for code in NoAccess}


def _path(told: Mapping[str, Any]) -> Path:
    """A path of a file. Files of older versions hold the words of `why_not` only."""
    found = Path(**_known(Path, told))
    return found if found.why_code else replace(found, why_code=_CODE_OF_WORDS.get(found.why_not or ""))


def _known(kind: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    for each in fields(kind):
        if each.default is MISSING and told.get(each.name) is None:
            raise UsageError(
                f"the facts of a node hold a device ({kind.__name__}) without `{each.name}`: "
                "the results file was edited, or is another program's"
            )
    return {each.name: told[each.name] for each in fields(kind) if each.name in told}
