"""The words for what `bench diagnose` found: what was asked, who is accused and why, how many are cleared."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from bench.core.units import format_duration, format_size
from bench.diagnose.localise import Diagnosis
from bench.diagnose.pair_evidence import Diagnosed

_WIDTH = 120
_MOST_NAMES = 12


def table(cases: Sequence[Diagnosed], verdict: Diagnosis, seconds: float | None) -> str:
    """The whole report. `seconds`: what measuring took, where it is known."""
    lines = [f"# {line}" for line in asked(cases, seconds)]
    lines += [conclusion(verdict)]
    if verdict.accused:
        width = max(len("name"), *(len(one.name) for one in verdict.accused))
        lines += ["", f"{'kind':5} {'name':{width}} confidence  evidence"]
        indent = " " * (5 + 1 + width + 1 + 10 + 2)
        for one in verdict.accused:
            wrapped = textwrap.wrap(one.evidence, max(40, _WIDTH - len(indent)))
            lines.append(f"{one.kind:5} {one.name:{width}} {one.confidence:10.4f}  {wrapped[0]}")
            lines += [indent + rest for rest in wrapped[1:]]
        lines.append("")
    lines += [f"suspected: {names(suspected(verdict))}"] if verdict.suspects else []
    lines.append(f"cleared: {names(verdict.cleared)}")
    lines += [f"note: {note}" for note in notes(verdict)]
    return "\n".join(lines)


def markdown(cases: Sequence[Diagnosed], verdict: Diagnosis, seconds: float | None) -> str:
    """The same as a table of GitHub's Markdown."""
    lines = [*asked(cases, seconds), "", conclusion(verdict), ""]
    if verdict.accused:
        lines += ["| kind | name | confidence | evidence |", "|---|---|---|---|"]
        lines += [f"| {one.kind} | {one.name} | {one.confidence:.4f} | {one.evidence} |" for one in verdict.accused]
        lines.append("")
    lines += [f"Suspected: {names(suspected(verdict))}", ""] if verdict.suspects else []
    lines.append(f"Cleared: {names(verdict.cleared)}")
    lines += [f"- {note}" for note in notes(verdict)]
    return "\n".join(lines)


def asked(cases: Sequence[Diagnosed], seconds: float | None) -> list[str]:
    """What was measured, a line for each transport and direction."""
    took = f", {format_duration(seconds)}" if seconds is not None else ""
    lines = []
    for case in cases:
        rounds = f"{case.num_rounds} rounds, " if case.num_rounds else ""
        way = f", {case.direction}" if case.direction else ""
        lines.append(
            f"{case.transport}{way}, {case.schedule} schedule: {case.num_ranks} ranks on {case.num_hosts} hosts, "
            f"{rounds}{case.num_rows} pairs of {format_size(case.payload_bytes)}{took if len(cases) == 1 else ''}"
        )
    return lines + ([f"measured in {format_duration(seconds)}"] if seconds is not None and len(cases) > 1 else [])


def conclusion(verdict: Diagnosis) -> str:
    """One sentence."""
    if verdict.undecided:
        left = "its suspicions could be followed" if verdict.suspects else "every host was looked at"
        return f"undecided: the run ended before {left}"
    if not verdict.accused:
        return "nothing to find: no host, NIC or link is below 0.9 of its peers"
    found = [f"{one.kind} {one.name}" for one in verdict.accused]
    return f"slow: {names(found)}"


def notes(verdict: Diagnosis) -> list[str]:
    """What else the reader must know."""
    unsettled, missing = len(verdict.suspects), verdict.num_missing
    open_ = [f"the run ended before {unsettled} suspicions could be followed: measure again with more time"]
    early = [f"{missing} rounds of the first look at every host were not measured: nobody is cleared"]
    return [*verdict.notes, *(early if missing else []), *(open_ if unsettled else [])]


def suspected(verdict: Diagnosis) -> list[str]:
    """`host h2`, `link h0-h2`: each part that is suspected still, once."""
    return list(dict.fromkeys(f"{suspect.kind} {suspect.name}" for suspect in verdict.suspects))


def names(found: Sequence[str]) -> str:
    """The first names, and how many there are."""
    more = len(found) - _MOST_NAMES
    return (
        f"{len(found)} ({', '.join(found[:_MOST_NAMES])}{f', and {more} more' if more > 0 else ''})"
        if found
        else "none"
    )
