"""What NCCL really used, from its own debug output: network, paths, NVLS, channels, algorithm and protocol.

Its lines of set-up (INIT, NET, GRAPH) are printed when communicators are made and peers connected, never by a call that
is timed. The line that names a call's algorithm (TUNING, from 2.24 on) is printed by the first rank of a group at every
call: it is switched on for one untimed call only, or, where the library can not be told so while it runs and somebody
demands to know, for all of them, which is then said.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_SETUP = "INIT,NET,GRAPH,ENV"
_PER_CALL = f"{_SETUP},TUNING"

_SAID = re.compile(
    r"Channel [^>]*-> \S+ (?:\[\w+\] )?via (?P<path>[A-Z][^:]*?)(?: comm 0x.*)?$"
    r"|Using network (?P<network>\S.*?)$"
    r"|NET/OFI Selected [Pp]rovider is (?P<provider>[\w-]+)"
    r"|(?P<channels>\d+) coll channels,(?: \d+ collnet channels,)?(?: (?P<nvls>\d+) nvls channels,)?"
    r" (?P<p2p>\d+) p2p channels"
    r"|NVLS multicast support is (?P<nvls_words>not )?available"
    r"|(?P<op>\w+): (?P<bytes>\d+) Bytes -> Algo (?P<algorithm>[A-Z_]+) proto (?P<protocol>\w+)"
)
_NET_PATH = re.compile(r"NET/(?P<name>[^/]+)/\d+(?:\(\d+\))?(?P<rdma>/GDRDMA)?")
_INFO, _WARN = "NCCL INFO ", "NCCL WARN "


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL chose for one call, in its own words in small letters, and the line that says so."""

    algorithm: str
    protocol: str
    line: str


@dataclass(slots=True)
class NcclReport:
    """What one rank's NCCL, or that of several ranks together, told of itself. None and empty: it did not.

    `networks`: each network that connects peers (`efa`, `ib`, `socket`, ...), and a line that says so. `selected`: what
    it would take between nodes. `paths`: how peers of one node are reached (`P2P/CUMEM`, `SHM`). `choices`: of calls.
    """

    networks: dict[str, str] = field(default_factory=dict)
    selected: str | None = None
    provider: str | None = None
    paths: set[str] = field(default_factory=set)
    gpudirect: bool | None = None
    channels: int | None = None
    p2p_channels: int | None = None
    nvls_channels: int | None = None
    choices: list[Choice] = field(default_factory=list)
    warning: str | None = None
    num_lines: int = 0

    def hear(self, line: str) -> None:
        """Take one line in."""
        if _WARN in line and self.warning is None:
            self.warning = line.partition(_WARN)[2].strip()
        begin = line.find(_INFO)
        if begin < 0:
            return
        self.num_lines += 1
        said = _SAID.match(line[begin + len(_INFO) :].rstrip())
        if said is None:
            return
        if path := said["path"]:
            self._connected(path, line.strip())
        elif said["network"]:
            self.selected = said["network"]
        elif said["provider"]:
            self.provider = said["provider"].lower()
        elif said["channels"]:
            self.channels, self.p2p_channels = int(said["channels"]), int(said["p2p"])
            self.nvls_channels = None if said["nvls"] is None else int(said["nvls"])
        elif said["algorithm"]:
            self.choices.append(Choice(said["algorithm"].lower(), said["protocol"].lower(), line.strip()))
        elif said["nvls_words"]:
            self.nvls_channels = self.nvls_channels or 0

    def _connected(self, path: str, line: str) -> None:
        """`P2P/CUMEM/read`, `SHM/direct/direct`, `NET/AWS Libfabric/3/GDRDMA`."""
        if net := _NET_PATH.match(path):
            self.networks.setdefault(self._network(net["name"]), line)
            self.gpudirect = bool(self.gpudirect) or net["rdma"] is not None
            return
        words = path.split("/")
        self.paths.add("/".join(words[:2]) if words[0] == "P2P" else words[0])

    def _network(self, name: str) -> str:
        """libfabric is a way to many networks: its provider names the one that is used."""
        word = name.lower()
        return self.provider or "ofi" if "libfabric" in word or "ofi" in word else word

    def facts(self, num_nodes: int) -> dict[str, str]:
        """For the header, in words. `num_nodes`: over which the ranks are spread, as NCCL was told."""
        used = " + ".join(self.networks) or ("none, within one node" if num_nodes == 1 else None)
        nvls = {None: None, 0: "no"}.get(self.nvls_channels, f"yes, {self.nvls_channels} channels")
        rdma = None if self.gpudirect is None else "yes" if self.gpudirect else "no"
        channels = None if self.channels is None else f"{self.channels} collective, {self.p2p_channels} point-to-point"
        known = {
            "network": used if self.num_lines else None,
            "network_selected": self.selected,
            "nvls": nvls,
            "channels": channels,
            "p2p": ", ".join(sorted(self.paths)) or None,
            "gpudirect": rdma,
        }
        return {f"nccl_{name}": value for name, value in known.items() if value is not None}


def together(all_seen: Iterable[NcclReport]) -> NcclReport:
    """What all ranks saw, in rank order: only those at the edge of a node use a network."""
    whole = NcclReport()
    for rank, one in enumerate(all_seen):
        whole.networks = {name: f"rank {rank}: {line}" for name, line in one.networks.items()} | whole.networks
        whole.selected, whole.provider = whole.selected or one.selected, whole.provider or one.provider
        whole.paths |= one.paths
        whole.gpudirect = one.gpudirect if whole.gpudirect is None else whole.gpudirect or bool(one.gpudirect)
        whole.channels = one.channels if whole.channels is None else whole.channels
        whole.p2p_channels = one.p2p_channels if whole.p2p_channels is None else whole.p2p_channels
        whole.nvls_channels = one.nvls_channels if whole.nvls_channels is None else whole.nvls_channels
        whole.warning = whole.warning or one.warning
        whole.num_lines += one.num_lines
    return whole


class Debug:
    """This process's NCCL output: sent to a file that nobody else sees, unless the user asked for it elsewhere.

    The variables stand in the environment only while NCCL reads them: they are not the user's settings.
    """

    def __init__(self, environ: MutableMapping[str, str], every_call: bool) -> None:
        """Before NCCL is initialised. `every_call`: also what each call uses, at its price (see the module)."""
        self.seen = NcclReport()
        self._environ, self._read_to = environ, 0
        self._own: Path | None = None
        self.source: str | None = None  # where NCCL's output is read; None: nowhere
        self.every_call = every_call
        asked = [name for name in _VARIABLES if name != "NCCL_DEBUG_SUBSYS" and name in environ]
        self.given_by_user = " and ".join(asked)
        self._given_subsys = environ.get("NCCL_DEBUG_SUBSYS")
        self.why_unread = f"nothing that could be read: {self.given_by_user} is set"
        if not asked:
            try:
                handle, name = tempfile.mkstemp(prefix="bench-nccl-", suffix=".log")
            except OSError as error:
                self.why_unread = f"nothing: no file could be made for it ({error.strerror})"
                return
            os.close(handle)
            self._own = self._file = Path(name)
            self.source = "a file of its own"
            self._tell(_PER_CALL if every_call else _SETUP)
        elif environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE") and "NCCL_DEBUG_FILE" in environ:
            self._file = Path(_expanded(environ["NCCL_DEBUG_FILE"]))
            self.source = "the file that NCCL_DEBUG_FILE names"

    @property
    def can_switch(self) -> bool:
        """Is it ours to say which lines are written?"""
        return self._own is not None and not self.every_call and self._given_subsys is None

    def opened(self) -> None:
        """NCCL has been initialised and has made its first call: it has read the variables."""
        if self._own is not None:
            for name in _VARIABLES:
                self._environ.pop(name, None)
            if self._given_subsys is not None:
                self._environ["NCCL_DEBUG_SUBSYS"] = self._given_subsys
        self.read()

    def read(self) -> None:
        """Take in what NCCL has said since."""
        if self.source is None:
            return
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                self.seen.hear(line.decode(errors="replace"))

    def choice(self, call: Callable[[], object], reset: Callable[[], object] | None) -> Choice | None:
        """Run an untimed call to its end, and tell what NCCL chose for it; None where it does not say.

        `reset`, which all ranks have or none: makes NCCL read its variables anew at its next line (ncclResetDebugInit);
        then a second call is made, so that the file is closed to such lines again before anything is timed.
        """
        self.read()
        before = len(self.seen.choices)
        if reset is not None:
            self._again(_PER_CALL, reset)
        call()
        self.read()
        if reset is not None:
            self._again(_SETUP, reset)
            call()
            self.opened()
        found = self.seen.choices[before:]
        return found[-1] if found else None

    def _again(self, subsystems: str, reset: Callable[[], object]) -> None:
        self._tell(subsystems)
        self._read_to = 0  # NCCL empties the file when it opens it again, if it has anything to say
        self._file.write_bytes(b"")
        reset()

    def _tell(self, subsystems: str) -> None:
        self._environ["NCCL_DEBUG"] = "INFO"
        self._environ["NCCL_DEBUG_FILE"] = str(self._file).replace("%", "%%")
        self._environ["NCCL_DEBUG_SUBSYS"] = self._given_subsys or subsystems

    def close(self) -> None:
        """Remove the file, where it is our own."""
        if self._own is not None:
            self._own.unlink(missing_ok=True)


def _expanded(name: str) -> str:
    """A file name as NCCL makes it: %h is the host, %p the process, %% a per cent sign."""
    words = {"%h": socket.gethostname().partition(".")[0], "%p": str(os.getpid()), "%%": "%"}
    return re.sub("%[hp%]", lambda found: words[found[0]], name)


def unlike(required: Iterable[tuple[str, str]], seen: NcclReport | None, choice: Choice | None) -> str | None:
    """What was demanded and is not so, or can not be known, as the end of a sentence with its evidence; else None.

    `required` names `network` where `seen` is to be judged, `algorithm` and `protocol` where a call's choice is.
    """
    for name, value in required:
        if name == "network" and seen is not None:
            if not seen.num_lines:
                return f"{name}={value} was demanded, and NCCL did not tell which network it used"
            for used, line in seen.networks.items():
                if used != value:
                    return f"{name}={value} was demanded, and NCCL used {used} ({line})"
            if not seen.networks:
                return f"{name}={value} was demanded, and NCCL used no network between these ranks"
        elif name in ("algorithm", "protocol") and seen is None:
            if choice is None:
                return f"{name}={value} was demanded, and NCCL did not tell which {name} it used"
            if (used := getattr(choice, name)) != value:
                return f"{name}={value} was demanded, and NCCL used {used} ({choice.line})"
    return None
