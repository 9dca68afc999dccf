"""Add a cluster entry for this machine to bench.yaml."""

from __future__ import annotations

import argparse
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.commands._say import say
from bench.config import yaml_file
from bench.controller import batch
from bench.core import printable
from bench.core.errors import EXIT_DONE, UsageError
from bench.hardware import catalogue
from bench.probes import machine, nvml, sysfs
from bench.results import output

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORDS_OF_YAML = ("true", "false", "null")


@dataclass(frozen=True, slots=True)
class Probed:
    """The facts about this machine that its entry in bench.yaml needs.

    `product`: the product name that the machine reports, or None if unknown.
    `instance`: the name of the machine's type in the catalogue, or None if the type is not in the catalogue.
    """

    host: str
    num_cpus: int
    gpus: tuple[str, ...]
    product: str | None
    instance: str | None
    slurm: bool


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    parser.add_argument("--name", help="the entry's name (default: this host's)")
    parser.add_argument(
        "--config",
        type=Path,
        default=Path("bench.yaml"),
        metavar="FILE",
        help="file to add the entry to (default bench.yaml)",
    )


def main(args: argparse.Namespace) -> int:
    """Add an entry for this machine. All other bytes of the file stay unchanged."""
    found = probe()
    name = args.name or re.sub(r"[^A-Za-z0-9._-]+", "-", found.host).strip("-._") or "local"
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r} must be letters, digits, dots, dashes and underscores")
    path: Path = args.config
    try:
        old = path.read_bytes() if path.exists() else b""
        new, entry = with_entry(old, path, name, found)
        output.replace_file(path, new)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    where = printable.line(f"added to {path}:")
    print(f"{where}\n{printable.lines(entry)}\nmeasure this machine with: linkbench run --cluster {name}")
    return EXIT_DONE


def probe() -> Probed:
    """Return the facts of this machine."""
    product = sysfs.product()
    gpus = nvml.gpus().gpus if nvml.has_device() else ()
    return Probed(
        host=socket.gethostname().partition(".")[0],
        num_cpus=machine.usable_cpus(),
        gpus=tuple(gpu.name for gpu in gpus),
        product=product,
        instance=product if product in catalogue.instances() else None,
        slurm=shutil.which("srun") is not None and batch.slurmctld_answers(),
    )


def entry_lines(name: str, found: Probed) -> list[str]:
    """Return the lines of the entry, without indentation."""
    gpus = f"{len(found.gpus)} x {found.gpus[0]}" if found.gpus else "no GPU"
    lines = [f"{_quoted(name)}:", f"  # {found.host}: {found.num_cpus} CPUs, {gpus}; written by `linkbench init`"]
    if found.instance:
        lines.append(f"  instance: {found.instance}")
    else:
        lines.append(
            "  # instance: add a name of `linkbench list instances`, to bound the results by the links of that type"
        )
    lines += ["  nodes: 1", f"  launcher: {'slurm' if found.slurm else 'auto'}"]
    return lines


def with_entry(old: bytes, path: Path, name: str, found: Probed) -> tuple[bytes, str]:
    """Return the new content of the file, and the lines that were added.

    Raises UsageError if the name is already used, or if the layout of the file does not allow an addition.
    """
    has_content = any(line.strip() and not line.lstrip().startswith(b"#") for line in old.splitlines())
    before = yaml_file.read(old, path) if has_content else None
    value = before.value if before else {}
    if before is not None and ("clusters", name) in before.places:
        raise before.fail(("clusters", name), "exists already: give another --name", key=True)
    if not isinstance(value, dict) or not isinstance(value.get("clusters"), dict | None):
        raise UsageError(f"{path}: the file must be a mapping whose key `clusters` holds entries by name")
    at, indent = _place(old, before)
    end = b"\r\n" if b"\r\n" in old else b"\n"
    heading = [] if before is not None and "clusters" in value else ["clusters:"]
    entry = entry_lines(name, found)
    lines = [" " * indent + line for line in entry]
    kept = old.splitlines(keepends=True)
    if at and not kept[at - 1].endswith((b"\n", b"\r")):
        kept[at - 1] += end
    added = [line.encode() + end for line in [*heading, *lines]]
    new = b"".join([*kept[:at], *added, *kept[at:]])
    _check(new, path, value, entry)
    return new, "\n".join(lines)


def _place(old: bytes, before: yaml_file.YamlFile | None) -> tuple[int, int]:
    """Return two numbers: the lines before the new entry, and the spaces by which the entry is indented."""
    lines = old.splitlines()
    if before is None or "clusters" not in before.value:
        return len(lines), 2
    tops = sorted(before.places[(key,)].key_line for key in before.value)
    own = before.places[("clusters",)].key_line
    at = next((line - 1 for line in tops if line > own), len(lines))
    while at > own and (not lines[at - 1].strip() or lines[at - 1].startswith(b"#")):
        at -= 1  # blank lines and unindented comments belong to the next section
    first = next(iter(before.value["clusters"] or ()), None)
    return at, 2 if first is None else before.places[("clusters", first)].key_column - 1


def _check(new: bytes, path: Path, value: dict[str, Any], entry: list[str]) -> None:
    """Raise UsageError if the new file is not the old content plus the new entry."""
    wanted = yaml_file.read("\n".join(entry).encode(), path).value
    wanted = value | {"clusters": (value.get("clusters") or {}) | wanted}
    try:
        same = yaml_file.read(new, path).value == wanted
    except UsageError:
        same = False
    if not same:
        say(*(f"  {line}" for line in entry))
        raise UsageError(f"{path}: `clusters:` is not written as a block: add the lines above by hand")


def _quoted(name: str) -> str:
    return name if name[0].isalpha() and name.lower() not in _WORDS_OF_YAML else f'"{name}"'
