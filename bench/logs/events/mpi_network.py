"""Read network errors of MPI's libraries: UCX, libfabric under MPICH, and Open MPI's TCP transport."""

from __future__ import annotations

import re

from bench.logs.failure_events import MessageKind, Role, Sign, SignFormat

_UCX = (
    r"(?:\[(?P<host>[\w.-]+):(?P<pid>\d{1,10}):\d{1,10}:\d{1,10}\]"
    r"|\[[\d.]+\] \[(?P<host_2>[\w.-]+):(?P<pid_2>\d{1,10}):\d{1,10}\])"
)
_PORTS = "ibstat; ibqueryerrors; ib_write_bw (server on one host, client with its name on the other)"
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
        MessageKind(
            "ofi-failed",
            Role.CAUSE,
            "MPI did not start, because libfabric has no provider that fits ({call}: {error})",
            0.85,
            "check the variables that name a provider or an interface, and the providers of this node",
            "fi_info; env | grep -E '^FI_|^I_MPI_OFI|^I_MPI_FABRICS'",
        ),
    ),
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
        r"\[(?P<host>[\w.-]+)\]\[\[\d+,\d+\],(?P<rank>\d+)\]\[btl_tcp\S*\] (?P<error>received unexpected process "
        r"identifier|remote peer unexpectedly closed connection)",
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
        "efa:",
        "Flow control triggered",
        "btl_tcp",
        "connect() to ",
    )
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)


FORMAT = MpiNetwork
