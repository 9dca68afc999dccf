"""Why rows are not measured: the codes of Skip, with their words."""

from __future__ import annotations

from bench.core.codes import Code


class SkipCode(Code):
    """Why a row was skipped. Transports and tools have codes of their own, in their files."""

    DEVICE_WORK = "device-work", "{transport} moves messages between ranks; this pattern is work of one GPU"
    BUDGET = "budget", "the time budget of {budget_s:g} s was used up before this row"
    OTHER_GROUP_WRONG = "other-group-wrong", "another group's data was wrong"
