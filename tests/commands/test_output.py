import argparse
import errno
import os
from pathlib import Path

import pytest

from bench.core.errors import UsageError
from bench.results import output


def _args(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    output.add_output_arguments(parser)
    return parser.parse_args(words)


def test_the_first_format_is_the_default() -> None:
    assert _args().format == "table"


def test_text_goes_to_stdout_with_exactly_one_line_end(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("a\nb\n\n", _args())
    assert capsys.readouterr().out == "a\nb\n"


def test_text_goes_to_the_file_and_nothing_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.csv"
    path.write_text("a long text that was there before")
    path.chmod(0o640)
    output.emit("new", _args("--output", str(path)))
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert capsys.readouterr().out == ""
    assert [each.name for each in tmp_path.iterdir()] == ["out.csv"]


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    output.emit("new", _args("--output", str(tmp_path / "link")))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new\n"


def test_a_pipe_is_written_to_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    output.emit("new", _args("--output", str(pipe)))
    assert os.read(reader, 100) == b"new\n"
    os.close(reader)


def test_a_folder_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--output .* folder"):
        _args("--output", str(tmp_path))


def test_a_file_in_a_folder_that_is_not_there_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"--output .*{tmp_path}/no\b"):
        _args("--output", str(tmp_path / "no" / "file"))


def test_a_file_that_can_no_longer_be_written_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    args = _args("--output", str(folder / "file"))
    folder.rmdir()
    with pytest.raises(UsageError, match=rf"--output .*gone.*: {os.strerror(errno.ENOENT)}"):
        output.emit("new", args)
