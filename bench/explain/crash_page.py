"""Write the crash page as text and Markdown.

The page says which rank failed first and why, what followed, and what is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.core.codes import Coded
from bench.core.units import format_duration
from bench.explain.crash import Crash
from bench.explain.crash_facts import words
from bench.explain.reason import Reason
from bench.logs.failure_events import Event, Role

EVIDENCE_INDENT = 5  # blanks before a line of evidence; commands have more
_MOST_RANKS = 16


def files(crash: Crash) -> str:
    """Name the files that the page is about."""
    sources = crash.sources
    return sources[0] if len(sources) == 1 else f"{len(sources)} files, {sources[0]} to {sources[-1]}"


def answer(crash: Crash) -> Iterator[str]:
    """Yield which rank failed first, in which operation, and which ranks never reached the operation."""
    first = crash.first
    yield f"first: {words(first)}{_place(first, crash.num_alike)}"
    if len(crash.reporters) > 1:
        yield f"reported by: ranks {_ranks(crash.reporters)}"
    if crash.absent:
        of_all = f" of {crash.num_ranks}" if crash.num_ranks else ""
        plural = "s" if len(crash.absent) > 1 else ""
        yield f"never came: rank{plural} {_ranks(crash.absent)}{of_all}"
    waiting = crash.waiting
    if waiting is not None:
        waited = f", {format_duration(waiting.duration_s)} long" if waiting.duration_s else ""
        group = f" of group {waiting.group}" if waiting.group else ""
        yield f"operation: {waiting.operation or 'unknown'}, sequence number {waiting.seq}{group}{waited}"


def first_line(crash: Crash) -> str:
    """Return a sentence for the top of a page that says what failed first."""
    return f"What failed first: {words(crash.first)}{_place(crash.first, crash.num_alike)}."


def text(crash: Crash, with_title: bool = True) -> Iterator[str]:
    """Yield the lines of the page, not yet wrapped.

    `with_title`: whether the page begins with its title and the names of the files. The title says what failed first.
    """
    if with_title:
        yield from (f"# {first_line(crash)}", f"from {files(crash)}")
    others = list(answer(crash))[1:]
    if others:
        yield from ("", "Which ranks, and where", *(f"  - {line}" for line in others))
    yield from ("", "The likeliest causes, in order")
    for number, reason in enumerate(crash.reasons, start=1):
        yield f"  {number}. {reason.what} (weight {reason.weight:g})"
        yield f"{' ' * EVIDENCE_INDENT}{reason.evidence}"
    for heading, lines in _remarks(crash):
        yield from ("", heading, *(f"  - {line.text}" for line in lines))
    steps = _steps(crash)
    if steps:
        yield from ("", "What to do next")
        for number, reason in steps:
            yield f"  {number}. {reason.step}"
            if reason.command:
                yield f"       {reason.command}"


def markdown(crash: Crash, with_title: bool = True) -> Iterator[str]:
    """Yield the lines of the page in Markdown, with headings, lists and code."""
    if with_title:
        yield from (f"# {first_line(crash)}", "", f"From {files(crash)}.", "")
    others = list(answer(crash))[1:]
    if others:
        yield from ("## Which ranks, and where", "", *(f"- {line}" for line in others), "")
    yield from ("## The likeliest causes, in order", "")
    for number, reason in enumerate(crash.reasons, start=1):
        yield f"{number}. **{reason.what}** (weight {reason.weight:g}): `{reason.evidence}`"
    for heading, lines in _remarks(crash):
        yield from ("", f"## {heading}", "", *(f"- {line.text}" for line in lines))
    steps = _steps(crash)
    if steps:
        yield from ("", "## What to do next", "")
        for number, reason in steps:
            yield f"{number}. {reason.step}" + (f": `{reason.command}`" if reason.command else "")


def _remarks(crash: Crash) -> Iterator[tuple[str, tuple[Coded, ...]]]:
    """Yield (heading, lines) for each section of remarks that is not empty."""
    if crash.consequences:
        yield "What followed from it", crash.consequences
    if crash.survived:
        yield "What the job survived", crash.survived
    if crash.unknown:
        yield "What the text does not show", crash.unknown


def _steps(crash: Crash) -> list[tuple[int, Reason]]:
    """Return the causes that propose a next step, with their numbers."""
    return [(number, reason) for number, reason in enumerate(crash.reasons, start=1) if reason.step]


def _place(event: Event, num_alike: int) -> str:
    """Name the rank, host and process of an event, as far as the log states them.

    `num_alike`: the number of other ranks that printed the same message. If other ranks printed this message too, the
    error is not specific to this rank.
    """
    parts = []
    if event.rank is not None and event.role != Role.ABSENT:
        parts.append(f"rank {event.rank}")
    elif event.facts.get("local_rank") is not None:
        parts.append(f"local rank {event.facts['local_rank']}")
    if event.host is not None:
        parts.append(f"on {event.host}")
    if event.pid is not None:
        parts.append(f"pid {event.pid}")
    if event.facts.get("device") is not None:
        parts.append(f"device {event.facts['device']}")
    if event.peer:
        parts.append(f"peer {event.peer}")
    if not parts and not event.ranks:
        return " (the text names no rank)"
    if num_alike and event.rank is not None and event.role == Role.CAUSE:
        others = "another rank" if num_alike == 1 else f"{num_alike} other ranks"
        parts[-1] += f"; {others} printed the same message"
    return f" ({', '.join(parts)})" if parts else ""


def _ranks(ranks: tuple[int, ...]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_RANKS]))
    return named + (f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else "")
