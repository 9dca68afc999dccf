"""Define the texts of the crash page. The texts for each kind of message are in `logs/events/`."""

from __future__ import annotations

from bench.core.codes import OptionalPartsCode
from bench.logs.failure_events import MessageKind, Role
from bench.logs.messages import COURSE


class CrashCode(OptionalPartsCode):
    """Messages about what followed from the failure, and about what the logs do not show."""

    CONSEQUENCE = (
        "consequence",
        "<{who}: >{what}< ({count} messages)> ({where})",
    )
    SURVIVED = (
        "survived",
        "<{who}: >{what}< ({count} messages)> ({where})<; the job went on for {num_steps:n step} "
        "afterwards><succeeded?; the job ended with success afterwards><had_ended?, after the job had ended with "
        "success><restarted?; a launcher restarted the job afterwards><recovered?; the port became active again>",
    )
    NO_FAILURE = (
        "no-failure",
        "<!has_course?{sources:list 3}: linkbench found no result and no failure, only {shown:list 5}.>"
        f"<has_course?no failure of the job in {{sources:list 3}}; >{COURSE}"
        "<has_course?. linkbench also found {shown:list 5}.><!success_line? Give explain the complete output, or the "
        "dumps of all ranks at once.>",
    )
    DUMPS_MISSING = (
        "dumps-missing",
        "The dump of {who} is missing: the job did not write the dump, or the dump was not given to explain.",
    )
    WAITED_FOR_UNKNOWN = (
        "waited-for-unknown",
        "The log does not show which rank never arrived. Rerun with TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
        "TORCH_FR_BUFFER_SIZE=2000 (before torch 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE=2000), then explain the folder of "
        "the dumps.",
    )
    NOT_ALL_REPORTED = (
        "not-all-reported",
        "The logs name {num_seen} of {num_ranks} ranks: give the logs of all ranks.",
    )
    END_UNKNOWN = (
        "end-unknown",
        "The log does not show which end of the connection failed. To find out, rerun with NCCL_DEBUG=WARN and keep "
        "the output of all ranks.",
    )
    RANK_UNKNOWN = (
        "rank-unknown",
        "The line does not name its rank: let the launcher mark each line with its rank (torchrun --tee 3, mpirun "
        "--tag-output, srun --label).",
    )
    REASON_UNKNOWN = (
        "reason-unknown",
        "The log does not show why rank {rank} ended. To find out, read the output of this rank (torchrun --log-dir "
        "DIR --tee 3).",
    )
    CALL_UNKNOWN = (
        "call-unknown",
        "The log does not show which call failed: set NCCL_DEBUG=INFO.",
    )


RECORDED_MISMATCH = MessageKind(
    "recorded-mismatch",
    Role.CAUSE,
    "operation {seq}< of group {group}> differs between ranks: {calls}",
    0.95,
    "make all ranks take the same branch: compare the code before this operation on these ranks",
)
RECORDED_LAG = MessageKind(
    "ranks-behind",
    Role.ABSENT,
    "{who} never called operation {seq}< ({operation})>< of group {group}>, but {num_waiting:n other rank} did",
    0.85,
    "read the logs of these ranks, or their stacks while the job hangs",
    "py-spy dump --pid PID",
)
RECORDED_STUCK = MessageKind(
    "all-ranks-inside",
    Role.NETWORK,
    "all {num_ranks} recorded ranks called operation {seq} ({operation}) of group {group} in the same way, but none "
    "finished it: the network or the library hangs",
    0.6,
    "test the network between these hosts, and read NCCL's warnings",
    "NCCL_DEBUG=WARN; ncclras -v",
)
WITHOUT_DUMP = MessageKind(
    "ranks-without-dump",
    Role.ABSENT,
    "{who} wrote no dump, and the records of the other {num_waiting} of {num_ranks} ranks agree up to operation {seq} "
    "({operation})",
    0.5,
    "read the logs of these ranks: they ended before the other ranks, or hung and could not write a dump",
    "py-spy dump --pid PID",
)
SILENT = MessageKind(
    "silent-ranks",
    Role.ABSENT,
    "{who} reported nothing while {num_waiting} of {num_ranks} ranks timed out in the same operation",
    0.5,
    "first read the logs of these ranks, or their stacks while the job hangs",
    "py-spy dump --pid PID",
)
ALL_WAITED = MessageKind(
    "all-ranks-inside",
    Role.NETWORK,
    "all {num_ranks} ranks called operation {seq} ({operation}), but none finished it: the network or the library "
    "hangs",
    0.6,
    "test the network between these hosts, and read NCCL's warnings",
    "NCCL_DEBUG=WARN; ncclras -v",
)
CALLS_DIFFER = MessageKind(
    "timed-out-calls-differ",
    Role.WAITED,
    "ranks timed out in different operations with the number {seq}: {calls}; either they call operations in a "
    "different order or with different sizes, or they belong to different groups",
    0.45,
    "compare the dumps of all ranks: explain the folder that holds them",
    "TORCH_FR_BUFFER_SIZE=2000; TORCH_DISTRIBUTED_DEBUG=DETAIL",
)
LEFT_BEHIND = MessageKind(
    "ranks-left-behind",
    Role.WAITED,
    "{who} did not finish operation {seq}< ({operation})>, which {num_ahead:n other rank} finished: a GPU or the "
    "network hangs, or the ranks called different operations before",
    0.5,
    "compare the dumps of all ranks: explain the folder that holds them",
    "TORCH_FR_BUFFER_SIZE=2000; TORCH_DISTRIBUTED_DEBUG=DETAIL",
)
ALL_TIMED_OUT = MessageKind(
    "all-ranks-waited",
    Role.NETWORK,
    "all {num_ranks} ranks waited for each other: they called different operations, or the network hangs",
    0.5,
    "compare the dumps of all ranks: explain the folder that holds them",
    "TORCH_FR_BUFFER_SIZE=2000; TORCH_DISTRIBUTED_DEBUG=DETAIL",
)
FINISHED_LESS = MessageKind(
    "ranks-finished-less",
    Role.ABSENT,
    "according to NCCL Inspector, {who} had not finished operation {seq} of communicator {group}, but "
    "{num_waiting:n other rank} had",
    0.35,
    "compare the flight recorder's dumps, which are exact",
    "TORCH_FR_BUFFER_SIZE=2000",
)
HUNG_AT_START = MessageKind(
    "hung-at-start",
    Role.WAITED,
    "the log ends during NCCL's initialisation: {stages}",
    0.4,
    "check that the hosts reach each other over the interface and the NICs that the log names",
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET; ping; ib_write_bw",
)
HUNG_AFTER_START = MessageKind(
    "hung-after-start",
    Role.WAITED,
    "all {num_processes} processes finished NCCL's initialisation, but the first operation never ended",
    0.4,
    "test the network between these hosts",
    "NCCL_DEBUG=WARN; ncclras -v",
)
