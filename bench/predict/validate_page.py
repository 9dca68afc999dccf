"""The words for what predictions are worth: errors and coverage by class, and every system by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.results.grid import NOTHING, Column, table
from bench.results.grid import markdown as grid_markdown

SCHEMA = "bench.validate/1"
MEANING = (
    "every published row predicted without any row of its own system; error: |predicted / measured - 1|",
    "error: median over systems of each one's median; worst: the worst system",
    "baseline: the same with one efficiency for all machines of a level (peer, host, network)",
    "better: systems whose own error is smaller than the baseline's, of all",
    "covered: rows inside their 90 % interval, mean over systems; in brackets its 90 % interval (Wilson, over systems)",
    "points: rows with a middle; the others have an interval only, and their error is that of its geometric middle",
)


def percent(value: float | None) -> str:
    """`12.3 %`."""
    return NOTHING if value is None else f"{100 * value:.1f} %" if value < 10 else f"{100 * value:.0f} %"


def columns(names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a table of worths whose groups are told by `names`."""
    leading = tuple(
        Column(name, lambda row, k=k: row["words"][k], right=False)  # type: ignore[misc]
        for k, name in enumerate(names)
    )
    return (
        *leading,
        Column("systems", lambda row: str(row["num_systems"])),
        Column("rows", lambda row: str(row["num_rows"])),
        Column("points", lambda row: str(row["num_pointed"])),
        Column("error", lambda row: percent(row["error"])),
        Column("worst", lambda row: percent(row["worst_error"])),
        Column("baseline", lambda row: percent(row["baseline_error"])),
        Column("better", lambda row: f"{row['num_better']}/{row['num_compared']}"),
        Column(
            "covered",
            lambda row: f"{percent(row['covered'])} [{percent(row['covered_low'])}, {percent(row['covered_high'])}]",
        ),
        Column("target", lambda row: row.get("verdict") or NOTHING, right=False),
    )


def text(
    form: str, parts: Sequence[tuple[str, Sequence[str], Sequence[Mapping[str, Any]]]], remarks: Sequence[str]
) -> str:
    """Several tables, each with its heading, names of its groups, and rows; as text or Markdown."""
    blocks = []
    for heading, names, rows in parts:
        shown = columns(names)
        cells = [[column.cell(row) for column in shown] for row in rows]
        if form == "markdown":
            blocks.append(f"### {heading}\n\n{grid_markdown(shown, cells)}")
        else:
            blocks.append(f"# {heading}\n{table(shown, cells)}")
    fine = [f"- {each.strip()}" if form == "markdown" else f"# {each}" for each in (*MEANING, *remarks)]
    return "\n\n".join([*blocks, "\n".join(fine)])
