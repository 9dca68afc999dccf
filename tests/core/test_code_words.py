"""The words of a code: its template, filled in with facts."""

from __future__ import annotations

import pytest

from bench.core.codes import MissingFactError, OptionalPartsCode, fill, fill_present


@pytest.mark.parametrize(
    ("template", "facts", "text"),
    [
        ("{size:size} is {size:bytes}", {"size": 8 << 30}, "8G is 8 GiB"),
        ("{rate:rate} in {time:time}", {"rate": 12.5e9, "time": 3e-6}, "12.5 GB/s in 3 us"),
        ("{part:percent}, {part:.0%}", {"part": 0.123}, "12.3 %, 12%"),
        ("{one:n node}, {two:n host}", {"one": 1, "two": 2}, "1 node, 2 hosts"),
        ("{one:n launch}, {two:n launch}", {"one": 1, "two": 2}, "1 launch, 2 launches"),
        ("{names:list}", {"names": ["a", "b"]}, "a, b"),
    ],
)
def test_facts_are_formatted_for_people(template: str, facts: dict[str, object], text: str) -> None:
    assert fill(template, facts) == text


def test_a_missing_fact_is_an_error_that_names_the_fact_and_the_code() -> None:
    class Weather(OptionalPartsCode):
        RAIN = "rain", "rain, {depht_mm} mm<, {missing}>"

    with pytest.raises(MissingFactError, match=r"\{rate:rate\}.* 'rate'"):
        fill("{rate:rate}", {})
    with pytest.raises(MissingFactError, match=r"'rain'.* 'depht_mm'.* depth_mm$"):
        Weather.RAIN.words({"depth_mm": 3})


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"host": "h1"}, "slow on h1, flat"),
        ({"host": None, "rising": True}, "slow, still rising"),
        ({"host": "h1", "interval": {"low": 0.5}}, "slow on h1 from 0.50, flat"),
    ],
)
def test_optional_parts_are_left_out_without_their_facts(facts: dict[str, object], text: str) -> None:
    template = "slow< on {host}>< from {interval[low]:.2f}><rising?, still rising><!rising?, flat>"
    assert fill_present(template, facts) == text


def test_a_code_fills_its_own_template() -> None:
    class Weather(OptionalPartsCode):
        RAIN = "rain", "rain<, {depth_mm} mm>"

    assert Weather.RAIN.words({"depth_mm": 3}) == "rain, 3 mm" and Weather.RAIN.words({}) == "rain"
