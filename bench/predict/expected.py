"""Add to each modelled row a prediction for a real machine.

The times of a modelled run assume that all links reach their full rate, so these times are too short. The prediction is
for the same links, but also uses published measurements. Reports show the modelled times and the predictions. Results
files do not store the predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.core.case_argv import from_argv
from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.record import Header
from bench.results.document import Document, Summary
from bench.results.messages import NoExpectationCode

if TYPE_CHECKING:
    from bench.predict.predict import Prediction

# If a row's ideal time differs from the ideal time of the prediction by more than this share, the row and the
# prediction describe different operations.
_SAME_WORK = 0.01


def added(document: Document) -> Document:
    """Add an expectation to each modelled row of this document.

    If a row has no expectation, add the code of the reason.

    Return the document.
    """
    modelled: dict[str, list[Summary]] = {}
    for row in document.summaries:
        if row.modelled:
            modelled.setdefault(row.job, []).append(row)
    for job, rows in modelled.items():
        header = document.headers[job]
        of_job = _of_job(header, rows)
        for row in rows:
            row.not_expected = _set(row, header, of_job)
    return document


def _of_job(header: Header, rows: list[Summary]) -> Mapping[float, Prediction] | NoExpectationCode:
    """Return the predictions of a job's rows by payload, or the reason why no prediction is possible."""
    from bench.predict import from_args, predict

    if header.pattern not in predict.patterns():
        return NoExpectationCode.PATTERN
    if not header.links:
        return NoExpectationCode.LINKS
    if from_argv(header.case).aggressor:
        return NoExpectationCode.DISTURBED
    num_nodes, per_node = header.num_nodes or 1, header.ranks_per_node or 1
    sizes = [*dict.fromkeys(row.payload_bytes for row in rows if row.num_ranks == header.num_ranks)]
    try:
        from_args.check_most(num_nodes * per_node)
        links = NodeLinks.from_dict(header.links)
        return predict.curve(header.pattern, sizes, links, num_nodes, per_node, predict.published())
    except UsageError:
        return NoExpectationCode.WORLD


def _set(
    row: Summary, header: Header, of_job: Mapping[float, Prediction] | NoExpectationCode
) -> NoExpectationCode | None:
    """Set the expected time and bandwidth of a modelled row.

    Return None, or the reason why the row has no expectation.
    """
    row.expected_s = row.expected_low_s = row.expected_high_s = row.expected_basis = None
    row.expected_busbw_bytes_per_s = None
    row.expected_busbw_low_bytes_per_s = row.expected_busbw_high_bytes_per_s = None
    if isinstance(of_job, NoExpectationCode):
        return of_job
    if row.num_ranks != header.num_ranks:
        return NoExpectationCode.PART
    found = of_job[row.payload_bytes]
    if found.basis == "bound":
        return NoExpectationCode.EVIDENCE
    if row.median_s is None or abs(row.median_s - found.ideal_s) > _SAME_WORK * found.ideal_s:
        return NoExpectationCode.OTHER_WORK
    row.expected_s, row.expected_low_s, row.expected_high_s = found.middle_s, found.low_s, found.high_s
    row.expected_basis = found.basis
    if row.busbw_bytes_per_s is not None:
        useful_bytes = row.busbw_bytes_per_s * row.median_s
        row.expected_busbw_low_bytes_per_s = useful_bytes / found.high_s
        row.expected_busbw_high_bytes_per_s = useful_bytes / found.low_s
        if found.middle_s is not None:
            row.expected_busbw_bytes_per_s = useful_bytes / found.middle_s
    return None
