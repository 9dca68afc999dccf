"""Find plug-ins. Each plug-in is a file in a folder. The user selects a plug-in by the name of its file.

The project has no other list of plug-ins. A plug-in is imported only when a user names it, so heavy libraries load only
on use. Patterns are the public modules at the root of `bench/`. Every other kind of plug-in has its own folder.
"""

from __future__ import annotations

import ast
import contextlib
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
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING)
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
# A file must define at least one of these names. explain/reason.py checks the files of reasons.
_DEFINES = {
    "pattern": ("PATTERN",),
    "transport": ("TRANSPORT",),
    "launcher": ("LAUNCHER",),
    "tool": ("READER", "TOOL"),
    "event": ("FORMAT",),
    "format": ("render",),
    "trace": ("READER",),
    "dataset format": ("FORMAT",),
    "strategy": ("STRATEGY",),
}
_DEFINES_ALL = {"figure": ("applies", "draw"), "command": ("arguments", "main")}  # a file must define all of them


@cache
def names(kind: str) -> tuple[str, ...]:
    """Return the sorted names of all plug-ins of one kind, such as ('gloo', 'model', 'mpi', ...) for "transport".

    The kinds are the keys of FOLDERS.
    """
    files = (_ROOT / FOLDERS[kind]).glob("*.py")
    return tuple(sorted(file.stem for file in files if not file.stem.startswith("_")))


def load(kind: str, name: str) -> ModuleType:
    """Return the module of a plug-in.

    Raises UsageError with the nearest name if there is no such plug-in. Raises UsageError with the name of the file if
    the file lacks a definition that every plug-in of this kind needs.
    """
    check(kind, name)
    package = ".".join(filter(None, ("bench", FOLDERS[kind].replace("/", "."), name)))
    module = importlib.import_module(package)
    if (mistake := _mistake(kind, name, module)) is not None:
        raise UsageError(f"{package.replace('.', '/')}.py {mistake} (docs/extending.md)")
    return module


def _mistake(kind: str, name: str, module: ModuleType) -> str | None:
    """Return what is wrong with the definitions of a plug-in, as the end of a sentence; None if nothing is wrong."""
    wanted = _DEFINES.get(kind, ())
    if wanted and not any(hasattr(module, variable) for variable in wanted):
        return f"must define {' or '.join(wanted)}"
    if missing := [variable for variable in _DEFINES_ALL.get(kind, ()) if not hasattr(module, variable)]:
        return f"must define {' and '.join(missing)}"
    own_name = None
    if kind == "pattern":
        own_name = ("PATTERN.name", getattr(module.PATTERN, "name", None))
    reader = getattr(module, "READER", None) if kind == "tool" else None
    if reader is not None:
        own_name = ("READER.tool", getattr(reader, "tool", None))
    if own_name is not None and own_name[1] != name:
        return f"must set {own_name[0]} to the file's name {name!r}, not to {own_name[1]!r}"
    for hint in getattr(reader, "hints", ()):
        if hint != hint.lower():
            return f"must write the hint {hint!r} of READER in lower case, because hints are compared with such text"
    if kind == "event" and not hasattr(module.FORMAT, "begins") and not getattr(module.FORMAT, "hints", ()):
        return "must set FORMAT.hints, because only lines with a hint are read"
    return None


def check(kind: str, name: str) -> str:
    """Return `name` if there is such a plug-in. Raises UsageError if there is no such plug-in.

    The plug-in is not imported.
    """
    if name not in names(kind):
        raise UsageError(f"no {kind} is called {name!r}{nearest(name, names(kind))}")
    return name


@cache
def first_line(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring.

    The function reads the source file and does not import the plug-in. If the source begins with a plain string, the
    function does not parse the rest. Parsing less saves time, because every start of linkbench reads the docstrings of
    all commands.
    """
    text = source(kind, name)
    with contextlib.suppress(StopIteration, SyntaxError, ValueError, tokenize.TokenError):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        code = (token for token in tokens if token.type not in _NO_CODE)
        first, after = next(code), next(code)
        found = ast.literal_eval(first.string) if first.type == tokenize.STRING else None
        if after.type == tokenize.NEWLINE and isinstance(found, str):
            return inspect.cleandoc(found).partition("\n")[0]
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def declared(kind: str, name: str, variable: str) -> dict[str, Any] | None:
    """Return the keyword arguments in an assignment such as `TRAITS = Traits(look=3)`.

    Return None if there is no such assignment.

    For `TRAITS = Traits(look=3)`, `variable` is `TRAITS` and the result is `{"look": 3}`. The function reads the source
    of the plug-in and does not import it. If a single line looks like the assignment, the function parses only this
    statement, which is faster.
    """
    text = f"\n{source(kind, name)}"
    _, *found = text.split(f"\n{variable} = ")
    if len(found) == 1:
        with contextlib.suppress(SyntaxError):
            call = ast.parse(_NEXT_STATEMENT.split(found[0], maxsplit=1)[0], mode="eval").body
            if isinstance(call, ast.Call):
                return _arguments(call)
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable:
            assert isinstance(node.value, ast.Call)
            return _arguments(node.value)
    return None


def _arguments(call: ast.Call) -> dict[str, Any]:
    return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}


def source(kind: str, name: str) -> str:
    """Return the source text of a plug-in."""
    return (_ROOT / FOLDERS[kind] / f"{name}.py").read_text(encoding="utf-8")


def nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """Return the end of an error message about an unknown name: `; did you mean 'x'?`, or the list of known names."""
    if close := closest(word, known):
        return f"; did you mean {close!r}?"
    return f"; there are: {', '.join(known)}" if known else ""


def closest(word: str, known: tuple[str, ...] | list[str]) -> str | None:
    """Return the known word that begins with `word` or has a similar spelling, or None if there is no such word."""
    begun = [name for name in known if name.lower().startswith(word.lower())] if len(word) > 1 else []
    return next(iter(begun or difflib.get_close_matches(word, known, n=1)), None)
