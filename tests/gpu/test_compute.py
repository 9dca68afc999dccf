"""On a real GPU, one is enough: products are right in every type, and their rates are possible ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.gpu.conftest import PATH, ROOT

# torch may warn as it is imported (of another numpy, of NVML): that is no failure of ours.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]


def document(*words: str) -> Any:
    """What one rank on one GPU prints as JSON."""
    ran = subprocess.run(
        (sys.executable, "-m", "bench.gpu_baseline", "--transport", "nccl", "--format", "json", *words),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATH},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(
    ("words", "size"),
    [
        (("-d", "bfloat16"), "32M"),  # order 4096
        (("-d", "float16"), "32M"),
        (("-d", "float32"), "64M"),
        (("-d", "float32", "--tf32", "1"), "64M"),
        (("-d", "float64"), "32M"),  # order 2048
    ],
    ids=["bf16", "fp16", "fp32", "tf32", "fp64"],
)
def test_products_are_exact_and_no_faster_than_the_data_sheet_allows(words: Any, size: str) -> None:
    (row,) = document("--sizes", size, "--mode", "pipelined", "--max-seconds", "0.5", *words)["summaries"]
    assert row["verified"] is True and row["num_wrong"] == 0
    assert row["flops_per_s"] > 0
    if row["peak_flops_per_s"] is not None:
        # The maker's clock is not the highest one: of an H100, 1.83 of 1.98 GHz.
        assert row["flops_per_s"] < 1.15 * row["peak_flops_per_s"], row["peak_name"]


@pytest.mark.usefixtures("nccl")
def test_tf32_is_another_product_than_float32(torch: Any) -> None:
    """On tensor cores from Ampere on; strict float32 must not go there by itself."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32")
    rates = []
    for tf32 in ("0", "1"):
        words = ("--sizes", "64M", "-d", "float32", "--tf32", tf32, "--mode", "pipelined", "--max-seconds", "0.5")
        (row,) = document(*words)["summaries"]
        rates.append(row["flops_per_s"])
    assert rates[1] != rates[0]
    if "H100" in torch.cuda.get_device_name() or "H200" in torch.cuda.get_device_name():
        assert rates[1] > 2 * rates[0]  # 495 against 67 TFLOP/s


def test_bursts_on_two_streams_are_timed_from_one_moment(torch: Any) -> None:
    """The machinery of `overlap` without a second rank: products beside a copy in the place of the collective."""
    from bench.core.transport import Compiled
    from bench.transports._torch_compute import OnGpu

    matrix = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    product, source = torch.empty_like(matrix), torch.ones(64 << 20, device="cuda", dtype=torch.uint8)
    target = torch.zeros_like(source)
    copies = Compiled([lambda: target.copy_(source)])
    products = Compiled([lambda: torch.mm(matrix, matrix, out=product)])
    beside = OnGpu(torch)
    for _ in range(2):  # the first warms up
        alone = beside.run(torch.cuda.synchronize, copies, 3, None, 0)
        by_itself = beside.run(torch.cuda.synchronize, None, 0, products, 20)
        both = beside.run(torch.cuda.synchronize, copies, 3, products, 20)
    assert alone.collective_s is not None and alone.products_s == ()
    assert by_itself.collective_s is None and len(by_itself.products_s) == 20
    assert list(both.products_s) == sorted(both.products_s) and both.products_s[0] > 0
    assert both.collective_s is not None and both.collective_s > 0
    assert bool((target == 1).all()) and bool((product == 1024).all())
