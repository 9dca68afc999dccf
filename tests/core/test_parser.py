"""A mistyped option: the error names the nearest option and the command whose help explains it."""

import pytest

from bench import __main__ as entry
from bench.rank import main as rank


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["run", "x", "--luanches", "5"], ("--luanches 5", "--launches?", "linkbench run --help")),
        (["run", "--deadlin=3"], ("--deadlin=3", "--deadline?", "linkbench run --help")),
        (["list", "--bogus"], ("--bogus", "linkbench list --help")),
        (["--debugg", "list"], ("--debugg", "--debug?", "linkbench --help")),
    ],
)
def test_a_mistyped_option_of_a_command(
    words: list[str], facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(words) == 2
    message = capsys.readouterr().err
    assert all(fact in message for fact in facts)


def test_a_mistyped_option_of_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        rank.run_pattern("allreduce", ["--sises", "64M"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert all(fact in message for fact in ("--sises 64M", "--sizes?", "python -m bench.allreduce --help"))


@pytest.mark.parametrize("option", ["--deadline", "--timeout"])
@pytest.mark.parametrize("time", ["0", "nan", "1e400", "soon"])
def test_a_useless_time_limit_is_refused(option: str, time: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        rank.run_pattern("allreduce", ["--transport", "model", "--instance", "p4d.24xlarge", option, time])
    assert ended.value.code == 2
    assert f"{option}: duration '{time}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["run", "--budget", "0"], "--budget: duration '0'"),
        (["run", "--no-plots", "--deadline", "x"], "--deadline: duration 'x'"),
    ],
)
def test_an_invalid_duration_is_reported_with_its_option(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(words) == 2
    assert option in capsys.readouterr().err
