"""nccl-tests and rccl-tests: their output of any age, as text or JSON, read from clean and from dirty logs.

The size is S as we count it, the time a mean over ranks of each rank's mean, rates are 10^9 bytes per second
(methodology: "nccl-tests"). Both placements of a line become a row of their own. Hypercube's algbw is translated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.core.foreign import Line, Reader, Run
from bench.tools._nccl_json import Document, dotted
from bench.tools._nccl_pattern import PROGRAM, PROGRAMS, SOURCE
from bench.tools._nccl_rows import Fields, agrees, begins_row, is_figures, joined, may_begin_row, read
from bench.tools._nccl_run import Named, OpenRun

_BANNER = re.compile(
    r"nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) step: (\d+)\((\w+)\) warmup iters: (\d+) iters: (\d+)"
    r"(?: agg iters: (\d+))?(?: validation: (\d+))?(?: graph: (\d+))?(?: unalign: (\d+))?"
)
_BANNER_WORDS = (
    "threads", "gpus_per_thread", "min_bytes", "max_bytes", "step", "step_kind", "warmup_iters", "iters", "agg_iters",
    "validation", "graph", "unalign",
)  # fmt: skip
_DEVICE = re.compile(r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_VERSION = re.compile(r"nccl-tests version (\S+)(?:.*nccl-library=(\d+))?")
_RCCL_VERSION = re.compile(r"rccl-tests: Version (\S+)")
_STARTING = re.compile(r"Collective test starting: (\S+)")
_CONCLUDED = re.compile(r"Collective test concluded")
_TITLE = re.compile(r"size\s+count\s+type\b")
_WRONG = re.compile(r"Out of bounds values\s*:\s*(\d+)\s*(\w*)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)\s*(\w*)")
_REDUCED = re.compile(r"Reducing maxBytes to (\d+)")
_ERROR_LINE = re.compile(r"error: (.*\S)")
_LIBRARY = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*(\d\S*)")
# NCCL's own lines: host:pid:thread [device] NCCL INFO ...; glued to what was printed before them.
_TALK = re.compile(r"(?:\[\d{4}-\d\d-\d\d [^\]]*\]\s)?(\S*?):\d+:\d+ \[\d+\] (?:NCCL|\S+:\d+ NCCL|graph/|misc/)")
_GLUED = re.compile(r"(-1|N/A|-?\d+(?:\.\d+)?(?:e[+-]\d+)?)(?=\D)")
_ELISION = re.compile(r"#?\s*[\[(<]?\s*(?:\.{3,}|…|snip\b|\d+ (?:more )?lines? (?:omitted|skipped|removed))")
_OWN_FAILURE = re.compile(
    r"\S{1,255}: Test (?:NCCL|CUDA) failure \S+:\d|\.\. \S{1,255} pid \d+: Test failure \S+:\d"
    r"|Invalid number of GPUs: \d"
)
_FAILURE = re.compile(
    r"unhandled (?:cuda|system) error|[Ss]egmentation fault|mpirun noticed|srun: error|slurmstepd: error|MPI_ABORT"
    r"|Primary job +terminated|prterun noticed|command terminated with exit code|core dumped|terminate called"
    r"|Signal: (?:Seg|Bus|Abort)|exited on signal|BAD TERMINATION"
)
_FAILURE_HINT = re.compile(
    r"ailure|error|fault|notice|ABORT|terminate|dumped|Signal|signal|TERMINATION|Invalid|timeout"
)
_GPUS_OF_COMMAND = re.compile(r"\s-(?:g|-ngpus)\s*=?(\d{1,3})(?=\s|$)")
_THREADS_OF_COMMAND = re.compile(r"\s-(?:t|-nthreads)\s*=?(\d{1,3})(?=\s|$)")
_LAUNCHER = re.compile(r"mpirun|mpiexec|srun|prun|torchrun|kubectl|orterun|flux")
_LONGEST_SENTENCE = 300
_MOST_PIECES = 12
_LONGEST_PIECE = 400
_MANY_FIGURES = 4
_NOTHING: tuple[Run, ...] = ()


class NcclTests(Reader):
    """One open run, at most one row in pieces, and the name of the program that was seen last."""

    tool = "nccl_tests"

    def __init__(self) -> None:
        self._run: OpenRun | None = None
        self._pieces: list[str] = []  # of a row that is not whole
        self._pieces_line = 0
        self._at_end = False
        self._command: Named | None = None
        self._gpus_of_command: int | None = None
        self._document: Document | None = None
        self._done: list[Run] = []

    def begins(self, text: str) -> bool:
        """Banner, device, header, footer, failure and data lines; the first line of its JSON."""
        if text[:1].isdigit():
            return len(text) <= _LONGEST_PIECE and _whole_row(text.split()) is not None
        if text[:1] in ("{", '"'):
            return Document.begins(text)
        return _BEGINNING.match(text) is not None

    def feed(self, line: Line) -> Iterator[Run]:
        """See Reader."""
        number, text = line
        if text:
            if self._document is not None or (text[0] in '{"' and Document.begins(text)):
                self._read_json(number, text)
            elif "NCCL INFO" in text or "NCCL WARN" in text:
                self._read_talk(number, text)
            else:
                self._read(number, text)
            if self._done:
                return self._take()
        return iter(_NOTHING)

    def finish(self) -> Iterator[Run]:
        """See Reader."""
        if self._document is not None:
            self._done += self._document.finish()
            self._document = None
        self._at_end = True
        self._close()
        return self._take()

    def _take(self) -> Iterator[Run]:
        done, self._done = self._done, []
        return iter(done)

    # ------------------------------------------------------------------------------------------------ kinds of lines

    def _read_json(self, number: int, text: str) -> None:
        if self._document is None:
            self._close()
            self._document = Document(number)
        if self._document.feed(text):
            self._done += self._document.finish()
            self._document = None

    def _read_talk(self, number: int, text: str) -> None:
        """NCCL's own lines: what was printed before them on the same line, and the library's version."""
        if " version " in text:
            self._read_version(text)
        if text[0].isalpha():
            return
        found = _TALK.search(text)
        if found is None:
            return
        host = found[1]
        before = text[: found.start()] + self._printed_before(host)
        if before.strip():
            self._read(number, before.strip())

    def _printed_before(self, token: str) -> str:
        """`-1mew0`, a figure and a host without a space between them: the figure."""
        hosts = self._run.hosts if self._run else {}
        for host in sorted(hosts, key=len, reverse=True):
            if token.endswith(host):
                return token[: -len(host)]
        glued = _GLUED.match(token)
        return glued[1] if glued and self._run and (self._pieces or token[0] == "-") else ""

    def _read(self, number: int, text: str) -> None:
        first = text[0]
        if (first.isdigit() or first in "-.nN" or self._pieces) and self._read_figures(number, text):
            return
        if first == "#" or self._run is not None or self._worth_a_look(text):
            self._read_words(number, text)

    def _worth_a_look(self, text: str) -> bool:
        return "_perf" in text or _BEGINNING.match(text) is not None

    # ------------------------------------------------------------------------------------------------ rows

    def _read_figures(self, number: int, text: str) -> bool:
        """A row, a piece of one, or neither (False)."""
        if len(text) > _LONGEST_PIECE:
            return False
        tokens = text.split()
        run = self._run
        if begins_row(tokens):
            if run is None and _whole_row(tokens) is None:
                return False
            self._drop_pieces()
            self._read_row(number, text, tokens)
            return True
        if run is None:
            return False
        if self._pieces and _is_piece(tokens) and len(self._pieces) < _MOST_PIECES:
            self._pieces.append(text)
            self._try_pieces()
            return True
        if run.footer or not (run.title or run.rows):
            return False
        if may_begin_row(tokens):
            self._pieces, self._pieces_line = [text], number
            return True
        if len(tokens) >= 3 and "." in text and is_figures(tokens):
            run.lose(
                number, f"line {number}: figures without the size they belong to", f"line {number} is a piece of a row"
            )
            return True
        return False

    def _read_row(self, number: int, text: str, tokens: list[str]) -> None:
        run = self._for_row(number, tokens)
        fields = read(tokens, run.shape)
        if fields is None or len(fields.halves) != run.shape.halves or fields.rest:
            otherwise = _whole_row(tokens) if run.title else None
            if otherwise is not None and agrees(otherwise):  # whole, but not of the kind that the header announces
                fields = otherwise
        if fields is None:
            run.lose(number, f"line {number} begins like a row, but is none", f"line {number} can not be read")
        elif len(fields.halves) == 2 or (len(fields.halves) == run.shape.halves and not fields.rest):
            run.add(fields, number)
            run.last_line = number
        else:
            self._pieces, self._pieces_line = [text], number

    def _for_row(self, number: int, tokens: list[str]) -> OpenRun:
        """The run that a row belongs to: a new one after an end, or where a header came again and sizes begin anew."""
        run = self._run
        if run is None or run.over or run.footer:
            return self._open(number)
        if run.titled_again:
            run.titled_again = False
            if run.rows and (run.rows[-1].payload_bytes or 0) >= int(tokens[0]):
                title = run.title
                run = self._open(number)
                run.entitle(title)
        return run

    def _try_pieces(self) -> None:
        run = self._run
        if run is None:
            return
        fields = joined(self._pieces, run.shape)
        if fields is not None:
            self._pieces = []
            run.add(fields, self._pieces_line)
            run.last_line = self._pieces_line

    def _drop_pieces(self) -> None:
        """A row that was never completed: what is whole of it stays, the rest is said to be lost."""
        pieces, self._pieces = self._pieces, []
        run = self._run
        if not pieces or run is None:
            return
        number, tokens = self._pieces_line, " ".join(pieces).split()
        if not begins_row(tokens) and not self._at_end:
            run.say(number, f"line {number}: figures that belong to no row")
            return
        fields = read(tokens, run.shape) if begins_row(tokens) and len(pieces) == 1 else None
        if fields is not None and len(fields.halves) == 1 and fields.rest:  # what follows it shows that it is whole
            run.add(fields, number)
            run.last_line = number
            run.lose(number, f"line {number}: the row is cut, its in-place half is lost", f"line {number} is cut")
        else:
            run.lose(number, f"line {number}: the row is cut, it is lost", f"line {number} is cut")

    # ------------------------------------------------------------------------------------------------ words

    def _read_words(self, number: int, text: str) -> None:
        body = text.lstrip("# ")
        for form, handle in _FORMS:
            found = form.match(body)
            if found is not None:
                handle(self, number, found)
                return
        if "_perf" in text:
            self._read_command(number, text)
        if "version" in text:
            self._read_version(text)
        if _ELISION.match(text):
            self._read_elision(number)
        elif _FAILURE_HINT.search(text):
            self._read_failure(number, text)

    def _read_banner(self, number: int, found: re.Match[str]) -> None:
        run = self._run
        if run is not None and run.banner == found[0] and not run.rows and not run.failure and not run.footer:
            run.copies += 1
            return
        if run is None or run.banner is not None or run.rows or run.footer or run.failure:
            run = self._open(number)
        run.banner = found[0]
        values = zip(_BANNER_WORDS, found.groups(), strict=True)
        run.settings.update({word: value for word, value in values if value is not None})

    def _read_device(self, number: int, found: re.Match[str]) -> None:
        run = self._run
        if run is None or run.rows or run.footer:
            run = self._open(number)
        rank, group, host = int(found[1][:9]), int((found[2] or "0")[:9]), found[4]
        if (group, rank) in run.ranks:
            if run.copies >= 1:
                run.copies = -1
                run.say(
                    number,
                    f"line {number}: rank {rank} is listed twice: several runs print at once, their rows are mixed",
                )
            return
        run.ranks[group, rank] = host
        run.hosts[host] = None
        if found[5].strip():
            run.gpus[found[5].strip()] = None

    def _read_tests_version(self, number: int, found: re.Match[str]) -> None:
        run = self._fresh(number)
        run.version = found[1]
        if found[2]:
            run.settings.setdefault("nccl", dotted(int(found[2][:9])))

    def _read_rccl(self, number: int, found: re.Match[str]) -> None:
        run = self._run or self._open(number)
        run.rccl, run.version = True, found[1]

    def _read_starting(self, number: int, found: re.Match[str]) -> None:
        run = self._fresh(number)
        name = PROGRAM.search(found[1])
        run.named = Named(PROGRAMS[name[1]] if name else None, found[1][:80], number)

    def _read_title(self, number: int, found: re.Match[str]) -> None:
        words = found.string.split()[:40]
        if not {"algbw", "busbw"} <= set(words) or not {"time", "cputime"} & set(words):
            return  # a header that was cut says less than the rows do
        self._drop_pieces()
        run = self._run
        if run is None or run.footer or run.failure:
            run = self._open(number)
        run.titled_again = bool(run.rows)
        run.entitle(tuple(words))

    def _read_wrong(self, number: int, found: re.Match[str]) -> None:
        run = self._footer(number)
        run.settings["out_of_bounds"] = found[1][:20]
        if found[1].strip("0") or found[2] == "FAILED":
            run.fail(f"out of bounds values: {found[1][:20]} {found[2]} (line {number})")

    def _read_average(self, number: int, found: re.Match[str]) -> None:
        run = self._footer(number)
        try:
            run.average, run.average_line = float(found[1]), number
        except ValueError:
            run.say(number, f"line {number}: the average bus bandwidth is no number")
        if found[2] == "FAILED":
            run.fail(f"the average bus bandwidth is below what was demanded (line {number})")

    def _read_concluded(self, number: int, found: re.Match[str]) -> None:
        if self._run is not None:
            self._drop_pieces()
            self._run.over = True

    def _read_reduced(self, number: int, found: re.Match[str]) -> None:
        if self._run is not None:
            self._run.settings["max_bytes"] = found[1][:19]
            self._run.say(number, f"line {number}: sizes end at {found[1][:19]} bytes for lack of memory")

    def _read_error(self, number: int, found: re.Match[str]) -> None:
        if self._run is not None:
            self._run.fail(f"{found[1][:_LONGEST_SENTENCE]} (line {number})")

    def _read_command(self, number: int, text: str) -> None:
        names = {name for name in PROGRAM.findall(text)}
        if len(names) != 1:
            self._command = self._gpus_of_command = None
            return
        word = names.pop()
        self._command = Named(PROGRAMS[word], f"{word}_perf", number)
        gpus, threads = _GPUS_OF_COMMAND.search(text), _THREADS_OF_COMMAND.search(text)
        alone = gpus is not None and not _LAUNCHER.search(text)
        self._gpus_of_command = int(gpus[1]) * int(threads[1] if threads else 1) if gpus and alone else None
        run = self._run
        if run is not None and not run.rows and not run.footer and not run.failure and run.command is None:
            run.command, run.gpus_of_command = self._command, self._gpus_of_command
            self._command = self._gpus_of_command = None

    def _read_version(self, text: str) -> None:
        library = _LIBRARY.search(text)
        if library is not None and self._run is not None:
            self._run.settings.setdefault(library[1].lower(), library[2])
            self._run.rccl |= library[1] == "RCCL"

    def _read_elision(self, number: int) -> None:
        run = self._run
        if run is None or run.footer:
            return
        if run.title or run.rows or run.ranks:
            self._drop_pieces()
            run.lose(
                number,
                f"line {number}: rows were left out here by whoever wrote this",
                f"rows were left out in line {number}",
            )
        else:
            run.say(number, f"line {number}: lines were left out here by whoever wrote this")

    def _read_failure(self, number: int, text: str) -> None:
        own = _OWN_FAILURE.match(text)
        if own is None and (text[0] == "#" or not _FAILURE.search(text)):
            return
        run = self._run
        if run is None:
            if own is None:
                return
            run = self._open(number)
        self._drop_pieces()
        source = SOURCE.search(text)
        if source and run.command is None:
            run.command = Named(PROGRAMS[source[1]], source[0], number)
        sentence = text[:_LONGEST_SENTENCE]
        if run.footer and own is None:
            run.say(number, f"line {number}, after the end: {sentence}")
        else:
            run.fail(f"{sentence} (line {number})")

    # ------------------------------------------------------------------------------------------------ runs

    def _open(self, number: int) -> OpenRun:
        self._close()
        self._run = OpenRun(number, command=self._command, gpus_of_command=self._gpus_of_command)
        self._command = self._gpus_of_command = None
        return self._run

    def _fresh(self, number: int) -> OpenRun:
        """The run that the first lines of a banner belong to."""
        run = self._run
        if run is None or run.banner or run.title or run.rows or run.footer or run.failure or run.ranks:
            return self._open(number)
        return run

    def _footer(self, number: int) -> OpenRun:
        self._drop_pieces()
        run = self._run or self._open(number)
        if run.average is not None:
            run = self._open(number)
        run.footer = True
        return run

    def _close(self) -> None:
        self._drop_pieces()
        if self._run is not None:
            self._done.append(self._run.close())
            self._run = None


_FORMS = (
    (_BANNER, NcclTests._read_banner),
    (_DEVICE, NcclTests._read_device),
    (_TITLE, NcclTests._read_title),
    (_WRONG, NcclTests._read_wrong),
    (_AVERAGE, NcclTests._read_average),
    (_VERSION, NcclTests._read_tests_version),
    (_RCCL_VERSION, NcclTests._read_rccl),
    (_STARTING, NcclTests._read_starting),
    (_CONCLUDED, NcclTests._read_concluded),
    (_REDUCED, NcclTests._read_reduced),
    (_ERROR_LINE, NcclTests._read_error),
)
_BEGINNING = re.compile(
    r"[# ]*(?:"
    + "|".join(form.pattern for form, _ in _FORMS if form not in (_ERROR_LINE, _CONCLUDED, _REDUCED))
    + rf"|{_OWN_FAILURE.pattern})"
)


def _whole_row(tokens: list[str]) -> Fields | None:
    """A row that can be nothing else: size, count, type, and whole halves."""
    if not begins_row(tokens):
        return None
    fields = read(tokens)
    return fields if fields and len(fields.halves) == 2 and not fields.rest else None


def _is_piece(tokens: list[str]) -> bool:
    """Can this be a part of a row? Figures, or many of them behind words that are no longer than a type."""
    if len(tokens) >= 24 or any(len(token) > 20 for token in tokens):
        return False
    return is_figures(tokens) or (len(tokens) > _MANY_FIGURES and is_figures(tokens[-_MANY_FIGURES:]))


READER = NcclTests
