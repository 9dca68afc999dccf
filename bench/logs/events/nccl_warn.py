"""Read NCCL's own warnings: `host:pid:tid [device] file:line NCCL WARN message`, versions 2.4 to 2.30.

The numbers of completion statuses come from `enum ibv_wc_status` (libibverbs, verbs.h). torch prints the same warning
texts after the words "Last error:".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, Sign, event_of

PORT_EVENT = MessageKind(
    "ib-port-event",
    Role.NETWORK,
    "the NIC<, {hca},> reported an event: {event}",
    0.8,  # explains retries that other ranks report later
    "check that the port is up, and check its cable and switch port",
    "ibstat; dmesg -T | grep mlx5",
)
SUBNET_EVENT = MessageKind(
    "ib-subnet-event", Role.STATE, "the NIC<, {hca},> reported an event that is not an error: {event}"
)
_PLACE = re.compile(
    r"(?:(?P<host>[\w.-]+):(?P<pid>\d{1,10}):\d{1,10} )?\[(?P<device>\d{1,4})\]\s.{0,200}?NCCL WARN (?P<message>.*)"
)
_BARE = re.compile(r"NCCL WARN (?P<message>.*)")
_LAST_ERROR = "Last error:"
_COMPLETION = r"Got completion (?:from peer (?P<peer>\S+) )?with (?:error |status=)(?:\w+\()?"
_COMPLETION_END = (
    r"\)?,? opcode[ =](?:\w+\()?(?P<opcode>\d+)(?:.*?vendor[ _]err[ =](?P<vendor_error>\d+))?(?:.*? hca (?P<hca>\S+))?"
)
_PORTS = "ibstat; ib_write_bw --report_gbits (server on one host, client with its name on the other)"
_NCCL_DEBUG = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV"


_TRANSFER_FAILED = MessageKind(
    "ib-failed",
    Role.NETWORK,
    "a transfer of the NIC failed with status {status} of ibv_wc_status",
    0.6,
    "check both NICs' ports and the kernel's messages about them",
    _PORTS,
)


def _sign(pattern: str, kind: MessageKind) -> Sign:
    return Sign(re.compile(pattern), kind)


_SIGNS = (
    _sign(
        _COMPLETION + r"(?P<status>12)" + _COMPLETION_END,
        MessageKind(
            "ib-retry-exceeded",
            Role.NETWORK,
            "the NIC got no acknowledgement from its peer after seven retries (IBV_WC_RETRY_EXC_ERR): the "
            "peer process died, or the path between the two NICs is down, not routed or drops packets",
            0.75,
            "test this pair of NICs alone; on RoCE also compare GID index, MTU and PFC of both ends",
            _PORTS,
        ),
    ),
    _sign(
        _COMPLETION + r"(?P<status>13)" + _COMPLETION_END,
        MessageKind(
            "ib-receiver-not-ready",
            Role.NETWORK,
            "the peer was alive but posted no receive buffer in time (IBV_WC_RNR_RETRY_EXC_ERR): its process hangs",
            0.6,
            "look at the peer's process and log",
        ),
    ),
    _sign(
        _COMPLETION + r"(?P<status>5)" + _COMPLETION_END,
        MessageKind(
            "ib-flushed",
            Role.PEER,
            "a work request was flushed because the connection had failed before (IBV_WC_WR_FLUSH_ERR)",
            0.2,
        ),
    ),
    _sign(
        _COMPLETION + r"(?P<status>4|8|9|10|11)" + _COMPLETION_END,
        MessageKind(
            "ib-memory-access",
            Role.CAUSE,
            "a NIC could not access registered memory (status {status}): GPUDirect RDMA, its peer memory module, "
            "ACS or an "
            "IOMMU fails",
            0.75,
            "run once without GPUDirect RDMA; if this run works, check nvidia-peermem, ACS and the IOMMU",
            "NCCL_NET_GDR_LEVEL=LOC; lsmod | grep peermem; sudo lspci -vvv | grep ACSCtl",
        ),
    ),
    _sign(
        _COMPLETION + r"(?P<status>\d+)" + _COMPLETION_END,
        _TRANSFER_FAILED,
    ),
    _sign(
        r"Got completion (?:from peer (?P<peer>\S+) )?with (?:error |status=)(?:\w+\()?(?P<status>\d+)",
        _TRANSFER_FAILED,
    ),
    _sign(
        r"NET/IB\s?: (?:(?P<hca>[\w-]+):\d+ )?(?:Got )?async event\s?:? ?(?:on \S+ .*?: )?(?P<event>"
        r"client reregistration|LID change|SM change|P_Key change|GID table change|port active|SRQ limit|last WQE|"
        r"send queue drained|communication established|path migrated).*",
        SUBNET_EVENT,
    ),
    _sign(
        r"NET/IB\s?: (?:(?P<hca>[\w-]+):\d+ )?(?:Got )?(?:async (?:fatal )?event|non-fatal async event)\s?:? ?"
        r"(?:on \S+ .*?: )?(?P<event>.*)",
        PORT_EVENT,
    ),
    _sign(
        r"(?:peer (?P<peer>\S+) )?collective mismatch error,? local size (?P<local_bytes>\d+) remote(?: size)? "
        r"(?P<remote_bytes>\d+)",
        MessageKind(
            "size-mismatch",
            Role.CAUSE,
            "two ranks called the same collective with different sizes ({local_bytes} and {remote_bytes} bytes)",
            0.9,
            "compare sizes and order of the collectives of these ranks",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
    ),
    _sign(
        r"(?:peer (?P<peer>\S+) )?[Mm]essage truncated : rece\w+ (?P<received>\d+),?\d* bytes instead of "
        r"(?P<wanted>\d+)",
        MessageKind(
            "size-mismatch",
            Role.CAUSE,
            "a rank received {received} bytes instead of {wanted}: the ranks called collectives with different "
            "sizes or in "
            "different order, or NCCL_PROTO or NCCL_ALGO differ between them",
            0.85,
            "compare sizes, order and NCCL_ variables of the ranks",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
    ),
    _sign(
        r"Mismatched collective detected.{0,80}at and around rank (?P<near_rank>\d+)",  # NCCL before 2.5
        MessageKind(
            "collective-mismatch",
            Role.CAUSE,
            "the ranks called different collectives, or called them with different sizes, near rank {near_rank}",
            0.9,
            "compare order and sizes of the collectives of this rank and its neighbours",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
    ),
    _sign(
        r"NET/OFI Request.{0,60}? completed with error\. RC: (?P<status>\d+)\..{0,40}?Error: (?P<error>.{1,160}?)"
        r"(?:\. Completed length|$)",
        MessageKind(
            "ofi-failed",
            Role.NETWORK,
            "a transfer over libfabric failed with error {status} ({error}): the peer process ended, or the network "
            "between the two nodes does not pass it",
            0.65,
            "look for an earlier end of another process; on EC2, check that the security group allows all traffic "
            "from and to itself",
            "FI_LOG_LEVEL=warn; fi_info",
        ),
    ),
    _sign(
        r"posted incorrect receive info",
        MessageKind(
            "size-mismatch",
            Role.CAUSE,
            "two ranks called the same collective with different sizes",
            0.7,
            "compare sizes and order of the collectives of these ranks",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
    ),
    _sign(
        r"(?:connecting to address ?(?P<peer>\S*)\s+)?with family (?P<family>\d+) is neither AF_INET",
        MessageKind(
            "bad-address",
            Role.CAUSE,
            "a rank received an invalid address (family {family}) during NCCL's bootstrap: processes run "
            "different builds of NCCL or of a network plug-in, or another program uses the port",
            0.8,
            "make all nodes load the same libnccl and libnccl-net, and compare the versions that the ranks print",
            _NCCL_DEBUG,
        ),
    ),
    _sign(
        r"Mismatched NCCL version detected : rank (?P<rank>\d+) version (?P<version>\d+) rank (?P<other_rank>\d+) "
        r"version (?P<other_version>\d+)",
        MessageKind(
            "nccl-versions-differ",
            Role.CAUSE,
            "rank {rank} runs NCCL {version}, rank {other_rank} runs {other_version}",
            1.0,
            "make all nodes load the same libnccl",
            "NCCL_DEBUG=VERSION",
        ),
    ),
    _sign(
        r"(?i)(?:failed to open|could not open|unable to load|dlopen).{0,40}libibverbs|libibverbs\S*: cannot open",
        MessageKind(
            "no-libibverbs",
            Role.CAUSE,
            "libibverbs is missing, so NCCL cannot use InfiniBand or RoCE: it falls back to sockets or fails",
            0.35,
            "install rdma-core in the image, and give the container /dev/infiniband",
            "ldconfig -p | grep libibverbs",
            advisory=True,
        ),
    ),
    _sign(
        r"(?:Bootstrap|NET/Socket|NET/IB) : (?:[Nn]o (?:socket |IP |usable listening )?interface found|No usable)"
        r"|no socket interface found",
        MessageKind(
            "no-interface",
            Role.CAUSE,
            "no network interface matches NCCL_SOCKET_IFNAME and the address family",
            0.9,
            "name an interface that exists on every node",
            "ip -br addr; NCCL_SOCKET_IFNAME=eth0",
        ),
    ),
    _sign(
        r"Failed to initialize any NET plugin|Error: network (?P<network>.+?) not found",
        MessageKind(
            "no-network",
            Role.CAUSE,
            "the network that NCCL_NET names could not be loaded<: {network}>",
            0.95,
            "check NCCL_NET, NCCL_NET_PLUGIN and the plug-in's libraries",
            _NCCL_DEBUG,
        ),
    ),
    _sign(
        r"Multiple Ranks are using the same GPU|Duplicate GPU detected : rank (?P<rank>\d+) and rank "
        r"(?P<other_rank>\d+) "
        r"both on CUDA device (?P<bus>\S+)",
        MessageKind(
            "gpu-used-twice",
            Role.CAUSE,
            "two ranks<, {rank} and {other_rank},> use the same GPU",
            1.0,
            "give each rank its own GPU, by its local rank",
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        ),
    ),
    _sign(
        r"(?:Error while creating shared memory segment|Call to (?:posix_)?f?allocate failed|ncclShm\w+).{0,200}?"
        r"(?P<error>No space left on device|\(size \d+\).*)",
        MessageKind(
            "shm-too-small",
            Role.CAUSE,
            "/dev/shm is too small for NCCL's buffers",
            0.95,
            "give the container more shared memory",
            "docker run --shm-size=1g --ulimit memlock=-1 ...",
        ),
    ),
    _sign(
        r"(?:Call to )?ibv_reg_mr\S* failed with error (?P<error>.+)",
        MessageKind(
            "cannot-register-memory",
            Role.CAUSE,
            "the NIC could not register memory ({error}): the limit of locked memory, or a missing nvidia-peermem",
            0.85,
            "raise the limit of locked memory, and check GPUDirect RDMA",
            "ulimit -l; lsmod | grep peermem",
        ),
    ),
    _sign(
        r"(?:Call to )?ibv_modify_qp failed with(?: error)? (?P<error>.+)",
        MessageKind(
            "ib-connect-failed",
            Role.CAUSE,
            "two NICs could not be connected ({error}): a wrong GID index, or no route between them",
            0.8,
            "check the GID index, and check that the paired NICs can reach each other",
            "show_gids; NCCL_IB_GID_INDEX=3",
        ),
    ),
    _sign(
        r"(?:Call to )?(?P<call>ibv_\w+) failed(?: with)?(?: error)? ?(?P<error>.*)",
        MessageKind(
            "ib-call-failed",
            Role.CAUSE,
            "{call} failed<: {error}>",
            0.65,
            "check the NIC's driver and the container's access to /dev/infiniband",
            "ibv_devinfo",
        ),
    ),
    _sign(
        r"Attempted to connect incompatible devices|Can't merge net devices",
        MessageKind(
            "nics-differ",
            Role.CAUSE,
            "NICs of different link types were paired (InfiniBand with RoCE)",
            0.9,
            "choose NICs of one type on every node",
            "NCCL_IB_HCA=mlx5_0,mlx5_1",
        ),
    ),
    _sign(
        r"Failed to bind NVLink SHARP|NVLS.{0,80}(?:failed|CUDA error)|Cuda failure (?:401\b|802\b|"
        r"'system not yet init)",
        MessageKind(
            "fabric-not-ready",
            Role.CAUSE,
            "the NVSwitch fabric is not up or is misconfigured",
            0.9,
            "check the Fabric Manager; run once with NCCL_NVLS_ENABLE=0",
            "systemctl status nvidia-fabricmanager",
        ),
    ),
    _sign(
        r"MNNVL .*not working",
        MessageKind(
            "no-imex",
            Role.CAUSE,
            "the nodes are connected by NVLink, but the IMEX channels are missing",
            0.9,
            "check the IMEX daemon and the container's channel",
            "nvidia-imex-ctl -N; ls /dev/nvidia-caps-imex-channels",
        ),
    ),
    _sign(
        r"(?i)cuda failure.{0,20}out of memory|Failed to CUDA \w+(?: \w+)? (?P<bytes>\d+) bytes|Cuda failure 2\b",
        MessageKind(
            "out-of-memory",
            Role.CAUSE,
            "the GPU has no memory left for NCCL's buffers",
            0.9,
            "leave memory for NCCL: lower the program's memory use or the number of communicators",
            "nvidia-smi",
        ),
    ),
    _sign(
        r"Cuda failure (?:\d{1,5} )?'(?P<error>(?!driver shutting down)[^']*)'"
        r"|(?:failed to peer with device|cudaIpc\w+ failed).{0,60}?:\s*(?P<detail>.*)",
        MessageKind(
            "cuda-failed",
            Role.CAUSE,
            "a CUDA call failed<: {error}><: {detail}>",
            0.8,
            "check the GPU's state and the Xid errors in the kernel log",
            "dmesg -T | grep -i xid; nvidia-smi -q",
        ),
    ),
    _sign(
        r"(?:Connection closed by remote peer|Connection reset by peer|connection closed by peer) "
        r"?(?P<peer>[\w.:\[\]<>-]*)"
        r"|(?:[Cc]all to \w+ from|[Rr]ecv from) (?P<peer_2>\S+) failed",
        MessageKind(
            "connection-closed",
            Role.PEER,
            "the peer process closed the connection<, {peer}>: it ended earlier",
            0.35,
            "look for the rank that ended first; its own output has the reason",
            "NCCL_DEBUG=WARN on all ranks",
        ),
    ),
    _sign(
        r"[Cc]onnect(?:ion)? to (?P<peer>\S+) (?:failed|returned|timed out)[ :]*(?P<error>.*)"
        r"|socketPollConnect: [Cc]onnect to (?P<peer_2>\S+) returned (?P<error_2>.*?)(?:, exceeded.*)?$",
        MessageKind(
            "cannot-connect",
            Role.NETWORK,
            "no TCP connection to {peer}<: {error}>: a firewall, a wrong interface, or the peer ended",
            0.65,
            "check the route and port from this host to the peer, and NCCL_SOCKET_IFNAME",
            "ip route get PEER; nc -vz PEER PORT",
        ),
    ),
    _sign(
        r"(?:exceeded error retry count|retries exceeded|[Tt]imeout|[Tt]imed out)(?P<error>.*)",
        MessageKind(
            "nccl-timeout",
            Role.WAITED,
            "NCCL waited too long for another process",
            0.35,
            "look for the rank that ended or hangs",
            _NCCL_DEBUG,
        ),
    ),
    _sign(
        r"Attempt to use communicator before|communicator (?:was revoked|encountered)|in abort state|corrupted "
        r"comm object",
        MessageKind("communicator-unusable", Role.PEER, "the communicator had failed before", 0.2),
    ),
    _sign(
        r"\[(?:Proxy|Service).*|ncclProxy.*|commDestroySync.*|commReclaim.*|socket progress error.*|Poll failed.*",
        MessageKind("proxy-failed", Role.PEER, "NCCL's proxy thread stopped after another error", 0.2),
    ),
    _sign(
        r"(?P<operation>\w+) : (?P<error>.*(?:argument is NULL|is not a valid pointer|invalid (?:type|root"
        r"|reduction).*|"
        r"allocated on device.*))|(?P<error_2>Data type supplied.*|.*should not be called.*|invalid device count.*)",
        MessageKind(
            "wrong-call",
            Role.CAUSE,
            "the program called NCCL wrongly<: {error}>",
            0.9,
            "correct the arguments of this call on this rank",
        ),
    ),
    _sign(
        r"Call to (?P<call>\w+).{0,20}failed[: ]*(?P<error>.*)",
        MessageKind(
            "system-call-failed",
            Role.CAUSE,
            "the system call {call} failed<: {error}>",
            0.65,
            "check the limits of open files, memory and processes on this host",
            "ulimit -a",
        ),
    ),
)
_OTHER = MessageKind(
    "nccl-warning",
    Role.CAUSE,
    "NCCL warned",
    0.3,
    "search NCCL's issues for this message, and run with NCCL's full log",
    _NCCL_DEBUG,
    advisory=True,
)


class NcclWarnings(EventFormat):
    """Reads NCCL's warnings. `NCCL INFO` lines between the parts of a warning are skipped."""

    hints = ("NCCL WARN", _LAST_ERROR)

    def __init__(self) -> None:
        """Start without a "Last error:" line."""
        self.is_open = False

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield one event for a warning of NCCL. In torch's messages, "Last error:" comes before the warning."""
        after_last_error, self.is_open = self.is_open, False
        place = _PLACE.search(line.text) or _BARE.search(line.text)
        if place is not None:
            fields = place.groupdict()
            message = fields["message"]
            pid = fields.get("pid")
            yield _event(line, message, fields.get("host"), int(pid) if pid else None, fields.get("device"))
        elif line.text.endswith(_LAST_ERROR):
            self.is_open = True
        elif _LAST_ERROR in line.text or after_last_error:
            message = line.text.rpartition(_LAST_ERROR)[2]
            event = _event(line, message, None, None, None)
            if event.kind is not _OTHER:
                yield event


FORMAT = NcclWarnings


def _event(line: EventLine, message: str, host: str | None, pid: int | None, device: str | None) -> Event:
    fields: dict[str, Any] = {
        "host": host,
        "pid": pid,
        "printed": message,
        "facts": {"device": int(device)} if device else {},
    }
    for sign in _SIGNS:
        found = sign.pattern.search(message)
        if found is not None:
            return event_of(sign.kind, line, found, **fields)
    return event_of(_OTHER, line, **fields)
