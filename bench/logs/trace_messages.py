"""Codes and texts of the messages that the readers of traces give."""

from __future__ import annotations

from bench.core.codes import OptionalPartsCode


class TraceCode(OptionalPartsCode):
    """Remarks about gaps, losses and contradictions in a trace file.

    The facts are `source` (the file) and the other fields of the template.
    """

    EMPTY = "trace-empty", "{source} is empty"
    UNKNOWN = "trace-unknown", "{source} is not a trace in a known format"
    UNREADABLE = "trace-unreadable", "{source} cannot be read: {error}"
    CUT = "trace-cut", "{source} is truncated: linkbench uses {num:n event} from before the cut"
    DAMAGED = "trace-damaged", "{source} is damaged: linkbench uses {num:n event} from before the damage"
    NO_EVENTS = "trace-no-events", "{source} contains no event with a duration"
    PICKLE = "trace-pickle", "{source} is a pickle, which can run code: linkbench does not open it"
    PICKLE_NOT_PLAIN = (
        "trace-pickle-not-plain",
        "{source} is a damaged pickle, or would run code when loaded: linkbench ignores the file",
    )
    ARCHIVE_LIMIT = (
        "trace-archive-limit",
        "{source} would expand to more than {most:bytes}: linkbench reads only the beginning",
    )
    NO_COLLECTIVES = "trace-no-collectives", "{source} contains no collective"
    NO_DEVICE_TRANSFER = (
        "trace-no-transfer",
        "{source}: the times of {num:n collective} are unknown, because no kernel or transfer was recorded for them "
        "(transfers by copy engines are not recorded)",
    )
    UNMATCHED_LAUNCHES = "trace-no-launches", "{source}: the launches of {num:n kernel} were not recorded"
    SEVERAL_DEVICES = (
        "trace-several-devices",
        "{source}: one process used {num} devices; linkbench adds up the work of all devices",
    )
    NOT_NSYS = "trace-not-nsys", "{source} is an SQLite database, but not an export of Nsight Systems"
    NO_KERNELS = "trace-no-kernels", "{source} contains no device kernel; record with `nsys profile -t cuda,nvtx`"
    DATABASE_DAMAGED = "trace-database-damaged", "{source} is damaged ({error}): the rows before the damage are used"
    NO_SIZES = "trace-no-sizes", "{source}: the sizes of {num:n collective} are unknown<; {remedy}>"
    WHOLE_GRAPHS = (
        "trace-whole-graphs",
        "{source} records whole CUDA graphs ({num:n launch}), so their collectives are not visible; record with "
        "`--cuda-graph-trace=node`",
    )
    NO_TIMES = "trace-no-times", "{source} contains no times, only the collectives and their order"
    NO_STARTS = "trace-no-starts", "{source} states how long the operations took, but not when they started"
    NO_GROUP_NAMES = (
        "trace-no-group-names",
        "{source} does not name its {num:n group}: linkbench assumes that all ranks first use the groups in the same "
        "order",
    )
    LOST_RECORDS = (
        "trace-lost-records",
        "{source} lacks {num} of {num_all:n collective} ({share:percent}): the sequence numbers have gaps",
    )
    NO_DURATIONS = (
        "trace-no-durations",
        "{source} states when the program called {num:n collective}, but not when they ran<; {remedy}>",
    )
    ONLY_DURATIONS = (
        "trace-only-durations",
        "{source} states how long {num:n collective} took, but not when they ran<; {remedy}>",
    )
