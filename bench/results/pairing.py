"""Which rows of two runs stand for the same thing, and when two runs have nothing that could be compared.

Rows belong together where they differ in no factor (results/launches.py) but those that were named as meant to differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bench.core.case import COMPARED
from bench.core.errors import UsageError
from bench.core.plugins import nearest
from bench.results.launches import Factors, RowLaunches


def allowed(named: Sequence[str], variables: Sequence[str]) -> frozenset[str]:
    """The factors that may differ: those named, and what differs with them. Raises UsageError for what is no factor.

    `variables`: the environment variables that are factors here.
    """
    known = [*(fact.name for fact in COMPARED if not fact.fixed), *variables]
    for name in named:
        if name not in known:
            raise UsageError(f"--allow-diff: no factor is called {name!r}{nearest(name, known)}")
    return frozenset(named).union(*map(_followers, named))


def _followers(name: str) -> set[str]:
    """The factors that may differ where this one does."""
    return {fact.name for fact in COMPARED if name in fact.follows}


def refuse_a_model_beside_a_measurement(base: Sequence[RowLaunches], new: Sequence[RowLaunches]) -> None:
    """Raise UsageError where one run holds nothing but modelled rows and the other nothing but measured ones."""
    kinds = [{cell.factors["modelled"] for cell in side} for side in (base, new)]
    if all(kinds) and not kinds[0] & kinds[1]:
        words = ("modelled", "measured") if "yes" in kinds[0] else ("measured", "modelled")
        raise UsageError("BASE is {} and NEW is {}: a ratio of the two says nothing of a change".format(*words))


def refuse_other_factors(base: Sequence[RowLaunches], new: Sequence[RowLaunches], allowed: frozenset[str]) -> None:
    """Raise UsageError where both runs measured a pattern (over a transport), but never with the same factors."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for before, after in _of_the_same(base, new):
        for name in _kept_apart_by(before, after, allowed):
            values = found.setdefault(name, (set(), set()))
            for words, rows in zip(values, (before, after), strict=True):
                words.update(word(factors[name]) for factors in rows)
    followers = {follower for name in found for follower in _followers(name)}
    named = {name: values for name, values in found.items() if name not in followers}
    if named:
        told = "; ".join(
            f"{name} is {listed(before)} in BASE and {listed(after)} in NEW" for name, (before, after) in named.items()
        )
        options = " ".join(f"--allow-diff {name}" for name in named)
        raise UsageError(f"{told}: a ratio would mix this with what changed; where it is meant, say {options}")


def _of_the_same(
    base: Sequence[RowLaunches], new: Sequence[RowLaunches]
) -> Iterator[tuple[list[Factors], list[Factors]]]:
    """The factors of both sides for each pattern and transport that both have, or pattern alone if no transport is."""
    for pattern in dict.fromkeys(cell.place.pattern for cell in base):
        before = [cell.factors for cell in base if cell.place.pattern == pattern]
        after = [cell.factors for cell in new if cell.place.pattern == pattern]
        shared = {factors["transport"] for factors in before} & {factors["transport"] for factors in after}
        for transport in sorted(map(str, shared)):
            yield (
                [factors for factors in before if factors["transport"] == transport],
                [factors for factors in after if factors["transport"] == transport],
            )
        if not shared and after:
            yield before, after


def _kept_apart_by(base: Sequence[Factors], new: Sequence[Factors], allowed: frozenset[str]) -> list[str]:
    """The factors that no combination of the two sides shares; none where some combination is in both."""
    if not {row["modelled"] for row in base} & {row["modelled"] for row in new}:
        return []  # of modelled against measured rows each says so itself
    names = [name for name in base[0] if name not in allowed]
    combinations = [{tuple(row[name] for name in names) for row in side} for side in (base, new)]
    if combinations[0] & combinations[1]:
        return []
    values = {name: ({row[name] for row in base}, {row[name] for row in new}) for name in names}
    apart = [name for name, (before, after) in values.items() if not before & after]
    return apart or [name for name, (before, after) in values.items() if before != after]


def paired(
    base: Sequence[RowLaunches], new: Sequence[RowLaunches], allowed: frozenset[str]
) -> tuple[list[tuple[RowLaunches, RowLaunches]], list[RowLaunches], list[RowLaunches]]:
    """Pairs in the order of BASE, and what is left of each side.

    Those that are alike in all factors first, then in all that are not allowed to differ, then those of the same place
    (which are not comparable, and say why); a later rule pairs only what it finds once on each side.
    """
    names = list((base or new)[0].factors) if base or new else []
    strict = [name for name in names if name not in allowed]
    found: dict[int, tuple[RowLaunches, RowLaunches]] = {}
    left, left_new = list(enumerate(base)), list(new)
    for rule in (names, strict, []):
        ours = Counter(_key(cell, rule) for _, cell in left)
        theirs: dict[tuple[Any, ...], list[RowLaunches]] = {}
        for cell in left_new:
            theirs.setdefault(_key(cell, rule), []).append(cell)
        for number, cell in left:
            match = theirs.get(_key(cell, rule), [])
            if len(match) == 1 and ours[_key(cell, rule)] == 1:
                found[number] = (cell, match[0])
        taken = {id(other) for _, other in found.values()}
        left = [(number, cell) for number, cell in left if number not in found]
        left_new = [cell for cell in left_new if id(cell) not in taken]
    return [found[number] for number in sorted(found)], [cell for _, cell in left], left_new


def _key(cell: RowLaunches, names: Iterable[str]) -> tuple[Any, ...]:
    return (cell.place, *(cell.factors[name] for name in names))


def word(value: str | None) -> str:
    """A factor's value in a sentence."""
    return "unknown" if value is None else value


def listed(values: set[str]) -> str:
    """Several values in a sentence."""
    return " or ".join(sorted(values))
