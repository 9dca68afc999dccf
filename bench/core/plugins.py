"""Find plug-ins. Each plug-in is a file in a folder, and its name is the word that the user types.

The project has no other list of plug-ins. A plug-in is imported only when a user names it, so heavy libraries load only
on use. Patterns are the public modules at the root of `bench/`. Every other kind of plug-in has its own folder.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import io
import re
import tokenize
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.core.errors import UsageError

_ROOT = Path(__file__).parent.parent
_BEFORE_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING)
_NEXT_STATEMENT = re.compile(r"\n(?=[^\s)\]}#])")  # a line that begins at its left edge, and not by closing a bracket
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


@cache
def first_line(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring.

    The function reads the source file and does not import the plug-in. The function does not parse the rest of the
    source, because each start of a command reads these lines of all commands.
    """
    tokens = tokenize.generate_tokens(io.StringIO(source(kind, name)).readline)
    first = next((token for token in tokens if token.type not in _BEFORE_CODE), None)
    text = ast.literal_eval(first.string) if first is not None and first.type == tokenize.STRING else ""
    return inspect.cleandoc(text).partition("\n")[0] if isinstance(text, str) else ""


def declared(kind: str, name: str, variable: str) -> dict[str, Any] | None:
    """Return the arguments of a call that a plug-in assigns to a variable, or None if there is no such assignment.

    The function reads the source and parses only this statement. `TRAITS = Traits(look=3)` gives `{"look": 3}`.
    """
    _, found, rest = f"\n{source(kind, name)}".partition(f"\n{variable} = ")
    if not found:
        return None
    call = ast.parse(_NEXT_STATEMENT.split(rest, maxsplit=1)[0], mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(value.arg): ast.literal_eval(value.value) for value in call.keywords}


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
