"""Each mutant of tests/mutants.py finds its text and its tests, so that a change of either is noticed at once."""

from __future__ import annotations

import re

from tests.mutants import MUTANTS, ROOT, Mutant

_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def test_the_text_of_each_mutant_is_in_its_file_once() -> None:
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in {each.file for each in MUTANTS}}
    assert [each.name for each in MUTANTS if texts[each.file].count(each.old) != 1] == []


def test_the_tests_of_each_mutant_exist() -> None:
    assert [each.name for each in MUTANTS if not _selects(each)] == []


def _selects(mutant: Mutant) -> bool:
    """Does `-k` have a word in a test's name? Other words may choose parameters, which only pytest knows."""
    file, *words = mutant.tests
    path = ROOT / file
    names = _TEST.findall(path.read_text(encoding="utf-8")) if path.is_file() else []
    parts = re.split(" or | and ", words[1]) if words else [""]
    return any(part in name for name in names for part in parts)
