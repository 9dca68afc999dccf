"""Size and time of the page of a run of 512 x 512 pairs: at most 0.8 MB, and drawn within 1 s in Chromium.

    python -m benchmarks.page_of_many_pairs [SIDE] [FILE]

Without Chromium or Playwright only the size and the time to write the page are measured.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.core.record import Header
from bench.page import page
from bench.page.content import PageContent
from bench.results.document import DOCUMENT_SCHEMA, Document, Summary
from bench.results.headline import NamedRun

MOST_MB, MOST_S = 0.8, 1.0
SIZE = 1 << 26


def document(side: int) -> Document:
    """Return pairs with 2 % of noise and one host whose links are slow."""
    header = Header(
        "pairs-nccl", ("pairs",), "pairs", "nccl", "float32", "", None, "one-way", "pairs", side, side // 8, 8,
        "device", False, "2026-01-02T03:04:05+00:00", links={},
        ranks=tuple({"rank": rank, "host": f"node{rank // 8:03d}"} for rank in range(side)),
    )  # fmt: skip
    given: dict[str, Any] = dict.fromkeys(Summary.__dataclass_fields__)
    given |= {
        "job": "pairs-nccl", "pattern": "pairs", "transport": "nccl", "mode": "pipelined", "direction": "one-way",
        "in_place": False, "requested_bytes": SIZE, "also_requested_bytes": (), "payload_bytes": SIZE, "num_ranks": 2,
        "num_nodes": 2, "num_samples": 20, "verified": True, "modelled": False, "topology": "pairs", "flags": (),
        "slowest_counts": (), "compat": {}, "imported": False, "starved": (), "group": "", "num_wrong": 0,
    }  # fmt: skip
    template = Summary(**given)
    noise = np.random.default_rng(7).lognormal(0, 0.02, (side, side))
    noise[side // 2 : side // 2 + 8] *= 1.4
    rows = []
    for src in range(side):
        for dst in range(side):
            if src != dst:
                median = SIZE / 45e9 * float(noise[src, dst])
                rate, group = SIZE / median, f"{src}-{dst}"
                row = replace(template, src=src, dst=dst, group=group, median_s=median)
                rows.append(replace(row, algbw_bytes_per_s=rate, busbw_bytes_per_s=rate))
    return Document(DOCUMENT_SCHEMA, {"pairs-nccl": header}, tuple(rows))


def seconds_to_draw(file: Path, chromium: str) -> tuple[float, float]:
    """Return (seconds from the request to the drawn map, script memory in MB) in a fresh browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page()
        begin = time.perf_counter()
        view.goto(file.as_uri())
        view.wait_for_selector("canvas[data-drawn]")
        taken = time.perf_counter() - begin
        memory = view.evaluate("performance.memory.usedJSHeapSize") / 1e6
        browser.close()
    return taken, memory


def main(side: int, file: Path) -> int:
    """Measure and print; the exit code is 1 if the page is too large or too slow."""
    made = document(side)
    begin = time.perf_counter()
    html = page.html(PageContent(made, NamedRun("pairs")))
    print(f"{side} x {side} pairs: page written in {time.perf_counter() - begin:.1f} s")
    file.write_text(html, encoding="utf-8")
    megabytes = file.stat().st_size / 1e6
    print(f"size {megabytes:.2f} MB (at most {MOST_MB})")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium: the time to draw was not measured")
        return int(megabytes > MOST_MB)
    runs = [seconds_to_draw(file, chromium) for _ in range(3)]
    taken, memory = min(runs)
    print(f"drawn in {', '.join(f'{each:.2f}' for each, _ in runs)} s (at most {MOST_S}), {memory:.0f} MB of memory")
    return int(megabytes > MOST_MB or taken > MOST_S)


if __name__ == "__main__":
    default = Path(tempfile.gettempdir()) / "page_of_many_pairs.html"
    words = sys.argv[1:]
    sys.exit(main(int(words[0]) if words else 512, Path(words[1]) if words[1:] else default))
