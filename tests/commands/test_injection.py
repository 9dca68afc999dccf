"""Hosts, notes, versions and failures that hold escapes, formulas, tags or commands: no output passes them on."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.core.test_printable import TEXTS
from tests.fuzz import mutations

RULES = str(Path(__file__).parents[2] / "rules" / "publication.yaml")
COMMANDS: dict[str, tuple[str, ...]] = {
    "report": ("report", "{file}", "--notes"),
    "gate": ("gate", "{file}", "--rules", RULES),
    "explain": ("explain", "{file}"),
    "compare": ("compare", "{good}", "{file}"),
    "diagnose": ("diagnose", "{file}"),
    "lint": ("lint", "{file}"),
}
EXAMPLES = (st.sampled_from(["kinds", "pairs"]), st.sampled_from(sorted(COMMANDS)))
FORMATS = ("table", "markdown", "csv", "json")
# Text that its place ends: a line of its own, or a cell.
FORGED = "x\nFORGED line\r\n::error::forged"


def poisoned(lines: list[bytes], text: str) -> list[bytes]:
    """The lines of a file with a text wherever another program or user may have written one."""
    found = []
    for line in lines:
        parsed = json.loads(line)
        if parsed["type"] == "header":
            _poison_header(parsed, text)
        else:
            parsed["flags"] = [*parsed.get("flags", []), text]
            for key in ("failed", "skipped", "first_wrong"):
                for name in ("what", "text", "host"):
                    if name in parsed.get(key, {}):
                        parsed[key][name] = text
            if "reported" in parsed:
                parsed["reported"][text] = 1.0
        found.append(json.dumps(parsed).encode())
    return found


def _poison_header(header: dict[str, Any], text: str) -> None:
    header["notes"] = [text, *header["notes"]]
    header["remarks"] = [{"code": text, "facts": {"a": text}, "text": text}]
    for name in ("versions", "facts", "environment"):
        header[name] = {**header[name], "extra": text, text: text}
    header["started"] = text if len(text) % 2 else header["started"]
    header["job"] = f"{text}{header['job']}"
    for rank in header["ranks"]:
        rank["host"] += text
    nodes = {}
    for host, node in header["nodes"].items():
        nodes[host + text] = {**node, "host": host + text, "cpu_model": text, "gpus": [{"index": 0, "name": text}]}
    header["nodes"] = nodes
    header["settings"] = {**header["settings"], "launcher": text, "binding": text}


def unsafe(out: str, form: str) -> str | None:
    """What in an output a terminal, a spreadsheet, a page or a CI system would act on; None if there is nothing."""
    for letter in out:
        if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            return f"hidden character {letter!r}"
    for line in out.splitlines():
        if re.match(r"\s*::[A-Za-z]", line) or re.search(r"##(\w*)\[", line):
            return f"command to a CI system: {line!r}"
        if "FORGED" in line and line.lstrip("#- ").startswith("FORGED"):
            return f"a forged line: {line!r}"
    if form == "csv":
        for cell in (cell for row in csv.reader(io.StringIO(out)) for cell in row):
            if (
                cell[:1] in ("=", "+", "-", "@", "\t", "\r")
                and len(cell) > 1
                and not re.fullmatch(r"[-+]?[\d.einf+-]+", cell)
            ):
                return f"formula {cell!r}"
    if form == "markdown" and re.search(r"(?<!\\)<[A-Za-z/!]|!\[[^\]]*\]\(", out):
        return "a tag or an image"
    return None


@pytest.fixture(scope="module")
def bases() -> dict[str, list[bytes]]:
    """Good files: a row of every kind, and pairs of hosts."""
    return {name: lines for name, lines in mutations.base_lines().items() if name in ("kinds", "pairs")}


def run(bases: dict[str, list[bytes]], base: str, command: str, form: str, text: str, folder: Path) -> str | None:
    """What is unsafe in the output of a command on a poisoned file."""
    file, good = folder / "poisoned.jsonl", folder / "good.jsonl"
    file.write_bytes(b"\n".join(poisoned(bases[base], text)) + b"\n")
    good.write_bytes(b"\n".join(bases[base]) + b"\n")
    words = [word.format(file=file, good=good) for word in COMMANDS[command]]
    end = mutations.ended([*words, "--format", form])
    assert "internal error" not in end.err, end.err
    assert end.code in (0, 1, 2), end.err
    if form == "json" and end.out:
        json.loads(end.out)
    return unsafe(end.out, form) or unsafe(end.err, "table")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("base", "command"), [("kinds", "report"), ("kinds", "gate"), ("pairs", "diagnose")])
def test_nothing_that_acts_leaves_a_command(
    bases: dict[str, list[bytes]], base: str, command: str, form: str, tmp_path: Path
) -> None:
    text = f"\x1b[2J\u202e`<script>|=1+1{FORGED}##[error]&lt;![x](y)"
    assert run(bases, base, command, form, text, tmp_path) is None


@hypothesis.settings(max_examples=25, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    st.sampled_from(["kinds", "pairs"]), st.sampled_from(sorted(COMMANDS)), st.sampled_from(FORMATS), TEXTS
)
def test_no_text_of_others_acts(
    bases: dict[str, list[bytes]], tmp_path: Path, base: str, command: str, form: str, text: str
) -> None:
    assert run(bases, base, command, form, text, tmp_path) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
@hypothesis.settings(max_examples=1000, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    st.sampled_from(["kinds", "pairs"]), st.sampled_from(sorted(COMMANDS)), st.sampled_from(FORMATS), TEXTS
)
def test_no_text_of_others_acts_in_many_examples(
    bases: dict[str, list[bytes]], tmp_path: Path, base: str, command: str, form: str, text: str
) -> None:
    assert run(bases, base, command, form, text, tmp_path) is None


def test_a_file_name_in_an_error_stays_on_its_line(tmp_path: Path) -> None:
    name = tmp_path / "x\x1b[2J\nbench: gate passed\n::error::x.jsonl"
    end = mutations.ended(["report", str(name)])
    assert (end.code, end.err.count("\n"), unsafe(end.err, "table")) == (2, 1, None)


def test_a_figure_shows_dollars_and_escapes(tmp_path: Path) -> None:
    figures = pytest.importorskip("bench.figures._style")
    figure, (axes,) = figures.panels(1)
    axes.set_xticks([0.0, 1.0], [figures.shown("$\\frac$"), figures.shown("a\x1bb")])
    text = axes.text(0.5, 0.5, "host $\\frac$ \x1b[2J")
    figures.finish(figure, "$\\notacommand$", [], (), ("a $x$ b",))
    figures.write(figure, tmp_path / "x.svg")
    assert text.get_text() == "host \\$\\frac\\$ \\x1b[2J"
    assert "\x1b" not in (tmp_path / "x.svg").read_text(encoding="utf-8")
