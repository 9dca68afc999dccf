"""Codes for the reasons why rows are skipped. Several packages use these codes."""

from __future__ import annotations

from bench.core.codes import OptionalPartsCode


class SkipCode(OptionalPartsCode):
    """Why a row was skipped. Each transport or tool declares its own codes in its file."""

    BUDGET = "budget", "the time budget of {budget_s:g} s was used up before this row"
    OTHER_GROUP_WRONG = "other-group-wrong", "another group received wrong data"
    DEVICE_WORK = (
        "device-work",
        "{transport} moves messages between ranks, and this pattern sends none",
    )
    # Options
    OPTION_IGNORED = (
        "option-ignored",
        "{transport} would ignore {option}<!transports?, and no transport obeys it>: omit it"
        "<transports?, or use {transports:list}>",
    )
    # Groups that a pattern cannot run in (Pattern.needs)
    TOO_FEW_RANKS = "too-few-ranks", "{pattern} needs at least {least} ranks, but the group has {num_ranks}"
    ODD_RANKS = "odd-ranks", "{pattern} needs an even number of ranks, but the group has {num_ranks}"
    NO_DIRECTION = "no-direction", "{pattern} has no direction {direction}: it has {directions:list}"
    NO_ROOT = "no-root", "root {root} is not in a group of {num_ranks} ranks: give --root 0"
    MATRIX_SIZE = (
        "matrix-size",
        "the traffic matrix has {num_rows} rows, but the group has {num_ranks} ranks: give the matrix a row and a "
        "column for each rank",
    )
    MOVES_NOTHING = "moves-nothing", "{pattern} in a group of {num_ranks} moves no data that could disturb other ranks"
    # Reductions
    INTEGERS_ONLY = "integers-only", "{reduce_op} is defined for integers only, not for {dtype}"
    AVERAGE_UNDEFINED = "average-undefined", "avg has no single meaning for {dtype}"
    NO_EXACT_RESULT = "no-exact-result", "{reduce_op} of {dtype} has no exact result to check against"
