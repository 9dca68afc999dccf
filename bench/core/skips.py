"""Why rows are not measured: the codes of Skip, with their words."""

from __future__ import annotations

from bench.core.codes import Code


class SkipCode(Code):
    """Why a row was skipped. Transports and tools have codes of their own, in their files."""

    BUDGET = "budget", "the time budget of {budget_s:g} s was used up before this row"
    OTHER_GROUP_WRONG = "other-group-wrong", "another group's data was wrong"
    TOO_FEW_RANKS = "too-few-ranks", "{pattern} needs at least {least} ranks, but the group has {num_ranks}"
    NO_DIRECTION = "no-direction", "{pattern} has no direction {direction}: it has {directions:list}"
    ROOT_OUTSIDE = "root-outside", "root {root} is not in a group of {num_ranks} ranks"
    OTHER_MATRIX = (
        "other-matrix",
        "the traffic matrix has {num_rows} rows, but the group has {num_ranks} ranks: give --matrix one row and one "
        "column for each rank",
    )
    UNDEFINED_REDUCTION = "undefined-reduction", "{why}"
    UNSUPPORTED = "unsupported-by-transport", "{transport}: {why}"
