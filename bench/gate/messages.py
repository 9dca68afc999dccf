"""Define why a gate fails: names of failures, a code for each precise cause, and message templates.

`GateFailure` has the names. There are few names, and they rarely change, so CI systems can search for them.
docs/gate.md explains each name. `FaultCode` has a code for each precise cause, and each code belongs to one name.
Program logic and tests read only codes and facts, so the templates here may change freely.
"""

from __future__ import annotations

from enum import unique
from typing import Self

from bench.core.codes import Code


@unique
class GateFailure(Code):
    """The names of failures, each with its meaning."""

    # the run as a whole
    EMPTY_RUN = "empty-run", "nothing was measured"
    UNREADABLE_RUN = "unreadable-run", "the run's files cannot be read"
    NO_PLAN = (
        "no-plan",
        "the run has no plan, so the gate cannot detect all missing rows",
    )
    FAILED_JOB = (
        "failed-job",
        "a job or row failed, was interrupted or left no results (this can happen even with exit code 0)",
    )
    TRUNCATED_FILE = "truncated-file", "a results file is truncated: rows may be lost"
    TRUNCATED_IMPORT = "truncated-import", "an imported log is truncated, empty or unreadable: rows may be lost"
    WRONG_WORLD = (
        "wrong-world",
        "ranks, nodes, hosts or GPUs differ from the plan or `expect`, or a host has fewer GPUs than its instance type",
    )
    WRONG_CLUSTER = "wrong-cluster", "the cluster, instance type or GPU is unknown, or not the expected one"
    STALE = "stale", "the figures are older than `max_age`, or their age is unknown"
    SLOW_PART = "slow-part", "a host, NIC or link has less than 0.9 of its peers' bandwidth"
    UNDECIDED_PART = (
        "undecided-part",
        "the measurements do not show whether a host, NIC or link is slow",
    )
    # rows that must be there
    MISSING_ROWS = "missing-rows", "rows that a rule or the plan requires are missing"
    SIZE_SKIPPED = "size-skipped", "a requested size was skipped"
    WRONG_FABRIC = "wrong-fabric", "the transport or network is unknown, or not the required one"
    NO_BASELINE = (
        "no-baseline",
        "there is no baseline row to compare with, or the row and its baseline cannot be compared",
    )
    # what is wrong with a row
    IMPORTED = (
        "imported",
        "the row is from another tool's log; a rule accepts such rows only with `imported: true`",
    )
    INCONSISTENT = "inconsistent", "the row contradicts its header: it was edited, or a broken program wrote it"
    MODELLED = "modelled", "the row was modelled, not measured"
    WRONG_DATA = "wrong-data", "wrong data arrived"
    UNVERIFIED = "unverified", "the data was not checked"
    NOT_A_NUMBER = "not-a-number", "the figure is missing, not a number, or infinite"
    ZERO = "zero", "the figure is zero or negative"
    ONE_RANK = "one-rank", "only one rank took part: nothing crossed a link"
    SHARED_GPU = (
        "shared-gpu",
        "several ranks shared a GPU: the row shows that the code works, not how fast the links are",
    )
    SHARED_HOST = "shared-host", "measured with --share-hosts: another benchmark may have run on the hosts"
    THROUGH_HOST = (
        "through-host",
        "the data went through host memory, because the two GPUs cannot reach each other directly",
    )
    TOO_FEW_SAMPLES = "too-few-samples", "fewer samples than the rule's `samples`"
    NO_INTERVAL = "no-interval", "too few independent samples for a 95 % interval"
    NOT_CONVERGED = "not-converged", "sampling reached its limit before the interval was narrow enough"
    ABOVE_BOUND = "above-bound", "above a physical limit: the bound, the clock or the data is wrong"
    CONTRADICTS = "contradicts", "this row contradicts another row, so one of these rows is wrong"
    TAIL_NOT_KNOWN = "tail-not-known", "too few samples for this percentile (p95 needs 72 samples, p99 needs 368)"
    # what is wrong with the figure
    NO_BOUND = "no-bound", "the rule requires a share of the row's bound, but no bound is known"
    NO_REFERENCE = "no-reference", "the rule requires a share of a published figure, but no published figure is known"
    TOO_LOW = "too-low", "below the smallest value that the rule accepts"
    TOO_HIGH = "too-high", "above the largest value that the rule accepts"
    SLOWER = "slower", "significantly slower than the baseline"
    INCONCLUSIVE = "inconclusive", "the evidence does not show whether the row is slower than the baseline"
    TOO_FEW_LAUNCHES = "too-few-launches", "at least one of the two compared runs has fewer than 5 launches"
    # the run as a publication
    NOT_PUBLISHABLE = "not-publishable", "the run breaks a rule listed under `publish:`"


FAILURES = {str(failure): failure.template for failure in GateFailure}

# Failures that a rule may allow; all other failures always fail the gate.
ALLOWED = (
    GateFailure.UNVERIFIED,
    GateFailure.ONE_RANK,
    GateFailure.TOO_FEW_SAMPLES,
    GateFailure.NO_INTERVAL,
    GateFailure.NOT_CONVERGED,
    GateFailure.CONTRADICTS,
    GateFailure.THROUGH_HOST,
    GateFailure.SHARED_HOST,
)

_GPUS_EXPECTED = "the rules expect {expected:n GPU} per node, but "


@unique
class FaultCode(Code):
    """The codes of exact causes.

    Each member has three values: the code, the name of its failure, and the message template.
    """

    failure: GateFailure

    def __new__(cls, value: str, failure: GateFailure, template: str) -> Self:
        """Create a member of the enum. `failure`: the name of the failure to which the code belongs."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.failure, member.template = failure, template
        return member

    # the run as a whole
    NO_ROWS = "no-rows", GateFailure.EMPTY_RUN, "no row was measured"
    RUN_UNREADABLE = "run-unreadable", GateFailure.UNREADABLE_RUN, "{error}"
    PLAN_ABSENT = (
        "plan-absent",
        GateFailure.NO_PLAN,
        "the results have no plan.json next to them: give `gate` the complete folder of the run",
    )
    LOG_ABSENT = "log-absent", GateFailure.FAILED_JOB, "{source} was imported, but the run has no rows from this log"
    ROW_FAILED = "row-failed", GateFailure.FAILED_JOB, "{text}"
    ROW_FAILED_ON_HOST = "row-failed-on-host", GateFailure.FAILED_JOB, "{text} (host {host})"
    JOB_FAILED = "job-failed", GateFailure.FAILED_JOB, "{text}"
    JOB_EXITED = "job-exited", GateFailure.FAILED_JOB, "ended with exit code {exit_code}"
    JOB_PLANNED_ONLY = (
        "job-planned-only",
        GateFailure.FAILED_JOB,
        "the job was planned, but has no results, and no reason is recorded",
    )
    JOB_WITHOUT_TRACE = (
        "job-without-trace",
        GateFailure.FAILED_JOB,
        "the job has no results, and no reason is recorded",
    )
    JOB_END_UNKNOWN = (
        "job-end-unknown",
        GateFailure.FAILED_JOB,
        "the run ended while this job was running, so the job's result is unknown",
    )
    LOG_FAILED = "log-failed", GateFailure.FAILED_JOB, "the log of this job ended with status {status}"
    LOG_TRUNCATED = "log-truncated", GateFailure.TRUNCATED_IMPORT, "the log of this job ended with status {status}"
    LOG_ROWS_LOST = "log-rows-lost", GateFailure.TRUNCATED_IMPORT, "{text}"
    LOG_UNREAD = "log-unread", GateFailure.TRUNCATED_IMPORT, "{text}"
    FILE_DAMAGED = "file-damaged", GateFailure.TRUNCATED_FILE, "{text}"

    # the world, the hosts, the age
    WORLD_NOT_AS_PLANNED = (
        "world-not-as-planned",
        GateFailure.WRONG_WORLD,
        "planned for {planned_nodes:n node} with {planned_ranks_per_node:n rank} each, but measured on "
        "{num_nodes:n node} with {ranks_per_node:n rank} each",
    )
    HOSTS_UNKNOWN = (
        "hosts-unknown",
        GateFailure.WRONG_WORLD,
        "the results file does not say on which hosts the job's ranks ran",
    )
    HOSTS_FEWER = (
        "hosts-fewer",
        GateFailure.WRONG_WORLD,
        "the header states {num_nodes:n node}, but the ranks ran only on {hosts:list}",
    )
    NUM_NODES_UNEXPECTED = (
        "num-nodes-unexpected",
        GateFailure.WRONG_WORLD,
        "the rules expect {expected:n node}, but the largest job ran on {found}",
    )
    NUM_RANKS_UNEXPECTED = (
        "num-ranks-unexpected",
        GateFailure.WRONG_WORLD,
        "the rules expect {expected:n rank}, but the largest job had {found}",
    )
    HOSTS_NOT_MEASURED = "hosts-not-measured", GateFailure.WRONG_WORLD, "nothing was measured on {hosts:list 4}"
    GPUS_LOST = (
        "gpus-lost",
        GateFailure.WRONG_WORLD,
        "{instance} has {num_gpus} GPUs, but the driver of {host} shows {shown}",
    )
    GPUS_LOST_UNREPORTED = (
        "gpus-lost-unreported",
        GateFailure.WRONG_WORLD,
        "{instance} has {num_gpus} GPUs, but jobs used at most {used} on {host}; the driver there does not report "
        "the number of GPUs",
    )
    GPUS_LOST_CONFINED = (
        "gpus-lost-confined",
        GateFailure.WRONG_WORLD,
        "{instance} has {num_gpus} GPUs, but jobs used at most {used} on {host}; each rank sees only some of the "
        "GPUs there",
    )
    GPUS_EXPECTED_OF_LOG = (
        "gpus-expected-of-log",
        GateFailure.WRONG_WORLD,
        _GPUS_EXPECTED + "logs of other tools do not state this number: remove `gpus_per_node` from the rules",
    )
    GPUS_EXPECTED_UNSTATED = (
        "gpus-expected-unstated",
        GateFailure.WRONG_WORLD,
        _GPUS_EXPECTED + "bench.yaml does not state this number: give the cluster `instance:` or `ranks_per_node:`",
    )
    GPUS_EXPECTED_STATED = (
        "gpus-expected-stated",
        GateFailure.WRONG_WORLD,
        _GPUS_EXPECTED + "bench.yaml says {stated}",
    )
    GPUS_EXPECTED_SHOWN = (
        "gpus-expected-shown",
        GateFailure.WRONG_WORLD,
        _GPUS_EXPECTED + "the driver of {host} shows {shown}",
    )
    GPUS_EXPECTED_UNREPORTED = (
        "gpus-expected-unreported",
        GateFailure.WRONG_WORLD,
        _GPUS_EXPECTED + "the driver of {host} does not report the number of GPUs",
    )
    GPUS_EXPECTED_CONFINED = (
        "gpus-expected-confined",
        GateFailure.WRONG_WORLD,
        _GPUS_EXPECTED + "jobs used at most {used} on {host}; each rank sees only some of the GPUs there",
    )
    GPUS_EXPECTED_MEASURED = (
        "gpus-expected-measured",
        GateFailure.WRONG_WORLD,
        _GPUS_EXPECTED + "at most {measured} were measured",
    )
    CLUSTER_UNEXPECTED = (
        "cluster-unexpected",
        GateFailure.WRONG_CLUSTER,
        "cluster {expected} is expected, but {found} was used",
    )
    CLUSTER_UNKNOWN = (
        "cluster-unknown",
        GateFailure.WRONG_CLUSTER,
        "cluster {expected} is expected, but the cluster is unknown",
    )
    INSTANCE_UNEXPECTED = (
        "instance-unexpected",
        GateFailure.WRONG_CLUSTER,
        "instance type {expected} is expected, but {found} was used",
    )
    INSTANCE_UNKNOWN = (
        "instance-unknown",
        GateFailure.WRONG_CLUSTER,
        "instance type {expected} is expected, but the type is unknown",
    )
    GPU_UNEXPECTED = (
        "gpu-unexpected",
        GateFailure.WRONG_CLUSTER,
        "GPUs {expected} are expected, but the machine has {found:list}",
    )
    GPU_UNKNOWN = "gpu-unknown", GateFailure.WRONG_CLUSTER, "GPUs {expected} are expected, but the GPUs are unknown"
    GPU_NOT_OF_INSTANCE = (
        "gpu-not-of-instance",
        GateFailure.WRONG_CLUSTER,
        "instance type {instance} has {expected} GPUs, but the machine has {found:list}",
    )
    TRANSPORT_UNEXPECTED = (
        "transport-unexpected",
        GateFailure.WRONG_FABRIC,
        "transport {expected} is expected, but {found} was used",
    )
    TRANSPORT_OTHER = (
        "transport-other",
        GateFailure.WRONG_FABRIC,
        "{expected:list} is required, but {pattern} was measured over {found:list}",
    )
    NETWORK_OTHER = (
        "network-other",
        GateFailure.WRONG_FABRIC,
        "network {expected} is required, but {found:list} was used",
    )
    NETWORK_UNKNOWN = (
        "network-unknown",
        GateFailure.WRONG_FABRIC,
        "network {expected} is required, but the network is unknown",
    )
    START_UNKNOWN = (
        "start-unknown",
        GateFailure.STALE,
        "the age of the figures is unknown, because their start time, {started!r}, is missing or invalid",
    )
    TOO_OLD = "too-old", GateFailure.STALE, "measured {age_s:time} ago, but the rules allow at most {most_s:time}"
    IN_FUTURE = "in-future", GateFailure.STALE, "the start time {started} is in the future: one of the clocks is wrong"

    # pairs
    PART_SLOW = "part-slow", GateFailure.SLOW_PART, "{kind} {part}: {evidence}"
    LADDER_TOO_SHORT = (
        "ladder-too-short",
        GateFailure.UNDECIDED_PART,
        "the first test of pairs is missing {num_rounds:n round}, so {hosts:list 8} may be slow",
    )
    SUSPICIONS_OPEN = (
        "suspicions-open",
        GateFailure.UNDECIDED_PART,
        "{num:n suspected part} could not be checked ({parts:list 8})",
    )
    PAIRS_NOT_MEASURED = "pairs-not-measured", GateFailure.UNDECIDED_PART, "no pair of {hosts:list 8} was measured"
    PAIRS_CLEAR_NONE = (
        "pairs-clear-none",
        GateFailure.UNDECIDED_PART,
        "the measured pairs do not show whether {hosts:list 8} are healthy",
    )
    PAIRS_ABSENT = (
        "pairs-absent",
        GateFailure.MISSING_ROWS,
        "no pair of ranks was measured with correct data: run the scenario `links` or `acceptance`",
    )
    PAIRS_MODELLED = (
        "pairs-modelled",
        GateFailure.MISSING_ROWS,
        "the rows for pairs of ranks ({num_rows}) are all modelled, not measured: run the scenario `links` or "
        "`acceptance`",
    )

    # rows that must be there
    PATTERN_ABSENT = "pattern-absent", GateFailure.MISSING_ROWS, "no row of {pattern} matches the rule"
    SIZE_ABSENT = "size-absent", GateFailure.MISSING_ROWS, "size {size:size} is missing"
    JOB_WITHOUT_ROWS = "job-without-rows", GateFailure.MISSING_ROWS, "the job left no rows"
    ROW_ABSENT = "row-absent", GateFailure.MISSING_ROWS, "the {mode} row of {size:size} is missing for group {group}"
    GROUPS_ABSENT = (
        "groups-absent",
        GateFailure.MISSING_ROWS,
        "the {mode} row of {size:size} is missing for at least one group",
    )
    GROUPS_TOO_FEW = (
        "groups-too-few",
        GateFailure.MISSING_ROWS,
        "the run has {num_groups:n group}, but `weakest` needs at least {least} groups",
    )
    NOTHING_JUDGED = "nothing-judged", GateFailure.MISSING_ROWS, "no row was judged"
    ROW_SKIPPED = "row-skipped", GateFailure.SIZE_SKIPPED, "{reason}"
    SIZES_THINNED = (
        "sizes-thinned",
        GateFailure.SIZE_SKIPPED,
        "the plan skips sizes to stay within its time budget: list the sizes that you need, or raise the time budget",
    )
    LOG_SIZE_ABSENT = (
        "log-size-absent",
        GateFailure.SIZE_SKIPPED,
        "the log has no row of {size:size}, although the tool was asked for this size",
    )

    # a row that contradicts its header
    VERIFIED_ODD = (
        "verified-odd",
        GateFailure.INCONSISTENT,
        "`verified` is {value!r}, but must be true, false or null",
    )
    NUM_WRONG_ODD = (
        "num-wrong-odd",
        GateFailure.INCONSISTENT,
        "`num_wrong` is {value!r}, but must be a number of elements",
    )
    CASE_OF_OTHER_PATTERN = (
        "case-of-other-pattern",
        GateFailure.INCONSISTENT,
        "the header names the pattern {pattern}, but the case in the header is missing or unreadable, or has another "
        "pattern",
    )
    GROUP_NOT_OF_CASE = "group-not-of-case", GateFailure.INCONSISTENT, "the case in the header has no group {group!r}"
    NUM_RANKS_ODD = (
        "num-ranks-odd",
        GateFailure.INCONSISTENT,
        "the row states {num_ranks} ranks, but group {group} has {expected}",
    )
    LISTS_OF_RANKS_ODD = (
        "lists-of-ranks-odd",
        GateFailure.INCONSISTENT,
        "the row has {lists} of {num_lists} ranks, but {num_ranks} ranks took part",
    )
    SAMPLE_ODD = (
        "sample-odd",
        GateFailure.INCONSISTENT,
        "a sample of rank {member} of the group is not a valid time",
    )
    SIZE_NOT_OF_CASE = (
        "size-not-of-case",
        GateFailure.INCONSISTENT,
        "the row's requested sizes are [{sizes:list}], but a row needs at least one size, and the header's case must "
        "have each size",
    )
    PAYLOAD_ODD = (
        "payload-odd",
        GateFailure.INCONSISTENT,
        "the row states {payload_bytes} bytes, but the requested {requested_bytes} bytes give {expected} bytes",
    )
    NUM_NODES_ODD = (
        "num-nodes-odd",
        GateFailure.INCONSISTENT,
        "the row states {num_nodes} nodes, but the ranks of group {group} ran on {expected}",
    )
    FACTOR_ODD = (
        "factor-odd",
        GateFailure.INCONSISTENT,
        "{factor} is {value}, but must be {expected} with {num_ranks} ranks and {payload_bytes} bytes",
    )

    # a row that cannot be used as evidence
    ROW_IMPORTED = (
        "row-imported",
        GateFailure.IMPORTED,
        "the row is a single figure from another tool's log, so its spread is unknown",
    )
    ROW_MODELLED = "row-modelled", GateFailure.MODELLED, "nothing was measured"
    ELEMENTS_WRONG = "elements-wrong", GateFailure.WRONG_DATA, "{num_wrong} elements were wrong"
    SOME_WRONG = "some-wrong", GateFailure.WRONG_DATA, "some elements were wrong"
    GPU_SHARED = "gpu-shared", GateFailure.SHARED_GPU, "several ranks shared a GPU"
    HOST_SHARED = "host-shared", GateFailure.SHARED_HOST, "another benchmark may have run on the hosts"
    SAMPLES_TOO_FEW_FOR_TAIL = (
        "samples-too-few-for-tail",
        GateFailure.TAIL_NOT_KNOWN,
        "{metric} needs {least} samples, but the row has {num_samples}",
    )
    FIGURE_PRINTED_ODD = "figure-printed-odd", GateFailure.NOT_A_NUMBER, "{text}"
    FIGURE_ABSENT = "figure-absent", GateFailure.NOT_A_NUMBER, "{metric} is missing"
    FIGURE_ABSENT_FLAGGED = (
        "figure-absent-flagged",
        GateFailure.NOT_A_NUMBER,
        "{metric} is missing ({flags:list})",
    )
    FIGURE_ODD = "figure-odd", GateFailure.NOT_A_NUMBER, "{metric} is {value}"
    INTERVAL_ODD = "interval-odd", GateFailure.NOT_A_NUMBER, "the interval is not finite"
    FIGURE_ZERO = "figure-zero", GateFailure.ZERO, "{metric} is {value:g}"
    RANKS_UNKNOWN = (
        "ranks-unknown",
        GateFailure.ONE_RANK,
        "the number of ranks is unknown: give --num-ranks to `linkbench import`",
    )
    RANK_ALONE = "rank-alone", GateFailure.ONE_RANK, "only one rank took part: nothing crossed a link"
    DATA_UNCHECKED = "data-unchecked", GateFailure.UNVERIFIED, "the data was not checked"
    COPIED_THROUGH_HOST = (
        "copied-through-host",
        GateFailure.THROUGH_HOST,
        "the two GPUs cannot reach each other directly, so the driver copied through host memory",
    )
    ROW_CONTRADICTS = (
        "row-contradicts",
        GateFailure.CONTRADICTS,
        "this row contradicts another row, so one of these rows is wrong",
    )
    SAMPLES_TOO_FEW = (
        "samples-too-few",
        GateFailure.TOO_FEW_SAMPLES,
        "the row has {num_samples} samples, but the rule requires {least}",
    )
    INTERVAL_ABSENT = (
        "interval-absent",
        GateFailure.NO_INTERVAL,
        "the row has {num_samples} samples, too few for a 95 % interval",
    )
    ENDED_EARLY = (
        "ended-early",
        GateFailure.NOT_CONVERGED,
        "sampling reached its limit ({stop_reason}) before the interval was narrow enough",
    )
    OVER_BOUND = (
        "over-bound",
        GateFailure.ABOVE_BOUND,
        "the figure is {fraction:.2f} times its bound, {bound}",
    )
    OVER_UNKNOWN_BOUND = (
        "over-unknown-bound",
        GateFailure.ABOVE_BOUND,
        "the figure is above its bound, {bound}",
    )

    # a figure that misses its demand
    BOUND_UNKNOWN = (
        "bound-unknown",
        GateFailure.NO_BOUND,
        "no bound is known: set `instance:` or `links:` of the cluster in bench.yaml; for a log, give `linkbench "
        "import` --instance, --num-ranks and --num-nodes",
    )
    REFERENCE_UNKNOWN = (
        "reference-unknown",
        GateFailure.NO_REFERENCE,
        "no published figure is known for this hardware",
    )
    BELOW_DEMAND = "below-demand", GateFailure.TOO_LOW, "{metric} must be {demand}"
    ABOVE_DEMAND = "above-demand", GateFailure.TOO_HIGH, "{metric} must be {demand}"
    BASELINE_NOT_NAMED = (
        "baseline-not-named",
        GateFailure.NO_BASELINE,
        "no baseline is named: give `baseline:` in the rules file, or --baseline",
    )
    BASELINE_IS_THIS_RUN = "baseline-is-this-run", GateFailure.NO_BASELINE, "the baseline is this run itself"
    BASELINE_UNREADABLE = "baseline-unreadable", GateFailure.NO_BASELINE, "{error}"
    BASELINE_REFUSED = "baseline-refused", GateFailure.NO_BASELINE, "{error}"
    BASELINE_LACKS_ROW = "baseline-lacks-row", GateFailure.NO_BASELINE, "the baseline has no such row"
    ROW_NOT_COMPARABLE = "row-not-comparable", GateFailure.NO_BASELINE, "{reason}"
    COMPARED_SLOWER = "compared-slower", GateFailure.SLOWER, "slower: the time is {ratio:.3f} times the baseline's"
    COMPARED_INCONCLUSIVE = (
        "compared-inconclusive",
        GateFailure.INCONCLUSIVE,
        "inconclusive: the time is {ratio:.3f} times the baseline's",
    )
    COMPARED_EXPLORATORY = (
        "compared-exploratory",
        GateFailure.TOO_FEW_LAUNCHES,
        "exploratory, because there are too few launches: the time is {ratio:.3f} times the baseline's",
    )
    COMPARED_MODELLED = (
        "compared-modelled",
        GateFailure.MODELLED,
        "modelled, not measured: the time is {ratio:.3f} times the baseline's",
    )
    COMPARED_IMPORTED = (
        "compared-imported",
        GateFailure.IMPORTED,
        "no verdict, because the row is imported from a log: the time is {ratio:.3f} times the baseline's",
    )

    # what a publication lacks (gate/publication.py)
    REPORTED_RATIO_ALONE = (
        "reported-ratio-alone",
        GateFailure.NOT_PUBLISHABLE,
        "the other tool's {statistic} is a ratio, but the numerator and the denominator are missing",
    )
    JOB_WITHOUT_REASON = (
        "job-without-reason",
        GateFailure.NOT_PUBLISHABLE,
        "the job was planned, but has no results, and no reason is recorded",
    )
    GROUPS_UNKNOWN = (
        "groups-unknown",
        GateFailure.NOT_PUBLISHABLE,
        "the job's header does not show which groups of ranks should have been measured",
    )
    ROW_WITHOUT_REASON = (
        "row-without-reason",
        GateFailure.NOT_PUBLISHABLE,
        "the requested row is missing, and no reason is recorded",
    )
    LADDER_WITHOUT_ROWS = (
        "ladder-without-rows",
        GateFailure.NOT_PUBLISHABLE,
        "no pair has the requested row of this size, and no reason is recorded",
    )
    SKIPPED_WITHOUT_REASON = "skipped-without-reason", GateFailure.NOT_PUBLISHABLE, "skipped without a reason"
    PLAN_SKIPPED_WITHOUT_REASON = (
        "plan-skipped-without-reason",
        GateFailure.NOT_PUBLISHABLE,
        "the plan omits {entry} without a reason",
    )
    HOST_PARTS_UNKNOWN = (
        "host-parts-unknown",
        GateFailure.NOT_PUBLISHABLE,
        "the number of CPUs and GPUs of {host} is not recorded",
    )
    REDUCTION_ODD = (
        "reduction-odd",
        GateFailure.NOT_PUBLISHABLE,
        "the samples were reduced by {reduction!r}, but only a median or an arithmetic mean is accepted",
    )
    REPORTED_RATE_ODD = (
        "reported-rate-odd",
        GateFailure.NOT_PUBLISHABLE,
        "the other tool's rate differs from its bytes divided by its time, or the time is missing",
    )
    REPORTED_BUSBW_ODD = (
        "reported-busbw-odd",
        GateFailure.NOT_PUBLISHABLE,
        "the other tool's busbw differs from its algbw times the bus factor, or the algbw is missing",
    )
    REPORTED_AVERAGE_OF_RATES = (
        "reported-average-of-rates",
        GateFailure.NOT_PUBLISHABLE,
        "the other tool's {statistic} is an average of rates or ratios: average the times, or divide total bytes by "
        "total time",
    )
    CONFIDENCE_UNKNOWN = (
        "confidence-unknown",
        GateFailure.NOT_PUBLISHABLE,
        "the header does not state a valid confidence level of the intervals (settings.confidence)",
    )
    INTERVAL_METHOD_UNKNOWN = (
        "interval-method-unknown",
        GateFailure.NOT_PUBLISHABLE,
        "the header does not state how the intervals were computed (settings.ci_method)",
    )
    MODELLED_UNMARKED = (
        "modelled-unmarked",
        GateFailure.NOT_PUBLISHABLE,
        "the row and its header disagree on whether the figure was modelled or measured",
    )
    SAMPLE_COUNT_UNKNOWN = (
        "sample-count-unknown",
        GateFailure.NOT_PUBLISHABLE,
        "the row does not state its number of samples, or its number of independent samples",
    )
    INTERVAL_UNEXPLAINED = (
        "interval-unexplained",
        GateFailure.NOT_PUBLISHABLE,
        "the figure has no interval, and no flag says why",
    )
    SPREAD_UNKNOWN = (
        "spread-unknown",
        GateFailure.NOT_PUBLISHABLE,
        "the spread between the {num_launches} launches is unknown",
    )
    INTERVAL_METHOD_NORMAL = (
        "interval-method-normal",
        GateFailure.NOT_PUBLISHABLE,
        "the intervals were computed by {method!r}, which assumes a distribution of the samples",
    )
    REPORTED_SPREAD_ALONE = (
        "reported-spread-alone",
        GateFailure.NOT_PUBLISHABLE,
        "the other tool's {statistic} is a spread around a mean, but such a spread does not describe skewed times",
    )
    REPORTED_TAIL_UNKNOWN = (
        "reported-tail-unknown",
        GateFailure.NOT_PUBLISHABLE,
        "the other tool's {statistic} needs {least} samples, but has {num_samples:.0f}",
    )
    NOT_RECORDED = "not-recorded", GateFailure.NOT_PUBLISHABLE, "not recorded: {what}"
    MODE_ODD = "mode-odd", GateFailure.NOT_PUBLISHABLE, "the mode {mode!r} is neither isolated nor pipelined"
    CALLS_PER_SAMPLE_ODD = (
        "calls-per-sample-odd",
        GateFailure.NOT_PUBLISHABLE,
        "{num_calls} calls per sample contradict {mode} mode",
    )
    BOUND_UNEXPLAINED = (
        "bound-unexplained",
        GateFailure.NOT_PUBLISHABLE,
        "the bandwidth has no bound, and the header does not say why (calibration.no_bound_because)",
    )
    STOP_REASON_UNKNOWN = (
        "stop-reason-unknown",
        GateFailure.NOT_PUBLISHABLE,
        "the file does not say why sampling stopped, so plots cannot show whether this row converged",
    )
    SIZE_TWICE = (
        "size-twice",
        GateFailure.NOT_PUBLISHABLE,
        "a curve has two points at the same size",
    )
    MOST_NOT_CONVERGED = (
        "most-not-converged",
        GateFailure.NOT_PUBLISHABLE,
        "only {num_converged} of {of} measured figures have converged",
    )
    ROWS_CONTRADICT = "rows-contradict", GateFailure.NOT_PUBLISHABLE, "{sentence}"
    BUSY_MACHINE = (
        "busy-machine",
        GateFailure.NOT_PUBLISHABLE,
        "{causes:list} on {host} while {num} of {of} figures were measured",
    )


@unique
class NodeCode(Code):
    """Reasons for the verdict on a node that are not faults of the run."""

    NO_EVIDENCE = (
        "no-evidence",
        "no row from this node alone met a rule, and the measured pairs do not show that the node is healthy",
    )
    NO_ROWS_JUDGED = "no-rows-judged", "the gate judged no row of this node"
    NODE_UNNAMED = "node-unnamed", "{failure} occurred {num} times, but these faults name no node"
    MORE_REASONS = "more-reasons", "and {num:n more reason}"
    RETESTED = "retested", "retested: the pairs of the node were measured again at {started}"
