"""Build the bounds that figures and the page of a run draw beside curves.

A bound is drawn for the curves that it limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.core.units import format_size
from bench.results import curves
from bench.results.curves import CurveLabel, CurvePoint

_SAME = {"reference": 0.05}  # kinds whose rates are measured; rates closer than this share are one line
_SAME_RATE = 0.001  # for the other kinds, which are computed
_SAME_LINE = 0.02  # lines closer than this share look like one line
_MOST_OWNERS = 2  # curves that the name of a bound names
_ORDER = ("hard", "reference", "traffic")


@dataclass(frozen=True, slots=True)
class BoundCurve:
    """One bound at increasing sizes. Rates are in GB/s.

    `whose`: the settings of the curves that have this bound, or "" if all curves of the picture have this bound.
    `where`: the sizes for which the bound is valid, such as `up to 4K`, or "" if it is valid for all sizes.
    `whole`: whether the line of a constant bound may cross the whole picture.
    """

    name: str
    kind: str
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    whose: str = ""
    where: str = ""
    whole: bool = True

    @property
    def flat(self) -> bool:
        """Whether the bound has the same rate at every size, apart from rounding."""
        return max(self.rates) < 1.001 * min(self.rates)

    def __str__(self) -> str:
        rates = f"{max(self.rates):.4g}" if self.flat else f"{min(self.rates):.3g} to {max(self.rates):.3g}"
        return f"{', '.join(filter(None, (self.name, self.whose, self.where)))}: {rates} GB/s ({self.kind})"


@dataclass(slots=True)
class _Piece:
    """One bound of one or more curves: its rate at each size, and the labels of the curves."""

    name: str
    kind: str
    rates: dict[int, float]
    owners: list[CurveLabel]

    def agrees(self, other: _Piece) -> bool:
        """Check whether two bounds have the same name, the same kind and nearly the same rates."""
        if (self.name, self.kind) != (other.name, other.kind):
            return False
        tolerance = _SAME.get(self.kind, _SAME_RATE)
        common = self.rates.keys() & other.rates.keys()
        if common:
            return all(_close(self.rates[size], other.rates[size], tolerance) for size in common)
        every = [*self.rates.values(), *other.rates.values()]
        return _close(min(every), max(every), tolerance)


def bound_curves(lines: Mapping[CurveLabel, Sequence[CurvePoint]]) -> list[BoundCurve]:
    """Return the bounds of one picture's curves. Hard bounds come first, then references, then traffic bounds.

    If several curves have equal bounds, the picture shows these bounds as one line. A traffic bound is valid only for
    the sizes at which the library uses one algorithm. There is therefore a separate line for each algorithm. A traffic
    bound is not shown if its line coincides with the line of a hard bound of the same curves.
    """
    pieces: list[_Piece] = []
    for label, points in lines.items():
        for piece in _pieces(label, points):
            same = next((other for other in pieces if other.agrees(piece)), None)
            if same is None:
                pieces.append(piece)
                continue
            same.rates = {
                size: max(each.get(size, 0.0) for each in (same.rates, piece.rates))
                for size in same.rates.keys() | piece.rates.keys()
            }
            same.owners += [label] * (label not in same.owners)
    hard = [piece for piece in pieces if piece.kind == "hard"]
    shown = [piece for piece in pieces if piece.kind != "traffic" or not any(_hides(each, piece) for each in hard)]
    shown.sort(key=lambda piece: _ORDER.index(piece.kind) if piece.kind in _ORDER else len(_ORDER))
    return [_curve(piece, lines) for piece in shown]


def _pieces(label: CurveLabel, points: Sequence[CurvePoint]) -> list[_Piece]:
    rows = [point.first for point in points if point.first.bound_name and point.first.bound_bytes_per_s]
    found = []
    for (name, kind, _), own in curves.by(
        rows, lambda row: (row.bound_name, row.bound_kind, row.algorithm if row.bound_kind == "traffic" else None)
    ).items():
        found.append(
            _Piece(name, kind, {row.payload_bytes: (row.bound_bytes_per_s or 0.0) / 1e9 for row in own}, [label])
        )
    return found


def _close(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(one, other)


def _hides(hard: _Piece, piece: _Piece) -> bool:
    """Check whether the line of a bound coincides with the line of a hard bound of the same curves."""
    rate = max(hard.rates.values())
    return set(piece.owners) <= set(hard.owners) and all(
        _close(rate, each, _SAME_LINE) for each in piece.rates.values()
    )


def _curve(piece: _Piece, lines: Mapping[CurveLabel, Sequence[CurvePoint]]) -> BoundCurve:
    every = {point.payload_bytes for points in lines.values() for point in points}
    own = {point.payload_bytes for label in piece.owners for point in lines[label]}
    rates = piece.rates
    if piece.kind == "hard" and _close(min(rates.values()), max(rates.values()), _SAME_RATE):
        rates = dict.fromkeys(own, max(rates.values()))  # another bound is tighter at the other sizes
    sizes = sorted(rates)
    where = _where(sizes, min(own), max(own))
    whose = "" if set(piece.owners) == set(lines) else _whose(piece.owners, list(lines))
    whole = sizes[0] == min(every) and sizes[-1] == max(every)
    return BoundCurve(piece.name, piece.kind, tuple(sizes), tuple(rates[size] for size in sizes), whose, where, whole)


def _where(sizes: Sequence[int], smallest: int, largest: int) -> str:
    """Return a text that names the sizes for which a bound is valid, or "" if it is valid for all sizes."""
    first, last = format_size(sizes[0]), format_size(sizes[-1])
    if sizes[0] == smallest and sizes[-1] == largest:
        return ""
    if first == last:
        return f"at {first}"
    if sizes[0] == smallest:
        return f"up to {last}"
    return f"from {first}" if sizes[-1] == largest else f"{first} to {last}"


def _whose(owners: Sequence[CurveLabel], labels: Sequence[CurveLabel]) -> str:
    """Return the settings that distinguish these curves from the other curves of the picture."""
    common = set.intersection(*(set(label.settings) for label in labels))
    words = dict.fromkeys(", ".join(each for each in owner.settings if each not in common) for owner in owners)
    words.pop("", None)
    return " and ".join(words) if len(words) <= _MOST_OWNERS else f"{len(owners)} of {len(labels)} curves"
