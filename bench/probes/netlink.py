"""Read this host's network devices, addresses and neighbours from the kernel (rtnetlink(7)).

In some containers, /sys shows the devices of another network namespace. Netlink always shows the devices of this
process's namespace. If the kernel does not reply, the functions return nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_GET_LINKS, _GET_ADDRESSES, _GET_NEIGHBOURS = 18, 22, 30
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_TIMEOUT_S = 2.0
_UP, _LOOPBACK = 0x1, 0x8
_LINK_MAC, _LINK_NAME, _LINK_MTU, _LINK_CARRIER, _LINK_INFO, _INFO_KIND = 1, 3, 4, 33, 18, 1
_LINK_CARRIER_LOSSES = 48  # IFLA_CARRIER_DOWN_COUNT, since Linux 4.16
_ADDRESS, _LOCAL_ADDRESS = 1, 2
_GLOBAL_SCOPE = 0
_TEMPORARY, _DUPLICATE, _DEPRECATED, _TENTATIVE = 0x01, 0x08, 0x20, 0x40  # IFA_F_*; 0x01 is "secondary" for IPv4
_NEIGHBOUR, _NEIGHBOUR_MAC = 1, 2
_MOST_WATCHED = 1000  # neighbours; the kernel lists them in about a millisecond
_REPLIED_STATES = 0x02 | 0x04 | 0x08 | 0x10  # reachable, stale, delay, probe
_KNOWN_STATES = _REPLIED_STATES | 0x80  # permanent: set by a person or a program


@dataclass(frozen=True, slots=True)
class Device:
    """A network device that is up. The loopback device is never included.

    `addresses`: the device's global addresses, such as 10.0.0.2/24.
    `duplicates`: IPv6 addresses that the kernel rejected, because another machine already has them.
    `unplugged`: whether the device is up but has no carrier. A bridge has no cable, so it is never unplugged.
    `num_carrier_losses`: how often the device has lost its carrier, or None if the kernel does not count losses.
    """

    name: str
    mtu: int
    mac: str | None
    addresses: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    unplugged: bool = False
    num_carrier_losses: int | None = None

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Device:
        """Read the device from plain data. Raises TypeError or KeyError if the data do not describe a device."""
        return cls(**{**plain, "addresses": tuple(plain["addresses"]), "duplicates": tuple(plain["duplicates"])})


def devices() -> tuple[Device, ...]:
    """Return all network devices of this host that are up, except loopback."""
    return tuple(device for _, device in _devices())


def _devices() -> Iterator[tuple[int, Device]]:
    """Yield the index of each device, and the device."""
    addresses: dict[int, list[str]] = {}
    duplicates: dict[int, list[str]] = {}
    for body in _dump(_GET_ADDRESSES, struct.pack("=BBBBI", 0, 0, 0, 0, 0)):
        family, length, flags, scope, index = struct.unpack_from("=BBBBI", body)
        own = _attributes(body[8:])
        packed = own.get(_LOCAL_ADDRESS) or own.get(_ADDRESS)
        if packed is None:
            continue
        address = str(ipaddress.ip_address(packed))
        if flags & _DUPLICATE:
            duplicates.setdefault(index, []).append(address)
        elif scope == _GLOBAL_SCOPE and not flags & (_TENTATIVE | _DEPRECATED) and not _is_temporary(family, flags):
            addresses.setdefault(index, []).append(f"{address}/{length}")
    for body in _dump(_GET_LINKS, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)):
        index, flags = struct.unpack_from("=iI", body, 4)
        if not flags & _UP or flags & _LOOPBACK:
            continue
        own = _attributes(body[16:])
        kind = _attributes(own.get(_LINK_INFO, b"")).get(_INFO_KIND, b"")
        losses = own.get(_LINK_CARRIER_LOSSES, b"")
        device = Device(
            name=own[_LINK_NAME].rstrip(b"\0").decode(errors="replace"),
            mtu=struct.unpack("=I", own[_LINK_MTU])[0],
            mac=own[_LINK_MAC].hex(":") if own.get(_LINK_MAC) else None,
            addresses=tuple(addresses.get(index, ())),
            duplicates=tuple(duplicates.get(index, ())),
            unplugged=own.get(_LINK_CARRIER) == b"\0" and not kind.startswith(b"bridge"),
            num_carrier_losses=struct.unpack("=I", losses)[0] if len(losses) == 4 else None,
        )
        yield index, device


def own_addresses() -> dict[str, str]:
    """Return, for each address of this host, the MAC address of its device."""
    return {address: device.mac for device in devices() if device.mac for address in _plain_addresses(device)}


def _plain_addresses(device: Device) -> list[str]:
    return [address.partition("/")[0] for address in device.addresses]


def neighbours() -> dict[str, str]:
    """Map each address in this host's own networks to the MAC address that this host uses for it.

    The addresses come from ARP and from IPv6 neighbour discovery.
    """
    return {address: mac for _, address, mac in _neighbours()}


def _replied() -> Iterator[tuple[int, str, str]]:
    """Yield the neighbours that replied to this host, as `_neighbours` does."""
    return _neighbours(_REPLIED_STATES)


def _neighbours(states: int = _KNOWN_STATES) -> Iterator[tuple[int, str, str]]:
    """Yield the device's index, the address and the MAC address of each neighbour in one of these states."""
    for body in _dump(_GET_NEIGHBOURS, struct.pack("=BBHiHBB", 0, 0, 0, 0, 0, 0, 0)):
        index, state = struct.unpack_from("=iH", body, 4)
        own = _attributes(body[12:])
        if state & states and any(own.get(_NEIGHBOUR_MAC, b"")) and len(own.get(_NEIGHBOUR, b"")) in (4, 16):
            yield index, str(ipaddress.ip_address(own[_NEIGHBOUR])), own[_NEIGHBOUR_MAC].hex(":")


@dataclass(frozen=True, slots=True)
class CarrierLoss:
    """A device that lost its carrier. `time_s`: when the loss was last noticed, by the host's wall clock."""

    device: str
    addresses: tuple[str, ...]
    num: int
    time_s: float


class NetworkHistory:
    """Records the changes of a host's network: MAC addresses, and devices that lost their carrier.

    The history has the addresses of neighbours and of this host's own devices. For each address, the history has the
    MAC addresses in the order of their first use. An address that this host gets after the first call of `look` is also
    treated as changed.

    `read_neighbours`: yields device, address and MAC address of each neighbour that replied. A permanent entry is left
        out, because no machine replied.
    `read_devices`: yields the index of each device, and the device.

    A host with many neighbours is not watched, because reading a long list would disturb measurements.
    """

    def __init__(
        self,
        read_neighbours: Callable[[], Iterable[tuple[int, str, str]]] = _replied,
        read_devices: Callable[[], Iterable[tuple[int, Device]]] = _devices,
    ) -> None:
        self._read_neighbours, self._read_devices = read_neighbours, read_devices
        self._macs: dict[tuple[int, str], list[str]] = {}
        self._changed_s: dict[tuple[int, str], float] = {}
        self._losses: dict[int, list[int]] = {}  # of each device, before the job and at the last look
        self._lost: dict[int, CarrierLoss] = {}
        self._looked = False

    def look(self, now_s: float) -> bool:
        """Read the current addresses and devices from the kernel, and record what changed.

        Return True if an address has a new MAC address, or if a device has lost its carrier, since the last call.

        `now_s`: the time by this host's wall clock, in seconds.
        """
        if len(self._macs) > _MOST_WATCHED:
            return False
        changed = [self._note(*each, now_s=now_s, is_own=False) for each in self._read_neighbours()]
        for index, device in self._read_devices():
            for address in _plain_addresses(device) if device.mac else ():
                changed.append(self._note(index, address, device.mac or "", now_s=now_s, is_own=True))
            changed.append(self._count(index, device, now_s))
        self._looked = True
        return any(changed)

    def _note(self, index: int, address: str, mac: str, now_s: float, is_own: bool) -> bool:
        macs = self._macs.setdefault((index, address), [])
        if mac in macs:
            return False
        changed = bool(macs) or (is_own and self._looked)
        if changed:
            self._changed_s[index, address] = now_s
        macs.append(mac)
        return changed

    def _count(self, index: int, device: Device, now_s: float) -> bool:
        now = device.num_carrier_losses
        if now is None:
            return False
        first, last = self._losses.setdefault(index, [now, now])
        self._losses[index][1] = now
        if now > last:
            self._lost[index] = CarrierLoss(device.name, tuple(_plain_addresses(device)), now - first, now_s)
        return now > last

    def moved(self) -> list[tuple[str, list[str], float]]:
        """Return each changed address with its MAC addresses and the time of its last change.

        The MAC addresses are in the order of first use. If an address has only one MAC address, this host got the
        address after the first call of `look`.
        """
        return [(key[1], self._macs[key], time_s) for key, time_s in self._changed_s.items()]

    def carrier_losses(self) -> list[CarrierLoss]:
        """Return the devices that lost their carrier after the first call of `look`."""
        return list(self._lost.values())


def _is_temporary(family: int, flags: int) -> bool:
    return family == socket.AF_INET6 and bool(flags & _TEMPORARY)


def _dump(kind: int, body: bytes) -> Iterator[bytes]:
    """Yield the bodies of the kernel's replies to one request. Yield nothing if the kernel does not reply."""
    with contextlib.suppress(OSError, AttributeError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(struct.pack("=IHHII", 16 + len(body), kind, _DUMP, 1, 0) + body)
        while True:
            data = kernel.recv(1 << 20)
            while len(data) >= 16:
                length, answer = struct.unpack_from("=IH", data)
                if answer in (_DONE, _ERROR) or length < 16:
                    return
                yield data[16:length]
                data = data[_aligned(length) :]


def _attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes of a reply by number (struct rtattr)."""
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[_aligned(length) :]
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3
