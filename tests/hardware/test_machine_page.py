"""The page about a machine: all of its words in one stored text."""

from __future__ import annotations

from pathlib import Path

from bench.hardware import machine_page
from bench.hardware.health import findings
from bench.hardware.promises import promises
from tests.hardware.machines import hgx, path

GOLDEN = Path(__file__).with_name("golden_machine_page.txt")


def test_the_page_of_a_machine_with_problems() -> None:
    node = hgx(shm_bytes=64 << 20, governor=None, iommu="on", peermem=False, dmabuf=False, max_locked_bytes=65536)
    node["gpus"][3] |= {"pcie_lanes": 8, "mig": True, "throttle": ["sw power cap"]}
    node["paths"][0] = path("gpu0", "gpu1", "NV18", False, "disabled by a setting of the driver")
    found = findings(node, {"torch": "2.13.0+cpu", "cupy-cuda13x": "14.2.0"}, "p5.48xlarge")
    lines = [machine_page.title(["h0", "h1"]), *machine_page.page(node, promises(node, "p5.48xlarge"), found)]
    assert "\n".join(lines) + "\n" == GOLDEN.read_text(encoding="utf-8")
