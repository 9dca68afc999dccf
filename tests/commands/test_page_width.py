"""Every command that README and the tour name: its page fits the terminal or a pipe, and begins with the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.core.step_trace import StepSegment
from bench.core.wrapping import PIPED_WIDTH
from tests.commands import test_diagnose
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule
from tests.logs import synthetic_slow
from tests.logs.synthetic_slow import P4D
from tests.probes.synthetic_machines import TEXTS

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
Out = pytest.CaptureFixture[str]
Pages = Mapping[str, Sequence[str]]
# None: a pipe without COLUMNS
WIDTHS = (80, pytest.param(100, marks=pytest.mark.slow), pytest.param(None, marks=pytest.mark.slow))
# They write files, scripts or manual pages, or measure; the tables of `run` and `tune` are those of `report`.
NO_PAGE = {"completion", "init", "man", "tune", "run"}
# A line of these programs is a command to copy: it is not broken.
PROGRAMS = r"(linkbench|make|mpirun|torchrun|python3?|nvidia-smi|dmesg|bench|all_reduce_perf|cd|[A-Z_]+=\S+) "
WORKLOAD = ("--workload", "llama-3-8b", "--instances", "p4d,p5", "--nodes", "8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """Commands by name, each with stored, synthetic or modelled data."""
    folder = tmp_path_factory.mktemp("pages")
    trace = folder / "trace"
    trace.mkdir()
    late = Schedule(
        num_steps=4, forward_us=900, backward_us=1800, num_layers=4, late=(Late(2, StepSegment.BACKWARD, 4000),)
    )
    synthetic.write(trace, late, Recording())
    slow = folder / "slow.log"
    rates = synthetic_slow.curve(P4D.normal["allreduce"][2] / 10)
    slow.write_text(synthetic_slow.log("allreduce", rates, P4D.gpu, num_nodes=2), encoding="utf-8")
    topology = folder / "topology.txt"
    topology.write_text(next(text for name, text in TEXTS.items() if "8_gpus_8_cards" in name), encoding="utf-8")
    pairs = test_diagnose.stored(folder, 4)
    return {
        "report": ("report", str(REFERENCE)),
        "report --notes": ("report", str(REFERENCE), "--notes"),
        "compare": ("compare", str(REFERENCE), str(REFERENCE)),
        "fit": ("fit", str(REFERENCE)),
        "lint": ("lint", str(REFERENCE)),
        "gate": ("gate", str(REFERENCE), "--rules", "acceptance"),
        "diagnose": ("diagnose", str(pairs)),
        "doctor": ("doctor", "--facts", str(topology)),
        "explain": ("explain", str(slow), "--instance", "p4d"),
        "explain RUN": ("explain", str(REFERENCE)),
        "explain CRASH": ("explain", str(ROOT / "tests" / "explain" / "crashes" / "gloo_killed.log")),
        "import": ("import", str(slow), "--no-store"),
        "list": ("list",),
        "plan": ("plan", "bandwidth", "--cluster", "p4d"),
        "predict": ("predict", "--instance", "p5", "--gpus", "64", "--sizes", "1K,64M"),
        "select": ("select", *WORKLOAD, "--tokens", "100B"),
        "select --job": ("select", "--job", str(trace), "--instances", "p4d,p5"),
        "job": ("job", "explain", str(trace), "--instance", "p5", "--price", "2", "--steps", "1000000"),
        "job predict": ("job", "predict", str(trace), "--instance", "p5"),
        "why": ("why", str(trace), str(slow), str(topology)),
        "instances": ("instances",),
    }


def test_every_documented_command_is_looked_at(pages: Pages) -> None:
    text = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs" / "tour.md").read_text("utf-8")
    documented = set(re.findall(r"^(?:.*\| )?linkbench ([a-z]+)", text, re.MULTILINE))
    assert documented - NO_PAGE <= {name.partition(" ")[0] for name in pages}


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_longer_than_the_page(
    width: int | None, pages: Pages, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    too_long = []
    for name, words in pages.items():
        main([*words])
        lines = capsys.readouterr().out.splitlines()
        assert lines, name
        for number, line in enumerate(lines):
            if len(line) > (width or PIPED_WIDTH) and not _is_unbreakable(line, lines[number - 1]):
                too_long.append(f"{name}: {len(line)}: {line}")
    assert not too_long, "\n".join(too_long)


def _is_unbreakable(line: str, above: str) -> bool:
    """Check for a command, a continued command, or a path alone on its line."""
    return re.match(PROGRAMS, line.strip()) is not None or len(line.split()) <= 2 or above.endswith("\\")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("compare", "conclusion"),
        ("diagnose", "conclusion"),
        ("gate", "conclusion"),
        ("select", "answer"),
        ("explain", "pages"),
    ],
)
def test_the_first_words_are_the_answer(name: str, key: str, pages: Pages, capsys: Out) -> None:
    main([*pages[name], "--format", "json"])
    found = json.loads(capsys.readouterr().out)[key]
    answer = found["text"] if name == "select" else found[0]["standing"].upper() if name == "explain" else found
    main([*pages[name]])
    first = capsys.readouterr().out.removeprefix("# ").replace("\n#", "\n")
    assert " ".join(first.split()).startswith(" ".join(answer.split()))


def test_a_job_begins_with_its_first_cause(pages: Pages, capsys: Out) -> None:
    main([*pages["job"], "--format", "json"])
    cause = json.loads(capsys.readouterr().out)["causes"][0]["text"]
    main([*pages["job"]])
    assert " ".join(capsys.readouterr().out.replace("\n#", "\n").split()).startswith(f"# {cause}")
