"""Read network errors of MPI's libraries: UCX, libfabric under MPICH, and Open MPI's TCP transport.

If UCX cannot create its queue pairs, Open MPI continues with another transport. The error of UCX is a failure only if
Open MPI then reports that it has no transport left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.logs.failure_events import Event, EventLine, MessageKind, Role, Sign, SignFormat, event_of

_UCX = (
    r"(?:\[(?P<host>[\w.-]+):(?P<pid>\d{1,10}):\d{1,10}:\d{1,10}\]"
    r"|\[[\d.]+\] \[(?P<host_2>[\w.-]+):(?P<pid_2>\d{1,10}):\d{1,10}\])"
)
_PORTS = "ibstat; ibqueryerrors; ib_write_bw (server on one host, client with its name on the other)"
_NO_PROVIDER = MessageKind(
    "ofi-failed",
    Role.CAUSE,
    "MPI did not start, because libfabric has no provider that fits ({call}<: {error}>)",
    0.85,
    "check the variables that name a provider or an interface, and the providers of this node",
    "fi_info; env | grep -E '^FI_|^I_MPI_OFI|^I_MPI_FABRICS'",
)
_UCX_SETUP = MessageKind(
    "ucx-setup-failed",
    Role.CAUSE,
    "UCX could not connect the processes of the job: {error}",
    0.9,
    "read UCX's errors, and run once over TCP: if this run works, check the NICs and the number of their queue pairs",
    "UCX_TLS=tcp,self,sm; UCX_LOG_LEVEL=info; ucx_info -d",
)
_UCX_UNUSED = replace(
    _UCX_SETUP,
    what="UCX could not create its queue pairs, and MPI may use another transport: {error}",
    weight=0.3,
    advisory=True,
)
_UCX_UNREACHABLE = MessageKind(
    "ucx-unreachable",
    Role.NETWORK,
    "UCX could not reach another process: {error}",
    0.65,
    "look for an earlier end of another process, then test the network between the hosts",
    _PORTS,
)
_NO_TRANSPORT = re.compile(
    r"No components were able to be opened in the pml framework|No available pml components were found"
    r"|PML \w{1,40} cannot be selected"
)
_EFA = MessageKind(
    "ofi-failed",
    Role.NETWORK,
    "libfabric's EFA provider failed and ended the process: {error}",
    0.65,
    "look for an earlier end of another process, then check both hosts' EFA devices",
    "FI_LOG_LEVEL=warn; fi_info -p efa",
)
_SIGNS = (
    (
        _UCX + r".{0,80}Transport retry count exceeded on (?P<hca>\S+)",
        MessageKind(
            "ucx-retry-exceeded",
            Role.NETWORK,
            "UCX got no acknowledgement over {hca}: the peer process died, or the path between the two NICs is down, "
            "not routed or drops packets",
            0.75,
            "test this pair of NICs alone; look for an earlier end of another process",
            _PORTS,
        ),
    ),
    (
        _UCX + r".{0,80}RNR retry count exceeded on (?P<hca>\S+)",
        MessageKind(
            "ucx-receiver-not-ready",
            Role.NETWORK,
            "over {hca}, the peer answered, but it did not accept the message of UCX: the peer hangs or is overloaded",
            0.6,
            "look at what the peer process does; look for an earlier end of another process",
            "py-spy dump --pid PID",
        ),
    ),
    (
        _UCX + r".{0,80}(?P<error>Local protection|Remote access|Remote operation|Remote QP|Local QP operation|"
        r"Local length)"
        r"(?: error)? on (?P<hca>\S+)",
        MessageKind(
            "ucx-transfer-failed",
            Role.NETWORK,
            "a transfer of UCX over {hca} failed ({error})",
            0.65,
            "check GPUDirect RDMA and the versions of UCX, driver and nvidia-peermem",
            "UCX_LOG_LEVEL=info; ucx_info -d",
        ),
    ),
    (
        r"OFI poll failed .*?(?:CANCELED|Operation canceled)",
        MessageKind(
            "ofi-cancelled",
            Role.NETWORK,
            "libfabric cancelled an operation: the process or its peer was ended before",
            0.55,
            "look for the process or the scheduler's message that ended first",
        ),
    ),
    (
        r"OFI (?P<call>\w+)(?:\(\))? failed \((?:[\w.]+:\d+:\w*init\w*:)(?P<error>No data available)\)",
        _NO_PROVIDER,
    ),
    (r"OFI (?P<call>fi_getinfo)\(\) fail(?:ure|ed)\s*$", _NO_PROVIDER),
    (
        r"OFI (?P<call>\w[\w ]{0,40}(?:\(\))?) failed \((?:[\w.]+:\d+:\w+:)?(?P<error>[^)]*)\)",
        MessageKind(
            "ofi-failed",
            Role.NETWORK,
            "libfabric's {call} failed: {error}",
            0.7,
            "look for an earlier end of another process, then check the NICs of this node",
            "FI_LOG_LEVEL=warn; fi_info",
        ),
    ),
    (
        r"ucx function returned with failed status\s?\(\S+ \d+ (?P<call>\w+) (?P<error>[^)]*)\)",
        MessageKind(
            "ucx-failed",
            Role.CAUSE,
            "MPI failed, because UCX failed in {call}: {error}",
            0.8,
            "check the variables that name transports and devices, and the devices of this node",
            "env | grep ^UCX_; ucx_info -d",
        ),
    ),
    (
        r"pml_ucx\.c:\d+\s+Error: (?P<error>ucp_ep_create\(.{0,40}\) failed: (?:Endpoint timeout|.{0,40}unreachable"
        r"|.{0,40}timed out|Connection reset).*)",
        _UCX_UNREACHABLE,
    ),
    (r"pml_ucx\.c:\d+\s+Error: (?P<error>ucp_ep_create\(.{0,40}\) failed: .*)", _UCX_SETUP),
    (r"pml_ucx\.c:\d+\s+Error: (?P<error>Failed to create UCP worker)", _UCX_UNUSED),
    (r"UCX\s+ERROR\s+(?P<error>.{0,40}[Ff]ailed to create .{0,20}\b[Qq][Pp]\b.*)", _UCX_UNUSED),
    (
        r"UCX\s+ERROR\s+(?P<error>.*)",
        MessageKind(
            "ucx-error",
            Role.CAUSE,
            "UCX printed an error: {error}",
            0.3,
            "check the variables that name transports and devices, and the devices of this node",
            "env | grep ^UCX_; ucx_info -d",
            advisory=True,  # Open MPI goes on without UCX
        ),
    ),
    (
        r"(?:mtl|btl)_ofi\S*:\d+: Error returned from (?P<call>fi_\w+)(?: event)?: (?P<error>.*)",
        MessageKind(
            "ofi-failed",
            Role.NETWORK,
            "libfabric's {call} failed, so Open MPI ended the job: {error}",
            0.7,
            "look for an earlier end of another process, and run once without libfabric",
            "mpirun --mca mtl ^ofi --mca btl ^ofi; FI_LOG_LEVEL=warn",
        ),
    ),
    (r"Unable to write to EQ: .{0,200}?\berr: (?P<error>.*?) \(-?\d+\) prov_errno: ", _EFA),
    (r"EFA internal error: \(-?\d+\) (?P<error>.*)", _EFA),
    (
        r"efa:\w+:\w+\(\):\d+<warn> err: \d+, message: (?P<error>.{1,80}?) My EFA addr: .*? "
        r"Peer host id: (?P<peer>[\w-]+)",
        MessageKind(
            "ofi-failed",
            Role.NETWORK,
            "a transfer over EFA to host {peer} failed: {error}",
            0.65,
            "look for an earlier end of a process on that host, then check both hosts' EFA devices",
            "FI_LOG_LEVEL=warn; fi_info -p efa",
        ),
    ),
    (
        r"cxi:.*Flow control triggered .*Software endpoint mode required",
        MessageKind(
            "cxi-flow-control",
            Role.CAUSE,
            "more messages arrived than the Slingshot NIC can match in hardware",
            0.9,
            "match messages in software",
            "FI_CXI_RX_MATCH_MODE=software (or hybrid)",
        ),
    ),
    (
        r"\[(?P<host>[\w.-]+)\]\[\[\d+,\d+\],(?P<rank>\d+)\]\[(?:\S{1,80}/)?btl_tcp\S*\] "
        r"(?P<error>received unexpected process identifier|remote peer unexpectedly closed connection)",
        MessageKind(
            "tcp-handshake",
            Role.NETWORK,
            "Open MPI's TCP connection of rank {rank} failed to start ({error}): several interfaces have the same or "
            "unreachable addresses, or another program connected",
            0.35,
            "name one network that all hosts share",
            "mpirun --mca btl_tcp_if_include 10.0.0.0/8",
            advisory=True,
        ),
    ),
    (
        # Open MPI prints the address and the size only if the kernel could not use the address (EFAULT)
        r"\[(?P<host>[\w.-]+)\]\[\[\d+,\d+\],(?P<rank>\d+)\]\[(?:\S{1,80}/)?btl_tcp\S*\] mca_btl_tcp_frag_\w+: "
        r"(?P<call>readv|writev) error \(0x[0-9a-f]+, (?P<num_bytes>\d+)\)",
        MessageKind(
            "mpi-bad-buffer",
            Role.CAUSE,
            "rank {rank} gave MPI a buffer that the kernel cannot use ({call}: Bad address): it is smaller than the "
            "call says, or it was freed",
            0.85,
            "compare the buffer with the count and the type of this rank's calls; with buffers of a GPU, check that "
            "MPI supports them",
            "mpirun -n 2 valgrind PROGRAM; ompi_info --parsable | grep cuda_support",
        ),
    ),
    (
        r"Message:\s+(?P<error>connect\(\) to (?P<peer>\S+) failed)",
        MessageKind(
            "cannot-connect",
            Role.NETWORK,
            "no TCP connection to {peer}: a firewall, a wrong interface, or the peer ended",
            0.55,
            "name one network that all hosts share",
            "mpirun --mca btl_tcp_if_include 10.0.0.0/8",
            advisory=True,
        ),
    ),
)


class MpiNetwork(SignFormat):
    """Yields one event for each line."""

    hints = (
        "retry count exceeded on",
        "(synd 0x",
        "OFI ",
        "ucx function returned",
        "pml_ucx.c:",
        "UCX  ERROR",
        "UCX ERROR",
        "Error returned from fi_",
        "Unable to write to EQ",
        "EFA internal error",
        "efa:",
        "Flow control triggered",
        "btl_tcp",
        "connect() to ",
        "pml framework",
        "pml components",
        "cannot be selected",
    )
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)

    def __init__(self) -> None:
        """Start with no error of UCX."""
        self._unused: str | None = None  # the first error for which Open MPI may use another transport

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the event of a line, if there is one."""
        if self._unused is not None and _NO_TRANSPORT.search(line.text):
            yield event_of(_UCX_SETUP, line, facts={"error": self._unused})
            return
        for event in super().read(line):
            if event.kind is _UCX_UNUSED:
                self._unused = self._unused or event.facts["error"]
            yield event


FORMAT = MpiNetwork
