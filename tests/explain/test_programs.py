"""What simulations, servers, shells and schedulers print as they fail, and what they print as all goes well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.core.errors import EXIT_USAGE
from bench.explain import crash_page
from bench.explain.crash import Crash, crash_of
from bench.logs.failure_events import EventReader


def crash_in(text: str) -> Crash | None:
    """The crash in the log of one job."""
    reader = EventReader()
    reader.look(text)
    return crash_of(reader.events("job.log"))


def steps(first: int, last: int, label: str = "") -> str:
    return "".join(f"{label}step {number} loss 1.{number}\n" for number in range(first, last))


def times(first: int, last: int) -> str:
    """What a solver of OpenFOAM prints in each time step."""
    solver = "GAMG:  Solving for p, Initial residual = 0.01, Final residual = 1e-06, No Iterations {}\n"
    return "".join(
        f"Courant Number mean: 0.1 max: 0.4\ndeltaT = 0.25\nTime = {number / 4}\n\n" + solver.format(number % 9)
        for number in range(first, last)
    )


def thermo(first: int, last: int) -> str:
    """The table of LAMMPS."""
    rows = "".join(
        f"{number * 500:10d}   {300 + number % 7}.25   -4310.5   {number}.5e-3\n" for number in range(first, last)
    )
    return "   Step          Temp          E_pair         Press     \n" + rows


def energies(first: int, last: int) -> str:
    """The log of GROMACS."""
    table = (
        "           Step           Time\n{:15d}{:15.5f}\n\n   Energies (kJ/mol)\n"
        "           Bond          Angle\n    1.2e+03    4.5e+03\n\n"
    )
    return "".join(table.format(number * 1000, number * 2.0) for number in range(first, last))


def wrf(first: int, last: int) -> str:
    line = "Timing for main: time 2031-04-07_{:02d}:{:02d}:00 on domain   1:    0.81 elapsed seconds\n"
    return "".join(line.format(number // 60, number % 60) for number in range(first, last))


def bar(first: int, last: int, total: int, label: str = "") -> str:
    """A bar without a description."""
    shown = f"{label} {{0:3d}}%|###       | {{0}}/{total} [00:{{0:02d}}<01:00,  1.00it/s]\n"
    return "".join(shown.format(number) for number in range(first, last))


ENDED = "End\n\nFinalising parallel run\n"
BAD_DISK = "OSError: [Errno 5] Input/output error: '/scratch/grid.bin'\n"
FATAL = (
    "--> FOAM FATAL ERROR: \nUnknown patch type wedgie for patch rim\n\n    From function Patch::New()\n"
    "    in file patch.C at line 71.\n\nFOAM exiting\n"
)
FATAL_OF_3 = "".join(f"[3] {line}\n" for line in FATAL.split("\n"))
IO_ERROR = (
    "--> FOAM FATAL IO ERROR: (openfoam-2406)\nKeyword nAlpha is undefined\n\n"
    "file: system/controls at line 12 to 19.\n\n    From Entry::lookup\n\nFOAM exiting\n"
)
BUFFER = (
    "[c7][[4411,1],5][btl_tcp_frag.c:130:mca_btl_tcp_frag_send] mca_btl_tcp_frag_send: writev error (0x2b10, 4096)\n"
    "\tBad address(1)\n"
)
SERVING = (
    "(Server pid=7) ERROR 02-03 10:00:01 [serving_completion.py:77] Error in the prompt\n"
    "(Server pid=7) ERROR 02-03 10:00:01 [serving_completion.py:77] ValueError: the prompt has 9000 tokens\n"
    '(Server pid=7) INFO:     10.0.0.9:4410 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n'
)
ENGINE = (
    "(Engine pid=9) ERROR 02-03 10:20:01 [core.py:512] Traceback (most recent call last):\n"
    "(Engine pid=9) ERROR 02-03 10:20:01 [core.py:512] ValueError: no cache blocks are left for the model\n"
)
DEAD_NODE = (
    "(raylet) The node with node id: 9a1 and address: 10.2.0.7 and node name: 10.2.0.7 has been marked dead because "
    "the detector has missed too many heartbeats from it.\n"
    "2031-02-01 09:00:00,100\tERROR controller.py:31 -- Trial task failed for trial Search_1\n"
    "Traceback (most recent call last):\nray.exceptions.ActorDiedError: The actor died unexpectedly.\n"
)
RESTORED = (
    "2031-02-01 09:00:01,200\tINFO controller.py:88 -- Restoring trial Search_1 from checkpoint (failure 1 of 2)\n"
)
TRIALS = (
    "╭────────────────────────────────╮\n│ Trial name  status        iter │\n├────────────────────────────────┤\n"
    "│ Search_0    TERMINATED       9 │\n│ Search_1    {:<13}    9 │\n╰────────────────────────────────╯\n"
)
TRIALS_DONE = TRIALS.format("TERMINATED")
STEP_OF_TRIAL = "(TrainWorker pid={0}, ip=10.2.0.{0}) epoch {0}: loss 1.{0}\n"
SHUT_DOWN = (
    "Name:             bert-worker-4\nStatus:           Failed\nReason:           Terminated\n"
    "Message:          Pod was terminated in response to imminent node shutdown.\n"
)
STOPPED_POD = "5m   Warning  Terminated  pod/bert-worker-6  Pod was terminated in response to imminent node shutdown.\n"
NO_MPIRUN = "/var/spool/slurmd/job7/slurm_script: line 4: mpirun: command not found\n"
NO_TOOL = "/tmp/wrap.sh: line 2: ibstat: command not found\n"
FELL_OFF = "NVRM: Xid (PCI:0000:1c:00): 79, pid=77, GPU has fallen off the bus.\n"
EXITED_137 = 'level=info msg="Pod: lab.bert-worker-4 exited with code 137"\n'
TRACED = (
    "ValueError: in user code:\n\n"
    '    File "/app/masks.py", line 40, in pad  *\n        raise ValueError(\n\n'
    "    ValueError: a mask of 9 columns does not fit 6 actions.\n\n"
)
LOADED = (
    "[rank{0}]: RuntimeError: Error(s) in loading state_dict for Tower:\n"
    "[rank{0}]: \tsize mismatch for head.weight: a shape of 50 from checkpoint, the shape in the model is 70.\n"
)
STACK = (
    'Thread 4100 (active): "MainThread"\n    barrier (torch/distributed/distributed_c10d.py:3100)\n'
    "    save (train/saver.py:31)\n\n"
)
PROCESSES = (
    "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\n"
    "ada         4100 99.0  1.0 900000  4000 ?        Rl   09:00  11:00 python\n"
    "ada         4101 99.0  1.0 900000  4000 ?        Dl   09:00  11:00 python\n"
    "ada         4102 99.0  1.0 900000  4000 ?        Rl   09:00  11:00 python\n"
)
NO_LAUNCHER = "[gpu-5] bash: line 9: torchrun: command not found\n"
NAN = "[gpu-5:2]: AssertionError: Rank 21: a gradient of the last layer is NaN\n"
VERSIONS = (
    "[gpu-5] RuntimeError: Version mismatch: The cluster was started with:\n[gpu-5]     Ray: 3.1.0\n"
    "[gpu-5] This process on node 10.2.0.5 was started with:\n[gpu-5]     Ray: 3.0.2\n[gpu-5] done\n"
)
RANK_3 = "[rank3]: KeyError: 'label'\n"


@pytest.mark.parametrize(
    ("text", "code", "facts"),
    [
        # OpenFOAM: a program still writes the lines that it printed before its error
        (times(0, 40) + FATAL + times(40, 48), "openfoam-fatal", {"error": "Unknown patch type wedgie for patch rim"}),
        (times(0, 3) + FATAL_OF_3, "openfoam-fatal", {"rank": 3}),
        (FATAL_OF_3.replace("[3] ", "[1,3]<stderr>:"), "openfoam-fatal", {"rank": 3}),
        (IO_ERROR, "openfoam-fatal", {"file": "system/controls", "error": "Keyword nAlpha is undefined"}),
        ("--> FOAM FATAL ERROR: no such model", "openfoam-fatal", {"error": "no such model"}),
        # a tool that reads the same times again after the solver failed
        (times(0, 40) + FATAL + times(0, 40) + ENDED.replace("Finalising parallel run\n", ""), "openfoam-fatal", {}),
        (thermo(0, 40) + "n4: Fatal error in PMPI_Wait: Other MPI error\n" + thermo(0, 40), "mpi-error-unnamed", {}),
        ("Exec   : icoFoam\n" + FATAL + "Exec   : icoFoam\n" + times(0, 40), "openfoam-fatal", {}),  # of another case
        ("Exec   : icoFoam\n" + FATAL + "Exec   : foamToVTK\n" + times(0, 40), "openfoam-fatal", {}),
        # what no job survives, and what says nothing about the job
        (FELL_OFF + steps(0, 60) + "Training completed\n", "xid-79", {}),
        (BAD_DISK + "End of Tests.\n", "python-error", {}),
        # a simulation that ends in the middle
        (energies(0, 60) + "srun: error: n4: task 2: Segmentation fault\n", "crashed", {"rank": 2}),
        (thermo(0, 60) + "[n4:812] *** Process received signal ***\n[n4:812] Signal: Bus error (7)\n", "crashed", {}),
        (wrf(0, 60) + "./run.sh: line 8: 4471 Floating point exception (core dumped) ./wrf.exe\n", "crashed", {}),
        (BUFFER + "\n[c7:19] pml_ob1_sendreq.c:308 FATAL\n", "mpi-bad-buffer", {"rank": 5, "host": "c7"}),
        # a server that answers bad requests, and then ends
        (SERVING + SERVING + ENGINE, "python-error", {"message": "no cache blocks are left for the model"}),
        # programs that a node lacks
        (NO_LAUNCHER + "pdsh@head: gpu-5: ssh exited with exit code 127\n", "not-started", {"host": "gpu-5"}),
        (
            "/var/spool/slurmd/job7/slurm_script: line 30: deepspeed: command not found\n"
            "srun: error: n4: task 0: Exited with exit code 127\n",
            "not-started",
            {"program": "deepspeed", "host": "n4"},
        ),
        ("loading modules\nrun.sh: line 4: /opt/env/bin/python3: No such file or directory\n", "not-started", {}),
        (NO_MPIRUN + "copying the results\nthe job ended\n" * 3, "not-started", {"program": "mpirun"}),
        (
            NO_TOOL + NO_TOOL.replace("ibstat", "/opt/flow/solve") + "srun: error: n4: task 0: Exited with code 127\n",
            "not-started",
            {"program": "/opt/flow/solve"},
        ),
        (
            "5: /tmp/wrap.sh: line 4: /opt/flow/solve: No such file or directory\n1: " + NO_TOOL
            + "srun: error: n4: task 5: Exited with exit code 127\n",
            "not-started",
            {"program": "/opt/flow/solve", "rank": 5},
        ),
        # trials and pods that do not come back
        (DEAD_NODE + RESTORED + STEP_OF_TRIAL.format(4) + DEAD_NODE, "node-lost", {"host": "10.2.0.7"}),
        (DEAD_NODE + RESTORED + STEP_OF_TRIAL.format(4) + TRIALS.format("ERROR"), "node-lost", {"host": "10.2.0.7"}),
        (
            "$ kubectl get pods bert-worker-2 bert-worker-6 -o wide\n"
            "bert-worker-6   Failed   Pod was terminated in response to imminent node shutdown.\n",
            "node-shut-down",
            {"pod": "bert-worker-6"},
        ),
        (EXITED_137 + SHUT_DOWN, "node-shut-down", {"pod": "bert-worker-4"}),
        (
            "$ kubectl -n lab get pod bert-worker-9 -o yaml\n"
            "message: Pod was terminated in response to imminent node shutdown.\n",
            "node-shut-down",
            {"pod": "bert-worker-9"},
        ),
        # steps that are none, after the error of another rank
        (RANK_3 + bar(0, 60, 100), "python-error", {"rank": 3}),
        (RANK_3 + bar(0, 60, 100, "[rank0]:"), "python-error", {"rank": 3}),
        (RANK_3 + "".join(f"dataset iteration {at} of 40\n" for at in range(40)), "python-error", {"rank": 3}),
        # messages that continue on the next lines
        (TRACED + "wandb: \n", "python-error", {"message": "a mask of 9 columns does not fit 6 actions."}),
        ("RuntimeError: a list of:\nTraceback (most recent call last):\n", "python-error", {"message": "a list of:"}),
        (VERSIONS, "python-error", {"host": "gpu-5"}),
        (NAN + "srun: error: gpu-5: task 21: Exited with exit code 1\n", "python-error", {"rank": 21, "host": "gpu-5"}),
        ("[GPU2] KeyError: 'mask'\n", "python-error", {"host": None}),
        ("[llama3] step 7\n[llama3] KeyError: 'mask'\n[llama3] step 8\n" * 3, "python-error", {"host": None}),
        ("ValueError: bad files:\nmemory usage at exit:\n", "python-error", {"message": "bad files:"}),
        ("".join(f"[1,3]<stderr>:{line}\n" for line in TRACED.split("\n")), "python-error",
         {"message": "a mask of 9 columns does not fit 6 actions.", "rank": 3}),
        (LOADED.format(2) + LOADED.format(1), "python-error", {"rank": 2}),
        # one process is in the kernel while another one waits for it
        (STACK + PROCESSES, "process-in-kernel", {"pid": 4101, "num_others": 2}),
    ],
)  # fmt: skip
def test_a_failure_is_named(text: str, code: str, facts: dict[str, Any]) -> None:
    crash = crash_in(text)
    assert crash is not None
    document = crash.to_dict()["first"]
    assert document["code"] == code
    assert {name: document["facts"].get(name) for name in facts} == facts


@pytest.mark.parametrize(
    "text",
    [
        "--> FOAM Warning : \n    From function Patch\n    Reading the patch twice\n" + times(0, 9) + ENDED,
        "Exec   : potentialFoam\n" + FATAL + "Exec   : icoFoam\n" + times(0, 40),
        FATAL + times(0, 40) + ENDED,  # a check of the mesh before the solver
        BAD_DISK + times(0, 40) + ENDED,
        BAD_DISK + energies(0, 40),
        BAD_DISK + thermo(0, 40) + "Total wall time: 0:01:12\n",
        BAD_DISK + wrf(0, 40) + "d01 2031-04-07_00:40:00 wrf: SUCCESS COMPLETE WRF\n",
        BAD_DISK + "".join(f" Prog= {number}.20%\tN_left= 900\tTime= {number}.0\n" for number in range(40)),
        # a connection that breaks at the end
        steps(0, 40) + "Training completed\n[c7][[44,1],5][btl_tcp_frag.c:9:mca_btl_tcp_frag_recv] "
        "mca_btl_tcp_frag_recv: readv failed: Connection reset by peer (104)\n",
        SERVING + '(Server pid=7) INFO:     10.0.0.8:4410 - "POST /v1/completions HTTP/1.1" 200 OK\n' + SERVING,
        # programs that a script does not need
        "setup.sh: line 3: nvidia-smi: command not found\n" + steps(0, 9),
        "bash: line 1: module: command not found\nrun.sh: line 2: python: command not found\n" + steps(0, 9),
        "run.sh: line 2: python: command not found\nusing python3\n",
        NO_MPIRUN + "using the launcher of the container\n" + steps(0, 40),
        NO_TOOL + "command 'ibstat -l' returned non-zero exit status 127\n" + steps(0, 9),
        "bash: line 1: /opt/env/activate: No such file or directory\nfinished\n",
        "check.sh: line 3: ibstat: command not found\nthe check ended with exit code 127, ignored\n" + steps(0, 40),
        steps(0, 9) + "cat: /etc/notes: No such file or directory\n",
        # trials and pods that come back
        STEP_OF_TRIAL.format(3) + DEAD_NODE + RESTORED + STEP_OF_TRIAL.format(4) + TRIALS_DONE,
        STEP_OF_TRIAL.format(3) + DEAD_NODE + RESTORED + STEP_OF_TRIAL.format(4) + "Trial status: 3 TERMINATED\n",
        STOPPED_POD + "4m   Normal  Started  pod/bert-worker-6  Started container main\n",
        SHUT_DOWN + steps(0, 40) + "level=info msg=\"job lab.bert successfully completed\"\n",
        # a bar that goes on after the error of another rank
        bar(0, 30, 100) + RANK_3 + bar(30, 60, 100),
        TRACED + steps(0, 40),
        "WARNING:root:a mask cannot be padded\nTraceback (most recent call last):\n" + TRACED + steps(0, 4),
        # processes read from a disk now and then
        PROCESSES + steps(0, 9),
        STACK + PROCESSES.replace("Dl", "Sl"),
    ],
)  # fmt: skip
def test_a_job_without_a_failure_is_not_accused(text: str) -> None:
    assert crash_in(text) is None


def test_a_message_of_several_ranks_names_no_rank_alone() -> None:
    crash = crash_in("".join(map(LOADED.format, (6, 4, 5))))
    assert crash is not None
    assert crash.num_alike == 2
    assert "rank 6; 2 other ranks printed the same message" in crash_page.first_line(crash)


TABLE = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
)
ROW = "{:12d} {:12d}     float     sum      -1    60.00    0.00    0.00      0    60.60    0.00    0.00      0\n"
UNUSUAL = "n1:12:12 [0] plugin.cc:17 NCCL WARN PLUGIN/X : the second lane was not opened\n"
TEST = "# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n#\n" + TABLE


@pytest.mark.parametrize(
    ("rest", "is_crash"),
    [
        ("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.9\n", False),  # some rows are missing
        ("2 lines\n=== 12 passed in 3.1s ===\n", True),  # the success of another program
        ("", True),  # the warning is the only sign of what happened
    ],
)
def test_a_warning_of_nccl_before_the_end_of_a_test_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rest: str, is_crash: bool
) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(TEST + UNUSUAL + "".join(ROW.format(size, size // 4) for size in (8, 16, 32)) + rest)
    main(["explain", str(log), "--format", "json"])
    assert ('"nccl-warning"' in capsys.readouterr().out) == is_crash


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (steps(10, 30), "no known failure message in {}; the job made steps 10 to 29 and the log ends there (line 20)"),
        (steps(10, 30) + "x\n" * 99, "{}; the job made steps 10 to 29 (the last one in line 20 of 119). If"),
        (steps(0, 9) + "Training completed\n", "{}; the job made steps 0 to 8 and reported success (line 10)."),
        ("Training completed\n", "no known failure message in {}; the job reported success (line 1)"),
        (times(1, 9), "{}; the job simulated the times 0.25 to 2 and the log ends there (line 38)"),
        (wrf(0, 9), "{}; the job went on with its simulation and the log ends there (line 9)"),
        ("Epoch 1: loss 0.1\nEpoch 2: loss 0.1\n", "{}; the job made epochs 1 to 2 and the log ends there"),
        (BAD_DISK + steps(0, 40), "no failure of the job in {}; the job made steps 0 to 39 and the log ends"),
        ("hello\nworld\n", "{} contains neither results of a known tool nor a known failure message; linkbench"),
    ],
)  # fmt: skip
def test_a_log_without_a_failure_is_answered_with_what_the_job_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, wanted: str
) -> None:
    log = tmp_path / "job.log"
    log.write_text(text)
    assert main(["explain", str(log)]) == EXIT_USAGE
    assert wanted.format(log) in " ".join(capsys.readouterr().err.split())
