"""Codes of a search for the best settings, with their texts."""

from __future__ import annotations

from bench.core.codes import Code, OptionalPartsCode


class TuneError(Code):
    """Why a search cannot begin or continue."""

    NO_FACTOR = (
        "no-factor",
        "--try {name}: {pattern} has no factor of this name{nearest}; the factors of {pattern} are {known:list}",
    )
    NO_EFFECT = "no-effect", "--try {name}: {pattern} over {transport} does not support this factor, so omit it"
    NO_VALUES = (
        "no-values",
        "--try {text!r}: give NAME=VALUE,VALUE with two or more values, or one value other than the default",
    )
    TWICE = "twice", "--try {name} is given twice: name all its values in one list"
    NOTHING_TO_TRY = (
        "nothing-to-try",
        "nothing to vary: give --try NAME=VALUE,VALUE; the factors of {pattern} are {known:list}",
    )
    SMALL_BUDGET = (
        "small-budget",
        "--budget {budget_s:time} is too small: it allows {allowed:n launch} of about {launch_s:time}, but a search "
        "among {num_settings:n setting} needs {least} launches. Give --budget {needed_s:time}, or fewer values",
    )
    BASELINE_FAILED = "baseline-failed", "the baseline cannot be measured: {why}"
    NOT_A_SEARCH = "not-a-search", "{folder} contains no search (search.json is missing): name the folder of a search"
    OTHER_SEARCH = "other-search", "{folder} contains a search of `tune {other}`, not of `tune {own}`"
    NEW_OPTIONS = "new-options", "--resume continues with the options of the search: omit {options:list}"
    ONE_SIZE = "one-size", "--sizes gives {num_sizes:n size}: a search needs exactly one size"


class DroppedCode(Code):
    """Why the search dropped a setting."""

    SKIPPED = "skipped", "skipped: {why}"
    FAILED = "failed", "failed: {why}"
    NO_TIME = (
        "no-time",
        "not tried: a launch takes {launch_s:time} here, and --budget {budget_s:time} allows no further launch",
    )


class TuneAnswer(OptionalPartsCode):
    """The text of a search's conclusion, for each verdict."""

    FASTER = (
        "faster",
        "{best} is faster than {baseline}: {what} takes {best_s:time} instead of {baseline_s:time}, a factor of "
        "{ratio:.3g} (95 % interval {low:.3g} to {high:.3g}; {num_pairs:n pair} of launches)",
    )
    BASELINE = (
        "baseline",
        "nothing is faster than {baseline}: the best other setting, {best}, takes {slower:.3g} times as long "
        "({num_pairs:n pair} of launches)",
    )
    EQUIVALENT = (
        "equivalent",
        "no relevant difference: the best other setting, {best}, is at most {most:percent} faster than {baseline} "
        "({num_pairs:n pair} of launches)",
    )
    UNDECIDED = (
        "undecided",
        "undecided, because the search found no clear difference within its budget<; if {best} were {least:percent} "
        "faster than {baseline}, 9 of 10 searches with {num_pairs:n pair} of launches would detect this>",
    )
