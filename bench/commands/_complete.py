"""Complete names in the shell when the user presses TAB: names of runs, scenarios, clusters, instances and others."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.core import plugins

# Maps an option or positional argument to the kind of `linkbench list` that completes it.
_KIND_OF = {
    "base": "runs",
    "new": "runs",
    "paths": "runs",
    "resume": "runs",
    "retest": "runs",
    "run": "runs",
    "runs": "runs",
    "baseline": "runs",
    "scenario": "scenarios",
    "cluster": "clusters",
    "certificate": "rules",
    "rules": "rules",
    "workload": "workloads",
    "instance": "instances",
    "instances": "instances",
    "names": "instances",
    "transport": "transports",
}
_LISTS = ("workload", "instances")  # these options take several names, separated by commas


def attach(parser: argparse.ArgumentParser) -> None:
    """Attach completers to the arguments of the main parser and of all commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                attach(command)
        elif action.dest == "kind":
            action.completer = lambda **_: _kinds()  # type: ignore[attr-defined]
        elif action.dest in _KIND_OF and not action.choices:
            action.completer = _completer(action.dest)  # type: ignore[attr-defined]


def _completer(dest: str) -> Any:
    def complete(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
        results = getattr(parsed_args, "results", None) or Path("results")
        names = _list().names(_KIND_OF[dest], results)
        if _KIND_OF[dest] == "runs":
            names = ["latest", *reversed(names)] if names else []
        begun = f"{prefix.rpartition(',')[0]}," if dest in _LISTS and "," in prefix else ""
        return [begun + name for name in names]

    return complete


def _kinds() -> list[str]:
    return list(_list().KINDS)


def _list() -> Any:
    """Return the module `bench.commands.list`."""
    return plugins.load("command", "list")
