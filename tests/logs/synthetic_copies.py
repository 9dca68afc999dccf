"""Synthetic logs of nvbandwidth and p2pBandwidthLatencyTest: layouts of all versions, invented figures, what they hold.

A matrix is made of the figures as they are printed. The expectations are made of the same figures, by the tools' own
sources: which of row and column sends is stated here again, not taken from the readers. `NVBANDWIDTH` and `P2P` map the
name of a file to its text and its expectations, in the form of expected/*.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Table = list[list[str]]
NVBANDWIDTH: dict[str, tuple[str, Any]] = {}
P2P: dict[str, tuple[str, Any]] = {}
H100, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"

# Begin of a nvbandwidth test -> direction, and the ends of the cell of a row and a column.
Ends = Callable[[int, int], tuple[str, str]]
ONE_ROW: dict[str, tuple[str, Ends]] = {
    "host_to_device_memcpy": ("h2d", lambda r, c: ("host", f"gpu{c}")),
    "device_to_host_memcpy": ("d2h", lambda r, c: (f"gpu{c}", "host")),
    "host_to_device_bidirectional_memcpy": ("bidirectional", lambda r, c: ("host", f"gpu{c}")),
    "device_to_host_bidirectional_memcpy": ("bidirectional", lambda r, c: (f"gpu{c}", "host")),
    "host_to_all_memcpy": ("h2d", lambda r, c: ("host", f"gpu{c}")),
    "all_to_host_memcpy": ("d2h", lambda r, c: (f"gpu{c}", "host")),
    "all_to_one_write": ("d2d", lambda r, c: ("others", f"gpu{c}")),
    "all_to_one_read": ("d2d", lambda r, c: (f"gpu{c}", "others")),
    "one_to_all_write": ("d2d", lambda r, c: (f"gpu{c}", "others")),
    "one_to_all_read": ("d2d", lambda r, c: ("others", f"gpu{c}")),
}
WRITES: Ends = lambda r, c: (f"gpu{r}", f"gpu{c}")  # noqa: E731
READS: Ends = lambda r, c: (f"gpu{c}", f"gpu{r}")  # noqa: E731


def one_row(gpus: int, rate: float) -> Table:
    """A figure for each GPU."""
    return [[f"{rate + 0.01 * gpu:.2f}" for gpu in range(gpus)]]


def square(gpus: int, rate: float, diagonal: str = "N/A", apart: Callable[[int, int], bool] | None = None) -> Table:
    """A figure for each pair of GPUs; pairs that are `apart` are refused, and print what the diagonal prints."""
    table = []
    for row in range(gpus):
        cells = []
        for column in range(gpus):
            refused = row == column or (apart is not None and apart(row, column))
            cells.append(diagonal if refused else f"{rate + 0.1 * row + 0.01 * column:.2f}")
        table.append(cells)
    return table


def sum_of(table: Table) -> float:
    """The sum that the tool prints of a table."""
    return sum(float(value) for cells in table for value in cells if value != "N/A")


def brief(
    name: str, direction: str | None, engine: str | None, table: Table, ends: Ends, unit: str = "bytes_per_s"
) -> Any:
    """A matrix of nvbandwidth as the expectations put it; refused pairs print N/A or 0.00."""
    is_square = len(table) == len(table[0]) and len(table) > 1
    good: list[list[Any]] = []
    waived = 0
    for row, cells in enumerate(table):
        for column, value in enumerate(cells):
            if is_square and row == column:
                continue
            if value in ("N/A", "0.00"):
                waived += 1
            else:
                good.append([*ends(row, column), float(value)])
    total = sum(each[2] for each in good)
    return [name, unit, direction, engine, len(good), waived, *good[0], *good[-1], total]


def of_one_row(name: str, table: Table) -> Any:
    """A matrix of a test that prints one row."""
    base, _, engine = name.rpartition("_")
    direction, ends = ONE_ROW[base]
    return brief(name, direction, engine, table, ends)


def of_pairs(name: str, table: Table, direction: str = "d2d") -> Any:
    """A matrix of a test between GPUs."""
    return brief(name, direction, name.rpartition("_")[2], table, READS if "_read" in name else WRITES)


# ------------------------------------------------------------------------------------------------ nvbandwidth, text


def printed(table: Table) -> list[str]:
    """A table as the text form prints it."""
    lines = [f"  {''.join(f'{column:10d}' for column in range(len(table[0])))}"]
    return lines + [f"{row:2d}{''.join(f'{value:>10}' for value in cells)}" for row, cells in enumerate(table)]


def section(name: str, title: str, table: Table) -> list[str]:
    """A test as the text form prints it."""
    return [f"Running {name}.", title, *printed(table), "", f"SUM {name} {sum_of(table):.2f}", ""]


def banner(version: str, gpus: int, gpu: str, host: str = "") -> list[str]:
    """The first lines of the text form."""
    lines = [f"nvbandwidth Version: {version}", f"Built from Git version: {version}", "", "CUDA Runtime Version: 12040"]
    lines += ["CUDA Driver Version: 12040", "Driver Version: 550.1", "", *([host] if host else [])]
    return [*lines, *(f"Device {number}: {gpu} (00000000:1{number}:00)" for number in range(gpus)), ""]


def add(name: str, lines: Sequence[str], wanted: dict[str, Any]) -> None:
    """One log of nvbandwidth more."""
    NVBANDWIDTH[f"{name}.txt"] = ("\n".join(lines) + "\n", {"status": "ok"} | wanted)


def _text() -> None:
    to, back, way = (f"memcpy CE CPU(row) {arrow} GPU(column) bandwidth (GB/s)" for arrow in ("->", "<-", "<->"))
    settings = {"cuda": "12.4", "driver": "550.1"}
    there, here, both = one_row(2, 12.1), one_row(2, 12.9), one_row(2, 9.2)
    pairs = square(2, 10.5)
    lines = [
        *banner("v0.6", 2, T4, "n0"),
        *section("host_to_device_memcpy_ce", to, there),
        *section("device_to_host_memcpy_ce", back, here),
        *section("host_to_device_bidirectional_memcpy_ce", way, both),
        *section("device_to_device_memcpy_read_ce", "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)", pairs),
        *section("device_to_device_memcpy_write_ce", "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)", pairs),
        "Waived:",
        "Waived:",
        "NOTE: The reported results may not reflect the full capabilities of the platform.",
    ]
    matrices = [
        of_one_row("host_to_device_memcpy_ce", there),
        of_one_row("device_to_host_memcpy_ce", here),
        of_one_row("host_to_device_bidirectional_memcpy_ce", both),
        of_pairs("device_to_device_memcpy_read_ce", pairs),
        of_pairs("device_to_device_memcpy_write_ce", pairs),
    ]
    waived = [[lines.index("Waived:") + offset, "waived"] for offset in (1, 2)]
    facts = {"tool_version": "v0.6", "settings": settings, "gpus": [T4], "hosts": ["n0"]}
    add("text_with_waived_tests", lines, facts | {"matrices": matrices, "remarks": waived})
    # Before v0.3 the diagonal, and refused pairs, are 0.00, and there is no banner.
    zeros = square(8, 271.0, "0.00")
    old = [
        "Running device_to_device_memcpy_write_ce.",
        "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
        *printed(zeros),
    ]
    add("text_of_zeros", old, {"matrices": [of_pairs("device_to_device_memcpy_write_ce", zeros)]})
    eight = one_row(8, 25.9)
    add(
        "text_of_one_test",
        ["Running host_to_device_memcpy_ce.", to, *printed(eight)],
        {"matrices": [of_one_row("host_to_device_memcpy_ce", eight)]},
    )
    excerpt = ["$ ./nvbandwidth", "[...]", *section("host_to_device_memcpy_ce", to, one_row(1, 359.0)), "[...]"]
    lost = [[2, "lines-left-out"], [len(excerpt), "lines-left-out"]]
    matrices = [of_one_row("host_to_device_memcpy_ce", one_row(1, 359.0))]
    facts = {"status": "truncated", "failure": "lines-left-out"}
    add("text_left_out", excerpt, facts | {"matrices": matrices, "remarks": lost})


# ------------------------------------------------------------------------------------------------ nvbandwidth, JSON


def case(name: str, table: Table | None, **more: Any) -> dict[str, Any]:
    """A test case of the document."""
    if table is None:
        return {"name": name, "status": "Waived", **more}
    plain = {"bandwidth_description": "memcpy CE", "bandwidth_matrix": table, "name": name, "status": "Passed"}
    return {**plain, "sum": sum_of(table), **more}


def document(version: str, cases: Sequence[dict[str, Any]], **more: Any) -> list[str]:
    """The lines of the document as the tool indents it."""
    inner = {"CUDA Runtime Version": 12080, "Driver Version": "570.1", **more, "git_version": ""}
    found = {"nvbandwidth": {**inner, "testcases": list(cases), "version": version}}
    return json.dumps(found, indent="\t", separators=(",", " : ")).splitlines()


def line_of(lines: Sequence[str], name: str) -> int:
    """Where a test case names itself."""
    return next(number for number, line in enumerate(lines, start=1) if f'"name" : "{name}"' in line)


SETTINGS = {"cuda": "12.8", "driver": "570.1"}


def _one_way(gpus: int, host_rate: float) -> tuple[list[dict[str, Any]], list[Any]]:
    """Test cases between host and GPUs, and their matrices."""
    names = [f"{base}_{engine}" for base in ONE_ROW if base.startswith(("host", "device")) for engine in ("ce", "sm")]
    cases, matrices = [], []
    for number, name in enumerate(names):
        slower = 0.45 if name == "device_to_host_memcpy_sm" else 0.9 if "bidirectional" in name else 1.0
        table = one_row(gpus, host_rate * slower - 0.1 * number)
        cases.append(case(name, table))
        matrices.append(of_one_row(name, table))
    return cases, matrices


def _between(gpus: int, rate: float, version: str, apart: Callable[[int, int], bool] | None = None) -> Any:
    """Test cases between GPUs, and their matrices: two-way tests are three stacked tables since v0.6."""
    cases, matrices = [], []
    for verb in ("read", "write"):
        for engine in ("ce", "sm"):
            name = f"device_to_device_memcpy_{verb}_{engine}"
            table = square(gpus, rate, apart=apart)
            cases.append(case(name, table))
            matrices.append(of_pairs(name, table))
            both = f"device_to_device_bidirectional_memcpy_{verb}_{engine}"
            first, second, total = (square(gpus, rate * factor, apart=apart) for factor in (0.9, 0.89, 1.79))
            if version < "v0.6":
                direction = "bidirectional" if engine == "ce" else "bidirectional_sum"
                ends = READS if verb == "read" and engine == "ce" else WRITES
                cases.append(case(both, first))
                matrices.append(brief(both, direction, engine, first, ends))
                continue
            described = {"bandwidth_description": "memcpy GPU(row) <-> GPU(column) Total bandwidth (GB/s)"}
            cases.append(case(both, first + second + total, **described, sum=sum_of(total)))
            # The first stream runs from column to row for both verbs.
            matrices.append(brief(f"{both}_{verb}1", "bidirectional", engine, first, READS))
            matrices.append(brief(f"{both}_{verb}2", "bidirectional", engine, second, WRITES))
            matrices.append(brief(f"{both}_total", "bidirectional_sum", engine, total, WRITES))
    return cases, matrices


def _fans_and_latencies(gpus: int, rate: float, version: str) -> Any:
    """Test cases of all GPUs together, latencies and local copies, and their matrices."""
    cases, matrices = [], []
    for base in ("all_to_one_write", "all_to_one_read", "one_to_all_write", "one_to_all_read"):
        table = one_row(gpus, rate)
        cases.append(case(f"{base}_ce", table))
        matrices.append(of_one_row(f"{base}_ce", table))
    table = one_row(gpus, 701.0)
    cases.append(case("host_device_latency_sm", table))
    matrices.append(brief("host_device_latency_sm", "load", "sm", table, lambda r, c: (f"gpu{c}", "host"), "s"))
    table = square(gpus, 650.0)
    cases.append(case("device_to_device_latency_sm", table))
    direction = "load" if version >= "v0.8" else None
    matrices.append(brief("device_to_device_latency_sm", direction, "sm", table, WRITES, "s"))
    table = one_row(gpus, 1400.0)
    cases.append(case("device_local_copy", table))
    matrices.append(brief("device_local_copy", "local", None, table, lambda r, c: (f"gpu{c}", f"gpu{c}")))
    return cases, matrices


def _json() -> None:
    for version in ("v0.5", "v0.7", "v0.8"):
        parts = [_one_way(4, 54.0), _between(4, 410.0, version), _fans_and_latencies(4, 410.0, version)]
        lines = document(version, [each for cases, _ in parts for each in cases])
        matrices = [each for _, found in parts for each in found]
        facts: dict[str, Any] = {"tool_version": version, "settings": SETTINGS, "matrices": matrices}
        if version < "v0.8":
            facts["remarks"] = [[line_of(lines, "device_to_device_latency_sm"), "latency-of-host"]]
        add(f"json_{version}", lines, facts)
    listed = [f"{number}: {H100} (00000000:1{number}:00): (n0)" for number in range(8)]
    cases, matrices = _between(8, 365.0, "v0.8")
    facts = {"tool_version": "v0.8", "settings": SETTINGS, "gpus": [H100], "hosts": ["n0"], "matrices": matrices}
    add("json_with_devices", document("v0.8", cases, **{"GPU Device list": listed}), facts)
    cases, matrices = _between(4, 51.0, "v0.8", lambda row, column: row // 2 != column // 2)
    facts = {"tool_version": "v0.8", "settings": SETTINGS, "matrices": matrices}
    add("json_of_bridged_pairs", document("v0.8", cases), facts)
    # Host memory behind half of the lanes, no peer access, slow writes by kernels.
    cases, matrices = _one_way(8, 13.4)
    waived = ["device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_ce", "all_to_one_write_ce"]
    lines = document("v0.5", [*cases, *(case(name, None) for name in waived)])
    remarks = [[line_of(lines, name), "waived"] for name in waived]
    facts = {"tool_version": "v0.5", "settings": SETTINGS, "matrices": matrices, "remarks": remarks}
    add("json_without_peer_access", lines, facts)
    error = "[CUDA_ERROR_SYSTEM_NOT_READY] system not yet initialized in expression cuInit(0)"
    lines = json.dumps({"nvbandwidth": {"error": error, "version": "v0.8"}}, indent="\t").splitlines()
    facts = {"tool_version": "v0.8", "status": "failed", "failure": "tool-error", "printed": "SYSTEM_NOT_READY"}
    add("json_of_an_error", lines, facts | {"matrices": [], "remarks": [[3, "tool-error"]]})
    lines = document("v0.5", [{"name": "host_to_device_memcpy_ce", "status": "Running"}])
    remarks = [[line_of(lines, "host_to_device_memcpy_ce"), "never-finished"]]
    facts = {"tool_version": "v0.5", "settings": SETTINGS, "status": "failed", "failure": "never-finished"}
    add("json_of_a_test_that_hung", lines, facts | {"matrices": [], "remarks": remarks})
    wrong = "Invalid value when checking the pattern at 0x7f0000000000"
    table = one_row(2, 6.2)
    cases = [case("host_to_device_memcpy_ce", table), case("device_to_host_memcpy_ce", table)]
    cases.append({"name": "device_to_device_memcpy_read_ce", "status": "Running"})
    error = "ASSERT in expression h_errorFlag == 0"
    lines = [f" {wrong}", " Current offset : 64 ", *document("v0.8", cases, error=error)]
    at = next(number for number, line in enumerate(lines, start=1) if '"error"' in line)
    hung = line_of(lines, "device_to_device_memcpy_read_ce")
    facts = {"tool_version": "v0.8", "settings": SETTINGS, "status": "failed", "failure": "tool-error"}
    matrices = [of_one_row(name, table) for name in ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")]
    remarks = [[1, "tool-error"], [at, "tool-error"], [hung, "never-finished"]]
    add("json_of_wrong_data", lines, facts | {"printed": "h_errorFlag", "matrices": matrices, "remarks": remarks})


# --------------------------------------------------------------------------------------------- p2pBandwidthLatencyTest

PEERS = "Unidirectional P2P=Enabled Bandwidth (P2P Writes)"
TWO_WAY = "Bidirectional P2P=Enabled Bandwidth"


def of_p2p(name: str, unit: str, direction: str, cells: dict[tuple[int, int], str | None]) -> Any:
    """A matrix of p2pBandwidthLatencyTest as the expectations put it; a cell without a value is refused."""
    good = [[f"gpu{row}", f"gpu{column}", float(value)] for (row, column), value in cells.items() if value is not None]
    ends = [*good[0], *good[-1]] if good else [None] * 6
    return [name, unit, direction, len(good), len(cells) - len(good), *ends]


def grid(table: Table, corner: str = "D\\D") -> list[str]:
    """A table as the program prints it."""
    lines = [f"   {corner}" + "".join(f"{column:7d}" for column in range(len(table[0])))]
    return lines + [f"{row:6d}" + "".join(f" {value:>6}" for value in cells) for row, cells in enumerate(table)]


def with_diagonal(gpus: int, rate: float, inside: float) -> Table:
    """Pairs, and on the diagonal copies inside a GPU."""
    table = square(gpus, rate)
    for index in range(gpus):
        table[index][index] = f"{inside + index:.2f}"
    return table


def split(name: str, unit: str, direction: str, table: Table, staged: Callable[[int, int], bool], enabled: bool) -> Any:
    """The matrices that a table holds: peers, copies through host memory, copies inside a GPU."""
    peers: dict[tuple[int, int], str | None] = {}
    host: dict[tuple[int, int], str | None] = {}
    inside: dict[tuple[int, int], str | None] = {}
    for row, cells in enumerate(table):
        for column, value in enumerate(cells):
            if row == column:
                inside[row, column] = value
            elif staged(row, column) or not enabled:
                host[row, column] = value
                if enabled:
                    peers[row, column] = None
            else:
                peers[row, column] = value
    both = "_sum" if direction == "bidirectional_sum" else ""
    found = [of_p2p(name, unit, direction, peers)] if peers else []
    found += [of_p2p(f"{name}, through host", unit, f"through_host{both}", host)] if host else []
    return [*found, of_p2p(f"{name}, inside the GPU", unit, "local", inside)]


def whole(
    gpus: int, gpu: str, rate: float, host_rate: float, apart: Callable[[int, int], bool]
) -> tuple[list[str], Any]:
    """A whole log, and its matrices."""
    lines = ["[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]"]
    lines += [f"Device: {n}, {gpu}, pciBusID: 1{n}, pciDeviceID: 0, pciDomainID:0" for n in range(gpus)]
    for a in range(gpus):
        for b in range(gpus):
            if a != b:
                lines.append(f"Device={a} {'CANNOT' if apart(a, b) else 'CAN'} Access Peer Device={b}")
    linked = [["1" if a == b or not apart(a, b) else "0" for b in range(gpus)] for a in range(gpus)]
    lines += ["", "P2P Connectivity Matrix", *grid(linked)]
    matrices: list[Any] = []

    def table(name: str, direction: str, enabled: bool, factor: float) -> None:
        values = with_diagonal(gpus, (rate if enabled else host_rate) * factor, 1290.0)
        for a in range(gpus):
            for b in range(gpus):
                if enabled and a != b and apart(a, b):
                    values[a][b] = f"{host_rate * factor + 0.01 * b:.2f}"
        lines.extend([f"{name} Matrix (GB/s)", *grid(values)])
        matrices.extend(split(name, "bytes_per_s", direction, values, apart, enabled))

    table("Unidirectional P2P=Disabled Bandwidth", "d2d", False, 1.0)
    table(PEERS, "d2d", True, 1.0)
    table("Bidirectional P2P=Disabled Bandwidth", "bidirectional_sum", False, 1.1)
    table(TWO_WAY, "bidirectional_sum", True, 1.9)
    for name, enabled in (("P2P=Disabled Latency", False), ("P2P=Enabled Latency (P2P Writes)", True)):
        of_gpu, of_cpu = with_diagonal(gpus, 2.4 if enabled else 22.0, 1.3), with_diagonal(gpus, 2.5, 2.6)
        lines += [f"{name} Matrix (us)", *grid(of_gpu, "GPU"), "", *grid(of_cpu, "CPU")]
        matrices += split(f"{name} GPU", "s", "d2d", of_gpu, apart, enabled)
        cells = {(a, b): of_cpu[a][b] for a in range(gpus) for b in range(gpus)}
        matrices.append(of_p2p(f"{name} CPU", "s", "calls", dict(cells)))
    lines += ["", "NOTE: The CUDA Samples are not meant for performance measurements."]
    return lines, matrices


def add_p2p(name: str, lines: Sequence[str], wanted: dict[str, Any]) -> None:
    """One log of p2pBandwidthLatencyTest more."""
    P2P[f"{name}.txt"] = ("\n".join(lines) + "\n", {"status": "ok"} | wanted)


def _p2p() -> None:
    v100 = "Tesla V100-SXM2-16GB"
    lines, matrices = whole(4, v100, 48.4, 9.1, lambda a, b: False)
    add_p2p("linked_pairs", lines, {"gpus": [v100], "matrices": matrices})
    old = "NVIDIA GeForce RTX 2080 Ti"
    lines, matrices = whole(2, old, 0.0, 5.7, lambda a, b: True)
    remarks = [[lines.index("P2P Connectivity Matrix") + 1, "no-peer-access"]]
    add_p2p("no_peer_access", lines, {"gpus": [old], "matrices": matrices, "remarks": remarks})
    lines, matrices = whole(4, "NVIDIA L4", 19.7, 11.0, lambda a, b: a // 2 != b // 2)
    remarks = [[lines.index("P2P Connectivity Matrix") + 1, "no-peer-access"]]
    add_p2p("some_peer_access", lines, {"gpus": ["NVIDIA L4"], "matrices": matrices, "remarks": remarks})
    peers, both = with_diagonal(4, 55.6, 1480.0), with_diagonal(4, 110.9, 1480.0)
    lines = [f"{PEERS} Matrix (GB/s)", *grid(peers), f"{TWO_WAY} Matrix (GB/s)", *grid(both)]
    found = split(PEERS, "bytes_per_s", "d2d", peers, lambda a, b: False, True)
    found += split(TWO_WAY, "bytes_per_s", "bidirectional_sum", both, lambda a, b: False, True)
    add_p2p("excerpt", lines, {"matrices": found, "remarks": [[None, "no-connectivity"]]})


_text()
_json()
_p2p()
