"""Which settings a search looks among: the table of factors, the transport's variables, what the user names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.config.scenario import load_scenario
from bench.core import plugins
from bench.core.case import FACTOR, Case
from bench.core.errors import UsageError
from bench.core.training_step import timed_layers
from bench.core.traits import traits
from bench.tune import space
from bench.tune.messages import TuneError
from bench.tune.space import TuneSpace

STEP, FEED = (plugins.load("pattern", name).PATTERN for name in ("step", "feed"))
TRAIN = Case("step", transport="gloo", timed=timed_layers("layers=8,forward=1ms,backward=2ms,bytes=1M"))
READ = Case("feed", transport="storage", sizes=(32 << 20,), mode="isolated", folder="/data", demand=2e9)


def test_buckets_beyond_all_gradients_are_tried_once() -> None:
    [varied] = space.usual(TRAIN, STEP)
    assert varied.name == "bucket" and varied.values == (0, 1 << 20, 4 << 20, 25 << 20)
    assert [varied.show(number) for number in range(2)] == ["default", "1M"]


def test_a_transport_names_variables_that_are_worth_a_try() -> None:
    varied = {each.name: each.values for each in space.usual(replace(TRAIN, transport="nccl"), STEP)}
    assert {name: (None, *values) for name, values in traits("nccl").tuned}.items() <= varied.items()


def test_a_feed_varies_formats_and_workers_and_prefetch_only_with_steps() -> None:
    assert [each.name for each in space.usual(READ, FEED)] == ["files", "workers"]
    with_steps = space.usual(replace(READ, step_s=0.1), FEED)
    assert [each.name for each in with_steps] == ["files", "workers", "prefetch"]
    assert with_steps[0].values[0] == "raw" and len(set(with_steps[0].values)) == len(with_steps[0].values)


def test_every_tuned_value_of_the_table_can_be_parsed() -> None:
    assert all(each.parse(text) is not None for each in FACTOR.values() for text in each.tuned)


def test_the_user_names_factors_by_name_option_or_key_and_variables_in_capitals() -> None:
    tried = ["buckets=4M,default", "NCCL_ALGO=Ring,Tree", "inject=rank=1,segment=data,delay=1ms;"]
    bucket, algorithm = space.varied_by_user(tried[:2], TRAIN, STEP)
    assert (bucket.name, bucket.values) == ("bucket", (0, 4 << 20))
    assert (algorithm.name, algorithm.values) == ("NCCL_ALGO", (None, "Ring", "Tree"))
    given = replace(TRAIN, bucket=4 << 20)
    assert space.varied_by_user(["bucket=1M"], given, STEP)[0].values == (4 << 20, 1 << 20)
    with pytest.raises(UsageError):
        space.varied_by_user(tried[2:], TRAIN, STEP)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("bucket", TuneError.NO_VALUES),
        ("bucket=", TuneError.NO_VALUES),
        ("bucket=default", TuneError.NO_VALUES),
        ("buckett=1M,2M", TuneError.NO_FACTOR),
        ("engine=ce,sm", TuneError.NO_FACTOR),
        ("iterations=5,6", TuneError.NO_EFFECT),
    ],
)
def test_what_cannot_be_varied_is_refused(text: str, code: TuneError) -> None:
    with pytest.raises(UsageError) as refused:
        space.varied_by_user([text], TRAIN, STEP)
    assert refused.value.code == code


def test_a_factor_that_is_given_twice_or_wrongly_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        space.varied_by_user(["bucket=1M,2M", "buckets=4M,8M"], TRAIN, STEP)
    assert refused.value.code == TuneError.TWICE
    with pytest.raises(UsageError, match="bucket"):
        space.varied_by_user(["bucket=1M,soon"], TRAIN, STEP)


def test_the_scenario_to_paste_measures_the_same_case(tmp_path: Path) -> None:
    for case, pattern in ((replace(TRAIN, max_s=3.0), STEP), (replace(READ, workers=2, direct_io=True), FEED)):
        varied = (*space.usual(case, pattern), *space.varied_by_user(["NCCL_ALGO=Ring"], case, pattern))
        searched = TuneSpace(case, 1, 2, varied)
        setting = tuple(number - 1 for number in searched.num_values)
        (tmp_path / "tune.yaml").write_text(searched.yaml_of([setting]), encoding="utf-8")
        loaded = load_scenario(str(tmp_path / "tune.yaml"), tmp_path)
        built = searched.scenario_of([setting])
        assert loaded.measurements == built.measurements and loaded.max_s == built.max_s == case.max_s
        assert loaded.measurements[0].env == {"NCCL_ALGO": ("Ring",)}
