"""Choose the colours and markers of all figures. A transport or a machine looks the same in all figures.

The trait `look` of a transport is an index into the table of looks. A machine has the hue of its GPU. Machines with the
same GPU have different tones and markers. Machines with different GPUs have different hues and usually different
markers. Bounds and floors are grey. Transports and machines have different hues.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache
from typing import Literal

from bench.core.traits import traits
from bench.hardware import catalogue

# From Okabe and Ito, "Color Universal Design" (2008), without yellow, which is invisible on white. The last two colours
# (dark blue, dark pink) are ours. Markers differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#1F3A5F", "#C2185B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
# For further series of a transport. Pentagons, hexagons and octagons look like circles at the size of a point.
MORE_MARKERS = (">", "d")
Dashes = Literal["-", "--", "-.", ":", ""]
DASHES: tuple[Dashes, ...] = ("-", "--", "-.", ":")
GREY = "#444444"  # for bounds, floors and ideal lines

# The hue of a machine, by the beginning of its GPU's name. The first match is used.
_GPU_HUES = (
    ("A100-SXM4-40GB", "#332288"),
    ("A100", "#AA4499"),
    ("H100", "#117733"),
    ("H200", "#44AA99"),
    ("B200", "#882255"),
    ("B300", "#CC6677"),
    ("GB", "#6B4E9B"),
    ("MI", "#8C6D31"),
    ("V100", "#8B4513"),
)
_OTHER_HUE = "#7F7F00"
_MACHINE_MARKERS = MARKERS[:8]
# Shares of white (above 0) or black (below 0) that are mixed into a hue. The first is the hue itself.
_TONES = (0.0, 0.4, -0.35, 0.6, -0.5, 0.2, -0.2, 0.5)


def of_transport(name: str) -> tuple[str, str]:
    """Return the colour and the marker with which a transport is drawn.

    Imported tools are drawn like an unknown transport.
    """
    index = traits(name).look
    return COLOURS[index], MARKERS[index]


@cache
def of_machine(name: str) -> tuple[str, str]:
    """Return the colour and the marker of an instance type or a GPU.

    The colour of an unknown type is computed from its name.
    """
    gpu_of = {each: catalogue.instance(each).gpu for each in catalogue.instances()}
    gpu_of |= {each: each for each in catalogue.gpus()}
    hue = _hue(gpu_of.get(name, name))
    same = [each for each, gpu in gpu_of.items() if _hue(gpu) == hue]
    place = same.index(name) if name in same else len(same) + zlib.crc32(name.encode())
    turn = place // len(_MACHINE_MARKERS)  # after all markers, the markers repeat with other tones
    first = next((number for number, (_, own) in enumerate(_GPU_HUES) if own == hue), len(_GPU_HUES))
    return tone(hue, place + turn), _MACHINE_MARKERS[(first + place) % len(_MACHINE_MARKERS)]


def of_machines(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the colours and markers of the machines of one figure.

    If two machines would have the same marker, the second machine gets an unused marker.
    """
    found: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys(names):
        colour, marker = of_machine(name)
        taken = {other for _, other in found.values()}
        free = (other for other in (marker, *_MACHINE_MARKERS, *MORE_MARKERS) if other not in taken)
        found[name] = colour, next(free, marker)
    return found


def tone(colour: str, number: int) -> str:
    """Return a lighter or darker tone of a colour, so that series of the same transport differ.

    Tone 0 is the colour itself.
    """
    share = _TONES[number % len(_TONES)]
    towards = 255 if share > 0 or colour == "#000000" else 0  # black has no darker tone
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (towards - part) * abs(share)):02X}" for part in parts)


def _hue(gpu: str) -> str:
    return next((hue for beginning, hue in _GPU_HUES if gpu.startswith(beginning)), _OTHER_HUE)
