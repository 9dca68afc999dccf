"""Describe a factor: one setting of a measurement that a user can vary.

`bench.core.case.Case` is the table of factors. Each field of Case is declared by a call of `factor(...)`. The table of
factors defines the command line, the scenario keys, the job names, the selectors of gate rules and the labels of
figures. The table also defines which factors must be equal in two runs before the runs are compared. To add a factor,
add a field to Case, and let a transport or a pattern obey it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from bench.core import option_parsers

if TYPE_CHECKING:
    from bench.core.pattern import Pattern
    from bench.core.record import Header

_USUAL_RANK = 50


def every_pattern(pattern: Pattern) -> bool:
    """Return True for every pattern.

    If a factor has an effect on all patterns, its field `patterns` is this function.
    """
    return True


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor. `name` is its field of Case.

    `flags`: its options on the command line. Printed command lines use the last option.
    `parse`, `show`: functions that convert a text to a value, and a value to a text. For every value,
        `parse(show(value)) == value`.
    `keys`: the spellings of the factor as a key of a scenario. The tuple is empty if a scenario cannot set the factor.
        Error messages name the first key.
    `several`: whether a scenario may list several values to measure.
    `split`: turns a value from the file into texts that `parse` reads.
    `merge`: if the factor's single value may be written as a list, a function that joins the parsed texts into this
        value. Otherwise None.
    """

    name: str
    default: Any
    flags: tuple[str, ...]
    help: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    keys: tuple[str, ...]
    several: bool
    split: Callable[[object], list[Any]]
    merge: Callable[[tuple[Any, ...]], Any] | None
    # The patterns and transports for which the factor matters. For other patterns and transports, a plan does not vary
    # it.
    patterns: Callable[[Pattern], bool]
    by_transport: bool  # only transports that list it in their TRAITS.factors obey it
    strict: bool  # other transports refuse it
    depends_on: str  # another factor that must be set; "": none
    # The position in job names and in the order in which a plan varies factors. Low numbers come first; None: not in
    # names.
    name_rank: int | None
    word: Callable[[Any], str] | None
    # Results. Rows that differ in a factor are compared only if it is `comparable`.
    comparable: bool
    reported: Callable[[Header], object] | None  # reads the value that was really used; None: the case contains it
    reported_as: str
    follows: tuple[str, ...]  # this factor may differ if one of these factors may differ
    selectable: bool  # a gate rule may select rows by it
    labelled: bool  # a figure's label names it
    tuned: tuple[str, ...]  # values that `tune` tries by default; empty: only if the user asks

    def name_part(self, value: Any) -> str:
        """Return the text that represents a value in a job's name, such as `root3`, `inplace` or `bfloat16`."""
        if self.word is not None:
            return self.word(value)
        if isinstance(value, bool):
            return self.name.replace("_", "")
        if isinstance(value, int | float):
            return f"{self.name}{value:g}" if isinstance(value, float) else f"{self.name}{value}"
        return str(value).replace(" ", "").replace(",", ".")


def factor(
    default: Any,
    *flags: str,
    help: str,
    parse: Callable[[str], Any] = str,
    show: Callable[[Any], str] = str,
    keys: tuple[str, ...] | None = None,
    several: bool = True,
    split: Callable[[object], list[Any]] = option_parsers.listed,
    merge: Callable[[tuple[Any, ...]], Any] | None = None,
    patterns: Callable[[Pattern], bool] = every_pattern,
    by_transport: bool = False,
    strict: bool = False,
    depends_on: str = "",
    name_rank: int | None = _USUAL_RANK,
    word: Callable[[Any], str] | None = None,
    comparable: bool = False,
    reported: Callable[[Header], object] | None = None,
    reported_as: str = "",
    follows: tuple[str, ...] = (),
    selectable: bool = False,
    labelled: bool = False,
    tuned: tuple[str, ...] = (),
) -> Any:
    """Declare a field of Case as a factor (see Factor).

    If `keys` is None, the field's name is the key in scenarios. If `several` is also true, the field's name with a
    plural ending is a second key.
    """
    described = Factor(
        name="",
        default=default,
        flags=flags,
        help=help,
        parse=parse,
        show=show,
        keys=("",) if keys is None else keys,
        several=several,
        split=split,
        merge=merge,
        patterns=patterns,
        by_transport=by_transport,
        strict=strict,
        depends_on=depends_on,
        name_rank=name_rank,
        word=word,
        comparable=comparable,
        reported=reported,
        reported_as=reported_as,
        follows=follows,
        selectable=selectable,
        labelled=labelled,
        tuned=tuned,
    )
    return field(default=default, metadata={"factor": described})


def setting(default: Any, *flags: str, help: str, several: bool = False, **more: Any) -> Any:
    """Declare a factor that says how to measure.

    Job names omit this factor. Two runs can be compared even if they have different values of this factor.
    """
    return factor(default, *flags, help=help, several=several, name_rank=None, comparable=True, **more)


def switch(default: bool, *flags: str, help: str, **more: Any) -> Any:
    """Declare a factor that is on or off. A command line sets the factor to `1` or `0`."""
    return factor(default, *flags, help=help, parse=option_parsers.switch, show=lambda on: str(int(on)), **more)


def one_of(kind: str, words: Sequence[str], *flags: str, help: str, **more: Any) -> Any:
    """Declare a factor whose values are words. The first word is the default.

    `kind`: the factor's name in error messages.
    """
    return factor(words[0], *flags, help=help, parse=option_parsers.one_of(kind, words), **more)


def factors_of(table: type[Any]) -> tuple[Factor, ...]:
    """Return the factors that a dataclass declares, in the order of its fields."""
    found = []
    for each in fields(table):
        described: Factor | None = each.metadata.get("factor")
        if described is None:
            continue
        keys = described.keys
        if keys == ("",):
            keys = (each.name, f"{each.name}s") if described.several else (each.name,)
        reported_as = described.reported_as or each.name
        found.append(replace(described, name=each.name, keys=keys, reported_as=reported_as))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ReportedFact:
    """A fact of a run that is reported in its header and that no option sets.

    Two rows are compared only if the fact has the same value in both rows. The same rule applies to factors.

    `read`: returns the value of the fact in a header. The result is None if the header lacks the fact, or if each row
        has its own value.
    `follows`: as in Factor.
    `fixed`: whether even `--allow-diff` cannot allow different values.
    """

    name: str
    read: Callable[[Header], object] = lambda header: None
    follows: tuple[str, ...] = ()
    fixed: bool = False


# The first of these facts in a header names the library that moved the bytes. NCCL comes before torch, which only loads
# NCCL.
_LIBRARIES = (("mpi_library", ""), ("nccl", "NCCL "), ("torch", "torch "))


def _library(header: Header) -> str | None:
    for name, prefix in _LIBRARIES:
        if name in header.facts:
            return prefix + " ".join(str(header.facts[name]).split())
    return None


REPORTED_FACTS = (
    ReportedFact("num_ranks", lambda header: header.num_ranks),
    ReportedFact("data", lambda header: header.settings.get("data")),
    ReportedFact("clock", lambda header: header.clock, follows=("transport",)),
    ReportedFact("library", _library, follows=("transport",)),
    ReportedFact("through_host"),
    ReportedFact("modelled", lambda header: "yes" if header.modelled else "no", fixed=True),
)
