"""Describe the state of a GPU, or of a host's CPUs, while a row was timed.

The state consists of clocks, power, temperature, throttle reasons and error counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

# Throttle reasons that come from a user's clock settings, or that keep a GPU at the clock of other GPUs. With these
# reasons, a device was not forced to slow down.
_AS_SET = frozenset({"applications clocks setting", "display clock setting", "sync boost"})
_SHARE = 0.05  # of a row's readings; throttling in fewer readings does not matter
CPUS = "cpus"  # the device of a reading of a host's CPUs


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """The state of a device at one moment. Unknown values are None.

    `busy`: on a GPU, the share of the driver's last sampling interval in which a kernel ran. For CPUs, `busy` is the
        share of time in which the CPUs were not idle.
    """

    hz: float | None = None
    memory_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    busy: float | None = None
    memory_bytes: int | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A summary of a device's readings during the measurement of a row.

    The summary includes by how much each counter of the device has grown.

    `device`: "gpu" and its PCI address, or "cpus".
    `throttled`: for each throttle reason, the share of readings with this reason.
    `counters`: by how much each counter (nvlink_crc_errors, pcie_replays, xid, ...) has grown.
    `cost`: the share of one CPU that the readings used.
    """

    host: str
    device: str
    num_readings: int
    interval_s: float | None = None
    hz: float | None = None
    least_hz: float | None = None
    memory_hz: float | None = None
    power_w: float | None = None
    most_power_w: float | None = None
    temperature_c: float | None = None
    busy: float | None = None
    memory_bytes: int | None = None
    throttled: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    cost: float | None = None

    @property
    def was_throttled(self) -> bool:
        """Whether the device was forced to slow down in a significant share of the readings."""
        forced = [share for reason, share in self.throttled.items() if reason not in _AS_SET]
        return max(forced, default=0.0) >= _SHARE


def condensed(
    host: str,
    device: str,
    readings: Sequence[DeviceReading],
    counters: Mapping[str, int],
    interval_s: float | None = None,
    cost: float | None = None,
) -> DeviceUse:
    """Return the summary: medians of the readings, the highest temperature, power and memory, and the lowest clock."""

    def known(name: str) -> list[float]:
        return [value for reading in readings if (value := getattr(reading, name)) is not None]

    def middle(name: str) -> float | None:
        values = known(name)
        return float(median(values)) if values else None

    reasons = dict.fromkeys(reason for reading in readings for reason in reading.throttle)
    memory = known("memory_bytes")
    return DeviceUse(
        host=host,
        device=device,
        num_readings=len(readings),
        interval_s=interval_s,
        hz=middle("hz"),
        least_hz=min(known("hz"), default=None),
        memory_hz=middle("memory_hz"),
        power_w=middle("power_w"),
        most_power_w=max(known("power_w"), default=None),
        temperature_c=max(known("temperature_c"), default=None),
        busy=middle("busy"),
        memory_bytes=int(max(memory)) if memory else None,
        throttled={
            reason: sum(reason in reading.throttle for reading in readings) / len(readings) for reason in reasons
        },
        counters=counters,
        cost=cost,
    )
