import errno
import os
from pathlib import Path

import pytest

from bench import __main__ as entry
from bench.commands import init
from bench.config import yaml_file
from bench.core.errors import UsageError
from tests.facts import holds

_P4D = init.Probed("ip-10-0-0-1", 96, ("A100", "A100"), "p4d.24xlarge", "p4d.24xlarge", slurm=True)
_LAPTOP = init.Probed("laptop", 8, (), "XPS 13", None, slurm=False)
_SITE = b"""\
# Our clusters.
clusters:
    p4d:   # the big one
        instance: p4d.24xlarge
        nodes: 2

    # spare
    old: {nodes: 1}
# what follows is about prices
prices: {p4d.24xlarge: 21.96}
"""


def _added(old: bytes, name: str = "new", found: init.Probed = _P4D) -> bytes:
    return init.with_entry(old, Path("bench.yaml"), name, found)[0]


def _value(text: bytes) -> object:
    return yaml_file.read(text, Path("bench.yaml")).value


def test_the_entry_of_a_cloud_instance_names_its_type_and_slurm() -> None:
    assert _value(_added(b"")) == {"clusters": {"new": {"instance": "p4d.24xlarge", "nodes": 1, "launcher": "slurm"}}}


def test_the_entry_of_an_unknown_machine_names_no_type() -> None:
    text = _added(b"", found=_LAPTOP)
    assert _value(text) == {"clusters": {"new": {"nodes": 1, "launcher": "auto"}}}
    assert b"laptop: 8 CPUs, no GPU" in text


def test_the_rest_of_the_file_stays_byte_for_byte() -> None:
    new = _added(_SITE)
    at = new.index(b"    new:\n")
    added = new[at : at + len(new) - len(_SITE)]
    assert new.replace(added, b"") == _SITE
    assert new[at + len(added) :].startswith(b"# what follows is about prices\n")
    assert _value(new) == {
        "clusters": {
            "p4d": {"instance": "p4d.24xlarge", "nodes": 2},
            "old": {"nodes": 1},
            "new": {"instance": "p4d.24xlarge", "nodes": 1, "launcher": "slurm"},
        },
        "prices": {"p4d.24xlarge": 21.96},
    }


@pytest.mark.parametrize(
    "old",
    [
        b"",
        b"# only a comment\n",
        b"prices: {}\n",
        b"clusters:\n",
        b"clusters:\nprices: {}\n",
        b"clusters:\n  a: {nodes: 1}",
        b"clusters:\r\n  a:\r\n    nodes: 1\r\nprices: {}\r\n",
        b"\xef\xbb\xbfclusters:\n  a: {nodes: 1}\n",
        b"clusters:\n  a:\n    setup:\n    - |\n      module load x\n\nprices: {}\n",
    ],
)
def test_an_entry_can_be_added_to_any_ordinary_file(old: bytes) -> None:
    new = _added(old)
    value = _value(new)
    assert isinstance(value, dict)
    assert value["clusters"]["new"] == {"instance": "p4d.24xlarge", "nodes": 1, "launcher": "slurm"}
    assert (b"\n" in new.replace(b"\r\n", b"")) != (b"\r\n" in old)
    assert all(line in new.splitlines() for line in old.splitlines())


def test_an_entry_that_is_there_is_never_overwritten() -> None:
    with pytest.raises(UsageError, match=r"bench\.yaml:3:5: clusters\.p4d: .*--name"):
        _added(_SITE, "p4d")


@pytest.mark.parametrize("old", [b"clusters: {a: {nodes: 1}}\n", b"clusters: {}\n"])
def test_where_nothing_can_be_added_the_entry_is_shown_instead(old: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"clusters"):
        _added(old)
    assert capsys.readouterr().err.startswith("  new:\n")


@pytest.mark.parametrize("old", [b"- a\n", b"clusters: 7\n", b"clusters: [a]\n"])
def test_a_file_of_another_form_is_refused(old: bytes) -> None:
    with pytest.raises(UsageError, match="`clusters`"):
        _added(old)


@pytest.mark.parametrize("name", ["7", "1e3", "null", "True", "a.b-c_d"])
def test_a_name_that_yaml_would_take_for_something_else_is_quoted(name: str) -> None:
    value = _value(_added(b"", name))
    assert isinstance(value, dict)
    assert list(value["clusters"]) == [name]


def test_the_command_writes_the_file_says_what_it_wrote_and_refuses_to_do_it_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "probe", lambda: _LAPTOP)
    assert entry.main(["init"]) == 0
    told = capsys.readouterr().out
    written = (tmp_path / "bench.yaml").read_text()
    assert _value(written.encode()) == {"clusters": {"laptop": {"nodes": 1, "launcher": "auto"}}}
    assert written.partition("\n")[2] in told
    assert entry.main(["init"]) == 2
    assert "clusters.laptop: " in capsys.readouterr().err
    assert (tmp_path / "bench.yaml").read_text() == written


@pytest.mark.parametrize("name", ["a b", "-x", "", "a/b"])
def test_a_name_with_other_characters_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.yaml"
    code = entry.main(["init", f"--name={name}", "--config", str(file)])
    assert (code, file.exists()) == ((0, True) if not name else (2, False))


def test_a_file_that_can_not_be_written_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["init", "--config", str(tmp_path / "no" / "bench.yaml")]) == 2
    assert holds(capsys.readouterr().err, "bench.yaml", os.strerror(errno.ENOENT))


def test_what_is_written_for_this_machine_is_an_entry_that_a_run_accepts(tmp_path: Path) -> None:
    from bench.config import clusters

    file = tmp_path / "bench.yaml"
    assert entry.main(["init", "--name", "me", "--config", str(file)]) == 0
    assert clusters.cluster(file, "me").nodes == 1


@pytest.mark.parametrize(("exit_code", "launcher"), [(0, "slurm"), (1, "auto")])
def test_slurm_is_written_only_where_a_controller_answers(
    exit_code: int, launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("srun", "sinfo"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {exit_code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert f"  launcher: {launcher}" in init.entry_lines("me", init.probe())
