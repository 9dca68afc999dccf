"""The words of readers: the page of damaged logs is held by a stored text, and codes are unique."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.core.codes import Code
from bench.logs import messages, readers
from tests.commands import import_samples as samples
from tests.logs.synthetic_copies import NVBANDWIDTH
from tests.logs.synthetic_nccl import LOGS

HERE = Path(__file__).parent
DAMAGED = ("rows_left_out", "ends_in_a_row", "wrong_data", "crash", "last_device_of_more_ranks")


def test_damaged_logs_print_exactly_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a change of words, look at the difference and store the new text."""
    monkeypatch.chdir(tmp_path)
    for name in DAMAGED:
        Path(f"{name}.log").write_text(LOGS[f"{name}.txt"][0], encoding="utf-8")
    Path("copies.log").write_text(NVBANDWIDTH["text_left_out.txt"][0], encoding="utf-8")
    Path("blocks.log").write_text(samples.OSU_BLOCKS, encoding="utf-8")
    Path("nothing.log").write_text("", encoding="utf-8")
    names = [f"{name}.log" for name in (*DAMAGED, "copies", "blocks", "nothing")]
    assert main(["import", *names, "--no-store", "--num-ranks", "32"]) == 1
    output = capsys.readouterr()
    assert f"{output.out}---\n{output.err}" == (HERE / "damaged_logs.txt").read_text(encoding="utf-8")


def code_classes() -> Iterator[type[Code]]:
    """Every table of codes of the readers."""
    for info in pkgutil.iter_modules(readers.__path__):
        module = importlib.import_module(f"{readers.__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Code) and value.__module__ == module.__name__:
                yield value


def test_no_two_codes_of_a_reader_are_the_same() -> None:
    shared = {str(code) for code in messages.LogCode}
    for table in code_classes():
        own = [str(code) for code in table]
        assert len(set(own)) == len(own) and not set(own) & shared, table.__name__
