"""Read hints, which are messages that NCCL and CUDA print between the rows of a log (NCCL_DEBUG=INFO)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bench.explain.topology import Topology, TopologyReader

# Maps a kind to its messages in NCCL 2.4 to 2.30, from the first word on. The named group is the hint's value.
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
_MESSAGE = re.compile("|".join(f"(?:{words})" for words in _WORDS.values()))
_INFO = "NCCL INFO "
_WITHOUT_INFO = re.compile(r"NCCL version (?P<nccl>\d+(?:\.\d+)+)|(?P<refused>CANNOT Access Peer)")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*\bon\s+(\S+(?:\s+\S{1,60}){0,3}?)\s+device\s+(\d+)\s+\[([\w:.]+)\]")
_DEVICE = re.compile(r"Device:? (?P<device>\d{1,4})[:,] ")  # printed by nvbandwidth and p2pBandwidthLatencyTest
_PATHS = ("P2P", "SHM", "NET", "NVLS")
_MOST_HINTS = 400  # at most this many different hints are kept; thousands of ranks print the same hints
_MOST_RANKS = 100_000  # at most this many ranks of one list are read
_NEXT_RUN_LINES = 20  # a hint repeated this many lines later may belong to the next run
_LONGEST_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class Hint:
    """One message in a run's log.

    `kind`: the type of the message.
    `value`: the relevant part of the message.
    `line`: the number of the first line that contains the message.
    """

    kind: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class TopologyHint(Hint):
    """The topology of a node, from this log or from another given file.

    The kind of this hint is `topology`, and `value` is the program that printed the topology.
    """

    topology: Topology


def topology_hints(topologies: Iterable[Topology]) -> tuple[TopologyHint, ...]:
    """Return each topology as a hint."""
    return tuple(TopologyHint("topology", each.program, each.line, each) for each in topologies)


class HintReader:
    """Reads every line of a log and keeps the hints.

    The reader never raises an error. The reader uses little memory, even if the log is very long.
    """

    def __init__(self) -> None:
        """Begin without any lines."""
        self._lines: dict[tuple[str, str], list[int]] = {}  # (kind, value) -> lines
        self._rank_at: dict[tuple[str, str, str], str] = {}  # (host, device, bus) -> the rank on this GPU
        self.topology = TopologyReader()

    def read(self, number: int, text: str) -> None:
        """Read one line. `number` counts from 1."""
        begin = text.find(_INFO)
        if begin < 0:
            self._read_plain(number, text)
            return
        message = text[begin + len(_INFO) : begin + len(_INFO) + _LONGEST_MESSAGE]
        if message.startswith(("Channel ", "Ring ")):
            self._keep(number, "path", _path(message))
        else:
            self._keep_match(number, _MESSAGE.match(message))

    def between(self, first: int, last: float) -> tuple[Hint, ...]:
        """Return the hints from line `first` to the line before `last`, and all topologies.

        The hints are in order and without duplicates.
        """
        found = []
        for (kind, value), lines in self._lines.items():
            line = next((line for line in lines if first <= line < last), None)
            if line is not None:
                found.append(Hint(kind, value, line))
        found += topology_hints(self.topology.found)
        return tuple(sorted(found, key=lambda hint: hint.line))

    def _read_plain(self, number: int, text: str) -> None:
        """Look for hints in a line that lacks NCCL's prefix."""
        self.topology.read(number, text)
        if "device" in text and (rank := _RANK.search(text[:_LONGEST_MESSAGE])):
            self._keep_rank(number, *rank.groups())
        elif "Using devices" in text:
            self._rank_at.clear()  # the list belongs to another run or to another process
        if "NCCL version" in text or "CANNOT" in text:
            self._keep_match(number, _WITHOUT_INFO.search(text))
        else:
            self._keep_match(number, _DEVICE.match(text))

    def _keep_rank(self, number: int, rank: str, host: str, device: str, bus: str) -> None:
        """Keep a hint if two ranks share a GPU.

        Two ranks share a GPU if they have the same host, device and bus id. The bus id alone is no proof, because NCCL
        prints it in a short form.
        """
        if len(self._rank_at) >= _MOST_RANKS:
            return
        other = self._rank_at.setdefault((host, device, bus), rank)
        if other != rank:
            self._keep(number, "shared", f"ranks {other} and {rank} are both on {host} device {device} [{bus}]")

    def _keep_match(self, number: int, found: re.Match[str] | None) -> None:
        if found is None or found.lastgroup is None:
            return
        value = found[found.lastgroup].strip()
        if found.lastgroup == "search":
            value = re.sub(r"\.0+\b", "", value)  # shorten numbers such as 20.000000
        self._keep(number, found.lastgroup, value)

    def _keep(self, number: int, kind: str, value: str) -> None:
        if not value or ((kind, value) not in self._lines and len(self._lines) >= _MOST_HINTS):
            return
        lines = self._lines.setdefault((kind, value), [])
        if not lines or (number - lines[-1] >= _NEXT_RUN_LINES and len(lines) < _MOST_HINTS):
            lines.append(number)


def _path(message: str) -> str:
    """Return the path of a channel.

    For example, the path is `P2P/IPC` in "Channel 00 : 0[0] -> 1[1] via P2P/IPC comm 0x1". Return "" without a path.
    """
    path = message.rpartition(" via ")[2].partition(" comm ")[0].strip()
    return path if path.startswith(_PATHS) and path != message else ""
