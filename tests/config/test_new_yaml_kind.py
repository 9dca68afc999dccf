"""A new kind of YAML file is one module: a dataclass, a schema, and what must hold between its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.config import schema, values
from bench.config.schema import Entries, Key, KeyMistake, NamedEntries, Section, Value, Values
from bench.core.errors import UsageError
from bench.core.option_parsers import whole
from bench.core.units import parse_duration

# ---- The whole module of a new kind: maintenance windows ----


@dataclass(frozen=True)
class Window:
    """Hosts that are down together."""

    hosts: tuple[str, ...]
    lasts_s: float
    every_days: int = 7


@dataclass(frozen=True)
class Maintenance:
    """A file of windows. `contacts`: an address by team."""

    windows: tuple[Window, ...]
    contacts: Mapping[str, str] = field(default_factory=dict)


def _maintenance(windows: tuple[Window, ...], contacts: Mapping[str, str] | None = None) -> Maintenance:
    seen: set[str] = set()
    for number, window in enumerate(windows):
        for host in window.hosts:
            if host in seen:
                raise KeyMistake(("windows", number, "hosts"), f"{host} has a window already", at_value=True)
            seen.add(host)
    return Maintenance(windows, contacts or {})


WINDOW = Section(
    {
        "hosts": Key(Values(values.hosts, merge=values.all_hosts), ("hosts", "host"), required=True),
        "lasts_s": Key(Value(parse_duration), ("lasts",), required=True),
        "every_days": Key(Value(whole(1))),
    },
    Window,
)
MAINTENANCE = Section(
    {
        "windows": Key(Entries(WINDOW), required=True),
        "contacts": Key(NamedEntries(values.cluster_name, Value(values.text))),
    },
    _maintenance,
)


# ---- What its readers get ----


def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Maintenance:
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text(text, encoding="utf-8")
    found = schema.load(Path("m.yaml"), MAINTENANCE)
    assert isinstance(found, Maintenance)
    return found


def test_its_files_become_its_dataclasses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """\
windows:
  - host: n[1-2]
    lasts: 2h
  - {hosts: [a, b], lasts: 30m, every_days: 14}
contacts: {ops: x}
"""
    assert read(tmp_path, monkeypatch, text) == Maintenance(
        (Window(("n1", "n2"), 7200.0), Window(("a", "b"), 1800.0, 14)), {"ops": "x"}
    )


@pytest.mark.parametrize(
    ("text", "place", "fact"),
    [
        ("windws: []", "m.yaml:1:1: windws: ", "'windows'"),
        ("contacts: {}", "m.yaml:1:1: ", "'windows'"),
        ("windows: {}", "m.yaml:1:10: windows: ", "list"),
        ("windows: []", "m.yaml:1:10: windows: ", "list"),
        ("windows: [5]", "m.yaml:1:11: windows.0: ", "key: value"),
        ("windows: [{lasts: 1h}]", "m.yaml:1:11: windows.0: ", "'hosts'"),
        ("windows: [{host: a, hosts: b, lasts: 1h}]", "m.yaml:1:21: windows.0.hosts: ", "'host'"),
        ("windows: [{host: a, lasts: soon}]", "m.yaml:1:28: windows.0.lasts: ", "'soon'"),
        ("windows: [{host: a, lasts: [1h]}]", "m.yaml:1:28: windows.0.lasts: ", "list"),
        ("windows: [{host: [a, -b], lasts: 1h}]", "m.yaml:1:22: windows.0.host.1: ", "'-b'"),
        ("windows: [{host: a, lasts: 1h, every_days: 0}]", "m.yaml:1:44: windows.0.every_days: ", "'0'"),
        ("windows: [{host: a, lasts: 1h}, {host: a, lasts: 1h}]", "m.yaml:1:33: windows.1: ", "a has a window"),
        ("windows: [{host: a, lasts: 1h}]\ncontacts: {-x: y}", "m.yaml:2:12: contacts.-x: ", "'-x'"),
        ("windows: [{host: a, lasts: 1h}]\ncontacts: {x: ''}", "m.yaml:2:15: contacts.x: ", "text"),
    ],
)
def test_a_mistake_is_reported_with_file_line_column_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str, fact: str
) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, monkeypatch, text)
    message = str(raised.value)
    assert message.startswith(place) and fact in message, message
    assert "\n" not in message
