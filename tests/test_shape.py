"""The shape of the house, read from the syntax trees: who may import whom, which library lives where, who prints."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from bench.core import plugins
from bench.logs.foreign import Reader
from tests.syntax import PACKAGE, files

# Ground first. Packages on one row never import each other; a public module at the root of bench/ is a pattern.
ROWS = (
    ("version",),
    ("core",),
    ("datasets",),
    ("transports", "launchers", "store", "hardware", "probes"),
    ("config", "logs", "results"),
    ("diagnose", "explain", "predict"),
    ("gate", "job"),
    ("rank", "controller"),
    ("figures", "page", "first_contact", "tune"),
    ("pattern",),
    ("commands",),
    ("__main__",),
)
ROW_OF = {package: row for row, packages in enumerate(ROWS) for package in packages}
# Library -> the only files (or folders, ending in /) that name it.
HOMES = {
    "torch": ("transports/",),
    "mpi4py": ("transports/",),
    "cupy": ("transports/",),
    "psutil": ("probes/",),
    "pynvml": ("probes/",),
    "matplotlib": ("figures/",),
    "subprocess": (
        "controller/alternate.py",
        "controller/batch.py",
        "controller/connections.py",
        "controller/execute.py",
        "controller/hosts.py",
        "controller/keeper.py",
        "first_contact/process.py",
        "job/record.py",
        "page/pdf.py",
        "probes/",
        "rank/client_server.py",
        "transports/_compiler.py",
        "transports/_mpi_cuda_check.py",
    ),
}
# Words that are also names of transports, with another meaning: folder or file, word -> what it means there.
OTHER_MEANINGS = {
    ("launchers/", "mpi"): "an option of the launcher: which MPI library",
    ("logs/readers/", "mpi"): "a feature of a tool's build; in osu.py the transport that the tool is compared with",
    (
        "logs/readers/",
        "nccl",
    ): "a setting: NCCL's version; in _nccl_tool.py the transport that the tool is beside",
    ("logs/readers/", "mpi_cuda"): "the transport that the tool is compared with",
    ("logs/readers/", "cuda_copy"): "the transport that the tool is compared with",
    ("logs/readers/", "nccl_direct"): "the transport that the tool is compared with",
    ("controller/tools.py", "mpi"): "a feature of a tool's build",
    ("logs/traces/", "nccl"): "a fact: the library that the traced job used",
    ("explain/", "nccl"): "a hint: NCCL's version",
    ("gate/certificate.py", "nccl"): "a fact: NCCL's version",
    ("core/factors.py", "nccl"): "a fact: NCCL's version",
    ("hardware/_health_system.py", "model"): "a property of GPUs that may differ",
    ("predict/workload_file.py", "model"): "a section of a workload file",
    ("predict/training_runs.py", "model"): "a key of hardware/training.yaml",
    ("feed.py", "storage"): "Pattern.transport: the only one that reads files",
    ("host_device.py", "cuda_copy"): "Pattern.transport: the only one that carries out copies",
    ("local_copy.py", "cuda_copy"): "Pattern.transport: the only one that carries out copies",
    ("peer_copy.py", "cuda_copy"): "Pattern.transport: the only one that carries out copies",
}
# The same for names of tools whose logs are read.
LIKE_A_TOOL = ("core/case.py", "results/run_table.py", "results/text.py")  # --like measures as another tool does
PRINTS = ("commands/", "rank/delivery.py", "probes/", "__main__.py")  # a probe is a program that a host is asked to run
# `--help` and `list` import these words, and must not pay for (or need) a library.
HEAVY = ("torch", "mpi4py", "cupy", "matplotlib", "numpy", "psutil", "pynvml")


@dataclass(frozen=True)
class Import:
    """One imported module, where it stands."""

    file: str
    line: int
    module: str


@cache
def nodes(file: str) -> tuple[ast.Import | ast.ImportFrom | ast.Constant | ast.Call, ...]:
    """Of a syntax tree, the nodes that any test here asks for."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant, ast.Call)
    return tuple(node for node in ast.walk(files()[file]) if isinstance(node, kinds))


@cache
def modules() -> frozenset[str]:
    """The names of all modules of the suite."""
    return frozenset(module_of(file) for file in files())


def module_of(file: str) -> str:
    """core/units.py -> bench.core.units; core/__init__.py -> bench.core."""
    parts = ["bench", *file.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """bench.core.units -> core; bench.allreduce -> pattern; bench itself holds the version and nothing else."""
    _, _, inside = module.partition(".")
    first = inside.split(".")[0]
    if not inside:
        return "version"
    return "pattern" if f"{first}.py" in files() and first != "__main__" else first


def imports(file: str) -> Iterator[Import]:
    """Every import of a file, also those inside functions; of a name that is a module, the module."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"bench/{file}:{node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(file, node.lineno, full if full in modules() else str(node.module))


def house_imports() -> Iterator[Import]:
    """Every import of one module of the suite by another."""
    for file in files():
        yield from (found for found in imports(file) if found.module.split(".")[0] == "bench")


def at_home(file: str, homes: tuple[str, ...]) -> bool:
    """Is the file one of the homes, or in one of them?"""
    return any(file == home or (home.endswith("/") and file.startswith(home)) for home in homes)


def test_every_folder_has_its_row() -> None:
    assert {package_of(module_of(file)) for file in files()} <= set(ROW_OF)


def test_a_module_imports_from_lower_rows_only() -> None:
    wrong = []
    for found in house_imports():
        importer, imported = package_of(module_of(found.file)), package_of(found.module)
        among_themselves = importer == imported and importer != "pattern"
        if not among_themselves and ROW_OF[imported] >= ROW_OF[importer]:
            wrong.append(f"bench/{found.file}:{found.line} ({importer}) imports {found.module} ({imported})")
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for found in house_imports():
        if found.module != "bench":
            graph.setdefault(module_of(found.file), set()).add(found.module)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_library_is_imported_in_its_home_only() -> None:
    wrong = [
        f"bench/{found.file}:{found.line} imports {found.module}, which lives in {', '.join(HOMES[library])}"
        for file in files()
        for found in imports(file)
        if (library := found.module.split(".")[0]) in HOMES and not at_home(file, HOMES[library])
    ]
    assert not wrong, "\n".join(wrong)


def transport_names(file: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each string constant of a file that equals a transport's name."""
    names = set(plugins.names("transport"))
    for node in nodes(file):
        if isinstance(node, ast.Constant) and node.value in names:
            yield node.lineno, str(node.value)


def test_no_module_names_a_transport() -> None:
    """Other rooms ask for traits (core/traits.py), so a new transport is one new file."""
    wrong, used = [], set()
    for file in files():
        for line, name in transport_names(file) if not file.startswith("transports/") else ():
            meanings = {key for key in OTHER_MEANINGS if key[1] == name and at_home(file, (key[0],))}
            used |= meanings
            if not meanings:
                wrong.append(f"bench/{file}:{line} names the transport {name}")
    assert not wrong, "\n".join(wrong)
    assert used == set(OTHER_MEANINGS)  # what is no longer needed is removed from the table


def test_no_module_names_a_tool() -> None:
    """Other rooms ask for traits (core/log_traits.py), so a new log format is one new file."""
    names = set(plugins.names("tool"))
    for name in plugins.names("tool"):
        names |= set(getattr(plugins.load("tool", name), "READER", Reader).other_tools)
    wrong = []
    for file in files():
        if file.startswith("logs/readers/") or file in LIKE_A_TOOL:
            continue
        for node in nodes(file):
            if isinstance(node, ast.Constant) and node.value in names:
                wrong.append(f"bench/{file}:{node.lineno} names the tool {node.value}")
    assert not wrong, "\n".join(wrong)


def test_only_commands_and_the_first_rank_print() -> None:
    wrong = [
        f"bench/{file}:{node.lineno} prints"
        for file in files()
        if not at_home(file, PRINTS)
        for node in nodes(file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, "\n".join(wrong)


def test_a_package_file_holds_a_docstring_and_nothing_else() -> None:
    for file, tree in files().items():
        if file.endswith("__init__.py"):
            body = [node for node in tree.body if not (isinstance(node, ast.Expr) and node is tree.body[0])]
            names = [ast.unparse(node).split(" ")[0] for node in body]
            assert names == (["__version__"] if file == "__init__.py" else []), f"bench/{file}"


def test_a_public_class_is_defined_once() -> None:
    homes: dict[str, list[str]] = {}
    for file, tree in files().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(file)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_there_are_no_utilities() -> None:
    assert not [file for file in files() if Path(file).stem in ("utils", "util", "helpers", "misc", "common")]


LIGHT = [module_of(path.name) for path in sorted(PACKAGE.glob("*.py")) if path.stem != "__init__"]


# A fresh import of each module of the suite, in one process that has loaded the standard library before.
HEAVY_OF_EACH = """
import importlib, json, sys
heavy, found = set(sys.argv[1].split()), {}
for module in sys.argv[2:]:
    for name in [name for name in sys.modules if name.split(".")[0] in heavy | {"bench"}]:
        del sys.modules[name]
    importlib.import_module(module)
    found[module] = sorted({name.split(".")[0] for name in sys.modules} & heavy)
print(json.dumps(found))
"""


@cache
def heavy_of_each() -> dict[str, object]:
    """Which heavy libraries each of those modules imports."""
    env = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    words = (sys.executable, "-c", HEAVY_OF_EACH, " ".join(HEAVY), *LIGHT)
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("module", LIGHT)
def test_naming_a_pattern_or_asking_for_help_imports_no_heavy_library(module: str) -> None:
    assert heavy_of_each()[module] == []
