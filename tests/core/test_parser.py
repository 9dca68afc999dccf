"""A mistyped option is told by the command that was called, with the option that is meant."""

import pytest

from bench import __main__ as entry
from bench.rank import main as rank


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "x", "--luanches", "5"], "--luanches 5; did you mean --launches? (see python -m bench run --help)"),
        (["run", "--deadlin=3"], "arguments: --deadlin=3; did you mean --deadline? (see python -m bench run --help)"),
        (["list", "--bogus"], "arguments: --bogus (see python -m bench list --help)"),
        (["--debugg", "list"], "arguments: --debugg; did you mean --debug? (see python -m bench --help)"),
    ],
)
def test_of_a_command(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(words) == 2
    assert sentence in capsys.readouterr().err


def test_of_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        rank.run_pattern("allreduce", ["--sises", "64M"])
    assert ended.value.code == 2
    assert "--sises 64M; did you mean --sizes? (see python -m bench.allreduce --help)" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--deadline", "--timeout"])
@pytest.mark.parametrize("time", ["0", "nan", "1e400", "soon"])
def test_a_time_in_which_nothing_can_happen_is_refused(
    option: str, time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        rank.run_pattern("allreduce", ["--transport", "model", "--instance", "p4d.24xlarge", option, time])
    assert ended.value.code == 2
    assert f"{option}: duration '{time}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--budget", "0"], "--budget: duration '0' must be above zero"),
        (["run", "--no-plots", "--deadline", "x"], "--deadline: duration 'x' is not one"),
    ],
)
def test_a_number_that_is_none_is_told_with_its_option(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(words) == 2
    assert sentence in capsys.readouterr().err
