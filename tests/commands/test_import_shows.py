"""The log of every tool passes through every command that shows or judges a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import main
from bench.core import plugins
from tests.commands import import_samples as samples

Out = pytest.CaptureFixture[str]

# Enough GPUs for one to be recognised as slower than the others.
NVBANDWIDTH_OF_FOUR = """\
nvbandwidth Version: v0.6
Built from Git version: v0.6

Device 0: NVIDIA Model Q (00000000:17:00)
Device 1: NVIDIA Model Q (00000000:65:00)
Device 2: NVIDIA Model Q (00000000:a1:00)
Device 3: NVIDIA Model Q (00000000:c3:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2         3
 0     25.10     24.90     12.30     25.00

SUM host_to_device_memcpy_ce 87.30

Running device_local_copy.
memcpy local GPU(column) bandwidth (GB/s)
           0         1         2         3
 0    800.10    801.20    799.90    400.00

SUM device_local_copy 2801.20

Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0         1         2         3
 0    701.10    702.20    703.30    704.40

SUM host_device_latency_sm 2811.00

"""
ALL = {name: text for name, (text, *_) in samples.ALL.items()} | {"nvbandwidth-four": NVBANDWIDTH_OF_FOUR}
FORMATS = plugins.names("format")
RULES = """
rules:
  - {pattern: [allreduce, host_device, peer_copy, local_copy], busbw: at least 1 GB/s, imported: true}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", ALL)
def test_every_log_passes_through_every_command(name: str, capsys: Out) -> None:
    Path("a.log").write_text(ALL[name], encoding="utf-8")
    Path("rules.yaml").write_text(RULES, encoding="utf-8")
    of_log = main(["import", "a.log"])
    assert of_log in (0, 1) and "results: " in capsys.readouterr().out
    for form in FORMATS:
        assert main(["import", "a.log", "--no-store", "--format", form]) == of_log, form
        capsys.readouterr()
        assert main(["report", "latest", "--format", form]) in (0, 1), form
        assert capsys.readouterr().out, form
    for command in ("gate latest --rules rules.yaml", "explain latest", "explain a.log", "lint latest"):
        assert main(command.split()) in (0, 1), command
