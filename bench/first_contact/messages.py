"""Define codes and texts for the states of a step.

Other codes say why a step did not run, or why a figure cannot be judged.
"""

from __future__ import annotations

from bench.core.codes import Code


class StepState(Code):
    """How a step ended."""

    PASSED = "passed", "passed"
    FAILED = "failed", "ended with exit code {exit_code}"
    CRASHED = "crashed", "was ended by signal {signal}"
    TIMED_OUT = "timed-out", "did not end within {limit_s:.0f} s"
    STUCK = "stuck", "did not end within {limit_s:.0f} s, and its process cannot be killed"
    INTERRUPTED = "interrupted", "an earlier call of linkbench ended while this step was running"
    SKIPPED = "skipped", "{text}"
    RUNNING = "running", "is running"


class StepSkip(Code):
    """Why a step did not run."""

    NO_MODULE = "no-module", "the Python module {name} is not installed"
    NO_PROGRAM = "no-program", "the program {name} is not on PATH"
    NO_FILE = "no-file", "{name} is missing: this step needs a checkout of the suite"
    TOO_FEW_GPUS = "too-few-gpus", "the step needs {name} GPUs, but the number of visible GPUs is {num_gpus}"
    NO_TOOLS = "no-tools", "--tool-path must name a folder that contains nccl-tests or nvbandwidth"
    NO_GPU = "no-gpu", "no GPU is visible"
    NO_TIME = "no-time", "the step needs at least {least_s:.0f} s, but only {left_s:.0f} s are left"
    TWICE = "interrupted-twice", "two earlier calls of linkbench ended while this step was running"


class ContactError(Code):
    """Why the first contact cannot begin."""

    NO_GPU = "no-gpu", "no GPU is visible here ({reason}): run this on a machine with a GPU; the report is in {folder}"
    OTHER_PLAN = (
        "other-plan",
        "{folder} contains the steps of another plan ({theirs}, not {ours}): name another folder with --keep",
    )


class ContactVerdict(Code):
    """The result of comparing a figure with its expectation."""

    MET = "met", "as expected"
    MISSED = "missed", "MISSED"
    UNJUDGED = "unjudged", "no expectation"
