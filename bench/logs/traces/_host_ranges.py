"""Find the phases of a program from the ranges on a rank's host threads.

A range is the time span of an operator or an annotation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bench.core import spans
from bench.core.spans import Spans
from bench.core.step_trace import StepPhase

_STEP = re.compile(r"^ProfilerStep\s*#")
_DATA = re.compile(
    r"dataloader.*__next__|dataloader.*next|^(get|load|next)[ _-]?batch$|^data([ _-]?(load(ing|er)?|wait))?$",
    re.IGNORECASE,
)
_OPTIMIZER = re.compile(
    r"^Optimizer\.(step|zero_grad)#|^#*\s*optimizer\s*#*$|^optimizer[ ._-]step$|^optimi[sz]ation$", re.IGNORECASE
)
_BACKWARD = re.compile(r"^#*\s*backward\s*#*$|^loss\.backward|^backward[ _-](pass|compute)$|^bwd$", re.IGNORECASE)
_FORWARD = re.compile(
    r"^#*\s*forward\s*#*$|Parallel\.forward$|^forward[ _-](pass|compute)$|^fwd$|^FSDP.*forward", re.IGNORECASE
)
_PHASES = (StepPhase.DATA, StepPhase.OPTIMIZER, StepPhase.BACKWARD, StepPhase.FORWARD)
_NUM_NAMES = 4096  # a trace has many ranges, but few names
_EVALUATE = "autograd::engine::evaluate_function"


@dataclass(slots=True)
class HostRange:
    """An operator or annotation on a host thread. Times are in the time unit of the file."""

    start: float
    end: float
    thread: Any
    name: str
    args: Mapping[str, Any]


@lru_cache(maxsize=_NUM_NAMES)
def is_step(name: str) -> bool:
    """Check whether a range of this name marks a step."""
    return _STEP.match(name) is not None


@lru_cache(maxsize=_NUM_NAMES)
def is_annotation(name: str) -> bool:
    """Check whether a range with this name marks a step or a phase.

    A step or a phase is not an operator, but may contain operators.
    """
    return is_step(name) or bool(_phases_of(name))


@lru_cache(maxsize=_NUM_NAMES)
def _phases_of(name: str) -> tuple[StepPhase, ...]:
    """Return the phases that a range of this name marks."""
    found = {
        StepPhase.DATA: _DATA.search(name),
        StepPhase.OPTIMIZER: _OPTIMIZER.match(name),
        StepPhase.BACKWARD: _BACKWARD.match(name),
        StepPhase.FORWARD: _FORWARD.search(name),
    }
    return tuple(phase for phase, match in found.items() if match)


def main_thread(host: Sequence[HostRange]) -> Any:
    """Return the thread that marks the steps.

    If no thread marks steps, return the thread with the most time in operators.
    """
    for one in host:
        if is_step(one.name):
            return one.thread
    by_thread: dict[Any, float] = defaultdict(float)
    for one in host:
        by_thread[one.thread] += one.end - one.start
    return max(by_thread, key=lambda thread: by_thread[thread], default=None)


def phases(host: Sequence[HostRange], main: Any) -> dict[StepPhase, Spans]:
    """Return the phases of the program, in the time unit of the ranges.

    Annotations define the phases. If the backward pass has no annotation, autograd's operators show when the backward
    pass ran.

    `host`: ranges sorted by start. If several ranges have the same start, the longest range comes first.
    `main`: the thread whose annotations are used.
    """
    annotated: dict[StepPhase, list[tuple[float, float]]] = {phase: [] for phase in _PHASES}
    for one in host:
        if one.thread == main:
            for phase in _phases_of(one.name):
                annotated[phase].append((one.start, one.end))
    found = {phase: spans.union(spans.of(own)) for phase, own in annotated.items()}
    if not annotated[StepPhase.BACKWARD]:
        found[StepPhase.BACKWARD] = spans.union(spans.of(_autograd(host)))
    for earlier, later in ((StepPhase.DATA, StepPhase.FORWARD), (StepPhase.OPTIMIZER, StepPhase.BACKWARD)):
        found[later] = spans.minus(found[later], found[earlier])
    found[StepPhase.FORWARD] = spans.minus(found[StepPhase.FORWARD], found[StepPhase.BACKWARD])
    return {phase: union for phase, union in found.items() if len(union)}


def _autograd(host: Sequence[HostRange]) -> Iterator[tuple[float, float]]:
    """Yield the backward passes.

    A backward pass is a sequence of autograd's operators that no other top-level operator interrupts.
    """
    start = end = None
    inside = -np.inf
    for one in host:
        if one.start < inside or is_step(one.name) or one.name.startswith(("gloo:", "nccl:")):
            continue
        if one.name.startswith(_EVALUATE):
            inside = one.end
            start = one.start if start is None else start
            end = one.end if end is None else max(end, one.end)
        elif not one.name.startswith("DistributedDataParallel"):
            if start is not None and end is not None:
                yield start, end
            start = end = None
    if start is not None and end is not None:
        yield start, end
