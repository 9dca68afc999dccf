"""Codes of a job's page, with their words."""

from __future__ import annotations

from bench.core.codes import Code, OptionalPartsCode


class RecordCode(Code):
    """What happens when a job is recorded."""

    NO_NSYS = "no-nsys", "--nsys needs the program nsys on PATH: install NVIDIA Nsight Systems, or leave --nsys out"
    NO_FOLDER = "no-folder", "folder {folder} cannot be made ({why}): name another one with --output DIR"
    NOT_STARTED = "not-started", "{program} cannot be started ({why}): check the command after --"
    KEPT = "kept", "your own value stays: {names:list}"
    NO_TRACES = (
        "no-traces",
        "no rank wrote a trace to {folder}: paste the lines of `linkbench job record` into the program",
    )
    TRACES = "traces", "{num:n trace} in {folder}; read with: linkbench job explain {folder}"


class JobCode(OptionalPartsCode):
    """What is missing in the files of a job, or contradicts."""

    RANK_UNKNOWN = "rank-unknown", "{source} does not state its rank; it is taken as rank {rank}, by the order of files"
    SAME_RANK = "same-rank", "{source} and {other} are both of rank {rank}; the second is left out"
    OTHER_WORLD = (
        "other-world",
        "{source} is of a job of {world_size} ranks, the others of {num_ranks}: these files are of different jobs; it "
        "is left out",
    )
    MISSING_RANKS = (
        "missing-ranks",
        "{num} of {num_ranks} ranks have no file ({ranks:list 8}): a rank without a file may be the late one",
    )
    ONE_RANK = (
        "one-rank",
        "only rank {rank} has a file: waiting for late ranks cannot be separated from the exchange itself",
    )
    NO_COLLECTIVES = "no-collectives", "no collective is recorded: this is one process, or no trace of training"
    MISMATCH = (
        "mismatch",
        "group {group}: the ranks' collectives differ from number {place} on (rank {rank}: {own}; rank {other}: "
        "{theirs}); from there on they are not compared",
    )
    NO_MATCH = (
        "no-match",
        "group {group}: rank {rank} recorded {num} collectives and rank {other} {other_num}, and nothing tells which "
        "belong together; they are not compared",
    )
    LOST = "lost-collectives", "group {group}: rank {rank} lost {num:n record} of collectives"
    NOT_ALIGNED = (
        "not-aligned",
        "the clocks of ranks {ranks:list 8} cannot be aligned: they share no collective with the others",
    )
    DRIFT = "drift", "the clock of rank {rank} drifts by {ppm:.0f} microseconds per second; this is corrected"
    NO_STEPS = "no-steps", "no step is marked (ProfilerStep#, NVTX range step): all {num:n second} are one step"
    OTHER_STEPS = (
        "other-steps",
        "the ranks recorded different steps ({own} and {theirs}); only steps that all ranks have are explained",
    )


class ReplayCode(Code):
    """What of a job's traces cannot be replayed."""

    UNKNOWN_OPS = "unknown-ops", "{num:n exchange} are left out: nothing here does what {names:list 4} did"
    NO_SIZES = (
        "no-sizes",
        "{num:n exchange} are left out, because the traces do not state their sizes: record with record_shapes=True",
    )
    NO_MEMBERS = "no-members", "{num:n exchange} are left out, because fewer than two of their ranks are known"
    OUTSIDE_STEPS = "outside-steps", "no exchange lies within a marked step: record whole steps"
