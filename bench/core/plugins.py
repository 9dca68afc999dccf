"""Find plug-ins. Each plug-in is a file in a folder, and its name is the word that the user types.

The project has no other list of plug-ins. A plug-in is imported only when a user names it, so heavy libraries load only
on use. Patterns are the public modules at the root of `bench/`. Every other kind of plug-in has its own folder.
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from bench.core.errors import UsageError

_ROOT = Path(__file__).parent.parent
FOLDERS = {
    "pattern": "",
    "transport": "transports",
    "launcher": "launchers",
    "tool": "logs/readers",
    "event": "logs/events",
    "format": "results/formats",
    "figure": "figures",
    "command": "commands",
    "reason": "explain/reasons",
    "trace": "logs/traces",
    "dataset format": "datasets/formats",
    "strategy": "transports/strategies",
}


@cache
def names(kind: str) -> tuple[str, ...]:
    """Return the sorted names of all plug-ins of one kind, such as ('gloo', 'model', 'mpi', ...) for "transport".

    The kinds are the keys of FOLDERS.
    """
    files = (_ROOT / FOLDERS[kind]).glob("*.py")
    return tuple(sorted(file.stem for file in files if not file.stem.startswith("_")))


def load(kind: str, name: str) -> ModuleType:
    """Return the module of a plug-in. If there is no such plug-in, raises UsageError with the nearest name."""
    check(kind, name)
    package = ".".join(filter(None, ("bench", FOLDERS[kind].replace("/", "."), name)))
    return importlib.import_module(package)


def check(kind: str, name: str) -> str:
    """Return `name` if there is such a plug-in. Raises UsageError otherwise; imports nothing."""
    if name not in names(kind):
        raise UsageError(f"no {kind} is called {name!r}{nearest(name, names(kind))}")
    return name


def first_line(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring.

    The function reads the source file and does not import the plug-in.
    """
    import ast

    return (ast.get_docstring(ast.parse(source(kind, name))) or "").partition("\n")[0]


def source(kind: str, name: str) -> str:
    """Return the source text of a plug-in."""
    return (_ROOT / FOLDERS[kind] / f"{name}.py").read_text(encoding="utf-8")


def nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """Return the last part of a message about an unknown name.

    This part is either `; did you mean 'x'?` or the list of known names.
    """
    if close := closest(word, known):
        return f"; did you mean {close!r}?"
    return f"; there are: {', '.join(known)}" if known else ""


def closest(word: str, known: tuple[str, ...] | list[str]) -> str | None:
    """Return the known word that begins with `word` or has a similar spelling, or None if there is no such word."""
    begun = [name for name in known if name.lower().startswith(word.lower())] if len(word) > 1 else []
    return next(iter(begun or difflib.get_close_matches(word, known, n=1)), None)
