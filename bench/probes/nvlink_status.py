"""Read `nvidia-smi nvlink -s` (`--status`): the links of each GPU, as text of all driver versions.

A GPU has a heading, `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)`, and a line for each link, such as `Link 3: 26.562
GB/s`. An inactive link has `<inactive>` instead of the rate. If all links of a GPU are inactive, the driver may print a
single sentence instead of a line for each link. The rate includes line coding and protocol, so it is slightly above the
rate that data can reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.core.inventory import Gpu, Inventory, NvLink

TOLD_BY = "nvidia-smi nvlink -s"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"(?:^|\s)GPU (\d{1,4}): (\S.*?)(?: \(UUID: ?([\w-]+)\)?)?\s*$")
_LINK = re.compile(r"(?:^|\s)Link (\d{1,3}): (?:(\d+(?:\.\d+)?) ([GM])B/s|<?(inactive|active|disabled)>?)\s*$", re.I)
_ALL_INACTIVE = re.compile(r"all links are in-?active", re.I)
_MOST_GPUS, _MOST_LINKS = 1024, 64
_ALL_DOWN = NvLink(0, active=False)  # represents the links of a GPU whose links are all inactive


def is_part(line: str) -> bool:
    """Check whether a line belongs to this format.

    The heading of a GPU is not enough to recognise the format, because `nvidia-smi -L` prints the same heading.
    """
    return _LINK.search(line) is not None or _ALL_INACTIVE.search(line) is not None


def is_heading(line: str) -> bool:
    """Check whether a line is the heading of a GPU."""
    return _GPU.search(line) is not None


def recognises(text: str) -> bool:
    """Check whether a text has the status of a link, or the sentence that all links are inactive."""
    return any(is_part(line) for line in _lines(text))


def inventory(text: str) -> Inventory:
    """Return the GPUs with their links.

    If all links of a GPU are inactive, the text does not list them. For a GPU without listed links, the function
    assumes the largest number of links of any GPU in the text. If a GPU occurs twice, the links of its first occurrence
    are used. Links before the first heading belong to no known GPU, and are reported in `lost`.
    """
    gpus: dict[int, Gpu] = {}
    lost = []
    for heading, lines in _blocks(text):
        if heading is None:
            stray = next((line for line in lines if is_part(line)), None)
            lost += [] if stray is None else [f"a link without its GPU: {stray.strip()}"]
            continue
        number = int(heading[1])
        if len(gpus) < _MOST_GPUS and (number not in gpus or not gpus[number].nvlinks):
            gpus[number] = Gpu(number, heading[2], uuid=heading[3], nvlinks=_nvlinks(lines))
    most = max((len(gpu.nvlinks) for gpu in gpus.values()), default=0)
    found = []
    for _, gpu in sorted(gpus.items()):
        if gpu.nvlinks == (_ALL_DOWN,):
            gpu = replace(gpu, nvlinks=tuple(NvLink(index, active=False) for index in range(most)))
        found.append(gpu)
    return Inventory(tuple(found), lost=tuple(lost))


def _blocks(text: str) -> Iterator[tuple[re.Match[str] | None, list[str]]]:
    """Yield each heading with the lines below it.

    The first pair has no heading and contains the lines before the first heading.
    """
    heading: re.Match[str] | None = None
    lines: list[str] = []
    for line in _lines(text):
        found = _GPU.search(line)
        if found is None:
            lines.append(line)
            continue
        yield heading, lines
        heading, lines = found, []
    yield heading, lines


def _nvlinks(lines: list[str]) -> tuple[NvLink, ...]:
    """Return the links of one GPU, sorted by number. `lines`: the lines below the GPU's heading.

    If the text says that all links are inactive, the result is (_ALL_DOWN,).
    """
    links: dict[int, NvLink] = {}
    for line in lines:
        found = _LINK.search(line)
        if found is not None and len(links) < _MOST_LINKS:
            links.setdefault(int(found[1]), _nvlink(found))
        elif not links and _ALL_INACTIVE.search(line):
            return (_ALL_DOWN,)
    return tuple(link for _, link in sorted(links.items()))


def _nvlink(found: re.Match[str]) -> NvLink:
    """Return one link. A line with a rate is an active link."""
    index = int(found[1])
    if found[2]:
        rate = float(found[2]) * (1e9 if found[3].upper() == "G" else 1e6)
        return NvLink(index, active=True, bytes_per_s=rate, rate_from="driver")
    return NvLink(index, active=found[4].lower() == "active")


def _lines(text: str) -> Iterator[str]:
    return (line.rstrip() for line in _COLOUR.sub("", text).splitlines())
