"""benchmarks/catalogue_feeds.py proposes what a table says differently, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = """# Instance Types
### `g6e.48xlarge`
 | Label | Value |
 |--|--|
 |karpenter.k8s.aws/instance-cpu|192|
 |karpenter.k8s.aws/instance-gpu-count|8|
 |karpenter.k8s.aws/instance-network-bandwidth|{network}|
 |vpc.amazonaws.com/efa|4|
### `m5.large`
 |karpenter.k8s.aws/instance-cpu|2|
"""


@pytest.mark.parametrize(("network", "code"), [("400000", 0), ("300000", 1)])
def test_only_what_differs_is_proposed_with_its_source(tmp_path: Path, network: str, code: int) -> None:
    table = tmp_path / "types.md"
    table.write_text(PAGE.replace("{network}", network))
    command = [sys.executable, "benchmarks/catalogue_feeds.py", "--karpenter-aws", str(table), "--date", "2026-08-21"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    if code:
        assert done.stdout.split("\n")[:-1] == [
            "@@ g6e.48xlarge @@ types.md, 2026-08-21",
            "-gbit_per_s: 400.0",
            "+gbit_per_s: 300.0",
        ]
