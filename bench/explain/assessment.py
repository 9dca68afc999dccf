"""Where a result stands, in one word, and why: beside what others reached on alike links, else beside its bound."""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.links import Bound
from bench.core.log_traits import log_traits
from bench.core.units import format_bytes, format_rate
from bench.explain.evidence import NIC_RATES, RunEvidence, busbw
from bench.explain.like_sizes import all_beside
from bench.hardware.bounds import COPIES_OF_ONE_GPU
from bench.hardware.catalogue import gpu
from bench.hardware.machine import LogMachine
from bench.hardware.reference import best_of_each, limits
from bench.logs.foreign import ForeignRow

LIKE = "like the only known result"  # which is itself far below its bound: nobody knows what is normal
NORMAL, LOW, FAR, ABOVE, UNJUDGED = "normal", "low", "far too low", "above what is possible", "can not be judged"
# Of what others reached: versions, drivers and years differ by so much.
_NORMAL_OF_OTHERS, _LOW_OF_OTHERS = 0.85, 0.5
# Of a bound, where nobody is there to compare with: rings of GPUs reach 0.7 to 0.8 of a port, NICs 0.65 to 0.95.
_NORMAL_OF_BOUND, _LOW_OF_BOUND = 0.65, 0.35
_NORMAL_OF_RING = 0.75  # of NICs round a ring: 0.84 and 0.94 are known (a3-ultragpu-8g, a3-megagpu-8g)
TOO_MANY = 1.5  # times the best that others reached: something is not what it is taken for, or others were held back
_RING = "network, round a ring"
_NETWORK = ("network", _RING)  # references that say what to expect, as no other way is taken
_MAY_BE = 0.15  # a machine on which others came as near is one that the user may try


@dataclass(frozen=True, slots=True)
class Assessment:
    """One of the words, a sentence that says why, and the ratio that it rests on (None: none)."""

    word: str
    sentence: str
    ratio: float | None = None


def stand(seen: RunEvidence) -> Assessment:
    """The verdict on one run of rows."""
    why_not = _why_not(seen)
    if why_not is not None:
        return Assessment(UNJUDGED, why_not)
    if seen.above:
        return _above(*seen.above[0])
    if seen.over_nics and seen.machine.links is not None and not seen.nics_known:
        return _depends(seen)
    return _beside_others(seen) or _beside_bound(seen)


def _why_not(seen: RunEvidence) -> str | None:
    """Why these rows can not be judged at all; None where they may be."""
    if seen.num_wrong:
        return "some of the data that arrived were wrong, so that no time or bandwidth counts."
    if seen.rows and seen.num_ranks is None:
        return "the log does not tell how many ranks there were: say so with --num-ranks."
    if seen.misfit:
        return f"{seen.misfit}."
    if seen.num_ranks == 1 and seen.run.pattern not in COPIES_OF_ONE_GPU:
        return "with one rank nothing crosses a link."
    if seen.best is None:
        return "no row has a bandwidth."
    if seen.modelled:
        return "these rows are modelled: nothing was measured."
    if shared := seen.hint("shared"):
        return f"ranks share a GPU ({shared.value}, line {shared.line}): what they exchange may cross no link at all."
    return contradiction(seen.machine, seen.other_gpus)


def contradiction(machine: LogMachine, others: tuple[str, ...]) -> str | None:
    """Why a machine that the user named is not the log's; None where nothing says so."""
    if not others:
        return None
    return (
        f"{machine.instance} has {machine.gpu}, and the log names {', '.join(others)}: it is another machine. Leave "
        "--instance out, or name the right one."
    )


def _above(row: ForeignRow, bound: Bound) -> Assessment:
    """A figure that can not be."""
    ratio = busbw(row) / bound.bytes_per_s
    return Assessment(
        ABOVE,
        f"{format_rate(busbw(row))} at {format_bytes(row.payload_bytes or 0)} is {ratio - 1:.0%} above the hard bound "
        f"{bound.name} ({format_rate(bound.bytes_per_s)}): {bound.why}. The figure, the number of ranks or the machine "
        "is not what it is taken for.",
        ratio,
    )


def _depends(seen: RunEvidence) -> Assessment:
    """Across nodes of which the NICs are not known: what others reached depends on theirs, however many they are."""
    best = seen.best
    assert best is not None
    known = {
        each.network_bytes_per_s: each
        for each in reversed(seen.references)
        if each.limited is None and each.network_bytes_per_s
    }
    told = ", ".join(
        f"{format_rate(each.best[1])} with {format_rate(network)} of NICs per node ({each.instance or each.gpu})"
        for network, each in sorted(known.items(), reverse=True)
    )
    said = f"what its NICs carry is not known, and {format_rate(busbw(best))} depends on it"
    return Assessment(
        UNJUDGED, f"{said}{f': others reached {told}' if told else ''}. Name the machine with --instance."
    )


def _beside_others(seen: RunEvidence) -> Assessment | None:
    """Against the best that others reached at a like size."""
    found = all_beside(seen)
    best = seen.best
    if not found or best is None:
        return None
    one, ratio, bound = found[0], found[0].ratio, shown(seen)
    word = word_of_others(ratio)
    only = len({(pair.each.source, pair.each.instance, pair.each.note) for pair in found}) == 1
    alike = one.size_bytes == best.payload_bytes or one.ours != busbw(best)
    ours_at = format_bytes(one.size_bytes if alike else best.payload_bytes or 0)
    theirs_at = "there" if alike else f"at {format_bytes(one.size_bytes)}"
    read = "" if one.measured else " by interpolation"
    said = (
        f"{format_rate(one.ours)} at {ours_at} is {ratio:.0%} of "
        f"{'the only result that is known' if only else 'the best that others reached'} with links like these "
        f"({format_rate(one.theirs)} {theirs_at}{read}, {one.each.instance or one.each.gpu}"
        f"{f', {one.each.note}' if one.each.note else ''})"
    )
    said += _of_limit(seen)
    if bound is not None:
        said += f", and {busbw(best) / bound.bytes_per_s:.0%} of the bound by {bound.name}"
    network, wire = seen.network_bytes_per_s, seen.carried_bytes_per_s
    if wire and network and ratio < _NORMAL_OF_OTHERS:
        said += f"; {format_rate(wire)} leave each node each way, {wire / network:.0%} of {format_rate(network)}"
    if seen.over_nics and seen.machine.likely is not None and seen.machine.instance is None:
        said += ", if this machine has the NICs that others with this GPU have"
    reached = busbw(best) / bound.bytes_per_s if bound is not None else 0.0
    if seen.too_short and (word != NORMAL or reached < _normal_of(bound)):
        return Assessment(UNJUDGED, f"{said}; {_short(seen)}.", ratio)
    share = None if bound is None else one.theirs / bound.bytes_per_s
    if word == NORMAL and only and (share is None or share < _normal_of(bound)):
        word = LIKE
        if share is not None:
            said += f". That only result is itself {share:.0%} of the bound, so that nobody knows what is normal"
    elif word == NORMAL and share is not None and share < _normal_of(bound):
        said += f"; what others reached is itself at most {share:.0%} of it"
    if ratio > TOO_MANY:
        said = f"{said}. {too_many(ratio)}"
    return Assessment(word, f"{said}.", ratio)


def too_many(ratio: float) -> str:
    """The warning about a figure far above all others."""
    return (
        f"WARNING: that is {ratio:.1f} times the best known: see whether the machine, the number of ranks and the "
        "sizes are what they are taken for"
    )


def _short(seen: RunEvidence) -> str:
    if seen.rises:
        return f"the sizes are too small: at {format_bytes(seen.largest_bytes)}, the largest, the bandwidth still rises"
    return f"too few sizes, up to {format_bytes(seen.largest_bytes)}, to tell whether the bandwidth still rises"


def _of_limit(seen: RunEvidence) -> str:
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


def _beside_bound(seen: RunEvidence) -> Assessment:
    best, links = seen.best, seen.machine.links
    assert best is not None
    if seen.own and links is None:
        return _own(seen)
    if links is None and log_traits(seen.run.tool).nic_test:
        return _of_nic(best)
    if links is None:
        return Assessment(
            UNJUDGED, f"the log does not tell which machine it comes from: name it with --instance{_may_be(seen)}."
        )
    if seen.num_nodes is None:
        return Assessment(UNJUDGED, "the log does not tell how many nodes there were: say so with --num-nodes.")
    bound = tightest(seen)
    if bound is None:
        return Assessment(
            UNJUDGED, "there is no bound to set it beside, and nobody's result of this shape is known here."
        )
    share = busbw(best) / bound.bytes_per_s
    what = f"{format_rate(busbw(best))} is {share:.0%} of {bound.name} ({format_rate(bound.bytes_per_s)})"
    if seen.of_hosts:
        said = "this tool times one operation at a time from host memory, and nobody's result of it is known here"
        return Assessment(UNJUDGED, f"{what}; {said}.", share)
    if share < _normal_of(bound) and not seen.over_nics and (cards := _of_cards(seen, what, share)) is not None:
        return cards
    word = _word(share, _normal_of(bound), _LOW_OF_BOUND)
    if word != NORMAL and seen.too_short:
        return Assessment(UNJUDGED, f"{what}, but {_short(seen)}, and nobody's result at this size is known.", share)
    if word != NORMAL and seen.over_nics and seen.num_ranks == seen.num_nodes and (links.num_nics or 1) > 1:
        said = f"how many of its node's {links.num_nics} NICs the one rank there has is not known"
        return Assessment(UNJUDGED, f"{what}, but {said}.", share)
    known = any(each.limited is None for each in seen.references)
    nobody = "nobody's result at this size is known here" if known else "nobody's result of this shape is known here"
    return Assessment(word, f"{what}; {nobody}.", share)


def _of_cards(seen: RunEvidence, what: str, share: float) -> Assessment | None:
    """Of cards in one node, where another way than that of the bound may be theirs; None where that is not so."""
    links, best = seen.machine.links, seen.best
    assert links is not None and best is not None
    if by_wider_bridge(seen.machine, busbw(best)):
        most = gpu(str(seen.machine.gpu)).most_bridged
        said = f"how its bridges join the cards is not known: with one over {most} a pair has 1/{most - 1} of a port"
        return Assessment(UNJUDGED, f"{what}, but {said}.", share)
    if links.peer in ("host", "pcie_p2p", "nvlink_pairs") and 0.06 < share < _LOW_OF_BOUND:
        return Assessment(LOW, f"{what}, as little as cards reach that talk through host memory.", share)
    return None


def by_wider_bridge(machine: LogMachine, rate: float) -> bool:
    """Is it more than PCIe carries, between cards of which one bridge can join more than two?

    How many links a pair has, nobody tells then.
    """
    links = machine.links
    if links is None or links.peer != "nvlink_pairs" or machine.gpu is None or gpu(machine.gpu).most_bridged < 3:
        return False
    return rate > (links.pcie_bytes_per_s or 0.0)


def _may_be(seen: RunEvidence) -> str:
    """The instance types on which others came near, as candidates to try."""
    best, run = seen.best, seen.run
    if best is None or not run.pattern or not seen.num_ranks or seen.of_hosts:
        return ""
    found = best_of_each(run.pattern, seen.num_ranks, seen.num_nodes)
    near = [each for each in found if each.instance and abs(each.best[1] / busbw(best) - 1) <= _MAY_BE]
    told = ", ".join(f"{each.instance} ({format_rate(each.best[1])})" for each in near[:3])
    return f". Others came near on {told}: candidates to try, and no proof" if told else ""


def _of_nic(best: ForeignRow) -> Assessment:
    """Two ends of verbs: beside the NIC of the least rate that can have carried it."""
    rate = best.algbw_bytes_per_s or busbw(best)
    nic = next((each for each in NIC_RATES if rate <= each), None)
    if nic is None or rate < 0.9 * nic:
        return Assessment(
            UNJUDGED, f"{format_rate(rate)} is not near the rate of a NIC that is known here: name the machine."
        )
    share = f"{rate / nic:.0%} of the line rate of {nic * 8e-9:.0f} Gb/s"
    return Assessment(
        NORMAL, f"{format_rate(rate)} is {share}, if that is this NIC's ({format_rate(nic)}).", rate / nic
    )


def _own(seen: RunEvidence) -> Assessment:
    """Our own run on links of which nothing is known but what was calibrated."""
    best, bound = seen.best, seen.bounds[0] if seen.bounds else None
    assert best is not None
    said = (
        "nobody's result on such a machine is known here, and its links are not: give --instance or `links:` to the run"
    )
    if bound is not None:
        share = busbw(best) / bound.bytes_per_s
        said = f"{format_rate(busbw(best))} is {share:.0%} of {bound.name} ({format_rate(bound.bytes_per_s)}); {said}"
    return Assessment(UNJUDGED, f"{said}. Compare it with an earlier run of the same machine: bench compare.")


def tightest(seen: RunEvidence) -> Bound | None:
    """The bound that says most: the tightest hard one, or a tighter reference on the network."""
    hard = [bound for bound in seen.bounds if bound.kind == "hard"]
    network = [bound for bound in seen.bounds if bound.kind == "reference" and bound.name in _NETWORK]
    return min(hard + network, key=lambda bound: bound.bytes_per_s, default=None)


def _normal_of(bound: Bound | None) -> float:
    """The share of a bound from which on a result is normal."""
    return _NORMAL_OF_RING if bound is not None and bound.name == _RING else _NORMAL_OF_BOUND


def shown(seen: RunEvidence) -> Bound | None:
    """The bound to name: without a bridge, where nobody knows whether two cards have one and none is needed."""
    plain = [bound for bound in seen.bounds if bound.name.endswith("without NVLink bridge")]
    return min(plain, key=lambda bound: bound.bytes_per_s) if seen.bridge_unknown else tightest(seen)


def word_of_others(ratio: float) -> str:
    """The word for a share of the best that others reached."""
    return _word(ratio, _NORMAL_OF_OTHERS, _LOW_OF_OTHERS)


def _word(ratio: float, normal: float, low: float) -> str:
    if ratio >= normal:
        return NORMAL
    return LOW if ratio >= low else FAR
