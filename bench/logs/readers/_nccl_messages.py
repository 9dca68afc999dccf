"""Codes and messages for problems with logs of nccl-tests."""

from __future__ import annotations

from bench.core.codes import Code


class NcclCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    # Failures
    FIGURE_NOT_A_NUMBER = (
        "figure-not-a-number",
        "the tool printed no number for {figures:list} {placement}, so the value is unknown",
    )
    WRONG_ELEMENTS = "wrong-elements", "{num_wrong} wrong elements {placement}"
    OUT_OF_BOUNDS = "out-of-bounds", "out of bounds values: {values} {verdict}"
    BELOW_DEMANDED = "below-demanded", "the average bus bandwidth is below the required minimum"
    ERROR_AFTER_END = "error-after-end", "this error was printed after the closing lines: {printed}"

    # Lost rows
    ROW_DAMAGED = "row-damaged", "this line looks like a row, but cannot be read"
    HALF_CUT = "half-cut", "the row is cut: its in-place half is lost"
    WHOLE_ROW_CUT = "whole-row-cut", "the row is cut and lost"
    FIGURES_WITHOUT_SIZE = "figures-without-size", "this line has figures, but no size"
    FIGURES_OF_NO_ROW = "figures-of-no-row", "this line has figures that belong to no row"
    ROWS_LEFT_OUT = "rows-left-out", "rows were left out here"
    NO_ROWS_LEFT_OUT = (
        "no-rows-left-out",
        "lines are missing here, but all rows are present: the printed average agrees with the rows",
    )
    NOT_THE_AVERAGE = (
        "not-the-average",
        "the printed average busbw differs from the average of the rows: rows are missing",
    )
    ROW_TWICE = (
        "row-twice",
        "the printed average busbw differs from the average of the rows: line {twice} is printed twice",
    )
    SIZES_MISSING = "sizes-missing", "the log lacks {num:n requested size} (first: {sizes:list} bytes)"
    ENDS_EARLY = "ends-early", "the log ends at {size} bytes, but {most} bytes were requested"
    ENDS_BEFORE_ROWS = "ends-before-rows", "the log ends before the first row"
    DOCUMENT_CUT = "document-cut", "the JSON document is cut after {num:n result}"
    RESULT_UNREADABLE = "result-unreadable", "a result of the JSON document cannot be read"

    # Doubts and conclusions
    OTHER_KIND = (
        "other-kind",
        "this row differs from the other rows in its ratio of size to count, its operation or its root",
    )
    ROW_CONTRADICTS = "row-contradicts", "the row contradicts itself or other rows: {reason}"
    AVERAGE_NOT_A_NUMBER = "average-not-a-number", "the average bus bandwidth is not a number"
    NO_CLOSING_LINES = "no-closing-lines", "the closing lines are missing: rows or errors may have followed"
    RANK_TWICE = (
        "rank-twice",
        "a rank is listed again with another process: the job was started twice, and the first start printed no rows",
    )
    GROUPS = "groups", "{num} groups of ranks run at the same time; the rows belong to the first group"
    ROWS_OF_ANOTHER_TEST = "rows-of-another-test", "this line names {program}, but the rows are from another test"
    PATTERN_BY_ROWS = (
        "pattern-by-rows",
        "no line names the test; only {pattern} fits the columns, the counts and busbw/algbw",
    )
    PATTERN_UNKNOWN = "pattern-unknown", "no line names the test, and the rows fit several tests"
    RANKS_DISAGREE = "ranks-disagree", "the log lists {listed} ranks, but its rows are from {by_rows} ranks"
    RANKS_UNKNOWN = (
        "ranks-unknown",
        "num_ranks is unknown: the log lists rank {last}, but its rows are from {by_rows} ranks",
    )
    RANKS_BY_ROWS = (
        "ranks-by-rows",
        "num_ranks is {ranks}, derived from size/count or busbw/algbw, because the log does not list the devices",
    )
    RANKS_BY_LAST = (
        "ranks-by-last",
        "num_ranks is {ranks}, derived from the last listed rank; other ranks are missing from the log",
    )
    RANKS_BY_COMMAND = (
        "ranks-by-command",
        "num_ranks is {ranks}, derived from -g and -t of the command: one process on one node",
    )
    CPU_TIME = (
        "cpu-time",
        "linkbench ignores the time column, because the column shows CPU time (-C); algbw and busbw still describe "
        "the operation",
    )
    ITERATION_COLUMNS = (
        "iteration-columns",
        "linkbench ignores the columns of single iterations (i_min, i_max, i_p99, i_cv%)",
    )
    MEMORY_LIMIT = "memory-limit", "sizes end at {size} bytes, because larger sizes did not fit into memory"

    # Translations
    ALGBW_OF_OTHERS = (
        "algbw-of-others",
        "linkbench converted the algbw of {whose} to size / time: the factor is n/(n-1) = {ranks}/{others}",
    )
