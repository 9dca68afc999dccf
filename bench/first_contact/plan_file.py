"""Read the plan of a first contact: its steps in order, and the expected ranges of the figures that the steps yield.

The default plan is `plan.yaml` in this folder. The option `--steps FILE` names another plan. The expected ranges are in
`expectations.yaml`. A step is one command with a time limit. A figure's name is `STEP/NAME/QUANTITY`. An expectation
selects figures by a name that may contain `*`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.config import schema, values
from bench.config.schema import Entries, Key, KeyMistake, NamedEntries, Section, Value, Values
from bench.core.errors import UsageError
from bench.core.option_parsers import one_of, whole

MOST_S = 590  # some machines end a command after ten minutes
VARIANTS = ("one", "several", "nodes")
READERS = ("none", "rows", "lines", "tests", "machine", "run", "counts", "seconds")
NEEDS = ("module", "program", "file", "gpus", "tools")


@dataclass(frozen=True, slots=True)
class ContactStep:
    """One command of the plan. Times are in seconds.

    `command`: the words of the command line, in which `contact_site.py` fills the placeholders.
    `least_s`: the step starts only if the budget has at least this time left.
    `accept`: the exit codes that do not count as a failure.
    `read`: the name of the function in `readers.py` that reads the step's figures.
    `counts`: if `read` is "counts", a regular expression for each figure. The figure is the number of matching lines.
    """

    name: str
    command: tuple[str, ...]
    why: str
    limit_s: int = 120
    least_s: int = 10
    accept: tuple[int, ...] = (0,)
    read: str = "none"
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected range of some figures. If `over` is given, the range applies to a ratio of two figures.

    `figure`: a pattern of figure names. The expectation applies to all figures with such a name.
    `over`: the name of the figure to divide by. It may contain `{name}` and `{quantity}`, which are replaced by NAME
        and QUANTITY of the selected figure `STEP/NAME/QUANTITY`.
    `published`: "h2d", "d2h" or "peer". If `published` is given, the range comes from published copies of this type on
        the same GPU model.
    `gpu`: if given, the expectation applies only to GPU models whose name contains this text.
    `source`: the document that states the range.
    """

    figure: str
    source: str
    low: float | None = None
    high: float | None = None
    over: str | None = None
    published: str | None = None
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class ContactPlan:
    """A plan: its steps by name, and its variants.

    A variant lists the names of its steps in the order in which they run.
    """

    steps: Mapping[str, ContactStep]
    variants: Mapping[str, tuple[str, ...]]
    path: Path

    def of(self, variant: str) -> tuple[ContactStep, ...]:
        """Return the steps of a variant. Raises UsageError if the plan has no such variant."""
        if variant not in self.variants:
            raise UsageError(f"{self.path} has no variant {variant!r}; there are: {', '.join(self.variants)}")
        return tuple(self.steps[name] for name in self.variants[variant])

    def digest(self, variant: str) -> str:
        """Return a short hash of the step names of a variant."""
        return hashlib.sha256("\n".join(self.variants.get(variant, ())).encode()).hexdigest()[:8]


HERE = Path(__file__).parent
OWN_PLAN, OWN_EXPECTATIONS = HERE / "plan.yaml", HERE / "expectations.yaml"


def load_plan(path: Path) -> ContactPlan:
    """Read a plan. Raises UsageError with file, line and key of the first mistake."""

    def make(steps: Mapping[str, ContactStep], variants: Mapping[str, tuple[str, ...]]) -> ContactPlan:
        for variant, names in variants.items():
            for index, name in enumerate(names):
                if name not in steps:
                    raise KeyMistake(("variants", variant, index), f"no step is called {name!r}", at_value=True)
        return ContactPlan(steps, variants, path)

    keys = {
        "steps": Key(NamedEntries(values.text, _STEP, lambda name, made: made(name)), required=True),
        "variants": Key(NamedEntries(one_of("variant", VARIANTS), Values(values.text)), required=True),
    }
    plan: ContactPlan = schema.load(path, Section(keys, make))
    return plan


def load_expectations(path: Path = OWN_EXPECTATIONS) -> tuple[Expectation, ...]:
    """Read the expectations. Raises UsageError with file, line and key of the first mistake."""
    found: tuple[Expectation, ...] = schema.load(path, _EXPECTATIONS)
    return found


def expectations_of(figure: str, gpu: str, expectations: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    """Return the expectations of a figure on this GPU model, in the order of the file."""
    return tuple(
        each
        for each in expectations
        if fnmatch.fnmatchcase(figure, each.figure) and (each.gpu is None or each.gpu in gpu)
    )


def _words(typed: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(typed))
    except ValueError as error:
        raise UsageError(f"command {typed!r} is not valid: {error}") from None


def _limit(typed: str) -> int:
    seconds = whole(1)(typed)
    if seconds > MOST_S:
        raise UsageError(f"limit_s {seconds} is more than {MOST_S}: a machine may be lent for ten minutes a call")
    return seconds


def _need(typed: str) -> str:
    one_of("need", NEEDS)(typed.partition(":")[0])
    return typed


def _number(typed: str) -> float:
    try:
        return float(typed)
    except ValueError:
        raise UsageError(f"{typed!r} is not a number") from None


_STEP = Section(
    {
        "command": Key(Value(_words), required=True),
        "why": Key(Value(values.text), required=True),
        "limit_s": Key(Value(_limit)),
        "least_s": Key(Value(whole(1))),
        "accept": Key(Values(whole(0))),
        "read": Key(Value(one_of("reader", READERS))),
        "needs": Key(Values(_need)),
        "env": Key(NamedEntries(values.variable_name, Value(values.variable))),
        "counts": Key(NamedEntries(values.text, Value(values.text))),
    },
    lambda **fields: lambda name: ContactStep(name, **fields),
)


def _expectation(source: str, **fields: object) -> Expectation:
    if not {"low", "high", "published"} & set(fields):
        raise UsageError("an expectation needs low, high or published")
    return Expectation(source=source, **fields)  # type: ignore[arg-type]


_EXPECTATIONS = Section(
    {
        "sources": Key(NamedEntries(values.text, Value(values.text)), required=True),
        "expectations": Key(
            Entries(
                Section(
                    {
                        "figure": Key(Value(values.text), required=True),
                        "source": Key(Value(values.text), required=True),
                        "low": Key(Value(_number)),
                        "high": Key(Value(_number)),
                        "over": Key(Value(values.text)),
                        "published": Key(Value(one_of("published", ("h2d", "d2h", "peer")))),
                        "gpu": Key(Value(values.text)),
                    },
                    _expectation,
                )
            ),
            required=True,
        ),
    },
    lambda sources, expectations: _sourced(sources, expectations),
)


def _sourced(sources: Mapping[str, str], expectations: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    """Return the expectations with the full text of each source instead of its short name."""
    found = []
    for index, each in enumerate(expectations):
        if each.source not in sources:
            raise KeyMistake(("expectations", index, "source"), f"no source is called {each.source!r}", at_value=True)
        fields = {name: getattr(each, name) for name in Expectation.__slots__}
        found.append(Expectation(**fields | {"source": sources[each.source]}))
    return tuple(found)
