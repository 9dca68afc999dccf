"""Archives of logs: read as a folder, unpacked nowhere else, and never without end."""

from __future__ import annotations

import io
import json
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.core.errors import EXIT_DONE, EXIT_VERDICT, UsageError
from bench.logs import archives, imports, step_traces
from bench.logs.archive_files import archive_kind, unpacked_files
from bench.logs.messages import LogCode
from bench.logs.readers import _lines
from tests.commands import import_samples as samples

Out = pytest.CaptureFixture[str]
KINDS = ("tar", "tgz", "tar.xz", "zip")
_MODES = {"tar": "w", "tgz": "w:gz", "tar.xz": "w:xz"}
LOGS = {"a/nccl.log": samples.NCCL, "b/nvbandwidth.txt": samples.NVBANDWIDTH, "a/.hidden.log": samples.NCCL}


def packed(file: Path, members: dict[str, bytes], kind: str) -> Path:
    """Return the file after the members were written to it as an archive."""
    if kind == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            zipped = zipfile.ZipInfo("a/link.log")
            zipped.create_system, zipped.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(zipped, "/etc/passwd")
        return file
    with tarfile.open(file, _MODES[kind]) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("a/link.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return file


def logs() -> dict[str, bytes]:
    """Return the members of an archive of logs."""
    return {name: text.encode() for name, text in LOGS.items()}


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which temporary files of this test lie."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_an_archive_is_read_as_a_folder(tmp_path: Path, capsys: Out, own_folder: Path, kind: str) -> None:
    folder = tmp_path / "logs"
    for name, content in logs().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    archive = packed(tmp_path / f"x.{kind}", logs(), kind)
    assert archive_kind(archive) == ("zip" if kind == "zip" else "tar")
    pages = []
    for path in (folder, archive):
        assert main(["explain", str(path), "--format", "json"]) == EXIT_DONE
        pages.append(json.loads(capsys.readouterr().out.replace(str(path), "PATH")))
    assert pages[0] == pages[1] and len(pages[0]["pages"]) == 2
    assert main(["import", str(archive), "--format", "json"]) == EXIT_DONE
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["source"] for run in runs] == [f"{archive}/a/nccl.log", f"{archive}/b/nvbandwidth.txt"]
    assert not [*own_folder.iterdir()]


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_members_are_no_paths(tmp_path: Path, own_folder: Path, kind: str) -> None:
    odd = ["../up.log", "/absolute.log", "..", "a" * 200 + ".log", "line\nfeed.log", "d/e.log"]
    archive = packed(tmp_path / f"x.{kind}", dict.fromkeys(odd, b"text"), kind)
    seen = []
    for name, file in unpacked_files(archive):
        assert file.read_bytes() == b"text" and own_folder in file.parents and ".." not in file.parts
        assert sum(path.is_file() for path in own_folder.rglob("*")) == 1
        seen.append(name)
    assert len(seen) == len(odd) - 1
    assert {path.name for path in tmp_path.iterdir()} == {archive.name, own_folder.name}


@pytest.mark.parametrize("kind", KINDS)
def test_files_before_a_damage_are_kept_and_the_damage_is_a_sentence(tmp_path: Path, capsys: Out, kind: str) -> None:
    noise = "".join(f"# {number * 7919 % 104729}\n" for number in range(60_000)).encode()
    archive = packed(tmp_path / f"x.{kind}", {"a.log": samples.NCCL.encode(), "b.log": noise}, kind)
    content = bytearray(archive.read_bytes())
    if kind == "zip":
        content[len(content) // 2] ^= 0xFF
        archive.write_bytes(content)
    else:
        archive.write_bytes(content[: len(content) // 2])
    sources = imports.unpacked(imports.sources([str(archive)]))
    found = [imports.read(source, imports.readers(), _lines.results) for source in sources]
    last = found[-1]
    assert last.trouble is not None and last.is_reported and last.source.name == str(archive)
    assert last.trouble.code in (LogCode.ARCHIVE_CUT, LogCode.ARCHIVE_DAMAGED)
    if kind in ("tar", "zip"):  # a cut compressed file may lose the first member, too
        assert [len(log.runs) for log in found] == [1, 0]
        assert main(["explain", str(archive)]) == EXIT_VERDICT
        assert archive.name in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_an_archive_that_expands_without_end_is_given_up(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(archives, "_MOST_TIMES", 10)
    archive = packed(tmp_path / f"x.{kind}", {f"{number}.log": bytes(1 << 19) for number in range(9)}, kind)
    with pytest.raises(archives.ArchiveError) as error:
        for _ in unpacked_files(archive):
            pass
    assert error.value.most == 1 << 20


def test_metadata_without_end_is_not_read(tmp_path: Path) -> None:
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    archive = tmp_path / "x.tar"
    archive.write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + bytes(4096))
    with pytest.raises(archives.ArchiveError):
        next(unpacked_files(archive))


def test_archives_inside_archives_come_to_an_end(tmp_path: Path) -> None:
    archive = packed(tmp_path / "x.zip", {"rank0.json": b'{"a": 1}'}, "zip")
    for _ in range(9):
        packed(archive, {"x.zip": archive.read_bytes()}, "zip")
    assert step_traces.read([archive]) == ([], [])


def test_an_archive_without_logs_is_one_sentence(tmp_path: Path, capsys: Out) -> None:
    archive = packed(tmp_path / "x.zip", {"a.txt": b"hello\n"}, "zip")
    assert main(["explain", str(archive)]) == UsageError.exit_code
    assert "x.zip" in capsys.readouterr().err
