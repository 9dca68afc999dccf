"""`bench run --resume`: what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import main


@pytest.mark.parametrize("named", ["bandwidth", "scenarios/bandwidth.yaml"])
def test_another_scenario_than_the_runs_own_is_refused(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(tmp_path / "results"), "--no-plots"]
    assert main(["run", "smoke", "--cluster", "p4d", "--model", *where]) == 0
    [folder] = (tmp_path / "results").iterdir()
    capsys.readouterr()
    assert main(["run", named, "--resume", str(folder), *where]) == 2
    err = capsys.readouterr().err
    assert "'smoke'" in err and "'bandwidth'" in err and "--resume" in err
    for own in ([], ["smoke"]):
        assert main(["run", *own, "--resume", str(folder), *where]) == 0
        assert "0 of " in capsys.readouterr().err
    (folder / "outcomes.json").write_text("{")  # it may say that a ladder was cut
    assert main(["run", "--resume", str(folder), *where]) == 2
    assert "outcomes.json" in capsys.readouterr().err
