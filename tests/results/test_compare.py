"""Two runs compared: figures against references, verdicts at their stated rates, and refusals that name the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.controller.alternate import FDR_OF_LOOK, LOOKS
from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.record import Header, Record, Samples
from bench.results import compare, inference, summary
from bench.results.document import DOCUMENT_SCHEMA, Document, Summary
from bench.results.joint_test import LEAST_PAIRS, corrected, joint_test
from bench.results.launches import log_medians
from bench.results.messages import ReasonCode
from bench.results.power import power_report

Make = Callable[..., Any]
Times = npt.NDArray[np.float64]
SIZES = tuple(64 << step for step in range(20))


@pytest.fixture
def a_run(a_header: Make, a_record: Make) -> Make:
    """`a_run(times)`: a run whose launch l has the median `times[l][row]`, rows by size, isolated then pipelined.

    Further arguments overrule the header's and the summaries' fields.
    """
    template: Any = summary.summarise("job", a_header(), a_record())

    def make(times: Sequence[Sequence[float]] | Times, header: dict[str, Any] | None = None, **row: Any) -> Document:
        headers: dict[str, Header] = {}
        rows: list[Summary] = []
        for launch, medians in enumerate(times, start=1):
            job = f"allreduce-mpi{f'-launch{launch}' if launch > 1 else ''}"
            headers[job] = a_header(**{"job": job, "launch": launch} | (header or {}))
            for number, seconds in enumerate(medians):
                mode = ("isolated", "pipelined")[number % 2]
                place = {"job": job, "mode": mode, "payload_bytes": SIZES[number // 2], "median_s": float(seconds)}
                rows.append(replace(template, **(place | row)))
        return Document(DOCUMENT_SCHEMA, headers, tuple(rows))

    return make


def launches(rng: np.random.Generator, num: int, rows: int, sigma: float, shared: float) -> Times:
    """Medians of `num` launches: log-normal, `shared` of the variance common to all rows of a launch."""
    common, own = rng.standard_normal((num, 1)), rng.standard_normal((num, rows))
    times: Times = 1e-5 * np.exp(sigma * (math.sqrt(shared) * common + math.sqrt(1 - shared) * own))
    return times


# --- the figures ---


def logs(times: Sequence[float] | Times) -> Times:
    """Log medians of shape (launches, rows)."""
    values: Times = np.log(np.asarray(times, dtype=float).reshape(len(times), -1))
    return values


def of_row(base: Sequence[float], new: Sequence[float]) -> inference.RatioEstimate:
    """The estimate of one row that is compared alone."""
    [test] = joint_test(logs(base), logs(new), 0.05).rows
    return inference.estimate(base, new, 0.05, test)


def drawn_in(values: Times, far: float) -> Times:
    """Values further than `far` robust deviations from the median, at that distance."""
    limit = far * 1.4826 * float(np.median(np.abs(values - np.median(values))))
    return np.clip(values, np.median(values) - limit, np.median(values) + limit)


@pytest.mark.parametrize(("num_base", "num_new"), [(5, 5), (4, 7)])
def test_p_is_the_share_of_all_ways_to_deal_the_launches(num_base: int, num_new: int) -> None:
    from scipy.stats import permutation_test

    def exact(values: Times) -> float:
        found = permutation_test(
            (values[num_base:], values[:num_base]),
            lambda x, y, axis: abs(x.mean(axis=axis) - y.mean(axis=axis)),
            vectorized=True,
            alternative="greater",
            n_resamples=np.inf,
        )
        return float(found.pvalue)

    rng = np.random.default_rng(1)
    for _ in range(10):
        base, new = rng.lognormal(0, 1, num_base), rng.lognormal(0.5, 1, num_new)
        of_row = drawn_in(np.log(np.concatenate((base, new))), 2.5)
        found = joint_test(logs(base), logs(new), 0.05)
        p_of_row = exact(of_row)
        assert found.rows[0].p == pytest.approx(p_of_row)
        assert min(p_of_row, exact(drawn_in(of_row, 1.5))) <= found.p + 1e-9
        assert inference.cliffs_delta(base.tolist(), new.tolist()) == pytest.approx(
            np.sign(np.subtract.outer(new, base)).mean()
        )


def test_the_least_p_is_that_of_runs_wholly_apart() -> None:
    found = joint_test(logs([1, 2, 3, 4, 5]), logs([6, 7, 8, 9, 10]), 0.05)
    assert found.p == pytest.approx(2 / 252) == pytest.approx(found.least_p)


def test_a_launch_that_lacks_a_row_is_left_out_of_that_row_only() -> None:
    rng = np.random.default_rng(2)
    base, new = rng.normal(0, 0.02, (6, 4)), rng.normal(0, 0.02, (6, 4))
    new[:, 3] += 0.3
    base[0, 1] = new[5, 3] = np.nan
    found = joint_test(base, new, 0.05)
    assert found.p < 0.05 and [test.p_corrected < 0.05 for test in found.rows] == [False, False, False, True]


def test_rows_of_one_launch_are_joined_by_its_number(a_run: Make) -> None:
    rng = np.random.default_rng(4)
    times = launches(rng, 6, 3, 0.05, 0.9)
    base, new = a_run(times), a_run(times)
    lacking = tuple(row for row in base.summaries if (row.job, row.payload_bytes) != ("allreduce-mpi", 128))
    table = log_medians([((1, 2, 3), (1.0, 2.0, 3.0)), ((2, 3, 3), (5.0, 6.0, 7.0))])
    assert np.exp(table)[1:3] == pytest.approx(np.array([[2.0, 5.0], [3.0, 6.0]]))
    assert np.isnan(table[0, 1]) and np.isnan(table[3, 0]) and math.exp(table[3, 1]) == pytest.approx(7.0)
    found = compare.compare(replace(base, summaries=lacking), new)
    assert found.together is not None and len(found.together.rows) == 3


def test_ratio_and_interval_are_welchs_on_logarithms() -> None:
    from scipy.stats import ttest_ind

    base, new = [1.0, 1.01, 0.99, 1.02, 0.98], [1.1, 1.2, 1.15, 1.05, 1.13, 1.12]
    found = of_row(base, new)
    around = ttest_ind(np.log(new), np.log(base), equal_var=False).confidence_interval(0.95)
    assert found.ratio == pytest.approx(1.125)
    assert (found.ratio_low, found.ratio_high) == pytest.approx((math.exp(around.low), math.exp(around.high)))


def test_the_correction_is_benjamini_and_hochbergs() -> None:
    from scipy.stats import false_discovery_control

    p_values = [0.04, 0.001, 0.5, 0.04, 0.012, 1.0]
    assert corrected(p_values) == pytest.approx(list(false_discovery_control(p_values)))


@pytest.mark.parametrize(("num", "rows", "sigma"), [(5, 1, 0.02), (6, 12, 0.05), (8, 4, 0.1)])
def test_the_least_detectable_change_of_a_row_is_detected_in_about_9_of_10_comparisons(
    a_run: Make, num: int, rows: int, sigma: float
) -> None:
    rng = np.random.default_rng(7)
    least = float(
        np.median(
            [
                row.estimate.min_detectable
                for _ in range(20)
                for row in compare.compare(*(a_run(launches(rng, num, rows, sigma, 0.0)) for _ in range(2))).rows
                if row.estimate is not None
            ]
        )
    )
    found = 0
    for _ in range(60):
        base, new = launches(rng, num, rows, sigma, 0.0), launches(rng, num, rows, sigma, 0.0)
        new[:, 0] *= 1 + least
        found += compare.compare(a_run(base), a_run(new)).rows[0].verdict == "slower"
    assert 0.75 <= found / 60 <= 1


def test_launches_without_any_spread_give_an_interval_of_one_point_and_a_least_change_of_delta() -> None:
    found = of_row([1e-6] * 5, [1e-6] * 5)
    assert (found.ratio_low, found.ratio_high, found.p, found.cliffs_delta) == (1, 1, 1, 0)
    assert found.min_detectable == pytest.approx(0.05)
    assert inference.verdict(1.0, (1.0, 1.0), found.p, 0.05, 0.05) == "equivalent"
    assert of_row([1e-6] * 5, [2e-6] * 5).p == pytest.approx(2 / 252)


# --- the verdicts, at their stated rates ---


@pytest.mark.parametrize(
    ("num", "rows", "sigma", "shared"),
    [
        (5, 2, 0.1, 0.0),
        (5, 40, 0.1, 0.5),
        (6, 13, 0.1, 0.9),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((8, 16, 0.1, 0.9), (10, 8, 0.05, 0.0), (10, 40, 0.1, 0.5))
        ),
    ],
)
def test_runs_of_the_same_thing_are_called_different_in_at_most_5_of_100_comparisons(
    num: int, rows: int, sigma: float, shared: float
) -> None:
    rng = np.random.default_rng(20)
    found = []
    for _ in range(200):
        base, new = (np.log(launches(rng, num, rows, sigma, shared)) for _ in range(2))
        found.append(joint_test(base, new, 0.05).p <= 0.05)  # every verdict of slower or faster needs this
    # 200 comparisons at exactly 5 % exceed this bound once in 1,000 times
    assert np.mean(found) <= 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 200)


def test_no_row_is_named_unless_the_joint_test_finds_a_change(a_run: Make) -> None:
    rng = np.random.default_rng(21)
    runs = [(a_run(launches(rng, 5, 8, 0.1, 0.3)), a_run(launches(rng, 5, 8, 0.1, 0.3))) for _ in range(40)]
    found = [compare.compare(base, new) for base, new in runs]
    named = [each for each in found if each.counts["slower"] + each.counts["faster"] or each.is_slower]
    assert all(each.together is not None and each.together.p <= 0.05 for each in named)


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_a_slow_down_of_10_percent_is_found_by_5_launches_that_vary_by_2_percent(a_run: Make, shared: float) -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(20):
        base, new = launches(rng, 5, 16, 0.02, shared), launches(rng, 5, 16, 0.02, shared) * 1.1
        found.append(compare.compare(a_run(base), a_run(new)).counts["slower"] / 16)
    assert min(found) > 0 and sum(found) / len(found) >= 0.95


def test_a_change_of_all_rows_is_found_though_no_row_alone_shows_it(a_run: Make) -> None:
    rng = np.random.default_rng(8)
    runs = [(launches(rng, 5, 30, 0.08, 0.0), launches(rng, 5, 30, 0.08, 0.0) * 1.1) for _ in range(20)]
    found = [compare.compare(a_run(base), a_run(new)) for base, new in runs]
    assert sum(each.is_slower for each in found) >= 18
    assert sum(each.counts["slower"] for each in found) < 20 * 30 * 0.5


def test_a_row_alone_that_takes_20_percent_longer_is_named_and_no_other(a_run: Make) -> None:
    rng = np.random.default_rng(9)
    named = []
    for _ in range(20):
        base, new = launches(rng, 6, 13, 0.03, 0.3), launches(rng, 6, 13, 0.03, 0.3)
        new[:, 4] *= 1.2
        rows = compare.compare(a_run(base), a_run(new)).rows
        named.append([number for number, row in enumerate(rows) if row.verdict in ("slower", "faster")])
    assert sum(4 in each for each in named) >= 18 and sum(each == [4] for each in named) >= 17


@given(st.integers(0, 10_000), st.sampled_from([0.8, 0.96, 1.0, 1.04, 1.3]))
@settings(max_examples=25)
def test_swapped_runs_get_the_opposite_verdict_and_ratio(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    base, new = rng.lognormal(0, 0.02, 6).tolist(), (rng.lognormal(0, 0.02, 6) * factor).tolist()
    there, back = of_row(base, new), of_row(new, base)
    opposite = {"slower": "faster", "faster": "slower"}
    verdict = inference.verdict(there.ratio, (there.ratio_low, there.ratio_high), there.p, 0.05, 0.05)
    swapped = inference.verdict(back.ratio, (back.ratio_low, back.ratio_high), back.p, 0.05, 0.05)
    assert swapped == opposite.get(verdict, verdict)
    assert there.ratio * back.ratio == pytest.approx(1) and there.p == pytest.approx(back.p)
    assert there.ratio_low * back.ratio_high == pytest.approx(1) and there.ratio_low <= there.ratio <= there.ratio_high


def test_small_and_uncertain_changes_are_told_apart(a_run: Make) -> None:
    wide, tight = [[1.0], [0.9], [1.1], [0.8], [1.2]], [[1.0], [1.001], [0.999], [1.002], [0.998]]
    slightly = [[each[0] * 1.02] for each in tight]  # significant, and of no interest
    assert compare.compare(a_run(tight), a_run(slightly)).rows[0].verdict == "equivalent"
    assert compare.compare(a_run(tight), a_run(slightly), delta=0.01).rows[0].verdict == "slower"
    assert compare.compare(a_run(wide), a_run(wide)).rows[0].verdict == "inconclusive"


@pytest.mark.parametrize(("num_base", "num_new"), [(1, 1), (4, 9), (9, 4)])
def test_fewer_than_5_launches_give_a_ratio_and_nothing_else(a_run: Make, num_base: int, num_new: int) -> None:
    [row] = compare.compare(a_run([[1e-5]] * num_base), a_run([[3e-5]] * num_new)).rows
    assert (row.verdict, row.estimate, row.p_corrected) == ("exploratory", None, None)
    assert row.ratio == pytest.approx(3)


def of_machine(
    rng: np.random.Generator, num: int, rows: int, sigma: float, far: float = 0.0, drift: float = 0.0
) -> tuple[Times, Times]:
    """Log medians of two sides in turn: errors of launches and of rows, a share far off, and a common drift."""

    def errors(*shape: int) -> Times:
        drawn: Times = rng.normal(0, sigma, shape) * np.where(rng.random(shape) < far, 5, 1)
        return drawn

    drifted = np.cumsum(rng.normal(0, drift, num))[:, None]
    base, new = (errors(num, 1) + errors(num, rows) + drifted for _ in range(2))
    return base, new


@pytest.mark.parametrize("drift", [0.0, 0.2])
@pytest.mark.parametrize("far", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_equal_sides_measured_in_turn_differ_in_at_most_5_of_100_comparisons(drift: float, far: float) -> None:
    rng = np.random.default_rng(31)
    found = [joint_test(*of_machine(rng, 9, 12, 0.05, far, drift), 0.05, 400, paired=True).p for _ in range(150)]
    assert np.mean(np.array(found) <= 0.05) <= 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 150)


@pytest.mark.slow
def test_equal_sides_differ_in_at_most_5_of_100_whole_calls_with_auto() -> None:
    rng, named = np.random.default_rng(32), 0
    for _ in range(150):
        base, new = of_machine(rng, LOOKS[-1], 6, 0.05)
        named += any(
            joint_test(base[:look], new[:look], FDR_OF_LOOK, 400, paired=look >= LEAST_PAIRS).p <= FDR_OF_LOOK
            for look in LOOKS
        )
    assert named / 150 <= 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 150)


def test_a_drift_of_the_machine_hides_nothing_from_launches_in_turn() -> None:
    rng = np.random.default_rng(33)
    found = []
    for _ in range(15):
        base, new = of_machine(rng, 10, 12, 0.02, drift=0.2)
        sides = base, new + math.log(1.1)
        found.append([joint_test(*sides, 0.05, 400, paired=paired).p <= 0.05 for paired in (True, False)])
    in_turn, mixed = np.sum(found, axis=0)
    assert in_turn >= 12 and mixed <= 5


def test_a_row_that_takes_20_percent_longer_is_found_though_whole_launches_are_slow() -> None:
    rng = np.random.default_rng(34)
    found = 0
    for _ in range(20):
        base, new = of_machine(rng, 10, 14, 0.03, far=0.1)
        base, new = base + rng.normal(0, 0.1, (10, 1)), new + rng.normal(0, 0.1, (10, 1))
        new[:, 5] += math.log(1.2)
        test = joint_test(base, new, 0.05, 400)
        found += max(test.p, test.rows[5].p_corrected) <= 0.05
    assert found >= 17


# --- how many launches it takes ---


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "needed"), [(0.01, 5), (0.06, None)])
def test_the_simulated_power_is_that_of_comparisons_with_new_launches(
    a_run: Make, sigma: float, needed: int | None
) -> None:
    rng = np.random.default_rng(11)
    report = power_report(a_run(launches(rng, 12, 10, sigma, 0.3)), "run", 0.1, 0.2, 0.05, 0.05)
    if needed:
        assert report.needed == needed
    assert report.needed is not None
    num, found = report.needed, 0
    for _ in range(40):
        base, new = launches(rng, num, 10, sigma, 0.3), launches(rng, num, 10, sigma, 0.3) * 1.1
        found += compare.compare(a_run(base), a_run(new)).verdict_together == "slower"
    assert found >= 32 and report.powers[-1].all_rows >= 0.9 and report.powers[-1].one_row >= 0.9


def test_without_a_spread_of_launches_there_is_no_power(a_run: Make) -> None:
    with pytest.raises(UsageError, match="LAUNCHES=5"):
        power_report(a_run([[1e-5, 2e-5]] * 2), "run", 0.1, 0.2, 0.05, 0.05)


# --- what can be compared ---


@pytest.mark.parametrize(
    ("factor", "header", "row", "values"),
    [
        ("num_ranks", {"num_ranks": 2, "ranks_per_node": 1}, {}, "4 in BASE and 2 in NEW"),
        ("dtype", {"dtype": "float64"}, {}, "float32 in BASE and float64 in NEW"),
        ("transport", {"transport": "gloo", "facts": {"torch": "2"}}, {}, "mpi in BASE and gloo in NEW"),
        ("library", {"facts": {"mpi_library": "MPICH  4"}}, {}, "unknown in BASE and MPICH 4 in NEW"),
        ("mpi_thread_level", {"facts": {"mpi_thread_level": "multiple"}}, {}, "and multiple in NEW"),
        ("sync", {"settings": {"sync": "barrier"}}, {}, "and barrier in NEW"),
        ("data", {"settings": {"data": "zeros"}}, {}, "and zeros in NEW"),
        ("order", {"case": ("allreduce", "--order", "reverse")}, {}, "linear in BASE and reverse in NEW"),
        ("engine", {"case": ("local_copy", "--engine", "sm")}, {}, "unknown in BASE and sm in NEW"),
        ("graph", {"case": ("allreduce", "--graph", "1")}, {}, "unknown in BASE and yes in NEW"),
        ("cache", {}, {"cache": "hot"}, "cold in BASE and hot in NEW"),
        ("loop", {}, {"loop": "compiled"}, "python in BASE and compiled in NEW"),
        ("in_place", {}, {"in_place": True}, "no in BASE and yes in NEW"),
    ],
)
def test_runs_of_other_factors_are_refused_unless_the_factor_is_named(
    a_run: Make, factor: str, header: dict[str, Any], row: dict[str, Any], values: str
) -> None:
    base, new = a_run([[1e-5]] * 5), a_run([[2e-5]] * 5, header, **row)
    with pytest.raises(UsageError, match=values) as refused:
        compare.compare(base, new)
    assert str(refused.value).endswith(f"--allow-diff {factor}")
    [found] = compare.compare(base, new, allow_diff=[factor]).rows
    assert found.verdict == "slower" and factor in found.differs


def test_each_differing_factor_is_named_and_one_allowed_is_not_enough(a_run: Make) -> None:
    base, new = a_run([[1e-5]]), a_run([[2e-5]], {"dtype": "float64", "clock": "device"})
    with pytest.raises(UsageError, match=r"\bdtype .*\bclock .*--allow-diff dtype --allow-diff clock"):
        compare.compare(base, new)
    with pytest.raises(UsageError, match=r"^clock is"):
        compare.compare(base, new, allow_diff=["dtype"])


@pytest.mark.parametrize(
    ("word", "hint"), [("num_rank", "num_ranks"), ("threadlevel", "mpi_thread_level"), ("modelled", "there|did")]
)
def test_an_unknown_factor_is_refused_with_the_nearest_one(a_run: Make, word: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"'{word}'.*({hint})"):
        compare.compare(a_run([[1e-5]]), a_run([[1e-5]]), allow_diff=[word])


def merged(*runs: Document) -> Document:
    """Several documents as one run; their jobs are told apart by a letter."""
    named = list(zip("abcd", runs, strict=False))
    headers = {f"{letter}-{job}": header for letter, run in named for job, header in run.headers.items()}
    rows = [replace(row, job=f"{letter}-{row.job}") for letter, run in named for row in run.summaries]
    return Document(DOCUMENT_SCHEMA, headers, tuple(rows))


def test_only_what_both_runs_have_is_compared_and_the_rest_is_listed(a_run: Make) -> None:
    double = a_run([[1e-5]], {"dtype": "float64"})
    base, new = a_run([[1e-5] * 4]), merged(a_run([[1e-5] * 6]), double)
    found = compare.compare(base, new)
    assert len(found.rows) == 4 and found.only_base == ()
    assert [row.place.payload_bytes for row in found.only_new] == [256, 256, 64]
    assert [row.reason and row.reason.code for row in found.only_new] == [None, None, ReasonCode.OTHER_FACTORS]
    assert found.only_new[2].reason is not None
    assert found.only_new[2].reason.facts == {"factors": ["dtype float64"]}


def test_rows_are_not_paired_at_random_where_several_fit(a_run: Make) -> None:
    small, large = a_run([[1e-5]]), a_run([[1e-5]], {"num_ranks": 8, "ranks_per_node": 4})
    other = a_run([[1e-5]], {"num_ranks": 16, "ranks_per_node": 8})
    for base, new in ((merged(small, large), other), (other, merged(small, large))):
        with pytest.raises(UsageError, match="several rows"):
            compare.compare(base, new, allow_diff=["num_ranks"])
    found = compare.compare(merged(small, large), merged(large, other), allow_diff=["num_ranks"])
    assert [dict(row.differs) for row in found.rows] == [
        {"num_ranks": ("4", "16"), "ranks_per_node": ("2", "8")},
        {},
    ]


def test_a_factor_that_changed_for_one_transport_of_two_is_refused_too(a_run: Make) -> None:
    gloo = a_run([[1e-5]], {"transport": "gloo", "facts": {"torch": "2"}})
    base, new = (merged(a_run([[1e-5]], {"facts": {"mpi_library": name}}), gloo) for name in ("MPICH 4", "MPICH 5"))
    with pytest.raises(UsageError, match=r"^library .*MPICH 4 .*MPICH 5 "):
        compare.compare(base, new)
    assert len(compare.compare(base, new, allow_diff=["library"]).rows) == 2


def test_rows_of_another_cache_state_are_not_comparable_where_the_others_are(a_run: Make) -> None:
    base, new = a_run([[1e-5] * 4]), a_run([[1e-5] * 4])
    rows = tuple(replace(row, cache="hot") if row.payload_bytes == 64 else row for row in new.summaries)
    found = compare.compare(base, replace(new, summaries=rows)).rows
    assert [row.verdict for row in found] == ["not comparable"] * 2 + ["exploratory"] * 2
    assert found[0].reason is not None and found[0].ratio is None
    assert (found[0].reason.code, found[0].reason.facts["factors"]) == (ReasonCode.FACTORS_DIFFER, ["cache"])


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"verified": False}, ReasonCode.WRONG_DATA),
        ({"median_s": None, "flags": ("bad-samples",)}, ReasonCode.BAD_SAMPLES),
        ({"num_samples": 1}, ReasonCode.FEW_SAMPLES),
        ({"num_samples": 0, "median_s": None}, ReasonCode.NO_MEDIAN),
    ],
)
def test_one_launch_without_a_trustworthy_figure_makes_its_row_not_comparable(
    a_run: Make, row: dict[str, Any], code: ReasonCode
) -> None:
    base, new = a_run([[1e-5] * 2] * 5), a_run([[2e-5] * 2] * 5)
    worse = (replace(new.summaries[0], **row), *new.summaries[1:])
    found = compare.compare(base, replace(new, summaries=worse)).rows
    assert found[0].reason is not None and found[0].reason.code == code
    assert (found[0].reason.facts["side"], found[0].reason.facts["job"]) == ("NEW", "allreduce-mpi")
    assert (found[0].ratio, found[0].verdict) == (None, "not comparable") and found[1].verdict == "slower"
    with pytest.raises(UsageError, match=r"^nothing .*BASE.* NEW"):
        compare.compare(base, a_run([[2e-5] * 2] * 5, **row))


@pytest.mark.parametrize("bad", [(1e-4, math.nan), (1e-4, 0.0), (1e-4, -1e-6), (), (1e-4,)])
def test_times_that_are_none_never_become_a_ratio(a_header: Make, a_record: Make, bad: tuple[float, ...]) -> None:
    def run(samples: Samples) -> Document:
        told: list[tuple[str, Header, Sequence[Record]]] = [("job", a_header(), [a_record(samples=samples)])]
        return summary.document(told)

    good = Samples((1e-4,) * 30)
    for base, new in ((run(good), run(Samples(bad))), (run(Samples(bad)), run(good))):
        with pytest.raises(UsageError, match=r"^nothing .*BASE.* NEW"):
            compare.compare(base, new)


def test_a_model_is_never_measured_against_a_measurement(a_run: Make) -> None:
    model = {"transport": "model", "modelled": True, "clock": "virtual"}
    base, modelled = a_run([[1e-5]]), a_run([[2e-5]], model, modelled=True)
    with pytest.raises(UsageError, match=r"BASE .*measured.* NEW .*modelled"):
        compare.compare(base, modelled, allow_diff=["transport"])
    mixed = merged(base, a_run([[1e-5]], model | {"pattern": "alltoall"}, modelled=True, pattern="alltoall"))
    other = merged(base, a_run([[1e-5]], {"pattern": "alltoall"}, pattern="alltoall"))
    found = {row.place.pattern: row for row in compare.compare(mixed, other, allow_diff=["transport"]).rows}
    facts = {"modelled": "BASE", "measured": "NEW"}
    assert found["alltoall"].reason == Coded.of(ReasonCode.MODELLED_AND_MEASURED, **facts)
    assert found["alltoall"].ratio is None


def test_two_models_have_a_ratio_and_no_verdict(a_run: Make) -> None:
    model = {"transport": "model", "modelled": True, "clock": "virtual"}
    [row] = compare.compare(a_run([[1e-5]] * 5, model, modelled=True), a_run([[2e-5]] * 5, model, modelled=True)).rows
    assert (row.verdict, row.ratio, row.estimate) == ("modelled", 2, None)


def test_runs_without_a_common_row_are_refused(a_run: Make) -> None:
    base = a_run([[1e-5]])
    with pytest.raises(UsageError, match=r"BASE \(allreduce.* NEW \(alltoall"):
        compare.compare(base, a_run([[1e-5]], {"pattern": "alltoall"}, pattern="alltoall"))
    with pytest.raises(UsageError, match="NEW"):
        compare.compare(base, Document(DOCUMENT_SCHEMA, {}, ()))


def test_what_changed_around_the_figures_is_listed(a_run: Make) -> None:
    def node(gpu: str, num_bytes: int) -> dict[str, Any]:
        return {"governor": "powersave", "available_memory_bytes": num_bytes, "gpus": [{"name": gpu}]}

    of_base = {
        "versions": {"mpich": "4", "bench": "1"},
        "environment": {"SLURM_JOB_ID": "1"},
        "nodes": {"h0": node("A", 1)},
    }
    of_new = {
        "versions": {"mpich": "5", "bench": "1"},
        "environment": {"SLURM_JOB_ID": "2", "UCX_TLS": "tcp"},
        "settings": {"max_s": 2.0},
        "instance": "p4d.24xlarge",
        "nodes": {"h1": node("B", 2)},
    }
    found = compare.compare(a_run([[1e-5]], of_base), a_run([[1e-5]], of_new)).changes
    assert {(change.what, change.base, change.new) for change in found} == {
        ("versions.mpich", "4", "5"),
        ("environment.UCX_TLS", None, "tcp"),
        ("settings.max_s", None, "2.0"),
        ("instance", None, "p4d.24xlarge"),
        ("hosts", "h0", "h1"),
        ("nodes.gpus.name", "A", "B"),
    }


def test_why_a_row_is_missing_is_said_where_the_other_run_knows(a_run: Make) -> None:
    base, new = a_run([[1e-5] * 4]), a_run([[1e-5] * 2])
    lost = {"pattern": "allreduce", "transport": "mpi", "group": "world", "payload_bytes": 128}
    new = replace(
        new,
        skipped=({**lost, "mode": "isolated", "reason": "no memory"},),
        failures=({**lost, "mode": "pipelined", "what": "rank 1 died"},),
    )
    found = compare.compare(base, new)
    reasons = [row.reason for row in found.only_base if row.reason is not None]
    assert [(reason.code, reason.facts["reason"]) for reason in reasons] == [
        (ReasonCode.SKIPPED_THERE, "no memory"),
        (ReasonCode.FAILED_THERE, "rank 1 died"),
    ]
