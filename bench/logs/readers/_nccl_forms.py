"""Recognise and parse all lines of nccl-tests and its launchers, except rows."""

from __future__ import annotations

import re

from bench.logs.readers._nccl_pattern import PROGRAM, PROGRAMS, SOURCE, NamedPattern
from bench.logs.readers._run_notes import shown

BANNER = re.compile(
    r"nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) step: (\d+)\((\w+)\) warmup iters: (\d+) iters: (\d+)"
    r"(?: agg iters: (\d+))?(?: validation: (\d+))?(?: graph: (\d+))?(?: unalign: (\d+))?"
)
BANNER_WORDS = (
    "threads",
    "gpus_per_thread",
    "min_bytes",
    "max_bytes",
    "step",
    "step_kind",
    "warmup_iters",
    "iters",
    "agg_iters",
    "validation",
    "graph",
    "unalign",
)
DEVICE = re.compile(
    r"Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?(?:Pid\s+(\d{1,18})\s+)?on\s+(\S{1,255}(?:\s+\S{1,60}){0,3}?)\s+device\s+\d+\s+"
    r"\[[^\]]*\]\s*(.{0,255})"
)
VERSION = re.compile(r"nccl-tests version (\S{1,80})(?:.*nccl-library=(\d{1,9}))?")
# Since version 2.17.9, rccl-tests prints the same first line as nccl-tests. Older versions print their version after
# the banner.
RCCL_VERSION = re.compile(
    r"rccl-tests(?:: Version| version) (?P<version>\S{1,80})(?P<first>.*rccl-library=(?P<library>\d{1,9}))?"
)
COLLECTIVE = re.compile(r"Collective test (starting|concluded): (\S{1,255})")
TITLE = re.compile(r"(?:size\s+count|bytes\s+N)\s+type\b")
WRONG = re.compile(r"Out of bounds values\s*:\s*(\d{1,20})\s*(\w*)")
AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(?![0-9.]{1,20}\s?GB/s$)(\S{1,40})\s*(\w*)")  # GB/s: nccom-test
REDUCED = re.compile(r"Reducing maxBytes to (\d{1,19})")
ERROR = re.compile(r"error: (.*\S)")
LIBRARY = re.compile(r"\b(NCCL|RCCL) version\s{0,9}:?\s{0,9}(\d\S{0,80})")
ELISION = re.compile(r"#?\s{0,9}[\[(<]?\s{0,9}(?:\.{3,}|…|snip\b|\d{1,9} (?:more )?lines? (?:omitted|skipped|removed))")
# Messages that nccl-tests prints before it ends with an error, and messages of launchers and the C library about its
# end.
OWN_FAILURE = re.compile(
    r"\S{1,255}: Test (?:NCCL|CUDA) failure \S+:\d|\.\. \S{1,255} pid \d+: Test failure \S+:\d"
    r"|Invalid number of GPUs: \d"
)
_FAILURE = re.compile(
    r"unhandled (?:cuda|system) error|[Ss]egmentation fault(?!s)|[Bb]us error(?!s)|mpirun noticed|srun: error"
    r"|slurmstepd: error|MPI_ABORT|An error occurred in MPI|Primary job +terminated|prterun noticed"
    r"|command terminated with exit code|core dumped|terminate called|Signal: (?:Seg|Bus|Abort)"
    r"|exited on signal|BAD TERMINATION|Killed$|Terminated$"
)
_FAILURE_HINT = re.compile(
    r"error|fault|noticed|ABORT|terminate|dumped|ignal|TERMINATION|Killed|Terminated|failure|GPUs:"
)
_GPUS = re.compile(r"\s-(?:g|-ngpus)\s{0,9}=?(\d{1,3})(?=\s|$)")
_THREADS = re.compile(r"\s-(?:t|-nthreads)\s{0,9}=?(\d{1,3})(?=\s|$)")
_LAUNCHER = re.compile(r"mpirun|mpiexec|srun|prun|torchrun|kubectl|orterun|flux")


def command(number: int, text: str, goes_on: bool) -> tuple[NamedPattern, int | None] | None:
    """Return the program that a command line names. Also return the number of ranks if a single process runs all ranks.

    Return None if the line names no program or several programs.

    `goes_on`: whether the line continues an earlier line. The earlier line may name a launcher.
    """
    names = set(PROGRAM.findall(text))
    if len(names) != 1:
        return None
    word = names.pop()
    gpus, threads = _GPUS.search(text), _THREADS.search(text)
    ranks = None
    if gpus and not goes_on and not _LAUNCHER.search(text):
        ranks = int(gpus[1]) * int(threads[1] if threads else 1) or None
    return NamedPattern(PROGRAMS[word], f"{word}_perf", number), ranks


def failure(text: str) -> tuple[str, bool] | None:
    """Return the printed text of a line that reports a failure, and whether nccl-tests itself printed it.

    Return None for other lines.
    """
    if not _FAILURE_HINT.search(text):
        return None
    own = OWN_FAILURE.match(text) is not None
    if not own and (text[0] == "#" or not _FAILURE.search(text)):
        return None
    return shown(text), own


def source(number: int, text: str) -> NamedPattern | None:
    """Return the program whose source file a failure names, such as all_reduce.cu.

    Return None if the text names no source file.
    """
    found = SOURCE.search(text)
    return NamedPattern(PROGRAMS[found[1]], found[0], number) if found else None
