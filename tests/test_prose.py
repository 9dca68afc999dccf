"""No program logic reads prose: the fields that hold sentences are for people, codes and facts are for code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.syntax import files

# Attributes and keys that hold words for people. A value taken from one keeps the mark within its function.
PROSE = {
    "failure",
    "how",
    "message",
    "note",
    "notes",
    "reason",
    "reasons",
    "remark",
    "said",
    "sentence",
    "sentences",
    "text",
    "what",
    "why",
    "words",
}
SEARCHES = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "find",
    "index",
    "count",
    "split",
}
PATTERNS = {"match", "search", "fullmatch", "findall", "finditer"}
# Rooms and files that read the text of other programs, of the user, or of older versions' files: that is parsing.
PARSERS = (
    "logs/readers/",
    "logs/events/",
    "logs/failure_events.py",
    "probes/",
    "config/",
    "core/hostlist.py",
    "core/units.py",
    "core/sweep.py",
    "store/runs.py",
    "store/older.py",
)


def field_of(node: ast.expr) -> str:
    """The name of the attribute or key that an expression takes; empty if it takes none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else ""
    if isinstance(node, ast.BoolOp):
        return next(filter(None, map(field_of, node.values)), "")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return field_of(node.args[0])
    return ""


def holds_prose(node: ast.expr, marked: set[str]) -> bool:
    """Does an expression give words for people?"""
    if isinstance(node, ast.Name):
        return node.id in marked
    if isinstance(node, ast.BoolOp):
        return any(holds_prose(value, marked) for value in node.values)
    return field_of(node) in PROSE


def names_marked(nodes: Iterable[ast.AST]) -> set[str]:
    """Local names that a function, of these nodes, gives words for people to."""
    marked: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and holds_prose(node.value, marked):
            marked |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
            if holds_prose(node.iter, marked):
                marked.add(node.target.id)
        elif isinstance(node, ast.NamedExpr) and holds_prose(node.value, marked):
            marked.add(node.target.id)
    return marked


def is_words(node: ast.expr) -> bool:
    """Is it a text constant, other than the empty one that means "none"?"""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


def readings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every place at which code compares or searches words for people: (line, the expression)."""
    for function in [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]:
        nodes = list(ast.walk(function))
        marked = names_marked(nodes)
        for node in nodes:
            found = isinstance(node, ast.Compare) and compares(node, marked)
            found = found or (isinstance(node, ast.Call) and searches(node, marked))
            if found and isinstance(node, (ast.Compare, ast.Call)):
                yield node.lineno, ast.unparse(node)


def compares(node: ast.Compare, marked: set[str]) -> bool:
    """Is prose on one side of ==, != or `in`, and a text on the other?"""
    sides = [node.left, *node.comparators]
    for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
        if isinstance(op, (ast.Eq, ast.NotEq)):
            if any(
                holds_prose(a, marked) and not isinstance(b, ast.Constant) for a, b in ((left, right), (right, left))
            ):
                return True
            if any(holds_prose(a, marked) and is_words(b) for a, b in ((left, right), (right, left))):
                return True
        if isinstance(op, (ast.In, ast.NotIn)) and holds_prose(right, marked) and not isinstance(right, ast.Constant):
            return True
    return False


def searches(node: ast.Call, marked: set[str]) -> bool:
    """Does a method of text, or a regular expression, look into prose?"""
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in SEARCHES and holds_prose(node.func.value, marked):
        return True
    return node.func.attr in PATTERNS and any(holds_prose(argument, marked) for argument in node.args)


@pytest.mark.parametrize(
    "code",
    [
        'def f(row): return row.reason.startswith("the time budget")',
        'def f(row): return "waived" in row["what"]',
        "def f(row):\n    said = row.get('reason')\n    return 'x y' in said",
        'def f(rows): return [n for r in rows for n in r.notes if n == "sizes thinned"]',
        "def f(a, b): return a.why != b.why",
        "def f(a): return PATTERN.search(a.text)",
    ],
)
def test_logic_that_reads_prose_is_found(code: str) -> None:
    assert list(readings(ast.parse(code)))


def test_no_logic_reads_prose() -> None:
    found = [
        f"bench/{file}:{line}: {what}"
        for file, tree in files().items()
        if not file.startswith(PARSERS)
        for line, what in readings(tree)
    ]
    assert not found, "\n".join(found)
