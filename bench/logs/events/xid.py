"""Read Xid errors in the kernel log: `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, message`.

The meanings and actions are from NVIDIA, "XID Errors" (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>\d{1,4})(?:, pid='?(?P<pid>\d{1,10}))?"
    r".*?(?P<message>, .*|$)"
)
_FALLEN = re.compile(r"NVRM: .*?\bfallen off the bus\b")
_GPU = re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F:]{5}(?:\.\d)?)")
_LONGEST_REPORT = 3  # lines from the one that names the GPU to the one that says what happened
_BEFORE = re.compile(r"caused by previous Xid (?P<xid>\d{1,4})")
_HOST = re.compile(
    r"(?:^|[\s:])[A-Z][a-z]{2}\s{1,2}\d{1,2} [\d:.]+ (?P<name>[\w.-]+) |^\S*\d{4}-\d\d-\d\dT\S+ (?P<iso>[\w.-]+) kernel"
)
_RESET = "drain the node, reset the GPU or reboot, and test it"
_REPLACE = "drain the node and test the GPU; replace the GPU if the error recurs"
_LINKS = "drain the node, and check the NVLinks and the fabric manager"
_PROGRAM = "debug the program on this rank; suspect the hardware only if other programs fail on this GPU"
_TEST = "dcgmi diag -r 3; nvidia-smi -q -d ECC,ROW_REMAPPER"
_NVLINK = "nvidia-smi nvlink -e; systemctl status nvidia-fabricmanager"
_DEBUG = "compute-sanitizer PROGRAM"
# fmt: off
# Xid number -> its meaning, how surely it ends a job, the next step, and the command for this step.
_CATALOGUE: dict[int, tuple[str, float, str, str]] = {
    8: ("a kernel ran too long for the driver's time limit", 0.6, _PROGRAM, _DEBUG),
    13: ("a kernel failed (graphics engine exception), usually a bug in the program", 0.75, _PROGRAM, _DEBUG),
    31: ("a kernel accessed unmapped memory (MMU fault), usually a bug in the program", 0.8, _PROGRAM, _DEBUG),
    32: ("the GPU got a damaged command buffer, often by PCIe errors", 0.75, _RESET, "dmesg -T | grep -i aer"),
    38: ("the driver's firmware failed", 0.75, _RESET, _TEST),
    43: ("the GPU stopped working for a program, after a bug in the program", 0.6, _PROGRAM, _DEBUG),
    45: ("the driver ended this program's work on the GPU: another error, or the process ended", 0.2, "", ""),
    46: ("the GPU stopped processing", 0.8, _RESET, _TEST),
    48: ("memory of the GPU failed (double-bit ECC error)", 0.95, _RESET, _TEST),
    61: ("the GPU's microcontroller failed", 0.85, _RESET, _TEST),
    62: ("the GPU's microcontroller stopped", 0.85, _RESET, _TEST),
    63: ("a bad row or page of GPU memory was recorded for remapping", 0.6, "reset the GPU when idle", _TEST),
    64: ("a bad row or page of GPU memory could not be recorded", 0.9, _REPLACE, _TEST),
    68: ("the video decoder failed", 0.5, _PROGRAM, _DEBUG),
    69: ("a kernel failed on the GPU (class error)", 0.7, _PROGRAM, _DEBUG),
    74: ("an NVLink failed", 0.9, _LINKS, _NVLINK),
    79: ("the GPU has fallen off the PCIe bus", 1.0, "drain the node and power-cycle it; check power, "
                                                     "temperature and seating",
         "nvidia-smi; dmesg -T | grep -iE 'aer|pcie'"),
    92: ("the GPU has many corrected memory errors", 0.5, _REPLACE, _TEST),
    94: ("memory of the GPU failed; only this program was hit (contained ECC error)", 0.95,
         "restart the job, and reset the GPU when idle", _TEST),
    95: ("memory of the GPU failed, and all programs on it were hit (uncontained ECC error)", 1.0, _RESET, _TEST),
    109: ("a context switch of the GPU timed out", 0.8, _RESET, _TEST),
    110: ("the GPU's security engine failed", 0.8, _RESET, _TEST),
    119: ("the GPU's system processor (GSP) does not answer", 0.95, _RESET, "nvidia-smi -q | grep GSP"),
    120: ("the GPU's system processor (GSP) failed", 0.95, _RESET, "nvidia-smi -q | grep GSP"),
    121: ("the link between CPU and GPU (C2C) had errors", 0.7, _RESET, _TEST),
    136: ("an NVLink could not be trained", 0.85, _LINKS, _NVLINK),
    137: ("another GPU's access over NVLink faulted (FLA privilege error)", 0.75,
          "look for the rank that failed first: its memory was freed, or the program's kernel is wrong", _DEBUG),
    140: ("memory of the GPU failed (unrecovered ECC error)", 0.95, _RESET, _TEST),
    143: ("the GPU could not be initialised", 0.9, _RESET, _TEST),
    144: ("an NVLink failed", 0.9, _LINKS, _NVLINK),
    145: ("an NVLink failed", 0.9, _LINKS, _NVLINK),
    146: ("an NVLink failed", 0.9, _LINKS, _NVLINK),
    147: ("an NVLink failed", 0.9, _LINKS, _NVLINK),
    148: ("an NVLink failed", 0.9, _LINKS, _NVLINK),
    149: ("an NVLink failed", 0.9, _LINKS, _NVLINK),
    150: ("an NVLink failed", 0.9, _LINKS, _NVLINK),
    154: ("the driver asks for a reset or a reboot after an earlier error", 0.5, _RESET, _TEST),
    155: ("an NVLink went down", 0.9, _LINKS, _NVLINK),
    156: ("a part of the GPU was retired", 0.6, _REPLACE, _TEST),
    158: ("the GPU timed out", 0.9, _RESET, _TEST),
}
# fmt: on
_CONSEQUENCES = (45, 154)
_NONFATAL = re.compile(r"\bNon-?fatal\b", re.IGNORECASE)  # Xid 144 to 150 state how severe they are
_OFF_BUS = 79
_FELL_OFF = MessageKind("xid-79", Role.CAUSE, "GPU {bus}: " + _CATALOGUE[_OFF_BUS][0], 1.0, *_CATALOGUE[_OFF_BUS][2:])
_RECORDED_ROW, _RECOVERY = 63, 154
_NO_ACTION = re.compile(r"\bto 0x0 \(None\)")  # Xid 154: the driver no longer asks for an action
_MILD = "Xid {xid} of GPU {bus}: an error that the driver calls nonfatal"
_UNKNOWN = ("an error of the GPU", 0.5, "look the number up in NVIDIA's XID catalogue", _TEST)


def kind_of(xid: int) -> MessageKind:
    """Return the meaning of an Xid number. The code contains the number: `xid-79`."""
    what, weight, step, command = _CATALOGUE.get(xid, _UNKNOWN)
    role = Role.PEER if xid in _CONSEQUENCES else Role.CAUSE
    return MessageKind(f"xid-{xid}", role, f"Xid {xid} of GPU {{bus}}: {what}", weight, step, command)


class XidErrors(EventFormat):
    """Yields one event for each Xid line. The kernel log names the host.

    Some drivers print no Xid number if a GPU fell off the bus, and their message has several lines.
    """

    hints = ("NVRM: Xid", "NVRM: The NVIDIA GPU", "NVRM: GPU", "fallen off the bus")

    def __init__(self) -> None:
        """Start with no GPU."""
        self._gpu: tuple[str, str | None, int] | None = None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the events of a line."""
        found = _XID.search(line.raw)
        if found is None:
            yield from self._fallen(line)
            return
        xid = int(found["xid"])
        facts = {"xid": xid, "bus": found["bus"], "message": found["message"].lstrip(", ")}
        pid = int(found["pid"]) if found["pid"] else None
        fields: dict[str, Any] = {"host": _host(line.raw[: found.start() + 1]), "pid": pid, "printed": found[0]}
        kind = kind_of(xid)
        if _NONFATAL.search(found["message"]):
            kind = replace(kind, what=_MILD, weight=0.3, advisory=True)
        elif xid == _RECORDED_ROW or (xid == _RECOVERY and _NO_ACTION.search(found["message"])):
            kind = replace(kind, advisory=True)
        yield event_of(kind, line, facts=facts, **fields)
        earlier = _BEFORE.search(found["message"])
        if earlier is not None:
            yield event_of(kind_of(int(earlier["xid"])), line, facts=facts | {"xid": int(earlier["xid"])}, **fields)

    def _fallen(self, line: EventLine) -> Iterator[Event]:
        named = _GPU.search(line.raw)
        if named is not None:
            self._gpu = named["bus"], _host(line.raw[: named.start() + 1]), line.number
        fallen = _FALLEN.search(line.raw)
        if fallen is not None and self._gpu is not None and line.number - self._gpu[2] < _LONGEST_REPORT:
            (bus, host, _), self._gpu = self._gpu, None
            facts = {"xid": _OFF_BUS, "bus": bus}
            yield event_of(_FELL_OFF, line, host=host, facts=facts, printed=fallen[0])


FORMAT = XidErrors


def _host(begin: str) -> str | None:
    """Return the host that the kernel log names at the beginning of a line."""
    host = _HOST.search(begin)
    return (host["name"] or host["iso"]) if host else None
