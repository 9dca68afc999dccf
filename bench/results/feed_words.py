"""Texts that the figure (figures/) and the page of a run (page/) show about reading a data set."""

from __future__ import annotations

from collections.abc import Sequence

from bench.core.record import Flag
from bench.core.units import format_size
from bench.results.document import Document
from bench.results.model import case_of
from bench.results.training_rows import BOUND_SHARE, EXCEEDED, HIDDEN_SHARE, Fed

_LIMITS = {  # the words for the codes of `binds`
    "disk": "the disk",
    "copy": "memory copies",
    "core": "the CPU",
    "pcie": "the GPU's link",
    "step": "the step",
    "loader": "the loader",
}

MOST_ROWS = 32  # in the figure and in the picture of the page
_MARKED = {  # the rates that are marked beside the rate of a row: field and words
    "disk_bytes_per_s": "the disk, read in order with O_DIRECT",
    "core_bytes_per_s": "one core",
    "pcie_bytes_per_s": "the GPU's link",
    "demand_bytes_per_s": "demand of the workload",
}


def fastest_first(document: Document) -> list[Fed]:
    """Return the results, sorted from the fastest to the slowest."""
    return sorted(document.feeds, key=lambda one: -one.bytes_per_s)


def not_converged(document: Document) -> set[str]:
    """Return the cases that did not converge in any launch."""
    converged: dict[str, bool] = {}
    for row in document.summaries:
        case = case_of(row.job, document.headers[row.job])
        converged[case] = converged.get(case, False) or Flag.NOT_CONVERGED not in row.flags
    return {case for case, has in converged.items() if not has}


def transport_of(document: Document, one: Fed) -> str:
    """Return the transport of a result's case, or "" if no job of the document has the case."""
    return next((header.transport for job, header in document.headers.items() if case_of(job, header) == one.job), "")


def marked(shown: Sequence[Fed]) -> dict[str, str]:
    """Return the explanations of the marks beside these results. The keys are the names of the marked fields."""
    return {name: words for name, words in _MARKED.items() if any(getattr(one, name) for one in shown)}


def several_sizes(shown: Sequence[Fed]) -> bool:
    """Check whether the results differ in the amount of data that was read.

    If the amounts differ, the names of the results contain the amount.
    """
    return len({(one.payload_bytes, one.record_bytes) for one in shown}) > 1


def name(one: Fed, with_size: bool) -> str:
    """Return the format of the files and the options of the reads: `npy, random, 4 workers, O_DIRECT`."""
    workers = f"{one.num_workers} worker{'' if one.num_workers == 1 else 's'}" if one.num_workers else ""
    order = one.read_order if one.read_order != "sequential" else ""
    parts = [one.files, order, workers, "O_DIRECT" * one.direct_io, one.gpu_path, size(one) * with_size]
    return ", ".join(filter(None, parts))


def size(one: Fed) -> str:
    """Return how much data a pass reads, such as `256 records of 64K`."""
    return f"{one.num_records} records of {format_size(one.record_bytes)}"


def rate(one: Fed) -> str:
    """Return the rate in GB/s. If known, also return what limits the rate."""
    return f"{one.bytes_per_s / 1e9:.3g}{f', limited by {_LIMITS[one.binds]}' if one.binds else ''}"


def fastest(shown: Sequence[Fed]) -> str:
    """Return the fastest result for each state of the cache, such as `mds, cold, 0.5 GB/s`.

    `shown`: the fastest first.
    """
    best = {one.state: one for one in reversed(shown)}
    words = [f"{best[state].files}, {state}, {best[state].bytes_per_s / 1e9:.3g} GB/s" for state in sorted(best)]
    return "; ".join(words)


def limits_remark(shown: Sequence[Fed]) -> list[str]:
    """Return remarks that explain when a result counts as limited by a rate, by the training step or by the loader."""
    remarks = []
    alone = [one for one in shown if one.step_s is None]
    if alone:
        link = any(one.pcie_bytes_per_s for one in alone)
        rates = "disk, memory copies, CPU (a core for each worker)" + (" and the GPU's link" if link else "")
        remarks.append(
            f"limited by: the lowest rate of {rates}, if the passes reach {BOUND_SHARE:g} to {EXCEEDED:g} of it"
        )
    if any(one.disk_bytes_per_s and one.bytes_per_s > EXCEEDED * one.disk_bytes_per_s for one in shown):
        remarks.append(
            f"a rate above {EXCEEDED:g} of that of the disk (in order, O_DIRECT) does not count as limited by the disk"
        )
    if len(alone) < len(shown):
        share = f"{100 * HIDDEN_SHARE:.0f} %"
        remarks.append(
            f"passes with training steps are limited by the step if it waits for less than {share} of its time, "
            "otherwise by the loader"
        )
    return remarks
