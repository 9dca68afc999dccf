"""The words for a selection of machines: a ranked table, what is decided and what is not, and plain values.

Beside every number stands a letter for what it rests on; the letters' words stand below the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.predict.candidate import Candidate
from bench.predict.draws import DrawnRange
from bench.predict.predict import CONFIDENCE
from bench.predict.select import PairDecision, Refused, Selection
from bench.results import text as results_text

SCHEMA = "bench.select/1"
LETTERS = {"measured": "m", "imported": "i", "published": "p", "bound": "b", "assumed": "a"}
_MILLION = 1_000_000
_TITLES = (
    "",
    "instance",
    "nodes",
    "GPUs",
    "step (ms)",
    "compute (ms)",
    "bubble (ms)",
    "exposed (ms)",
    "feed (ms)",
    "bottleneck",
    "samples/s",
    "$/1M samples",
    "$/epoch",
    "$/h",
    "$/h waiting",
    "price of",
)
_FEW = 4  # machines, about each of which everything is said
_VERBS = {"cost": ("costs", "cheaper"), "time": ("takes", "faster")}
_LEFT = ("instance", "bottleneck", "price of")


def table(selection: Selection) -> str:
    """The whole answer as text."""
    rows = [_TITLES, *(_cells(rank, each) for rank, each in enumerate(selection.candidates, 1))]
    kept = _columns(rows)
    widths = {column: max(len(row[column]) for row in rows) for column in kept}
    text = [f"# {line}" for line in _head(selection)]
    for number, row in enumerate(rows):
        cells = (
            row[column].ljust(widths[column]) if _TITLES[column] in _LEFT else row[column].rjust(widths[column])
            for column in kept
        )
        text.append(("# " if number == 0 else "  ") + "  ".join(cells).rstrip())
    return "\n".join([*text, *(f"# {line}" for line in fine_print(selection))]) + "\n"


def markdown(selection: Selection) -> str:
    """The same as Markdown."""
    rows = [_cells(rank, each) for rank, each in enumerate(selection.candidates, 1)]
    kept = _columns([_TITLES, *rows])
    lines = [f"# {_head(selection)[0]}", "", *(f"- {line}" for line in _head(selection)[1:]), ""]
    lines += [
        _pipes(_TITLES[column] for column in kept),
        _pipes(":---" if _TITLES[c] in _LEFT else "---:" for c in kept),
    ]
    lines += [_pipes(row[column] for column in kept) for row in rows]
    return "\n".join([*lines, "", *(f"- {line}" for line in fine_print(selection))]) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which any machine has something to say."""
    return [
        column
        for column in range(len(_TITLES))
        if any(row[column] not in ("", results_text.NOTHING) for row in rows[1:])
    ]


def _head(selection: Selection) -> list[str]:
    workload = selection.question.workload
    what = f"{workload.name}: {workload.description}" if workload.description else workload.name
    model = workload.model
    mesh = ", ".join(
        f"{name} {size}"
        for name, size in (
            ("tensor", workload.mesh.tensor),
            ("pipeline", workload.mesh.pipeline),
            ("expert", workload.mesh.expert),
        )
        if size > 1
    )
    step = f"{workload.batch} samples per micro-batch and data-parallel rank, {workload.accumulation} of them a step"
    return [
        f"{what} (modelled)",
        f"{model.parameters:.4g} parameters, {workload.strategy}{', ' + mesh if mesh else ''}, {step}; gradients "
        f"{workload.gradients}, compression {workload.compression}, computed in {workload.compute}",
    ]


def _cells(rank: int, each: Candidate) -> tuple[str, ...]:
    compute, exchange, feed = (letters(each.bases[part]) for part in ("compute", "exchange", "feed"))
    whole = letters(each.basis)
    epoch = each.layout.workload.epoch_samples
    price = each.priced.price
    bubble, fed = each.range("bubble_s"), each.range("feed_s")
    return (
        str(rank),
        each.instance.name + ("" if each.verified else " ?"),
        str(each.layout.num_nodes),
        str(each.layout.num_gpus),
        _ms(each.range("total_s"), whole),
        _ms(each.range("compute_s"), compute),
        _ms(bubble, compute) if bubble.high > 0 else results_text.NOTHING,
        _ms(each.range("exposed_s"), exchange) if each.exchanges else results_text.NOTHING,
        results_text.NOTHING if each.feed is None else _ms(fed, feed) if fed.high > 0 else f"hidden {feed}",
        each.bottleneck,
        f"{span(each.samples_per_s)} {whole}",
        _dollars(each.usd(_MILLION), whole),
        _dollars(each.usd(epoch) if epoch else None, whole),
        results_text.NOTHING if each.usd_per_hour is None else f"{each.usd_per_hour:.2f}",
        _dollars(each.usd_per_hour_waiting, whole),
        results_text.NOTHING
        if price is None
        else f"{price.date or 'undated'}{', ' + price.region if price.region else ''}",
    )


def letters(basis: str) -> str:
    """`ap` of assumed+published."""
    return "".join(LETTERS[word] for word in basis.split("+") if word)


def span(found: DrawnRange, scale: float = 1.0) -> str:
    """`9.31..12.4`: an interval to 3 digits, one number where both ends are alike."""
    ends = [results_text.significant(end * scale, 3) for end in (found.low, found.high)]
    return ends[0] if ends[0] == ends[1] else "..".join(ends)


def _ms(found: DrawnRange, basis: str) -> str:
    return f"{span(found, 1e3)} {basis}"


def _dollars(found: DrawnRange | None, basis: str) -> str:
    return results_text.NOTHING if found is None else f"{span(found)} {basis}"


def fine_print(selection: Selection) -> list[str]:
    """What the letters mean, what is decided, who was left out, what a reader must know."""
    used = {word for each in selection.candidates for word in each.basis.split("+") if word}
    meaning = ", ".join(f"{letter} {word}" for word, letter in LETTERS.items() if word in used)
    doubtful = any(not each.verified for each in selection.candidates)
    more = len(selection.reversals) - _FEW
    return [
        f"{100 * CONFIDENCE:.0f} % intervals; what each number rests on: {meaning}"
        + ("; ? with figures that nobody read in a source" if doubtful else ""),
        *_decided(selection),
        *_left_out(selection.refused),
        *selection.remarks,
        *selection.reversals[:_FEW],
        *([f"earlier prices say something else of {more} more pairs (--format json)"] if more > 0 else []),
    ]


def _decided(selection: Selection) -> list[str]:
    """Every verdict of a few machines; of many the open ones, in what they are ranked by, the others in one line."""
    if len(selection.candidates) <= _FEW:
        return [sentence(each) for each in selection.verdicts]
    asked = [each for each in selection.verdicts if each.by == selection.verdicts[0].by]
    best, better = selection.candidates[0].name, _VERBS[asked[0].by][1]
    beaten = [each.other.name for each in asked if each.decided and each.ratio.high < 1]
    others = [each for each in asked if each.other.name not in beaten]
    lines = [f"{best} is {better} than each of {', '.join(beaten)}"] if beaten else []
    lines += [sentence(each) for each in others[:_FEW]]
    more = [each.other.name for each in others[_FEW:]]
    return lines + ([f"nor is it decided against {', '.join(more)} (--format json tells why)"] if more else [])


def _left_out(refused: Sequence[Refused]) -> list[str]:
    """Each machine with its reason. For many machines, equal calculations of memory are printed once."""
    few = len(refused) <= _FEW
    lines: list[str] = []
    needs: dict[str, list[str]] = {}
    for each in refused:
        machine = f"{each.num_nodes} x {each.instance}"
        reason = each.reason
        if each.too_large is not None and not few:
            reason = each.too_large.summary
            needs.setdefault(each.too_large.need.arithmetic, []).append(machine)
        lines.append(f"left out: {machine}: {reason}")
    return lines + [f"memory of one GPU of {', '.join(whose)}: {sum_}" for sum_, whose in needs.items()]


def sentence(verdict: PairDecision) -> str:
    """`p4d.24xlarge costs 0.21..0.64 of g6e.48xlarge per sample: decided`, or why not and what would decide it."""
    verb, better = _VERBS[verdict.by]
    first, other = verdict.first.name, verdict.other.name
    said = f"a sample {verb} on {first} {span(verdict.ratio)} of what it {verb} on {other}: "
    if verdict.doubt is None:
        winner = first if verdict.ratio.high < 1 else other
        return f"{said}{winner} is {better}"
    doubt = verdict.doubt
    if not doubt.command:
        return f"{said}UNDECIDED, {doubt.what}"
    return f"{said}UNDECIDED; {100 * doubt.share:.0f} % of the doubt is {doubt.what}. To decide, {doubt.command}"


def plain(selection: Selection) -> dict[str, Any]:
    """Plain values for JSON: seconds, bytes, dollars; unknown is null."""
    question = selection.question
    return {
        "schema": SCHEMA,
        "modelled": True,
        "workload": question.workload.name,
        "ranked_by": selection.by,
        "confidence": CONFIDENCE,
        "machines": [_machine(rank, each) for rank, each in enumerate(selection.candidates, 1)],
        "verdicts": [_verdict(each) for each in selection.verdicts],
        "skipped": [
            {"instance": each.instance, "num_nodes": each.num_nodes, "reason": each.reason, "code": each.code}
            for each in selection.refused
        ],
        "notes": [*selection.remarks, *selection.reversals],
    }


def _machine(rank: int, each: Candidate) -> dict[str, Any]:
    price, epoch = each.priced.price, each.layout.workload.epoch_samples
    found: dict[str, Any] = {
        "rank": rank,
        "instance": each.instance.name,
        "gpu": each.gpu.name,
        "num_nodes": each.layout.num_nodes,
        "num_gpus": each.layout.num_gpus,
        "samples_per_step": each.layout.samples,
        "bottleneck": each.bottleneck,
        "verified": each.verified,
        "basis": each.basis,
        "compute_basis": each.bases["compute"],
        "exposed_basis": each.bases["exchange"] or None,
        "feed_basis": each.bases["feed"] or None,
        "memory_needed_bytes": each.need.total,
        "memory_bytes": each.gpu.memory_bytes,
        "usd_per_hour": each.usd_per_hour,
        "price_date": price.date if price else None,
        "price_region": price.region or None if price else None,
        "price_source": price.source if price else None,
    }
    for name, part in (
        ("step", "total_s"),
        ("compute", "compute_s"),
        ("bubble", "bubble_s"),
        ("exposed", "exposed_s"),
        ("feed", "feed_s"),
        ("exchange", "exchange_s"),
    ):
        known = each.has_middle or name in ("compute", "bubble")
        found |= _ends(name, "_s", each.range(part), known)
    known = each.has_middle
    found |= _ends("samples_per_s", "", each.samples_per_s, known)
    found |= _ends("usd_per_million_samples", "", each.usd(_MILLION), known)
    found |= _ends("usd_per_epoch", "", each.usd(epoch) if epoch else None, known)
    found |= _ends("usd_per_hour_waiting", "", each.usd_per_hour_waiting, known)
    return found


def _ends(name: str, unit: str, found: DrawnRange | None, known: bool) -> Mapping[str, float | None]:
    """`step_low_s`, `step_s` (null where no middle is known), `step_high_s`."""
    ends = (None, None, None) if found is None else (found.low, found.middle if known else None, found.high)
    return dict(zip((f"{name}_low{unit}", f"{name}{unit}", f"{name}_high{unit}"), ends, strict=True))


def _verdict(each: PairDecision) -> dict[str, Any]:
    return {
        "by": each.by,
        "first": each.first.name,
        "other": each.other.name,
        "ratio_low": each.ratio.low,
        "ratio": each.ratio.middle,
        "ratio_high": each.ratio.high,
        "decided": each.decided,
        "doubt": each.doubt.what if each.doubt else None,
        "doubt_share": each.doubt.share if each.doubt else None,
        "to_decide": each.doubt.command or None if each.doubt else None,
    }
