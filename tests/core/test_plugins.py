"""The folder is the registry: a file that is dropped into it is found, and held to its contract."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bench.core import plugins
from bench.core.errors import UsageError
from tests.copies import copy_package
from tests.facts import holds

ROOT = Path(plugins.__file__).parents[2]
RELAY = '''"""Member 0 sends one message to the last member.

    mpirun -n 4 python -m bench.relay
"""

from bench.core.pattern import MessagePattern
from bench.core.program import Exchange, Message


class Relay(MessagePattern):
    """One message."""

    name = "relay"

    def buffers(self, shape, member):
        """S from the first to the last."""
        return (
            shape.payload_bytes if member == 0 else 0,
            shape.payload_bytes if member == shape.num_ranks - 1 else 0,
        )

    def steps(self, shape, member):
        """A send here, a receive there."""
        if member == 0:
            return (Exchange(sends=(Message(shape.num_ranks - 1, shape.payload_bytes),)),)
        if member == shape.num_ranks - 1:
            return (Exchange(recvs=(Message(0, shape.payload_bytes),)),)
        return (Exchange(),)


PATTERN = Relay()
'''


@pytest.mark.parametrize(
    ("kind", "text", "facts"),
    [
        ("event", "", ("bench/logs/events/mine.py", "FORMAT")),
        ("event", "class FORMAT: pass", ("bench/logs/events/mine.py", "FORMAT.hints")),
        ("tool", "", ("bench/logs/readers/mine.py", "READER", "TOOL")),
        ("tool", "class READER: tool = 'other'", ("bench/logs/readers/mine.py", "READER.tool", "'mine'", "'other'")),
        ("tool", "class READER: tool, hints = 'mine', ('ok', 'Mine ')", ("bench/logs/readers/mine.py", "'Mine '")),
        ("pattern", "class PATTERN: pass", ("bench/mine.py", "PATTERN.name", "'mine'")),
        ("pattern", "class PATTERN: name = 'other'", ("bench/mine.py", "PATTERN.name", "'mine'", "'other'")),
        ("transport", "TRAITS = 1", ("bench/transports/mine.py", "TRANSPORT")),
        ("figure", "def applies(document): return True", ("bench/figures/mine.py", "draw")),
        ("command", "", ("bench/commands/mine.py", "arguments", "main")),
        ("figure", "applies = draw = len", ()),
        ("event", "class FORMAT: hints = ('Mine',)", ()),
        ("tool", "class READER: tool, hints = 'mine', ('mine ',)", ()),
        ("tool", "TOOL = 1", ()),
        ("pattern", "class PATTERN: name = 'mine'", ()),
    ],
)
def test_a_file_without_what_its_kind_needs_is_named(
    kind: str, text: str, facts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("mine")
    exec(text, module.__dict__)
    monkeypatch.setattr(plugins, "names", lambda _: ("mine",))
    monkeypatch.setattr("bench.core.plugins.importlib.import_module", lambda _: module)
    if not facts:
        assert plugins.load(kind, "mine") is module
        return
    with pytest.raises(UsageError) as raised:
        plugins.load(kind, "mine")
    assert holds(str(raised.value), *facts), str(raised.value)


def test_every_file_of_the_project_has_what_its_kind_needs() -> None:
    for kind in ("pattern", "launcher", "tool", "event", "format", "trace", "dataset format", "command"):
        for name in plugins.names(kind):
            assert plugins.load(kind, name)


def test_names_are_the_public_files_of_a_folder_in_order() -> None:
    patterns = plugins.names("pattern")
    assert {"allreduce", "pingpong", "barrier"} <= set(patterns)
    assert list(patterns) == sorted(patterns)
    assert not [name for kind in plugins.FOLDERS for name in plugins.names(kind) if name.startswith("_")]


def test_a_name_loads_its_module() -> None:
    assert plugins.load("pattern", "allreduce").__name__ == "bench.allreduce"
    assert plugins.check("pattern", "allreduce") == "allreduce"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"'allreduc'.*'allreduce'"):
        plugins.load("pattern", "allreduc")


def test_a_name_unlike_any_other_is_refused_with_all_names() -> None:
    with pytest.raises(UsageError, match=r"'xyz'; .*allgather, .*sendrecv"):
        plugins.check("pattern", "xyz")


def test_without_known_names_there_is_no_suggestion() -> None:
    assert plugins.nearest("x", []) == ""


def test_a_first_line_is_read_without_importing() -> None:
    sys.modules.pop("bench.incast", None)
    first = plugins.first_line("pattern", "incast")
    assert first and first.endswith(".") and holds(first, "ranks", "root")
    assert "bench.incast" not in sys.modules


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""One line."""\nimport os\n', "One line."),
        ("# a comment\n\n'''\nBelow.\n\nMore.\n'''\n", "Below."),
        ('"""A quote \\" in it.\nMore."""\n', 'A quote " in it.'),
        ('import os\n"""Not first."""\n', ""),
        ('b"""Bytes."""\n', ""),
        ('f"""Computed {1}."""\n', ""),
        ('"""In two """ "strings."\n', "In two strings."),
        ('"not a docstring".upper()\n', ""),
        ("", ""),
    ],
)
def test_a_first_line_is_that_of_the_docstring(source: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "source", lambda kind, name: source)
    assert plugins.first_line("pattern", f"of {source}") == line
    assert line == (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('TRAITS = T(look=3, names=("a",))\n', {"look": 3, "names": ("a",)}),
        ("X = 1\nTRAITS = T(\n    look=-1,  # why\n# at the edge\n)\n\n\ndef f(): ...\n", {"look": -1}),
        ("MY_TRAITS = T(look=1)\n", None),
        ("TRAITS=T(look=3)\n", {"look": 3}),
        ("TRAITS = T(\nlook=3,\n)\n", {"look": 3}),
        ('"""How:\n\nTRAITS = T(look=1)\n"""\nTRAITS = T(look=3)\n', {"look": 3}),
    ],
)
def test_what_a_file_declares_is_read_from_its_source(
    source: str, found: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "source", lambda kind, name: source)
    assert plugins.declared("transport", "any", "TRAITS") == found


@pytest.mark.parametrize("kind", ["transport", "strategy"])
def test_every_declaration_is_the_one_that_python_sees(kind: str) -> None:
    for name in plugins.names(kind):
        [value] = [
            node.value
            for node in ast.parse(plugins.source(kind, name)).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TRAITS"
        ]
        assert isinstance(value, ast.Call)
        own = {str(word.arg): ast.literal_eval(word.value) for word in value.keywords}
        assert plugins.declared(kind, name, "TRAITS") == own


def test_a_file_dropped_into_the_folder_is_a_pattern_and_passes_its_contract(tmp_path: Path) -> None:
    done = contract_of_a_copy(tmp_path, RELAY)
    assert done.returncode == 0, done.stdout
    assert "relay" in done.stdout and "failed" not in done.stdout


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Message(0, shape.payload_bytes)", "Message(1, shape.payload_bytes)"),
        ("shape.payload_bytes if member == 0 else 0", "8 if member == 0 else 0"),
        ('name = "relay"', 'name = "delay"'),
        ("mpirun -n 4 python -m bench.relay", "mpirun -n 4 python -m bench.relay --speed 3"),
    ],
)
def test_a_pattern_that_breaks_the_contract_is_caught(tmp_path: Path, right: str, wrong: str) -> None:
    assert right in RELAY
    done = contract_of_a_copy(tmp_path, RELAY.replace(right, wrong))
    assert done.returncode == 1, done.stdout


def test_a_copied_pattern_that_keeps_its_name_does_not_run_the_original(tmp_path: Path) -> None:
    copy_package(tmp_path)
    copied = (tmp_path / "bench" / "broadcast.py").read_text(encoding="utf-8")
    (tmp_path / "bench" / "mine.py").write_text(copied, encoding="utf-8")
    words = "-m bench.mine --transport model --instance p4d.24xlarge --sizes 1M"
    command = (sys.executable, *words.split())
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2 and holds(done.stderr, "bench/mine.py", "'mine'", "'broadcast'"), done.stderr


def contract_of_a_copy(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run the contract test of patterns on a copy of the suite that holds one more file, for that file alone."""
    copy_package(folder)
    (folder / "bench" / "relay.py").write_text(source, encoding="utf-8")
    (folder / "tests").mkdir()
    for name in ("conftest.py", "test_patterns.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-v", "--import-mode=importlib", "-p", "no:cacheprovider", "-k", "relay"]
    env = os.environ | {"PYTHONPATH": str(folder), "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
