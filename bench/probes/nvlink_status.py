"""`nvidia-smi nvlink -s` (`--status`): the links of each GPU, as text of all driver versions.

A GPU has a heading, `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)`, and a line per link: `Link 3: 26.562 GB/s` with a
rate, `Link 3: <inactive>`. In place of these lines drivers print one sentence if all links are inactive or if there
are none. The rate is raw, before line coding and protocol, so it is a little above the rate that data get.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.core.inventory import Gpu, Inventory, NvLink

TOLD_BY = "nvidia-smi nvlink -s"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"(?:^|\s)GPU (\d{1,4}): (\S.*?)(?: \(UUID: ?([\w-]+)\)?)?\s*$")
_LINK = re.compile(r"(?:^|\s)Link (\d{1,3}): (?:(\d+(?:\.\d+)?) ([GM])B/s|<?(inactive|active|disabled)>?)\s*$", re.I)
_ALL_INACTIVE = re.compile(r"all links are in-?active", re.I)
_MOST_GPUS, _MOST_LINKS = 1024, 64


def is_part(line: str) -> bool:
    """Is this a line of the format? A heading alone proves nothing: `nvidia-smi -L` prints the same."""
    return _LINK.search(line) is not None or _ALL_INACTIVE.search(line) is not None


def is_heading(line: str) -> bool:
    """Is this the heading of a GPU?"""
    return _GPU.search(line) is not None


def recognises(text: str) -> bool:
    """Does this text have the status of a link, or the sentence in place of them?"""
    return any(is_part(line) for line in _lines(text))


def inventory(text: str) -> Inventory:
    """The GPUs with their links. The links of a GPU without active ones are as many as another GPU of the text has.

    `lost` names links without a heading. A GPU described twice keeps its first description.
    """
    gpus: dict[int, Gpu] = {}
    links: dict[int, dict[int, NvLink]] = {}
    inactive: set[int] = set()
    lost = []
    current: int | None = None
    for line in _lines(text):
        if heading := _GPU.search(line):
            current = int(heading[1])
            if current in gpus or len(gpus) >= _MOST_GPUS:
                current = current if current in gpus and not links[current] else None
                continue
            gpus[current] = Gpu(current, heading[2], uuid=heading[3])
            links[current] = {}
        elif link := _LINK.search(line):
            if current is None:
                lost += [f"a link without its GPU: {line.strip()}"] if not gpus and not lost else []
            elif len(links[current]) < _MOST_LINKS:
                links[current].setdefault(int(link[1]), _nvlink(link))
        elif current is not None and _ALL_INACTIVE.search(line):
            inactive.add(current)
    most = max((len(found) for found in links.values()), default=0) or 1
    for number in inactive:
        if not links[number]:
            links[number] = {index: NvLink(index, active=False) for index in range(most)}
    found = []
    for number, gpu in sorted(gpus.items()):
        own = tuple(link for _, link in sorted(links[number].items()))
        found.append(Gpu(gpu.index, gpu.name, uuid=gpu.uuid, nvlinks=own))
    return Inventory(tuple(found), lost=tuple(lost))


def _nvlink(found: re.Match[str]) -> NvLink:
    """One link. A line with a rate is an active link."""
    index = int(found[1])
    if found[2]:
        rate = float(found[2]) * (1e9 if found[3].upper() == "G" else 1e6)
        return NvLink(index, active=True, bytes_per_s=rate, rate_from="driver")
    return NvLink(index, active=found[4].lower() == "active")


def _lines(text: str) -> Iterator[str]:
    return (line.rstrip() for line in _COLOUR.sub("", text).splitlines())
