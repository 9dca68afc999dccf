"""Define remarks that limit or explain results. Plans and headers of results files store them as codes with facts."""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.codes import Code, Coded


@dataclass(frozen=True, slots=True)
class CodedRemark(Coded):
    """A remark that limits or explains the results. Readers of the results must know it."""


class RemarkCode(Code):
    """Codes of remarks that several packages use. Codes for a single package are in the package's `messages.py`."""

    SIZES_THINNED = (
        "sizes-thinned",
        "only {num_kept} of {num_asked} sizes are measured (with the first and the last), so that each row gets at "
        "least {row_s:g} s of the job's share of the budget, {share_s:time}",
    )
    ROWS_LEFT_OUT = (
        "rows-left-out",
        "{job}: {num_rounds:,} rounds over {num_ranks:,} ranks are {num_rows:,} rows and need at least {least_s:time} "
        "({row_s:g} s each), but the job's share of the budget is {share_s:time}: most rows will be skipped; "
        "give --budget {needed_minutes}m{fewer}",
    )
