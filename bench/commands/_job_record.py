"""Record a training job: run the command after `--` with settings that give a good trace, or print the settings."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.commands._say import say
from bench.core.codes import Coded
from bench.core.errors import EXIT_DONE, UsageError
from bench.job import record
from bench.job.messages import RecordCode

EXAMPLES = (
    ("linkbench job record", "print the variables and lines to paste into your program"),
    ("linkbench job record -- torchrun --nproc-per-node 8 train.py", "run the command with these variables"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this subcommand to the parser."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the traces (default: trace)")
    parser.add_argument("--nsys", action="store_true", help="run the command under NVIDIA Nsight Systems")
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the command that starts the job (default: only print the settings)",
    )


def main(args: argparse.Namespace) -> int:
    """Run the command, or print the settings. Returns the command's exit code."""
    words = tuple(args.words[1:] if args.words[:1] == ["--"] else args.words)
    if words and words[0].startswith("-"):
        raise UsageError(f"unrecognized arguments: {words[0]} (see linkbench job record --help)")
    recording = record.prepare(args.output or record.default_folder(), words, os.environ, args.nsys)
    if not words:
        print(f"# Variables of every rank\n{record.shell_lines(recording)}\n")
        print(f"# Lines of the program\n{record.PROFILER_LINES}", end="")
        return EXIT_DONE
    if recording.kept:
        say(Coded.of(RecordCode.KEPT, names=recording.kept).text)
    recorded = record.run(recording, os.environ)
    num_traces = len(recorded.traces) + len(recorded.exports)
    folder = os.path.relpath(recording.folder)
    code = RecordCode.TRACES if num_traces else RecordCode.NO_TRACES
    say(Coded.of(code, folder=folder, **({"num": num_traces} if num_traces else {})).text)
    return recorded.exit_code
