"""Read the steps that a line of a log names.

Programs print steps in many forms, so one pattern covers the common ones: tqdm's bars, `iteration 120/ 5000`,
`step=120`, `{'loss': 2.1, 'epoch': 0.2}`, `Epoch 3`. Simulations print times or table rows instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from bench.logs import line_labels

# A word of a line in lower case -> the pattern of a step. Each pattern begins with plain text, which is found quickly.
# `eval_steps=500` is a setting.
_NUMBER = r"['\"]?[ \t:=\[#]{1,12}['\"]?(\d{1,12})\b(?![.\w-])"
# `dataset iteration 5 of 40`, and the iterations of a linear solver, which OpenFOAM prints in every step
_NO_STEP = r"(?<!dataset iter)(?<!data iter)(?<!loader iter)(?<!no iter)"
_COUNTERS = (
    ("iter", re.compile(rf"iter(?<![a-z]iter){_NO_STEP}(?:ation)?(?:(?<!_iter)s)?{_NUMBER}")),
    ("step", re.compile(rf"step(?<![a-z]step)(?:(?<!_step)s)?{_NUMBER}")),
    ("num_updates", re.compile(rf"num_updates{_NUMBER}")),
)
_BAR = re.compile(r"(?<![\d/.])(\d{1,12})/(\d{1,12})(?: \[|\]| ━| \(\d)")  # tqdm, Keras, `Epoch: [3][511/1736]`
# Programs that simulate: a text in lower case, and the number that rises.
_SIMULATIONS = (
    ("time = ", "time", re.compile(r"^time = (\d{1,12}(?:\.\d{1,12})?(?:e[-+]\d{1,3})?)s?\s*$")),  # OpenFOAM
    ("prog= ", "percent", re.compile(r"\bprog= {1,6}(\d{1,3}\.\d{1,6})%")),  # HPL of NVIDIA
    ("column=", "column", re.compile(r"\bcolumn=(\d{1,12}) fraction=")),  # HPL
)
_CLOCK = re.compile(  # WRF
    r"timing for main: time (\d{1,6})-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d) on domain {1,6}(\d{1,3}):"
)
# The heads of tables of LAMMPS and GROMACS. The first column of each row below is the step.
_TABLE_HEAD = re.compile(r"^\s*step(?:\s+(?![\d.])[a-z][\w./()\[\]-]{0,30}){1,40}\s*$")
_EPOCH = re.compile(r"epoch['\"]?[ \t:=\[#]{0,4}(\d{1,6}(?:\.\d{1,9})?)")
_WITHOUT_NUMBER = (
    ("loss", re.compile(r"loss(?<![a-z]loss)['\"]?[ \t:=]{1,4}['\"]?-?(?:\d|nan)")),
    ("sav", re.compile(r"sav(?:ed|ing) (?:the |final |model |a )*(?:checkpoint|model|weights)\b")),
)
_TRAINS = re.compile(r"(?<![a-z])(?:train|epoch|step|iter|batch)[a-z]*[^a-z]*$")  # before the numbers of a bar
_LETTER = re.compile(r"[a-z]")
_OF_SIMULATIONS = ("time", "clock", "row", "column", "percent")
UNNUMBERED = tuple(kind for kind, _ in _WITHOUT_NUMBER)
BARE_BAR = "bare bar"
_CLEAREST = ("iter", "step", "num_updates", "row", "column", "time", "clock", "percent", "bar", "epoch")


class StepUnit(StrEnum):
    """The quantity that rises while a job makes progress."""

    STEPS = "steps"
    EPOCHS = "epochs"
    TIME = "time"  # of a simulation, in the program's unit
    CLOCK = "clock"  # of a simulation, in seconds
    PERCENT = "percent"


_UNITS = {
    "epoch": StepUnit.EPOCHS,
    "time": StepUnit.TIME,
    "clock": StepUnit.CLOCK,
    "percent": StepUnit.PERCENT,
}


class PrintedStep(NamedTuple):
    """A step that a line names.

    `kind`: the form of the line, and the domain of WRF.
    `total`: the last number of a progress bar, or 0 if the line is no progress bar.
    """

    kind: str
    number: float
    total: int = 0


class StepLines:
    """Reads the steps in the lines of one file, and remembers the form of the last table of steps."""

    def __init__(self) -> None:
        """Begin without a table."""
        self._row: re.Pattern[str] | None = None  # the form of a row of the last table of steps

    def steps(self, text: str, line: int) -> list[PrintedStep]:
        """Return the steps in a line of lower-case text.

        A loss without a step number gets the number of its line.
        """
        return list(_named_steps(text, line)) or list(self._simulated(text))

    def _simulated(self, text: str) -> Iterator[PrintedStep]:
        """Yield the step in a line of a simulation, such as `time = 0.5` or a row of a table."""
        for word, kind, pattern in _SIMULATIONS:
            match = pattern.search(text) if word in text else None
            if match is not None:
                yield PrintedStep(kind, float(match[1]))
                return
        if "timing for main" in text and (clock := _CLOCK.search(text)) is not None:
            year, month, day, hours, minutes, seconds, domain = map(int, clock.groups())
            # 31 days in each month: the steps near the end of a month are fewer than the difference
            days = (year * 12 + month) * 31 + day
            yield PrintedStep(f"clock {domain}", ((days * 24 + hours) * 60 + minutes) * 60 + seconds)
        elif text.lstrip()[:4] == "step" and _TABLE_HEAD.match(text):
            num_others = len(text.split()) - 1
            self._row = re.compile(rf"^\s*(\d{{1,12}})(?:\s+-?\d[\d.e+-]{{0,30}}){{{num_others}}}\s*$")
        elif self._row is not None and (row := self._row.match(text)) is not None:
            yield PrintedStep("row", int(row[1]))


def _named_steps(text: str, line: int) -> Iterator[PrintedStep]:
    """Yield the steps that a lower-case line states with a word, such as `step`, or with a bar."""
    is_counted = False
    for word, pattern in _COUNTERS:
        match = pattern.search(text) if word in text else None
        if match is not None:
            yield PrintedStep(word, int(match[1]))
            is_counted = True
            break
    else:
        for match in reversed(list(_BAR.finditer(text)) if "/" in text else []):
            kind = _kind_of_bar(text, match)
            if kind is not None:
                yield PrintedStep(kind, int(match[1]), int(match[2]))
                is_counted = True
            break
    match = _EPOCH.search(text) if "epoch" in text else None
    if match is not None:
        yield PrintedStep("epoch", float(match[1]))
    if not is_counted:
        for word, pattern in _WITHOUT_NUMBER:
            if word in text and pattern.search(text):
                yield PrintedStep(word, line)


def _kind_of_bar(text: str, match: re.Match[str]) -> str | None:
    """Return the kind of a bar: a bar that shows training steps, or a bar without a description.

    Return None for a bar that shows files, shards or compiled sources.
    """
    before = line_labels.without_label(text[: match.start()])
    if _TRAINS.search(before) or "loss" in text:
        return "bar"
    return BARE_BAR if _LETTER.search(before) is None and not match[0].endswith("]") else None


def is_simulated(kind: str) -> bool:
    """Check whether simulations print this kind of step."""
    return kind.partition(" ")[0] in _OF_SIMULATIONS


def unit_of(kind: str) -> StepUnit:
    """Return the unit in which a kind of step counts."""
    return _UNITS.get(kind.partition(" ")[0], StepUnit.STEPS)


def by_clarity(kind: str) -> tuple[int, str]:
    """Return the sort key of a kind of step: the kind that says most about the whole job comes first."""
    name = kind.partition(" ")[0]
    return _CLEAREST.index(name) if name in _CLEAREST else len(_CLEAREST), kind
