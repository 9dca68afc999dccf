"""Strict YAML 1.2: what a word means, what is refused, and the place that an error names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.config.yaml_file import YamlFile, load, read
from bench.core.errors import UsageError

PATH = Path("x.yaml")


def of(text: str) -> YamlFile:
    return read(text.encode(), PATH)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("12", 12),
        ("012", 12),
        ("-7", -7),
        ("+5", 5),
        ("0x1F", 31),
        ("0o17", 15),
        ("10:30", "10:30"),
        ("off", "off"),
        ("NO", "NO"),
        ("yes", "yes"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("2026-11-20", "2026-11-20"),
        ("0b11", "0b11"),
        ("1e3x", "1e3x"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'12'", "12"),
        ('"true"', "true"),
        ("''", ""),
        ("<<", "<<"),
    ],
)
def test_a_plain_word_means_what_yaml_1_2_says(word: str, value: Any) -> None:
    found = of(f"a: {word}\n").value["a"]
    assert found == value
    assert type(found) is type(value)


def test_special_floats_are_read() -> None:
    values = of("[.inf, -.INF, .nan]").value
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])


def test_blocks_keys_of_numbers_and_a_byte_order_mark_are_read() -> None:
    assert of("\ufeff1: |\n  a\n  b\nc: [x, {d: 2}]\n").value == {1: "a\nb\n", "c": ["x", {"d": 2}]}


@pytest.mark.parametrize(
    ("text", "place", "fact"),
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3:1: ", "line 1"),
        ("a: {b: 1, b: 2}", "x.yaml:1:11: ", "'b'"),
        ("a: &x 1", "x.yaml:1:4: ", "&x"),
        ("&x a: 1", "x.yaml:1:1: ", "&x"),
        ("a: *x", "x.yaml:1:4: ", "*x"),
        ("*x : 1", "x.yaml:1:1: ", "*x"),
        ("a: !!int '3'", "x.yaml:1:4: ", "tag:yaml.org,2002:int"),
        ("a: !!python/object/apply:os.system [ls]", "x.yaml:1:4: ", "os.system"),
        ("!!str a: 1", "x.yaml:1:1: ", "tag:yaml.org,2002:str"),
        ("", "x.yaml is empty", ""),
        ("# only words\n", "x.yaml is empty", ""),
        ("---\n", "x.yaml is empty", ""),
        ("a: 1\n---\nb: 2\n", "x.yaml:2:1: ", "second document"),
        ("a:\n\tb: 1\n", "x.yaml:2:1: ", "spaces"),
        ("a: [1, 2", "x.yaml:1:9: ", "not YAML"),
        ("a: 1\n  b: 2\n", "x.yaml:2:4: ", "not YAML"),
        ("a: @x", "x.yaml:1:4: ", "quotes"),
        ("a: \x01", "x.yaml:1:4: ", "'\\x01'"),
        ("[" * 100_000, "x.yaml:1:52: ", "50"),
        ("? [a]\n: 1", "x.yaml:1:3: ", "key"),
        ("true: 1", "x.yaml:1:1: ", "key"),
        ("a: " + "9" * 5000, "x.yaml:1:4: ", "5000 digits"),
    ],
)
def test_what_is_not_strict_yaml_is_refused_at_its_place(text: str, place: str, fact: str) -> None:
    with pytest.raises(UsageError) as raised:
        of(text)
    message = str(raised.value)
    assert message.startswith(place) and fact in message
    assert "\n" not in message


def test_bytes_that_are_not_utf8_are_refused_at_their_place() -> None:
    with pytest.raises(UsageError, match=r"^x\.yaml:2:5: .*UTF-8"):
        read("a: ä\nb: ü".encode() + b"\xff", PATH)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml .*No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match=str(tmp_path)):
        load(tmp_path)


def test_a_value_and_its_key_have_a_place() -> None:
    file = of("measure:\n  - pattern: [a,\n       bb]\n")
    assert file.where(("measure", 0, "pattern", 1)) == "x.yaml:3:8"
    assert file.where(("measure", 0, "pattern")) == "x.yaml:2:14"
    assert file.where(("measure", 0, "pattern"), key=True) == "x.yaml:2:5"


def test_the_place_of_a_missing_value_is_that_of_its_nearest_parent() -> None:
    file = of("a:\n  b: 1\n")
    assert file.where(("a", "c", 0)) == file.where(("a",)) == "x.yaml:2:3"
    assert str(file.fail(("a", "b", 7), "wrong")) == "x.yaml:2:6: a.b: wrong"
    assert str(file.fail((), "wrong")) == "x.yaml:1:1: wrong"


def test_an_empty_key_does_not_lose_its_value() -> None:
    file = of("'': 1\na: 2\n")
    assert file.typed() == {"": "1", "a": "2"}


def test_typed_keeps_every_scalar_as_written() -> None:
    assert of("a: [012, 1.10, 1e3, NO, true, '5', ~]\nb: {c: 0x6A}\n").typed() == {
        "a": ["012", "1.10", "1e3", "NO", "true", "5", "~"],
        "b": {"c": "0x6A"},
    }


def test_the_path_is_shown_as_one_would_type_it_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "y.yaml").write_text("a: 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path / "y.yaml").where(("a",)) == "y.yaml:1:4"


_WORDS = (": ", "- ", "  ", "---\n", *"\n[]{},'\"&*!|?#%\t~1aé\x00\x85")
_PIECES = st.lists(st.sampled_from(_WORDS), max_size=40)


@given(st.one_of(st.binary(max_size=60), _PIECES.map(lambda pieces: "".join(pieces).encode())))
@example(b"\xff\xfea\x00")
@example(b"%YAML 9.9\n---\na")
def test_any_bytes_are_read_or_refused_in_one_line(raw: bytes) -> None:
    try:
        file = read(raw, PATH)
    except UsageError as error:
        assert str(error).startswith("x.yaml")
        assert "\n" not in str(error)
    else:
        assert () in file.places
        file.typed()
