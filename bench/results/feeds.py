"""Compare the measured rate of reading a data set with the rates that limit it.

Also compare the rate with a workload's demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.core.case_argv import from_argv
from bench.core.record import Header, ReadSamples, Record
from bench.datasets.gpu_files import COUNTED_BYTES
from bench.hardware.bounds import host_link_bytes_per_s
from bench.results import launches, stats
from bench.results.model import case_of
from bench.results.training_rows import Fed, GpuPath

DIRECT_AT_LEAST = 0.99  # bytes that the driver moved per byte asked


def of_record(job: str, header: Header, record: Record) -> list[Fed]:
    """Return a list with the result, or an empty list if the row did not read a data set correctly."""
    reads, samples = record.reads, record.samples
    if reads is None or samples is None or record.verified is False or not stats.usable(samples.seconds):
        return []
    if not record.payload_bytes or not reads.device_bytes:
        return []
    num_bytes, case = record.payload_bytes, from_argv(header.case)
    low, high = stats.interval(samples.seconds) or (None, None)
    cpu_s = sum(reads.cpu_s) / len(reads.cpu_s) if reads.cpu_s else 0.0
    steps = bool(reads.wait_s)
    step_s, busy_s = (median(reads.step_s), median(reads.busy_s)) if steps else (None, None)
    return [
        Fed(
            job=case_of(job, header),
            files=case.files,
            read_order=case.read_order,
            state=reads.state,
            num_workers=case.workers,
            direct_io=case.direct_io,
            payload_bytes=num_bytes,
            record_bytes=reads.record_bytes,
            num_records=reads.num_records,
            seconds=median(samples.seconds),
            low_s=low,
            high_s=high,
            device_share=median(reads.device_bytes) / (reads.num_records * reads.record_bytes),
            cpu_s_per_record=cpu_s / reads.num_records,
            disk_bytes_per_s=_rate(num_bytes, reads.direct_s),
            copy_bytes_per_s=_rate(num_bytes, reads.copy_s),
            core_bytes_per_s=num_bytes / cpu_s if cpu_s > 0 else None,
            # steps limit the rate of a pass, so it is not compared with a demand
            demand_bytes_per_s=None if steps else case.demand or None,
            batch=case.batch if steps else None,
            prefetch=case.prefetch if steps and case.workers else None,
            step_s=step_s,
            busy_s=busy_s,
            wait_s=median(reads.wait_s) if steps else None,
            predicted_wait_s=_wait(step_s, busy_s, case.workers),
            num_launches=1,
            num_ranks=record.num_ranks or 1,
            copied_s=median(reads.copied_s) if reads.copied_s else None,
            pcie_bytes_per_s=_link(header, record, case.destination),
            gpu_path=_gpu_path(reads) if case.destination == "gds" else "",
        )
    ]


def feeds(of_launches: Iterable[Fed]) -> tuple[Fed, ...]:
    """Return one result for each row of each case.

    If a row has three launches or more, its interval covers the variation between launches.
    """
    rows: dict[tuple[object, ...], list[Fed]] = {}
    for one in of_launches:
        rows.setdefault((one.job, one.payload_bytes, one.state), []).append(one)
    return tuple(of_row[0] if len(of_row) == 1 else _merged(of_row) for of_row in rows.values())


def _wait(step_s: float | None, busy_s: float | None, num_workers: int) -> float | None:
    """Return the time that a training step is expected to wait for its batch.

    Workers prepare batches in parallel with the steps. Without workers, a step waits until its whole batch is prepared.
    """
    if step_s is None or busy_s is None:
        return None
    return max(0.0, busy_s / num_workers - step_s) if num_workers else busy_s


def _link(header: Header, record: Record, destination: str) -> float | None:
    """Return the rate of the link to each rank's GPU, in bytes per second.

    With GPUDirect Storage, the path may be shorter, because the disks may be on the same switch as the GPUs.
    """
    if destination == "host":
        return None
    return host_link_bytes_per_s(header, record, through_host=destination == "device")


def _gpu_path(reads: ReadSamples) -> str:
    """Return the path on which bytes moved to the GPU.

    The direct path is proven only if the driver counted the bytes on this path. The driver counts whole MiB. The driver
    counts whole MiB, so the count may be too low by 1 MiB or by 1 % of the bytes, whichever is smaller.
    """
    asked = len(reads.device_bytes) * reads.num_records * reads.record_bytes
    counted = sum(reads.driver_bytes)
    proven = counted and counted + min(COUNTED_BYTES, 0.01 * asked) >= DIRECT_AT_LEAST * asked
    return GpuPath.DIRECT if proven else GpuPath.COMPATIBILITY


def _rate(num_bytes: int, seconds: Sequence[float]) -> float | None:
    return num_bytes / median(seconds) if seconds and median(seconds) > 0 else None


def _merged(of_row: list[Fed]) -> Fed:
    medians = [one.seconds for one in of_row]
    low, high = launches.interval(medians) or (None, None)

    def middle(name: str) -> float | None:
        known = [getattr(one, name) for one in of_row if getattr(one, name) is not None]
        return median(known) if known else None

    return replace(
        of_row[0],
        seconds=median(medians),
        low_s=low,
        high_s=high,
        device_share=median(one.device_share for one in of_row),
        cpu_s_per_record=median(one.cpu_s_per_record for one in of_row),
        disk_bytes_per_s=middle("disk_bytes_per_s"),
        copy_bytes_per_s=middle("copy_bytes_per_s"),
        core_bytes_per_s=middle("core_bytes_per_s"),
        step_s=middle("step_s"),
        busy_s=middle("busy_s"),
        wait_s=middle("wait_s"),
        predicted_wait_s=middle("predicted_wait_s"),
        copied_s=middle("copied_s"),
        gpu_path=min((one.gpu_path for one in of_row), key=lambda path: path == GpuPath.DIRECT),
        num_launches=len(of_row),
    )
