"""Compute max-min fair shares of links, as in TCP and credit-based networks, and the resulting times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def completions(paths: Ints, capacity: Floats, num_bytes: Floats) -> Floats:
    """Return the seconds until each flow has sent its bytes. Shares are recomputed whenever a flow has finished."""
    import numpy as np

    left = np.where((paths < len(capacity) - 1).any(axis=1), num_bytes, 0.0)
    if paths.size < len(capacity):  # with few messages and thousands of links, keep only the links in use
        none = len(capacity) - 1
        used, hops = np.unique(np.append(paths, none), return_inverse=True)
        paths, capacity = hops[:-1].reshape(paths.shape), capacity[used]
    done = np.zeros(len(left))
    live = left > 0
    now = 0.0
    while live.any():
        rates = fair_rates(paths[live], capacity)
        seconds = left[live] / rates
        now += float(seconds.min())
        finished = seconds <= seconds.min() * (1 + 1e-9)
        left[live] = np.where(finished, 0.0, left[live] - rates * seconds.min())
        done[np.flatnonzero(live)[finished]] = now
        live = left > 0
    return done


def fair_rates(paths: Ints, capacity: Floats) -> Floats:
    """Return the max-min fair bytes per second of each flow, by progressive filling.

    `paths`: link ids, an array of shape (flows, hops). The last id has infinite capacity and means "no link".
    `capacity`: bytes per second of each link. All rates grow together until a link is full. From this moment, the rates
        of the flows on this link are fixed, and the other rates continue to grow (Bertsekas and Gallager, Data
        Networks, section 6.5.2).
    """
    import numpy as np

    rates = np.zeros(len(paths))
    left = capacity.copy()
    growing = np.ones(len(paths), dtype=np.bool_)
    while growing.any():
        users = np.bincount(paths[growing].ravel(), minlength=len(left))
        share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        least = share.min()
        full = growing & (share <= least * (1 + 1e-12))[paths].any(axis=1)
        rates[full] = least
        growing &= ~full
        if growing.any():
            taken = np.bincount(paths[full].ravel(), minlength=len(left)) * least
            left = np.maximum(left - taken, 0.0)
    return rates
