"""Show a diagnosis as text, Markdown, CSV rows or JSON.

The page names the slow parts with the evidence against them, the healthy parts, and what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.core import printable
from bench.core.codes import Coded
from bench.core.units import format_duration, format_size
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.diagnose.localise import Diagnosis
from bench.diagnose.messages import Conclusion, DiagnosisNote
from bench.diagnose.pair_evidence import Diagnosed
from bench.results.table import as_json as json_document
from bench.results.text import count

SCHEMA = "bench.diagnose/1"
_MOST_NAMES = 12
_CONFIDENCE = "confidence: the probability that the part runs below 0.9 of the bandwidth of its peers"
_LEAST_EVIDENCE = 40  # characters; the column of evidence is not narrower


def table(cases: Sequence[Diagnosed], verdict: Diagnosis, seconds: float | None, width: int = PIPED_WIDTH) -> str:
    """Return the whole report as text.

    `seconds`: the duration of the measurement; None if unknown.
    `width`: the number of characters in a line.
    """
    lines = wrapped(f"# {conclusion(verdict).text}", width, "#   ")
    for line in measured(cases, seconds):
        lines += wrapped(f"measured: {line}", width, "  ")
    if verdict.accused:
        longest = max(len("name"), *(len(printable.printable(part.name)) for part in verdict.accused))
        lines += ["", f"{'kind':5} {'name':{longest}} confidence  evidence"]
        indent = " " * (5 + 1 + longest + 1 + 10 + 2)
        for part in verdict.accused:
            evidence = wrapped(part.evidence, max(_LEAST_EVIDENCE, width - len(indent)))
            lines.append(
                f"{part.kind:5} {printable.printable(part.name):{longest}} {part.confidence:10.4f}  {evidence[0]}"
            )
            lines += [indent + rest for rest in evidence[1:]]
        lines += ["", *wrapped(_CONFIDENCE, width, "  ")]
    texts = [f"suspected: {names(suspected(verdict))}"] if verdict.suspects else []
    texts += [f"cleared: {names(verdict.cleared_by_peers)}", *(f"note: {note.text}" for note in notes(verdict))]
    for text in texts:
        lines += wrapped(text, width, "  ")
    return printable.joined(lines)


def markdown(cases: Sequence[Diagnosed], verdict: Diagnosis, seconds: float | None) -> str:
    """Return the report with Markdown tables."""
    lines = [f"# {conclusion(verdict).text}", ""]
    lines += [*(f"- measured: {line}" for line in measured(cases, seconds)), ""]
    if verdict.accused:
        lines += ["| kind | name | confidence | evidence |", "|---|---|---|---|"]
        for part in verdict.accused:
            cells = [printable.markdown_cell(text) for text in (part.name, part.evidence)]
            lines.append(f"| {part.kind} | {cells[0]} | {part.confidence:.4f} | {cells[1]} |")
        lines += ["", _CONFIDENCE, ""]
    if verdict.suspects:
        lines += [f"Suspected: {names(suspected(verdict))}", ""]
    lines.append(f"Cleared: {names(verdict.cleared_by_peers)}")
    lines += [f"- {note.text}" for note in notes(verdict)]
    return printable.joined(lines)


def as_json(cases: Sequence[Diagnosed], verdict: Diagnosis, seconds: float | None) -> str:
    """Return the report as JSON, which also contains codes and facts."""
    answer = conclusion(verdict)
    plain = {
        "schema": SCHEMA,
        "conclusion": answer.text,
        "conclusion_code": answer.code,
        "accused": accused_rows(verdict),
        "suspected": [{"kind": kind, "name": name} for kind, name in _suspected(verdict)],
        "cleared": list(verdict.cleared_by_peers),
        "notes": [note.text for note in notes(verdict)],
        "notes_codes": [_code(note) for note in notes(verdict)],
        "measured_s": seconds,
        "cases": [_case(case) for case in cases],
    }
    return json_document(plain)


def accused_rows(verdict: Diagnosis) -> list[dict[str, Any]]:
    """Return the slow parts as dictionaries of plain values for JSON and CSV."""
    rows = []
    for part in verdict.accused:
        rows.append(
            {
                "kind": part.kind,
                "name": part.name,
                "confidence": part.confidence,
                "evidence": part.evidence,
                "findings": [_code(finding) for finding in part.findings],
                "ends": list(part.ends),
            }
        )
    return rows


def measured(cases: Sequence[Diagnosed], seconds: float | None) -> list[str]:
    """Describe what was measured, in one line for each transport and direction."""
    took = f", {format_duration(seconds)}" if seconds is not None and len(cases) == 1 else ""
    lines = []
    for case in cases:
        rounds = f"{case.num_rounds} rounds, " if case.num_rounds else ""
        direction = f", {case.direction}" if case.direction else ""
        lines.append(
            f"{case.transport}{direction}, {case.schedule} schedule: {case.num_ranks} ranks on "
            f"{count(case.num_hosts, 'host')}, {rounds}{case.num_rows} pairs of {format_size(case.payload_bytes)}{took}"
        )
    if seconds is not None and len(cases) > 1:
        lines.append(f"all in {format_duration(seconds)}")
    return lines


def conclusion(verdict: Diagnosis) -> Coded:
    """Return the conclusion of the diagnosis in one sentence."""
    if verdict.undecided:
        return Coded.of(Conclusion.SUSPICIONS_OPEN if verdict.suspects else Conclusion.HOSTS_NOT_TESTED)
    if not verdict.accused:
        return Coded.of(Conclusion.NOTHING_SLOW if verdict.has_peers else Conclusion.NO_PEERS)
    parts = [f"{part.kind} {part.name}" for part in verdict.accused]
    more = len(parts) - _MOST_NAMES
    return Coded.of(
        Conclusion.SLOW, num_parts=len(parts), shown=parts[:_MOST_NAMES], num_more=more if more > 0 else None
    )


def notes(verdict: Diagnosis) -> list[Coded]:
    """Return the notes that a reader of the report must know."""
    found = list(verdict.notes)
    if verdict.num_missing:
        found.append(Coded.of(DiagnosisNote.HOSTS_NOT_TESTED, num_missing=verdict.num_missing))
    if verdict.suspects:
        found.append(Coded.of(DiagnosisNote.SUSPICIONS_OPEN, num_suspects=len(verdict.suspects)))
    return found


def suspected(verdict: Diagnosis) -> list[str]:
    """Return the name of each part that is still suspected, each name once: `host h2`, `link h0-h2`."""
    return [f"{kind} {name}" for kind, name in _suspected(verdict)]


def names(found: Sequence[str]) -> str:
    """Return the number of names and the first few names, or "none"."""
    if not found:
        return "none"
    more = len(found) - _MOST_NAMES
    rest = f", and {more} more" if more > 0 else ""
    return f"{len(found)} ({', '.join(found[:_MOST_NAMES])}{rest})"


def _suspected(verdict: Diagnosis) -> list[tuple[str, str]]:
    return list(dict.fromkeys((suspect.kind, suspect.name) for suspect in verdict.suspects))


def _code(line: Coded) -> dict[str, Any]:
    facts = {name: value for name, value in line.facts.items() if value is not None}
    return {"code": line.code, "facts": facts}


def _case(case: Diagnosed) -> dict[str, Any]:
    """Return a measured case as plain values, without its verdict and its jobs."""
    plain = asdict(case)
    del plain["verdict"], plain["jobs"]
    return plain
