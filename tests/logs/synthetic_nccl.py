"""Synthetic logs of nccl-tests: the layouts of its versions and launchers, invented figures, and what is in each.

A row is made of the figures as they are printed, and the expectations are these same figures, so no reader is needed to
know what a log holds. `LOGS` maps the name of a file to its text and its expectations, in the form of
expected/nccl_logs.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
    "gather": lambda n: (n - 1) / n,
    "hypercube": lambda n: 1.0,
}
PARTS = ("reducescatter", "allgather", "alltoall", "gather", "hypercube")
COMBINES = ("allreduce", "reducescatter", "reduce", "sendrecv")
ROOTED = ("broadcast", "reduce", "gather")
UNCHECKED_IN_PLACE = ("alltoall", "sendrecv")
TITLE = "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw #wrong"
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
OLD_TITLE = "#       size         count    type   redop " + 2 * "    time   algbw   busbw  error"
INFO = "n0:4711:4720 [0] NCCL INFO"
H100, A100, V100 = "NVIDIA H100 80GB HBM3", "A100-SXM4-40GB", "Tesla V100-SXM2-16GB"
TYPES = {
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "double": ("float64", 8),
    "fp8_e4m3": ("float8_e4m3fn", 1),
}
SMALL, LARGE = tuple(1 << power for power in range(10, 21, 2)), tuple(1 << power for power in range(20, 33))


def time_text(time_us: float) -> str:
    """As nccl-tests prints it."""
    return f"{time_us:.0f}" if time_us >= 10000 else f"{time_us:.1f}" if time_us >= 100 else f"{time_us:.2f}"


def half(pattern: str, size: int, time_us: float, ranks: int, wrong: str) -> str:
    """Time, algbw, busbw, wrong."""
    algbw = size / time_us / 1e3 * ((ranks - 1) / ranks if pattern == "hypercube" else 1)
    return f"  {time_text(time_us):>7}  {algbw:6.2f}  {algbw * FACTORS[pattern](ranks):6.2f}  {wrong:>5}"


def row(
    pattern: str,
    size: int,
    ranks: int = 4,
    wrong: str = "0",
    dtype: str = "float",
    width: int = 4,
    rate: float = 40.0,
    old: bool = False,
) -> str:
    """A row of about `size` bytes, at 21 us and `rate` GB/s of algbw. `old`: without a root, as before 2.13."""
    parts = ranks if pattern in PARTS else 1
    size -= size % (16 * parts)
    count = size // width // parts
    time_us = 21.0 + size / (rate * 1e3)
    operation, root = ("sum" if pattern in COMBINES else "none"), (0 if pattern in ROOTED else -1)
    in_place = "N/A" if pattern in UNCHECKED_IN_PLACE else wrong
    columns = f"{operation:>6}" if old else f"{operation:>6}  {root:6d}"
    return (
        f"{size:12d}  {count:12d}  {dtype:>8}  {columns}"
        + half(pattern, size, time_us, ranks, wrong)
        + half(pattern, size, time_us * 1.03, ranks, in_place)
    )


def average(table: Sequence[str]) -> str:
    """The closing line's figure."""
    rates = [float(text.split()[-place]) for text in table for place in (6, 2)]
    return f"{sum(rates) / len(rates):g}"


def footer(table: Sequence[str], wrong: int = 0) -> list[str]:
    """Closing lines."""
    verdict = "FAILED" if wrong else "OK"
    return [f"# Out of bounds values : {wrong} {verdict}", f"# Avg bus bandwidth    : {average(table)} ", "#"]


def devices(ranks: int, nodes: int, gpu: str, group: str = " Group  0") -> list[str]:
    """The lines that list the ranks, by default as since 2.13."""
    each = ranks // nodes
    return [
        f"#  Rank {r:2d}{group} Pid {3000 + r:6d} on {f'n{r // each}':>10} device {r % each:2d} [0x1{r % 8}] {gpu}"
        for r in range(ranks)
    ]


def head(sizes: Sequence[int], step: int) -> str:
    """The first line of a banner."""
    return (
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {step}(factor) warmup iters: 5 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0"
    )


def expected_rows(table: Sequence[str], old: bool = False) -> list[dict[str, Any]]:
    """The figures of printed rows, by their places in a line."""
    found = []
    for text in table:
        size, count, dtype, operation, *rest = text.split()
        root = None if old else int(rest.pop(0))
        for index in (0, 1):
            time_us, algbw, busbw, wrong = rest[4 * index :][:4]
            found.append(
                {
                    "size": int(size),
                    "count": int(count),
                    "dtype": TYPES[dtype][0] if dtype in TYPES else "float32",
                    "op": None if operation == "none" else operation,
                    "root": None if root in (None, -1) else root,
                    "in_place": bool(index),
                    "time_us": float(time_us),
                    "algbw": float(algbw),
                    "busbw": float(busbw),
                    "wrong": None if wrong == "N/A" or old else int(float(wrong)),
                }
            )
    return found


def wanted_of(table: Sequence[str], old: bool = False, **facts: Any) -> dict[str, Any]:
    """The expectations of a log with these rows."""
    rows = expected_rows(table, old)
    sums = {key: sum(row[key] or 0 for row in rows) for key in ("size", "time_us", "algbw", "busbw", "wrong")}
    of_rows = {"first": rows[0], "last": rows[-1], "sums": sums} if rows else {}
    plain: dict[str, Any] = {
        "tool_version": None,
        "num_nodes": None,
        "status": "ok",
        "hosts": [],
        "gpus": [],
        "num_rows": len(rows),
        "remark_lines": [],
    }
    return plain | of_rows | facts


def text_of(lines: Sequence[str]) -> str:
    """A file of these lines."""
    return "\n".join(lines) + "\n"


LOGS: dict[str, tuple[str, dict[str, Any]]] = {}


def add(name: str, lines: Sequence[str], wanted: dict[str, Any]) -> None:
    """One log more."""
    LOGS[f"{name}.txt"] = (text_of(lines), wanted)


def whole(
    pattern: str, ranks: int, nodes: int, gpu: str, rate: float, sizes: Sequence[int] = LARGE, wrong: str = "0"
) -> tuple[list[str], list[str], dict[str, Any]]:
    """The lines of a log with nothing left out, its rows, and its expectations."""
    table = [row(pattern, size, ranks, wrong, rate=rate) for size in sizes]
    lines = [head(sizes, sizes[1] // sizes[0]), "#", "# Using devices", *devices(ranks, nodes, gpu), "#", TITLE, UNITS]
    hosts = [f"n{node}" for node in range(nodes)]
    facts = wanted_of(table, pattern=pattern, num_ranks=ranks, num_nodes=nodes, hosts=hosts, gpus=[gpu])
    return [*lines, *table, *footer(table)], table, facts


def _collectives() -> None:
    """Each collective; without a check of the data, as `-c 0`; on two GPUs, where factors are 1 or a half."""
    for pattern in ("allreduce", "allgather", "alltoall", "broadcast", "reduce", "reducescatter", "sendrecv"):
        lines, _, wanted = whole(pattern, 8, 1, A100, 232.0 / FACTORS[pattern](8))
        add(f"{pattern}_8_gpus", lines, wanted)
    for pattern in ("allreduce", "allgather", "broadcast", "reducescatter"):
        lines, _, wanted = whole(pattern, 8, 1, A100, 228.0 / FACTORS[pattern](8), wrong="N/A")
        # Without a check, alltoall prints the same rows as allgather.
        add(f"{pattern}_unchecked", lines, wanted | ({"pattern": None} if pattern == "allgather" else {}))
    for pattern in ("allreduce", "allgather", "broadcast", "reduce"):
        lines, _, wanted = whole(pattern, 2, 1, "NVIDIA GeForce RTX 4090", 3.8)
        add(f"{pattern}_2_gpus", lines, wanted)
    lines, _, wanted = whole("allreduce", 16, 2, H100, 250.0)
    add("allreduce_2_nodes", lines, wanted)
    lines, _, wanted = whole("allreduce", 128, 16, V100, 9.5, SMALL)
    add("allreduce_16_nodes_small_sizes", lines, wanted)
    lines, _, wanted = whole("allreduce", 16, 2, "NVIDIA H200", 26.3)
    add("allreduce_2_nodes_one_nic", lines, wanted)


def _versions() -> None:
    """As before 2.13: no root of a reduction, no group, errors in place of counts. As since 2.17: a version."""
    for ranks, nodes in ((4, 1), (16, 2)):
        table = [row("allreduce", size, ranks, "3e-08", rate=20.0, old=True) for size in LARGE]
        lines = [head(LARGE, 2).replace("agg iters: 1 ", "").replace(" graph: 0", ""), "#", "# Using devices"]
        lines += [*devices(ranks, nodes, V100, ""), "#", OLD_TITLE, UNITS, *table, *footer(table)]
        hosts = [f"n{node}" for node in range(nodes)]
        facts = {"pattern": "allreduce", "num_ranks": ranks, "num_nodes": nodes, "hosts": hosts, "gpus": [V100]}
        add(f"old_{nodes}_nodes", lines, wanted_of(table, old=True, **facts))
    lines, _, wanted = whole("allgather", 16, 2, H100, 180.0)
    named = ["# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22907"]
    named += ["# Collective test starting: all_gather_perf", *lines, "# Collective test concluded: all_gather_perf"]
    add("named_by_its_banner", named, wanted | {"tool_version": "2.17.9"})


def _launchers() -> None:
    """Tags, labels and indentation of launchers; NCCL's messages between rows, before them, and inside."""
    lines, _, wanted = whole("allreduce", 16, 2, A100, 23.0)
    message = "n0:31:38 [0] NCCL INFO Channel 03/0 : 3[3] -> 4[4] via P2P/CUMEM"
    add("tagged", [f"[1,0]<stdout>:{line}" for line in lines], wanted)
    add("labelled", [f" 0: {line}" for line in lines], wanted)
    add("indented_and_tagged", [f"   [1,0]<stdout>:{line}" for line in lines], wanted)
    add("messages_between_rows", [text for line in lines for text in (line, message)], wanted)
    tagged = [text for line in lines for text in (f"[1,0]<stdout>:{line}", f"[1,5]<stdout>:{message}")]
    add("tagged_messages_between_rows", tagged, wanted)
    warning = "[1700000000.123456] [n0:144167:0] ucp_context.c:1437 UCX  WARN  versions do not match"
    add("warnings_before", [warning] * 4 + lines, wanted)
    lines, table, wanted = whole("allreduce", 2, 1, "NVIDIA A100 80GB PCIe", 215.0)
    split = []
    for line in lines:
        if line in table:
            split += [f"{line[:50]}{INFO} AllReduce: opCount 0", f"{INFO} more", f"{line[50:83]}{INFO} a", line[83:]]
        else:
            split.append(line)
    add("rows_split_by_messages", split, wanted)
    stderr = ["[1,0]<stderr>:no authorization protocol specified", "[1,0]<stderr>:"]
    lines, _, wanted = whole("allreduce", 2, 1, "NVIDIA GeForce RTX 5090", 2.2)
    shared = [line.replace("device  1", "device  0").replace("0x11", "0x10") for line in lines]
    add("two_ranks_on_one_gpu", stderr + [f"[1,0]<stdout>:{line}" for line in shared], wanted)


def _parts() -> None:
    """Logs of which parts are missing: the banner, all devices but the last, rows, the end."""
    lines, table, wanted = whole("allreduce", 32, 4, H100, 180.0)
    bare = wanted_of(table, pattern="allreduce", num_ranks=32)
    add("rows_alone", table, bare)
    add("without_a_banner", [TITLE, UNITS, *table, *footer(table)], bare)
    add("without_an_end", lines[: lines.index(table[-1]) + 1], wanted)
    last = devices(32, 4, H100)[-1]
    add("last_device_alone", [last, TITLE, *table, *footer(table)], bare | {"hosts": ["n3"], "gpus": [H100]})
    other = devices(64, 8, H100)[-1]
    unknown = bare | {"num_ranks": None, "hosts": ["n7"], "gpus": [H100]}
    add("last_device_of_more_ranks", [other, TITLE, *table, *footer(table)], unknown)

    def cut(kept: Sequence[str], **facts: Any) -> dict[str, Any]:
        place = {"pattern": "allreduce", "num_ranks": 32, "num_nodes": 4, "hosts": wanted["hosts"], "gpus": [H100]}
        return wanted_of(kept, status="truncated", **(place | facts))

    start = lines.index(table[0])
    kept = [table[0], *table[-4:]]
    elided = [*lines[:start], kept[0], "...", *kept[1:], *footer(table)]
    lost = [elided.index("...") + 1, len(elided) - 1]
    add("rows_left_out", elided, cut(kept, failure="not-the-average", remark_lines=lost))
    comment = "# ... (rows left out) ..."
    nothing = [*lines[:start], comment, *footer(table)]
    unnamed = {"pattern": None, "remark_lines": [start + 1], "failure": "rows-left-out"}
    add("all_rows_left_out", nothing, cut([], **unnamed))
    add("ends_before_rows", lines[:start], cut([], pattern=None, failure="ends-before-rows"))
    half_row = [*lines[: start + 3], table[3][:75]]
    early = cut(table[:3], failure="whole-row-cut", remark_lines=[start + 4])
    add("ends_in_a_row", half_row, early)
    add("ends_early", lines[: start + 6], cut(table[:6], failure="ends-early", remark_lines=[start + 6]))
    limit = "# Reducing maxBytes to 1500000000 due to memory limitation"
    fewer = table[:11]
    reduced = [*lines[: start - 2], limit, TITLE, UNITS, *fewer, *footer(fewer)]
    facts = cut(fewer, remark_lines=[start - 1])
    add("less_memory", reduced, facts | {"status": "ok"})


def _failures() -> None:
    """A crash, wrong data, and a program that is named by its command alone."""
    lines, table, _ = whole("allreduce", 2, 1, "NVIDIA GeForce RTX 3090", 5.0)
    start = lines.index(table[0])
    crash = [
        "n0: Test NCCL failure all_reduce.cu:44 'unhandled cuda error / '",
        " .. n0 pid 31: Test failure common.cu:377",
    ]
    facts: dict[str, Any] = {
        "num_ranks": 2,
        "num_nodes": 1,
        "hosts": ["n0"],
        "gpus": ["NVIDIA GeForce RTX 3090"],
        "status": "failed",
    }
    add("crash", [*lines[:start], *crash], wanted_of([], pattern="allreduce", failure="tool-error", **facts))
    table = []
    for power in range(12, 31, 2):
        wrong = (1 << power) // 4 * 4
        printed = str(wrong) if wrong < 1e6 else f"{wrong:.6g}"
        table.append(row("allreduce", 1 << power, 4, printed, rate=7.0))
    facts = {"pattern": "allreduce", "num_ranks": 4, "status": "failed", "failure": "out-of-bounds"}
    add("wrong_data", [*table, *footer(table, 20)], wanted_of(table, **facts))
    lines, table, wanted = whole("sendrecv", 8, 1, A100, 220.0)
    command = ["$ ./build/sendrecv_perf -b 1M -e 4G -f 2 -g 8", TITLE, UNITS, *table]
    add("named_by_its_command", command, wanted | {"hosts": [], "gpus": []})
    table = [row("allreduce", 1 << 28, 16, "0", word, width, 90.0) for word, (_, width) in TYPES.items()]
    table += [row("allreduce", 1 << 30, 16, "0", word, width, 90.0) for word, (_, width) in TYPES.items()]
    add("all_types", [TITLE, UNITS, *table], wanted_of(table, pattern="allreduce", num_ranks=16))


_collectives()
_versions()
_launchers()
_parts()
_failures()
