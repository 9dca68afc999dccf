"""Pair the rows of two runs that are the same measurement. Reject two runs that cannot be compared at all.

Two rows are the same measurement if all their factors (results/launches.py) are equal. The user may name factors that
are allowed to differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bench.core.errors import UsageError
from bench.core.plugins import nearest
from bench.results.launches import COMPARED, Factors, RowLaunches


def allowed(named: Sequence[str], variables: Sequence[str]) -> frozenset[str]:
    """Return all factors that may differ: the factors that the user named, and the factors that depend on them.

    Raises UsageError for an unknown factor.

    `variables`: the environment variables that are factors in these two runs.
    """
    known = [*(fact.name for fact in COMPARED if not fact.fixed), *variables]
    for name in named:
        if name not in known:
            raise UsageError(f"--allow-diff: no factor is called {name!r}{nearest(name, known)}")
    return frozenset(named).union(*map(_followers, named))


def _followers(name: str) -> set[str]:
    """Return the factors that depend on this factor."""
    return {fact.name for fact in COMPARED if name in fact.follows}


def refuse_model_against_measurement(base: Sequence[RowLaunches], new: Sequence[RowLaunches]) -> None:
    """Raise UsageError if one run has only modelled rows and the other only measured rows."""
    kinds = [{row.factors["modelled"] for row in side} for side in (base, new)]
    if all(kinds) and not kinds[0] & kinds[1]:
        words = ("modelled", "measured") if "yes" in kinds[0] else ("measured", "modelled")
        raise UsageError("BASE is {} and NEW is {}: their ratio would not show a change".format(*words))


def refuse_other_factors(base: Sequence[RowLaunches], new: Sequence[RowLaunches], allowed: frozenset[str]) -> None:
    """Raise UsageError if no pattern was measured with the same factors in both runs."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for of_base, of_new in _same_pattern(base, new):
        for name in _separating(of_base, of_new, allowed):
            values = found.setdefault(name, (set(), set()))
            for words, rows in zip(values, (of_base, of_new), strict=True):
                words.update(word(factors[name]) for factors in rows)
    followers = {follower for name in found for follower in _followers(name)}
    named = {name: values for name, values in found.items() if name not in followers}
    if not named:
        return
    differences, options = [], []
    for name, (in_base, in_new) in named.items():
        differences.append(f"{name} is {listed(in_base)} in BASE and {listed(in_new)} in NEW")
        options.append(f"--allow-diff {name}")
    raise UsageError(f"{'; '.join(differences)}; if this difference is intended, add {' '.join(options)}")


def _same_pattern(
    base: Sequence[RowLaunches], new: Sequence[RowLaunches]
) -> Iterator[tuple[list[Factors], list[Factors]]]:
    """Yield the factors of both runs, for each combination of pattern and transport that both runs have.

    If the runs have no transport in common, yield the factors of both runs for each pattern.
    """
    for pattern in dict.fromkeys(row.place.pattern for row in base):
        of_base = [row.factors for row in base if row.place.pattern == pattern]
        of_new = [row.factors for row in new if row.place.pattern == pattern]
        shared = {factors["transport"] for factors in of_base} & {factors["transport"] for factors in of_new}
        for transport in sorted(map(str, shared)):
            yield (
                [factors for factors in of_base if factors["transport"] == transport],
                [factors for factors in of_new if factors["transport"] == transport],
            )
        if not shared and of_new:
            yield of_base, of_new


def _separating(base: Sequence[Factors], new: Sequence[Factors], allowed: frozenset[str]) -> list[str]:
    """Return the factors that prevent a comparison, because the two runs have no value of the factor in common.

    If there is no such factor, return the factors whose sets of values differ. If both runs have a row with the same
    values of all factors, return an empty list.
    """
    if not {row["modelled"] for row in base} & {row["modelled"] for row in new}:
        return []  # each row states this difference as its reason
    names = [name for name in base[0] if name not in allowed]
    combinations = [{tuple(row[name] for name in names) for row in side} for side in (base, new)]
    if combinations[0] & combinations[1]:
        return []
    values = {name: ({row[name] for row in base}, {row[name] for row in new}) for name in names}
    apart = [name for name, (of_base, of_new) in values.items() if not of_base & of_new]
    return apart or [name for name, (of_base, of_new) in values.items() if of_base != of_new]


def paired(
    base: Sequence[RowLaunches], new: Sequence[RowLaunches], allowed: frozenset[str]
) -> tuple[list[tuple[RowLaunches, RowLaunches]], list[RowLaunches], list[RowLaunches]]:
    """Pair the rows of BASE and NEW.

    Return three lists: the pairs in the order of BASE, the unpaired rows of BASE, and the unpaired rows of NEW.

    Pairing has three steps:

    - The first step pairs rows that have the same values of all factors.
    - The second step ignores the factors that may differ.
    - The third step pairs rows that have the same pattern, mode, group and size. Such rows cannot be compared. The
      comparison states the reason.

    In each step, two rows are paired only if no other unpaired row has the same values.
    """
    names = list((base or new)[0].factors) if base or new else []
    strict = [name for name in names if name not in allowed]
    found: dict[int, tuple[RowLaunches, RowLaunches]] = {}
    left, left_new = list(enumerate(base)), list(new)
    for rule in (names, strict, []):
        num_base = Counter(_key(row, rule) for _, row in left)
        candidates: dict[tuple[Any, ...], list[RowLaunches]] = {}
        for row in left_new:
            candidates.setdefault(_key(row, rule), []).append(row)
        for number, row in left:
            match = candidates.get(_key(row, rule), [])
            if len(match) == 1 and num_base[_key(row, rule)] == 1:
                found[number] = (row, match[0])
        taken = {id(other) for _, other in found.values()}
        left = [(number, row) for number, row in left if number not in found]
        left_new = [row for row in left_new if id(row) not in taken]
    return [found[number] for number in sorted(found)], [row for _, row in left], left_new


def _key(row: RowLaunches, names: Iterable[str]) -> tuple[Any, ...]:
    return (row.place, *(row.factors[name] for name in names))


def word(value: str | None) -> str:
    """Return a factor's value as text for a sentence."""
    return "unknown" if value is None else value


def listed(values: set[str]) -> str:
    """Return several values as text for a sentence."""
    return " or ".join(sorted(values))
