"""Hosts that read from one server at once: its link is shared, and the rows say what is not known of its cache."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

import bench
from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.netns, pytest.mark.slow]
ROOT = Path(bench.__file__).resolve().parent.parent
PORT = 5055
WAIT = f"""
import time, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:{PORT}/data", method="PUT"), timeout=30).close()
        break
    except OSError:
        time.sleep(0.2)
"""


def test_two_hosts_share_the_link_of_their_server(
    testbed: Callable[..., Testbed], missing: Callable[[str, str], NoReturn]
) -> None:
    moto = shutil.which("moto_server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if moto is None:
        missing("moto", "moto is not installed: pip install 'moto[s3]' flask flask-cors")
    bed = testbed(3)
    server = bed.popen("h2", [moto, "-H", "0.0.0.0", "-p", str(PORT)])
    assert bed.on("h2", [sys.executable, "-c", WAIT], timeout_s=90).code == 0
    bed.slow("h2", "80mbit")
    service = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    service["AWS_ENDPOINT_URL"] = f"http://{bed.address('h2')}:{PORT}"
    cluster = {"nodes": 2, "ranks_per_node": 1, "hosts": ["h0", "h1"], "launcher": "mpirun", "agent": bed.agent}
    (bed.shared / "bench.yaml").write_text(yaml.safe_dump({"clusters": {"bed": {**cluster, "env": service}}}))
    measure = {"pattern": "feed", "folder": "s3://data/set", "sizes": "2M", "record": "256K", "mode": "isolated"}
    scenario = {"max_seconds": 6, "measure": [{**measure, "iterations": 4, "aggressor": "feed:2M"}]}
    (bed.shared / "one.yaml").write_text(yaml.safe_dump(scenario))
    words = ["run", str(bed.shared / "one.yaml"), "--config", str(bed.shared / "bench.yaml"), "--cluster", "bed"]
    more = ["--results", str(bed.shared / "results"), "--no-plots", "--format", "json"]
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **service}
    command = [sys.executable, "-m", "bench", *words, *more]
    ran = bed.on("h0", command, env=variables, cwd=bed.shared, timeout_s=150)
    assert ran.code == 0, ran.err
    document: dict[str, Any] = json.loads(ran.out)
    (fed,), (found,) = document["feeds"], document["interferences"]
    assert (fed["state"], fed["num_ranks"]) == ("client-cold", 1) and fed["device_share"] >= 0.99
    # 10 MB/s less headers; two readers have half each, and how fair TCP is within seconds
    assert 0.5 * 10e6 < fed["payload_bytes"] / found["alone_s"] < 1.1 * 10e6
    assert 1.4 < found["factor"] < 2.7
    (header,) = document["headers"].values()
    assert any("s3://data/set" in note and "client" in note for note in header["notes"])
    listed = f"http://127.0.0.1:{PORT}/data?list-type=2"
    left = bed.on("h2", [sys.executable, "-c", f"import urllib.request as u; print(u.urlopen('{listed}').read())"])
    assert "linkbench-feed" not in left.out
    server.signal(9)
