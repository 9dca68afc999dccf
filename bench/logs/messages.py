"""Codes and messages for problems with a log: files, lost lines, figures and cells.

Codes of a single tool are in the file of the tool's reader. The templates contain no line numbers. A remark stores the
line number in a field of its own. A failure has the line number at the end of its text.
"""

from __future__ import annotations

from bench.core.codes import Code, OptionalPartsCode

# How a job went on. The facts are those of `Course.facts` (logs/progress.py).
COURSE = (
    "<has_steps?the job made steps {first_step} to {last_step}>"
    "<has_epochs?the job made epochs {first_step} to {last_step}>"
    "<has_time?the job simulated the times {first_step} to {last_step}>"
    "<has_clock?the job went on with its simulation>"
    "<has_percent?the job got from {first_step} % to {last_step} % of its work>"
    "<has_steps_only? and the log ends there (line {last_step_line})>"
    "<has_more? (the last one in line {last_step_line} of {num_lines})>"
    "<has_both? and reported success (line {success_line})>"
    "<has_success_only?the job reported success (line {success_line})>"
)


class LogCode(OptionalPartsCode):
    """Problems of a log, a run, a row or a cell, for logs of all tools."""

    # A file without results
    FILE_UNREADABLE = "file-unreadable", "{source} cannot be read ({error})"
    ARCHIVE_DAMAGED = (
        "archive-damaged",
        "{source} is a damaged {kind} archive ({error}): unpack it by hand, or copy it again",
    )
    ARCHIVE_CUT = (
        "archive-cut",
        "the {kind} archive {source} is truncated: only the results before the cut were read",
    )
    ARCHIVE_TOO_LARGE = (
        "archive-too-large",
        "{source} unpacks to more than {most:bytes}: unpack it, and name the log inside",
    )
    FILE_BINARY = "file-binary", "{source} is binary, not a log: unpack it, or name the tool's own output"
    FILE_EMPTY = "file-empty", "{source} is empty: the tool printed nothing, or printed to another file"
    NOT_RECOGNISED = (
        "not-recognised",
        "{source} contains <for_messages?neither results of a known tool nor a known failure message>"
        "<!for_messages?no log of a known tool>; linkbench reads the logs of {tools:list}",
    )
    NO_FAILURE_MESSAGE = (
        "no-failure-message",
        f"no known failure message in {{source}}; {COURSE}. "
        "<!success_line?If the job failed, give explain the complete output, also that of the launcher and of the "
        "scheduler. >This log holds no results of a known tool either; linkbench reads the logs of {tools:list}",
    )

    # A run
    TOOL_ERROR = "tool-error", "{printed}"  # the text of the tool, its launcher or a library
    NO_REASON = "no-reason", "the log does not say why"
    NO_ROWS = "no-rows", "the table has no row: the program crashed, or this side of the test prints no results"
    NO_TABLE = "no-table", "{test} has no table"
    NEVER_FINISHED = "never-finished", "{test} did not finish: it has no table, or the log was cut"
    WAIVED = "waived", "{test} was waived: the tool says that it cannot run here"
    LINES_LEFT_OUT = "lines-left-out", "lines were left out here"
    WRONG_DATA = "wrong-data", "the tool found wrong data at {size} bytes"
    TABLE_UNKNOWN = "table-unknown", "linkbench does not read tables of this type: {printed}"
    TITLE_TWICE = "title-twice", "the {what} is printed twice: both sides of the test printed into this log"
    SEVERAL_RUNS_AT_ONCE = "several-runs-at-once", "several runs printed into one log at once: {evidence}"
    MORE_REMARKS = "more-remarks", "{num:n more remark} left out"

    # A row
    ROW_UNREADABLE = "row-unreadable", "this row is cut or cannot be read: {printed}"
    ROW_CUT = "row-cut", "row {row} of {table} is cut: {lost} of {columns} values are lost"
    ROWS_MISSING = "rows-missing", "rows {first} to {last} of {table} are missing"
    TABLE_UNREADABLE = "table-unreadable", "no row of {table} can be read"
    TABLE_TOO_LARGE = (
        "table-too-large",
        "linkbench omits {table}: with this table, the run would have more than {most:,} cells",
    )
    FIGURES_FAILED = "figures-failed", "{table}: {num} of {total} figures are zero or not numbers"
    NO_TIME = "no-time", "the row of {size} bytes has no time, or a negative time"
    NOT_SIZE_BY_TIME = "not-size-by-time", "algbw is not size / time"
    NOT_BY_FACTOR = (
        "not-by-factor",
        "in {num_rows:n row}, busbw is not algbw x {factor:.6g} (the bus factor of {num_ranks} ranks)",
    )
    BUSBW_BY_OTHER_FACTOR = (
        "busbw-by-other-factor",
        "the row's busbw is not algbw x the bus factor of this number of ranks",
    )
    STORED_AS_CONTRADICTING = "stored-as-contradicting", "the row's figures contradict each other"

    # A translation
    BLOCKS_TO_PAYLOAD = (
        "blocks-to-payload",
        "the log gives the size of one rank's block; linkbench multiplied this size by {num_ranks} ranks",
    )

    # A record
    SIZE_IS_BLOCK = (
        "size-is-block",
        "line {line}: {size} bytes is the size of one rank's block; give --num-ranks to get the total size",
    )
    SIZE_UNKNOWN = "size-unknown", "line {line}: the size of this row cannot be read"
    UNREADABLE_FIGURE = "unreadable-figure", "line {line}: the printed {figures:list} is not a number"
    NO_FIGURE = "no-figure", "line {line}: no figure was printed"
    PATH_WAIVED = "path-waived", "{src} to {dst}: waived by {tool}"
    CELL_FAILED = "cell-failed", "{src} to {dst}: the tool printed zero, or no number"
    TEST_FAILED = "tool-test-failed", "{test}: the tool's test failed"
    CELL_UNREADABLE = "cell-unreadable", "{src} to {dst}: the figure is missing from the log"


class ToolCode(Code):
    """Reasons why another benchmark tool does not measure a case. The file of a tool defines further codes."""

    NOT_INSTALLED = "tool-not-installed", "{text}"
    NO_PROGRAM = "no-program", "{tool} has no program for {pattern}"
    OPTION_UNSUPPORTED = "option-unsupported", "{tool} does not support {option} {value}"
