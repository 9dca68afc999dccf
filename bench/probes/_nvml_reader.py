"""Read the state and the error counters of one NVIDIA GPU repeatedly. NVML stays open between readings.

NVML does not report how busy the GPU's copy engines are. Instead, the reader reads the counters of bytes on PCIe and
NVLink.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from bench.core.device_use import DeviceReading
from bench.probes import _nvml_gpu, nvml, pci

# Numbers of NVML's fields and their scopes (nvml.h): one link, or all links together.
_ALL_LINKS = 0xFFFF_FFFF
_LINKS = range(18)  # the most links of a GPU up to NVLink 5
_FIELDS: dict[str, tuple[tuple[int, int], ...]] = {
    # Up to NVLink 3, counters of flits and of data over all links; since NVLink 4, counters of the data link layer of
    # each link.
    "nvlink_crc_errors": ((38, 0), (45, 0), *((163, link) for link in _LINKS)),
    "nvlink_replays": ((52, 0), *((161, link) for link in _LINKS)),
    "nvlink_recoveries": tuple((162, link) for link in _LINKS),
    "nvlink_sent_kib": ((138, _ALL_LINKS),),
    "nvlink_received_kib": ((139, _ALL_LINKS),),
    "pcie_sent_bytes": ((197, 0),),
    "pcie_received_bytes": ((198, 0),),
    "pcie_replays": ((94, 0),),
    "energy_mj": ((83, 0),),
}
_XID_EVENT, _NO_WAIT_MS, _MOST_EVENTS = 8, 0, 64
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_SIGNED_VALUES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class NvmlReader:
    """One GPU."""

    def __init__(self, library: ModuleType, handle: Any, address: str, stack: contextlib.ExitStack) -> None:
        """Set up the reader. `stack`: holds NVML open, and is closed when the reader is closed."""
        self._nvml, self._handle, self._stack = library, handle, stack
        self.device = f"gpu {address}"
        self._xids = 0
        self._events = None
        with contextlib.suppress(library.NVMLError, AttributeError):
            self._events = library.nvmlEventSetCreate()
            library.nvmlDeviceRegisterEvents(handle, _XID_EVENT, self._events)

    def read(self) -> DeviceReading:
        """Return clocks, power, temperature, throttle reasons, GPU utilisation, and the memory in use."""
        library, handle = self._nvml, self._handle
        now = _nvml_gpu.moving_state(library, handle)
        rates = _nvml_gpu.ask(library, "nvmlDeviceGetUtilizationRates", handle)
        memory = _nvml_gpu.ask(library, "nvmlDeviceGetMemoryInfo", handle)
        return DeviceReading(
            hz=now["sm_hz"],
            memory_hz=now["memory_hz"],
            power_w=now["power_w"],
            temperature_c=now["temperature_c"],
            busy=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else int(memory.used),
            throttle=now["throttle"],
        )

    def counters(self) -> Mapping[str, int]:
        """Return errors and bytes of NVLink and PCIe, memory errors, energy, and the number of XID events so far."""
        library, handle = self._nvml, self._handle
        found: dict[str, int] = {}
        asked = [place for places in _FIELDS.values() for place in places]
        values = dict(zip(asked, _values(library, handle, asked), strict=True))
        for name, places in _FIELDS.items():
            known = [value for place in places if (value := values[place]) is not None]
            if known:
                found[name] = sum(known)
        for name, kind in (("ecc_corrected", _CORRECTED), ("ecc_uncorrected", _UNCORRECTED)):
            errors = _nvml_gpu.ask(library, "nvmlDeviceGetTotalEccErrors", handle, kind, _VOLATILE)
            if errors is not None:
                found[name] = int(errors)
        if self._events is not None:
            self._xids += sum(1 for _ in self._new_events())
            found["xid"] = self._xids
        return found

    def _new_events(self) -> Iterator[Any]:
        for _ in range(_MOST_EVENTS):
            event = _nvml_gpu.ask(self._nvml, "nvmlEventSetWait_v2", self._events, _NO_WAIT_MS)
            if event is None:
                return
            yield event

    def close(self) -> None:
        """Close NVML."""
        if self._events is not None:
            _nvml_gpu.ask(self._nvml, "nvmlEventSetFree", self._events)
        self._stack.close()


def _values(library: ModuleType, handle: Any, places: list[tuple[int, int]]) -> list[int | None]:
    """Return the values of several NVML fields, all read by one call. An unknown value is None."""
    answers = _nvml_gpu.ask(library, "nvmlDeviceGetFieldValues", handle, places)
    if answers is None:
        return [None] * len(places)
    return [
        None if one.nvmlReturn != 0 else int(getattr(one.value, _SIGNED_VALUES.get(one.valueType, "ullVal")))
        for one in answers
    ]


def open_reader(address: str) -> NvmlReader | None:
    """Open a reader for the GPU at a PCI address. Return None if NVML is missing or has no such GPU."""
    if not nvml.has_device():
        return None
    stack = contextlib.ExitStack()
    library = stack.enter_context(nvml.opened())
    wanted = pci.address(address)
    if not isinstance(library, str) and wanted is not None:
        for handle in nvml.handles_of(library).values():
            bus = _nvml_gpu.text(getattr(_nvml_gpu.ask(library, "nvmlDeviceGetPciInfo", handle), "busId", None))
            if pci.address(bus) == wanted:
                return NvmlReader(library, handle, wanted, stack)
    stack.close()
    return None
