"""Print the shell script that completes commands, options, scenarios, instances and runs when the user presses TAB."""

from __future__ import annotations

import argparse

import argcomplete

from bench.commands._parser import PROGRAM
from bench.core.errors import EXIT_DONE

_SHELLS = ("bash", "zsh", "fish")
EXAMPLES = (
    ("linkbench completion bash >> ~/.bashrc", "complete in every new bash"),
    ("linkbench completion fish > ~/.config/fish/completions/linkbench.fish", "complete in every new fish"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell to complete in")


def main(args: argparse.Namespace) -> int:
    """Print the completion script of the shell."""
    print(argcomplete.shell_integration.shellcode([PROGRAM], shell=args.shell))
    return EXIT_DONE
