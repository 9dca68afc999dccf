"""Put a message of a failed job into words, and into the facts of JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.codes import Coded, fill, fill_present
from bench.explain.reason import Reason
from bench.logs.failure_events import Event


def facts_of(event: Event) -> dict[str, Any]:
    """Return all known facts and fields of a message."""
    fields = {
        "rank": event.rank,
        "host": event.host,
        "pid": event.pid,
        "group": event.group or None,
        "operation": event.operation,
        "seq": event.seq,
        "peer": event.peer,
        "duration_s": event.duration_s,
        "ranks": list(event.ranks) or None,
        "who": who(event.ranks),
        "line": event.line or None,
        "source": event.source or None,
    }
    facts = {name: value for name, value in event.facts.items() if name != "records"}
    return {name: value for name, value in {**facts, **fields}.items() if value is not None}


def who(ranks: Sequence[int]) -> str | None:
    """Name ranks: `rank 1` or `ranks 1, 3`. Return None if there are no ranks."""
    if not ranks:
        return None
    return fill("{word} {ranks:list 8}", {"word": "rank" if len(ranks) == 1 else "ranks", "ranks": list(ranks)})


def reason_of(event: Event, weight: float) -> Reason:
    """Convert a message to a `Reason`, which the page lists as a cause."""
    kind = event.kind
    return Reason(event.code, facts_of(event), words(event), evidence(event), weight, kind.step, kind.command)


_UNNAMED = {
    "rank": "?",
    "host": "an unnamed host",
    "pid": "?",
    "peer": "its peer",
    "seq": "?",
    "operation": "an operation",
    "signal": "?",
    "exit_code": "?",
}


def words(event: Event) -> str:
    """Return the meaning of a message in words.

    A field that the log lacks becomes a placeholder such as a question mark.
    """
    facts = facts_of(event)
    try:
        return fill_present(event.kind.what, facts)
    except KeyError:
        return fill_present(event.kind.what, {**_UNNAMED, **facts}, event.code)


def evidence(event: Event) -> str:
    """Return the file and line of a message, and its text."""
    where = f"{event.source}:{event.line}" if event.line else event.source
    return f"{where}: {event.printed}" if event.printed else where


def coded_document(line: Coded) -> dict[str, Any]:
    """Return a line of the page as a dictionary for JSON documents."""
    return {"code": line.code, "facts": dict(line.facts), "text": line.text}


def event_document(event: Event) -> dict[str, Any]:
    """Return a message as a dictionary for JSON documents."""
    facts: Mapping[str, Any] = facts_of(event)
    return {"code": event.code, "text": words(event), "printed": event.printed, "facts": dict(facts)}
