"""`linkbench doctor --first-contact` over a CuPy that copies in host memory: steps that hang, crash and are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.commands._parser import parser_of
from bench.config.scenario import load_scenario
from bench.core.case import ignored_option
from bench.core.case_argv import add_arguments, from_args
from bench.core.errors import EXIT_MEASUREMENT, EXIT_REFUSED, EXIT_USAGE, UsageError
from bench.core.option_parsers import Parser
from bench.first_contact import plan_file, readers
from bench.first_contact.contact_site import ContactSite
from bench.first_contact.judge import judge
from bench.first_contact.messages import ContactVerdict, StepSkip, StepState
from bench.first_contact.plan_file import ContactStep, Expectation
from bench.first_contact.readers import StepFigure
from bench.first_contact.state import StepRecord
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
COPY = "{python} -m bench.local_copy --engine sm --sizes 4K,1M -n 5 --format json"
# Ignores what asks it to end, and starts a process in a session of its own.
HANGS = """
import os, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
print("so far", flush=True)
time.sleep(600)
"""


@dataclass
class Contact:
    """A plan in a folder, and calls of the command."""

    folder: Path

    def plan(self, steps: Mapping[str, str]) -> None:
        """`steps`: name -> lines of the step."""
        text = "steps:\n"
        for name, lines in steps.items():
            text += f"  {name}:\n    why: a test\n" + "".join(f"    {line}\n" for line in lines.splitlines())
        names = ", ".join(steps)
        (self.folder / "plan.yaml").write_text(f"{text}variants:\n  one: [{names}]\n  several: [{names}]\n")

    def words(self, *more: str) -> list[str]:
        own = ["--steps", str(self.folder / "plan.yaml"), "--keep", str(self.folder / "kept"), "--format", "json"]
        return [sys.executable, "-m", "bench", "doctor", "--first-contact", *own, *more]

    def env(self, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAKE_CUDA", "CUDA_"))}
        path = os.pathsep.join([str(ROOT / "tests" / "fakes" / "cupy_host"), str(ROOT)])
        return kept | {"PYTHONPATH": path, "FAKE_CUDA_GPUS": "1", "OMP_NUM_THREADS": "1"} | variables

    def call(self, *more: str, **variables: str) -> tuple[int, dict[str, Any]]:
        """(exit code, page.json)"""
        done = subprocess.run(
            self.words(*more), env=self.env(**variables), cwd=ROOT, capture_output=True, text=True, timeout=250
        )
        file = self.folder / "kept" / "page.json"
        page = json.loads(file.read_text()) if file.exists() else {}
        return done.returncode, page | {"stderr": done.stderr}

    def state(self) -> dict[str, dict[str, Any]]:
        try:
            held = json.loads((self.folder / "kept" / "state.json").read_text())
        except OSError:
            return {}
        return {each["name"]: each for each in held["steps"]}


@pytest.fixture
def contact(tmp_path: Path) -> Contact:
    return Contact(tmp_path)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def states(page: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in page["steps"]}


@pytest.mark.slow
def test_a_step_that_hangs_crashes_or_fails_does_not_keep_the_others_from_running(contact: Contact) -> None:
    script = contact.folder / "hangs.py"
    script.write_text(HANGS)
    pids = contact.folder / "pids"
    contact.plan(
        {
            "hang": f'command: "{{python}} {script} {pids}"\nlimit_s: 2\nleast_s: 1',
            "crash": "command: \"{python} -c 'import os; os.kill(os.getpid(), 11)'\"",
            "fail": "command: \"{python} -c 'import sys; sys.stderr.write(chr(120) * 9); sys.exit(7)'\"",
            "absent": 'command: "no-such-program-anywhere"',
            "need": 'command: "true"\nneeds: [program:no-such-program-anywhere]',
            "copy": f'command: "{COPY}"\nread: rows\nlimit_s: 100',
        }
    )
    code, page = contact.call("--budget", "200s")
    assert code == EXIT_MEASUREMENT
    assert states(page) == {
        "hang": StepState.TIMED_OUT,
        "crash": StepState.CRASHED,
        "fail": StepState.FAILED,
        "absent": StepState.FAILED,
        "need": StepState.SKIPPED,
        "copy": StepState.PASSED,
    }, page["stderr"]
    of = {each["name"]: each for each in page["steps"]}
    assert of["crash"]["facts"] == {"signal": "SIGSEGV"} and of["fail"]["facts"] == {"exit_code": 7}
    assert of["fail"]["stderr"] == ["x" * 9] and of["need"]["skip"] == StepSkip.NO_PROGRAM
    assert (contact.folder / "kept" / "hang" / "stdout.txt").read_text() == "so far\n"
    assert all(is_gone(int(pid)) for pid in pids.read_text().split())
    figures = {each["figure"]: each for each in page["figures"]}
    for size in ("4K", "1M"):
        assert figures[f"copy/local_copy-isolated-float32-{size}/verified"]["verdict"] == ContactVerdict.MET
        assert figures[f"copy/local_copy-isolated-float32-{size}/time"]["value"] > 0
    assert page["num_gpus"] == 1 and page["gpu"] == "Fake GPU" and page["versions"]["python"]
    text = (contact.folder / "kept" / "page.txt").read_text()
    assert all(each in text for each in ("SIGSEGV", "x" * 9, "copy/local_copy-isolated-float32-1M/verified"))


def test_a_killed_call_is_continued_and_what_it_ran_comes_last(contact: Contact) -> None:
    mark, order = contact.folder / "pid", contact.folder / "order"
    slow = (
        f"import os, time; open({str(order)!r}, 'a').write('s'); old = os.path.exists({str(mark)!r}); "
        f"open({str(mark)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(0 if old else 600)"
    )
    (contact.folder / "slow.py").write_text(slow)
    contact.plan(
        {
            "first": f"command: \"sh -c 'printf 1 >> {order}'\"",
            "slow": f'command: "{{python}} {contact.folder / "slow.py"}"\nlimit_s: 300',
            "after": f"command: \"sh -c 'printf a >> {order}'\"",
        }
    )
    call = subprocess.Popen(
        contact.words("--budget", "500s"),
        env=contact.env(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    for _ in range(1200):
        if mark.exists() and mark.read_text().endswith(" "):
            break
        time.sleep(0.05)
    assert contact.state()["slow"]["state"] == StepState.RUNNING
    second, _ = contact.call("--budget", "10s")
    assert second == EXIT_REFUSED  # the folder is in use
    call.send_signal(signal.SIGKILL)
    call.wait()
    left = int(mark.read_text().split()[0])
    assert not is_gone(left)
    code, page = contact.call("--budget", "200s")
    assert code == 0 and set(states(page).values()) == {StepState.PASSED}
    assert is_gone(left)
    assert order.read_text() == "1sas"  # nothing that ended is run again
    assert {each["name"]: each["attempts"] for each in page["steps"]} == {"first": 1, "slow": 2, "after": 1}
    assert len(page["calls"]) == 2 and page["calls"][0]["spent_s"] is None


def test_a_short_budget_takes_the_first_steps_and_a_later_call_the_rest(contact: Contact) -> None:
    contact.plan(
        {
            "one": 'command: "true"\nleast_s: 1',
            "two": 'command: "true"\nleast_s: 400\nlimit_s: 500',
            "three": 'command: "true"\nleast_s: 1',
        }
    )
    code, page = contact.call("--budget", "60s")
    assert code == 0 and not page["complete"]
    assert states(page) == {"one": StepState.PASSED, "two": StepState.SKIPPED, "three": StepState.PASSED}
    assert {each["name"]: each["skip"] for each in page["steps"]}["two"] == StepSkip.NO_TIME
    code, page = contact.call("--budget", "30m")
    assert code == 0 and page["complete"] and set(states(page).values()) == {StepState.PASSED}


def test_without_a_gpu_nothing_is_started_and_the_folder_says_why(contact: Contact) -> None:
    contact.plan({"one": f'command: "touch {contact.folder / "ran"}"'})
    code, page = contact.call("--budget", "60s", FAKE_CUDA_GPUS="no-driver")
    assert code == EXIT_REFUSED and page["num_gpus"] == 0 and set(page["ways"]) == {"nvml", "libcuda", "cupy"}
    assert page["not_reached"] == ["one"] and not (contact.folder / "ran").exists()


def test_another_plan_does_not_continue_a_folder(contact: Contact) -> None:
    contact.plan({"one": 'command: "true"'})
    assert contact.call("--budget", "60s")[0] == 0
    contact.plan({"two": 'command: "true"'})
    assert contact.call("--budget", "60s")[0] == EXIT_REFUSED
    assert list(contact.state()) == ["one"]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ('command: "true"\nlimit_s: 591', 5),
        ('command: "true"\nread: magic', 5),
        ('command: "true"\nneeds: [luck]', 5),
        ('command: "it\'s"', 4),
    ],
)
def test_a_mistake_in_a_plan_is_one_sentence_with_its_place(contact: Contact, step: str, line: int) -> None:
    contact.plan({"one": step})
    with pytest.raises(UsageError, match=rf"plan.yaml:{line}:\d+: "):
        plan_file.load_plan(contact.folder / "plan.yaml")


def test_options_of_a_contact_need_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "doctor", "--keep", "x"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == EXIT_USAGE and holds(done.stderr, "--first-contact")


EXPECTED = (
    Expectation("a/*/time", "a source", high=2.0),
    Expectation("b/*/time", "a source", low=0.9, high=1.1, over="a/{name}/{quantity}"),
    Expectation("c/*/busbw", "a source", published="h2d"),
    Expectation("d/*/time", "a source", high=1.0, gpu="H100"),
)


@pytest.mark.parametrize(
    ("figures", "gpu", "verdicts"),
    [
        ({"a/x/time": 2.0}, "", {"a/x/time": ContactVerdict.MET}),
        ({"a/x/time": 2.1}, "", {"a/x/time": ContactVerdict.MISSED}),
        ({"a/x/time": 1.0, "b/x/time": 1.05}, "", {"a/x/time": ContactVerdict.MET, "b/x/time": ContactVerdict.MET}),
        ({"a/x/time": 1.0, "b/x/time": 1.2}, "", {"a/x/time": ContactVerdict.MET, "b/x/time": ContactVerdict.MISSED}),
        ({"a/y/time": 1.0, "b/x/time": 1.2}, "", {"a/y/time": ContactVerdict.MET, "b/x/time": ContactVerdict.UNJUDGED}),
        ({"c/x/busbw": 55.0}, "NVIDIA H100 80GB HBM3", {"c/x/busbw": ContactVerdict.MET}),
        ({"c/x/busbw": 9.0}, "NVIDIA H100 80GB HBM3", {"c/x/busbw": ContactVerdict.MISSED}),
        ({"c/x/busbw": 35.0}, "unheard of", {"c/x/busbw": ContactVerdict.UNJUDGED}),
        ({"d/x/time": 2.0}, "NVIDIA H100 80GB HBM3", {"d/x/time": ContactVerdict.MISSED}),
        ({"d/x/time": 2.0}, "NVIDIA A100", {"d/x/time": ContactVerdict.UNJUDGED}),
    ],
)
def test_a_figure_stands_beside_its_expectation(
    figures: Mapping[str, float], gpu: str, verdicts: Mapping[str, str]
) -> None:
    judged = judge([StepFigure(name, value) for name, value in figures.items()], gpu, EXPECTED)
    assert {each.figure: each.verdict for each in judged} == verdicts


def test_a_figure_that_knows_its_own_target_is_judged_by_it() -> None:
    [judged] = judge([StepFigure("copies/x/ratio", 0.9, "", 0.95, None, "docs")], "", ())
    assert judged.verdict == ContactVerdict.MISSED and judged.source == "docs"


def test_the_suites_own_plan_is_valid_and_names_what_exists() -> None:
    plan = plan_file.load_plan(plan_file.OWN_PLAN)
    assert set(plan.variants) == set(plan_file.VARIANTS)
    assert {name for names in plan.variants.values() for name in names} == set(plan.steps)
    for step in plan.steps.values():
        assert step.least_s <= step.limit_s <= plan_file.MOST_S
        for need in step.needs:
            if need.startswith("file:"):
                assert (ROOT / need.removeprefix("file:")).exists()
        modules = [word for word in step.command if word.startswith(("bench.", "benchmarks."))]
        assert all((ROOT / f"{module.replace('.', '/')}.py").exists() for module in modules)


def test_every_expectation_names_a_step_of_the_plan() -> None:
    names = set(plan_file.load_plan(plan_file.OWN_PLAN).steps) | {"*"}
    for each in plan_file.load_expectations():
        for figure in filter(None, (each.figure, each.over)):
            assert figure.split("/")[0] in names, figure


MACHINES = {"one": 1, "several": 8, "nodes": 8}  # GPUs of this host


@pytest.mark.parametrize("variant", plan_file.VARIANTS)
def test_every_command_of_a_variant_is_understood_from_its_first_word_to_its_last(variant: str) -> None:
    """Options change; the plan must not find out on a GPU. Each program reads its own words, and none is left over."""
    place = ContactSite(ROOT, Path("/kept"), "lab", Path("/bench.yaml"), Path("/tools"), MACHINES[variant])
    plan = plan_file.load_plan(plan_file.OWN_PLAN)
    for step in plan.of(variant):
        words = place.command(step, float(step.limit_s))
        assert not any("{" in word for word in words), words
        while words:
            words = understood(words)


def understood(words: list[str]) -> list[str]:
    """Let a program parse its words. Returns the words of the program that it starts. Raises what the parser raises."""
    program, *rest = words
    if program == "nvidia-smi":
        assert rest in (["-q"], ["topo", "-m"])
        return []
    if program == "compute-sanitizer":
        assert rest[:1] == ["--tool"] and rest[2:4] == ["--error-exitcode", "9"]
        return rest[4:]
    assert program == sys.executable and rest[0] == "-m", words
    module, rest = rest[1], rest[2:]
    if module == "torch.distributed.run":
        start = rest.index("-m") + 1
        like_torchrun().parse_args(rest[:start])
        return [sys.executable, "-m", *rest[start:]]
    if module == "pytest":
        files = [word for word in rest if word.startswith("tests/")]
        assert files and all((ROOT / file).exists() for file in files)
    elif module == "bench":
        scenario = getattr(parser_of(rest[:1]).parse_args(rest), "scenario", None)
        assert scenario or rest[0] != "run"
        if scenario:
            load_scenario(scenario, ROOT / "scenarios")
    elif module.startswith("bench."):
        options = Parser(allow_abbrev=False)
        add_arguments(options)
        options.add_argument("--format", choices=["json"])
        case = from_args(module.removeprefix("bench."), options.parse_args(rest))
        assert case.transport == "auto" or ignored_option(case, case.transport) is None
    else:
        assert benchmark_reads(module, rest), words
    return []


def like_torchrun() -> Parser:
    """The options of torchrun that the plan uses. torch's own parser takes seconds to import."""
    parser = Parser(allow_abbrev=False)
    parser.add_argument("--standalone", action="store_true", required=True)
    parser.add_argument("--local-addr", required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("-m", dest="module", action="store_true", required=True)
    return parser


@pytest.mark.slow
@pytest.mark.torch
def test_torchrun_reads_its_options_in_the_plan_alike() -> None:
    theirs = pytest.importorskip("torch.distributed.run").get_args_parser()
    place = ContactSite(ROOT, Path("/kept"), num_gpus=8)
    for step in plan_file.load_plan(plan_file.OWN_PLAN).steps.values():
        _, *words = place.command(step, 100.0)
        if "torch.distributed.run" in words:
            words = words[words.index("torch.distributed.run") + 1 :]
            read, start = theirs.parse_args(words), words.index("-m") + 1
            ours = vars(like_torchrun().parse_args(words[:start]))
            assert {name: type(value)(getattr(read, name)) for name, value in ours.items()} == ours
            assert [read.training_script, *read.training_script_args] == words[start:]


def benchmark_reads(module: str, words: list[str]) -> bool:
    """Does this program of benchmarks/ have these options? Read from its source, because it would begin to measure."""
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    options = [word for word in words if word.startswith("--")]
    parts = words[: words.index(options[0])] if options else words
    return all(f'add_argument("{word}"' in source for word in options) and all(f'"{part}"' in source for part in parts)


@pytest.mark.parametrize("wrong", ["--sizes 8Q", "--graph maybe", "--require network=efa", "--no-such-option 1"])
def test_a_wrong_option_in_a_plan_would_be_found(wrong: str) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    words += ["--nproc-per-node", "8", "-m", "bench.allreduce", "--transport", "nccl_direct", *wrong.split()]
    inner = understood(words)
    with pytest.raises((UsageError, SystemExit, AssertionError)):
        understood(inner)


def test_numbers_of_tests_and_of_lines_are_read(tmp_path: Path) -> None:
    own = tmp_path / "t"
    own.mkdir()
    (own / "junit.xml").write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="1" skipped="3"/></testsuites>'
    )
    record = StepRecord("t", str(StepState.PASSED), wall_s=3.0)
    found = readers.figures(ContactStep("t", (), "", read="tests"), record, tmp_path)
    assert {each.name: each.value for each in found} == {
        "t/tests/passed": 4,
        "t/tests/failed": 2,
        "t/tests/skipped": 3,
    }
    (own / "stderr.txt").write_text("a mask\nan empty mask\n")
    step = ContactStep("t", (), "", read="counts", counts={"masks": "mask$", "empty": "empty"})
    assert [each.value for each in readers.figures(step, record, tmp_path)] == [2, 1]
    assert readers.figures(ContactStep("t", (), "", read="rows"), record, tmp_path) == []  # there is no document
