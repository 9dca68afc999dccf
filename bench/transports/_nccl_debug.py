"""Read NCCL's debug output: the network, paths, NVLS, channels, algorithm and protocol that NCCL used.

NCCL prints set-up lines (INIT, NET, GRAPH) when it makes communicators and connects peers, never during a timed call.
TUNING lines show the algorithm of a call (since NCCL 2.24). The first rank of a group prints TUNING lines at every
call, so linkbench enables these lines only for one untimed call. Some versions of NCCL cannot enable or disable TUNING
lines at run time. If `--require` needs TUNING lines from such a version, linkbench enables the lines for all calls and
adds a note.
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

_LINE = re.compile(
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
    """The algorithm and protocol that NCCL chose for one call, and the line of NCCL's output that reports them."""

    algorithm: str
    protocol: str
    line: str


@dataclass(slots=True)
class NcclReport:
    """The contents of NCCL's output, for one or several ranks. A value is None or empty if NCCL did not report it.

    `networks`: each network that connects peers (`efa`, `ib`, `socket`, ...), with the line of NCCL's output that names
        it.
    `selected`: the network that NCCL would use between nodes.
    `paths`: how NCCL reaches peers on the same node (`P2P/CUMEM`, `SHM`).
    `choices`: what NCCL chose for calls.
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

    def read_line(self, line: str) -> None:
        """Parse one line of output."""
        if _WARN in line and self.warning is None:
            self.warning = line.partition(_WARN)[2].strip()
        begin = line.find(_INFO)
        if begin < 0:
            return
        self.num_lines += 1
        found = _LINE.match(line[begin + len(_INFO) :].rstrip())
        if found is None:
            return
        if path := found["path"]:
            self._connected(path, line.strip())
        elif found["network"]:
            self.selected = found["network"]
        elif found["provider"]:
            self.provider = found["provider"].lower()
        elif found["channels"]:
            self.channels, self.p2p_channels = int(found["channels"]), int(found["p2p"])
            self.nvls_channels = None if found["nvls"] is None else int(found["nvls"])
        elif found["algorithm"]:
            self.choices.append(Choice(found["algorithm"].lower(), found["protocol"].lower(), line.strip()))
        elif found["nvls_words"]:
            self.nvls_channels = self.nvls_channels or 0

    def _connected(self, path: str, line: str) -> None:
        """Record how this rank reaches a peer, for example `P2P/CUMEM/read` or `NET/AWS Libfabric/3/GDRDMA`."""
        if net := _NET_PATH.match(path):
            self.networks.setdefault(self._network(net["name"]), line)
            self.gpudirect = bool(self.gpudirect) or net["rdma"] is not None
            return
        words = path.split("/")
        self.paths.add("/".join(words[:2]) if words[0] == "P2P" else words[0])

    def _network(self, name: str) -> str:
        """Return the name of the network in use.

        libfabric runs over several networks. If NCCL uses libfabric, return the name of libfabric's provider.
        """
        word = name.lower()
        return self.provider or "ofi" if "libfabric" in word or "ofi" in word else word

    def facts(self, num_nodes: int) -> dict[str, str]:
        """Return the facts for the header. `num_nodes`: the number of nodes, as NCCL sees it."""
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


def merge(reports: Iterable[NcclReport]) -> NcclReport:
    """Merge the reports of all ranks into one report. `reports` is in rank order.

    The reports differ, because only some ranks of a node use a network.
    """
    whole = NcclReport()
    for rank, one in enumerate(reports):
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
    """This process's NCCL output.

    If the user has not directed NCCL's output to a file or stream, the output is in a private file. Environment
    variables that the user has set never change. Other variables of NCCL are set only until NCCL has read them.
    """

    def __init__(self, environ: MutableMapping[str, str], every_call: bool) -> None:
        """Set NCCL's variables. Call this constructor before NCCL is initialised.

        `every_call`: whether NCCL prints TUNING lines at every call (see the module).
        """
        self.seen = NcclReport()
        self._environ, self._read_to = environ, 0
        self._own: Path | None = None
        self.source: str | None = None  # where NCCL's output is read; None if it is not read
        self.every_call = every_call
        asked = [name for name in _VARIABLES if name != "NCCL_DEBUG_SUBSYS" and name in environ]
        self.given_by_user = " and ".join(asked)
        self._given_subsys = environ.get("NCCL_DEBUG_SUBSYS")
        self.why_unread = f"not read: {self.given_by_user} is set"
        if not asked:
            try:
                handle, name = tempfile.mkstemp(prefix="bench-nccl-", suffix=".log")
            except OSError as error:
                self.why_unread = f"not read: no file could be created for it ({error.strerror})"
                return
            os.close(handle)
            self._own = self._file = Path(name)
            self.source = "a file of its own"
            self._set_variables(_PER_CALL if every_call else _SETUP)
        elif environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE") and "NCCL_DEBUG_FILE" in environ:
            self._file = Path(_expanded(environ["NCCL_DEBUG_FILE"]))
            self.source = "the file that NCCL_DEBUG_FILE names"

    @property
    def can_switch(self) -> bool:
        """Whether linkbench may select the lines that NCCL prints, and can change the selection at run time."""
        return self._own is not None and not self.every_call and self._given_subsys is None

    def opened(self) -> None:
        """Restore the environment variables after NCCL has been initialised and has read them."""
        if self._own is not None:
            for name in _VARIABLES:
                self._environ.pop(name, None)
            if self._given_subsys is not None:
                self._environ["NCCL_DEBUG_SUBSYS"] = self._given_subsys
        self.read()

    def read(self) -> None:
        """Read NCCL's output since the last call."""
        if self.source is None:
            return
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                self.seen.read_line(line.decode(errors="replace"))

    def choice(self, call: Callable[[], object], reset: Callable[[], object] | None) -> Choice | None:
        """Run an untimed call. Return the choice that NCCL made for this call.

        Return None if NCCL does not report its choice. Afterwards, disable the TUNING lines, and make a second untimed
        call, in which NCCL reads this setting.

        `reset`: ncclResetDebugInit, on all ranks or on no rank. After this call, NCCL reads its variables again before
            it prints the next line.
        """
        self.read()
        before = len(self.seen.choices)
        if reset is not None:
            self._reconfigure(_PER_CALL, reset)
        call()
        self.read()
        if reset is not None:
            self._reconfigure(_SETUP, reset)
            call()
            self.opened()
        found = self.seen.choices[before:]
        return found[-1] if found else None

    def _reconfigure(self, subsystems: str, reset: Callable[[], object]) -> None:
        self._set_variables(subsystems)
        self._read_to = 0  # at its next line, NCCL opens the file again and truncates it
        self._file.write_bytes(b"")
        reset()

    def _set_variables(self, subsystems: str) -> None:
        self._environ["NCCL_DEBUG"] = "INFO"
        self._environ["NCCL_DEBUG_FILE"] = str(self._file).replace("%", "%%")
        self._environ["NCCL_DEBUG_SUBSYS"] = self._given_subsys or subsystems

    def close(self) -> None:
        """Remove the private file."""
        if self._own is not None:
            self._own.unlink(missing_ok=True)


def _expanded(name: str) -> str:
    """Expand a file name as NCCL does: %h is the host, %p the process, %% a percent sign."""
    words = {"%h": socket.gethostname().partition(".")[0], "%p": str(os.getpid()), "%%": "%"}
    return re.sub("%[hp%]", lambda found: words[found[0]], name)


def broken_demand(required: Iterable[tuple[str, str]], seen: NcclReport | None, choice: Choice | None) -> str | None:
    """Find the first condition of `--require` that NCCL does not meet, or that cannot be checked.

    Return a text that names this condition and says what NCCL reported. Return None if all conditions are met. If
    `seen` is given, the function checks only the condition on `network`. If `seen` is None, the function compares the
    conditions on `algorithm` and `protocol` with `choice`.
    """
    for name, value in required:
        if name == "network" and seen is not None:
            if not seen.num_lines:
                return f"{name}={value} was demanded, and NCCL did not report its network"
            for used, line in seen.networks.items():
                if used != value:
                    return f"{name}={value} was demanded, and NCCL used {used} ({line})"
            if not seen.networks:
                return f"{name}={value} was demanded, and NCCL used no network between these ranks"
        elif name in ("algorithm", "protocol") and seen is None:
            if choice is None:
                return f"{name}={value} was demanded, and NCCL did not report its {name}"
            if (used := getattr(choice, name)) != value:
                return f"{name}={value} was demanded, and NCCL used {used} ({choice.line})"
    return None
