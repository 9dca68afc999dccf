"""Write the page of `linkbench tune`: the conclusion, the settings to paste, and every setting with its launches."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from bench.core.case_argv import to_argv
from bench.core.codes import Coded
from bench.core.units import format_duration
from bench.results import launches, text
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table, Verbatim
from bench.tune.engine import Setting, TuneSearch, TuneVerdict, ratio_to_baseline
from bench.tune.messages import TuneAnswer
from bench.tune.space import TuneSpace, Varied

SCHEMA = "bench.tune/1"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SettingResult:
    """A setting and its results.

    `launches_s`: the seconds of each launch of this setting.
    `ratio`: the time of the setting divided by the time of the baseline, in the same blocks.
    `bytes_per_s`: the rate of reading, or None if the setting does not read data.
    `headroom`: the rate divided by the workload's demand, or None if the setting does not read data.
    `dropped`: why the setting has no time, or None if it has a time.
    """

    values: Mapping[str, str]
    launches_s: tuple[float, ...]
    seconds: float | None
    ratio: float | None
    bytes_per_s: float | None
    headroom: float | None
    dropped: Coded | None


@dataclass(frozen=True)
class TuneReport(Report):
    """A search and its answer.

    `launcher`: the part of a command before `-m bench.PATTERN`, word by word.
    """

    what: str
    run: str
    space: TuneSpace
    found: TuneSearch
    dropped: Mapping[Setting, Coded]
    launcher: tuple[str, ...]
    budget_s: float
    spent_s: float
    delta: float

    @cached_property
    def answer(self) -> Coded:
        """The answer, with its facts."""
        found, gain = self.found, self.found.gain
        best = None if found.best is None else self._named(found.best, found.baseline)
        facts: dict[str, Any] = {"baseline": self._named(found.baseline, found.best or found.baseline), "best": best}
        facts["what"] = "a step" if self.space.case.step_s or not self._num_bytes else "a pass"
        if gain is not None and found.best is not None:
            facts |= {"ratio": gain.ratio, "low": gain.low, "high": gain.high, "num_pairs": gain.num_pairs}
            facts |= {"slower": 1 / gain.ratio, "most": max(0.0, gain.high - 1), "least": gain.least}
            facts |= {name: self._confirmed_s(each) for name, each in self._sides.items()}
        return Coded.of(TuneAnswer(found.verdict), **facts)

    @property
    def _sides(self) -> dict[str, Setting]:
        assert self.found.best is not None
        return {"baseline_s": self.found.baseline, "best_s": self.found.best}

    def _confirmed_s(self, setting: Setting) -> float:
        return median(self.found.launches_s[setting][block] for block in self.found.confirmed)

    def _named(self, setting: Setting, other: Setting) -> str:
        """Return a text with the values of a setting that differ from another setting."""
        words = self.space.words_of(setting)
        differing = [name for name, a, b in zip(words, setting, other, strict=True) if a != b] or list(words)
        return ", ".join(f"{name} {words[name]}" for name in differing)

    @property
    def chosen(self) -> Setting:
        """The setting to use, which is the best setting if it is faster, or else the baseline."""
        found = self.found
        return found.best if found.verdict == TuneVerdict.FASTER and found.best is not None else found.baseline

    @property
    def _num_bytes(self) -> int | None:
        """The bytes of one pass over the data, or None if the search times training steps."""
        return self.space.case.sizes[0] if "files" in self._factor_names else None

    @property
    def _factor_names(self) -> frozenset[str]:
        from bench.core import plugins

        return frozenset(plugins.load("pattern", self.space.case.pattern).PATTERN.factors)

    @cached_property
    def results(self) -> tuple[SettingResult, ...]:
        """All settings. The fastest setting is first, and dropped settings are last."""
        found = self.found
        settings = dict.fromkeys([*found.launches_s, *self.dropped])
        results = [self._result(each) for each in settings]
        return tuple(sorted(results, key=lambda each: (each.dropped is not None, each.ratio or 0.0)))

    def _result(self, setting: Setting) -> SettingResult:
        times = tuple(self.found.launches_s.get(setting, {}).values())
        seconds = median(times) if times else None
        rate = self._num_bytes / seconds if self._num_bytes and seconds and not self.space.case.step_s else None
        demand = self.space.case.demand
        return SettingResult(
            values=self.space.words_of(setting),
            launches_s=times,
            seconds=seconds,
            ratio=ratio_to_baseline(self.found, setting),
            bytes_per_s=rate,
            headroom=rate / demand if rate and demand else None,
            dropped=self.dropped.get(setting),
        )

    @property
    def supply(self) -> dict[str, float | None] | None:
        """The rate and the headroom of the chosen setting, with 95 % intervals over launches.

        The headroom is the rate / the workload's demand. The result is None if the demand or the rate is unknown, or if
        the user gave `--step-time`.
        """
        demand, num_bytes = self.space.case.demand, self._num_bytes
        times = list(self.found.launches_s.get(self.chosen, {}).values())
        if not demand or not num_bytes or self.space.case.step_s or not times:
            return None
        low_s, high_s = launches.interval(times) or (None, None)
        return {
            "demand_bytes_per_s": demand,
            "bytes_per_s": num_bytes / median(times),
            "headroom": num_bytes / median(times) / demand,
            "headroom_low": num_bytes / high_s / demand if high_s else None,
            "headroom_high": num_bytes / low_s / demand if low_s else None,
        }

    # -- what to paste

    @property
    def command(self) -> str:
        """The command that measures the chosen setting."""
        case = self.space.case_of(self.chosen)
        pattern, *options = to_argv(case)
        words = [*self.launcher, "-m", f"bench.{pattern}", *options]
        return " ".join([*self._exports, shlex.join(words)])

    @property
    def _exports(self) -> list[str]:
        return [f"{name}={shlex.quote(value)}" for name, value in self.space.variables_of(self.chosen).items()]

    @property
    def scenario(self) -> str:
        """The scenario file that measures the chosen setting."""
        return self.space.yaml_of([self.chosen])

    @property
    def in_training(self) -> tuple[str, ...]:
        """Lines for the user's own training program, with the chosen values under the names that torch uses."""
        lines = [f"export {each}" for each in self._exports]
        for each, number in zip(self.space.varied, self.chosen, strict=True):
            if number and (line := _in_torch(each, each.values[number])):
                lines.append(line)
        return tuple(lines)

    # -- the report

    def blocks(self) -> Iterable[Block]:
        """Yield the conclusion, the settings to paste, and the table of settings."""
        yield Heading(self.answer.text)
        yield Lines(list(self._remarks()))
        yield Lines(["to paste:", f"  {self.command}", *(f"  {line}" for line in self.in_training)])
        yield Verbatim(self.scenario)
        yield Table(self._columns(), self.results)

    def _remarks(self) -> Iterator[str]:
        yield f"launches: {self.run}, {format_duration(self.spent_s)} of {format_duration(self.budget_s)}"
        supply = self.supply
        if supply is not None:
            low, high = supply["headroom_low"], supply["headroom_high"]
            around = "" if low is None or high is None else f" [{low:.2g}..{high:.2g}]"
            yield f"supply / demand with the setting below: {supply['headroom']:.2g}{around}"
        yield "ratio: time / the baseline's time in the same blocks; only the first line is a verdict"
        for each in self.results:
            if each.dropped is not None:
                yield f"{', '.join(f'{name} {value}' for name, value in each.values.items())}: {each.dropped.text}"

    def _columns(self) -> list[Column]:
        columns = [
            Column(each.name, lambda row, name=each.name: row.values[name], right=False)  # type: ignore[misc]
            for each in self.space.varied
        ]
        return [
            *columns,
            Column("launches", lambda row: str(len(row.launches_s))),
            Column("time", lambda row: text.microseconds(row.seconds), unit="(us)"),
            Column("ratio", lambda row: NOTHING if row.ratio is None else f"{row.ratio:.3f}"),
            Column("rate", lambda row: text.gigabytes(row.bytes_per_s), unit="(GB/s)", optional=True),
            Column("headroom", lambda row: NOTHING if row.headroom is None else f"{row.headroom:.2g}", optional=True),
        ]

    def data(self) -> Mapping[str, Any]:
        """Return the answer, the texts to paste, and all settings."""
        found = self.found
        return {
            "schema": SCHEMA,
            "what": self.what,
            "run": self.run,
            "verdict": found.verdict,
            "answer": self.answer.to_plain(),
            "baseline": self.space.words_of(found.baseline),
            "best": None if found.best is None else self.space.words_of(found.best),
            "gain": found.gain,
            "supply": self.supply,
            "chosen": self.space.words_of(self.chosen),
            "paste": {"command": self.command, "scenario": self.scenario, "training": self.in_training},
            "delta": self.delta,
            "budget_s": self.budget_s,
            "spent_s": self.spent_s,
            "settings": self.results,
        }

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Yield a line for each setting."""
        for each in self.results:
            dropped = None if each.dropped is None else each.dropped.code
            line = {"launches_s": each.launches_s, "seconds": each.seconds, "ratio": each.ratio, "dropped": dropped}
            yield {**each.values, **line, "bytes_per_s": each.bytes_per_s, "headroom": each.headroom}


def _in_torch(varied: Varied, value: Any) -> str:
    """Return a factor's value as torch spells it. The result is empty if torch has no such argument."""
    if varied.name == "bucket":
        return f"DistributedDataParallel(model, bucket_cap_mb={value / _MIB:g})"
    spelled = {"workers": "num_workers", "prefetch": "prefetch_factor"}
    return f"DataLoader(dataset, {spelled[varied.name]}={value})" if varied.name in spelled else ""


def launcher_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a job's command before `-m bench.PATTERN`.

    The path of the program is replaced by its name.
    """
    at = max(number for number, word in enumerate(command) if word.startswith("bench.")) - 1
    return tuple(word.rpartition("/")[2] if number == 0 else word for number, word in enumerate(command[:at]))
