"""`python -m bench` as a user meets it: words in, sentence and exit code out."""

import argparse
import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bench
from bench import __main__ as entry
from bench.__main__ import main
from bench.commands import _parser
from bench.core import plugins
from bench.core.errors import Interrupted, MeasurementError, RefusedError

_ROOT = Path(bench.__file__).parent.parent
_ENV = {**os.environ, "PYTHONPATH": str(_ROOT)}


def _call(*words: str, cwd: Path = _ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "bench", *words], capture_output=True, text=True, cwd=cwd, env=_ENV)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lits"], "bench: error: no command is called 'lits'; did you mean 'list'?"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["list", "--bogus"], "unrecognized arguments: --bogus"),
        (["list", "--form", "json"], "unrecognized arguments: --form"),
        (["list", "--format", "xml"], "invalid choice: 'xml'"),
        (["list", "patern"], "no list of 'patern'; did you mean 'patterns'?"),
        (["list", "--output", "/no/such/folder/x"], "there is no folder /no/such/folder"),
        (["run", "--sizes", "8"], "unrecognized arguments: --sizes (see"),
        (["predict", "--instance", "p55"], "no instance type is called 'p55'; did you mean 'p5'?"),
        (["predict", "--instance", "xyz"], "no instance type is called 'xyz'; `linkbench instances` lists all types"),
        (["plan", "--cluster", "lab"], "`linkbench init --name lab` adds this machine"),
        (
            ["gate", "latest"],
            "--rules is missing: name a rules file, by its path or by its name in rules/ (acceptance,",
        ),
        (["report", "no/such/run"], "bench: error: there is no file or folder no/such/run"),
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(_ROOT)
    try:
        code: object = entry.main(words)
    except SystemExit as ended:  # argparse
        code = ended.code
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (2, "", 1)
    assert told.err.startswith("bench: error: ")
    assert sentence in told.err


def test_the_exit_code_of_the_process_is_that_of_the_command() -> None:
    told = _call("lits")
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)


def test_without_a_command_all_are_shown_with_their_first_lines() -> None:
    told = _call()
    assert told.returncode == 0
    assert told.stdout == _call("--help").stdout
    shown = " ".join(told.stdout.split())
    for name in plugins.names("command"):
        assert f"{name} {plugins.first_line('command', name)}" in shown


def test_the_version_is_the_package_s() -> None:
    assert _call("--version").stdout == f"linkbench-suite {bench.__version__}\n"


@pytest.mark.parametrize("name", plugins.names("command"))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main([name, "--help"])
    assert ended.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"usage: linkbench {name}" in told
    assert plugins.first_line("command", name) in told


@pytest.mark.parametrize("words", [["--help"], ["list", "patterns"]])
def test_no_heavy_library_is_imported_to_answer_a_simple_question(words: list[str]) -> None:
    code = f"""
        import contextlib, io, sys
        from bench.__main__ import main
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main({words})
        heavy = "torch mpi4py cupy matplotlib psutil pynvml numpy rich".split()
        print([name for name in heavy if name in sys.modules])
    """
    told = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=_ENV)
    assert told.stdout == "[]\n", told.stderr


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[BaseException], None]]:
    """`raising(error)`: every command ends in that error; this process's own signal handlers come back afterwards."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def use(error: BaseException) -> None:
        def run(words: list[str]) -> int:
            raise error

        monkeypatch.setattr(entry, "_run", run)

    yield use
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (RefusedError("no GPU here"), 3, "no GPU here"),
        (MeasurementError("rank 3 died"), 4, "rank 3 died"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted("ended", 143), 143, "ended"),
        (PermissionError(13, "Permission denied", "results/x"), 2, "results/x: Permission denied"),
        (ZeroDivisionError("division by zero"), 4, "internal error: ZeroDivisionError: division by zero"),
    ],
)
def test_an_error_is_a_sentence_and_its_exit_code_with_a_traceback_only_on_request(
    raising: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    sentence: str,
) -> None:
    raising(error)
    assert entry.main([]) == code
    brief = capsys.readouterr()
    assert (brief.out, brief.err.count("\n")) == ("", 1)
    assert brief.err.startswith(f"bench: error: {sentence}")
    for words in (["--debug", "list"], ["list", "--debug"]):
        assert entry.main(words) == code
        assert "Traceback" in capsys.readouterr().err


def test_debug_is_accepted_on_either_side_of_the_command() -> None:
    for words in (["--debug", "list", "patterns"], ["list", "patterns", "--debug"]):
        assert _call(*words).returncode == 0


# Stands for a command that takes its time, and tidies up when it is ended.
_LONG = """
import sys, time
from bench import __main__ as entry
def run(words):
    try:
        print("up", flush=True)
        time.sleep(60)
    finally:
        print("tidied", flush=True)
entry._run = run
sys.exit(entry.main([]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_in_order(number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-c", _LONG]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_ENV) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, "tidied\n")
    assert err.startswith("bench: error: ")
    assert err.count("\n") == 1


# Sends SIGINT to itself at the first import after that of a module has ended, and so at the same place in each run.
_INTERRUPTED = """
import os, runpy, signal, sys
module = sys.argv.pop(1)
class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if module in sys.modules and not sys.modules[module].__spec__._initializing:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
del sys.argv[0]
sys.meta_path.insert(0, Interrupter())
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["bench.core.errors", "bench.commands", "bench.core.units", "bench.core.printable"])
def test_ctrl_c_during_the_imports_ends_a_command_in_order(module: str) -> None:
    ended = _interrupted_after(module, "bench", "explain", os.devnull)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "bench: error: interrupted\n")


@pytest.mark.parametrize("module", ["bench.core.plugins", "bench.core.topology", "bench.rank.delivery"])
def test_ctrl_c_during_the_imports_of_a_rank_has_its_exit_code(module: str) -> None:
    ended = _interrupted_after(module, "bench.allreduce", "--transport", "gloo", "-b", "8", "-e", "1G")
    assert (ended.returncode, "Traceback" in ended.stderr) == (130, False)


def _interrupted_after(module: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", _INTERRUPTED, module, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, env=_ENV, timeout=60)


def test_a_reader_that_has_gone_away_is_no_error_to_speak_of() -> None:
    command = [sys.executable, "-m", "bench", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=_ROOT, env=_ENV) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.thin(5)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("linkbench comp", ["compare", "completion"]),
        ("linkbench list pat", ["patterns"]),
        ("linkbench run smo", ["smoke"]),
        ("linkbench plan --cluster loc", ["local"]),
        ("linkbench predict --instance p4", ["p4d.24xlarge", "p4de.24xlarge"]),
        ("linkbench select --instances p4d,p5e", ["p4d,p5e.48xlarge", "p4d,p5en.48xlarge"]),
        ("linkbench select --workload vit", ["vit-l-306m"]),
        ("linkbench gate --rules publ", ["publication"]),
        ("linkbench report --results RESULTS 2026", ["20260102-030405-local-main", "20260103-030405-local-main"]),
        ("linkbench compare --results RESULTS la", ["latest"]),
    ],
)
def test_a_shell_that_asks_for_completion_gets_the_words_that_fit(line: str, words: list[str], tmp_path: Path) -> None:
    for name in ("20260102-030405-local-main", "20260103-030405-local-main"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}", encoding="utf-8")
    line = line.replace("RESULTS", str(tmp_path))
    answers = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    with tempfile.NamedTemporaryFile() as told:
        env = {**_ENV, **answers, "_ARGCOMPLETE_STDOUT_FILENAME": told.name}
        subprocess.run([sys.executable, "-m", "bench"], env=env, cwd=_ROOT, check=True)
        assert sorted(told.read().decode().split()) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_names_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "linkbench" in capsys.readouterr().out


def test_the_manual_page_has_every_command_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    parser = _parser.whole_parser()
    [commands] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for name, command in commands.choices.items():
        [section] = re.findall(rf"^\.SS linkbench {name}\n(.*?)(?=^\.S)", page, re.MULTILINE | re.DOTALL)
        for option in command._option_string_actions:
            assert option in ("-h", "--help") or option.replace("-", "\\-") in section, (name, option)
    assert not [line for line in page.splitlines() if line.startswith(("'", ". "))]


def test_help_names_every_command_once_and_its_examples_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = re.findall(r"^  ([a-z]+)  ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(shown) == sorted(plugins.names("command"))
    parser = _parser.whole_parser()
    examples = [*_parser.EXAMPLES, *(each for name in plugins.names("command") for each in _parser.examples_of(name))]
    for line, _ in examples:
        words = shlex.split(re.split(r"[|>]", line)[0])
        assert words[0] == "linkbench"
        parser.parse_args(words[1:])  # raises UsageError for an option that does not exist


@pytest.mark.parametrize("package", ["numpy", "yaml"])
def test_a_package_that_is_not_there_is_named_with_what_installs_it(package: str) -> None:
    """As in a bare environment: not an internal error."""
    program = f"import sys; sys.modules[{package!r}] = None; from bench.__main__ import main; sys.exit(main())"
    words = [sys.executable, "-c", program, "explain", "nothing.log", "--instance", "p5.48xlarge"]
    told = subprocess.run(words, capture_output=True, text=True, cwd=_ROOT, env=_ENV)
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)
    assert package in told.stderr and "make install" in told.stderr


def test_what_can_not_be_printed_is_said_without_a_number_of_the_system() -> None:
    with Path("/dev/full").open("w") as full:
        told = subprocess.run(
            [sys.executable, "-m", "bench", "list", "rules"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env=_ENV,
        )
    assert told.returncode == 2
    assert os.strerror(errno.ENOSPC) in told.stderr
    assert told.stderr.count("\n") == 1
