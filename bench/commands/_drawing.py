"""Draw the figures of a run. If there are several CPUs and figures, several processes draw at the same time."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from bench.core import plugins
from bench.core.errors import UsageError
from bench.results.document import Document
from bench.results.headline import NamedRun


@dataclass(frozen=True, slots=True)
class Drawing:
    """What to draw, and where.

    `run`: the names of the run, which are shown in the figures.
    `formats`: png, svg or pdf.
    """

    document: Document
    folder: Path
    run: NamedRun | None
    formats: Sequence[str]


def draw(document: Document, folder: Path, run: NamedRun | None = None, formats: Sequence[str] = ()) -> list[Path]:
    """Draw every figure that applies to a run. Returns the paths of the files.

    `run`: the names of the run. The figures show these names. `formats`: png, svg or pdf. The default is PNG and SVG.

    Raises UsageError if a file cannot be written.
    """
    from bench.figures import _style

    drawing = Drawing(document, folder, run, formats or _style.USUAL_FORMATS)
    names = [name for name in plugins.names("figure") if plugins.load("figure", name).applies(document)]
    drawn = _drawn_in_parallel(drawing, names, min(len(names), len(os.sched_getaffinity(0))))
    found: list[Path] = []
    for name in names:  # a figure that another process did not draw is drawn here, where its error is raised
        found += drawn[name] if name in drawn else _draw(drawing, name)
    return found


def _draw(drawing: Drawing, name: str) -> list[Path]:
    """Draw the pictures of one figure. Raises UsageError if a file cannot be written."""
    from bench.figures import _origin, _style

    origin = _origin.of_document(drawing.document, drawing.run)
    drawn: list[Path] = []
    for title, picture in plugins.load("figure", name).draw(drawing.document):
        _style.sign(picture, origin)
        try:
            drawn += _style.save(picture, drawing.folder / title, drawing.formats)
        except OSError as error:
            raise UsageError(
                f"plots cannot be written to {drawing.folder} ({error.strerror}): free some space, or use another "
                f"folder with --plots DIR"
            ) from None
    return drawn


def _drawn_in_parallel(drawing: Drawing, names: Sequence[str], num: int) -> Mapping[str, list[Path]]:
    """Draw figures in `num` processes. Returns the files of each figure that a process drew.

    The processes are forks of this process, because the document may be large and importing matplotlib takes seconds.
    """
    if num < 2:
        return {}
    context = get_context("fork")
    queue: SimpleQueue[str] = context.SimpleQueue()
    for name in (*names, *[""] * num):
        queue.put(name)
    pipes, workers = [], []
    for _ in range(num):
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(drawing, queue, theirs), daemon=True)
        worker.start()
        theirs.close()
        pipes.append(ours)
        workers.append(worker)
    try:
        return {name: files for pipe in pipes for name, files in _received(pipe)}
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(drawing: Drawing, queue: SimpleQueue[str], pipe: Connection) -> None:
    """Draw the figures whose names are in the queue. Send the paths of each figure's files to the parent process.

    If a figure cannot be drawn, the worker sends nothing for this figure.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while name := queue.get():
        with contextlib.suppress(Exception):  # the parent draws this figure again, and reports the error
            pipe.send((name, _draw(drawing, name)))


def _received(pipe: Connection) -> Iterator[tuple[str, list[Path]]]:
    """Yield the name and the file paths of each figure that a worker process drew. Stop when the worker ends."""
    with contextlib.suppress(EOFError):
        while True:
            yield pipe.recv()
