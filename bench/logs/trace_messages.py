"""Codes of the readers of traces, with their words."""

from __future__ import annotations

from bench.core.codes import OptionalPartsCode


class TraceCode(OptionalPartsCode):
    """What a file of a trace lacks, lost or contradicts. Facts: `source`, the file, and those of the template."""

    EMPTY = "trace-empty", "{source} is empty"
    UNKNOWN = "trace-unknown", "{source} is no trace that can be read here"
    UNREADABLE = "trace-unreadable", "{source} cannot be read: {error}"
    CUT = "trace-cut", "{source} ends early: {num:n event} before the cut are used"
    DAMAGED = "trace-damaged", "{source} is damaged: {num:n event} before the damage are used"
    NO_EVENTS = "trace-no-events", "{source} holds no event with a duration"
    PICKLE = "trace-pickle", "{source} is a pickle, which can run code: it is not opened"
    ARCHIVE_LIMIT = "trace-archive-limit", "{source} would expand to more than {most:bytes}: the rest is not read"
    NO_COLLECTIVES = "trace-no-collectives", "{source} holds no collective"
    NO_DEVICE_TRANSFER = (
        "trace-no-transfer",
        "{source}: {num:n collective} have neither a kernel nor a transfer on record (copy engines leave none); when "
        "they ran is unknown",
    )
    UNMATCHED_LAUNCHES = "trace-no-launches", "{source}: the launches of {num:n kernel} were not recorded"
    SEVERAL_DEVICES = "trace-several-devices", "{source}: one process used {num} devices; their work is added together"
