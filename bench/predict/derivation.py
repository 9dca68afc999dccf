"""Write the derivation of one machine's figures line by line, so that a reader can check it by hand (`linkbench select
--explain`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from bench.core.links import NVLINK_PEERS
from bench.core.units import format_bytes
from bench.hardware import reference
from bench.hardware.reference import Reference
from bench.predict import cost
from bench.predict.candidate import LOST_TO_OVERLAP, Candidate
from bench.predict.compute import compute
from bench.predict.draws import NUM_DRAWS, DrawnRange, Draws
from bench.predict.layout import Communication, bus_factor
from bench.predict.predict import CONFIDENCE, Prediction
from bench.results import text

_MOST_PUBLISHED = 3
_DRAWN = f"contain {100 * CONFIDENCE:.0f} % of {NUM_DRAWS:,} draws"


def lines(each: Candidate) -> list[str]:
    """Return the whole derivation."""
    sections = (
        (f"{each.name}: {each.instance.gpus} x {each.gpu.name} per node", _machine(each)),
        ("memory of one GPU", _memory(each)),
        (f"compute ({each.bases['compute']})", (*each.compute.lines, _compute(each))),
        ("exchange", _exchange(each)),
        ("exchange by hand", by_hand(each)),
        ("step", _step(each)),
        ("cost", _cost(each)),
        ("remarks", (remark.text for remark in each.remarks)),
    )
    found: list[str] = []
    for title, content in sections:
        inside = [f"  {line}" for line in content]
        if inside:
            found += [title, *inside]
    return found


def _ms(found: DrawnRange) -> str:
    return f"{found.text(1e3)} ms"


def _compute(each: Candidate) -> str:
    """Return the last line of the derivation of the compute time.

    The line states the time that follows from the middle value of each factor. The line also states the interval of the
    random draws.
    """
    found = each.range("compute_s")
    middles = compute(each.layout, each.gpu, Draws(1))  # a single draw is the middle of every unknown
    middle = float(middles.passes_s[0] + middles.update_s[0])
    if found.low == found.high:
        return f"= {_ms(found)} per step"
    by = "with the middle, sqrt(low x high), of each interval:"
    return f"{by} {text.significant(middle * 1e3, 4)} ms per step; {_ms(found)} {_DRAWN}"


def _machine(each: Candidate) -> Iterator[str]:
    found, workload = each.layout, each.layout.workload
    mesh = workload.mesh
    sizes = f"tensor {mesh.tensor} x pipeline {mesh.pipeline} x data {found.data}"
    yield f"{found.num_nodes} node(s) x {found.gpus_per_node} GPUs = {sizes}; {found.samples} samples per step"
    for source in workload.sources:
        yield f"workload: {source}"
    for figure in workload.unverified:
        yield f"workload, not checked in a source: {figure}"
    for link, source in each.instance.links.sources.items():
        verified = "" if each.instance.links.verified.get(link, True) else " (unverified)"
        yield f"links, {link}: {source}{verified}"


def _memory(each: Candidate) -> Iterator[str]:
    for name, num_bytes in each.memory.parts.items():
        yield f"{name} {num_bytes / 1e9:.3g} GB = {each.memory.calculations[name]}"
    has = "unknown" if each.gpu.memory_bytes is None else f"{each.gpu.memory_bytes / 1e9:.3g} GB"
    yield f"total {each.memory.total / 1e9:.3g} GB; the GPU has {has}"


def _exchange(each: Candidate) -> Iterator[str]:
    if not each.exchanges:
        yield "none: no two GPUs share parameters"
    for call, prediction in _grouped(each.exchanges):
        yield f"{call.name}: {call.calls} x {call.collective} of {format_bytes(call.payload_bytes)} among {call.group}"
        yield f"    {call.derivation}; {_HIDDEN[call.when]}"
        yield f"    {_sent(each, call, prediction)}"
        yield f"    one call {_seconds(prediction)}, {prediction.basis}: {'; '.join(prediction.rests_on)}"
    if each.exchanges:
        yield f"all calls, one after the other: {_ms(each.range('exchange_s'))} ({each.bases['exchange']})"


def _grouped(exchanges: Iterable[tuple[Communication, Prediction]]) -> Iterator[tuple[Communication, Prediction]]:
    """Combine calls of the same name into one call.

    The combined call has the mean payload and the first call's prediction.

    Buckets contain whole tensors, so their sizes differ by a few percent.
    """
    by_name: dict[tuple[object, ...], list[tuple[Communication, Prediction]]] = {}
    for call, prediction in exchanges:
        by_name.setdefault((call.name, call.collective, call.group, call.when), []).append((call, prediction))
    for alike in by_name.values():
        first, prediction = alike[0]
        calls = sum(call.calls for call, _ in alike)
        mean = sum(call.calls * call.payload_bytes for call, _ in alike) / calls
        yield replace(first, calls=calls, payload_bytes=mean), prediction


def _sent(each: Candidate, call: Communication, prediction: Prediction) -> str:
    """Return a text with the bytes that each GPU sends: `each GPU sends 2.142 GB per step: ...`.

    With NVLS, the text states the bytes through the GPU's port, which are fewer than the bytes that busbw counts.
    """
    times = f"{call.calls} x {call.payload_bytes:.0f} x"
    if _switched(each, prediction):
        size = call.group.per_node
        return (
            f"each GPU's NVLink port carries {call.switched_bytes / 1e9:.4g} GB per step (NVLS: the switch reduces): "
            f"{times} {1 + 1 / size:.4g} (1 + 1/n, n = {size})"
        )
    factor = bus_factor(call.collective, call.group.size)
    formula = _FACTORS.get(call.collective, "(n-1)/n")
    sent = f"each GPU sends {call.sent_bytes / 1e9:.4g} GB per step"
    return f"{sent}: {times} {factor:.4g} ({formula}, n = {call.group.size})"


def _switched(each: Candidate, prediction: Prediction) -> bool:
    """Check whether the node's switch adds the data of the GPUs (NVLS).

    The algorithm "double_tree" between nodes also uses a switch that adds the data, if the node has one.
    """
    return prediction.algorithm == "nvls" or (prediction.algorithm == "double_tree" and each.instance.links.reduces)


_FACTORS = {"allreduce": "2(n-1)/n", "sendrecv": "1"}
_HIDDEN = {
    "bucket": "during the backward pass, as soon as a bucket is full",
    "unit": "prefetched one layer ahead",
    "ends": "before the first layer and after the last, not hidden",
    "pass": "blocks the pass, not hidden",
    "hop": "between stages, twice per micro-batch",
    "after": "after the update, not hidden",
}


def _seconds(prediction: Prediction) -> str:
    """Return the time of a call as text: `3.1..4.2 ms by ring over NVLink port`."""
    middle = "" if prediction.middle_s is None else f" (middle {prediction.middle_s * 1e3:.4g})"
    by = f" by {prediction.algorithm}" if prediction.algorithm else ""
    return (
        f"{prediction.low_s * 1e3:.4g}..{prediction.high_s * 1e3:.4g} ms{middle}{by}, limited by "
        f"{prediction.bottleneck}, {prediction.link_class}; the links alone {prediction.ideal_s * 1e3:.4g} ms"
    )


def by_hand(each: Candidate) -> Iterator[str]:
    """Yield the time of a step's largest exchange inside a node, from rates that a reader can look up.

    All calls of the exchange count as one call. The time assumes that computation hides no part of the exchange.
    """
    inside = [(call, found) for call, found in each.exchanges if call.group.num_nodes == 1]
    if not inside:
        return
    largest, _ = max(inside, key=lambda pair: pair[0].sent_bytes)
    same_calls = [pair for pair in inside if (pair[0].collective, pair[0].group) == (largest.collective, largest.group)]
    sent = sum(call.sent_bytes for call, _ in same_calls)
    through = sum(call.switched_bytes if _switched(each, found) else call.sent_bytes for call, found in same_calls)
    # busbw counts the bytes of a ring. With NVLS, busbw is not the rate of the port and may exceed that rate.
    counted = f" because the switch reduces (NVLS); busbw counts {sent / 1e9:.4g} GB" if through != sent else ""
    what = f"{largest.collective} within a node, all calls"
    yield f"{what}: {through / 1e9:.4g} GB through each GPU's port, each way{counted}"
    bounds, published = list(_bounds(each)), list(_published(each, largest))
    for words, rate in bounds:
        yield f"{words}, {rate / 1e9:.4g} GB/s: {through / rate * 1e3:.4g} ms"
    for words, rate in published:
        yield f"{words}, {rate / 1e9:.4g} GB/s{' of busbw' if counted else ''}: {sent / rate * 1e3:.4g} ms"
    if not _published_rows(each, largest):
        yield (
            f"no {largest.collective} result is published for several {each.gpu.name} in one node "
            "(hardware/reference.yaml), so only an interval is known"
        )
    rates = [rate for _, rate in (*bounds[1:], *published)]  # the first bound is the link's own rate
    if len(rates) > 1:
        fastest, slowest = (f"{sent / rate * 1e3:.4g}" for rate in (max(rates), min(rates)))
        yield f"by these published rates: {fastest}..{slowest} ms per step if not hidden"


_Rate = tuple[str, float]  # text, bytes per second


def _bounds(each: Candidate) -> Iterator[_Rate]:
    """Yield the rate of the GPUs' link.

    For a PCIe link, also yield the published rates of copies from the host over this link.
    """
    links = each.instance.links
    if links.peer in NVLINK_PEERS and links.nvlink_bytes_per_s:
        yield "at the NVLink port's rate (bound)", links.nvlink_bytes_per_s
    elif links.pcie_bytes_per_s:
        yield "at the rate of the PCIe link (bound)", links.pcie_bytes_per_s
        for known in reference.copies():
            if known.instance == each.instance.name and "h2d" in known.rates:
                words = f"if that link were the limit: at the rate of copies from the host (published: {known.source})"
                yield words, known.rates["h2d"][0]


def _published_rows(each: Candidate, call: Communication) -> list[Reference]:
    """Return the published results for the same number of GPUs of this model in one node.

    Results of this instance type come first.
    """
    found = [
        one
        for one in reference.collectives()
        if (one.gpu, one.num_nodes, one.num_ranks) == (each.gpu.name, 1, call.group.size)
        and one.pattern == call.collective
        and not one.limited
    ]
    return sorted(found, key=lambda one: (one.instance != each.instance.name, -one.best[1]))[:_MOST_PUBLISHED]


def _published(each: Candidate, call: Communication) -> Iterator[_Rate]:
    """Yield the rates of the results that `_published_rows` returns.

    If the machine has no published results and no peer access, yield the fastest and the slowest rate of other machines
    without peer access.
    """
    for one in _published_rows(each, call):
        where = one.instance or f"{one.num_ranks} x {one.gpu}"
        yield f"as published for {where} at {format_bytes(one.best[0])} ({one.source})", one.best[1]
    if _published_rows(each, call) or each.instance.links.peer != "host":
        return
    others = [one for one in reference.collectives() if one.pattern == call.collective and one.peers == "host"]
    others.sort(key=lambda one: -one.best[1])
    for one in others if len(others) < 3 else (others[0], others[-1]):
        yield f"as published for {one.num_ranks} x {one.gpu} without peer access ({one.source})", one.best[1]


def _step(each: Candidate) -> Iterator[str]:
    low, middle, high = LOST_TO_OVERLAP
    yield f"compute {_ms(each.range('compute_s'))}"
    if each.range("bubble_s").high > 0:
        mesh, micro = each.layout.workload.mesh, each.layout.workload.accumulation
        share = f"(stages - 1) / micro-batches = {mesh.pipeline - 1}/{micro} of the passes and of their waiting"
        yield f"pipeline bubble {_ms(each.range('bubble_s'))}: {share}"
    if each.exchanges:
        yield (
            f"exposed communication {_ms(each.range('exposed_s'))} of {_ms(each.range('exchange_s'))}; of the hidden "
            f"part, {middle:g} ({low:g}..{high:g}) is lost because computation is slower (arXiv 2507.03114: 18.9 % on "
            "average, 40 % at most)"
        )
    if each.feed is not None:
        num_bytes = (
            (each.layout.workload.input_bytes or 0) * each.layout.workload.batch * each.layout.workload.accumulation
        )
        yield (
            f"feed {num_bytes / 1e6:.4g} MB to each GPU, {_seconds(each.feed)} ({each.feed.basis}: "
            f"{'; '.join(each.feed.rests_on)}); not hidden {_ms(each.range('feed_s'))}"
        )
    whole = f"{_ms(each.range('total_s'))}, draw by draw (the ends do not add up)"
    yield f"total {whole}; {each.samples_per_s.text()} samples/s; bottleneck: {each.bottleneck}"


def _cost(each: Candidate) -> Iterator[str]:
    price, nodes = each.priced.price, each.layout.num_nodes
    if price is None:
        return
    million = each.usd(1_000_000)
    first = cost.since(each.instance, price)
    since = f", unchanged since {first.date}" if first.date != price.date else ""
    where = f"({price.region or 'yours'}; {price.source})"
    yield f"{price.usd_per_hour:.4f} $/h on {price.date or 'no date'}{since} {where}, x {nodes}"
    if million:
        rates = each.samples_per_s
        slowest = DrawnRange(rates.high, rates.middle, rates.low).text()
        yield f"$/1M samples = {each.usd_per_hour:.4f} $/h / 3600 / {slowest} samples per s x 1e6 = {million.text()}"
    waiting = each.usd_per_hour_waiting
    if waiting:
        yield _waiting(each, waiting)
    before = cost.earlier(each.instance, price)
    if before and million:
        old = DrawnRange(
            *(end * before.usd_per_hour / price.usd_per_hour for end in (million.low, million.middle, million.high))
        )
        yield f"at its earlier price, {before.usd_per_hour:.4f} $/h on {before.date}: {old.text()} $/1M samples"


def _waiting(each: Candidate, found: DrawnRange) -> str:
    formula = "$/h spent waiting = $/h x exposed / step"
    if found.low == found.high:
        return f"{formula} = {found.text()}"
    exposed, whole, dollars = each.range("exposed_s").middle, each.range("total_s").middle, each.usd_per_hour or 0.0
    words = ""
    if each.has_middle:
        ends = (text.significant(seconds * 1e3, 4) for seconds in (exposed, whole))
        made = text.significant(dollars * exposed / whole, 3)
        words = f" with the middles, {dollars:.4f} x {' / '.join(ends)} = {made};"
    return f"{formula}:{words} {found.text()} {_DRAWN}"
