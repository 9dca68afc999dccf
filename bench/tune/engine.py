"""Find the best setting among several, with few launches.

A setting has one value of each factor. The user's own setting is the baseline. A search has several stages, and each
stage varies one factor. Alternatively, a single stage varies all factors. A stage consists of rounds, and a round
consists of blocks. A block has one launch of every remaining setting. After each round, the slower half of the settings
is dropped. This method is successive halving (Karnin, Koren and Somekh, "Almost Optimal Exploration in Multi-Armed
Bandits", 2013).

A stage selects a setting because its launches were fast. These launches make the setting look better than it is, so
they are not used for the verdict. For the verdict, the winner of all stages and the baseline are measured again, in
pairs of neighbouring launches. One test of these pairs gives the verdict. The probability of a false alarm therefore
does not depend on the number of settings. The caller passes the function that measures launches. This module has no
other side effects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, median, stdev

from bench.results.launches import t_quantile

Setting = tuple[int, ...]  # for each factor, the number of its value; 0 is the baseline's value
# Measures one launch of each setting, one directly after the other in this order. Returns the seconds of each launch,
# or None for a setting that cannot run. The first argument is the number of the block.
Measure = Callable[[int, Sequence[Setting]], Sequence[float | None]]

POWER = 0.9
LOOKS = (4, 7, 12, 20, 30)  # the numbers of pairs after which the confirmation is tested; the budget may end earlier
# The significance level of each of the five tests (looks). At this level, all tests together name a winner among two
# equal settings in 5 % of searches (Pocock, Biometrika 64, 1977).
_ALPHA_OF_LOOK = 0.0158
LEAST_PAIRS = LOOKS[0]
_FINAL_BLOCKS = 3  # when one setting is left besides the incumbent, a stage has at least this many blocks in total
_MOST_BLOCKS = 6  # most blocks of a round
_ADOPTED_P = 0.05  # a stage adopts a value only below this p-value; this is not a verdict


class TuneVerdict(StrEnum):
    """The answer of a search."""

    FASTER = "faster"  # the best setting is faster than the baseline
    BASELINE = "baseline"  # the best other setting is slower than the baseline
    EQUIVALENT = "equivalent"  # nothing is faster by more than the smallest change that matters
    UNDECIDED = "undecided"  # there may be a difference that this budget cannot find


@dataclass(frozen=True, slots=True)
class TuneGain:
    """The time of the baseline, divided by the time of the best setting: 1.1 means that the baseline takes 10 % longer.

    The search tests the pairs several times (LOOKS). The interval is valid for all these tests together, so it is wider
    than the interval of a single test.

    `least`: the smallest gain that a search with this number of pairs finds with probability 0.9.
    """

    ratio: float
    low: float
    high: float
    least: float
    num_pairs: int


@dataclass(slots=True)
class TuneSearch:
    """The measured launches and the answer.

    `launches_s[setting][block]`: the seconds of a launch.
    `failed`: the settings that could not run.
    `untried`: the settings without a launch, because the budget ended.
    `confirmed`: the blocks of the confirmation.
    `gain`: the gain of the best setting, or None without a confirmation.
    """

    baseline: Setting
    launches_s: dict[Setting, dict[int, float]] = field(default_factory=dict)
    failed: list[Setting] = field(default_factory=list)
    untried: list[Setting] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    best: Setting | None = None
    verdict: TuneVerdict = TuneVerdict.UNDECIDED
    gain: TuneGain | None = None
    num_blocks: int = 0


def stages_of(num_values: Sequence[int], together: bool) -> list[list[int]]:
    """Return the factors that each stage varies. A stage varies one factor, or a single stage varies all factors."""
    varied = [factor for factor, number in enumerate(num_values) if number > 1]
    return [varied] if together and varied else [[factor] for factor in varied]


def settings_of(stage: Sequence[int], num_values: Sequence[int], incumbent: Setting) -> list[Setting]:
    """Return all settings of a stage.

    The incumbent comes first, followed by all other combinations of the factors' values.
    """
    found = [incumbent]
    for factor in stage:
        found += [
            (*each[:factor], value, *each[factor + 1 :])
            for each in list(found)
            for value in range(num_values[factor])
            if value != incumbent[factor]
        ]
    return found


def least_launches(num_values: Sequence[int], together: bool) -> int:
    """Return the smallest number of launches for a useful search."""
    baseline = (0,) * len(num_values)
    stages = stages_of(num_values, together)
    return sum(len(settings_of(stage, num_values, baseline)) for stage in stages) + 2 * LEAST_PAIRS


def search(
    num_values: Sequence[int], measure: Measure, launches_left: Callable[[], int], delta: float, together: bool = False
) -> TuneSearch:
    """Search for the fastest setting.

    `num_values`: the number of values of each factor.
    `launches_left`: how many launches the budget still allows.
    `delta`: the smallest change that matters (0.02 is 2 %).
    `together`: whether a single stage tries all combinations, instead of one stage per factor.
    """
    found = TuneSearch((0,) * len(num_values))
    stages = stages_of(num_values, together)
    chosen, rivals = found.baseline, []
    for number, stage in enumerate(stages):
        stages_left = len(stages) - number
        settings = settings_of(stage, num_values, chosen)

        def for_stage(stages_left: int = stages_left) -> int:
            return _for_stage(launches_left(), stages_left)

        winner, is_clear = _select(found, settings, measure, for_stage, launches_left)
        if found.baseline in found.failed:
            return found
        if winner is not None and is_clear:
            chosen = winner
        elif winner is not None and chosen == found.baseline:
            rivals.append(winner)
    candidates = [*rivals, *([chosen] if chosen != found.baseline else [])]
    if candidates:
        found.best = _fastest(found, candidates)
        _confirm(found, found.best, measure, launches_left, delta)
    return found


def _for_stage(launches_left: int, stages_left: int) -> int:
    """Return how many launches a stage may use.

    Half of the remaining launches, but at least LEAST_PAIRS pairs, are reserved for the confirmation.
    """
    reserved = max(2 * LEAST_PAIRS, min(launches_left // 2, 2 * LOOKS[-1]))
    return (launches_left - reserved) // stages_left


def _select(
    found: TuneSearch,
    settings: Sequence[Setting],
    measure: Measure,
    for_stage: Callable[[], int],
    launches_left: Callable[[], int],
) -> tuple[Setting | None, bool]:
    """Drop the slower half of the settings repeatedly, until only one setting and the incumbent are left.

    The incumbent and the baseline are part of every block. Return the winner, and whether its launches are clearly
    faster than those of the incumbent. If no setting except the incumbent can run, the winner is None.

    `for_stage`: returns the number of launches that the stage may use, given the launch times so far.
    `launches_left`: returns the number of launches that the whole budget allows. This number limits the first launches
        of the settings.
    """
    incumbent, others = settings[0], list(settings[1:])
    kept = list(dict.fromkeys((found.baseline, incumbent)))
    rounds_left = 1 + math.ceil(math.log2(len(others))) if others else 0
    blocks: list[int] = []
    allowed, used = for_stage(), 0
    while others and rounds_left:
        size = len(kept) + len(others)
        wanted = max((allowed - used) // (rounds_left * size), _FINAL_BLOCKS - len(blocks) if len(others) == 1 else 1)
        for _ in range(min(_MOST_BLOCKS, wanted)):
            if blocks and allowed - used < size:
                break
            if blocks:
                blocks.append(_block(found, [*kept, *others], measure))
            else:
                blocks.append(_first_block(found, kept, others, measure, launches_left))
            others = [each for each in others if each not in found.failed and each not in found.untried]
            if set(kept) & set(found.failed):
                return None, False
            used += size
            allowed = min(allowed, used + for_stage())  # launches may take longer than was expected
        rounds_left -= 1
        others.sort(key=lambda each: _middle(found, each, incumbent, blocks))
        others = others[: math.ceil(len(others) / 2)]
    if not others:
        return None, False
    return others[0], _is_faster([_difference(found, others[0], incumbent, block) for block in blocks])


def _block(found: TuneSearch, settings: Sequence[Setting], measure: Measure) -> int:
    """Measure one launch of each setting.

    The order of settings is reversed in every second block, so that a drift affects all settings equally.
    """
    number = found.num_blocks = found.num_blocks + 1
    order = list(settings) if number % 2 else list(settings)[::-1]
    for setting, seconds in zip(order, measure(number, order), strict=True):
        if seconds is None:
            found.failed.append(setting)
        else:
            found.launches_s.setdefault(setting, {})[number] = seconds
    return number


def _first_block(
    found: TuneSearch,
    kept: Sequence[Setting],
    others: Sequence[Setting],
    measure: Measure,
    launches_left: Callable[[], int],
) -> int:
    """Measure one launch of each setting, until the budget ends. Settings without a launch become `untried`.

    The time of a launch is known only after the first launches. Launches are therefore measured in groups, and each
    group uses at most half of the remaining launches. If the budget allows a confirmation at all, enough launches for
    the shortest confirmation are reserved.
    """
    number = found.num_blocks = found.num_blocks + 1
    left = list(others)
    due = [*kept, *others[:1]]
    reserved = 2 * LEAST_PAIRS
    if found.launches_s and launches_left() - reserved < len(due):
        due = []
    is_first_group = not found.launches_s
    while due:
        for setting, seconds in zip(due, measure(number, due), strict=True):
            if seconds is None:
                found.failed.append(setting)
            else:
                found.launches_s.setdefault(setting, {})[number] = seconds
        left = [each for each in left if each not in due]
        allowed = launches_left()
        if is_first_group and allowed <= reserved:
            reserved = 0
        is_first_group = False
        due = left[: math.ceil(max(0, min(len(left), allowed - reserved)) / 2)]
    found.untried += left
    return number


def _difference(found: TuneSearch, setting: Setting, other: Setting, block: int) -> float:
    return math.log(found.launches_s[setting][block] / found.launches_s[other][block])


def _middle(found: TuneSearch, setting: Setting, other: Setting, blocks: Sequence[int]) -> float:
    return median(_difference(found, setting, other, block) for block in blocks)


def _is_faster(differences: Sequence[float]) -> bool:
    """Check by a sign test or a t test whether log ratios are significantly below zero (_ADOPTED_P)."""
    if len(differences) < _FINAL_BLOCKS:
        return False
    error = stdev(differences) / math.sqrt(len(differences))
    all_below = max(differences) < 0 and 0.5 ** len(differences) < _ADOPTED_P
    return all_below or fmean(differences) < -t_quantile(1 - _ADOPTED_P, len(differences) - 1) * error


def _fastest(found: TuneSearch, settings: Sequence[Setting]) -> Setting:
    """Return the setting that is fastest relative to the baseline. All launches of a setting are used."""

    return min(settings, key=lambda each: ratio_to_baseline(found, each) or math.inf)


def _confirm(
    found: TuneSearch, best: Setting, measure: Measure, launches_left: Callable[[], int], delta: float
) -> None:
    """Measure pairs of the baseline and the best setting until a test decides, or until the budget ends."""
    while len(found.confirmed) < LOOKS[-1] and launches_left() >= 2:
        block = _block(found, [found.baseline, best], measure)
        if found.failed and {best, found.baseline} & set(found.failed):
            return
        found.confirmed.append(block)
        if len(found.confirmed) in LOOKS and _decided(found, delta):
            return
    if len(found.confirmed) > 1:
        _decided(found, delta)


def _decided(found: TuneSearch, delta: float) -> bool:
    """Set gain and verdict from the pairs that were measured so far. Returns whether the verdict is final."""
    assert found.best is not None
    gains = [-_difference(found, found.best, found.baseline, block) for block in found.confirmed]
    found.gain = gain_of(gains)
    if found.gain.low > 1:
        found.verdict = TuneVerdict.FASTER
    elif found.gain.high < 1:
        found.verdict = TuneVerdict.BASELINE
    elif found.gain.high < 1 + delta and len(gains) >= LEAST_PAIRS:
        found.verdict = TuneVerdict.EQUIVALENT
    return found.verdict != TuneVerdict.UNDECIDED


def gain_of(logs: Sequence[float]) -> TuneGain:
    """Return the gain from the log ratios of pairs.

    The interval is Student's t interval over pairs, and is valid for all LOOKS together. If the two settings are equal,
    the launches of a pair are exchangeable. The log ratio is then symmetric around 0. If the log ratios have heavy
    tails, the interval only becomes wider.
    """
    middle = fmean(logs)
    error = stdev(logs) / math.sqrt(len(logs))
    quantile = t_quantile(1 - _ALPHA_OF_LOOK / 2, len(logs) - 1)
    least = (quantile + t_quantile(POWER, len(logs) - 1)) * error
    return TuneGain(
        ratio=math.exp(middle),
        low=math.exp(middle - quantile * error),
        high=math.exp(middle + quantile * error),
        least=math.expm1(least),
        num_pairs=len(logs),
    )


def ratio_to_baseline(found: TuneSearch, setting: Setting) -> float | None:
    """Return the time of a setting divided by the time of the baseline, or None if no block has a launch of both.

    The result is the geometric mean over all blocks that have a launch of the setting and of the baseline.
    """
    own, base = found.launches_s.get(setting, {}), found.launches_s.get(found.baseline, {})
    common: Mapping[int, float] = {block: own[block] / base[block] for block in own if block in base}
    return math.exp(fmean(map(math.log, common.values()))) if common else None
