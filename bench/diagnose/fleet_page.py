"""Show a folder of similar runs: the groups, the hosts and pairs with most bad runs, and the matrix of pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from bench.core import printable
from bench.core.codes import Coded
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.diagnose.fleet import LOST, SLOW_SHARE, Fleet, FleetRun, GroupKey, RunGroup, RunState
from bench.diagnose.host_evidence import FleetVerdict, HostEvidence, JobOutcome, PairEvidence
from bench.diagnose.messages import FleetConclusion, FleetNote

# Limits of what the page shows; JSON has everything. The page of 17 hosts fits on two screens.
_MOST_HOSTS, _MOST_NAMED, _MOST_PAIRS, _MOST_COLUMNS, _MOST_GROUPS = 6, 8, 6, 20, 10
_MOST_PARTNERS, _MOST_FILES = 5, 1
_WIDE = 0.8  # if the limit for slow runs is below this share of the median, a note says so


def table(
    fleet: Fleet,
    verdict: FleetVerdict,
    normal: Mapping[GroupKey, str],
    decides: Coded | None = None,
    width: int = PIPED_WIDTH,
) -> str:
    """Return the page as text. `width`: the number of characters in a line. The matrix of pairs may be wider than this.

    `normal`: maps some groups to the verdict code of the group's median run.
    `decides`: a code whose text names the option that `explain` needs to judge a median run. The value is None if
        `explain` needs no further option.
    """
    lines = wrapped(f"# {conclusion(fleet, verdict).text}", width, "#   ")
    lines += [*wrapped(_title(fleet), width, "  "), ""]
    lines += _aligned(_group_rows(fleet, normal))
    names = short_names(fleet.hosts)
    if verdict.pairs or verdict.named:
        lines.append("")
        lines += _host_lines(verdict, names, width)
        lines += _pair_lines(verdict, names, width)
    lines += ["", *_matrix_lines(fleet, verdict, names), ""]
    for note in notes(fleet, verdict, decides):
        lines += wrapped(f"note: {note.text}", width, "  ")
    return printable.joined(lines)


def markdown(
    fleet: Fleet,
    verdict: FleetVerdict,
    normal: Mapping[GroupKey, str],
    decides: Coded | None = None,
    width: int = PIPED_WIDTH,
) -> str:
    """Return the page as Markdown, with headings, tables and lists. `width` has no effect."""
    names = short_names(fleet.hosts)
    lines = [
        f"# {conclusion(fleet, verdict).text}",
        "",
        _title(fleet),
        "",
        *_markdown_table(_group_rows(fleet, normal)),
    ]
    if verdict.pairs or verdict.named:
        lines += ["", "## Hosts, most evidence first", ""]
        lines += _markdown_table([_HOST_COLUMNS, *(_host_row(host) for host in _shown_hosts(verdict))])
        lines += ["", *(f"- {host.host}: {_evidence(host, names)}" for host in verdict.named[:_MOST_NAMED])]
        lines += ["", "## Pairs that no named host explains", ""]
        lines += [f"- {_pair(pair, names)}" for pair in _open_pairs(verdict)[:_MOST_PAIRS]] or ["none"]
    lines += ["", "## Matrix", "", *printable.fenced(_matrix_lines(fleet, verdict, names)), ""]
    return printable.joined([*lines, *(f"- {note.text}" for note in notes(fleet, verdict, decides))])


def plain(
    fleet: Fleet, verdict: FleetVerdict, normal: Mapping[GroupKey, str], decides: Coded | None = None
) -> dict[str, Any]:
    """Return the page as a dictionary that can be written as JSON.

    Values are in SI units, and texts have codes and facts.
    """
    answer = conclusion(fleet, verdict)
    return {
        "title": _title(fleet),
        "conclusion": answer.text,
        "conclusion_code": answer.code,
        "conclusion_facts": _facts(answer),
        "groups": [_plain_group(group, normal.get(group.key)) for group in fleet.groups],
        "hosts": [_plain_host(host) for host in verdict.hosts],
        "pairs": [_plain_pair(pair) for pair in verdict.pairs],
        "notes": [note.text for note in notes(fleet, verdict, decides)],
        "notes_codes": [{"code": note.code, "facts": _facts(note)} for note in notes(fleet, verdict, decides)],
    }


def conclusion(fleet: Fleet, verdict: FleetVerdict) -> Coded:
    """Return the conclusion about all hosts, a single sentence."""
    bad = [run for run in fleet.runs if run.state != RunState.WELL]
    if verdict.named:
        at_fault = [host.host for host in verdict.named if host.at_fault]
        suspected = [host.host for host in verdict.named if host.suspected]
        named = {*at_fault, *suspected}
        return Coded.of(
            FleetConclusion.NAMED,
            at_fault=at_fault or None,
            suspected=suspected or None,
            num_named=len(named),
            is_one=len(named) == 1,
            num_explained=sum(not named.isdisjoint(run.hosts) for run in bad),
            num_bad=len(bad),
        )
    if bad:
        facts = {"num_bad": len(bad), "num_runs": len(fleet.runs), "num_pairs": len(verdict.pairs)}
        return Coded.of(FleetConclusion.PAIRS_ONLY, is_one=len(bad) == 1, **facts)
    uneven = any(
        group.low_rate is not None and group.usual_rate and group.low_rate < SLOW_SHARE * group.usual_rate
        for group in fleet.groups
    )
    return Coded.of(FleetConclusion.ALL_WELL, least_share=None if uneven else SLOW_SHARE)


def notes(fleet: Fleet, verdict: FleetVerdict, decides: Coded | None = None) -> list[Coded]:
    """Return the notes that a reader of the page must know."""
    found = []
    clusters = sorted({group.key.kind.cluster for group in fleet.groups} - {""})
    if clusters:
        found.append(Coded.of(FleetNote.CLUSTERS, num_clusters=len(clusters), clusters=clusters))
    for group in fleet.groups:
        limit = group.slow_below if group.compared else None
        if limit is None or limit < _WIDE * (group.usual_rate or 0.0):
            facts = {"pattern": group.key.pattern, "ranks_per_node": group.key.kind.ranks_per_node}
            found.append(Coded.of(FleetNote.RATES_DIFFER, spread=group.spread, limit=limit, **facts))
    if verdict.pairs:
        weights = {"slow": verdict.weights[JobOutcome.SLOW], "lost": verdict.weights[JobOutcome.LOST]}
        found.append(Coded.of(FleetNote.WEIGHTS, **weights))
    if fleet.num_unplaced:
        found.append(Coded.of(FleetNote.UNPLACED, num_runs=fleet.num_unplaced, is_one=fleet.num_unplaced == 1))
    if decides is not None:
        found.append(Coded.of(FleetNote.MEDIANS, decides=decides.text, decides_code=decides.code))
    found.append(Coded.of(FleetNote.NEXT, named=bool(verdict.named)))
    return found


def short_names(hosts: Sequence[str]) -> dict[str, str]:
    """Map each host name to a short name. The beginning and the domain that all host names share are removed.

    A number or a part of the domain is removed only as a whole.
    """
    if len(hosts) < 2:
        return {host: host for host in hosts}
    begin = re.sub(r"\d+$", "", _common_begin(hosts))
    rest = [host[len(begin) :] for host in hosts]
    end = _common_begin([name[::-1] for name in rest])[::-1]
    end = re.sub(r"^[^.]*", "", end)  # remove only whole parts of the domain
    short = [name[: len(name) - len(end)] for name in rest]
    if not all(short):
        return {host: host for host in hosts}
    return dict(zip(hosts, short, strict=True))


def _common_begin(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    for place, letter in enumerate(first):
        if not last.startswith(letter, place):
            return first[:place]
    return first


def _title(fleet: Fleet) -> str:
    found = [run for run in fleet.runs if run.state != RunState.MISSING]
    files = len({run.source for run in found})
    sets = {run.hosts for run in fleet.runs if len(run.hosts) == 2}
    pairs = f", {len(sets)} pairs" if sets else ""
    tools = sorted({run.group.kind.tool.replace("_", "-") for run in found})
    return f"{len(found)} similar runs in {files} logs by {', '.join(tools)}: {len(fleet.hosts)} hosts{pairs}"


_GROUP_COLUMNS = (
    "group",
    "runs",
    "median GB/s",
    "lowest",
    "highest",
    "spread",
    "slow",
    "failed",
    "no figures",
    "missing",
)
_HOST_COLUMNS = (
    "host",
    "verdict",
    "chance",
    "bad runs",
    "slow with",
    "lost with",
    "slow",
    "failed",
    "no figures",
    "missing",
)


def _group_rows(fleet: Fleet, normal: Mapping[GroupKey, str]) -> list[Sequence[str]]:
    """Return a table row for each group.

    The row has the median, the lowest and the highest rate in GB/s. The row also has the number of slow runs, and the
    number of lost runs in each state.
    """
    header = [*_GROUP_COLUMNS, *(["median is"] if normal else [])]
    rows: list[Sequence[str]] = [header]
    for group in fleet.groups[:_MOST_GROUPS]:
        kind, counts = group.key.kind, group.counts
        cluster = f", with {kind.cluster}" if kind.cluster else ""
        row = [f"{group.key.pattern}, {kind.num_nodes} x {kind.ranks_per_node}{cluster}", str(group.num_runs)]
        for rate in (group.usual_rate, group.low_rate, group.high_rate):
            row.append("-" if rate is None else f"{rate / 1e9:.4g}")
        row.append(f"{group.spread:.1%}")
        row += [str(counts.get(state, 0)) for state in (RunState.SLOW, *LOST)]
        rows.append(row + ([normal.get(group.key, "").replace("-", " ")] if normal else []))
    if len(fleet.groups) > _MOST_GROUPS:
        rows.append([f"... and {len(fleet.groups) - _MOST_GROUPS} more", *[""] * (len(header) - 1)])
    return rows


def _shown_hosts(verdict: FleetVerdict) -> list[HostEvidence]:
    """Return the hosts that are at fault or suspected.

    If these are few, add some other hosts with slow or lost runs.
    """
    most = max(_MOST_HOSTS, min(len(verdict.named), _MOST_NAMED))
    return [host for host in verdict.hosts[:most] if host.num_bad or host in verdict.named]


def _host_row(host: HostEvidence) -> Sequence[str]:
    num_runs = sum(host.counts.values())
    word = "at fault" if host.at_fault else "suspected" if host.suspected else "not accused"
    row = [host.host, word, f"{host.confidence:.2f}", f"{host.num_bad} of {num_runs}"]
    row += [f"{len(partners)} of {host.num_partners}" for partners in (host.slow_with, host.lost_with)]
    return row + [str(host.counts.get(state, 0)) for state in (RunState.SLOW, *LOST)]


def _host_lines(verdict: FleetVerdict, names: Mapping[str, str], width: int) -> Iterator[str]:
    shown = _shown_hosts(verdict)
    yield from _aligned([_HOST_COLUMNS, *(_host_row(host) for host in shown)])
    for host in verdict.named[:_MOST_NAMED]:
        yield from wrapped(f"  {names[host.host]}: {_evidence(host, names)}", width, "    ")


def _evidence(host: HostEvidence, names: Mapping[str, str]) -> str:
    """Describe a host's slow and lost runs: the partners, the rates, and the log files."""
    parts = []
    shares = [run.share for run in host.bad_runs if run.state == RunState.SLOW and run.share is not None]
    if host.ratio is not None:
        parts.append(f"at {host.ratio:.2f} of its peers with all partners")
    if shares:
        where = f" with {_some(host.slow_with, names)}" if host.slow_with else ""
        least, most = f"{min(shares):.2f}", f"{max(shares):.2f}"
        parts.append(f"slow{where} ({least}{f' to {most}' if most != least else ''} of usual)")
    if host.lost_with:
        parts.append(f"no whole run with {_some(host.lost_with, names)}")
    return "; ".join(parts) + _files(host.bad_runs)


def _files(runs: Sequence[FleetRun]) -> str:
    """Name the first files and count the other files. Files of lost runs come first."""
    ordered = sorted(runs, key=lambda run: (run.state not in LOST, run.share or 0.0))
    files = list(dict.fromkeys(PurePath(run.source).name for run in ordered if run.source))
    more = f", and {len(files) - _MOST_FILES} more" if len(files) > _MOST_FILES else ""
    return f" [{', '.join(files[:_MOST_FILES])}{more}]" if files else ""


def _some(hosts: Sequence[str], names: Mapping[str, str]) -> str:
    more = f" and {len(hosts) - _MOST_PARTNERS} more" if len(hosts) > _MOST_PARTNERS else ""
    return ", ".join(names[host] for host in hosts[:_MOST_PARTNERS]) + more


def _open_pairs(verdict: FleetVerdict) -> list[PairEvidence]:
    return [pair for pair in verdict.pairs if not pair.explained_by]


def _pair_lines(verdict: FleetVerdict, names: Mapping[str, str], width: int) -> Iterator[str]:
    pairs = _open_pairs(verdict)
    if not pairs:
        return
    more = f", the worst {_MOST_PAIRS}" if len(pairs) > _MOST_PAIRS else ""
    yield f"Pairs that no named host explains: {len(pairs)}{more}"
    for pair in pairs[:_MOST_PAIRS]:
        yield from wrapped(f"  {_pair(pair, names)}", width, "    ")


def _pair(pair: PairEvidence, names: Mapping[str, str]) -> str:
    counts = {state: sum(run.state == state for run in pair.bad_runs) for state in (*LOST, RunState.SLOW)}
    words = [f"{number} {state.template}" for state, number in counts.items() if number]
    share = f", down to {pair.least_share:.2f} of usual" if counts[RunState.SLOW] and pair.least_share else ""
    link = ", so the link is" if pair.link else ""
    ends = "-".join(names[host] for host in pair.hosts)
    return f"{ends}: {' and '.join(words)} of {pair.num_runs}{share}{link}{_files(pair.bad_runs)}"


def _matrix_lines(fleet: Fleet, verdict: FleetVerdict, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a matrix with a cell for each pair of hosts.

    If there are more than 20 hosts, show only the hosts with the strongest evidence of a fault. Count the bad pairs
    between these hosts and the hosts that are not shown.
    """
    cells = matrix(fleet)
    if not cells:
        return
    hosts = list(fleet.hosts)
    if len(hosts) > _MOST_COLUMNS:
        hosts = sorted(host.host for host in verdict.hosts[:_MOST_COLUMNS])
    rest = set(fleet.hosts) - set(hosts)
    yield "Matrix: lowest % of usual if slow; xN: N runs failed, without figures or missing; . well"
    rows: list[Sequence[str]] = [["", *(names[host] for host in hosts), *(["others"] if rest else [])]]
    for host in hosts:
        row = [names[host]]
        for other in hosts:
            row.append("-" if host == other else cells.get(_ends(host, other), ""))
        if rest:
            found = [cells.get(_ends(host, other), "") for other in rest]
            row.append(f"{sum(cell not in ('', '.') for cell in found)} bad")
        rows.append(row)
    yield from _aligned(rows)


def matrix(fleet: Fleet) -> dict[tuple[str, ...], str]:
    """Map each pair to a cell of the matrix.

    For two lost runs, the cell is `x2`. Without lost runs, the cell is `83` if the pair's slowest run had 83 % of the
    usual rate. The cell is `.` if no run of the pair is slow or lost.
    """
    by_pair: dict[tuple[str, ...], list[FleetRun]] = {}
    for run in fleet.runs:
        if len(run.hosts) == 2:
            by_pair.setdefault(run.hosts, []).append(run)
    cells = {}
    for pair, runs in by_pair.items():
        lost = sum(run.state in LOST for run in runs)
        slow = [run.share for run in runs if run.state == RunState.SLOW and run.share is not None]
        cells[pair] = f"x{lost}" if lost else f"{100 * min(slow):.0f}" if slow else "."
    return cells


def _ends(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first < second else (second, first)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of aligned columns. The first column is left-aligned, and the other columns are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip() if len(rows[0]) <= len(_HOST_COLUMNS) + 1 else " ".join(cells).rstrip())
    return lines


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(map(printable.markdown_cell, row))} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def _facts(line: Coded) -> dict[str, Any]:
    return {name: value for name, value in line.facts.items() if value is not None}


def _plain_group(group: RunGroup, normal: str | None) -> dict[str, Any]:
    return {
        "tool": group.key.kind.tool,
        "pattern": group.key.pattern,
        "num_nodes": group.key.kind.num_nodes,
        "ranks_per_node": group.key.kind.ranks_per_node,
        "cluster": group.key.kind.cluster or None,
        "num_runs": group.num_runs,
        "median_bytes_per_s": group.usual_rate,
        "lowest_bytes_per_s": group.low_rate,
        "highest_bytes_per_s": group.high_rate,
        "noise": group.noise,
        "spread": group.spread,
        "compared": group.compared,
        "slow_below_bytes_per_s": group.slow_below,
        "counts": {str(state): group.counts.get(state, 0) for state in RunState},
        "median_is": normal,
    }


def _plain_host(host: HostEvidence) -> dict[str, Any]:
    return {
        "host": host.host,
        "at_fault": host.at_fault,
        "suspected": host.suspected,
        "confidence": host.confidence,
        "ratio": host.ratio,
        "num_bad": host.num_bad,
        "counts": {str(state): host.counts.get(state, 0) for state in RunState},
        "num_partners": host.num_partners,
        "slow_with": list(host.slow_with),
        "lost_with": list(host.lost_with),
        "bad_runs": [_plain_run(run) for run in host.bad_runs],
    }


def _plain_pair(pair: PairEvidence) -> dict[str, Any]:
    return {
        "hosts": list(pair.hosts),
        "num_runs": pair.num_runs,
        "least_share": pair.least_share,
        "explained_by": list(pair.explained_by),
        "link_at_fault": pair.link,
        "bad_runs": [_plain_run(run) for run in pair.bad_runs],
    }


def _plain_run(run: FleetRun) -> dict[str, Any]:
    return {
        "source": run.source,
        "line": run.line,
        "pattern": run.group.pattern,
        "num_nodes": run.group.kind.num_nodes,
        "ranks_per_node": run.group.kind.ranks_per_node,
        "hosts": list(run.hosts),
        "state": str(run.state),
        "busbw_bytes_per_s": run.rate,
        "share": run.share,
        "why_code": run.why.code if run.why else None,
    }
