"""What NCCL and CUDA say of themselves between the rows of a log (NCCL_DEBUG=INFO): evidence for the reasons."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What NCCL's words (2.4 to 2.30) are evidence of, from where they begin. The group is what is kept.
_WORDS = {
    "network": r"Using network (?P<network>\S[^\[]*?)\s*$",
    "nics": r"NET/\S+ ?: Using (?P<nics>\[0\].*)",
    "provider": r"NET/OFI Selected [Pp]rovider is (?P<provider>[\w-]+)",
    "platform": r"NET/OFI Running on (?P<platform>[\w.-]+) platform",
    "setting": r"(?P<setting>NCCL_[A-Z0-9_]+ set by environment to \S+)",
    "search": r"Pattern .*nChannels (?P<search>\d+, bw [\d.]+/[\d.]+, type \w+)",
    "channels": r"(?P<channels>\d+) coll channels",
    "refused": r"(?P<refused>P2P is disabled between)",
    "no_rdma": r"NET/.*(?P<no_rdma>GPU Direct RDMA Disabled)",
    "rdma": r"NET/.*(?P<rdma>GPU Direct RDMA Enabled)",
    "no_nvls": r"(?P<no_nvls>NVLS multicast support is not available)",
    "nccl": r"NCCL version (?P<nccl>\d+(?:\.\d+)+)",
}
_SAID = re.compile("|".join(f"(?:{words})" for words in _WORDS.values()))
_INFO = "NCCL INFO "
_BARE = re.compile(r"NCCL version (?P<nccl>\d+(?:\.\d+)+)|(?P<refused>CANNOT Access Peer)")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\s+(\d+)\s+\[([\w:.]+)\]")
_DEVICE = re.compile(r"Device:? (?P<device>\d{1,4})[:,] ")  # of nvbandwidth, and of p2pBandwidthLatencyTest
_PATHS = ("P2P", "SHM", "NET", "NVLS")
_MOST = 400  # different sayings kept of one run: a run of thousands of ranks says the same thousands of times
_MOST_PLACES = 100_000  # ranks of one list
_APART = 20  # lines, from which on the same saying may be another run's
_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class Hint:
    """One saying of a run: its kind, what it says, and where it stands first."""

    kind: str
    value: str
    line: int


class Listener:
    """Hears every line of a log and keeps what is evidence. Never raises; keeps little, however long the log is."""

    def __init__(self) -> None:
        """Nothing heard yet."""
        self._heard: dict[tuple[str, str], list[int]] = {}
        self._places: dict[tuple[str, str, str], str] = {}  # host, device, bus -> the rank there

    def hear(self, number: int, text: str) -> None:
        """Take one line in."""
        begin = text.find(_INFO)
        if begin < 0 and "device" in text and (place := _RANK.search(text[:_LONGEST])):
            self._place(number, *place.groups())
        elif begin < 0 and "Using devices" in text:
            self._places.clear()  # another run, or the list of another process
        if begin < 0:
            bare = "NCCL version" in text or "CANNOT" in text
            found = _BARE.search(text) if bare else _DEVICE.match(text)
        else:
            said = text[begin + len(_INFO) : begin + len(_INFO) + _LONGEST]
            if said.startswith(("Channel ", "Ring ")):
                self._keep(number, "path", _path(said))
                return
            found = _SAID.match(said)
        if found is not None and found.lastgroup is not None:
            value = found[found.lastgroup].strip()
            if found.lastgroup == "search":
                value = re.sub(r"\.0+\b", "", value)  # 20.000000
            self._keep(number, found.lastgroup, value)

    def _place(self, number: int, rank: str, host: str, device: str, bus: str) -> None:
        """Two ranks on one host, device and bus share a GPU; the bus alone, cut where it is printed, does not tell."""
        if len(self._places) >= _MOST_PLACES:
            return
        other = self._places.setdefault((host, device, bus), rank)
        if other != rank:
            self._keep(number, "shared", f"ranks {other} and {rank} are both on {host} device {device} [{bus}]")

    def _keep(self, number: int, kind: str, value: str) -> None:
        if not value or ((kind, value) not in self._heard and len(self._heard) >= _MOST):
            return
        lines = self._heard.setdefault((kind, value), [])
        if not lines or (number - lines[-1] >= _APART and len(lines) < _MOST):
            lines.append(number)

    def between(self, first: int, last: float) -> tuple[Hint, ...]:
        """What was said from a line on and before another, each saying once, in order."""
        found = []
        for (kind, value), lines in self._heard.items():
            line = next((line for line in lines if first <= line < last), None)
            if line is not None:
                found.append(Hint(kind, value, line))
        return tuple(sorted(found, key=lambda hint: hint.line))


def _path(said: str) -> str:
    """P2P/IPC of "Channel 00 : 0[0] -> 1[1] via P2P/IPC comm 0x1"; nothing of a channel that tells no path."""
    path = said.rpartition(" via ")[2].partition(" comm ")[0].strip()
    return path if path.startswith(_PATHS) and path != said else ""
