"""Read the text output of nccl-tests line by line, and assign each line to a run."""

from __future__ import annotations

import re
from collections.abc import Callable

from bench.logs.foreign import ForeignRun
from bench.logs.messages import LogCode
from bench.logs.readers import _nccl_forms as forms
from bench.logs.readers._lines import FENCE
from bench.logs.readers._nccl_messages import NcclCode
from bench.logs.readers._nccl_pattern import COMMAND, PROGRAM, PROGRAMS, NamedPattern
from bench.logs.readers._nccl_rows import (
    UNTITLED,
    Fields,
    agrees,
    begins_row,
    is_damaged_row,
    is_half,
    may_begin_row,
    read,
)
from bench.logs.readers._nccl_run import LONGEST_PIECE, OpenRun, Pieces, dotted
from bench.logs.readers._run_notes import shown

# Messages of NCCL: host:pid:thread [device] NCCL INFO ..., possibly directly after other output on the same line.
_MESSAGE = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d [^\]]*\]\s)?(\S{0,255}?):\d+:\d+ \[\d+\] (?:NCCL|\S+:\d+ NCCL|graph/|misc/)"
)
_GLUED = re.compile(r"(-1|N/A|-?\d+(?:\.\d+)?(?:e[+-]\d+)?)(?=\D)")


class Text:
    """The state of the text parser: the open run, the pieces of an interrupted row, and the last command.

    `done`: the runs that have ended.
    """

    def __init__(self) -> None:
        self.done: list[ForeignRun] = []
        self._run: OpenRun | None = None
        self._pieces = Pieces()
        self._command: tuple[NamedPattern, int | None] | None = None
        self._goes_on = False  # whether the previous line ends in a backslash
        self._half_at_head: int | None = None  # the last line before a run with figures of a row without its size

    def read(self, number: int, text: str) -> None:
        """Read a non-empty line."""
        if "NCCL INFO" in text or "NCCL WARN" in text:
            self._read_message(text, number)
        else:
            self._read(number, text)

    def close(self, at_end: bool = False) -> None:
        """Close the open run, if there is one. `at_end`: whether the file has ended."""
        if self._run is not None:
            self._pieces.drop(self._run, at_end)
            self.done.append(self._run.close())
            self._run = None

    def _read_message(self, text: str, number: int) -> None:
        """Read a line with a message of NCCL.

        Parse the program's output that precedes the message, and the version of the library.
        """
        if " version " in text:
            self._read_version(text)
        if text[0].isalpha() and " " not in text[: text.find(" [")]:
            return  # nothing was printed before host:pid:thread
        found = _MESSAGE.search(text[:LONGEST_PIECE])
        if found is None:
            self._miss(number, text)
            return
        host = found[1]
        before = text[: found.start()] + self._printed_before(host)
        if before.strip():
            self._read(number, before.strip())

    def _printed_before(self, token: str) -> str:
        """Return the number in front of the host name in a word such as `-1mew0`.

        Return "" if there is no such number.
        """
        hosts = self._run.hosts if self._run else {}
        for place in range(len(token)):
            if token[place:] in hosts:
                return token[:place]
        glued = _GLUED.match(token)
        return glued[1] if glued and self._run and (self._pieces or token[0] == "-") else ""

    def _read(self, number: int, text: str) -> None:
        first = text[0]
        if (first.isdigit() or first in "-.nN" or self._pieces) and self._read_figures(number, text):
            return
        if self._miss(number, text):
            return
        if first == "#" or self._run is not None or "_perf" in text or begins_run(text):
            self._read_words(number, text)
        self._goes_on = text[-1] == "\\"

    # ------------------------------------------------------------------------------------------------ rows

    def _read_figures(self, number: int, text: str) -> bool:
        """Read a row or a piece of a row. Return whether the line is a row or a piece."""
        if len(text) > LONGEST_PIECE:
            return False
        tokens = text.split()
        run = self._run
        if begins_row(tokens):
            if run is None and whole_row(tokens) is None:
                return False
            self._drop()
            self._read_row(number, text, tokens)
            return True
        if run is None:
            if "." in text and is_half(tokens, UNTITLED):
                self._half_at_head = number
            return False
        if self._pieces.take(text, tokens, run):
            return True
        if run.footer or not (run.title or run.rows):
            return False
        if may_begin_row(tokens):
            self._pieces.begin(text, number)
            return True
        if "." in text and is_half(tokens, run.shape):
            run.lose(number, NcclCode.FIGURES_WITHOUT_SIZE)
            return True
        return False

    def _miss(self, number: int, text: str) -> bool:
        """Report a damaged row of an open table as lost. Return whether the line is a damaged row."""
        run = self._run
        if run is None or text[0] == "#" or run.footer or not (run.title or run.rows):
            return False
        if not is_damaged_row(text[:LONGEST_PIECE], run.shape):
            return False
        self._drop()
        run.lose(number, NcclCode.ROW_DAMAGED)
        return True

    def _read_row(self, number: int, text: str, tokens: list[str]) -> None:
        run = self._for_row(number, tokens)
        fields = read(tokens, run.shape)
        if fields is None or len(fields.halves) != run.shape.halves or fields.rest:
            otherwise = whole_row(tokens) if run.title else None
            # a complete row with other columns than the header announces
            if otherwise is not None and agrees(otherwise):
                fields = otherwise
        if fields is None:
            run.lose(number, NcclCode.ROW_DAMAGED)
        elif len(fields.halves) == 2 or (len(fields.halves) == run.shape.halves and not fields.rest):
            run.add(fields, number)
        else:
            self._pieces.begin(text, number)

    def _for_row(self, number: int, tokens: list[str]) -> OpenRun:
        """Return the run to which a row belongs.

        A row begins a new run in two cases: the previous run has ended, or the sizes start again after a repeated
        header.
        """
        run = self._run
        if run is None:
            run = self._open(number)
            if self._half_at_head is not None and number - self._half_at_head <= _FEW_LINES:
                run.lose(self._half_at_head, NcclCode.FIGURES_WITHOUT_SIZE)
            return run
        if run.over or run.footer:
            return self._open(number)
        if run.titled_again:
            run.titled_again = False
            if run.rows and (run.rows[-1].payload_bytes or 0) >= int(tokens[0]):
                title = run.title
                run = self._open(number)
                run.entitle(title)
        return run

    def _drop(self) -> None:
        if self._run is not None:
            self._pieces.drop(self._run, at_end=False)

    # ------------------------------------------------------------------------------------------------ words

    def _read_words(self, number: int, text: str) -> None:
        if text.startswith(FENCE) and self._run is not None and self._run.footer:
            self.close()  # text after the log
            return
        body = text.lstrip("# ")
        form, handle = _FORMS.get(_first_word(body), (None, None))
        found = form.match(body) if form else None
        if found is not None and handle is not None:
            handle(self, number, found)
            return
        if "_perf" in text:
            self._read_command(number, text)
        if "version" in text:
            self._read_version(text)
        if forms.ELISION.match(text):
            self._read_elision(number)
        else:
            self._read_failure(number, text)

    def _read_banner(self, number: int, found: re.Match[str]) -> None:
        run = self._run
        if run is not None and run.banner == found[0] and not run.rows and not run.failures and not run.footer:
            run.banner_again = run.banner_again or (number if not run.ranks else None)
            return
        if run is None or run.banner is not None or run.rows or run.footer or run.failures:
            run = self._open(number)
        run.banner = found[0]
        values = zip(forms.BANNER_WORDS, found.groups(), strict=True)
        run.settings.update({word: value for word, value in values if value is not None})

    def _read_device(self, number: int, found: re.Match[str]) -> None:
        run = self._run
        if run is None or run.rows or run.footer:
            run = self._open(number)
        rank, place = int(found[1]), (int(found[2] or 0), found[4], int(found[3] or 0))
        if run.ranks.setdefault(rank, place) != place:
            run.mixed = run.mixed or number
        run.hosts[found[4]] = None
        if found[5].strip():
            run.gpus[found[5].strip()] = None

    def _read_tests_version(self, number: int, found: re.Match[str]) -> None:
        run = self._fresh(number)
        run.version = found[1]
        if found[2]:
            run.settings.setdefault("nccl", dotted(int(found[2])))

    def _read_rccl(self, number: int, found: re.Match[str]) -> None:
        run = self._fresh(number) if found["first"] else self._run or self._open(number)
        run.rccl, run.version = True, found["version"]
        if found["library"]:
            run.settings.setdefault("rccl", dotted(int(found["library"])))

    def _read_collective(self, number: int, found: re.Match[str]) -> None:
        name = PROGRAM.search(found[2])
        named = NamedPattern(PROGRAMS[name[1]] if name else None, found[2], number)
        if found[1] == _CONCLUDED:
            if self._run is not None:
                self._drop()
                self._run.over = True
                self._run.named = self._run.named or named
            return
        self._fresh(number).named = named

    def _read_title(self, number: int, found: re.Match[str]) -> None:
        words = found.string.split()[:40]
        if not {"algbw", "busbw"} <= set(words) or not {"time", "cputime"} & set(words):
            return  # the rows show more than a header that was cut
        self._drop()
        run = self._run
        if run is None or run.footer or (run.failures and (run.rows or run.title)):
            run = self._open(number)
        run.titled_again = bool(run.rows)
        run.entitle(tuple(words))

    def _read_wrong(self, number: int, found: re.Match[str]) -> None:
        run = self._footer(number)
        run.settings["out_of_bounds"] = found[1]
        if found[1].strip("0") or found[2] == "FAILED":
            run.add_failure(number, NcclCode.OUT_OF_BOUNDS, values=int(found[1]), verdict=found[2])

    def _read_average(self, number: int, found: re.Match[str]) -> None:
        run = self._footer(number)
        try:
            run.average, run.average_line = float(found[1]), number
        except ValueError:
            run.remark(number, NcclCode.AVERAGE_NOT_A_NUMBER)
        if found[2] == "FAILED":
            run.add_failure(number, NcclCode.BELOW_DEMANDED)

    def _read_reduced(self, number: int, found: re.Match[str]) -> None:
        if self._run is not None:
            self._run.settings["max_bytes"] = found[1]
            self._run.remark(number, NcclCode.MEMORY_LIMIT, size=int(found[1]))

    def _read_error(self, number: int, found: re.Match[str]) -> None:
        if self._run is not None:
            self._run.add_failure(number, LogCode.TOOL_ERROR, printed=shown(found[1]))

    def _read_command(self, number: int, text: str) -> None:
        self._command = forms.command(number, text, self._goes_on)
        run = self._run
        if run is not None and self._command and run.command is None and not (run.rows or run.footer or run.failures):
            (run.command, run.ranks_of_command), self._command = self._command, None

    def _read_version(self, text: str) -> None:
        library = forms.LIBRARY.search(text)
        if library is not None and self._run is not None:
            self._run.settings.setdefault(library[1].lower(), library[2])
            self._run.rccl |= library[1] == "RCCL"

    def _read_elision(self, number: int) -> None:
        run = self._run
        if run is None or run.footer:
            return
        if run.title or run.rows or run.ranks:
            self._drop()
            run.elided.append(number)
        else:
            run.remark(number, LogCode.LINES_LEFT_OUT)

    def _read_failure(self, number: int, text: str) -> None:
        failure = forms.failure(text)
        if failure is None:
            return
        printed, own = failure
        run = self._run
        if run is None:
            if not own:
                return
            run = self._open(number)
        self._drop()
        run.command = run.command or forms.source(number, text)
        code = NcclCode.ERROR_AFTER_END if run.footer and not own else LogCode.TOOL_ERROR
        run.add_failure(number, code, printed=printed)

    # ------------------------------------------------------------------------------------------------ runs

    def _open(self, number: int) -> OpenRun:
        self.close()
        self._run = OpenRun(number)
        if self._command is not None:
            (self._run.command, self._run.ranks_of_command), self._command = self._command, None
        return self._run

    def _fresh(self, number: int) -> OpenRun:
        """Return the run for the first lines of a banner.

        This is the open run if it is still empty, and otherwise a new run.
        """
        run = self._run
        if run is None or run.banner or run.title or run.rows or run.footer or run.failures or run.ranks:
            return self._open(number)
        return run

    def _footer(self, number: int) -> OpenRun:
        self._drop()
        run = self._run or self._open(number)
        if run.average is not None:
            run = self._open(number)
        run.footer = True
        return run


_FORMS: dict[str, tuple[re.Pattern[str], Callable[[Text, int, re.Match[str]], None]]] = {
    "nThread": (forms.BANNER, Text._read_banner),
    "Rank": (forms.DEVICE, Text._read_device),
    "size": (forms.TITLE, Text._read_title),
    "bytes": (forms.TITLE, Text._read_title),
    "Out": (forms.WRONG, Text._read_wrong),
    "Avg": (forms.AVERAGE, Text._read_average),
    "nccl-tests": (forms.VERSION, Text._read_tests_version),
    "rccl-tests": (forms.RCCL_VERSION, Text._read_rccl),
    "Collective": (forms.COLLECTIVE, Text._read_collective),
    "Reducing": (forms.REDUCED, Text._read_reduced),
    "error": (forms.ERROR, Text._read_error),
}
_FEW_LINES = 3
_LONGEST_WORD = 16  # characters of the first words in _FORMS
_OF_OTHERS, _CONCLUDED = ("error", "Reducing"), "concluded"  # words that other programs print, too


def _first_word(body: str) -> str:
    words = body[:_LONGEST_WORD].split(None, 1)
    return words[0].rstrip(":") if words else ""


def begins_run(text: str) -> bool:
    """Check whether nccl-tests printed the line: a command, a banner, a header, closing lines, or a failure."""
    body = text.lstrip("# ")
    word = _first_word(body)
    form, _ = _FORMS.get(word, (None, None))
    if form is not None and word not in _OF_OTHERS:
        found = form.match(body)
        return found is not None and _CONCLUDED not in found[0]
    if "_perf" in text and COMMAND.search(text):
        return True
    return "Test " in text and forms.OWN_FAILURE.match(text) is not None


def whole_row(tokens: list[str]) -> Fields | None:
    """Return the fields of a line that is a complete row with size, count, type and both halves.

    Return None for any other line.
    """
    if not begins_row(tokens):
        return None
    fields = read(tokens)
    return fields if fields and len(fields.halves) == 2 and not fields.rest else None
