"""Strict YAML 1.2: what a word means, what is refused, and where an error says it stands."""

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
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3:1: key 'a' is there twice, first in line 1"),
        ("a: {b: 1, b: 2}", "x.yaml:1:11: key 'b' is there twice"),
        ("a: &x 1", "x.yaml:1:4: anchors (&x)"),
        ("&x a: 1", "x.yaml:1:1: anchors (&x)"),
        ("a: *x", "x.yaml:1:4: aliases (*x)"),
        ("*x : 1", "x.yaml:1:1: aliases (*x)"),
        ("a: !!int '3'", "x.yaml:1:4: tags"),
        ("a: !!python/object/apply:os.system [ls]", "x.yaml:1:4: tags"),
        ("!!str a: 1", "x.yaml:1:1: tags"),
        ("", "x.yaml is empty"),
        ("# only words\n", "x.yaml is empty"),
        ("---\n", "x.yaml is empty"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2:1: a second document"),
        ("a:\n\tb: 1\n", "x.yaml:2:1: this is not YAML: a tab stands here"),
        ("a: [1, 2", "x.yaml:1:9: this is not YAML"),
        ("a: 1\n  b: 2\n", "x.yaml:2:4: this is not YAML"),
        ("a: @x", "x.yaml:1:4: this is not YAML: found character '@' that cannot start any token; put"),
        ("a: \x01", "x.yaml:1:4: character '\\x01' is not allowed"),
        ("[" * 100_000, "x.yaml:1:52: values are nested more than 50 deep"),
        ("? [a]\n: 1", "x.yaml:1:3: a key must be text"),
        ("true: 1", "x.yaml:1:1: a key must be text"),
        ("a: " + "9" * 5000, "x.yaml:1:4: a number of 5000 digits"),
    ],
)
def test_what_is_no_strict_yaml_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        of(text)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_utf8_are_refused_with_their_place() -> None:
    with pytest.raises(UsageError, match=r"^x\.yaml:2:5: .*UTF-8"):
        read("a: ä\nb: ü".encode() + b"\xff", PATH)


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml can not be read \(No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="can not be read"):
        load(tmp_path)


def test_a_value_and_its_key_have_a_place() -> None:
    file = of("measure:\n  - pattern: [a,\n       bb]\n")
    assert file.where(("measure", 0, "pattern", 1)) == "x.yaml:3:8"
    assert file.where(("measure", 0, "pattern")) == "x.yaml:2:14"
    assert file.where(("measure", 0, "pattern"), key=True) == "x.yaml:2:5"


def test_what_is_not_in_the_file_stands_where_its_nearest_parent_does() -> None:
    file = of("a:\n  b: 1\n")
    assert file.where(("a", "c", 0)) == file.where(("a",)) == "x.yaml:2:3"
    assert str(file.fail(("a", "b", 7), "wrong")) == "x.yaml:2:6: a.b: wrong"
    assert str(file.fail((), "wrong")) == "x.yaml:1:1: wrong"


def test_an_empty_key_does_not_lose_its_value() -> None:
    file = of("'': 1\na: 2\n")
    assert file.typed() == {"": "1", "a": "2"}


def test_typed_keeps_every_scalar_as_it_was_written() -> None:
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
def test_any_bytes_are_read_or_refused_in_one_sentence(raw: bytes) -> None:
    try:
        file = read(raw, PATH)
    except UsageError as error:
        assert str(error).startswith("x.yaml")
        assert "\n" not in str(error)
    else:
        assert () in file.places
        file.typed()
