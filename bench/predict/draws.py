"""Make Monte Carlo draws of unknown quantities.

Each unknown has a name and one normal variable. All machines use the same draws for the same name. An assumption that
two machines share therefore cancels in their ratio. The draws are stratified, so each of N equally probable parts of
the distribution has one draw. The draws are the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

from bench.predict.predict import CONFIDENCE, Prediction
from bench.results.text import significant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NUM_DRAWS = 4000
_TAIL = (1 - CONFIDENCE) / 2


@dataclass(frozen=True, slots=True)
class DrawnRange:
    """An interval at level CONFIDENCE, with its median."""

    low: float
    middle: float
    high: float

    def text(self, scale: float = 1.0) -> str:
        """Return the low end and the high end with 3 digits, as in `9.31..12.4`.

        If both ends are equal, return one number.
        """
        ends = [significant(end * scale, 3) for end in (self.low, self.high)]
        return ends[0] if ends[0] == ends[1] else "..".join(ends)


class Draws:
    """The draws of all unknown quantities.

    `used`: the draws of each unknown quantity, by name, in the order of first use.
    `effects`: a cache of compute.py, which contains the draws of fitted effects.
    """

    def __init__(self, num: int = NUM_DRAWS) -> None:
        self.num = num
        self.used: dict[str, Floats] = {}
        self._between: dict[tuple[str, float, float], Floats] = {}
        self.effects: dict[int, tuple[object, dict[str, Floats]]] = {}

    @cached_property
    def ones(self) -> Floats:
        """An array of ones, one for each draw."""
        import numpy as np

        return np.ones(self.num)

    @cached_property
    def _tail_normal(self) -> float:
        from scipy.special import ndtri

        return float(-ndtri(_TAIL))

    def normal(self, name: str) -> Floats:
        """Return the standard normal draws of the unknown quantity `name`."""
        if name not in self.used:
            self.used[name] = _normal(name, self.num)
        return self.used[name]

    def shares(self, names: Iterable[str], logs: Floats) -> dict[str, float]:
        """Return the share of the variance of `logs` that each drawn unknown explains.

        The share is the squared correlation between the draws of the unknown and `logs`.

        `logs`: the logarithm of a figure for each draw. The logarithms must not all be equal.
        """
        import numpy as np

        centred = logs - logs.mean()
        scale = float(np.sqrt(centred @ centred))
        found = {}
        for name in names:
            if name in self.used:  # draws of a normal variable have the mean 0 and all the same variance
                found[name] = float(self.used[name] @ centred / (scale * self._length)) ** 2
        return found

    @cached_property
    def _length(self) -> float:
        import numpy as np

        values = _quantiles(self.num)
        return float(np.sqrt(values @ values))

    def between(self, name: str, low: float, high: float) -> Floats:
        """Return draws that are uniform on a logarithmic scale from `low` to `high` (both above zero)."""
        key = name, low, high
        if key not in self._between:
            self._between[key] = low * self.ones if low == high else self._flat(self.normal(name), low, high)
        return self._between[key]

    def linear(self, name: str, low: float, middle: float, high: float) -> Floats:
        """Return draws around `middle`.

        With the probability CONFIDENCE, a draw is between `low` and `high`. All other draws are equal to `low` or to
        `high`.

        `low` and `high` may be zero.
        """
        import numpy as np

        normal = np.clip(self.normal(name) / self._tail_normal, -1, 1)
        drawn: Floats = np.where(normal < 0, middle + normal * (middle - low), middle + normal * (high - middle))
        return drawn

    def predicted(self, name: str, prediction: Prediction) -> Floats:
        """Return random draws of the predicted time in seconds.

        The error of a prediction has two parts. The first part is the same for all predictions from the same pool, so
        its draws have the pool's name. The draws of the second part have the name `name`.
        """
        import numpy as np

        low, middle, high = prediction.low_s, prediction.middle_s, prediction.high_s
        if low >= high:
            return low * self.ones
        normal = self.error_of(name, prediction)
        if middle is None:
            return self._flat(normal, low, high)
        below, above = np.log(middle / low), np.log(high / middle)
        side = np.where(normal < 0, float(below), float(above)) / self._tail_normal
        return np.asarray(np.maximum(middle * np.exp(side * normal), min(prediction.ideal_s, low)))

    def error_of(self, name: str, prediction: Prediction) -> Floats:
        """Return the error of a prediction for each draw, in standard deviations of the prediction.

        The method `predicted` converts this error to seconds.
        """
        import numpy as np

        whole = np.log(prediction.high_s / prediction.low_s) / (2 * self._tail_normal)
        own = min(prediction.spread / whole, 1.0)
        normal = own * self.normal(name)
        if own < 1:
            normal = normal + np.sqrt(1 - own**2) * self.normal(f"pool {prediction.pool}")
        return np.asarray(normal)

    def place(self, normal: Floats) -> Floats:
        """Return the position of each draw of a standard normal variable in an interval.

        The low end has the position -1, the middle has the position 0, and the high end has the position 1.
        """
        import numpy as np

        found: Floats = np.clip(normal / self._tail_normal, -1.0, 1.0)
        return found

    def _flat(self, normal: Floats, low: float, high: float) -> Floats:
        import numpy as np
        from scipy.special import ndtr

        place = np.clip((ndtr(normal) - _TAIL) / CONFIDENCE, 0, 1)
        flat: Floats = low * (high / low) ** place
        return flat


@lru_cache(maxsize=1024)  # several workloads on the same machines have most unknowns in common
def _normal(name: str, num: int) -> Floats:
    """Return stratified draws of a standard normal variable, in an order that the name determines."""
    import numpy as np

    found: Floats = _quantiles(num)[np.random.default_rng(crc32(name.encode())).permutation(num)]
    found.flags.writeable = False
    return found


@cache
def _quantiles(num: int) -> Floats:
    """Divide the standard normal distribution into `num` equally probable parts, and return the middle of each part."""
    import numpy as np
    from scipy.special import ndtri

    found: Floats = ndtri((np.arange(num) + 0.5) / num)
    return found


def range_of(values: Floats) -> DrawnRange:
    """Return the interval of the draws at level CONFIDENCE, and their median."""
    return ranges_of(values[None, :])[0]


def ranges_of(rows: Floats) -> list[DrawnRange]:
    """Return the interval and the median of each row of a two-dimensional array, as `range_of` does."""
    import numpy as np

    last = rows.shape[1] - 1
    places = [share * last for share in (_TAIL, 0.5, 1 - _TAIL)]
    below = [int(place) for place in places]
    order = sorted({min(index + step, last) for index in below for step in (0, 1)})
    parted = np.partition(rows, order, axis=1)  # as np.quantile does, without its checks
    ends = []
    for place, index in zip(places, below, strict=True):
        low, high = parted[:, index], parted[:, min(index + 1, last)]
        ends.append(low + (high - low) * (place - index))
    return [DrawnRange(float(low), float(middle), float(high)) for low, middle, high in zip(*ends, strict=True)]
