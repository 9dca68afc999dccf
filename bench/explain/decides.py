"""Choose the first line of a page without a verdict.

The line names the option with which linkbench could judge the result.
"""

from __future__ import annotations

from bench.core.codes import Coded
from bench.explain.assessment import Assessment
from bench.explain.messages import AssessmentCode, DecidingOption, ResultVerdict
from bench.hardware.machine import LogMachine

_OPTIONS = {
    AssessmentCode.NUM_RANKS_UNKNOWN: DecidingOption.NUM_RANKS,
    AssessmentCode.NUM_NODES_UNKNOWN: DecidingOption.NUM_NODES,
    AssessmentCode.RANKS_DO_NOT_DIVIDE: DecidingOption.NUM_NODES,
    AssessmentCode.TOO_MANY_RANKS: DecidingOption.NUM_NODES,
    AssessmentCode.OTHER_MACHINE: DecidingOption.INSTANCE,
    AssessmentCode.MACHINE_UNKNOWN: DecidingOption.INSTANCE,
    AssessmentCode.OWN_MACHINE_UNKNOWN: DecidingOption.INSTANCE,
    AssessmentCode.LINKS_UNKNOWN: DecidingOption.INSTANCE,
    AssessmentCode.GPU_LINKS_UNKNOWN: DecidingOption.INSTANCE,
    AssessmentCode.NICS_UNKNOWN: DecidingOption.NICS,
    AssessmentCode.NIC_UNKNOWN: DecidingOption.NICS,
    AssessmentCode.NORMAL_WITH_NICS: DecidingOption.NICS,
    AssessmentCode.NORMAL_WITH_SLOW_NIC: DecidingOption.NICS,
    AssessmentCode.NORMAL_ON_MACHINES: DecidingOption.INSTANCE,
    AssessmentCode.SIZES_TOO_SMALL_FOR_NIC: DecidingOption.LARGER_MESSAGES,
    AssessmentCode.SIZES_TOO_SMALL: DecidingOption.LARGER_SIZES,
    AssessmentCode.SIZES_TOO_SMALL_FOR_BOUND: DecidingOption.LARGER_SIZES,
}


def deciding_option(assessment: Assessment, machine: LogMachine) -> Coded | None:
    """Return the option with which linkbench could judge the result.

    If no option helps, return why the result has its verdict. If the result is already judged with certainty, return
    None.
    """
    if assessment.verdict not in (ResultVerdict.CANNOT_BE_JUDGED, ResultVerdict.NORMAL_IF):
        return None
    for code, option in _OPTIONS.items():
        if assessment.why.code == code:
            return Coded.of(option, candidates=list(machine.candidates) or None)
    return assessment.why
