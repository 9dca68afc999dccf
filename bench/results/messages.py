"""Texts for flags, notes, contradictions and reasons. Program logic uses only the codes, never the texts."""

from __future__ import annotations

from collections.abc import Mapping

from bench.core.codes import Code, OptionalPartsCode
from bench.core.record import Flag

# Marks beside figures, the most serious first. The value is the explanation in the legend below every table.
MARKS = {
    "!": "above a hard bound",
    "c": "a rank lacked CPU time",
    "^": "measured on a busy machine",
    "t": "a device was throttled",
    "*": "not converged",
    "?": "no 95 % interval",
    "~": "drift or warm-up",
    "m": "another tool's statistic",
}

# The mark of each flag (empty if the figure is not in doubt) and the meaning of the flag. Flags that a row shows in
# another way are not in this table.
# fmt: off
FLAGS: Mapping[str, tuple[str, str]] = {
    Flag.ABOVE_BOUND:    ("!", "above a hard bound: the bound, the clock or the data is wrong"),
    Flag.NOT_CONVERGED:  ("*", "not converged: the interval of the median is wider than requested"),
    Flag.FEW_SAMPLES:    ("?", "too few independent samples for a 95 % interval"),
    Flag.BAD_SAMPLES:    ("?", "samples are not valid times: no figure"),
    Flag.CLOCK_LIMITED:  ("?", "inexact one-way time: the error of the two clocks is a large part of the time"),
    Flag.DRIFT:          ("~", "the samples drift: the median depends on when it was measured"),
    Flag.WARMUP_RESIDUE: ("~", "the first samples are still warm-up"),
    Flag.IMPORTED:       ("m", "imported from another tool's log: a mean without samples, not a median"),
    Flag.REPORTED:       ("m", "reported by another tool, with the tool's own statistic"),
    Flag.OUTLIERS:       ("", "outliers: samples beyond 10 scaled MAD of the median (kept)"),
    Flag.SYNC_LIMITED:   ("", "start skew: the first and the last rank start more than 5 % of the measured time apart"),
    Flag.SOFTWARE_BOUND: ("", "call overhead: the time is less than 3 times the cost of the call itself"),
    Flag.LAUNCH_BOUND:   ("", "launch-bound: the host spent more than 90 % of the time issuing calls"),
    Flag.SHORT_BATCH:    ("", "short batch: a sample has too few calls, so the pipelined time includes their start"),
    Flag.MAY_OVERLAP:    ("", "pipelined rooted operations may overlap: the figure is a rate, not the time of one "
                              "operation"),
    Flag.RANKS_NOT_KEPT: ("", "the file has only the times of the slowest rank"),
    Flag.CONTRADICTS:    ("", "contradicts another row of this run"),
    Flag.THROUGH_HOST:   ("", "copied through host memory (no peer access): the rate is not the rate of a peer link"),
    Flag.SHARED_GPU:     ("", "ranks share a GPU: the row shows that the code works, not how fast the links are"),
    Flag.STARVED_RANK:   ("c", "a rank lacked CPU time: the times include waiting for this rank"),
    Flag.PARTLY_ALONE:   ("", (
        "partly alone: a copy ended while another copy was still timed, which made the other copy faster"
    )),
    Flag.FAR_MEMORY:     ("", "pages of the host's buffers are not on the NUMA node of the GPU"),
    Flag.THROTTLED:      ("t", "throttled: a GPU or the CPUs slowed down while the row was timed"),
    Flag.BUSY_HOST:      ("^", "busy host: other programs or machines used its CPUs while the row was timed"),
    Flag.REMOVAL_DISAGREES: ("d", (
        "two methods disagree about the cost of a part of the step (clocks inside the step, and steps without the "
        "part): neither result is reliable"
    )),
    Flag.LOGGER_DISAGREES: ("l", (
        "DistributedDataParallel's own logger gives different times of the passes: neither result is reliable"
    )),
    Flag.FLOPS_APART:    ("f", "torch counted more or fewer operations than the formula: MFU is doubtful"),
    Flag.SHARED_HOST:    ("", "measured with --share-hosts: another benchmark may have run on the hosts"),
}
# fmt: on
SHOWN_IN_ROW = frozenset({Flag.INVALID, Flag.MODELLED})


class NoteCode(Code):
    """Notes on a run as a whole. The most urgent notes come first."""

    NOTHING_MEASURED = "nothing-measured", "nothing was measured"
    INVALID = (
        "invalid-rows",
        "INVALID: wrong data arrived in {num} of {of} rows ({places}); the tables show no figure there",
    )
    FAILED = "failed", "FAILED {row}: {reason}"
    WARNING = "warning", "{text}"
    THROTTLED = "throttled", "THROTTLED {gpu} of {host} ({when:list} the rows): {reasons:list}"
    CPUS_THROTTLED = (
        "cpus-throttled",
        "THROTTLED CPUs of {host}: {num:n time} during the rows (too hot)",
    )
    SLOW_RANK = (
        "slow-rank",
        "SLOW: rank {rank} ({place}), {row}: {rate}, {behind:percent} below the median of {num} ranks, robust z "
        "{z:.1f}",
    )
    STARVED_RANK = (
        "starved-rank",
        "STARVED: rank {rank} on {host} got {share:percent} of the CPU time that it needed (other ranks: "
        "{others_share:percent}) in {num:n row}: the times of these rows include the wait for this rank",
    )
    BUSY_HOST = (
        "busy-host",
        "BUSY {host}: {causes:list} while {num:n row} of {of} were measured",
    )
    CONTRADICTION = "contradiction", "CONTRADICTION {sentence}"
    SKIPPED = "skipped", "skipped {row}: {reason}"
    BOUND = "bound", "bound {letter}: busbw in % of {name}, {rate} GB/s ({kind})"
    MARKS = "marks", "marks: {marks:list}"
    MARK = "mark", "{mark}  {meaning} ({counts})"
    NOT_EXPECTED = "not-expected", "no expected figure for {num:n modelled row}: {reasons:list}"
    SINGLE_LAUNCH = (
        "single-launch",
        "single launch: how much launches differ is unknown (make bench LAUNCHES=5)",
    )
    ROWS_NOT_HELD = (
        "rows-not-held",
        "these notes omit {num:,} rows (at most {most:,} rows are kept in memory): see the results file",
    )
    ENQUEUE = (
        "enqueue",
        (
            "call overhead: the host needs {range} us to issue a call; a device that finishes a call sooner waits "
            "for the next call"
        ),
    )
    CALL_OVERHEAD = "call-overhead", "call overhead: {range} us of each time (not subtracted)"
    START_SKEW = "start-skew", "start skew: ranks start an isolated call {range} us apart (median)"
    FLOOR = "floor", "floor: {names:list}, {meaning}"
    REPEATED = (
        "repeated",
        "{num} rows were measured again: the tables show only the new figures; JSON and CSV also contain the old "
        "figures",
    )
    FLAG = "flag", "{meaning} ({counts})"
    ROUNDED_SIZES = (
        "rounded-sizes",
        "the requested sizes {asked:list} are all rounded to {bytes} bytes (whole blocks), so linkbench measured "
        "this size only once",
    )
    SAMPLED_CHECK = (
        "sampled-check",
        "at {sizes:list}, the data check compared only the two ends of the data and every hundredth page",
    )
    STRAGGLERS = (
        "stragglers",
        "share of isolated calls in which a rank was the slowest: {shares}; rotation {rotation} (1: the same rank is "
        "always the slowest)",
    )
    SLOWEST_RANK = "slowest-rank", "rank {rank} was the slowest rank in most samples of {num} of {judged} rows"
    NO_SLOW_RANK = (
        "no-slow-rank",
        "{row}: no rank is slow. The slowest of {num} ranks ({place}) is {behind:percent} below the median (robust z "
        "{z:.1f}). A slow rank would be more than {limit:percent} below the median, with z below -{limit_z:.1f}",
    )
    FRAMEWORK = (
        "framework",
        "cost of the framework, {pattern} {mode}: time over {transport} divided by time over {bare} = {shown:list}",
    )
    SOAK = (
        "soak",
        "soak of {row}: {burst_us} us in the first two seconds, {sustained_us} us in the second half, "
        "sustained / burst {ratio:.3f}",
    )
    PRODUCT = "product", "{dtype} product, order {order}, {mode}{ranks}: {rate} TFLOP/s{peak}"


# One line for several notes of one code: their number, and the first note.
SUMMARIES = {
    NoteCode.FAILED: ("FAILED: {num} rows or jobs", "the first: {row}: {reason}"),
    NoteCode.WARNING: ("{num} warnings", "the first: {text}"),
    NoteCode.THROTTLED: ("THROTTLED: {num} GPUs", "the first: {gpu} of {host}, {reasons:list}"),
    NoteCode.BUSY_HOST: ("BUSY: {num} hosts", "the busiest: {host}, {causes:list}"),
    NoteCode.SLOW_RANK: ("SLOW: {num} ranks", "the slowest: rank {rank} ({place}), {behind:percent} below the median"),
    NoteCode.STARVED_RANK: ("STARVED: {num} ranks", "rank {rank} on {host} most of all: {share:percent}"),
    NoteCode.CONTRADICTION: ("{num} contradictions between rows", "the largest: {sentence}"),
    NoteCode.SKIPPED: ("skipped: {num} kinds of rows", "the first: {row}: {reason}"),
}

# Notes that only --notes shows in full. Without --notes, the last line below a table gives their number with these
# words.
FOLDED = {
    NoteCode.REPEATED: "rows measured again",
    NoteCode.FLAG: "",  # the text of the flag is used
    NoteCode.ROUNDED_SIZES: "rounded sizes",
    NoteCode.SAMPLED_CHECK: "sampled data checks",
    NoteCode.STRAGGLERS: "slowest ranks",
    NoteCode.SLOWEST_RANK: "slowest ranks",
    NoteCode.NO_SLOW_RANK: "comparison of ranks",
    NoteCode.PRODUCT: "rates of products",
    NoteCode.FLOOR: "latency floor",
    NoteCode.ENQUEUE: "call overhead",
}


class HeadlineCode(OptionalPartsCode):
    """The lines of the summary that is printed above the tables of a run."""

    BUSY = (
        "busy",
        "BUSY MACHINE<several?S ({num_hosts}, the busiest {host})>: {causes:list}< ({programs})>; {num} of {of} "
        "figures were measured during that time",
    )
    MACHINE = (
        "machine",
        "<imported?imported; ><modelled?MODELLED, nothing was measured; ><{num_nodes:n node}>"
        "<nodes_unknown?number of nodes not stated><, {instance}>"
        "<: {each}><; {ranks}>",
    )
    TRANSPORT = (
        "transport",
        "{transport}: <best bandwidth {busbw} ({busbw_row})><, {bound_share:percent} of {bound}>"
        "<both?; ><smallest latency {latency} ({latency_row})><, floor {floor}>",
    )
    MODELLED_TRANSPORT = (
        "modelled-transport",
        "{transport}: <best bandwidth ideal: {busbw}><, expected: {expected_busbw}>< ({busbw_row})>"
        "<both?; ><smallest latency ideal: {latency}><, expected: {expected_latency}>< ({latency_row})>",
    )
    STEP = (
        "step",
        "<more?fastest of {num} training steps: ><!more?training step: >{step_s:time} ({job}), including "
        "{exposed_share:percent} exposed exchange and {data_share:percent} data wait<; in {num_late:n step}, the "
        "other ranks wait for one late rank>",
    )
    FEED = (
        "feed",
        "<more?best of {num} reads: ><!more?read: >{rate:rate} ({files}, {read_order}, {state}<, "
        "{num_workers:n worker}>)<, limited by {binds}><, {headroom:.2g} times the demand><, steps wait "
        "{wait_s:time} for a batch><; slowest: {slowest:rate} ({slowest_files}, {slowest_order})>",
    )
    MORE_TRANSPORTS = "more-transports", "{num} more transports: {transports:list}"
    TRUST = (
        "trust",
        "<WRONG DATA in {num_wrong:n row}; ><FAILED: {num_failed:n row or job}; >{num_converged} of {num} figures "
        "converged ({share:percent})<; {num_contradictions:n contradiction} between rows>; {launches:n launch}"
        "<idle?; nothing else ran><load_unknown?; it is not known what else ran>",
    )
    MODELLED = (
        "modelled",
        "none of the {num} figures is measured; ideal: the links alone<num_expected?; expected: the prediction for a "
        "real machine, with its 90 % interval>< (none for {num_without:n figure})>",
    )
    IMPORTED = "imported", "all {num} figures come from another tool's output, which has no samples or intervals"
    NEXT_WRONG = "next-wrong", "next: linkbench report {run} --notes  (which rank received wrong data)"
    NEXT_IMPORTED = "next-imported", "next: linkbench explain {run}  (is this normal, and what may be wrong?)"
    NEXT_FAILED = "next-failed", "next: linkbench run --resume {run}  (measure what failed)"
    NEXT_MODELLED = "next-modelled", "next: {command}  (measure on that cluster)"
    NEXT_SLOW = "next-slow", "next: linkbench diagnose {run}  (which host, GPU or link is slow)"
    NEXT_OPEN = "next-not-converged", "next: {command}  (again, when nothing else runs on this machine)"
    NEXT_SINGLE = "next-single-launch", "next: {command} --launches 5  (how much do launches differ?)"
    NEXT_PUBLISH = "next-publish", "next: linkbench lint {run}  (may these figures be published?)"


class NoExpectationCode(Code):
    """The reasons why linkbench cannot predict a real machine's result for a modelled row.

    In a note, the names of the patterns come before this reason.
    """

    PATTERN = "pattern", "cannot be predicted"
    PART = "part-of-the-ranks", "only collectives of all ranks are predicted"
    DISTURBED = "disturbed", "aggressors run meanwhile"
    LINKS = "unknown-links", "the run does not state the modelled links"
    EVIDENCE = "no-evidence", "no published measurement of such links"
    WORLD = "world", "no prediction for this number of ranks"
    OTHER_WORK = "other-work", "the prediction describes another operation than the row"


class ConflictCode(Code):
    """The reasons why two measured rows cannot both be right."""

    PIPELINED_SLOWER = (
        "pipelined-slower-than-isolated",
        "{rule}: {row} took {seconds:time}, but {other} allows at most {limit_s:time}: back-to-back operations "
        "cannot take longer than the same operations one at a time",
    )
    ONE_WAY_SLOWER = (
        "one-way-slower-than-two-way",
        "{rule}: {row} took {seconds:time}, but {other} allows at most {limit_s:time}: two-way traffic is at most "
        "twice the one-way traffic",
    )
    REPLACEABLE = (
        "slower-than-its-replacement",
        "{rule}: {row} took {seconds:time}, but {other}, which does the same work, allows at most {limit_s:time}: "
        "{how}",
    )


class ReasonCode(Code):
    """The reasons why a row of one run cannot be compared with the other run."""

    MODELLED_AND_MEASURED = "modelled-and-measured", "modelled in {modelled}, measured in {measured}"
    FACTORS_DIFFER = "factors-differ", "{differences:list}"
    WRONG_DATA = "wrong-data", "INVALID: wrong data were received in {side} ({job})"
    NO_TIME_PRINTED = "no-time-printed", "the log of {side} ({job}) has no time"
    BAD_SAMPLES = "bad-samples", "samples are not valid times in {side} ({job})"
    NO_MEDIAN = "no-median", "no median in {side} ({job})"
    FEW_SAMPLES = "few-samples", "only {num} sample in {side} ({job})"
    # for a row that only one run has
    OTHER_FACTORS = "other-factors", "{factors:list}"
    FAILED_THERE = "failed-there", "failed there: {reason}"
    SKIPPED_THERE = "skipped-there", "skipped there: {reason}"


class NoFitCode(Code):
    """The reasons why no model could be fitted to a curve."""

    WRONG_DATA = "wrong-data", "a row received wrong data"
    FEW_SIZES = "few-sizes", "only {num} sizes: a model needs at least {least}"
