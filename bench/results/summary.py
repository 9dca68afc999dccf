"""Turn records into summaries of rows, and summaries into one document. Summaries are never stored in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.core.codes import Coded
from bench.core.links import Bound
from bench.core.record import LIMIT_REACHED, Flag, Header, Record, StepSamples
from bench.hardware.bounds import bounds_of, floor_of
from bench.results import (
    checkpoints,
    consistency,
    feeds,
    flops,
    framework,
    gpus,
    interference,
    launches,
    model,
    overlap,
    parity,
    replay,
    scaling,
    sharing,
    step_rates,
    step_scaling,
    steps,
)
from bench.results.compared_rows import Interference, Overlapped, Replayed
from bench.results.document import DOCUMENT_SCHEMA, Conflict, Document, Summary
from bench.results.messages import NoteCode
from bench.results.times import Times, from_reported, from_samples
from bench.results.training_rows import Checkpointed, Fed, TrainedStep

# If a median exceeds a hard bound by more than its uncertainty, the bound, the clock or the data are wrong.
BOUND_TOLERANCE = 0.02

# A time below this multiple of the call overhead is mostly software.
SOFTWARE_FACTOR = 3

# If the start skew exceeds this share of a time, the row is flagged.
SKEW_SHARE = 0.05

# A one-way time is unknown if the error between the two clocks exceeds this share of it.
CLOCK_SHARE = 0.1


def document(runs: Iterable[tuple[str, Header, Sequence[Record]]], notes: Sequence[Coded] = ()) -> Document:
    """Build the document of `runs`, an iterable of tuples (job, header, records).

    `notes`: notes on the whole document.
    """
    headers: dict[str, Header] = {}
    rows = DocumentBuilder()
    for job, header, records in runs:
        headers[job] = header
        for record in records:
            rows.add(job, header, record)
    return rows.document(headers, notes)


@dataclass(slots=True)
class DocumentBuilder:
    """Turns records into rows of a document, one record after the other.

    The samples of earlier records need not be kept in memory.

    `most`: how many good rows, and how many failed or wrong rows, the document keeps; None for all rows. Further rows
        are only counted.
    """

    most: int | None = None
    summaries: list[Summary] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    contended: list[Interference] = field(default_factory=list)
    overlapped: list[Overlapped] = field(default_factory=list)
    replayed: list[Replayed] = field(default_factory=list)
    fed: list[Fed] = field(default_factory=list)
    trained: list[TrainedStep] = field(default_factory=list)
    checkpointed: list[Checkpointed] = field(default_factory=list)
    num_wrong: int = 0
    num_left_out: int = 0

    def add(self, job: str, header: Header, record: Record) -> Summary | None:
        """Add a record. Return the summary of the record, or None if the record was skipped or failed."""
        row = None if record.skipped is not None or record.failed is not None else summarise(job, header, record)
        wrong = record.failed is not None or (row is not None and row.verified is False)
        self.num_wrong += wrong
        num = self.num_wrong - 1 if wrong else len(self.summaries) + len(self.skipped) + len(self.failures)
        if self.most is not None and num >= self.most:
            self.num_left_out += 1
        elif row is not None:
            self.summaries.append(row)
            self._add_parts(job, header, record)
        elif record.failed is not None:
            failed = {
                "what": record.failed.what,
                "rank": record.failed.rank,
                "host": record.failed.host,
                "code": record.failed.code,
                "facts": record.failed.facts,
            }
            self.failures.append(_row(job, header, record) | failed)
        elif record.skipped is not None:
            skipped = {"reason": record.skipped.text, "code": record.skipped.code, "facts": record.skipped.facts}
            self.skipped.append(_row(job, header, record) | skipped)
        return row

    def _add_parts(self, job: str, header: Header, record: Record) -> None:
        """Add the results of a record that has other measurements besides samples. Most records have samples only."""
        if record.contention is not None:
            self.contended += interference.of_record(job, header, record)
        if record.overlap is not None:
            self.overlapped += overlap.of_record(job, header, record)
        if record.recorded_s is not None:
            self.replayed += replay.of_record(job, header, record)
        if record.reads is not None:
            self.fed += feeds.of_record(job, header, record)
        if record.step is not None:
            self.trained += steps.of_record(job, header, record)
        if record.checkpoint is not None:
            self.checkpointed += checkpoints.of_record(job, header, record)

    def document(self, headers: Mapping[str, Header], notes: Sequence[Coded] = ()) -> Document:
        """Build a document from the rows that were added and kept."""
        if self.num_left_out:
            notes = (*notes, Coded.of(NoteCode.ROWS_NOT_HELD, num=self.num_left_out, most=self.most))
        notes = (*notes, *_throttled(headers))
        # Rows imported from logs have no samples and no launches.
        own = {job: header for job, header in headers.items() if not header.imported}
        sampled = [row for row in self.summaries if not row.imported]
        conflicts = consistency.conflicts(own, sampled)
        measured = launches.cells(own, sampled)
        trained = steps.steps(self.trained)
        notes = (*notes, *framework.prices(measured))
        return Document(
            schema=DOCUMENT_SCHEMA,
            headers=headers,
            summaries=_flagged(by_size(self.summaries), conflicts),
            skipped=tuple(self.skipped),
            failures=tuple(self.failures),
            notes=tuple(notes),
            spreads=launches.spreads(own, measured),
            fits=model.fits(own, sampled),
            conflicts=conflicts,
            parities=parity.parities(headers, self.summaries),
            scalings=scaling.scalings(own, measured),
            interferences=interference.interferences(self.contended),
            sharings=sharing.sharings(own, measured),
            overlaps=overlap.overlaps(self.overlapped),
            replays=replay.replays(self.replayed),
            feeds=feeds.feeds(self.fed),
            steps=trained,
            step_scalings=step_scaling.scalings(own, trained, sampled),
            checkpoints=checkpoints.checkpoints(self.checkpointed),
            standings=gpus.standings(headers, self.summaries),
        )


def by_size(rows: Iterable[Summary]) -> list[Summary]:
    """Return the rows of each measured job by size.

    Jobs with a time budget measure the smallest and the largest size first, so their rows must be sorted.

    The rows of an imported log keep their order.
    """
    of_job: dict[str, list[Summary]] = {}
    for row in rows:
        of_job.setdefault(row.job, []).append(row)
    found = []
    for job_rows in of_job.values():
        imported = any(row.imported for row in job_rows)
        found += job_rows if imported else sorted(job_rows, key=lambda row: row.payload_bytes)
    return found


def _throttled(headers: Mapping[str, Header]) -> list[Coded]:
    """Return a note on each throttled GPU, and on each host with throttled CPUs."""
    found: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for header in headers.values():
        for host, node in header.nodes.items():
            for key, when in (("gpus", "before"), ("gpus_at_end", "after")):
                for gpu in node.get(key) or ():
                    if gpu.get("throttle"):
                        name = (host, f"gpu{gpu.get('index')}", tuple(map(str, gpu["throttle"])))
                        found.setdefault(name, []).append(when)
    cpus: Counter[str] = Counter()
    for header in headers.values():
        for host, node in header.nodes.items():
            before, after = ((node.get(when) or {}).get("num_throttled") for when in ("before", "after"))
            cpus[host] += max(0, (after or 0) - (before or 0)) if before is not None else 0
    notes = [Coded.of(NoteCode.CPUS_THROTTLED, host=host, num=num) for host, num in cpus.items() if num]
    return notes + [
        Coded.of(NoteCode.THROTTLED, gpu=gpu, host=host, when=list(dict.fromkeys(when)), reasons=list(reasons))
        for (host, gpu, reasons), when in found.items()
    ]


def _flagged(summaries: Sequence[Summary], conflicts: Sequence[Conflict]) -> tuple[Summary, ...]:
    """Return all rows. Rows that contradict each other also get the flag CONTRADICTS."""
    bad = {
        (job, row["mode"], row["group"], row["payload_bytes"])
        for conflict in conflicts
        for row in (conflict.first, conflict.second)
        for job in row["job"].split(" + ")
    }
    return tuple(
        replace(row, flags=(*row.flags, Flag.CONTRADICTS))
        if (row.job, row.mode, row.group, row.payload_bytes) in bad
        else row
        for row in summaries
    )


def summarise(job: str, header: Header, record: Record) -> Summary:
    """Summarise a record that has either samples or another tool's statistics.

    A row with invalid samples has no figures and the flag BAD_SAMPLES. A row with wrong data has no bandwidth and the
    flag INVALID. Raises ValueError for a skipped or failed record.
    """
    if record.samples is not None:
        times = from_samples(header, record, record.samples)
    elif record.reported is not None:
        times = from_reported(header, record)
    else:
        raise ValueError("a skipped or failed record has no summary; it belongs to Document.skipped or .failures")
    return _described(job, header, record, times, _shown_bound(bounds_of(header, record), times.busbw_bytes_per_s))


def clock_limited(bound_s: float | None, middle_s: float) -> bool:
    """Check whether the error between two clocks is too large for a one-way time of `middle_s` seconds."""
    return bound_s is not None and bound_s > CLOCK_SHARE * middle_s


def _described(job: str, header: Header, record: Record, times: Times, bound: Bound | None) -> Summary:
    seconds, middle_s = times.seconds, times.seconds["median_s"]
    floor, peak = floor_of(header, record), flops.peak(header)
    low_s, high_s = _on_two_clocks(record.clock_bound_s, seconds)
    coarse = middle_s is not None and clock_limited(record.clock_bound_s, middle_s)
    wrong = record.verified is False
    algbw, busbw = (None, None) if coarse or wrong else (times.algbw_bytes_per_s, times.busbw_bytes_per_s)
    fraction = None if bound is None or busbw is None else busbw / bound.bytes_per_s
    row = Summary(
        job=job,
        pattern=header.pattern,
        transport=header.transport,
        mode=record.mode,
        dtype=header.dtype or None,
        reduce_op=header.reduce_op,
        root=header.root,
        in_place=record.in_place,
        direction=header.direction,
        group=record.group,
        src=record.src,
        dst=record.dst,
        requested_bytes=record.requested_bytes[0] if record.requested_bytes else record.payload_bytes,
        also_requested_bytes=record.requested_bytes[1:],
        payload_bytes=record.payload_bytes,
        num_ranks=record.num_ranks,
        num_nodes=record.num_nodes,
    )
    # These assignments take a third of the time of a call with 60 keywords.
    row.num_samples = times.num_samples
    row.num_effective = times.num_effective
    row.median_s = middle_s
    row.ci_low_s = low_s
    row.ci_high_s = high_s
    row.min_s = seconds["min_s"]
    row.max_s = seconds["max_s"]
    row.p95_s = seconds["p95_s"]
    row.p99_s = seconds["p99_s"]
    row.last_arriver_s = times.last_arriver_s
    if not record.starved:  # otherwise, the other ranks only waited for the starved rank
        row.slowest_rank = times.slowest_rank
    row.algbw_bytes_per_s = algbw
    row.busbw_bytes_per_s = busbw
    if bound is not None:
        row.bound_bytes_per_s, row.bound_name, row.bound_kind = bound.bytes_per_s, bound.name, bound.kind
    row.bound_fraction = fraction
    if floor is not None:
        row.floor_s, row.floor_name, row.floor_kind = floor.seconds, floor.name, floor.kind
    row.verified = record.verified
    row.num_wrong = record.num_wrong
    row.modelled = record.modelled
    row.algorithm = record.algorithm
    row.topology = header.topology
    row.cache = record.cache
    row.stop_reason = record.stop_reason
    row.flags = tuple(dict.fromkeys(_flags(header, record, times, coarse, _above(bound, fraction))))
    if record.samples is not None:
        row.calls_per_sample, row.loop = record.samples.calls_per_sample, record.samples.loop
    row.rotation = times.rotation
    row.slowest_counts = times.slowest_counts
    row.clock_bound_s = record.clock_bound_s
    row.software_s = header.calibration.get("software_s")
    row.compat = {} if wrong else times.compat
    row.mean_s = None if wrong else times.mean_s
    row.imported = bool(header.imported)
    row.wire_bytes_per_s = _on_the_wire(record, algbw)
    row.flops_per_s = None if wrong else flops.rate(header, record.payload_bytes, middle_s)
    if peak is not None:
        row.peak_flops_per_s, row.peak_name = peak
    row.host_median_s = times.host_median_s
    row.enqueue_fraction = times.enqueue_fraction
    row.compared = record.compared
    row.first_wrong = asdict(record.first_wrong) if record.first_wrong else None
    row.starved = tuple([asdict(rank) for rank in record.starved])
    row.hosts = record.hosts
    row.devices = record.devices
    row.burst_s = None if wrong else times.burst_s
    row.sustained_s = None if wrong else times.sustained_s
    return row


def _on_two_clocks(bound_s: float | None, seconds: Mapping[str, float | None]) -> tuple[float | None, float | None]:
    """Return the interval of the median. For one-way times, the possible error of the clocks widens the interval."""
    low_s, high_s = seconds["ci_low_s"], seconds["ci_high_s"]
    if not bound_s or low_s is None or high_s is None:
        return low_s, high_s
    return max(0.0, low_s - bound_s), high_s + bound_s


def _on_the_wire(record: Record, algbw: float | None) -> float | None:
    """Return the rate in bytes per second at which data leave a node through its NICs.

    The rate is the number of bytes that an operation must send, divided by the operation's time. The bytes are counted
    for the send/receive algorithm that sends the fewest bytes. If switches reduce the data, fewer bytes are sent.
    """
    if algbw is None or not record.node_bytes or not record.payload_bytes:
        return None
    return algbw * record.node_bytes / record.payload_bytes


def _disturbances(header: Header, record: Record, times: Times) -> Iterator[Flag]:
    """Yield the flags of a time that consists mostly of call overhead or of start skew."""
    middle = times.seconds["median_s"]
    if middle is None:
        return
    software_s, skew_s = header.calibration.get("software_s"), header.calibration.get("sync_skew_p50_s")
    if software_s is not None and middle < SOFTWARE_FACTOR * software_s:
        yield Flag.SOFTWARE_BOUND
    apart = record.mode == "isolated" and record.clock_bound_s is None  # the receiver of a one-way message waits for it
    if skew_s is not None and apart and skew_s > SKEW_SHARE * middle:
        yield Flag.SYNC_LIMITED


def _flags(header: Header, record: Record, times: Times, coarse: bool, above: bool) -> Iterator[str]:
    """Yield the flags of a row. A flag may be yielded more than once.

    `coarse`: whether the error between two clocks is too large compared with the row's time.
    `above`: whether the row's figure exceeds its bound.
    """
    if record.verified is False:
        yield Flag.INVALID
    if record.modelled:
        yield Flag.MODELLED
    if record.stop_reason in LIMIT_REACHED:
        yield Flag.NOT_CONVERGED
    yield from times.flags
    yield from _disturbances(header, record, times)
    yield from record.flags
    if record.hosts and any([use.is_busy for use in record.hosts]):
        yield Flag.BUSY_HOST
    if record.step is not None:
        yield from _step_flags(record, record.step)
    if coarse:
        yield Flag.CLOCK_LIMITED
    if above:
        yield Flag.ABOVE_BOUND


def _step_flags(record: Record, step: StepSamples) -> tuple[str, ...]:
    """Return the flags of a training step that has contradictory figures."""
    return (
        *(Flag.REMOVAL_DISAGREES,) * steps.disagrees(record),
        *(Flag.LOGGER_DISAGREES,) * steps.logger_disagrees(step),
        *(Flag.FLOPS_APART,) * step_rates.flops_apart(step),
    )


def _shown_bound(bounds: Sequence[Bound], busbw: float | None) -> Bound | None:
    """Return the tightest bound among the hard bounds and the traffic bounds.

    If there is no such bound, return the tightest reference bound. If the busbw exceeds a traffic bound, this bound is
    left out, because the library sends less than the bound assumes.

    `bounds`: the bounds, sorted from the tightest to the loosest.
    """
    shown = []
    for bound in bounds:
        refuted = busbw is not None and busbw > bound.bytes_per_s * (1 + BOUND_TOLERANCE)
        if bound.kind == "hard" or (bound.kind == "traffic" and not refuted):
            shown.append(bound)
    return next(iter(shown or bounds), None)


def _above(bound: Bound | None, fraction: float | None) -> bool:
    """Check whether a figure exceeds a hard bound by more than the tolerance."""
    return bound is not None and fraction is not None and bound.kind == "hard" and fraction > 1 + BOUND_TOLERANCE


def _row(job: str, header: Header, record: Record) -> dict[str, Any]:
    """Return the fields that identify a skipped or failed row."""
    return {
        "job": job,
        "pattern": header.pattern,
        "transport": header.transport,
        "mode": record.mode,
        "group": record.group,
        "requested_bytes": record.requested_bytes[0] if record.requested_bytes else record.payload_bytes,
        "also_requested_bytes": record.requested_bytes[1:],
        "payload_bytes": record.payload_bytes,
    }
