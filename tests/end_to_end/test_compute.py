"""Matrix products by real ranks, alone and beside a collective; what cannot run is skipped with a code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.core.skips import SkipCode
from bench.rank.messages import RankSkip
from bench.store import jsonl
from tests.facts import holds

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]
QUICK = ("--transport", "gloo", "--max-seconds", "20ms")


@pytest.mark.torch
@pytest.mark.usefixtures("torchrun")
def test_a_product_has_a_rate_but_no_bandwidth(run: Run) -> None:
    words = ("--sizes", "64K", "-d", "bfloat16", "--mode", "pipelined", "--format", "json")
    ran = run(sys.executable, "-m", "bench.gpu_baseline", *QUICK, *words)
    assert ran.code == 0, ran.err
    (row,) = json.loads(ran.out)["summaries"]
    assert (row["group"], row["num_ranks"], row["verified"]) == ("group0", 1, True)
    assert row["payload_bytes"] == 128 * 128 * 2  # 181 rows would fit, 128 are whole tiles
    assert row["flops_per_s"] == pytest.approx(2 * 128**3 / row["median_s"])
    assert (row["algbw_bytes_per_s"], row["busbw_bytes_per_s"], row["peak_flops_per_s"]) == (None, None, None)


@pytest.mark.slow
@pytest.mark.torch
def test_an_allreduce_and_products_are_timed_alone_and_together(run: Run, torchrun: Start, tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    words = ("--sizes", "64K", "--mode", "isolated", "-n", "21", "--records", str(file))
    ran = run(*torchrun(2), "-m", "bench.overlap", *QUICK, *words)
    assert ran.code == 0, ran.err
    (record,) = jsonl.read(file).attempts[0].records
    told = record.overlap
    assert told is not None and record.samples is not None and record.verified is True
    assert (told.dtype, told.samples_per_block) == ("float32", 1)
    assert told.order % 64 == 0 and 1 <= told.num_counted <= told.num_products
    for side in (told.alone_s, told.product_alone_s, told.product_s, record.samples.seconds):
        assert len(side) == 21 and min(side) > 0
    assert holds(ran.out, "# allreduce", "gloo,", "2 ranks,", "isolated,", "float32")


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("pattern", "code"), [("gpu_baseline", SkipCode.DEVICE_WORK), ("overlap", RankSkip.NO_OVERLAP)]
)
def test_a_library_that_only_sends_messages_skips_products(run: Run, mpirun: Start, pattern: str, code: str) -> None:
    ran = run(*mpirun(2), "-m", f"bench.{pattern}", "--transport", "mpi", "--sizes", "64K", "--format", "json")
    assert ran.code == 3 and {row["code"] for row in json.loads(ran.out)["skipped"]} == {code}
    assert "Traceback" not in ran.err
