"""Describe the origin of a figure: what was measured, modelled or imported, on which machine, in which run and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.core.record import Header
from bench.results.busy import busy_run
from bench.results.document import Document, Summary
from bench.results.headline import NamedRun, machine_words


@dataclass(frozen=True, slots=True)
class FigureOrigin:
    """The origin of a figure: machine, cluster, run and date, and whether the machine was busy.

    Each fact is a text, and empty texts are not shown.
    """

    machine: str
    cluster: str = ""
    run: str = ""
    date: str = ""
    busy: str = ""

    def parts(self) -> list[str]:
        """Return the texts of all known facts."""
        named = (f"cluster {self.cluster}" * bool(self.cluster), f"run {self.run}" * bool(self.run))
        return [part for part in (self.machine, *named, self.date, self.busy) if part]

    def __str__(self) -> str:
        return " | ".join(self.parts())


def of_document(document: Document, run: NamedRun | None = None) -> FigureOrigin:
    """Return the origin of the figures of a run. `run`: the names of the run, if known."""
    headers, busy = list(document.headers.values()), busy_run(document)
    return FigureOrigin(
        machine=machine_words(headers),
        cluster=_cluster(headers, run),
        run=", from ".join(filter(None, (Path(run.name).name if run else "", _logs(headers)))),
        date=dates(header.started for header in headers),
        busy=f"BUSY MACHINE ({busy.num} of {busy.of} figures)" if busy.matters else "",
    )


def _cluster(headers: Sequence[Header], run: NamedRun | None) -> str:
    if run is not None and run.cluster:
        return run.cluster
    return "" if all(header.imported for header in headers) else "not recorded"


def _logs(headers: Sequence[Header]) -> str:
    """Return the name of the imported log, or the number of logs if there are several.

    Return "" if nothing was imported.
    """
    names = sorted({str(header.imported.get("source")) for header in headers if header.imported})
    return f"{len(names)} logs" if len(names) > 1 else "".join(Path(name).name for name in names)


def dates(started: Iterable[str]) -> str:
    """Return the first and the last day of these times. If both are the same day, return this day: `2026-11-21`."""
    days = sorted({each[:10] for each in started if each})
    if not days:
        return "date not stated"
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def kind_of(rows: Iterable[Summary]) -> str:
    """Return the first words of an origin: MEASURED, MODELLED or IMPORTED."""
    kinds = {
        "IMPORTED from other tools' logs" if row.imported else "MODELLED, not measured" if row.modelled else "MEASURED"
        for row in rows
    }
    return " and ".join(sorted(kinds)) or "MEASURED"
