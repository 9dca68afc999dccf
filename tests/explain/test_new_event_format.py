"""A new format of failure messages is one new file: the example in docs/extending.md, in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.copies import copy_package

ROOT = Path(__file__).resolve().parent.parent.parent
LOG = "starting\nstor[rank 3 on node7]: read of 4096 bytes stalled for 30 s\n[rank1]: ValueError: too late\n"


def test_the_example_names_the_failure(tmp_path: Path) -> None:
    copy_package(tmp_path)
    _, _, section = (
        (ROOT / "docs" / "extending.md").read_text("utf-8").partition("## Add a format of failure messages\n")
    )
    [example] = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    (tmp_path / "bench" / "logs" / "events" / "storage.py").write_text(example, encoding="utf-8")
    (tmp_path / "job.log").write_text(LOG, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "bench", "explain", "job.log", "--format", "json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    [crash] = json.loads(done.stdout)["crashes"]
    assert crash["first"]["code"] == "storage-stalled"
    facts = crash["first"]["facts"]
    assert (facts["rank"], facts["host"], facts["duration_s"], facts["num_bytes"]) == (3, "node7", 30.0, "4096")
    assert [cause["code"] for cause in crash["causes"]] == ["storage-stalled", "python-error"]
