"""Choose the length of the alternating blocks of a row, and decide when the row is finished."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.core.case import Case
from bench.core.record import StopReason
from bench.rank.rows import PlannedRow
from bench.rank.sampling import TARGET_HALF_WIDTH
from bench.results import stats

_LEAST_BLOCK_S = 0.02  # much longer than the disturbance needs to start and end
_BLOCKS = 40  # blocks of one type that fit into a row's time
_MOST_PER_BLOCK = 1000
# Blocks of one type: 21 blocks with autocorrelation 0.5 are worth the 6 independent blocks that an interval needs.
_LEAST, _MOST = 21, 101


def per_block(case: Case, row: PlannedRow, sample_s: float) -> int:
    """Return the number of samples of one block."""
    if case.iterations is not None:
        return max(1, case.iterations // _LEAST)
    return max(1, min(_MOST_PER_BLOCK, int(max(_LEAST_BLOCK_S, row.max_s / _BLOCKS) / max(sample_s, 1e-9))))


def stop(
    case: Case,
    row: PlannedRow,
    pairs: Iterable[tuple[Sequence[float], Sequence[float]]],
    num_in_block: int,
    num_blocks: int,
    elapsed_s: float,
    num_kinds: int,
) -> str | None:
    """Return why a row is finished, or None to continue. Rank 0 decides.

    A row is finished when the confidence interval of each group's ratio is narrow enough, or when the time limit is
    reached. The time limit is `num_kinds` x `row.max_s`, because each type of block may take as long as an ordinary
    row.

    `pairs`: for each group, the samples without the disturbance and the samples with it.
    """
    if case.iterations is not None:
        return StopReason.FIXED if num_blocks * num_in_block >= case.iterations else None
    from bench.results.paired_ratio import block_ratios  # imported here, because most ranks never need it

    reason = None
    for without, with_it in pairs:
        reason = stats.should_stop(
            block_ratios(without, with_it, num_in_block),
            target=TARGET_HALF_WIDTH["isolated"],
            n_min=_LEAST,
            n_max=_MOST,
            elapsed_s=elapsed_s,
            max_s=num_kinds * row.max_s,
        )
        if reason is None:
            return None
    return reason
