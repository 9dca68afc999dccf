"""Hosts that this host can reach: `python -m bench.probes.reach HOST ...` prints a JSON object.

A refused connection shows that the host is up: no program listens on the port. A network device that is up without a
carrier has an unplugged cable.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_PORT = 61009  # above the ephemeral ports, in the range that must be open between hosts
_TIMEOUT_S = 2.0
_NET = Path("/sys/class/net")


def look(hosts: Iterable[str]) -> dict[str, Any]:
    """{"unreachable": {host: why}, "unplugged": [device]} as seen from this host."""
    names = list(hosts)
    with ThreadPoolExecutor(max(1, min(64, len(names)))) as pool:
        reasons = dict(zip(names, pool.map(unreachable_reason, names), strict=True))
    return {"unreachable": {host: why for host, why in reasons.items() if why}, "unplugged": unplugged()}


def unreachable_reason(host: str, timeout_s: float = _TIMEOUT_S) -> str | None:
    """Why a host does not answer; None if it does (a refusal is an answer)."""
    try:
        socket.create_connection((host, _PORT), timeout=timeout_s).close()
    except ConnectionRefusedError:
        return None
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return None if error.errno == errno.ECONNRESET else error.strerror or str(error)
    return None


def unplugged(net: Path = _NET) -> list[str]:
    """Names of the network devices that are up without a carrier; bridges have no cable and are left out."""
    devices = (device for device in net.glob("*") if device.name != "lo" and not (device / "bridge").exists())
    return sorted(device.name for device in devices if _carrier(device) == "0")


def _carrier(device: Path) -> str:
    try:
        return (device / "carrier").read_text(encoding="ascii").strip()
    except OSError:  # the file `carrier` of a device that is down cannot be read
        return ""


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1:])))
