"""Compute max-min fair times once for each class of equal messages, not for each message.

In a collective, most messages differ only in their ranks. Two messages are in one class if they have the same number of
bytes and cross links of the same kinds. Their links must also carry the same numbers of other messages.

The classes depend on the paths of the messages but not on the rates of the links. Machines with the same paths
therefore have the same classes. The calculation takes the same steps as core/fairness.py, with one value per class
instead of one value per message. The results of this module and of core/fairness.py are bit-identical.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_ROUNDS = 8  # of the refinement; paths that need more form classes of one message


@dataclass(frozen=True, slots=True)
class FlowClasses:
    """The messages of a phase, grouped into classes.

    `num_bytes`: for each class of messages, the bytes of one message. The value is 0 for messages that cross no link.
    `paths`: for each class of messages, the classes of the links that a message crosses.
    `kinds`: for each class of links, the kind of the links, which determines their rate.
    `crossings`: for each class of links, a list of pairs. A pair has a class of messages, and the number of messages of
        this class that cross one link.
    """

    num_bytes: tuple[float, ...]
    paths: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]
    crossings: tuple[tuple[tuple[int, int], ...], ...]

    def completions(self, rates: Sequence[float]) -> list[float]:
        """Return, for each class, the seconds until a message has been sent completely.

        `fairness.completions` does the same calculation for single messages.

        `rates`: for each kind of link, the bytes per second of one link.
        """
        capacity = [rates[kind] for kind in self.kinds]
        left = list(self.num_bytes)
        done, now = [0.0] * len(left), 0.0
        live = [flow for flow, num_bytes in enumerate(left) if num_bytes > 0]
        while live:
            speeds = self._fair_rates(live, capacity)
            seconds = [left[flow] / speeds[flow] for flow in live]
            first = min(seconds)
            now += first
            for flow, taken in zip(live, seconds, strict=True):
                if taken <= first * (1 + 1e-9):
                    left[flow], done[flow] = 0.0, now
                else:
                    left[flow] = left[flow] - speeds[flow] * first
            live = [flow for flow in live if left[flow] > 0]
        return done

    def _fair_rates(self, live: Sequence[int], capacity: Sequence[float]) -> dict[int, float]:
        """Return, for each class, the max-min fair rate of one message in bytes per second.

        `fairness.fair_rates` does the same calculation for single messages.
        """
        left, growing = list(capacity), set(live)
        rates: dict[int, float] = {}
        while growing:
            share = []
            for rate, crossing in zip(left, self.crossings, strict=True):
                users = sum(count for flow, count in crossing if flow in growing)
                share.append(rate / users if users else inf)
            least = min(share)
            full = {flow for flow in growing if any(share[k] <= least * (1 + 1e-12) for k in self.paths[flow])}
            rates |= dict.fromkeys(full, least)
            growing -= full
            if growing:
                for k, crossing in enumerate(self.crossings):
                    taken = sum(count for flow, count in crossing if flow in full) * least
                    left[k] = max(left[k] - taken, 0.0)
        return rates


def classes_of(
    paths: Sequence[Sequence[int]], labels: Sequence[Hashable], kind_of: Sequence[int], num_bytes: Sequence[float]
) -> tuple[FlowClasses, list[int]]:
    """Return the classes of messages, and the class of each message.

    Messages and links are divided into smaller and smaller classes until two conditions are true. All messages of a
    class cross links of the same classes. Two links of the same class carry equally many messages of each class.

    `paths`: the links of each message.
    `labels`: a label for each message. Only messages with equal labels can be in one class. A label contains the number
        of bytes of the message.
    `kind_of`: the kind of each link.
    """
    flows = _numbered(labels)
    used = sorted({link for path in paths for link in path})
    links = dict(zip(used, _numbered(kind_of[link] for link in used), strict=True))
    for _ in range(_MOST_ROUNDS):
        flows = _numbered((flow, *[links[link] for link in path]) for flow, path in zip(flows, paths, strict=True))
        crossing = _crossing(flows, paths)
        refined = _numbered((links[link], *crossing[link]) for link in used)
        if max(refined, default=-1) == max(links.values(), default=-1):
            break  # the same classes of links give the same classes of messages
        links = dict(zip(used, refined, strict=True))
    else:
        flows, links = [*range(len(paths))], {link: number for number, link in enumerate(used)}
        crossing = _crossing(flows, paths)
    first_flow = dict(zip(reversed(flows), reversed(range(len(flows))), strict=True))
    samples = [first_flow[flow] for flow in range(len(first_flow))]
    first_link = {number: link for link, number in reversed(links.items())}
    crossed = [first_link[number] for number in range(len(first_link))]
    found = FlowClasses(
        num_bytes=tuple(num_bytes[place] for place in samples),
        paths=tuple(tuple(links[link] for link in paths[place]) for place in samples),
        kinds=tuple(kind_of[link] for link in crossed),
        crossings=tuple(tuple(Counter(crossing[link]).items()) for link in crossed),
    )
    return found, flows


def regular_class(paths: NDArray[np.int64], kinds: NDArray[np.int64], num_bytes: float) -> FlowClasses | None:
    """Return the class of messages that all have the same bytes and latency, or None if they form several classes.

    The messages form one class if two conditions are true. All messages cross links of the same kinds, in the same
    order. All links of one kind carry the same number of messages, except links that carry none.

    `paths`: the links of each message, an array of shape (messages, hops).
    `kinds`: the kind of each link. The value -1 means "no link".
    """
    import numpy as np

    along = kinds[paths]
    if not (along == along[0]).all():
        return None
    path = [kind for kind in along[0].tolist() if kind >= 0]
    crossings = np.bincount(paths.ravel(), minlength=len(kinds))
    found: dict[int, int] = {}
    for kind in path:
        used = crossings[(kinds == kind) & (crossings > 0)]
        found[kind] = int(used[0])
        if (used != used[0]).any():
            return None
    places = {kind: place for place, kind in enumerate(found)}
    counts = tuple(((0, number),) for number in found.values())
    return FlowClasses((num_bytes,), (tuple(places[kind] for kind in path),), tuple(found), counts)


def _crossing(flows: Sequence[int], paths: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Return, for each link, the class of every message that crosses the link, in ascending order.

    If several messages of a class cross the link, the class is listed once for each of them.
    """
    found: dict[int, list[int]] = {}
    for flow, path in sorted(zip(flows, paths, strict=True)):
        for link in path:
            if link in found:
                found[link].append(flow)
            else:
                found[link] = [flow]
    return found


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Replace each value by a number. Equal values get the same number.

    Each new value gets the next number, beginning with 0.
    """
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
