"""Texts of the page."""

from __future__ import annotations

from bench.core.codes import OptionalPartsCode


class PageCode(OptionalPartsCode):
    """The messages that a page shows about its own data."""

    STEPS = (
        "page-steps",
        "this page rounds the figures of {jobs:list 3} ({num} rows) to steps of 0.1 %; the intervals, extremes and "
        "samples of these rows are only in the results files",
    )

    UNJUDGED = (
        "page-unjudged",
        "{num} of {of:n job} cannot be compared with published results<any?. {needs}>",
    )

    NO_BOUND = "rung-no-bound", "no bound is known"
    OF_REFERENCE = "rung-of-reference", "{share:percent} of {bound} (a reference, not a hard bound)"
    LIMITED = "rung-limited", "limited by {bound}"
    IN_STEP = (
        "rung-in-step",
        "{share:percent} of {bound}: during this step, the ranks also compute, and each bucket waits for the "
        "previous bucket",
    )
    FAR_BELOW = "rung-far-below", "far below {bound}: the cause is the software, the message size or a fault"
    NOT_BELOW = "rung-not-below", "not slower than {below}"
    LOWER_BOUND = (
        "rung-lower-bound",
        "{ratio:.2g} times the rate of {below}: {bound} allows at most {share:.2g} times this rate",
    )
    SOFTWARE = (
        "rung-software",
        "{ratio:.2g} times the rate of {below}: {bound} allows a higher rate, so the software is the reason",
    )
    BELOW_UNKNOWN = (
        "rung-below-unknown",
        "{ratio:.2g} times the rate of {below}: no bound is known, so the cause is unknown",
    )
