"""Where a result stands, in one word, and why: beside what others reached on alike links, else beside its bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.analysis._explain_seen import LARGE_BYTES, NIC_RATES, Seen, busbw
from bench.core.foreign import Row
from bench.core.record import Bound
from bench.core.units import format_bytes, format_rate
from bench.hardware.reference import Reference, limits

NORMAL, LOW, FAR, ABOVE, UNJUDGED = "normal", "low", "far too low", "above what is possible", "can not be judged"
# Of what others reached: versions, drivers and years differ by so much.
_NORMAL_OF_OTHERS, _LOW_OF_OTHERS = 0.85, 0.5
# Of a bound, where nobody is there to compare with: rings of GPUs reach 0.7 to 0.8 of a port, NICs 0.65 to 0.95.
_NORMAL_OF_BOUND, _LOW_OF_BOUND = 0.65, 0.35


@dataclass(frozen=True, slots=True)
class Standing:
    """One of the five words, a sentence that says why, and the ratio that it rests on (None: none)."""

    word: str
    sentence: str
    ratio: float | None = None


def stand(seen: Seen) -> Standing:
    """The verdict on one run of rows."""
    why_not = _why_not(seen)
    if why_not is not None:
        return Standing(UNJUDGED, why_not)
    if seen.above:
        return _above(*seen.above[0])
    good = [each for each in seen.references if each.limited is None]
    if seen.over_nics and seen.network_bytes_per_s is None and seen.num_ranks != seen.num_nodes:
        networks = {each.network_bytes_per_s: each for each in reversed(good) if each.network_bytes_per_s}
        if len(networks) > 1:
            return _depends(seen, networks)
    return _beside_others(seen, good) or _beside_bound(seen)


def _why_not(seen: Seen) -> str | None:
    """Why these rows can not be judged at all; None where they may be."""
    if seen.num_wrong:
        return "some of the data that arrived were wrong, so that no time or bandwidth counts."
    if seen.rows and seen.num_ranks is None:
        return "the log does not tell how many ranks there were: say so with --num-ranks."
    if seen.best is None:
        return "no row has a bandwidth."
    if seen.modelled:
        return "these rows are modelled: nothing was measured."
    return "with one rank nothing crosses a link." if seen.num_ranks == 1 else None


def _above(row: Row, bound: Bound) -> Standing:
    """A figure that can not be."""
    ratio = busbw(row) / bound.bytes_per_s
    return Standing(
        ABOVE,
        f"{format_rate(busbw(row))} at {format_bytes(row.payload_bytes or 0)} is {ratio - 1:.0%} above the hard bound "
        f"{bound.name} ({format_rate(bound.bytes_per_s)}): {bound.why}. The figure, the number of ranks or the machine "
        "is not what it is taken for.",
        ratio,
    )


def _depends(seen: Seen, networks: Mapping[float, Reference]) -> Standing:
    """Across nodes of which the NICs are not known."""
    best = seen.best
    assert best is not None
    told = ", ".join(
        f"{format_rate(each.best[1])} with {format_rate(network)} of NICs per node ({each.instance or each.gpu})"
        for network, each in sorted(networks.items(), reverse=True)
    )
    said = f"what its NICs carry is not known, and {format_rate(busbw(best))} depends on it: others reached {told}"
    return Standing(UNJUDGED, f"{said}. Name the machine with --instance.")


def _beside_others(seen: Seen, good: list[Reference]) -> Standing | None:
    """Against the best that others reached, at the same size where both have one."""
    pairs = [pair for each in good if (pair := _same_size(seen, each)) is not None]
    if not pairs:
        return None
    best = seen.best
    assert best is not None
    row, each, size, rate = max(pairs, key=lambda pair: pair[3])
    if len(pairs) > 1 and best.payload_bytes:  # the size nearest to ours says most
        nearest = [pair for pair in pairs if pair[2] / 2 <= best.payload_bytes <= pair[2] * 2]
        row, each, size, rate = max(nearest or pairs, key=lambda pair: pair[3])
    ratio = busbw(row) / rate
    said = (
        f"{format_rate(busbw(row))} at {format_bytes(row.payload_bytes or 0)} is {ratio:.0%} of the best that others "
        f"reached with links like these ({format_rate(rate)} at {format_bytes(size)}, {each.instance or each.gpu}"
        f"{f', {each.note}' if each.note else ''})"
    )
    said += _of_limit(seen)
    bound = tightest(seen)
    if bound is not None:
        said += f", and {busbw(row) / bound.bytes_per_s:.0%} of the bound by {bound.name}"
    network = seen.network_bytes_per_s
    wire = seen.wire_bytes_per_s
    if wire and network and ratio < _NORMAL_OF_OTHERS:
        said += f"; {format_rate(wire)} leave each node each way, {wire / network:.0%} of {format_rate(network)}"
        if seen.machine.instance is None:
            said += ", if this machine has the NICs that others with this GPU have"
    return Standing(_word(ratio, _NORMAL_OF_OTHERS, _LOW_OF_OTHERS), f"{said}.", ratio)


def _of_limit(seen: Seen) -> str:
    """What an acceptance check would say, over a whole node."""
    best = seen.best
    if (
        best is None
        or (best.payload_bytes or 0) < 1 << 30
        or seen.num_nodes != 1
        or seen.num_ranks != 8
        or seen.run.pattern != "allreduce"
    ):
        return ""
    for limit in limits(seen.machine.gpu):
        word = "above" if busbw(best) >= limit.bytes_per_s else "below"
        return f", {word} the {format_rate(limit.bytes_per_s)} that Azure's health checks ask for"
    return ""


def _same_size(seen: Seen, each: Reference) -> tuple[Row, Reference, int, float] | None:
    """Our row and their point to compare: at their best where we have that size, else at our best, else best to best
    where both sizes are large or ours is the larger one."""
    best = seen.best
    assert best is not None and best.payload_bytes
    size, rate = each.best
    same = [row for row in seen.rows if row.payload_bytes and size / 2 <= row.payload_bytes <= size * 2]
    if same:
        return max(same, key=busbw), each, size, rate
    point = each.near(best.payload_bytes)
    if point is not None:
        return best, each, *point
    if best.payload_bytes >= size or seen.flat_from is not None:
        return best, each, size, rate
    return None


def _beside_bound(seen: Seen) -> Standing:
    best, links = seen.best, seen.machine.links
    assert best is not None
    if seen.own and links is None:
        return _own(seen)
    if links is None and seen.run.tool == "perftest":
        return _of_nic(best)
    if links is None:
        return Standing(UNJUDGED, "the log does not tell which machine it comes from: name it with --instance.")
    if seen.num_nodes is None:
        return Standing(UNJUDGED, "the log does not tell how many nodes there were: say so with --num-nodes.")
    bound = tightest(seen)
    if bound is None:
        return Standing(
            UNJUDGED, "there is no bound to set it beside, and nobody's result of this shape is known here."
        )
    share = busbw(best) / bound.bytes_per_s
    what = f"{format_rate(busbw(best))} is {share:.0%} of {bound.name} ({format_rate(bound.bytes_per_s)})"
    if seen.of_hosts:
        said = "this tool times one operation at a time from host memory, and nobody's result of it is known here"
        return Standing(UNJUDGED, f"{what}; {said}.", share)
    if seen.over_nics and seen.network_bytes_per_s is None:
        return Standing(UNJUDGED, f"{what}, but what its NICs carry is not known: name the machine with --instance.")
    if links.peer in ("host", "pcie_p2p", "nvlink_pairs") and 0.06 < share < _LOW_OF_BOUND and not seen.over_nics:
        return Standing(LOW, f"{what}, as little as cards reach that talk through host memory.", share)
    word = _word(share, _NORMAL_OF_BOUND, _LOW_OF_BOUND)
    if word != NORMAL and seen.flat_from is None and seen.largest_bytes < LARGE_BYTES:
        size = format_bytes(seen.largest_bytes)
        return Standing(
            UNJUDGED, f"{what}, but the largest size is {size}, and the bandwidth still rises there.", share
        )
    return Standing(word, f"{what}; nobody's result of this shape is known here.", share)


def _of_nic(best: Row) -> Standing:
    """Two ends of verbs: beside the NIC of the least rate that can have carried it."""
    rate = best.algbw_bytes_per_s or busbw(best)
    nic = next((each for each in NIC_RATES if rate <= each), None)
    if nic is None or rate < 0.9 * nic:
        return Standing(
            UNJUDGED, f"{format_rate(rate)} is not near the rate of a NIC that is known here: name the machine."
        )
    share = f"{rate / nic:.0%} of the line rate of {nic * 8e-9:.0f} Gb/s"
    return Standing(NORMAL, f"{format_rate(rate)} is {share}, if that is this NIC's ({format_rate(nic)}).", rate / nic)


def _own(seen: Seen) -> Standing:
    """Our own run on links of which nothing is known but what was calibrated."""
    best, bound = seen.best, seen.bounds[0] if seen.bounds else None
    assert best is not None
    said = (
        "nobody's result on such a machine is known here, and its links are not: give --instance or `links:` to the run"
    )
    if bound is not None:
        share = busbw(best) / bound.bytes_per_s
        said = f"{format_rate(busbw(best))} is {share:.0%} of {bound.name} ({format_rate(bound.bytes_per_s)}); {said}"
    return Standing(UNJUDGED, f"{said}. Compare it with an earlier run of the same machine: bench compare.")


def tightest(seen: Seen) -> Bound | None:
    """The bound that says most: the tightest hard one, or a tighter reference on the network."""
    hard = [bound for bound in seen.bounds if bound.kind == "hard"]
    network = [bound for bound in seen.bounds if bound.kind == "reference" and bound.name == "network"]
    return min(hard + network, key=lambda bound: bound.bytes_per_s, default=None)


def _word(ratio: float, normal: float, low: float) -> str:
    if ratio >= normal:
        return NORMAL
    return LOW if ratio >= low else FAR
