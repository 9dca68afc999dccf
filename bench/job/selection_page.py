"""Write the page of `linkbench select --job`.

The page ranks machines by the cost or time of a step, and says which differences between machines are certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from bench.core.codes import Coded
from bench.core.units import format_duration
from bench.job.elsewhere_page import JOB_LETTER_WORDS, JOB_LETTERS, remarks_of
from bench.job.messages import ElsewhereCode
from bench.job.selection import JobSelection, MachineForJob
from bench.predict.draws import DrawnRange
from bench.predict.predict import CONFIDENCE
from bench.predict.select_page import sentence
from bench.results import text
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table

SCHEMA = "bench.job_select/1"
_THOUSAND = 1000
_FEW = 4  # at most this many verdicts are written out, and a line names at most this many machines
_TITLES = (
    "",
    "instance",
    "nodes",
    "GPUs",
    "step (ms)",
    "compute x",
    "exchange (ms)",
    "$/1000 steps",
    "$/h",
    "price of",
)
_LEFT = ("instance", "price of")
_LEAVE_OUT = {"price of": 4, "compute x": 3, "exchange (ms)": 2, "GPUs": 1}
_COLUMNS = [
    Column(title, itemgetter(index), right=title not in _LEFT, optional=True, leave_out=_LEAVE_OUT.get(title, 0))
    for index, title in enumerate(_TITLES)
]


@dataclass(frozen=True)
class JobSelectPage(Report):
    """The page of a selection.

    `name`: the name of the traces, as the user typed it.
    """

    selection: JobSelection
    name: str

    def blocks(self) -> Iterable[Block]:
        """Yield the answer, the ranking, the verdicts, and the evidence for the figures."""
        recorded = self.selection.question.recorded
        size = f"{text.count(recorded.job.num_ranks, 'rank')}, {text.count(recorded.job.num_steps, 'step')}"
        gpu = recorded.gpu or "no known GPU"
        yield Heading(f"{self._answer()} (modelled)")
        yield Lines([f"{self.name}: {size} of {format_duration(recorded.recorded_s)}, recorded on {gpu}"])
        yield Table(_COLUMNS, [_cells(rank, each) for rank, each in enumerate(self.selection.machines, 1)])
        yield Lines([*self._letters(), *self._verdicts(), *self._left_out(), *(one.text for one in self._remarks())])

    def _answer(self) -> str:
        """Return which machine is best, and whether that is certain."""
        best, verdicts = self.selection.machines[0].name, self.selection.verdicts
        if not verdicts:
            return f"{best} is the only machine that can be judged"
        asked = [each for each in verdicts if each.by == verdicts[0].by]
        better = "cheaper" if asked[0].by == "cost" else "faster"
        undecided = [each.other.name for each in asked if not each.decided]
        if not undecided:
            others = asked[0].other.name if len(asked) == 1 else f"each of the other {len(asked)}"
            return f"a step on {best} is {better} than on {others}, sure"
        more = f" or {len(undecided) - _FEW} more" if len(undecided) > _FEW else ""
        return f"cannot tell whether a step on {best} or {', '.join(undecided[:_FEW])}{more} is {better}"

    def _letters(self) -> Iterator[str]:
        used = {word for each in self.selection.machines for word in each.elsewhere.basis.split("+")}
        meaning = [
            f"{letter} {JOB_LETTER_WORDS.get(word, word)}" for word, letter in JOB_LETTERS.items() if word in used
        ]
        yield f"{100 * CONFIDENCE:.0f} % intervals; letters name the evidence: {', '.join(meaning)}"

    def _verdicts(self) -> Iterator[str]:
        asked = [each for each in self.selection.verdicts if each.by == self.selection.verdicts[0].by]
        if len(asked) < _FEW:
            yield from (sentence(each, "step") for each in self.selection.verdicts)
            return
        best = self.selection.machines[0].name
        beaten = [each.other.name for each in asked if each.decided]
        if beaten:
            better = "cheaper" if asked[0].by == "cost" else "faster"
            yield f"{best} is {better} than each of {', '.join(beaten)}"
        others = [each for each in asked if not each.decided]
        yield from (sentence(each, "step") for each in others[:_FEW])
        if others[_FEW:]:
            names = ", ".join(each.other.name for each in others[_FEW:])
            yield f"also UNDECIDED against {names} (--format json has the reasons)"

    def _left_out(self) -> Iterator[str]:
        """Yield one line for each reason why machines are left out."""
        by_code: dict[str, list[str]] = {}
        for each in self.selection.refused:
            by_code.setdefault(each.error.code, []).append(f"{each.num_nodes} x {each.instance}")
        for code, machines in by_code.items():
            first = next(each for each in self.selection.refused if each.error.code == code)
            more = f" (and {len(machines) - _FEW} more)" if len(machines) > _FEW else ""
            yield f"left out: {', '.join(machines[:_FEW])}{more}: {first.error}"

    def _remarks(self) -> list[Coded]:
        """Return all remarks without duplicates."""
        found: dict[str, Coded] = {}
        for each in self.selection.machines:
            for remark in remarks_of(each.elsewhere):
                found.setdefault(remark.code, remark)
        return [*found.values(), Coded.of(ElsewhereCode.NO_MEMORY_CHECK)]

    def data(self) -> Mapping[str, Any]:
        """Return the selection as JSON, in seconds and dollars. An unknown value is null."""
        selection = self.selection
        return {
            "schema": SCHEMA,
            "modelled": True,
            "job": self.name,
            "num_ranks": selection.question.recorded.job.num_ranks,
            "recorded_step_s": selection.question.recorded.recorded_s,
            "replayed_step_s": selection.question.recorded.replayed_s,
            "ranked_by": selection.by,
            "confidence": CONFIDENCE,
            "machines": [_plain(rank, each) for rank, each in enumerate(selection.machines, 1)],
            "verdicts": [
                {
                    "by": each.by,
                    "first": each.first.name,
                    "other": each.other.name,
                    "ratio_low": each.ratio.low,
                    "ratio": each.ratio.middle,
                    "ratio_high": each.ratio.high,
                    "decided": each.decided,
                    "doubt": each.doubt.description if each.doubt else None,
                    "to_decide": each.doubt.command if each.doubt else None,
                }
                for each in selection.verdicts
            ],
            "skipped": [
                {
                    "instance": each.instance,
                    "num_nodes": each.num_nodes,
                    "error": {"code": each.error.code, "facts": each.error.facts},
                    "reason": str(each.error),
                }
                for each in selection.refused
            ],
            "remarks": [one.to_plain() for one in self._remarks()],
        }

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield one line for each machine."""
        for rank, each in enumerate(self.selection.machines, 1):
            yield _plain(rank, each)


def _cells(rank: int, each: MachineForJob) -> tuple[str, ...]:
    found, price = each.elsewhere, each.priced.price
    whole = _letters(found.basis)
    low, middle, high = found.exchange_s
    exchange = DrawnRange(low, middle, high)
    usd = each.usd(_THOUSAND)
    factor = DrawnRange(found.factor.low, found.factor.middle, found.factor.high)
    return (
        str(rank),
        each.instance.name,
        str(found.num_nodes),
        str(found.num_nodes * each.instance.gpus),
        f"{each.step.text(1e3)} {whole}",
        f"{factor.text()} {_letters(found.factor.basis)}",
        f"{exchange.text(1e3)} {_letters('+'.join(found.bases))}" if found.bases else NOTHING,
        NOTHING if usd is None else f"{usd.text()} {whole}",
        NOTHING if each.usd_per_hour is None else f"{each.usd_per_hour:.2f}",
        NOTHING if price is None else ", ".join(filter(None, [price.date or "undated", price.region])),
    )


def _letters(basis: str) -> str:
    return "".join(JOB_LETTERS[word] for word in basis.split("+") if word)


def _plain(rank: int, each: MachineForJob) -> dict[str, Any]:
    found, price, usd = each.elsewhere, each.priced.price, each.usd(_THOUSAND)
    low, middle, high = found.exchange_s
    return {
        "rank": rank,
        "instance": each.instance.name,
        "num_nodes": found.num_nodes,
        "num_gpus": found.num_nodes * each.instance.gpus,
        "step_low_s": each.step.low,
        "step_s": each.step.middle,
        "step_high_s": each.step.high,
        "basis": found.basis,
        "compute_factor_low": found.factor.low,
        "compute_factor": found.factor.middle,
        "compute_factor_high": found.factor.high,
        "exchange_low_s": low,
        "exchange_s": middle,
        "exchange_high_s": high,
        "num_predicted": found.num_predicted,
        "usd_per_1000_steps_low": usd.low if usd else None,
        "usd_per_1000_steps": usd.middle if usd else None,
        "usd_per_1000_steps_high": usd.high if usd else None,
        "usd_per_hour": each.usd_per_hour,
        "price_date": price.date if price else None,
        "price_region": price.region or None if price else None,
        "price_source": price.source if price else None,
    }
