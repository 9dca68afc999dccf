"""The folder is the registry: a file's name is the word that the user types.

Nothing is registered anywhere; a module is imported only when it is named, so heavy libraries load only on use.
Patterns are the public modules at the root of `bench/`; every other kind has a folder of its own.
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
    "format": "results/formats",
    "figure": "figures",
    "command": "commands",
}


@cache
def names(kind: str) -> tuple[str, ...]:
    """The words of one kind (a key of FOLDERS), sorted: `names("transport")` -> ('gloo', 'model', 'mpi', ...)."""
    files = (_ROOT / FOLDERS[kind]).glob("*.py")
    return tuple(sorted(file.stem for file in files if not file.stem.startswith("_")))


def load(kind: str, name: str) -> ModuleType:
    """The module behind a word; raises UsageError naming the nearest word when there is none."""
    check(kind, name)
    package = ".".join(filter(None, ("bench", FOLDERS[kind].replace("/", "."), name)))
    return importlib.import_module(package)


def check(kind: str, name: str) -> str:
    """`name` itself when such a plug-in exists, else UsageError; imports nothing."""
    if name not in names(kind):
        raise UsageError(f"no {kind} is called {name!r}{nearest(name, names(kind))}")
    return name


def first_line(kind: str, name: str) -> str:
    """The first line of a plug-in's docstring, read from its source: nothing is imported."""
    import ast

    return (ast.get_docstring(ast.parse(source(kind, name))) or "").partition("\n")[0]


def source(kind: str, name: str) -> str:
    """The source text of a plug-in."""
    return (_ROOT / FOLDERS[kind] / f"{name}.py").read_text(encoding="utf-8")


def nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """`; did you mean 'x'?` or the list of what there is: the tail of every 'unknown name' sentence."""
    if close := closest(word, known):
        return f"; did you mean {close!r}?"
    return f"; there are: {', '.join(known)}" if known else ""


def closest(word: str, known: tuple[str, ...] | list[str]) -> str | None:
    """The known word that begins like this one, or is spelt much like it."""
    begun = [name for name in known if name.lower().startswith(word.lower())] if len(word) > 1 else []
    return next(iter(begun or difflib.get_close_matches(word, known, n=1)), None)
