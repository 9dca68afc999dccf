"""The words for what `bench lint` found: a line for each rule, its offences below it, each with its rows."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.core.units import format_size
from bench.gate.lint import FAILED, PASSED, LintFinding
from bench.results import notes
from bench.results.document import Document
from bench.results.grid import pipes
from bench.results.text import NOTHING, count

_MAX_WIDTH = 130
_MOST_JOBS = 8  # of one offence in the table; all of them are in JSON and CSV


def table(document: Document, findings: Sequence[LintFinding]) -> str:
    """What was looked at, then rule by rule: the verdict, what held, or each offence with the rows that commit it."""
    lines = [f"# {line}" for line in looked_at(document)]
    for finding in findings:
        verdict = finding.status.upper() if finding.status == FAILED else finding.status
        lines.append(f"{finding.rule:>3}  {verdict:<14}  {finding.title}")
        for sentence in finding.sentences:
            lines += _wrapped(sentence, "       ")
            lines += _wrapped("in " + "; ".join(where(finding, sentence)), "         ") if finding.rows else []
    return "\n".join([*lines, *(f"# {line}" for line in _conflicts(document)), f"# {conclusion(findings)}"]) + "\n"


def markdown(document: Document, findings: Sequence[LintFinding]) -> str:
    """The same as a Markdown table, a row for each rule."""
    lines = ["# Twelve rules", "", *(f"- {line}" for line in looked_at(document)), ""]
    lines += [pipes(("rule", "", "verdict", "what was found")), pipes((":---",) * 4)]
    for finding in findings:
        found = [
            f"{sentence} ({'; '.join(where(finding, sentence))})" if finding.rows else sentence
            for sentence in finding.sentences
        ]
        verdict = f"**{finding.status}**" if finding.status == FAILED else finding.status
        lines.append(pipes((str(finding.rule), finding.title, verdict, "<br>".join(found))))
    return "\n".join([*lines, "", *(f"- {line}" for line in _conflicts(document)), f"- {conclusion(findings)}"]) + "\n"


def looked_at(document: Document) -> list[str]:
    """How much there is, and which part of each host was used."""
    headers = document.headers.values()
    lines = [f"{count(len(document.headers), 'job')}, {count(len(document.summaries), 'row')}"]
    used: dict[str, None] = {}
    for header in headers:
        if header.imported:
            continue  # its log does not tell which part of a host it used
        ranks = Counter(str(rank.get("host")) for rank in header.ranks)
        for host, facts in header.nodes.items():
            cpus, gpus = facts.get("num_cpus") or 0, len(facts.get("gpus") or ())
            used[f"{host}: {count(ranks[host], 'rank')} on {count(cpus, 'CPU')} and {count(gpus, 'GPU')}"] = None
    return lines + list(used)


def where(finding: LintFinding, sentence: str) -> list[str]:
    """The rows that commit one offence, job by job: `allreduce-mpi-1x2: isolated 8, 64K`."""
    rows = [row for row in finding.rows if row["what"] == sentence]
    jobs: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        jobs.setdefault(row["job"] or "the whole run", []).append(row)
    words = [f"{job}{_sizes(of_job)}" for job, of_job in jobs.items()]
    rest = len(words) - _MOST_JOBS
    return [*words[:_MOST_JOBS], *([f"and {rest} jobs more"] if rest > 0 else [])]


def conclusion(findings: Sequence[LintFinding]) -> str:
    """`12 of 12 rules are kept`, or which are not."""
    failed = [str(finding.rule) for finding in findings if finding.status == FAILED]
    passed = sum(finding.status == PASSED for finding in findings)
    rest = len(findings) - passed - len(failed)
    words = f"{passed} of {len(findings)} rules are kept"
    words += f", {rest} have nothing to look at" if rest else ""
    return f"{words}; broken: {', '.join(failed)}" if failed else words


def _sizes(rows: Iterable[Mapping[str, Any]]) -> str:
    sizes: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["mode"] is not None:
            group = "" if row["group"] in (None, "world") else f" {row['group']}"
            size = NOTHING if row["payload_bytes"] is None else format_size(row["payload_bytes"])
            sizes.setdefault(f"{row['mode']}{group}", {})[size] = None
    return ": " + ", ".join(f"{mode} {' '.join(at)}" for mode, at in sizes.items()) if sizes else ""


def _conflicts(document: Document) -> list[str]:
    """Rows that contradict each other break no rule: they are a matter of the library or the machine."""
    return notes.texts(notes.contradictions(document.conflicts))


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _MAX_WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
